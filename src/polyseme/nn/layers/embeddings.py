"""Token, position and segment vectors: the bottom of a trunk."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.layers.norms import NoNormSpec, NormSpec
from polyseme.nn.layers.positions import sinusoids
from polyseme.nn.sparse import RowGradient


@dataclass(frozen=True)
class EmbeddingsSpec(Spec):
    vocab_size: int
    dim: int
    max_len: int
    num_segments: int = 0
    norm: NormSpec = field(default_factory=NoNormSpec)
    dropout: float = 0.0
    positions: Literal["learned", "sinusoid", "none"] = "learned"
    position_offset: int = 0  # rows before that of the first position, which nothing reads
    inner: int = 0  # the size of the tables and their norm, with a linear layer from there to dim; 0 is dim, without
    scale: float = 1.0  # on the token vectors
    shared: bool = False  # the token vectors are another's, given at each call
    word_dropout: float = 0.0  # drops whole rows of the table: a word, wherever it stands (Gal and Ghahramani 2016)

    def __post_init__(self) -> None:
        self.within(1, math.inf, "vocab_size", "dim", "max_len")
        self.within(0, math.inf, "num_segments", "position_offset", "inner", "scale")
        self.within(0, 1, "dropout", "word_dropout")

    def build(self) -> Embeddings:
        return Embeddings(self)


class Embeddings(nn.Module):
    """The sum of what a token is, where it stands, and (if the family has segments) which part it belongs to."""

    def __init__(self, spec: EmbeddingsSpec):
        super().__init__()
        self.spec = spec
        size = spec.inner or spec.dim
        self.tokens = None if spec.shared else nn.Embedding(spec.vocab_size, size)
        rows = spec.max_len + spec.position_offset
        self.positions = nn.Embedding(rows, size) if spec.positions == "learned" else None
        self.segments = nn.Embedding(spec.num_segments, size) if spec.num_segments else None
        self.norm = spec.norm.build(size)
        self.dropout = nn.Dropout(spec.dropout)
        self.project = nn.Linear(size, spec.dim) if spec.inner else nn.Identity()

    @property
    def table(self) -> Tensor:
        """What a tied head reads."""
        assert self.tokens is not None, "shared token vectors are another's"
        return self.tokens.weight

    def look_up(self, ids: Tensor) -> Tensor:
        """The rows of some tokens as they are."""
        return F.embedding(ids, self.table)

    def spread(self, ids: Tensor, gradient: Tensor, terms: Tensor) -> list[RowGradient]:
        """A gradient of those rows."""
        assert self.tokens is not None
        return [RowGradient(self.tokens.weight, ids, gradient, terms)]

    def forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None, longest: int, table: Tensor | None = None
    ) -> Tensor:
        if longest > self.spec.max_len:
            raise UserError(f"a sequence of {longest} tokens is longer than the model reads ({self.spec.max_len})")
        x = F.embedding(tokens, self.table if table is None else table)
        if self.spec.word_dropout and self.training:
            kept = F.dropout(x.new_ones(self.spec.vocab_size, 1), self.spec.word_dropout)
            x = x * F.embedding(tokens, kept)
        if self.spec.scale != 1:
            x = x * self.spec.scale
        if self.positions is not None:
            x = x + self.positions(positions + self.spec.position_offset)
        elif self.spec.positions == "sinusoid":
            few = len(positions) < longest  # a step of decoding
            x = x + (sinusoids(positions, x) if few else sinusoids(longest, x).index_select(0, positions))
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else F.embedding(segments, self.segments.weight))
        return self.project(self.dropout(self.norm(x)))
