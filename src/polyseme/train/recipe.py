"""Recipe: a complete description of one pre-training run, saved next to its result."""

import logging
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self, get_type_hints

from polyseme.config import Config, parse_value
from polyseme.errors import ConfigError, suggest
from polyseme.families import Family, get_family
from polyseme.images.regions import RegionFormat
from polyseme.io.limits import MAX_BATCH_TOKENS, MAX_MICRO_BATCH_TOKENS, MAX_MINUTES, MAX_STEPS, MAX_TOKENS
from polyseme.nn.model import ModelConfig, build_meta
from polyseme.nn.sizes import check_sizes
from polyseme.objectives.base import Objective
from polyseme.objectives.captioning import Captioning
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.distillation import Distillation
from polyseme.objectives.glove import GloVe
from polyseme.objectives.hybrid_lm import HybridLM
from polyseme.objectives.masked_lm import MaskedLM, SpanMaskedLM
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.objectives.translation import Translation
from polyseme.objectives.word2vec import Word2Vec
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BudgetConfig(Config):
    """The length of a run: a number of steps, of tokens, or minutes, which the clock converts to steps."""

    steps: int = 0
    tokens: int = 0
    minutes: float = 0.0

    def __post_init__(self) -> None:
        self.check_range(0, MAX_STEPS, "steps")
        self.check_range(0, MAX_TOKENS, "tokens")
        self.check_range(0, MAX_MINUTES, "minutes")
        if len(limits := self._limits()) > 1:
            raise ConfigError(f"{' and '.join(limits)} both limit the run: set one of them")

    def _limits(self) -> list[str]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return [f"budget.{name}={value:g}" for name, value in values.items() if value]

    def with_override(self, path: str, text: str) -> Self:
        """Set one limit, which replaces another."""
        changed = super(BudgetConfig, type(self)()).with_override(path, text)
        if not changed._limits():
            return self.replace(**{path: 0})
        if replaced := [limit for limit in self._limits() if not limit.startswith(f"budget.{path}=")]:
            logger.info("%s replaces %s", changed._limits()[0], replaced[0])
        return changed

    def with_name(self, name: str) -> Self:
        """Return the budget that a text such as `20m` describes."""
        return self.parse(name)

    def __str__(self) -> str:
        """Format as `parse` reads it."""
        if self.is_wall_clock:
            return f"{60 * self.minutes:g}s" if self.minutes < 2 else f"{self.minutes:g}m"
        return f"{self.steps}steps" if self.steps else f"{self.tokens}tokens"

    @property
    def is_wall_clock(self) -> bool:
        """Whether the budget is in minutes."""
        return not (self.steps or self.tokens)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `20m`, `1h30m`, `90s`, `500steps` or `1e9tokens`."""
        values: dict[str, Any] = {}
        with suppress(ValueError, OverflowError):
            if match := re.fullmatch(r"([\d.e]+)(steps|tokens)", text):
                values[match[2]] = int(float(match[1]))
            elif match := re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", text):
                hours, minutes, seconds = (float(part or 0) for part in match.groups())
                values["minutes"] = 60 * hours + minutes + seconds / 60
        if any(values.values()):
            return cls(**values)
        raise ConfigError(f"a budget is a time such as 20m, 1h30m or 90s, or 500steps or 1e9tokens, not {text!r}")


@dataclass(frozen=True)
class ShortSequencesConfig(Config):
    """Shorter sequences in the first steps of a run: 128 tokens in 90 % of BERT's (Devlin et al. 2019, appendix A.2).

    The first `fraction` of the steps has sequences of `max_len`, and `batch_tokens` in a step; 0 for as many as later.
    With a `max_len` of 0, all steps are alike. A run that is extended keeps the number of its first steps.
    """

    max_len: int = 0
    fraction: float = 0.9
    batch_tokens: int = 0

    def __post_init__(self) -> None:
        self.check_range(0, math.inf, "max_len", "batch_tokens")
        self.check_range(0, 1, "fraction")

    def count_steps(self, total_steps: int) -> int:
        """Return the number of steps with short sequences in a run."""
        return int(self.fraction * total_steps) if self.max_len else 0


@dataclass(frozen=True)
class Recipe(Config):
    """One pre-training run. `model` holds arguments of the family's trunk; the vocabulary is that of the corpus.

    A step has `batch_tokens`, in micro-batches of `micro_batch_tokens`; over the first `batch_warmup_steps` steps it
    grows to that from one micro-batch. A fraction `valid_fraction` of the documents, spread evenly over the corpus, is
    held out for validation.
    """

    name: str
    family: str
    size: str = ""
    model: dict[str, int | float | str | bool] = field(default_factory=dict)
    objective: Objective = field(default_factory=MaskedLM)
    max_len: int = 128
    batch_tokens: int = 16384
    micro_batch_tokens: int = 16384
    batch_warmup_steps: int = 0
    short_sequences: ShortSequencesConfig = field(default_factory=ShortSequencesConfig)
    budget: BudgetConfig = field(default_factory=lambda: BudgetConfig(steps=1000))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    seed: int = 0
    precision: Literal["auto", "float32", "bf16"] = "auto"
    compile: bool = False
    gradient_checkpointing: bool = False  # less memory, a third more computation
    valid_fraction: float = 0.01
    eval_every: int = 500
    eval_tokens: int = 65536
    save_every: int = 500
    keep_checkpoints: int = 2
    num_averaged: int = 0  # checkpoints whose mean is the model; 0 for the last weights
    log_every: int = 10
    derivation: tuple[str, ...] = ()  # sentences that say why the values are as they are, if they were derived

    config_types: ClassVar[tuple[type[Config], ...]] = (
        *(MaskedLM, MaskedLMWithSentencePairs, SpanMaskedLM, CausalLM, StreamingCausalLM, PermutationLM),
        *(HybridLM, SpanCorruption, Translation, Word2Vec, GloVe, Distillation, Captioning),
    )

    def model_config(
        self,
        vocab_size: int,
        target_vocab_size: int = 0,
        families: Sequence[Family] = (),
        regions: RegionFormat | None = None,
    ) -> ModelConfig:
        """Return the config of the model with the heads that the objective trains.

        `families` are additional ones; `regions` are those of a corpus of images.
        """
        family = get_family(self.family, families)
        arguments = get_type_hints(family.trunk_config)
        del arguments["return"]
        check_sizes(self.model, "model")
        changes: dict[str, Any] = {"vocab_size": vocab_size}
        if target_vocab_size:
            if "target_vocab_size" not in arguments:
                raise ConfigError(f"{self.family} has one vocabulary, but the corpus has two")
            changes["target_vocab_size"] = target_vocab_size
        if regions is not None:
            if "num_rows" not in arguments:
                raise ConfigError(f"{self.family} reads text, but the corpus has images: use a family that reads them")
            changes |= {field.name: getattr(regions, field.name) for field in fields(regions)}
        for key, value in self.model.items():
            if key not in arguments:
                raise ConfigError(f"unknown key {key!r} in model; {suggest(key, arguments)}")
            parsed = parse_value(arguments[key], value, f"model.{key}")
            if changes.setdefault(key, parsed) != parsed:
                problem = f"model.{key} is {parsed}, expected {changes[key]}"
                raise ConfigError(f"{problem}, which the corpus determines: leave it out")
        config = family.model_config(self.size or None, **changes)
        ModelConfig.from_json(config.to_json(), "model", family.config_types)  # checks the type of every value
        try:
            family.to_hf_config(config)
        except KeyError as error:
            raise ConfigError(f"{self.family} has no published name for {error}, so it could not be saved") from None
        build_meta(config)
        self._check_model(config)
        return config.replace(heads={name: config.heads[name] for name in self.objective.terms})

    def _check_model(self, config: ModelConfig) -> None:
        """Raise if objective, optimizer and settings do not fit the model or each other."""
        objective, name = self.objective, type(self.objective).__name__
        objective.check(config, self.max_len)
        if objective.is_sparse != self.optimizer.is_sparse:
            dense = "'adamw', 'stable_adamw', 'lamb', 'muon', 'adafactor', 'adagrad' or 'nt_asgd'"
            expected = "'sparse_sgd' or 'sparse_adagrad'" if objective.is_sparse else dense
            raise ConfigError(f"optimizer.name is {self.optimizer.name!r}, but {name} is trained by {expected}")
        if objective.needs_bounded_memory and self.batch_warmup_steps:
            steps = self.batch_warmup_steps
            raise ConfigError(f"batch_warmup_steps is {steps}, expected 0: {name} has the same streams in each step")
        if self.short_sequences.max_len and (objective.needs_bounded_memory or objective.is_sparse):
            problem = f"short_sequences.max_len is {self.short_sequences.max_len}, expected 0"
            raise ConfigError(f"{problem}: {name} reads one stream of text, not sequences")
        smallest_batch = min(self.batch_tokens, self.first_recipe.batch_tokens)
        num_micro_batches = smallest_batch // self.micro_batch_tokens
        if num_micro_batches < objective.min_micro_batches:
            needed = f"{name} needs {objective.min_micro_batches} or more micro-batches in a step"
            largest = smallest_batch // objective.min_micro_batches
            sizes = (size for size in range(largest, self.max_len - 1, -1) if smallest_batch % size == 0)
            enough = self.micro_batch_tokens * objective.min_micro_batches
            advice = f"set it to {size}" if (size := next(sizes, 0)) else f"set batch_tokens to {enough} or more"
            raise ConfigError(f"micro_batch_tokens is {self.micro_batch_tokens}, but {needed}: {advice}")
        if self.batch_warmup_steps and objective.min_micro_batches > 1:
            steps = self.batch_warmup_steps
            raise ConfigError(
                f"batch_warmup_steps is {steps}, expected 0: each step of {name} has both kinds of batches"
            )
        if self.compile and not config.trunk.supports_static_shape:
            raise ConfigError(f"compile is true, which {self.family} does not support: set it to false")

    @property
    def first_recipe(self) -> Self:
        """The recipe of the first steps, if they have shorter sequences; otherwise the recipe itself."""
        short = self.short_sequences
        return (
            self.replace(max_len=short.max_len, batch_tokens=short.batch_tokens or self.batch_tokens)
            if short.max_len
            else self
        )

    @property
    def num_kept_checkpoints(self) -> int:
        """Number of checkpoints to keep: those that are averaged at the end, too."""
        return max(self.keep_checkpoints, self.num_averaged)

    def check(self) -> Self:
        """Return the recipe, or raise if its values do not fit each other."""
        self.check_range(1, math.inf, "max_len", "batch_tokens", "micro_batch_tokens")
        self.check_range(1, math.inf, "eval_every", "save_every", "log_every", "keep_checkpoints")
        self.check_range(0, math.inf, "num_averaged", "batch_warmup_steps")
        self.check_range(0, 1, "valid_fraction")
        self.check_range(0, MAX_BATCH_TOKENS, "batch_tokens", "eval_tokens", "max_len", "batch_warmup_steps")
        self.check_range(0, MAX_MICRO_BATCH_TOKENS, "micro_batch_tokens")
        if self.micro_batch_tokens < self.max_len:
            raise ConfigError(f"micro_batch_tokens {self.micro_batch_tokens} is smaller than max_len {self.max_len}")
        if self.batch_tokens % self.micro_batch_tokens:
            raise ConfigError(
                f"batch_tokens {self.batch_tokens} is not a multiple of micro_batch_tokens {self.micro_batch_tokens}"
            )
        self._check_short_sequences()
        if self.optimizer.lr <= 0:
            raise ConfigError(f"optimizer.lr is {self.optimizer.lr}, expected more than 0")
        if self.optimizer.name == "nt_asgd" and not self.valid_fraction:
            raise ConfigError("valid_fraction is 0, but nt_asgd depends on the loss on held-out text")
        if self.optimizer.name == "nt_asgd" and self.num_averaged:
            raise ConfigError(f"num_averaged is {self.num_averaged}, expected 0: nt_asgd averages weights itself")
        if not any((self.budget.steps, self.budget.tokens, self.budget.minutes)):
            raise ConfigError("the budget is empty: set budget.steps, budget.tokens or budget.minutes")
        return self

    def _check_short_sequences(self) -> None:
        """Raise if the first steps cannot have shorter sequences."""
        short = self.short_sequences
        if short.max_len == 0:
            return
        if short.max_len >= self.max_len:
            raise ConfigError(f"short_sequences.max_len is {short.max_len}, expected less than max_len {self.max_len}")
        if short.batch_tokens % self.micro_batch_tokens:
            problem = f"short_sequences.batch_tokens {short.batch_tokens}"
            raise ConfigError(f"{problem} is not a multiple of micro_batch_tokens {self.micro_batch_tokens}")
        if self.budget.is_wall_clock:
            advice = "set a budget in steps or tokens, or short_sequences.max_len to 0"
            raise ConfigError(f"the budget is {self.budget}, a part of which cannot have short sequences: {advice}")
