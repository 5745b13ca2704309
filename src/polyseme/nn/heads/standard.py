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

from polyseme.config import Config
from polyseme.nn import kernels
from polyseme.nn.heads.base import Head, HeadPooling, PoolFn
from polyseme.nn.heads.coreference import CoreferenceHeadConfig
from polyseme.nn.heads.crf import CRFConfig
from polyseme.nn.heads.glove import GloVeHeadConfig
from polyseme.nn.heads.word2vec import HierarchicalSoftmaxHeadConfig, NegativeSamplingHeadConfig
from polyseme.nn.layers.adaptive import AdaptiveSoftmaxHeadConfig
from polyseme.nn.layers.feedforward import ACTIVATIONS, ActivationName
from polyseme.nn.layers.norms import AnyNormConfig, NoNormConfig
from polyseme.nn.losses.cross_entropy import chunked_cross_entropy, is_applicable
from polyseme.nn.losses.sampled_softmax import sampled_softmax_loss
from polyseme.nn.packing import PackedLayout


class VocabHead(Head, ABC):
    """Scores over the vocabulary: what `transform` makes of the states, times the token table, and a bias."""

    bias: Tensor | None

    @abstractmethod
    def transform(self, states: Tensor) -> Tensor:
        """What meets the table."""

    def output_weight(self, token_embeddings: Tensor) -> Tensor:
        """The matrix of the vocabulary: the token table, unless a head has its own."""
        return token_embeddings

    def forward(self, states: Tensor, token_embeddings: Tensor) -> Tensor:
        return F.linear(self.transform(states), self.output_weight(token_embeddings), self.bias)

    def loss(
        self, states: Tensor, token_embeddings: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float = 0.0
    ) -> Tensor:
        """The summed cross entropy; where it is learned from, the scores over the vocabulary are never whole."""
        output_weight = self.output_weight(token_embeddings)
        if kernels.supports(states) and kernels.supports(output_weight) and not label_smoothing:
            loss: Tensor = kernels.linear_cross_entropy(
                self.transform(states), output_weight, self.bias, labels, ignore_index
            )
            return loss
        if is_applicable(states) and is_applicable(output_weight):
            return chunked_cross_entropy(
                self.transform(states), output_weight, self.bias, labels, ignore_index, label_smoothing
            )
        return super().loss(states, token_embeddings, labels, ignore_index, label_smoothing)


@dataclass(frozen=True)
class LMHeadConfig(Config):
    """Scores over the vocabulary, with the token table as the last matrix (`tie_word_embeddings`) or one of its own.

    BERT transforms the state first (`dense`, activation, norm) and adds a bias; GPT-2 does neither. Where the table's
    vectors are not of the trunk's size, `embedding_dim` is theirs and `dense` goes there. `scale` multiplies the state
    that meets the table. Where states are two directions side by side, `direction` says which of them it reads. A head
    that `tied_to` has the matrix and the bias of that other head. With `num_sampled`, training compares a token with so
    many others alone (`sampled_softmax_loss`).
    """

    vocab_size: int
    dense: bool = False
    activation: ActivationName = "gelu"
    norm: AnyNormConfig = field(default_factory=NoNormConfig)
    bias: bool = False
    dense_bias: bool = True
    embedding_dim: int = 0
    tie_word_embeddings: bool = True
    scale: float = 1.0
    direction: Literal["both", "forward", "backward"] = "both"
    tied_to: str = ""
    num_sampled: int = 0

    def input_dim(self, dim: int) -> int:
        """How much of a state it reads."""
        return dim if self.direction == "both" else dim // 2

    def matmul_params(self, dim: int) -> int:
        """How many weights of matrices a row meets."""
        dim = self.input_dim(dim)
        embedding_dim = self.embedding_dim or dim
        return embedding_dim * (self.num_sampled or self.vocab_size) + (dim * embedding_dim if self.dense else 0)

    def build(self, dim: int) -> LMHead:
        return LMHead(self, dim)


class LMHead(VocabHead):
    def __init__(self, config: LMHeadConfig, dim: int):
        super().__init__()
        self.config = config
        dim = config.input_dim(dim)
        embedding_dim = config.embedding_dim or dim
        self.dense = nn.Linear(dim, embedding_dim, bias=config.dense_bias) if config.dense else None
        self.norm = config.norm.build(embedding_dim)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.bias else None
        self.decoder = None if config.tie_word_embeddings else nn.Linear(embedding_dim, config.vocab_size, bias=False)

    def tie_weights(self, other: Head) -> None:
        """Take the matrix and the bias of another."""
        assert isinstance(other, LMHead)
        self.decoder, self.bias = other.decoder, other.bias

    def loss(
        self, states: Tensor, token_embeddings: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float = 0.0
    ) -> Tensor:
        if self.training and 0 < self.config.num_sampled < self.config.vocab_size:
            output_weight = self.output_weight(token_embeddings)
            return sampled_softmax_loss(
                self.transform(states), output_weight, self.bias, labels, ignore_index, self.config.num_sampled
            )
        return super().loss(states, token_embeddings, labels, ignore_index, label_smoothing)

    def transform(self, states: Tensor) -> Tensor:
        """What is multiplied with the table."""
        if self.config.direction != "both":
            states = states.chunk(2, dim=-1)[self.config.direction == "backward"]
        if self.dense is not None:
            states = ACTIVATIONS[self.config.activation](self.dense(states))
        states = self.norm(states)
        return states if self.config.scale == 1 else states * self.config.scale

    def output_weight(self, token_embeddings: Tensor) -> Tensor:
        return token_embeddings if self.decoder is None else self.decoder.weight


@dataclass(frozen=True)
class ClassificationHeadConfig(Config):
    """A linear layer over named labels, on each token (tagging) or on one vector a sequence (classification).

    Some families have a `dense` layer (to `hidden_dim` features, if not to as many), an activation and a norm before
    it, and some a norm and dropout before that. Without labels its one output is a number (regression); a single label
    is the worth of one sequence among several (multiple choice). With a `crf` the labels of a sequence are predicted
    together.
    """

    labels: tuple[str, ...]
    pooling: HeadPooling = "pooled"
    dropout: float = 0.0
    bias: bool = True
    dense: bool = False
    dense_bias: bool = True
    activation: ActivationName = "tanh"
    norm: AnyNormConfig = field(default_factory=NoNormConfig)
    input_dropout: float = 0.0
    input_norm: AnyNormConfig = field(default_factory=NoNormConfig)
    hidden_dim: int = 0
    crf: CRFConfig | None = None

    @property
    def num_outputs(self) -> int:
        return len(self.labels) or 1

    def layer_dims(self, dim: int) -> tuple[int, int]:
        """How many features it reads, and how many its last layer does."""
        input_dim = 3 * dim if self.pooling == "concat" else dim
        return input_dim, self.hidden_dim if self.dense and self.hidden_dim else input_dim

    def matmul_params(self, dim: int) -> int:
        input_dim, hidden_dim = self.layer_dims(dim)
        return hidden_dim * self.num_outputs + (input_dim * hidden_dim if self.dense else 0)

    def build(self, dim: int) -> ClassificationHead:
        return ClassificationHead(self, dim)


class ClassificationHead(Head):
    def __init__(self, config: ClassificationHeadConfig, dim: int):
        super().__init__()
        self.config = config
        self.pooling = config.pooling
        input_dim, hidden_dim = config.layer_dims(dim)
        self.input_norm = config.input_norm.build(input_dim)
        self.dense = nn.Linear(input_dim, hidden_dim, bias=config.dense_bias) if config.dense else None
        self.input_dropout = nn.Dropout(config.input_dropout)
        self.norm = config.norm.build(hidden_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.linear = nn.Linear(hidden_dim, config.num_outputs, bias=config.bias)
        self.crf = config.crf.build(config.labels) if config.crf else None

    def forward(self, states: Tensor, token_embeddings: Tensor) -> Tensor:
        states = self.input_dropout(self.input_norm(states))
        if self.dense is not None:
            states = ACTIVATIONS[self.config.activation](self.dense(states))
        return self.linear(self.dropout(self.norm(states)))

    def loss(
        self, states: Tensor, token_embeddings: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float = 0.0
    ) -> Tensor:
        """The summed cross entropy; for a number the summed squared error, where NaN is a value to ignore.

        Values of two columns are where something starts and ends: each of the two outputs is a choice among rows, and
        the loss is their mean (Devlin et al. 2019, §4.2).
        """
        if labels.ndim == 2:
            columns = zip(self(states, token_embeddings).float().unbind(1), labels.unbind(1))
            return torch.stack([_choice_loss(logits, target, ignore_index) for logits, target in columns]).mean()
        if len(self.config.labels) == 1:
            return _choice_loss(self(states, token_embeddings).float().squeeze(-1), labels, ignore_index)
        if self.config.labels:
            return super().loss(states, token_embeddings, labels, ignore_index, label_smoothing)
        return (
            (self(states, token_embeddings).float().squeeze(-1) - labels)
            .masked_fill(labels.isnan(), 0.0)
            .square()
            .sum()
        )


@dataclass(frozen=True)
class SpanBoundaryHeadConfig(Config):
    """Scores over the vocabulary for a token inside a span, from the states on both sides of it and its place there.

    Two layers with activation and norm, then the token table (Joshi et al. 2020, §3.2; `position_dim` as in their
    code).
    """

    vocab_size: int
    activation: ActivationName = "gelu"
    norm: AnyNormConfig = field(default_factory=NoNormConfig)
    max_span_offset: int = 20  # what lies deeper in a span is not asked for
    position_dim: int = 200

    def matmul_params(self, dim: int) -> int:
        return (2 * dim + self.position_dim) * dim + dim * dim + dim * self.vocab_size

    def build(self, dim: int) -> SpanBoundaryHead:
        return SpanBoundaryHead(self, dim)


class SpanBoundaryHead(VocabHead):
    def __init__(self, config: SpanBoundaryHeadConfig, dim: int):
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.position_embeddings = nn.Embedding(config.max_span_offset, config.position_dim)
        self.linear1 = nn.Linear(2 * dim + config.position_dim, dim)
        self.norm1 = config.norm.build(dim)
        self.linear2 = nn.Linear(dim, dim)
        self.norm2 = config.norm.build(dim)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> Tensor:
        """`rows` are the row before the span, the row behind it, and the place in it, [n, 3]."""
        if rows is None:
            raise ValueError("a boundary head has to be told which rows it reads")
        left_rows, right_rows, offsets = rows.unbind(1)
        return torch.cat(
            [hidden.index_select(0, left_rows), hidden.index_select(0, right_rows), self.position_embeddings(offsets)],
            dim=1,
        )

    def transform(self, states: Tensor) -> Tensor:
        states = self.norm1(self.activation(self.linear1(states)))
        return self.norm2(self.activation(self.linear2(states)))


def _choice_loss(logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Cross entropy among rivals: rows whose value is the same are the choices of one question, and the value is the
    place of the right one. A row without a value stands alone, at no cost."""
    indices = torch.arange(len(logits), device=logits.device)
    targets = torch.where(labels == ignore_index, indices, labels)
    group_max = logits.detach().scatter_reduce(0, targets, logits.detach(), "amax")  # keeps the sums within range
    group_sums = torch.zeros_like(logits).index_add(0, targets, (logits - group_max.index_select(0, targets)).exp())
    is_correct = targets == indices
    return torch.where(is_correct, group_max + torch.where(is_correct, group_sums, 1.0).log() - logits, 0.0).sum()


AnyHeadConfig = (
    LMHeadConfig
    | ClassificationHeadConfig
    | SpanBoundaryHeadConfig
    | AdaptiveSoftmaxHeadConfig
    | NegativeSamplingHeadConfig
    | HierarchicalSoftmaxHeadConfig
    | GloVeHeadConfig
    | CoreferenceHeadConfig
)
