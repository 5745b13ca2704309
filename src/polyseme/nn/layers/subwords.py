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

from polyseme.config import Config
from polyseme.errors import ConfigError, DataError
from polyseme.nn.layers.norms import NoNormConfig
from polyseme.nn.sparse import SparseRowGrad


@dataclass(frozen=True)
class SubwordEmbeddingsConfig(Config):
    """`num_buckets` rows for the n-grams of `min_n` to `max_n` characters, which share them by a hash."""

    vocab_size: int
    dim: int
    max_len: int
    num_buckets: int = 2_000_000
    min_n: int = 3
    max_n: int = 6
    dropout: float = 0.0

    num_segments = 0
    embedding_dim = 0
    norm = NoNormConfig()

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "vocab_size", "dim", "max_len", "num_buckets", "min_n", "max_n")
        self.check_range(0, 1, "dropout")
        if self.min_n > self.max_n:
            raise ConfigError(f"n-grams of {self.min_n} to {self.max_n} characters are none")

    def build(self) -> SubwordEmbeddings:
        return SubwordEmbeddings(self)


def char_ngrams(word: str, min_n: int, max_n: int) -> list[str]:
    """The n-grams of a word between `<` and `>`, in fastText's order; one of a bracket alone is none."""
    text = f"<{word}>"
    return [
        text[start : start + n]
        for start in range(len(text))
        for n in range(min_n, min(max_n, len(text) - start) + 1)
        if n > 1 or 0 < start < len(text) - 1
    ]


def fnv1a(text: str) -> int:
    """The hash of fastText, 32-bit FNV-1a over UTF-8, with its bytes taken as signed."""
    value = 2166136261
    for byte in text.encode():
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return value


def ngram_buckets(word: str, config: SubwordEmbeddingsConfig) -> list[int]:
    return [fnv1a(ngram) % config.num_buckets for ngram in char_ngrams(word, config.min_n, config.max_n)]


class SubwordEmbeddings(nn.Module):
    """`set_vocabulary` has to be told the words before any is read: ids alone do not say which n-grams a word has."""

    needs_host_sync: ClassVar[bool] = True  # the device how many words are distinct

    def __init__(self, config: SubwordEmbeddingsConfig):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.dim)
        self.ngrams = nn.Embedding(config.num_buckets, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer(
            "ngram_bucket_ids", torch.zeros(0, dtype=torch.int64), persistent=False
        )  # bucket of each n-gram
        self.register_buffer("ngram_offsets", torch.zeros(config.vocab_size + 1, dtype=torch.int64), persistent=False)

    def set_vocabulary(
        self, words: Sequence[str], special_ids: Iterable[int] = (), counts: np.ndarray | None = None
    ) -> None:
        """Which word each id is; special tokens have no n-grams."""
        skipped_ids = set(special_ids)
        buckets_per_word = [
            [] if i in skipped_ids else ngram_buckets(word, self.config) for i, word in enumerate(words)
        ]
        buckets_per_word += [[]] * (self.config.vocab_size - len(buckets_per_word))
        device = self.tokens.weight.device
        self.ngram_bucket_ids = torch.tensor(
            [bucket for word_buckets in buckets_per_word for bucket in word_buckets], dtype=torch.int64, device=device
        )
        self.ngram_offsets = torch.from_numpy(np.cumsum([0, *map(len, buckets_per_word)])).to(device)

    def word_vector(self, word: str, word_id: int | None = None) -> Tensor:
        """Of any word, in the vocabulary or not; without a row or an n-gram it is zero."""
        bucket_ids = torch.tensor(ngram_buckets(word, self.config), dtype=torch.int64, device=self.tokens.weight.device)
        rows = [F.embedding(bucket_ids, self.ngrams.weight)]
        if word_id is not None:
            rows.append(self.tokens.weight[word_id : word_id + 1])
        vectors = torch.cat(rows)
        return vectors.sum(0) / max(len(vectors), 1)

    @property
    def token_embeddings(self) -> None:
        """There is none: the vectors of all words would have to be made first."""

    def look_up(self, ids: Tensor) -> Tensor:
        unique_ids, inverse = torch.unique(ids, return_inverse=True)
        rows, word_index, counts = self._ngram_rows(unique_ids)
        sums = F.embedding(unique_ids, self.tokens.weight)
        sums = sums.index_add(0, word_index, F.embedding(rows, self.ngrams.weight))
        return F.embedding(inverse, sums / (counts + 1).to(sums)[:, None])

    def scatter_grad(self, ids: Tensor, grad: Tensor, counts: Tensor) -> list[SparseRowGrad]:
        """Each row of a word gets the word's whole gradient, not its share of the mean.

        So a word moves by as much as one without n-grams would, as in the authors' code.
        """
        unique_ids, inverse = torch.unique(ids, return_inverse=True)
        rows, word_index, _ = self._ngram_rows(unique_ids)
        word_grads = grad.new_zeros(len(unique_ids), grad.shape[1]).index_add_(0, inverse, grad)
        word_counts = counts.new_zeros(len(unique_ids)).index_add_(0, inverse, counts)
        return [
            SparseRowGrad(self.tokens.weight, unique_ids, word_grads, word_counts),
            SparseRowGrad(
                self.ngrams.weight,
                rows,
                word_grads.index_select(0, word_index),
                word_counts.index_select(0, word_index),
            ),
        ]

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None, max_seqlen: int) -> Tensor:
        if max_seqlen > self.config.max_len:
            raise DataError(f"a sequence of {max_seqlen} tokens is longer than the model reads ({self.config.max_len})")
        return self.dropout(self.look_up(tokens))

    def _ngram_rows(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The buckets of some words end to end, which word each is of, and how many each has."""
        starts = self.ngram_offsets.index_select(0, ids)
        counts = self.ngram_offsets.index_select(0, ids + 1) - starts
        word_index = torch.arange(len(ids), device=ids.device).repeat_interleave(counts)
        offset = torch.arange(len(word_index), device=ids.device) - (counts.cumsum(0) - counts).index_select(
            0, word_index
        )
        return self.ngram_bucket_ids.index_select(0, starts.index_select(0, word_index) + offset), word_index, counts
