"""fastText embeddings: mean of a word's vector and those of its character n-grams (Bojanowski et al. 2017, §3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.layers.embeddings import SparseRowGrad, check_max_seqlen
from polyseme.nn.packing import Inputs


@dataclass(frozen=True)
class SubwordEmbeddingsConfig(Config):
    """Subword embeddings; n-grams of `min_n` to `max_n` characters are hashed into `num_buckets` rows."""

    vocab_size: int
    dim: int
    max_len: int
    num_buckets: int = 2_000_000
    min_n: int = 3
    max_n: int = 6
    dropout: float = 0.0

    num_segments = 0
    embedding_dim = 0

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "vocab_size", "dim", "max_len", "num_buckets", "min_n", "max_n")
        self.check_range(0, 1, "dropout")
        if self.min_n > self.max_n:
            raise ConfigError(f"min_n is {self.min_n}, larger than max_n ({self.max_n})")

    def build(self) -> SubwordEmbeddings:
        return SubwordEmbeddings(self)


def char_ngrams(word: str, min_n: int, max_n: int) -> list[str]:
    """Return the n-grams of a word enclosed in `<` and `>`, in fastText's order, without the single brackets."""
    text = f"<{word}>"
    return [
        text[start : start + n]
        for start in range(len(text))
        for n in range(min_n, min(max_n, len(text) - start) + 1)
        if n > 1 or 0 < start < len(text) - 1
    ]


def fnv1a(text: str) -> int:
    """Hash a string as fastText does: 32-bit FNV-1a over signed UTF-8 bytes."""
    value = 2166136261
    for byte in text.encode():
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return value


def ngram_buckets(word: str, config: SubwordEmbeddingsConfig) -> list[int]:
    """Return the bucket of each n-gram of a word."""
    return [fnv1a(ngram) % config.num_buckets for ngram in char_ngrams(word, config.min_n, config.max_n)]


class SubwordEmbeddings(nn.Module):
    """Word and n-gram tables. Call `set_vocabulary` first: the n-grams of a word do not follow from its id."""

    needs_host_sync: ClassVar[bool] = True  # for the number of distinct words
    token_embeddings: ClassVar[None] = None  # word vectors are computed from n-grams

    def __init__(self, config: SubwordEmbeddingsConfig):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.dim)
        self.ngrams = nn.Embedding(config.num_buckets, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("ngram_bucket_ids", torch.zeros(0, dtype=torch.int64), persistent=False)
        self.register_buffer("ngram_offsets", torch.zeros(config.vocab_size + 1, dtype=torch.int64), persistent=False)

    def set_vocabulary(
        self, words: Sequence[str], special_ids: Iterable[int] = (), counts: np.ndarray | None = None
    ) -> None:
        """Set the word of each id; special tokens have no n-grams."""
        skipped_ids, device = set(special_ids), self.tokens.weight.device
        buckets = [[] if i in skipped_ids else ngram_buckets(word, self.config) for i, word in enumerate(words)]
        buckets += [[]] * (self.config.vocab_size - len(buckets))
        self.ngram_bucket_ids = torch.tensor([*chain(*buckets)], dtype=torch.int64, device=device)
        self.ngram_offsets = torch.from_numpy(np.cumsum([0, *map(len, buckets)])).to(device)

    def word_vector(self, word: str, word_id: int | None = None) -> Tensor:
        """Return the vector of any word, in the vocabulary or not; zero if it has neither an id nor an n-gram."""
        bucket_ids = torch.tensor(ngram_buckets(word, self.config), dtype=torch.int64, device=self.tokens.weight.device)
        vectors = F.embedding(bucket_ids, self.ngrams.weight)
        if word_id is not None:
            vectors = torch.cat([vectors, self.tokens.weight[word_id : word_id + 1]])
        return vectors.sum(0) / max(len(vectors), 1)

    def look_up(self, ids: Tensor) -> Tensor:
        """Return the vectors of some words."""
        unique_ids, inverse = torch.unique(ids, return_inverse=True)
        rows, word_index, counts = self._ngram_rows(unique_ids)
        sums = F.embedding(unique_ids, self.tokens.weight)
        sums = sums.index_add(0, word_index, F.embedding(rows, self.ngrams.weight))
        return F.embedding(inverse, sums / (counts + 1).to(sums)[:, None])

    def scatter_grad(self, ids: Tensor, grad: Tensor, counts: Tensor) -> list[SparseRowGrad]:
        """Return the gradient of the rows used by `look_up`.

        Each row of a word gets the word's whole gradient, not its share of the mean, so that a word moves as much as
        one without n-grams, as in the authors' code.
        """
        unique_ids, inverse = torch.unique(ids, return_inverse=True)
        rows, word_index, _ = self._ngram_rows(unique_ids)
        word_grads = grad.new_zeros(len(unique_ids), grad.shape[1]).index_add_(0, inverse, grad)
        word_counts = counts.new_zeros(len(unique_ids)).index_add_(0, inverse, counts)
        ngram_grads, ngram_counts = (t.index_select(0, word_index) for t in (word_grads, word_counts))
        return [
            SparseRowGrad(self.tokens.weight, unique_ids, word_grads, word_counts),
            SparseRowGrad(self.ngrams.weight, rows, ngram_grads, ngram_counts),
        ]

    def forward(self, inputs: Inputs, positions: Tensor | None = None, max_seqlen: int | None = None) -> Tensor:
        """Return the embeddings of packed tokens, [T, dim]."""
        check_max_seqlen(inputs, max_seqlen, self.config.max_len)
        return self.dropout(self.look_up(inputs.tokens))

    def _ngram_rows(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the buckets of some words, concatenated, the word of each bucket, and the number per word."""
        starts = self.ngram_offsets.index_select(0, ids)
        counts = self.ngram_offsets.index_select(0, ids + 1) - starts
        word_index = torch.arange(len(ids), device=ids.device).repeat_interleave(counts)
        shifts = starts - (counts.cumsum(0) - counts)  # from the concatenated buckets to those of all words
        index = torch.arange(len(word_index), device=ids.device) + shifts.index_select(0, word_index)
        return self.ngram_bucket_ids.index_select(0, index), word_index, counts
