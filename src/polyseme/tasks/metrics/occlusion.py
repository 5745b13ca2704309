"""Attributions by occlusion: what an answer loses without each word (Zeiler and Fergus 2014, §4.3; Li et al. 2016)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

Weights = tuple[tuple[str, ...], tuple[float, ...]]  # words and how much each adds to the answer
PredictFn = Callable[[Sequence[Any]], list[Any]]  # examples -> predictions

MAX_UNITS = 40  # a longer text is occluded in runs of several words
MAX_SHOWN_CHARS = 400
PAIR_SEPARATOR = "‖"  # between the texts of a pair
WEIGHTS_MEANING = (
    "A word on a colored ground raised the predicted answer: without it, the answer gets weaker. "
    "An underlined word spoke against it."
)


def split_units(text: str) -> list[tuple[int, int]]:
    """Return the spans of words, or of runs of words if there are many; of characters if there are no spaces."""
    pattern = r"\S+" if text.isascii() or len(text.split()) > 1 else r"\S"
    spans = [match.span() for match in re.finditer(pattern, text)]
    size = max(-(-len(spans) // MAX_UNITS), 1)
    runs = [spans[i : i + size] for i in range(0, len(spans), size)]
    return [(run[0][0], run[-1][1]) for run in runs]


def occlude_words(
    example: Any, fields: Sequence[str], prediction: Any, predict: PredictFn, strength: Callable[[Any], float]
) -> Weights:
    """Return the words of an example's texts, each with the strength of the answer minus that without the word."""
    words: list[str] = []
    variants: dict[int, Any] = {}  # by the position of the word that each lacks
    for name in fields:
        text = getattr(example, name)
        spans = split_units(text)
        words += [PAIR_SEPARATOR] if words else []
        for start, end in spans:
            if len(spans) > 1:  # an empty text is no example
                variants[len(words)] = replace(example, **{name: text[:start] + text[end:].lstrip()})
            words.append(text[start:end])
    if not variants:
        return (), ()
    weights, full = [0.0] * len(words), strength(prediction)
    for position, each in zip(variants, predict(list(variants.values()))):
        weights[position] = full - strength(each)
    return _excerpt(words, weights)


def _excerpt(words: Sequence[str], weights: Sequence[float]) -> Weights:
    """Return the words around the one with the largest weight, as many as fit into an excerpt."""
    first = int(np.argmax(np.abs(weights)))
    end, size = first + 1, len(words[first])
    while size <= MAX_SHOWN_CHARS and (first > 0 or end < len(words)):
        take_before = first > 0 and (end == len(words) or len(words) - end < first)
        first, end = (first - 1, end) if take_before else (first, end + 1)
        size += 1 + len(words[first] if take_before else words[end - 1])
    cut = [*(["…"] if first else []), *words[first:end], *(["…"] if end < len(words) else [])]
    cut_weights = [*([0.0] if first else []), *weights[first:end], *([0.0] if end < len(words) else [])]
    return tuple(cut), tuple(round(float(weight), 4) for weight in cut_weights)
