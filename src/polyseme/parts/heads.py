"""Heads: hidden states to predictions.

A head says whether it reads tokens or one pooled vector a sequence, and what its predictions cost (`loss`, a sum).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.parts import kernels
from polyseme.parts.feedforward import ACTIVATIONS, ActivationName
from polyseme.parts.norms import NoNormSpec, NormSpec
from polyseme.parts.spec import Spec


@dataclass(frozen=True)
class LanguageHeadSpec(Spec):
    """Scores over the vocabulary, with the token table as the last matrix (tied).

    BERT transforms the state first (`dense`, activation, norm) and adds a bias; GPT-2 does neither.
    """

    vocab_size: int
    dense: bool = False
    activation: ActivationName = "gelu"
    norm: NormSpec = field(default_factory=NoNormSpec)
    bias: bool = False
    dense_bias: bool = True

    def build(self, dim: int) -> LanguageHead:
        return LanguageHead(self, dim)


class LanguageHead(nn.Module):
    reads: ClassVar[Literal["tokens", "pooled"]] = "tokens"

    def __init__(self, spec: LanguageHeadSpec, dim: int):
        super().__init__()
        self.spec = spec
        self.dense = nn.Linear(dim, dim, bias=spec.dense_bias) if spec.dense else None
        self.norm = spec.norm.build(dim)
        self.bias = nn.Parameter(torch.zeros(spec.vocab_size)) if spec.bias else None

    def transform(self, states: Tensor) -> Tensor:
        """What is multiplied with the table."""
        if self.dense is not None:
            states = ACTIVATIONS[self.spec.activation](self.dense(states))
        return self.norm(states)

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        return F.linear(self.transform(states), table, self.bias)

    def loss(self, states: Tensor, table: Tensor, values: Tensor, ignored: int) -> Tensor:
        """The summed cross entropy; on a GPU the scores over the vocabulary are never whole."""
        if kernels.serve(states) and kernels.serve(table):
            found: Tensor = kernels.vocabulary_loss(self.transform(states), table, self.bias, values, ignored)
            return found
        return _cross_entropy(self(states, table), values, ignored)


@dataclass(frozen=True)
class LabelHeadSpec(Spec):
    """A linear layer over named labels, on each token (tagging) or on the pooled vector (classification).

    Some families have a `dense` layer, an activation and a norm before it. Without labels its one output is
    a number (regression); a single label is the worth of one sequence among several (multiple choice).
    """

    labels: tuple[str, ...]
    reads: Literal["tokens", "pooled"] = "pooled"
    dropout: float = 0.0
    bias: bool = True
    dense: bool = False
    dense_bias: bool = True
    activation: ActivationName = "tanh"
    norm: NormSpec = field(default_factory=NoNormSpec)

    @property
    def num_outputs(self) -> int:
        return len(self.labels) or 1

    def build(self, dim: int) -> LabelHead:
        return LabelHead(self, dim)


class LabelHead(nn.Module):
    def __init__(self, spec: LabelHeadSpec, dim: int):
        super().__init__()
        self.spec = spec
        self.reads = spec.reads
        self.dense = nn.Linear(dim, dim, bias=spec.dense_bias) if spec.dense else None
        self.norm = spec.norm.build(dim)
        self.dropout = nn.Dropout(spec.dropout)
        self.linear = nn.Linear(dim, spec.num_outputs, bias=spec.bias)

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        if self.dense is not None:
            states = ACTIVATIONS[self.spec.activation](self.dense(states))
        return self.linear(self.dropout(self.norm(states)))

    def loss(self, states: Tensor, table: Tensor, values: Tensor, ignored: int) -> Tensor:
        """The summed cross entropy; for a number the summed squared error, where NaN is a value to ignore."""
        scores = self(states, table)
        if len(self.spec.labels) == 1:
            return _choice_loss(scores.float().squeeze(-1), values, ignored)
        if self.spec.labels:
            return _cross_entropy(scores, values, ignored)
        return (scores.float().squeeze(-1) - values).masked_fill(values.isnan(), 0.0).square().sum()


def _cross_entropy(scores: Tensor, values: Tensor, ignored: int) -> Tensor:
    return F.cross_entropy(scores.float(), values, ignore_index=ignored, reduction="sum")


def _choice_loss(scores: Tensor, values: Tensor, ignored: int) -> Tensor:
    """Cross entropy among rivals: rows whose value is the same are the choices of one question, and the value is the
    place of the right one. A row without a value stands alone, at no cost."""
    places = torch.arange(len(scores), device=scores.device)
    right = torch.where(values == ignored, places, values)
    top = scores.detach().scatter_reduce(0, right, scores.detach(), "amax")  # keeps the sums within range
    sums = torch.zeros_like(scores).index_add(0, right, (scores - top.index_select(0, right)).exp())
    asked = right == places
    return torch.where(asked, top + torch.where(asked, sums, 1.0).log() - scores, 0.0).sum()


HeadSpec = LanguageHeadSpec | LabelHeadSpec
