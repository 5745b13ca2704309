"""Heads: hidden states to predictions. A head says whether it reads tokens or one pooled vector a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.parts.feedforward import ACTIVATIONS, ActivationName
from polyseme.parts.norms import NoNormSpec, NormSpec
from polyseme.parts.spec import Spec


@dataclass(frozen=True)
class LanguageHeadSpec(Spec):
    """Scores over the vocabulary, with the token table as the last matrix (`tied`) or one of its own.

    BERT transforms the state first (`dense`, activation, norm) and adds a bias; GPT-2 does neither. `scale` multiplies
    the state that meets the table.
    """

    vocab_size: int
    dense: bool = False
    activation: ActivationName = "gelu"
    norm: NormSpec = field(default_factory=NoNormSpec)
    bias: bool = False
    dense_bias: bool = True
    tied: bool = True
    scale: float = 1.0

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
        self.own = None if spec.tied else nn.Linear(dim, spec.vocab_size, bias=False)

    def transform(self, states: Tensor) -> Tensor:
        """What is multiplied with the table."""
        if self.dense is not None:
            states = ACTIVATIONS[self.spec.activation](self.dense(states))
        states = self.norm(states)
        return states if self.spec.scale == 1 else states * self.spec.scale

    def table(self, shared: Tensor) -> Tensor:
        """The matrix of the vocabulary."""
        return shared if self.own is None else self.own.weight

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        return F.linear(self.transform(states), self.table(table), self.bias)


@dataclass(frozen=True)
class LabelHeadSpec(Spec):
    """A linear layer over named labels, on each token (tagging) or on the pooled vector (classification).

    Some families have a `dense` layer, an activation and a norm before it.
    """

    labels: tuple[str, ...]
    reads: Literal["tokens", "pooled"] = "pooled"
    dropout: float = 0.0
    bias: bool = True
    dense: bool = False
    dense_bias: bool = True
    activation: ActivationName = "tanh"
    norm: NormSpec = field(default_factory=NoNormSpec)

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
        self.linear = nn.Linear(dim, len(spec.labels), bias=spec.bias)

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        if self.dense is not None:
            states = ACTIVATIONS[self.spec.activation](self.dense(states))
        return self.linear(self.dropout(self.norm(states)))


HeadSpec = LanguageHeadSpec | LabelHeadSpec
