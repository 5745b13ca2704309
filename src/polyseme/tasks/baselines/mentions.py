"""Baselines of coreference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Cluster = list[tuple[int, int]]


def no_mentions(train: Sequence[Any], dev: Sequence[Any]) -> list[Any]:
    """Predict no mentions at all."""
    return [()] * len(dev)


def string_match(train: Sequence[Any], dev: Sequence[Any]) -> list[list[Cluster]]:
    """Link spans that were mentions in training if their words are the same."""
    known = {_span_words(e, a, b) for e in train for cluster in e.clusters or () for a, b in cluster}
    longest = max((len(words) for words in known), default=0)
    predictions = []
    for example in dev:
        size, chains = len(example.words), dict[tuple[str, ...], Cluster]()
        for a in range(size):
            for b in range(a, min(a + longest, size)):
                if (words := _span_words(example, a, b)) in known:
                    chains.setdefault(words, []).append((a, b))
        predictions.append([chain for chain in chains.values() if len(chain) > 1])
    return predictions


def _span_words(example: Any, first: int, last: int) -> tuple[str, ...]:
    return tuple(word.lower() for word in example.words[first : last + 1])
