"""Words as the mean of their own vector and those of their character n-grams (Bojanowski et al. 2017, §3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.layers.norms import NoNormSpec
from polyseme.nn.sparse import RowGradient


@dataclass(frozen=True)
class SubwordEmbeddingsSpec(Spec):
    """`buckets` rows for the n-grams of `shortest` to `longest` characters, which share them by a hash."""

    vocab_size: int
    dim: int
    max_len: int
    buckets: int = 2_000_000
    shortest: int = 3
    longest: int = 6
    dropout: float = 0.0

    num_segments = 0
    inner = 0
    norm = NoNormSpec()

    def __post_init__(self) -> None:
        self.within(1, math.inf, "vocab_size", "dim", "max_len", "buckets", "shortest", "longest")
        self.within(0, 1, "dropout")
        if self.shortest > self.longest:
            raise UserError(f"n-grams of {self.shortest} to {self.longest} characters are none")

    def build(self) -> SubwordEmbeddings:
        return SubwordEmbeddings(self)


def ngrams(word: str, shortest: int, longest: int) -> list[str]:
    """The n-grams of a word between `<` and `>`, in fastText's order; one of a bracket alone is none."""
    text = f"<{word}>"
    return [
        text[start : start + size]
        for start in range(len(text))
        for size in range(shortest, min(longest, len(text) - start) + 1)
        if size > 1 or 0 < start < len(text) - 1
    ]


def fnv1a(text: str) -> int:
    """The hash of fastText, 32-bit FNV-1a over UTF-8, with its bytes taken as signed."""
    value = 2166136261
    for byte in text.encode():
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return value


def buckets_of(word: str, spec: SubwordEmbeddingsSpec) -> list[int]:
    return [fnv1a(gram) % spec.buckets for gram in ngrams(word, spec.shortest, spec.longest)]


class SubwordEmbeddings(nn.Module):
    """`know` has to be told the words before any is read: ids alone do not say which n-grams a word has."""

    asks: ClassVar[bool] = True  # the device how many words are distinct

    def __init__(self, spec: SubwordEmbeddingsSpec):
        super().__init__()
        self.spec = spec
        self.tokens = nn.Embedding(spec.vocab_size, spec.dim)
        self.grams = nn.Embedding(spec.buckets, spec.dim)
        self.dropout = nn.Dropout(spec.dropout)
        self.register_buffer("of", torch.zeros(0, dtype=torch.int64), persistent=False)  # bucket of each n-gram
        self.register_buffer("starts", torch.zeros(spec.vocab_size + 1, dtype=torch.int64), persistent=False)

    def know(self, words: Sequence[str], specials: Iterable[int] = (), counts: np.ndarray | None = None) -> None:
        """Which word each id is; special tokens have no n-grams."""
        skipped = set(specials)
        found = [[] if i in skipped else buckets_of(word, self.spec) for i, word in enumerate(words)]
        found += [[]] * (self.spec.vocab_size - len(found))
        device = self.tokens.weight.device
        self.of = torch.tensor([bucket for each in found for bucket in each], dtype=torch.int64, device=device)
        self.starts = torch.from_numpy(np.cumsum([0, *map(len, found)])).to(device)

    def vector(self, word: str, number: int | None = None) -> Tensor:
        """Of any word, in the vocabulary or not; without a row or an n-gram it is zero."""
        grams = torch.tensor(buckets_of(word, self.spec), dtype=torch.int64, device=self.tokens.weight.device)
        rows = [F.embedding(grams, self.grams.weight)]
        if number is not None:
            rows.append(self.tokens.weight[number : number + 1])
        found = torch.cat(rows)
        return found.sum(0) / max(len(found), 1)

    @property
    def table(self) -> None:
        """There is none: the vectors of all words would have to be made first."""

    def look_up(self, ids: Tensor) -> Tensor:
        distinct, back = torch.unique(ids, return_inverse=True)
        rows, owner, counts = self._rows(distinct)
        sums = F.embedding(distinct, self.tokens.weight)
        sums = sums.index_add(0, owner, F.embedding(rows, self.grams.weight))
        return F.embedding(back, sums / (counts + 1).to(sums)[:, None])

    def spread(self, ids: Tensor, gradient: Tensor, terms: Tensor) -> list[RowGradient]:
        """Each row of a word gets the word's whole gradient, not its share of the mean.

        So a word moves by as much as one without n-grams would, as in the authors' code.
        """
        distinct, back = torch.unique(ids, return_inverse=True)
        rows, owner, _ = self._rows(distinct)
        whole = gradient.new_zeros(len(distinct), gradient.shape[1]).index_add_(0, back, gradient)
        number = terms.new_zeros(len(distinct)).index_add_(0, back, terms)
        return [
            RowGradient(self.tokens.weight, distinct, whole, number),
            RowGradient(self.grams.weight, rows, whole.index_select(0, owner), number.index_select(0, owner)),
        ]

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None, longest: int) -> Tensor:
        if longest > self.spec.max_len:
            raise UserError(f"a sequence of {longest} tokens is longer than the model reads ({self.spec.max_len})")
        return self.dropout(self.look_up(tokens))

    def _rows(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The buckets of some words end to end, which word each is of, and how many each has."""
        begins = self.starts.index_select(0, ids)
        counts = self.starts.index_select(0, ids + 1) - begins
        owner = torch.arange(len(ids), device=ids.device).repeat_interleave(counts)
        within = torch.arange(len(owner), device=ids.device) - (counts.cumsum(0) - counts).index_select(0, owner)
        return self.of.index_select(0, begins.index_select(0, owner) + within), owner, counts
