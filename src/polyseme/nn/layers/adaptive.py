"""Adaptive input and softmax: rare tokens get shorter vectors (Grave et al. 2017; Baevski and Auli 2019).

Ids are taken to be sorted from frequent to rare. `cutoffs` cut them into bands; each band's vectors are `factor` times
shorter than those of the band before. The softmax chooses among the first band and the other bands, then inside a band.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec, in_range
from polyseme.errors import UserError
from polyseme.nn import kernels
from polyseme.nn.heads.base import Head
from polyseme.nn.layers.norms import NoNormSpec


@dataclass(frozen=True)
class Bands(Spec):
    """The fields of what is cut into bands; abstract."""

    vocab_size: int
    dim: int  # of the states, and of the first band's vectors
    cutoffs: tuple[int, ...] = ()
    factor: int = 1

    def __post_init__(self) -> None:
        in_range("vocab_size", self.vocab_size, 1, math.inf)
        in_range("factor", self.factor, 1, math.inf)
        if list(self.borders) != sorted(set(self.borders)):
            raise UserError(f"cutoffs {list(self.cutoffs)} do not rise from above 0 to below {self.vocab_size}")
        if self.factor ** len(self.cutoffs) > self.dim:
            raise UserError(f"factor {self.factor} leaves nothing of {self.dim} dimensions in the last band")

    @property
    def borders(self) -> tuple[int, ...]:
        return 0, *self.cutoffs, self.vocab_size

    @property
    def bands(self) -> list[tuple[int, int, int]]:
        """(first id, number of ids, length of a vector) of each band."""
        return [(a, b - a, self.dim // self.factor**i) for i, (a, b) in enumerate(pairwise(self.borders))]


@dataclass(frozen=True)
class AdaptiveEmbeddingsSpec(Bands):
    max_len: int = 1 << 20  # no position is stored: what a reading may hold
    dropout: float = 0.0
    num_segments: ClassVar[int] = 0
    inner: ClassVar[int] = 0
    norm: ClassVar[NoNormSpec] = NoNormSpec()

    def build(self) -> AdaptiveEmbeddings:
        return AdaptiveEmbeddings(self)


class AdaptiveEmbeddings(nn.Module):
    """Vectors of a band, projected to the states' length where bands differ, times √dim."""

    def __init__(self, spec: AdaptiveEmbeddingsSpec):
        super().__init__()
        self.spec = spec
        self.tables = nn.ModuleList(nn.Embedding(size, width) for _, size, width in spec.bands)
        self.projections = nn.ModuleList(
            nn.Linear(width, spec.dim, bias=False) if spec.factor > 1 else nn.Identity() for _, _, width in spec.bands
        )
        self.dropout = nn.Dropout(spec.dropout)

    @property
    def table(self) -> AdaptiveEmbeddings:
        """What a tied head reads."""
        return self

    def forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None, longest: int, table: None = None
    ) -> Tensor:
        spec = self.spec
        if longest > spec.max_len:
            raise UserError(f"a sequence of {longest} tokens is longer than the model reads ({spec.max_len})")
        return self.dropout((self._of_all if tokens.is_cuda else self._of_each)(tokens) * spec.dim**0.5)

    def _of_each(self, tokens: Tensor) -> Tensor:
        """Each band looks its own tokens up."""
        found, places = [], []
        for (first, size, _), band, projection in zip(self.spec.bands, self.tables, self.projections):
            place = torch.nonzero((tokens >= first) & (tokens < first + size)).squeeze(1)
            found.append(projection(band(tokens[place] - first)))
            places.append(place)
        return torch.cat(found).index_select(0, torch.argsort(torch.cat(places)))

    def _of_all(self, tokens: Tensor) -> Tensor:
        """Each band looks something up for every token: on a GPU cheaper than to ask how many are its own."""
        found = []
        for (first, size, _), band, projection in zip(self.spec.bands, self.tables, self.projections):
            own = (tokens >= first) & (tokens < first + size)
            vectors = projection(band((tokens - first).clamp(0, size - 1)))
            found.append(vectors.masked_fill(~own[:, None], 0.0))
        return torch.stack(found).sum(0)


@dataclass(frozen=True)
class AdaptiveHeadSpec(Bands):
    """Scores over the vocabulary from the vectors of `AdaptiveEmbeddings`, tied, but for the first projection."""

    def weights(self, dim: int) -> int:
        """How many weights of matrices a row meets; the rare bands are left out."""
        return dim * (self.bands[0][1] + len(self.cutoffs) + (dim if self.factor > 1 else 0))

    def build(self, dim: int) -> AdaptiveHead:
        return AdaptiveHead(self)


class AdaptiveHead(Head):
    asks = not kernels.READY

    def __init__(self, spec: AdaptiveHeadSpec):
        super().__init__()
        self.spec = spec
        self.biases = nn.ParameterList(torch.zeros(size) for _, size, _ in spec.bands)
        self.clusters = nn.Linear(spec.dim, len(spec.cutoffs)) if spec.cutoffs else None
        self.projection = nn.Linear(spec.dim, spec.dim, bias=False) if spec.factor > 1 else None

    def forward(self, states: Tensor, tables: AdaptiveEmbeddings) -> Tensor:
        """The log probability of every token, [rows, vocab_size]."""
        top = F.linear(*self._top(states, tables)).float().log_softmax(-1)
        shortlist = self.spec.bands[0][1]
        found = [top[:, :shortlist]]
        for band in range(1, len(self.spec.bands)):
            inside = F.linear(*self._inside(band, states, tables)).float().log_softmax(-1)
            found.append(top[:, shortlist + band - 1, None] + inside)
        return torch.cat(found, dim=-1)

    def loss(
        self, states: Tensor, table: AdaptiveEmbeddings, values: Tensor, ignored: int, smoothing: float = 0.0
    ) -> Tensor:
        """The summed cross entropy; a band's scores are made for the rows whose token lies in it."""
        if smoothing:  # which needs the scores of all
            return super().loss(states, table, values, ignored, smoothing)
        shortlist = self.spec.bands[0][1]
        choices, found = values, []
        for band, (first, size, _) in list(enumerate(self.spec.bands))[1:]:
            inside = (values >= first) & (values < first + size)
            choices = torch.where(inside, shortlist + band - 1, choices)
            if kernels.serve(states):  # of all rows: to ask a GPU which lie in the band would take longer
                own = torch.where(inside, values - first, ignored)
                found.append(kernels.vocabulary_loss(*self._inside(band, states, table), own, ignored))
                continue
            rows = torch.nonzero(inside).squeeze(1)
            scores = F.linear(*self._inside(band, states.index_select(0, rows), table)).float()
            found.append(F.cross_entropy(scores, values[rows] - first, reduction="sum"))
        top = self._top(states, table)
        if kernels.serve(states):
            found.append(kernels.vocabulary_loss(*top, choices, ignored))
        else:
            found.append(F.cross_entropy(F.linear(*top).float(), choices, ignore_index=ignored, reduction="sum"))
        return torch.stack(found).sum()

    def _top(self, states: Tensor, tables: AdaptiveEmbeddings) -> tuple[Tensor, Tensor, Tensor]:
        """States, weights and biases whose scores are those of the first band's tokens and of the other bands."""
        own = states if self.projection is None else states @ self.projection.weight
        weights, biases = [tables.tables[0].weight], [self.biases[0]]
        if self.clusters is not None:
            weights.append(self.clusters.weight)
            biases.append(self.clusters.bias)
        return own, torch.cat(weights), torch.cat(biases)  # type: ignore[arg-type]

    def _inside(self, band: int, states: Tensor, tables: AdaptiveEmbeddings) -> tuple[Tensor, Tensor, Tensor]:
        """The same for the tokens of another band."""
        projection = tables.projections[band]
        own = states @ projection.weight if isinstance(projection, nn.Linear) else states
        return own, tables.tables[band].weight, self.biases[band]  # type: ignore[return-value]
