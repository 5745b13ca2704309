"""Token, position and segment embeddings: the input layer of a trunk."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import DataError
from polyseme.nn.layers.block import AnyNormConfig, NoNormConfig
from polyseme.nn.layers.positions import sinusoidal_embedding
from polyseme.nn.packing import Inputs


@dataclass(frozen=True)
class EmbeddingsConfig(Config):
    """Input embeddings of a trunk."""

    vocab_size: int
    dim: int
    max_len: int
    num_segments: int = 0
    norm: AnyNormConfig = field(default_factory=NoNormConfig)
    dropout: float = 0.0
    position_embedding_type: Literal["learned", "sinusoidal", "none"] = "learned"
    position_offset: int = 0  # unused rows before that of the first position
    # size of the tables and their norm, followed by a linear layer to dim; 0 means dim, without a linear layer
    embedding_dim: int = 0
    scale: float = 1.0  # factor on the token embeddings
    tied_to_encoder: bool = False  # token embeddings are those of the encoder, passed at each call
    # drops whole rows of the table, i.e. all occurrences of a word (Gal and Ghahramani 2016)
    embedding_row_dropout: float = 0.0

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "vocab_size", "dim", "max_len")
        self.check_range(0, math.inf, "num_segments", "position_offset", "embedding_dim", "scale")
        self.check_range(0, 1, "dropout", "embedding_row_dropout")

    def build(self) -> Embeddings:
        return Embeddings(self)


class SparseRowGrad(NamedTuple):
    """Sparse gradient of an embedding table: some of its rows; ids may repeat."""

    table: Tensor  # the parameter
    ids: Tensor  # int64 [n]
    rows: Tensor  # [n, …], summed over loss terms, not averaged; may be modified in place
    counts: Tensor  # float [n], number of loss terms summed in each row


def check_max_seqlen(inputs: Inputs, max_seqlen: int | None, max_len: int) -> int:
    """Return `max_seqlen`, or that of the layout; raise if it exceeds the model's maximum."""
    max_seqlen = inputs.layout.max_seqlen if max_seqlen is None else max_seqlen
    if max_seqlen > max_len:
        raise DataError(f"a sequence has {max_seqlen} tokens; the model reads at most {max_len}")
    return max_seqlen


class Embeddings(nn.Module):
    """Sum of token, position and (if the family has segments) segment embeddings."""

    def __init__(self, config: EmbeddingsConfig):
        super().__init__()
        self.config = config
        embedding_dim = config.embedding_dim or config.dim
        self.tokens = None if config.tied_to_encoder else nn.Embedding(config.vocab_size, embedding_dim)
        num_positions, is_learned = config.max_len + config.position_offset, config.position_embedding_type == "learned"
        self.positions = nn.Embedding(num_positions, embedding_dim) if is_learned else None
        self.segments = nn.Embedding(config.num_segments, embedding_dim) if config.num_segments else None
        self.norm = config.norm.build(embedding_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.projection = nn.Linear(embedding_dim, config.dim) if config.embedding_dim else nn.Identity()

    @property
    def token_embeddings(self) -> Tensor:
        """Table [vocab_size, embedding_dim] that a tied head uses."""
        assert self.tokens is not None, "the token embeddings belong to the encoder"
        return self.tokens.weight

    def look_up(self, ids: Tensor) -> Tensor:
        """Return the table's rows of some tokens."""
        return F.embedding(ids, self.token_embeddings)

    def scatter_grad(self, ids: Tensor, grad: Tensor, counts: Tensor) -> list[SparseRowGrad]:
        """Return the gradient of the rows that `look_up` returned."""
        return [SparseRowGrad(self.token_embeddings, ids, grad, counts)]

    def forward(self, inputs: Inputs, positions: Tensor | None = None, max_seqlen: int | None = None) -> Tensor:
        """Return the embeddings of packed tokens, [T, dim].

        With a memory, `positions` and `max_seqlen` include the tokens in it; by default they are those of the layout.
        """
        config, tokens, segments, shared_table = self.config, inputs.tokens, inputs.segments, inputs.token_embeddings
        positions = inputs.layout.positions if positions is None else positions
        max_seqlen = check_max_seqlen(inputs, max_seqlen, config.max_len)
        x = F.embedding(tokens, self.token_embeddings if shared_table is None else shared_table)
        if config.embedding_row_dropout and self.training:
            row_mask = F.dropout(x.new_ones(config.vocab_size, 1), config.embedding_row_dropout)
            x = x * F.embedding(tokens, row_mask)
        if config.scale != 1:
            x = x * config.scale
        if self.positions is not None:
            x = x + self.positions(positions + config.position_offset)
        elif config.position_embedding_type == "sinusoidal":
            is_decoding_step = inputs.layout.is_padded or positions.shape[0] < max_seqlen
            unique_positions = positions if is_decoding_step else torch.arange(max_seqlen, device=x.device)
            sinusoids = sinusoidal_embedding(unique_positions, x.shape[-1], x.dtype)
            x = x + (sinusoids if is_decoding_step else sinusoids.index_select(0, positions))
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else F.embedding(segments, self.segments.weight))
        return self.projection(self.dropout(self.norm(x)))
