"""Heads: hidden states to predictions.

A head says whether it reads tokens or one pooled vector a sequence, and what its predictions cost (`loss`, a sum).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.nn import kernels
from polyseme.nn.heads.base import Head, Pool, Reads
from polyseme.nn.heads.coreference import CoreferenceHeadSpec
from polyseme.nn.heads.crf import CrfSpec
from polyseme.nn.heads.glove import CountHeadSpec
from polyseme.nn.heads.word2vec import NegativeHeadSpec, TreeHeadSpec
from polyseme.nn.layers.adaptive import AdaptiveHeadSpec
from polyseme.nn.layers.feedforward import ACTIVATIONS, ActivationName
from polyseme.nn.layers.norms import NoNormSpec, NormSpec
from polyseme.nn.losses.cross_entropy import learned, sliced_loss
from polyseme.nn.losses.sampled_softmax import sampled_loss
from polyseme.nn.packing import Layout


class VocabularyHead(Head, ABC):
    """Scores over the vocabulary: what `transform` makes of the states, times the token table, and a bias."""

    bias: Tensor | None

    @abstractmethod
    def transform(self, states: Tensor) -> Tensor:
        """What meets the table."""

    def matrix(self, table: Tensor) -> Tensor:
        """The matrix of the vocabulary: the token table, unless a head has its own."""
        return table

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        return F.linear(self.transform(states), self.matrix(table), self.bias)

    def loss(self, states: Tensor, table: Tensor, values: Tensor, ignored: int, smoothing: float = 0.0) -> Tensor:
        """The summed cross entropy; where it is learned from, the scores over the vocabulary are never whole."""
        matrix = self.matrix(table)
        if kernels.serve(states) and kernels.serve(matrix) and not smoothing:
            found: Tensor = kernels.vocabulary_loss(self.transform(states), matrix, self.bias, values, ignored)
            return found
        if learned(states) and learned(matrix):
            return sliced_loss(self.transform(states), matrix, self.bias, values, ignored, smoothing)
        return super().loss(states, table, values, ignored, smoothing)


@dataclass(frozen=True)
class LanguageHeadSpec(Spec):
    """Scores over the vocabulary, with the token table as the last matrix (`tied`) or one of its own.

    BERT transforms the state first (`dense`, activation, norm) and adds a bias; GPT-2 does neither. Where the table's
    vectors are not of the trunk's size, `inner` is theirs and `dense` goes there. `scale` multiplies the state that
    meets the table. Where states are two directions side by side, `half` says which of them it reads. A head that
    `shares` has the matrix and the bias of that other head. With `sampled`, training compares a token with so many
    others alone (`sampled_loss`).
    """

    vocab_size: int
    dense: bool = False
    activation: ActivationName = "gelu"
    norm: NormSpec = field(default_factory=NoNormSpec)
    bias: bool = False
    dense_bias: bool = True
    inner: int = 0
    tied: bool = True
    scale: float = 1.0
    half: Literal["none", "first", "second"] = "none"
    shares: str = ""
    sampled: int = 0

    def reads(self, dim: int) -> int:
        """How much of a state it reads."""
        return dim if self.half == "none" else dim // 2

    def weights(self, dim: int) -> int:
        """How many weights of matrices a row meets."""
        dim = self.reads(dim)
        size = self.inner or dim
        return size * (self.sampled or self.vocab_size) + (dim * size if self.dense else 0)

    def build(self, dim: int) -> LanguageHead:
        return LanguageHead(self, dim)


class LanguageHead(VocabularyHead):
    def __init__(self, spec: LanguageHeadSpec, dim: int):
        super().__init__()
        self.spec = spec
        dim = spec.reads(dim)
        size = spec.inner or dim
        self.dense = nn.Linear(dim, size, bias=spec.dense_bias) if spec.dense else None
        self.norm = spec.norm.build(size)
        self.bias = nn.Parameter(torch.zeros(spec.vocab_size)) if spec.bias else None
        self.own = None if spec.tied else nn.Linear(size, spec.vocab_size, bias=False)

    def share(self, other: Head) -> None:
        """Take the matrix and the bias of another."""
        assert isinstance(other, LanguageHead)
        self.own, self.bias = other.own, other.bias

    def loss(self, states: Tensor, table: Tensor, values: Tensor, ignored: int, smoothing: float = 0.0) -> Tensor:
        if self.training and 0 < self.spec.sampled < self.spec.vocab_size:
            matrix = self.matrix(table)
            return sampled_loss(self.transform(states), matrix, self.bias, values, ignored, self.spec.sampled)
        return super().loss(states, table, values, ignored, smoothing)

    def transform(self, states: Tensor) -> Tensor:
        """What is multiplied with the table."""
        if self.spec.half != "none":
            states = states.chunk(2, dim=-1)[self.spec.half == "second"]
        if self.dense is not None:
            states = ACTIVATIONS[self.spec.activation](self.dense(states))
        states = self.norm(states)
        return states if self.spec.scale == 1 else states * self.spec.scale

    def matrix(self, table: Tensor) -> Tensor:
        return table if self.own is None else self.own.weight


@dataclass(frozen=True)
class LabelHeadSpec(Spec):
    """A linear layer over named labels, on each token (tagging) or on one vector a sequence (classification).

    Some families have a `dense` layer (to `inner` features, if not to as many), an activation and a norm before it, and
    some a norm and dropout before that. Without labels its one output is a number (regression); a single label is the
    worth of one sequence among several (multiple choice). With a `crf` the labels of a sequence are predicted together.
    """

    labels: tuple[str, ...]
    reads: Reads = "pooled"
    dropout: float = 0.0
    bias: bool = True
    dense: bool = False
    dense_bias: bool = True
    activation: ActivationName = "tanh"
    norm: NormSpec = field(default_factory=NoNormSpec)
    input_dropout: float = 0.0
    input_norm: NormSpec = field(default_factory=NoNormSpec)
    inner: int = 0
    crf: CrfSpec | None = None

    @property
    def num_outputs(self) -> int:
        return len(self.labels) or 1

    def sizes(self, dim: int) -> tuple[int, int]:
        """How many features it reads, and how many its last layer does."""
        width = 3 * dim if self.reads == "concat" else dim
        return width, self.inner if self.dense and self.inner else width

    def weights(self, dim: int) -> int:
        width, inner = self.sizes(dim)
        return inner * self.num_outputs + (width * inner if self.dense else 0)

    def build(self, dim: int) -> LabelHead:
        return LabelHead(self, dim)


class LabelHead(Head):
    def __init__(self, spec: LabelHeadSpec, dim: int):
        super().__init__()
        self.spec = spec
        self.reads = spec.reads
        width, inner = spec.sizes(dim)
        self.input_norm = spec.input_norm.build(width)
        self.dense = nn.Linear(width, inner, bias=spec.dense_bias) if spec.dense else None
        self.input_dropout = nn.Dropout(spec.input_dropout)
        self.norm = spec.norm.build(inner)
        self.dropout = nn.Dropout(spec.dropout)
        self.linear = nn.Linear(inner, spec.num_outputs, bias=spec.bias)
        self.crf = spec.crf.build(spec.labels) if spec.crf else None

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        states = self.input_dropout(self.input_norm(states))
        if self.dense is not None:
            states = ACTIVATIONS[self.spec.activation](self.dense(states))
        return self.linear(self.dropout(self.norm(states)))

    def loss(self, states: Tensor, table: Tensor, values: Tensor, ignored: int, smoothing: float = 0.0) -> Tensor:
        """The summed cross entropy; for a number the summed squared error, where NaN is a value to ignore.

        Values of two columns are where something starts and ends: each of the two outputs is a choice among rows, and
        the loss is their mean (Devlin et al. 2019, §4.2).
        """
        if values.ndim == 2:
            both = zip(self(states, table).float().unbind(1), values.unbind(1))
            return torch.stack([_choice_loss(scores, right, ignored) for scores, right in both]).mean()
        if len(self.spec.labels) == 1:
            return _choice_loss(self(states, table).float().squeeze(-1), values, ignored)
        if self.spec.labels:
            return super().loss(states, table, values, ignored, smoothing)
        return (self(states, table).float().squeeze(-1) - values).masked_fill(values.isnan(), 0.0).square().sum()


@dataclass(frozen=True)
class BoundaryHeadSpec(Spec):
    """Scores over the vocabulary for a token inside a span, from the states on both sides of it and its place there.

    Two layers with activation and norm, then the token table (Joshi et al. 2020, §3.2; `place_dim` as in their code).
    """

    vocab_size: int
    activation: ActivationName = "gelu"
    norm: NormSpec = field(default_factory=NoNormSpec)
    places: int = 20  # what lies deeper in a span is not asked for
    place_dim: int = 200

    def weights(self, dim: int) -> int:
        return (2 * dim + self.place_dim) * dim + dim * dim + dim * self.vocab_size

    def build(self, dim: int) -> BoundaryHead:
        return BoundaryHead(self, dim)


class BoundaryHead(VocabularyHead):
    def __init__(self, spec: BoundaryHeadSpec, dim: int):
        super().__init__()
        self.activation = ACTIVATIONS[spec.activation]
        self.places = nn.Embedding(spec.places, spec.place_dim)
        self.inner = nn.Linear(2 * dim + spec.place_dim, dim)
        self.inner_norm = spec.norm.build(dim)
        self.outer = nn.Linear(dim, dim)
        self.outer_norm = spec.norm.build(dim)
        self.bias = nn.Parameter(torch.zeros(spec.vocab_size))

    def states(self, last: Tensor, layout: Layout, rows: Tensor | None, pool: Pool) -> Tensor:
        """`rows` are the row before the span, the row behind it, and the place in it, [n, 3]."""
        if rows is None:
            raise ValueError("a boundary head has to be told which rows it reads")
        before, behind, place = rows.unbind(1)
        return torch.cat([last.index_select(0, before), last.index_select(0, behind), self.places(place)], dim=1)

    def transform(self, states: Tensor) -> Tensor:
        states = self.inner_norm(self.activation(self.inner(states)))
        return self.outer_norm(self.activation(self.outer(states)))


def _choice_loss(scores: Tensor, values: Tensor, ignored: int) -> Tensor:
    """Cross entropy among rivals: rows whose value is the same are the choices of one question, and the value is the
    place of the right one. A row without a value stands alone, at no cost."""
    places = torch.arange(len(scores), device=scores.device)
    right = torch.where(values == ignored, places, values)
    top = scores.detach().scatter_reduce(0, right, scores.detach(), "amax")  # keeps the sums within range
    sums = torch.zeros_like(scores).index_add(0, right, (scores - top.index_select(0, right)).exp())
    asked = right == places
    return torch.where(asked, top + torch.where(asked, sums, 1.0).log() - scores, 0.0).sum()


HeadSpec = (
    LanguageHeadSpec
    | LabelHeadSpec
    | BoundaryHeadSpec
    | AdaptiveHeadSpec
    | NegativeHeadSpec
    | TreeHeadSpec
    | CountHeadSpec
    | CoreferenceHeadSpec
)
