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

from polyseme.errors import DataError
from polyseme.finetuning.feature_extraction import hash_model_files
from polyseme.word_vectors.files import WordVectorTable, open_vectors


@dataclass(frozen=True, eq=False)
class PretrainedVectors:
    """Word vectors from a file or a model folder."""

    path: Path
    vectors: WordVectorTable

    @classmethod
    def load(cls, path: Path | str) -> PretrainedVectors:
        return cls(Path(path), open_vectors(Path(path)))

    @cached_property
    def hash(self) -> str:
        return hash_model_files(self.path)

    @property
    def dim(self) -> int:
        return int(self.vectors.vectors.shape[1])

    def lookup(self, word: str) -> tuple[str, np.ndarray] | None:
        """A word as it has a vector, as it is written or else in lower case, and that vector."""
        for form in (word, word.lower()):
            vector = self.vectors.get_vector(form)
            if vector is not None:
                return form, vector
        return None


def build_vocabulary(
    words: Iterable[str], pretrained: PretrainedVectors | None, freeze_pretrained: bool
) -> dict[str, int]:
    """The words whose vectors are learnt, numbered from 1: those with a given one, and the others that stand twice.

    These are in lower case. Frozen, a given vector is not learnt.
    """
    counts: Counter[str] = Counter()
    pretrained_words: set[str] = set()
    for word, count in Counter(words).items():
        match = pretrained.lookup(word) if pretrained else None
        counts[match[0] if match else word.lower()] += count
        pretrained_words |= {match[0]} if match else set()
    if pretrained is not None and not pretrained_words:
        raise DataError(
            f"{pretrained.path} has a vector for none of the {len(counts):,} words of the training examples"
        )
    learned_words = (
        word for word, count in counts.items() if (not freeze_pretrained if word in pretrained_words else count > 1)
    )
    return {word: i for i, word in enumerate(sorted(learned_words, key=lambda word: (-counts[word], word)), 1)}


def resolve_words(
    words: Iterable[str], vocabulary: Mapping[str, int], pretrained: PretrainedVectors | None
) -> tuple[np.ndarray, np.ndarray]:
    """The number of each word, 0 if it has none, and vectors of words outside of the vocabulary, numbered behind it.

    So a word that was not in the training examples has its given vector, which nothing could have changed.
    """
    word_ids: list[int] = []
    rows: list[np.ndarray] = []
    for word in words:
        word_id = 0
        for form in (word, word.lower()):
            if form in vocabulary:
                word_id = vocabulary[form]
            elif pretrained is not None and (vector := pretrained.vectors.get_vector(form)) is not None:
                rows.append(vector)
                word_id = len(vocabulary) + len(rows)
            if word_id:
                break
        word_ids.append(word_id)
    table = np.stack(rows).astype(np.float32) if rows else np.empty((0, 0), np.float32)
    return np.array(word_ids, dtype=np.int64), table


@torch.no_grad()
def init_embeddings(table: Tensor, vocabulary: Mapping[str, int], pretrained: PretrainedVectors) -> None:
    """Rows begin at the given vectors; those without one keep their draw, at the deviation of the given ones."""
    table *= float(pretrained.vectors.vectors.std())
    pretrained_rows = {
        i: vector for word, i in vocabulary.items() if (vector := pretrained.vectors.get_vector(word)) is not None
    }
    if pretrained_rows:
        table[torch.tensor(list(pretrained_rows))] = torch.from_numpy(np.stack(list(pretrained_rows.values()))).to(
            table
        )
