"""GloVe's head: the product of two words' vectors and their biases is the logarithm of how often they meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.nn.heads.base import Head
from polyseme.nn.heads.word2vec import Found
from polyseme.nn.sparse import RowGradient


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of a table of counts: which word, which word near it, the logarithm of the count, the cell's weight."""

    tokens: Tensor  # int64 [n]
    others: Tensor  # int64 [n]
    logs: Tensor  # float [n]
    weights: Tensor  # float [n]

    block = 1

    @property
    def products(self) -> int:
        return len(self.tokens)

    @property
    def num_blocks(self) -> int:
        return len(self.tokens)

    def count(self) -> Tensor:
        return torch.full((), len(self.tokens), device=self.tokens.device)

    def part(self, first: int, last: int) -> Cells:
        return Cells(*(t[first:last] for t in (self.tokens, self.others, self.logs, self.weights)))


@dataclass(frozen=True)
class CountHeadSpec(Spec):
    vocab_size: int

    def weights(self, dim: int) -> int:
        return dim * self.vocab_size

    def build(self, dim: int) -> CountHead:
        return CountHead(self, dim)


class CountHead(Head):
    """The other table, and a bias for each word of both (Pennington et al. 2014, §3)."""

    def __init__(self, spec: CountHeadSpec, dim: int):
        super().__init__()
        self.own = nn.Parameter(torch.zeros(spec.vocab_size, dim))
        self.bias = nn.Parameter(torch.zeros(spec.vocab_size))
        self.first_bias = nn.Parameter(torch.zeros(spec.vocab_size))

    def vectors(self) -> list[Tensor]:
        """What starts at random."""
        return [self.own]

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        return F.linear(states, self.own, self.bias)

    @torch.no_grad()
    def settle(self, table: Tensor) -> None:
        """The two tables differ by their start alone, and their sum is better than either (§4.2)."""
        table += self.own.to(table)

    def learn(self, cells: Cells, inputs: Tensor, loss: bool = False) -> Found:
        """Half the squared error, weighted (eq. 8)."""
        others = F.embedding(cells.others, self.own)
        biases = self.first_bias.index_select(0, cells.tokens) + self.bias.index_select(0, cells.others)
        error = (inputs * others).sum(1) + biases - cells.logs
        pull = error * cells.weights
        ones = torch.ones_like(error)
        return Found((pull * error).sum() / 2 if loss else None, pull[:, None] * others, ones, [
            RowGradient(self.own, cells.others, pull[:, None] * inputs, ones),
            RowGradient(self.first_bias, cells.tokens, pull, ones),
            RowGradient(self.bias, cells.others, pull.clone(), ones),
        ])  # fmt: skip
