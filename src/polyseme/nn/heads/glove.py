"""GloVe head: dot products and biases of two words predict the logarithm of their co-occurrence count."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.nn.heads.base import Head, HeadConfig
from polyseme.nn.heads.word2vec import SparseLossOutput
from polyseme.nn.layers.embeddings import SparseRowGrad
from polyseme.nn.tree import tree_map


@dataclass(frozen=True, eq=False)
class CooccurrenceBatch:
    """Cells of a co-occurrence matrix."""

    tokens: Tensor  # int64 [n], the words
    context_ids: Tensor  # int64 [n], the context words
    log_counts: Tensor  # float [n], logarithms of their counts
    weights: Tensor  # float [n], weights of the cells in the loss

    block_size = 1

    @property
    def num_products(self) -> int:
        """Number of dot products."""
        return len(self.tokens)

    @property
    def num_blocks(self) -> int:
        """Number of blocks, of one cell each."""
        return len(self.tokens)

    def count(self) -> Tensor:
        """Return the number of loss terms."""
        return torch.full((), len(self.tokens), device=self.tokens.device)

    def slice_blocks(self, first: int, last: int) -> Self:
        """Return the blocks from `first` to `last`, exclusive."""
        return tree_map(self, lambda tensor: tensor[first:last])


@dataclass(frozen=True)
class GloVeHeadConfig(HeadConfig):
    """Context vectors and biases of GloVe."""

    vocab_size: int

    def matmul_params(self, dim: int) -> int:
        return dim * self.vocab_size

    def build(self, dim: int) -> Head:
        return GloVeHead(self, dim)


class GloVeHead(Head):
    """Table of context vectors, and a bias for each word and each context word (Pennington et al. 2014, §3)."""

    normal_init: ClassVar = ("context_embeddings",)

    def __init__(self, config: GloVeHeadConfig, dim: int):
        super().__init__()
        self.context_embeddings = nn.Parameter(torch.zeros(config.vocab_size, dim))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.word_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, states: Tensor, token_embeddings: Tensor) -> Tensor:
        """Return scores of all context words, [rows, vocab_size]."""
        return F.linear(states, self.context_embeddings, self.bias)

    @torch.no_grad()
    def merge_into(self, token_embeddings: Tensor) -> None:
        """Add the context vectors to the word vectors; the sum is better than either table (§4.2)."""
        token_embeddings += self.context_embeddings.to(token_embeddings)

    def loss_and_row_grads(self, batch: CooccurrenceBatch, inputs: Tensor, with_loss: bool = False) -> SparseLossOutput:
        """Return half of the weighted squared error (eq. 8), if requested, and the gradients."""
        context_vectors = F.embedding(batch.context_ids, self.context_embeddings)
        biases = self.word_bias.index_select(0, batch.tokens) + self.bias.index_select(0, batch.context_ids)
        error = (inputs * context_vectors).sum(1) + biases - batch.log_counts
        weighted_error, ones = error * batch.weights, torch.ones_like(error)
        loss = (weighted_error * error).sum() / 2 if with_loss else None
        return SparseLossOutput(loss, weighted_error[:, None] * context_vectors, ones, [
            SparseRowGrad(self.context_embeddings, batch.context_ids, weighted_error[:, None] * inputs, ones),
            SparseRowGrad(self.word_bias, batch.tokens, weighted_error, ones),
            SparseRowGrad(self.bias, batch.context_ids, weighted_error.clone(), ones),
        ])  # fmt: skip
