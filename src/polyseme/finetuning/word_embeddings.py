"""Word vectors in a network over features: which words have one of their own, and where they begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import UserError
from polyseme.finetuning.feature_extraction import hash_of
from polyseme.word_vectors.files import Vectors, open_vectors


@dataclass(frozen=True, eq=False)
class Given:
    """Word vectors from a file or a model folder."""

    path: Path
    vectors: Vectors

    @classmethod
    def open(cls, path: Path | str) -> Given:
        return cls(Path(path), open_vectors(Path(path)))

    @cached_property
    def hash(self) -> str:
        return hash_of(self.path)

    @property
    def dim(self) -> int:
        return int(self.vectors.table.shape[1])

    def found(self, word: str) -> tuple[str, np.ndarray] | None:
        """A word as it has a vector, as it is written or else in lower case, and that vector."""
        for form in (word, word.lower()):
            vector = self.vectors.find(form)
            if vector is not None:
                return form, vector
        return None


def vocabulary_of(words: Iterable[str], given: Given | None, freeze: bool) -> dict[str, int]:
    """The words whose vectors are learnt, numbered from 1: those with a given one, and the others that stand twice.

    These are in lower case. Frozen, a given vector is not learnt.
    """
    counts: Counter[str] = Counter()
    begun: set[str] = set()
    for word, number in Counter(words).items():
        found = given.found(word) if given else None
        counts[found[0] if found else word.lower()] += number
        begun |= {found[0]} if found else set()
    if given is not None and not begun:
        raise UserError(f"{given.path} has a vector for none of the {len(counts):,} words of the training examples")
    kept = (word for word, number in counts.items() if (not freeze if word in begun else number > 1))
    return {word: i for i, word in enumerate(sorted(kept, key=lambda word: (-counts[word], word)), 1)}


def look_up(words: Iterable[str], vocabulary: Mapping[str, int], given: Given | None) -> tuple[np.ndarray, np.ndarray]:
    """The number of each word, 0 if it has none, and vectors of words outside of the vocabulary, numbered behind it.

    So a word that was not in the training examples has its given vector, which nothing could have changed.
    """
    known: list[int] = []
    rows: list[np.ndarray] = []
    for word in words:
        number = 0
        for form in (word, word.lower()):
            if form in vocabulary:
                number = vocabulary[form]
            elif given is not None and (vector := given.vectors.find(form)) is not None:
                rows.append(vector)
                number = len(vocabulary) + len(rows)
            if number:
                break
        known.append(number)
    table = np.stack(rows).astype(np.float32) if rows else np.empty((0, 0), np.float32)
    return np.array(known, dtype=np.int64), table


@torch.no_grad()
def begin(table: Tensor, vocabulary: Mapping[str, int], given: Given) -> None:
    """Rows begin at the given vectors; those without one keep their draw, at the deviation of the given ones."""
    table *= float(given.vectors.table.std())
    found = {i: vector for word, i in vocabulary.items() if (vector := given.vectors.find(word)) is not None}
    if found:
        table[torch.tensor(list(found))] = torch.from_numpy(np.stack(list(found.values()))).to(table)
