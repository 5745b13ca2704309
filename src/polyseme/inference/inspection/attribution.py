"""Attribution: how much each token and word of a text adds to a score of a model.

The gradients are those of the input layer's vectors, which is where tokens become numbers in every trunk. A baseline
input has another token in the place of each token of the text; special tokens, and the mask that is filled, stay.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.inference.inspection.hooks import output_hook
from polyseme.progress import progress
from polyseme.report.notebook import NotebookResult

logger = logging.getLogger(__name__)

ZERO_ID = -1  # in place of a token id: the zero vector
NODES_PER_INTERVAL = 16
MAX_STEPS = 1024
MAX_COMPLETENESS_ERROR = 0.01
MIN_ERROR = 2e-5  # the precision of a score in float32


@dataclass(frozen=True)
class AttributionRequest:
    """What the user asks for: whose score is attributed, over which baseline. No label is the model's prediction."""

    text: str
    label: str | None = None
    pair: str | None = None
    contrast: str | None = None
    baseline: str | None = None


@dataclass(frozen=True)
class Attribution(NotebookResult):
    """How much each token, and each word, of a text adds to a score of the model.

    `score` is the log-probability of the `label`, or by how much it exceeds that of the `contrast`; for regression it
    is the predicted number. `baseline_score` is the same for an input without the text, where each token is replaced by
    the `baseline`. `completeness_error` is the difference between the sum of `scores` and `score` − `baseline_score`,
    as a share of the latter: integrated gradients keep it below 1 %. `word_ids` has the word of each token, None for
    special tokens. Erasure and leave-one-out measure a word as a whole, so `word_scores` are not sums then.
    """

    label: str
    contrast: str | None
    method: str
    score: float
    baseline_score: float
    completeness_error: float
    baseline: str
    words: tuple[str, ...]
    word_scores: tuple[float, ...]
    tokens: tuple[str, ...]
    scores: tuple[float, ...]
    word_ids: tuple[int | None, ...]
    is_number: bool = False  # whether the score is a predicted number rather than a log-probability
    pair_start: int | None = None  # the first word of the second text


class Variant(NamedTuple):
    """An input without some of its tokens, or with others in their place."""

    ids: np.ndarray  # int64 [n]
    positions: np.ndarray  # int64 [n], the position of each token in the original


@dataclass(frozen=True, eq=False)
class AttributionInput:
    """An input as tokens and words, and the score that is attributed to them.

    `score_batch` maps variants to their scores, differentiably; it may pack variants of different lengths in any order.
    `is_text` marks the tokens that may be erased, `is_required` those of them that cannot be removed, such as the word
    that a tagger tags. A token is erased by replacing it by the `mask_id`, or where there is none by removing it.
    """

    ids: np.ndarray  # int64 [n]
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_ids: np.ndarray  # int64 [n], −1 for special tokens
    is_text: np.ndarray  # bool [n]
    is_required: np.ndarray  # bool [n]
    label: str
    contrast: str | None
    mask_id: int | None
    baseline_id: int
    baseline: str
    score_batch: Callable[[Sequence[Variant]], Tensor]
    input_layer: nn.Module
    max_batch_tokens: int
    is_number: bool = False  # whether the score is a predicted number rather than a log-probability
    pair_start: int | None = None  # the first word of the second text

    def __post_init__(self) -> None:
        if not self.is_text.any():
            raise DataError(f"there are no words to attribute {self.label!r} to: {' '.join(self.words)[:40]!r}")
        if self.label == self.contrast:
            raise ConfigError(f"label and `contrast` are both {self.label!r}: their difference is always 0")

    @property
    def erasable_words(self) -> list[int]:
        """The words that have a token of the text."""
        return sorted(set(self.word_ids[self.is_text].tolist()))

    def tokens_of_words(self, words: Sequence[int]) -> np.ndarray:
        """Return the positions of the tokens of some words."""
        return np.flatnonzero(np.isin(self.word_ids, words) & self.is_text)

    def erase(self, positions: np.ndarray, remove: bool | None = None) -> Variant:
        """Return the input without the tokens at some positions; `remove` them, or replace them by the mask token.

        A required token, or the last one of an input, is replaced by the baseline instead.
        """
        ids, is_removed = self.ids.copy(), np.zeros(len(self.ids), dtype=bool)
        is_removed[positions] = self.mask_id is None if remove is None else remove
        is_removed &= ~self.is_required
        if is_removed.all():
            is_removed[-1] = False
        ids[positions] = self.baseline_id if self.mask_id is None else self.mask_id
        index = np.flatnonzero(~is_removed)
        return Variant(ids[index], index)

    @torch.no_grad()
    def score_variants(self, variants: Sequence[Variant]) -> np.ndarray:
        """Return the score of each variant, float64 [variants], in batches of variants of equal length."""
        scores, lengths = np.empty(len(variants)), np.array([len(variant.ids) for variant in variants])
        with progress("score", len(variants), "variants", show=lengths.sum() > 20 * self.max_batch_tokens) as bar:
            for length in np.unique(lengths):
                index = np.flatnonzero(lengths == length)
                batch_size = max(self.max_batch_tokens // int(length), 1)
                for start in range(0, len(index), batch_size):
                    batch = index[start : start + batch_size]
                    scores[batch] = self._score([variants[i] for i in batch]).double().cpu().numpy()
                    bar.advance(len(batch))
        return scores

    def embed(self, ids: np.ndarray) -> tuple[Tensor, float]:
        """Return the vectors of the input layer, [n, dim], and the score."""
        recorded: list[Tensor] = []
        with torch.no_grad():
            score = self._score([Variant(ids, np.arange(len(ids)))], recorded.append)
        return recorded[0], float(score)

    def gradients(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores [k] of inputs with these vectors of the input layer, [k, n, dim], and their gradients."""
        variant, scores, grads = Variant(self.ids, np.arange(len(self.ids))), [], []
        for chunk in vectors.split(max(self.max_batch_tokens // len(self.ids), 1)):
            leaf = chunk.detach().flatten(0, 1).requires_grad_()
            with torch.enable_grad(), self._replace_vectors(lambda _, leaf=leaf: leaf), _no_cudnn(leaf):  # type: ignore[misc]
                chunk_scores = self.score_batch([variant] * len(chunk))
                grads.append(torch.autograd.grad(chunk_scores.sum(), leaf)[0].view_as(chunk))
            scores.append(chunk_scores.detach().double())
        return torch.cat(scores), torch.cat(grads)

    def _score(self, variants: Sequence[Variant], record: Callable[[Tensor], None] | None = None) -> Tensor:
        """Score variants of equal length, of which some have zero vectors."""
        is_zero = torch.from_numpy(np.concatenate([variant.ids for variant in variants]) == ZERO_ID)
        variants = [Variant(np.maximum(variant.ids, 0), variant.positions) for variant in variants]
        if record is None and not is_zero.any():
            return self.score_batch(variants)

        def replace(vectors: Tensor) -> Tensor:
            vectors = vectors.masked_fill(is_zero.to(vectors.device)[:, None], 0.0)
            if record is not None:
                record(vectors)
            return vectors

        with self._replace_vectors(replace):
            return self.score_batch(variants)

    def _replace_vectors(self, replace: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
        """Replace the vectors of the input layer."""

        def replace_output(output: Any) -> Any:
            if isinstance(output, Tensor):
                return replace(output)
            parts = [part for part in output if part is not None]  # of a network over frozen features
            vectors = iter(replace(torch.cat(parts, dim=-1)).split([part.shape[-1] for part in parts], dim=-1))
            return tuple(None if part is None else next(vectors) for part in output)

        return output_hook(self.input_layer, replace_output)


@contextmanager
def _no_cudnn(vectors: Tensor) -> Iterator[None]:
    """Turn cuDNN off on a GPU: its recurrent layers have no backward pass outside of training."""
    with torch.backends.cudnn.flags(enabled=False) if vectors.is_cuda else nullcontext():
        yield


def attribute_input(problem: AttributionInput, method: str = "integrated_gradients") -> Attribution:
    """Attribute the score of an input to its tokens and words."""
    if method not in METHODS:
        raise ConfigError(f"method is {method!r}; {suggest(method, METHODS)}")
    vectors, score = problem.embed(problem.ids)
    baseline_ids = np.where(problem.is_text, problem.baseline_id, problem.ids)
    baseline_vectors, baseline_score = problem.embed(baseline_ids)
    if method == "integrated_gradients":
        scores = _integrate_gradients(problem, (baseline_vectors, baseline_score), (vectors, score))
    elif method == "gradient_x_input":
        grads = problem.gradients(vectors[None])[1][0]
        scores = (grads * vectors).double().sum(-1).cpu().numpy()
    else:
        return _perturb(problem, method, score, baseline_score)
    has_word = problem.word_ids >= 0
    word_scores = np.bincount(problem.word_ids[has_word], scores[has_word], len(problem.words))
    return _to_attribution(problem, method, (score, baseline_score), scores, word_scores)


def _integrate_gradients(
    problem: AttributionInput, start: tuple[Tensor, float], end: tuple[Tensor, float]
) -> np.ndarray:
    """Integrate gradients along the line from the baseline to the input (Sundararajan et al. 2017, §3).

    In each interval, the sum over tokens is compared with the change of the score, and the interval with the largest
    error is halved, until the error of the total is below 1 %, and not by chance: errors may cancel, their squares not.
    """
    (baseline, baseline_score), (vectors, score) = start, end
    delta, nodes_and_weights = vectors - baseline, np.polynomial.legendre.leggauss(NODES_PER_INTERVAL)
    nodes, weights = (torch.from_numpy(array).to(vectors) for array in nodes_and_weights)

    def integrate(low: float, high: float) -> tuple[np.ndarray, float]:
        """Return the integral [n] over an interval, and the score at its end."""
        shares = torch.cat([low + (high - low) * (nodes + 1) / 2, nodes.new_tensor([high])])
        scores, grads = problem.gradients(baseline + shares[:, None, None] * delta)
        products = torch.einsum("k,knd,nd->n", weights.double(), grads[:-1].double(), delta.double())
        return (high - low) / 2 * products.cpu().numpy(), float(scores[-1])

    whole, _ = integrate(0.0, 1.0)
    change = score - baseline_score
    parts = [(abs(whole.sum() - change), 0.0, 1.0, baseline_score, score, whole)]
    tolerance, num_steps = max(MAX_COMPLETENESS_ERROR * abs(change), MIN_ERROR), NODES_PER_INTERVAL

    def is_incomplete() -> bool:
        return math.hypot(*(part[0] for part in parts)) > tolerance / 2 or abs(_total(parts) - change) > tolerance

    while is_incomplete() and num_steps < MAX_STEPS:
        worst = max(range(len(parts)), key=lambda i: parts[i][0])
        _, low, high, low_score, high_score, _ = parts.pop(worst)
        middle = (low + high) / 2
        (left, middle_score), (right, _) = integrate(low, middle), integrate(middle, high)
        parts.append((abs(left.sum() - (middle_score - low_score)), low, middle, low_score, middle_score, left))
        parts.append((abs(right.sum() - (high_score - middle_score)), middle, high, middle_score, high_score, right))
        num_steps += 2 * NODES_PER_INTERVAL
    if is_incomplete():
        logger.warning(
            f"integrated gradients are not complete after {num_steps} steps: the score changes too abruptly between "
            f"the baseline {problem.baseline} and the text; compare erasure, or choose another `baseline`"
        )
    return np.sum([part[-1] for part in parts], axis=0)


def _total(parts: Sequence[tuple[Any, ...]]) -> float:
    return float(sum(part[-1].sum() for part in parts))


def _perturb(problem: AttributionInput, method: str, score: float, baseline_score: float) -> Attribution:
    """Return what the score loses without each token, and without each word."""
    remove = True if method == "leave_one_out" else None
    tokens = np.flatnonzero(problem.is_text).tolist()
    tokens_per_word = {word: tuple(problem.tokens_of_words([word]).tolist()) for word in problem.erasable_words}
    units = dict.fromkeys([*((i,) for i in tokens), *tokens_per_word.values()])  # a word may be one token
    variants = [problem.erase(np.array(unit), remove) for unit in units]
    losses = dict(zip(units, score - problem.score_variants(variants)))
    scores, word_scores = np.zeros(len(problem.ids)), np.zeros(len(problem.words))
    scores[tokens] = [losses[i,] for i in tokens]
    word_scores[problem.erasable_words] = [losses[unit] for unit in tokens_per_word.values()]
    return _to_attribution(problem, method, (score, baseline_score), scores, word_scores)


def _to_attribution(
    problem: AttributionInput, method: str, ends: tuple[float, float], scores: np.ndarray, word_scores: np.ndarray
) -> Attribution:
    score, baseline_score = ends
    change = score - baseline_score
    return Attribution(
        problem.label,
        problem.contrast,
        method,
        score,
        baseline_score,
        abs(float(scores.sum()) - change) / max(abs(change), 1e-12),
        problem.baseline,
        problem.words,
        tuple(word_scores.tolist()),
        problem.tokens,
        tuple(scores.tolist()),
        tuple(None if word < 0 else word for word in problem.word_ids.tolist()),
        problem.is_number,
        problem.pair_start,
    )


# what each method does, by its name
METHODS = {
    "integrated_gradients": "gradients, summed on the way from the baseline to the text (Sundararajan et al. 2017)",
    "gradient_x_input": "the gradient of each token's vector times the vector (Shrikumar et al. 2017)",
    "erasure": "what the score loses when a token is masked, or removed where there is no mask token (Li et al. 2016)",
    "leave_one_out": "what the score loses when a token is removed, which moves those after it",
}


def erase_in_order(problem: AttributionInput, orders: Sequence[Sequence[int]], counts: Sequence[int]) -> np.ndarray:
    """Return the scores after erasing the first words of each order: [orders, counts], by the number of words."""
    prefixes = {tuple(sorted(order[:count])) for order in orders for count in counts}
    variants = {words: problem.erase(problem.tokens_of_words(words)) for words in sorted(prefixes)}
    scores = dict(zip(variants, problem.score_variants(list(variants.values()))))
    return np.array([[scores[tuple(sorted(order[:count]))] for count in counts] for order in orders])
