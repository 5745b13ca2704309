"""Baselines of extractive question answering."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any


def first_words(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Answer with the first words of the context, or not at all if most questions have no answer."""
    length = _median_answer_length(train)
    return [" ".join(e.context.split()[:length]) for e in dev]


def sliding_window(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Answer with the words near which most of the question's words stand; nothing is learned but their number."""
    length = _median_answer_length(train)
    return [_sliding_window_answer(e.context, e.question, length) for e in dev]


def _median_answer_length(train: Sequence[Any]) -> int:
    """Words of the answer in the middle of all answers, 0 if most questions have none."""
    sizes = sorted(len(e.gold[0].split()) if e.gold else 0 for e in train)
    return sizes[len(sizes) // 2]


def _sliding_window_answer(context: str, question: str, length: int, window: int = 8) -> str:
    """The words around which most words of the question stand, rare ones counting for more (Richardson et al. 2013's
    sliding window, §5.1), but none of the question's own."""
    words = context.split()
    plain = [re.sub(r"\W", "", word).lower() for word in words]
    counts, question_words = Counter(plain), set(re.findall(r"\w+", question.lower()))
    weights = [math.log(1 + 1 / counts[word]) if word in question_words else 0.0 for word in plain]

    def window_score(i: int) -> float:
        before, behind = weights[max(i - window, 0) : i], weights[i + length : i + length + window]
        around = sum(w / d for side in (before[::-1], behind) for d, w in enumerate(side, 1))
        return around - 3 * sum(weights[i : i + length])

    best = max(range(max(len(words) - length + 1, 1)), key=window_score)
    return " ".join(words[best : best + length])
