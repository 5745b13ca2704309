"""A task of a user's own, in one file outside the package: how many stars does a text have?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from polyseme.tasks.base import Example, Prediction
from polyseme.tasks.encoded import softmax
from polyseme.tasks.readers.rows import Columns, RowReader
from polyseme.tasks.sequence import SequenceTask


@dataclass(frozen=True)
class StarExample(Example):
    gold_field = "stars"

    text: str
    stars: int | None = None


@dataclass(frozen=True)
class Stars(Prediction):
    value_field = "stars"

    stars: int
    expected: float


@dataclass(frozen=True)
class StarTask(SequenceTask):
    """From 1 to `max_stars`; the expected number is the mean over all."""

    task_type = "stars"
    example_type = StarExample
    default_metric = "closeness"

    max_stars: int = 0

    @property
    def output_labels(self) -> tuple[str, ...]:
        return tuple(str(i + 1) for i in range(self.max_stars))

    @classmethod
    def iter_rows(cls, path: Path, columns: Columns, needs_labels: bool) -> Iterator[RowReader]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            stars, _, text = line.partition(" ")
            yield lambda n=number, s=stars, t=text: StarExample(f"{path}:{n}", t, len(s))

    @classmethod
    def parse_value(cls, value: Any, location: str) -> StarExample:
        return StarExample(location, value)

    def fit(self, examples: Sequence[StarExample]) -> Self:
        return self.replace(max_stars=max(e.stars or 0 for e in examples))

    def target(self, example: StarExample) -> int | None:
        return None if example.stars is None else example.stars - 1

    def text_sequences(self, example: StarExample) -> list[tuple[str, str | None]]:
        return [(example.text, None)]

    def decode_one(self, logits: np.ndarray, example: StarExample) -> Stars:
        shares = softmax(logits, axis=-1)[0]
        return Stars(int(shares.argmax()) + 1, float(shares @ np.arange(1, self.max_stars + 1)))

    def score(self, gold: Sequence[int], predicted: Sequence[int]) -> dict[str, float]:
        return {"closeness": 1 - float(np.abs(np.array(gold) - np.array(predicted)).mean()) / self.max_stars}

    def prediction_columns(self, example: StarExample, prediction: Stars) -> dict[str, Any]:
        return {"prediction": prediction.stars, "expected": prediction.expected}
