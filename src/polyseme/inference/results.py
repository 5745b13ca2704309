"""Result types of loaded models."""

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from polyseme.errors import ModelError
from polyseme.report.notebook import NotebookResult

T = TypeVar("T")


def check_answers(answers: T, source: object) -> T:
    """Return the answers of a model; raise `ModelError` if one of their numbers is NaN."""
    if _contains_nan(answers):
        problem = "its weights are too large for their precision, or damaged"
        raise ModelError(f"{source} answers with numbers that are not defined (NaN): {problem}")
    return answers


def _contains_nan(value: Any) -> bool:
    if isinstance(value, float):
        return value != value
    if value is None or isinstance(value, str | int):
        return False
    if isinstance(value, np.ndarray):
        with np.errstate(all="ignore"):  # a sum is the fastest pass; it is also NaN for two infinities
            return value.dtype.kind == "f" and bool(np.isnan(value.sum()) and np.isnan(value).any())
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, list | tuple | dict):
        inner = getattr(value, "__dict__", {}).values()
    return any(map(_contains_nan, inner))


def finite_or_none(value: float) -> float | None:
    """Return a number, or None for infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class EncodedText(NotebookResult):
    """A text, or a pair of texts, as a model reads it; the fields are those of tokenizers in `transformers`."""

    tokens: list[str]
    input_ids: list[int]
    token_type_ids: list[int]
    attention_mask: list[int]


@dataclass(frozen=True)
class TextScore(NotebookResult):
    """The log-probability of a text, summed over its tokens.

    A masked model predicts each token from all others, which gives the pseudo-log-likelihood (Salazar et al. 2020).
    `num_characters` is the length of the predicted text, if it is known.
    """

    log_prob: float
    num_tokens: int
    num_characters: int = 0

    @property
    def perplexity(self) -> float:
        """The exponential of the mean negative log-probability per token; infinite beyond the range of floats."""
        try:
            return math.exp(-self.log_prob / max(self.num_tokens, 1))
        except OverflowError:
            return math.inf

    @property
    def bits_per_character(self) -> float:
        """The negative base-2 log-probability per character, which does not depend on the tokenizer."""
        return -self.log_prob / math.log(2) / max(self.num_characters, 1)


@dataclass(frozen=True)
class MaskPrediction(NotebookResult):
    """One candidate for a masked token."""

    token: str
    probability: float


@dataclass(frozen=True)
class LastWordScore(NotebookResult):
    """The log-probability of a text's last word, and whether greedy decoding would predict it.

    `num_truncated` tokens were removed from the start of the context to fit the model's maximum length.
    """

    score: TextScore
    is_correct: bool
    num_truncated: int


@dataclass(frozen=True)
class ChoiceResult(NotebookResult):
    """The index of the most likely choice, the normalized score of each choice, and its log-probability."""

    best_index: int
    normalized_scores: tuple[float, ...]
    scores: tuple[TextScore, ...]
