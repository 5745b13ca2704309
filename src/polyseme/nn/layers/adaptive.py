"""Adaptive embeddings and softmax: rare tokens have shorter vectors (Grave et al. 2017; Baevski and Auli 2019).

Ids are assumed to be sorted from frequent to rare. `cutoffs` divide them into bands; the vectors of each band are
`div_value` times shorter than those of the band before. The softmax is over the tokens of the first band and the other
bands, then over the tokens inside a band.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn import kernels
from polyseme.nn.heads.base import IGNORE_INDEX, Head, HeadConfig
from polyseme.nn.layers.embeddings import check_max_seqlen
from polyseme.nn.packing import Inputs


@dataclass(frozen=True)
class AdaptiveBandsConfig(Config):
    """Division of a vocabulary into bands; abstract."""

    vocab_size: int
    dim: int  # of the hidden states and of the first band's vectors
    cutoffs: tuple[int, ...] = ()
    div_value: int = 1

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "vocab_size", "div_value")
        if list(self.boundaries) != sorted(set(self.boundaries)):
            expected = f"increasing ids above 0 and below vocab_size ({self.vocab_size})"
            raise ConfigError(f"cutoffs are {list(self.cutoffs)}; expected {expected}")
        if self.div_value ** len(self.cutoffs) > self.dim:
            bands = f"the last of {len(self.cutoffs) + 1} bands (dim is {self.dim})"
            raise ConfigError(f"div_value is {self.div_value}, which leaves no dimensions in {bands}")

    @property
    def boundaries(self) -> tuple[int, ...]:
        """First id of each band, and the end of the last."""
        return 0, *self.cutoffs, self.vocab_size

    @property
    def bands(self) -> list[tuple[int, int, int]]:
        """(first id, number of ids, vector size) of each band."""
        borders = enumerate(pairwise(self.boundaries))
        return [(start, end - start, self.dim // self.div_value**i) for i, (start, end) in borders]


@dataclass(frozen=True)
class AdaptiveEmbeddingsConfig(AdaptiveBandsConfig):
    """Adaptive input embeddings."""

    max_len: int = 1 << 20  # there are no position embeddings that would limit it
    dropout: float = 0.0
    num_segments: ClassVar[int] = 0
    embedding_dim: ClassVar[int] = 0

    def build(self) -> AdaptiveEmbeddings:
        return AdaptiveEmbeddings(self)


class AdaptiveEmbeddings(nn.Module):
    """Token vectors of each band, projected to the hidden size if bands differ, times √dim."""

    def __init__(self, config: AdaptiveEmbeddingsConfig):
        super().__init__()
        self.config = config
        self.tables = nn.ModuleList(nn.Embedding(size, width) for _, size, width in config.bands)
        self.projections = nn.ModuleList(
            nn.Linear(width, config.dim, bias=False) if config.div_value > 1 else nn.Identity()
            for _, _, width in config.bands
        )
        self.dropout = nn.Dropout(config.dropout)

    @property
    def token_embeddings(self) -> AdaptiveEmbeddings:
        """Tables that a tied head uses: this module."""
        return self

    def forward(self, inputs: Inputs, positions: Tensor | None = None, max_seqlen: int | None = None) -> Tensor:
        """Return the embeddings of packed tokens, [T, dim]."""
        check_max_seqlen(inputs, max_seqlen, self.config.max_len)
        x = self._look_up(inputs.tokens, is_masked=inputs.tokens.is_cuda or inputs.layout.is_padded)
        return self.dropout(x * self.config.dim**0.5)

    def _look_up(self, tokens: Tensor, is_masked: bool) -> Tensor:
        """Look up each band's tokens, or all tokens in each band and mask: on a GPU that saves a sync per band."""
        vectors, indices = [], []
        for (first_id, size, _), table, projection in zip(self.config.bands, self.tables, self.projections):
            in_band = (tokens >= first_id) & (tokens < first_id + size)
            if is_masked:
                band_vectors = projection(table((tokens - first_id).clamp(0, size - 1)))
                vectors.append(band_vectors.masked_fill(~in_band[:, None], 0.0))
            else:
                indices.append(torch.nonzero(in_band).squeeze(1))
                vectors.append(projection(table(tokens[indices[-1]] - first_id)))
        if is_masked:
            return torch.stack(vectors).sum(0)
        return torch.cat(vectors).index_select(0, torch.argsort(torch.cat(indices)))


@dataclass(frozen=True)
class AdaptiveSoftmaxHeadConfig(AdaptiveBandsConfig, HeadConfig):
    """Adaptive softmax with the tables of `AdaptiveEmbeddings`; only the projection of the first band is untied."""

    def matmul_params(self, dim: int) -> int:
        """Return the number of weights that each row is multiplied with, without the rare bands."""
        return dim * (self.bands[0][1] + len(self.cutoffs) + (dim if self.div_value > 1 else 0))

    def build(self, dim: int) -> AdaptiveSoftmaxHead:
        return AdaptiveSoftmaxHead(self)


class AdaptiveSoftmaxHead(Head):
    """Language-model head with an adaptive softmax."""

    needs_host_sync = not kernels.AVAILABLE

    def __init__(self, config: AdaptiveSoftmaxHeadConfig):
        super().__init__(config)
        self.biases = nn.ParameterList(torch.zeros(size) for _, size, _ in config.bands)
        self.clusters = nn.Linear(config.dim, len(config.cutoffs)) if config.cutoffs else None
        self.projection = nn.Linear(config.dim, config.dim, bias=False) if config.div_value > 1 else None

    def forward(self, states: Tensor, token_embeddings: AdaptiveEmbeddings) -> Tensor:
        """Return the log-probability of every token, [rows, vocab_size]."""
        head_log_probs = F.linear(*self._head_inputs(states, token_embeddings)).float().log_softmax(-1)
        shortlist_size = self.config.bands[0][1]
        log_probs = [head_log_probs[:, :shortlist_size]]
        for band in range(1, len(self.config.bands)):
            tail_log_probs = F.linear(*self._tail_inputs(band, states, token_embeddings)).float().log_softmax(-1)
            log_probs.append(head_log_probs[:, shortlist_size + band - 1, None] + tail_log_probs)
        return torch.cat(log_probs, dim=-1)

    def loss(self, states: Tensor, token_embeddings: Any, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the summed cross entropy; the scores of a band are computed for the rows whose label is in it."""
        if label_smoothing:  # needs all scores
            return super().loss(states, token_embeddings, labels, label_smoothing)

        def cross_entropy(inputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
            if kernels.supports(states):
                return kernels.linear_cross_entropy(*inputs, labels, IGNORE_INDEX)
            return F.cross_entropy(F.linear(*inputs).float(), labels, reduction="sum")

        shortlist_size = self.config.bands[0][1]
        head_labels, losses = labels, []
        for band, (first_id, size, _) in list(enumerate(self.config.bands))[1:]:
            in_band = (labels >= first_id) & (labels < first_id + size)
            head_labels = torch.where(in_band, shortlist_size + band - 1, head_labels)
            if kernels.supports(states):  # all rows: selecting those in the band needs a slow sync
                band_states, band_labels = states, torch.where(in_band, labels - first_id, IGNORE_INDEX)
            else:
                rows = torch.nonzero(in_band).squeeze(1)
                band_states, band_labels = states.index_select(0, rows), labels[rows] - first_id
            losses.append(cross_entropy(self._tail_inputs(band, band_states, token_embeddings), band_labels))
        losses.append(cross_entropy(self._head_inputs(states, token_embeddings), head_labels))
        return torch.stack(losses).sum()

    def _head_inputs(self, states: Tensor, token_embeddings: AdaptiveEmbeddings) -> tuple[Tensor, Tensor, Tensor]:
        """Return states, weights and biases that give the scores of the first band's tokens and of the other bands."""
        projected = states if self.projection is None else states @ self.projection.weight
        weight: Any = token_embeddings.tables[0].weight
        bias = self.biases[0]
        if self.clusters is not None:
            weight, bias = torch.cat([weight, self.clusters.weight]), torch.cat([bias, self.clusters.bias])
        return projected, weight, bias

    def _tail_inputs(self, band: int, states: Tensor, token_embeddings: AdaptiveEmbeddings) -> tuple[Tensor, ...]:
        """Return states, weights and biases that give the scores of another band's tokens."""
        projection = token_embeddings.projections[band]
        projected = states @ projection.weight if isinstance(projection, nn.Linear) else states
        return projected, token_embeddings.tables[band].weight, self.biases[band]  # type: ignore[return-value]
