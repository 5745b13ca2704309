"""Warnings about runs that finished but did not train: diverged, vacuous, or too short."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.families import Family
from polyseme.nn.model import ModelConfig
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.recipe import Recipe

logger = logging.getLogger(__name__)

MAX_BASELINE_TOKENS = 1_000_000  # from which token frequencies are estimated
DIVERGED_RATIO = 1.1  # of the loss of a uniform distribution; a new model has about that loss
MAX_RISE = 0.5  # of the held-out loss above its best value, in nats, and
MAX_RISE_RATIO = 1.1
MIN_LOSS = 1e-6  # nats; below, nothing is predicted
MIN_STEPS = 10  # of a run in minutes
KIND_GROUPS = ({"words", "whitespace"}, {"bpe", "byte-bpe-roberta"})  # tokenizer kinds that are interchangeable


@dataclass
class RunDiagnostics:
    """The state of a run's held-out losses, and what is wrong with them.

    `best_losses` has the lowest held-out loss of each term and its step.
    """

    recipe: Recipe
    vocab_sizes: dict[str, int]  # of the terms that predict tokens
    unigram_loss: float = math.inf  # of token frequencies alone
    best_losses: dict[str, tuple[float, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # warnings that do not depend on losses
    logged: set[str] = field(default_factory=set)  # kinds of problems that were logged

    @classmethod
    def from_run(cls, recipe: Recipe, config: ModelConfig, corpus: Corpus) -> Self:
        """Return the diagnostics of a run that starts."""
        sizes = {name: getattr(head, "vocab_size", 0) for name, head in config.heads.items()}
        sizes = {} if recipe.objective.is_sparse else {name: size for name, size in sizes.items() if size}
        predicts_text = sizes and not recipe.objective.needs_source
        return cls(recipe, sizes, measure_unigram_loss(corpus) if predicts_text else math.inf)

    def add_note(self, message: str) -> None:
        """Log a warning and add it to the results."""
        logger.warning(message)
        self.notes.append(message)

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a validation, and log a warning when the run diverges or predicts nothing."""
        for kind, message in self._find_problems(metrics).items():
            if kind not in (*self.logged, "untrained"):
                logger.warning("step %d: %s", step, message)
                self.logged.add(kind)
        for term in self.recipe.objective.terms:
            loss = metrics.get(term, math.nan)
            if loss < self.best_losses.get(term, (math.inf, 0))[0]:
                self.best_losses[term] = loss, step

    def finish(self, metrics: Mapping[str, float], training_losses: Mapping[str, float]) -> list[str]:
        """Return the warnings about a finished run, by its losses in training if no text was held out; log new ones."""
        problems = self._find_problems(metrics) if metrics else self._find_problems(training_losses, "training")
        for kind, message in problems.items():
            if kind not in self.logged:
                logger.warning(message)
        return [*problems.values(), *self.notes]

    def _find_problems(self, metrics: Mapping[str, float], text: str = "held-out") -> dict[str, str]:
        """Return one message for each kind of problem."""
        problems: dict[str, str] = {}
        lower_lr = f"lower `optimizer.lr` ({self.recipe.optimizer.lr:g})"
        for term in self.recipe.objective.terms:
            if term not in metrics:
                continue
            loss, what = metrics[term], f"the {text} {term} loss is {metrics[term]:.4g} nats"
            uniform = math.log(self.vocab_sizes[term]) if term in self.vocab_sizes else math.inf
            best_loss, best_step = self.best_losses.get(term, (math.inf, 0))
            if not math.isfinite(loss):
                problems.setdefault("diverged", f"the {text} {term} loss is {loss}: the run diverged; {lower_lr}")
            elif loss > DIVERGED_RATIO * uniform:
                guess = f"worse than a uniform guess ({uniform:.4g})"
                problems.setdefault("diverged", f"{what}, {guess}: the run diverged; {lower_lr}")
            elif loss > best_loss + MAX_RISE and loss > MAX_RISE_RATIO * best_loss:
                best = f"far above its best value ({best_loss:.4g} at step {best_step})"
                advice = f"{lower_lr}, train for fewer steps or on more text"
                problems.setdefault("risen", f"{what}, {best}: the run diverged or overfits; {advice}")
            elif abs(loss) < MIN_LOSS:
                cause = "nothing was predicted, or the model sees what it predicts"
                problems.setdefault("vacuous", f"{what}: {cause}; check `objective` and `valid_fraction`")
            elif term in self.vocab_sizes and loss > min(self.unigram_loss, uniform):
                baseline = "token frequencies alone" if self.unigram_loss < uniform else "a uniform guess"
                advice = f"train longer, or try another `optimizer.lr` ({self.recipe.optimizer.lr:g})"
                value = min(self.unigram_loss, uniform)
                problems.setdefault("untrained", f"{what}, no better than {baseline} ({value:.4g}): {advice}")
        return problems

    def check_length(self, total_steps: int) -> None:
        """Add notes about a finished run that was too short for its settings."""
        budget, schedule = self.recipe.budget, self.recipe.schedule
        if budget.is_wall_clock and total_steps < MIN_STEPS:
            advice = "use a longer budget, a smaller model or smaller batches (`batch_tokens`)"
            steps = "1 step fits" if total_steps == 1 else f"{total_steps} steps fit"
            self.add_note(f"only {steps} into the budget of {budget}: {advice}")
        if (warmup := schedule.warmup_steps(total_steps)) >= total_steps > 1:
            peak = "the learning rate did not reach its peak"
            self.add_note(
                f"the warm-up of {warmup:,} steps is as long as the run of {total_steps:,}: {peak}; "
                "set `schedule.warmup` to a fraction such as 0.1"
            )


def measure_unigram_loss(corpus: Corpus) -> float:
    """Return the entropy of the token frequencies in nats: the loss of a unigram model. Large corpora are sampled."""
    borders = np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)]
    starts, lengths = borders[:-1], np.diff(borders)
    stride = max(int(lengths.sum()) // MAX_BASELINE_TOKENS, 1)
    lengths = np.minimum(lengths[::stride], MAX_BASELINE_TOKENS)
    counts = np.bincount(corpus.gather_tokens(starts[::stride], lengths))
    probs = counts[counts > 0] / counts.sum()
    return float(-(probs * np.log(probs)).sum())


def describe_tokenizer_mismatch(family: Family, tokenizer: Tokenizer) -> str:
    """Describe how a tokenizer differs from what a family expects; empty if it does not, an error if it cannot work."""
    expected, kind = family.tokenizer, tokenizer.kind
    if kind in (expected, *family.other_tokenizers) or any({kind, expected} <= group for group in KIND_GROUPS):
        return ""
    advice = f"train a tokenizer of kind {expected} and prepare the corpus with it"
    if expected in ("characters", "events"):  # states at the ends of words, and notes
        raise ConfigError(f"{family.name} reads {expected}, but the tokenizer of the corpus is {kind}: {advice}")
    return f"{family.name} expects a tokenizer of kind {expected}, but that of the corpus is {kind}: {advice}"
