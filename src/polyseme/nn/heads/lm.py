"""Language-model heads: logits over the vocabulary."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.nn import kernels
from polyseme.nn.heads.base import IGNORE_INDEX, Head, HeadConfig, PoolFn, RowSelection
from polyseme.nn.layers.block import ACTIVATIONS, ActivationName, AnyNormConfig, NoNormConfig
from polyseme.nn.losses import chunked_cross_entropy, is_applicable, sampled_softmax_loss
from polyseme.nn.packing import PackedLayout


class VocabHead(Head, ABC):
    """Logits over the vocabulary: transformed states times an output matrix, plus a bias."""

    @abstractmethod
    def linear_inputs(self, states: Tensor, token_embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the transformed states, the output matrix and its bias."""

    def forward(self, states: Tensor, token_embeddings: Tensor) -> Tensor:
        return F.linear(*self.linear_inputs(states, token_embeddings))

    def loss(self, states: Any, token_embeddings: Any, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the summed cross entropy; in training the logits of all rows never exist at once."""
        inputs = self.linear_inputs(states, token_embeddings)
        if kernels.supports(states) and kernels.supports(inputs[1]) and not label_smoothing:
            return kernels.linear_cross_entropy(*inputs, labels, IGNORE_INDEX)
        if is_applicable(states) and is_applicable(inputs[1]):
            return chunked_cross_entropy(*inputs, labels, IGNORE_INDEX, label_smoothing)
        return F.cross_entropy(F.linear(*inputs).float(), labels, reduction="sum", label_smoothing=label_smoothing)


@dataclass(frozen=True)
class LMHeadConfig(HeadConfig):
    """Language-model head: logits over the vocabulary, from the token embeddings or a matrix of its own.

    BERT first applies a `dense` layer, activation and norm, and adds a bias; GPT-2 does neither. If the token
    embeddings have another size than the trunk, it is `embedding_dim`, the output size of `dense`. `scale` multiplies
    the state before the output matrix. If states are two directions side by side, `direction` selects one. `tied_to`
    names another head whose matrix and bias this one shares. With `num_sampled`, training uses sampled softmax.
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
        """Number of features of a state that the head reads."""
        return dim if self.direction == "both" else dim // 2

    def matmul_params(self, dim: int) -> int:
        dim = self.input_dim(dim)
        embedding_dim = self.embedding_dim or dim
        return embedding_dim * (self.num_sampled or self.vocab_size) + (dim * embedding_dim if self.dense else 0)

    def build(self, dim: int) -> Head:
        return LMHead(self, dim)


class LMHead(VocabHead):
    """Language-model head."""

    def __init__(self, config: LMHeadConfig, dim: int):
        super().__init__(config)
        dim = config.input_dim(dim)
        embedding_dim = config.embedding_dim or dim
        self.dense = nn.Linear(dim, embedding_dim, bias=config.dense_bias) if config.dense else None
        self.norm = config.norm.build(embedding_dim)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.bias else None
        self.decoder = None if config.tie_word_embeddings else nn.Linear(embedding_dim, config.vocab_size, bias=False)

    def select_rows(self, layout: PackedLayout, rows: Tensor, pooling: str) -> RowSelection | None:
        return RowSelection(rows, layout, torch.arange(len(rows), device=rows.device))

    def tie_weights(self, other: Head) -> None:
        """Share the output matrix and the bias of another head."""
        assert isinstance(other, LMHead)
        self.decoder, self.bias = other.decoder, other.bias

    def loss(self, states: Any, token_embeddings: Any, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        num_sampled = self.config.num_sampled
        if self.training and 0 < num_sampled < self.config.vocab_size:
            inputs = self.linear_inputs(states, token_embeddings)
            return sampled_softmax_loss(*inputs, labels, IGNORE_INDEX, num_sampled)
        return super().loss(states, token_embeddings, labels, label_smoothing)

    def linear_inputs(self, states: Tensor, token_embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.config.direction != "both":
            states = states.chunk(2, dim=-1)[self.config.direction == "backward"]
        if self.dense is not None:
            states = ACTIVATIONS[self.config.activation](self.dense(states))
        states = self.norm(states) if self.config.scale == 1 else self.norm(states) * self.config.scale
        return states, token_embeddings if self.decoder is None else self.decoder.weight, self.bias


@dataclass(frozen=True)
class ShiftedLMHeadConfig(HeadConfig):
    """The next-token head `tied_to`, which predicts the token of a row from the state before it.

    So a masked token is predicted like the next one, by the same weights (masked next-token prediction; Charpentier and
    Samuel 2024, §3). The first token of a sequence, which no objective predicts, has only its own state.
    """

    vocab_size: int
    tied_to: str

    def matmul_params(self, dim: int) -> int:
        return dim * self.vocab_size + dim * dim

    def build(self, dim: int) -> Head:
        return ShiftedLMHead(self)


class ShiftedLMHead(VocabHead):
    """A view of another head; it has no weights."""

    shared_head: tuple[VocabHead, ...] = ()  # in a tuple, so that the weights belong to one head only

    def tie_weights(self, other: Head) -> None:
        """Use all weights of another head."""
        assert isinstance(other, VocabHead)
        self.shared_head = (other,)

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> Tensor:
        """Select the state before each row."""
        rows = torch.arange(hidden.shape[0], device=hidden.device) if rows is None else rows
        return hidden.index_select(0, rows - (layout.positions.index_select(0, rows) > 0).long())

    def linear_inputs(self, states: Tensor, token_embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.shared_head[0].linear_inputs(states, token_embeddings)


@dataclass(frozen=True)
class SpanBoundaryHeadConfig(HeadConfig):
    """Logits over the vocabulary for a token inside a span, from the states around the span and its offset in it.

    Two layers with activation and norm, then the token embeddings (Joshi et al. 2020, §3.2; `position_dim` as in their
    code).
    """

    vocab_size: int
    activation: ActivationName = "gelu"
    norm: AnyNormConfig = field(default_factory=NoNormConfig)
    max_span_offset: int = 20  # tokens deeper inside a span are not predicted
    position_dim: int = 200

    def matmul_params(self, dim: int) -> int:
        return (2 * dim + self.position_dim) * dim + dim * dim + dim * self.vocab_size

    def build(self, dim: int) -> Head:
        return SpanBoundaryHead(self, dim)


class SpanBoundaryHead(VocabHead):
    """Head of the span boundary objective."""

    def __init__(self, config: SpanBoundaryHeadConfig, dim: int):
        super().__init__(config)
        self.activation = ACTIVATIONS[config.activation]
        self.position_embeddings = nn.Embedding(config.max_span_offset, config.position_dim)
        self.linear1, self.norm1 = nn.Linear(2 * dim + config.position_dim, dim), config.norm.build(dim)
        self.linear2, self.norm2 = nn.Linear(dim, dim), config.norm.build(dim)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> Tensor:
        """Concatenate boundary states and offsets; `rows` [n, 3] are the rows around the span and the offset."""
        if rows is None:
            raise ValueError("a span boundary head needs rows")
        *boundary_rows, offsets = rows.unbind(1)
        boundaries = [hidden.index_select(0, index) for index in boundary_rows]
        return torch.cat([*boundaries, self.position_embeddings(offsets)], dim=1)

    def select_rows(self, layout: PackedLayout, rows: Tensor, pooling: str) -> RowSelection | None:
        boundary_rows, offsets = rows[:, :2], rows[:, 2:]
        index = torch.arange(boundary_rows.numel(), device=rows.device).view_as(boundary_rows)
        return RowSelection(boundary_rows.flatten(), layout, torch.cat([index, offsets], dim=1))

    def linear_inputs(self, states: Tensor, token_embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        states = self.norm1(self.activation(self.linear1(states)))
        return self.norm2(self.activation(self.linear2(states))), token_embeddings, self.bias
