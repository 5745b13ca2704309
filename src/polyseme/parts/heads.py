"""Heads: hidden states to predictions. A head says whether it reads tokens or one vector a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.parts.feedforward import ACTIVATIONS, ActivationName
from polyseme.parts.norms import NoNormSpec, NormSpec
from polyseme.parts.spec import Spec

Reads = Literal["tokens", "pooled", "first"]  # every state, what the trunk's pooler gives, or the first token's own


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
    reads: ClassVar[Reads] = "tokens"

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


@dataclass(frozen=True)
class LabelHeadSpec(Spec):
    """A linear layer over named labels, on each token (tagging) or on one vector a sequence (classification).

    Some families have a `dense` layer, an activation and a norm before it, and one of them dropout before that.
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

    def build(self, dim: int) -> LabelHead:
        return LabelHead(self, dim)


class LabelHead(nn.Module):
    def __init__(self, spec: LabelHeadSpec, dim: int):
        super().__init__()
        self.spec = spec
        self.reads = spec.reads
        self.dense = nn.Linear(dim, dim, bias=spec.dense_bias) if spec.dense else None
        self.input_dropout = nn.Dropout(spec.input_dropout)
        self.norm = spec.norm.build(dim)
        self.dropout = nn.Dropout(spec.dropout)
        self.linear = nn.Linear(dim, len(spec.labels), bias=spec.bias)

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        states = self.input_dropout(states)
        if self.dense is not None:
            states = ACTIVATIONS[self.spec.activation](self.dense(states))
        return self.linear(self.dropout(self.norm(states)))


HeadSpec = LanguageHeadSpec | LabelHeadSpec
