"""Attention that knows how far apart two tokens are, by scores that depend on the query (Dai et al. 2019, §3.3).

The score of query i and key j is (q + u)·k + (q + v)·r(i − j), and where relative segments are asked for
(Yang et al. 2019, §2.5) (q + s)·g of whether the two lie in one segment. r is a projected sinusoid, or learned for each
distance (Huang et al. 2018, §3.4, without u and v). Sequences of equal length that are neighbours are one dense batch;
r is met once for each distance, and its scores are skewed into place, so no vector is held for each pair of tokens.

In two-stream attention (Yang et al. 2019, §2.3) the rows of a query stream stand behind those of the tokens, in
one matrix: they ask, but are never asked. A `Relations` is what all depths of one reading share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec, in_range
from polyseme.errors import UserError
from polyseme.nn import kernels
from polyseme.nn.attention.attend import paired_runs, seen
from polyseme.nn.memory import Cache
from polyseme.nn.packing import Layout

FIRST = torch.iinfo(torch.int64).min  # the rank of what is remembered: before every other


@dataclass(frozen=True, eq=False)
class Queries:
    """A query stream: the places to be predicted, each from what stands before it in an order of factorisation.

    Tokens of one rank see each other; a place in the query stream sees lower ranks alone, so never its own token.
    """

    order: Tensor  # int64 [T]: the rank of each token
    rows: Tensor  # int64 [P]: the tokens that are predicted
    layout: Layout  # how many of them each sequence has


@dataclass(frozen=True, eq=False)
class Run:
    """Neighbours alike in length: `number` sequences of `rows` queries and `columns` keys."""

    number: int
    rows: int
    columns: int
    hidden: Tensor | None  # bool, [rows, columns] or one for each sequence: what is not seen
    apart: Tensor | None = None  # bool [number, rows, columns]: in different segments
    first: Tensor | None = None  # int64 [number, rows], of a query stream: where in the table of distances keys begin


@dataclass(frozen=True, eq=False)
class Relations:
    """What the depths share: the distances from the greatest to the least, how they are written, who sees whom."""

    distances: Tensor  # int64, falling by one
    waves: Tensor | None  # [distances, dim], where no depth has vectors of its own
    most: int  # the first distance
    offsets: tuple[Tensor, Tensor] | None  # u and v, where all depths share them
    layout: Layout
    keys: Layout  # of the tokens and, before them, what is remembered
    segments: tuple[Tensor, Tensor] | None  # of the tokens and of the keys
    queries: Queries | None
    ranks: Tensor | None  # of the keys
    found: dict[tuple[bool, int, bool], list[Run]] = field(default_factory=dict)

    def runs(self, causal: bool, window: int, stream: bool = False) -> list[Run]:
        """The runs of the tokens, or of the query stream; worked out at the first depth that asks."""
        key = causal, window, stream
        if key not in self.found:
            self.found[key] = self._queried() if stream else self._plain(causal, window)
        return self.found[key]

    def _plain(self, causal: bool, window: int) -> list[Run]:
        found, at, column = [], 0, 0
        device = self.distances.device
        for n, rows, columns in paired_runs(self.layout, self.keys):
            here, there = slice(at, at + n * rows), slice(column, column + n * columns)
            shown = seen(rows, columns, causal, window, device)
            hidden = None if shown is None else ~shown
            if self.queries is not None and self.ranks is not None:
                order = self.queries.order[here].view(n, rows, 1)
                later = self.ranks[there].view(n, 1, columns) > order
                hidden = later if hidden is None else hidden | later
            found.append(Run(n, rows, columns, hidden, self._apart(here, there, n)))
            at, column = here.stop, there.stop
        return found

    def _queried(self) -> list[Run]:
        assert self.queries is not None and self.ranks is not None
        found, at, column = [], 0, 0
        rows_of, order = self.queries.rows, self.queries.order.index_select(0, self.queries.rows)
        past = (self.keys.starts.diff() - self.layout.starts.diff()).long()  # by the device: a recording may ask it
        starts = self.layout.positions.index_select(0, rows_of)
        sequence = 0
        for n, rows, columns in paired_runs(self.queries.layout, self.keys):
            here, there = slice(at, at + n * rows), slice(column, column + n * columns)
            sequence, first = sequence + n, sequence
            at, column = here.stop, there.stop
            hidden = self.ranks[there].view(n, 1, columns) >= order[here].view(n, rows, 1)
            first_place = self.most - starts[here].view(n, rows) - past[first:sequence, None]
            mine = None if self.segments is None else self.segments[0].index_select(0, rows_of[here])
            found.append(Run(n, rows, columns, hidden, self._apart(mine, there, n), first_place))
        return found

    def _apart(self, mine: slice | Tensor | None, theirs: slice, number: int) -> Tensor | None:
        if self.segments is None or mine is None:
            return None
        own = self.segments[0][mine] if isinstance(mine, slice) else mine
        return own.view(number, -1, 1) != self.segments[1][theirs].view(number, 1, -1)


Shared = Relations | Tensor  # what a stack hands to each attention: relations, or what is added to scores by distance


@dataclass(frozen=True)
class NoRelationsSpec(Spec):
    def build(self, dim: int) -> NoRelations:
        return NoRelations()


class NoRelations(nn.Module):
    def forward(
        self, x: Tensor, layout: Layout, segments: Tensor | None, queries: Queries | None, cache: Cache | None
    ) -> tuple[Tensor, None]:
        if queries is not None:
            raise UserError("this model has no query stream, so it cannot predict in an order of its own")
        return x, None


@dataclass(frozen=True)
class RelationsSpec(Spec):
    """What stands on the stack: how distances are written, the offsets u and v where all depths share them
    (`shared` is their shape, heads by head_dim), and the vector that every place of a query stream starts from."""

    furthest: int = 0  # greater distances count as this one; 0 is none
    dropout: float = 0.0
    shared: tuple[int, ...] = ()
    stream: bool = False
    waves: bool = True  # distances are written as sinusoids; else each depth has a table of its own

    def build(self, dim: int) -> RelationsTable:
        return RelationsTable(self, dim)


class RelationsTable(nn.Module):
    def __init__(self, spec: RelationsSpec, dim: int):
        super().__init__()
        self.spec, self.dim = spec, dim
        self.u = nn.Parameter(torch.zeros(spec.shared)) if spec.shared else None
        self.v = nn.Parameter(torch.zeros(spec.shared)) if spec.shared else None
        self.start = nn.Parameter(torch.zeros(1, 1, dim)) if spec.stream else None
        self.dropout = nn.Dropout(spec.dropout)

    def vectors(self) -> list[nn.Parameter]:
        return [p for p in (self.u, self.v, self.start) if p is not None]

    def forward(
        self, x: Tensor, layout: Layout, segments: Tensor | None, queries: Queries | None, cache: Cache | None
    ) -> tuple[Tensor, Relations]:
        """The states with those of the query stream behind them, and what attention needs to know."""
        keys = layout if cache is None else cache.joined
        most, least = max(keys.lengths, default=0), 1 - max(layout.lengths, default=1)
        distances = torch.arange(most, least - 1, -1, device=x.device)
        if self.spec.furthest:
            distances = distances.clamp(-self.spec.furthest, self.spec.furthest)
        old = keys.total - layout.total
        ranks = None
        if queries is not None:
            if self.start is None:
                raise UserError("this model has no query stream, so it cannot predict in an order of its own")
            ranks = _behind(cache, queries.order, old, FIRST)
            x = torch.cat([x, self.dropout(self.start.view(1, -1).expand(len(queries.rows), -1)).to(x.dtype)])
        both = None if segments is None else (segments, _behind(cache, segments, old, 0))
        offsets = None if self.u is None or self.v is None else (self.u, self.v)
        waves = self.dropout(sinusoids(distances, self.dim, x.dtype)) if self.spec.waves else None
        return x, Relations(distances, waves, most, offsets, layout, keys, both, queries, ranks)


def _behind(cache: Cache | None, new: Tensor, old: int, value: int) -> Tensor:
    return new if cache is None else cache.behind(new.new_full((old,), value), new)


def sinusoids(places: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Vaswani et al. 2017, §3.5, with all sines before all cosines."""
    exact = torch.promote_types(dtype, torch.float32)
    rates = 10000 ** (-torch.arange(0, dim, 2, device=places.device, dtype=exact) / dim)
    angles = places.to(exact)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :dim].to(dtype)


@dataclass(frozen=True)
class RelativeAttentionSpec(Spec):
    num_heads: int
    head_dim: int = 0  # 0 is dim / num_heads
    dropout: float = 0.0  # on the probabilities
    causal: bool = False
    window: int = 0  # how far a query sees, on each side or back; 0 is all
    segments: bool = False  # scores know whether two tokens lie in one segment
    offsets: bool = True  # u and v of its own; else those of the stack, which may have none
    learned: int = 0  # a vector of its own for each distance up to this, which greater ones share; 0 is waves
    rotary: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        in_range("attention dropout", self.dropout, 0, 1)
        self.within(0, math.inf, "window", "head_dim", "learned")

    def width(self, dim: int) -> int:
        """All heads together."""
        return self.num_heads * self.head_dim or dim

    def build(self, dim: int) -> RelativeAttention:
        if self.num_heads < 1 or (not self.head_dim and dim % self.num_heads):
            raise UserError(f"num_heads is {self.num_heads}, which does not divide dim {dim}")
        return RelativeAttention(self, dim)


class RelativeAttention(nn.Module):
    """Attention to keys in the same sequence and in what is remembered of it, which is hidden states."""

    stacked: ClassVar = {"qkv": 3}  # how many matrices are one

    def __init__(self, spec: RelativeAttentionSpec, dim: int):
        super().__init__()
        self.spec = spec
        width = spec.width(dim)
        self.head_dim = width // spec.num_heads
        shape = spec.num_heads, self.head_dim
        self.qkv = nn.Linear(dim, 3 * width, bias=False)
        self.out = nn.Linear(width, dim, bias=False)
        self.behind = 0 if spec.causal else spec.learned  # how many of the learned distances are those of later keys
        rows = self.behind + spec.learned + 1
        self.distance = nn.Embedding(rows, width) if spec.learned else nn.Linear(dim, width, bias=False)
        self.u = nn.Parameter(torch.zeros(shape)) if spec.offsets else None
        self.v = nn.Parameter(torch.zeros(shape)) if spec.offsets else None
        self.s = nn.Parameter(torch.zeros(shape)) if spec.segments else None
        self.segments = nn.Parameter(torch.zeros(2, *shape)) if spec.segments else None

    def vectors(self) -> list[nn.Parameter]:
        return [p for p in (self.u, self.v, self.s, self.segments) if p is not None]

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        positions: Tensor,
        cache: Cache | None = None,
        relations: Shared | None = None,
    ) -> Tensor:
        assert isinstance(relations, Relations), "relative attention stands in a stack with relations"
        total = layout.total
        content = x if relations.queries is None else x[:total]
        source = content if cache is None else cache.extend(content)[0]
        q, k, v = self._project(x, source)
        r = self._far(relations)
        found = self._attend(q[:total], k, v, r, relations)
        if relations.queries is not None:
            found = torch.cat([found, self._attend(q[total:], k, v, r, relations, stream=True)])
        return self.out(found)

    def _far(self, relations: Relations) -> Tensor:
        """r of every distance, [distances, heads, head_dim]."""
        told = relations.waves
        if isinstance(self.distance, nn.Embedding):
            told = relations.distances.clamp(-self.behind, self.spec.learned) + self.behind
        elif told is None:
            raise UserError("attention without learned distances stands in a stack that has no waves for them")
        return self.distance(told).view(len(told), self.spec.num_heads, self.head_dim)

    def _project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, keys and values of the source, each [rows, heads, head_dim]."""
        heads, width = self.spec.num_heads, self.spec.num_heads * self.head_dim
        if source is x:
            q, k, v = self.qkv(x).view(len(x), 3, heads, -1).unbind(1)
        else:
            q = F.linear(x, self.qkv.weight[:width]).view(len(x), heads, -1)
            k, v = F.linear(source, self.qkv.weight[width:]).view(len(source), 2, heads, -1).unbind(1)
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, r: Tensor, relations: Relations, stream: bool = False) -> Tensor:
        runs = relations.runs(self.spec.causal, self.spec.window, stream)
        heads, dropout = self.spec.num_heads, self.spec.dropout if self.training else 0.0
        rows, columns = [run.number * run.rows for run in runs], [run.number * run.columns for run in runs]
        outputs = []
        for run, qs, ks, vs in zip(runs, q.split(rows), k.split(columns), v.split(columns)):
            if run.rows:
                weights = F.dropout(self._weights(run, qs, ks, r, relations), dropout)
                values = vs.view(run.number, run.columns, heads, -1).permute(2, 0, 1, 3).flatten(0, 1)
                found = torch.bmm(weights, values).view(heads, run.number * run.rows, -1)
                outputs.append(found.transpose(0, 1).flatten(1))
        return torch.cat(outputs) if outputs else q.flatten(1)

    def _weights(self, run: Run, q: Tensor, k: Tensor, r: Tensor, relations: Relations) -> Tensor:
        """Probabilities of one run, [heads · number, rows, columns]."""
        u, v = (self.u, self.v) if self.u is not None else relations.offsets or (None, None)
        if run.first is None:  # of all distances, those that occur
            least = 0 if self.spec.causal else 1 - run.rows
            r = r[relations.most - run.columns : relations.most - least + 1]
        n, rows, columns = run.number, run.rows, run.columns
        heads, head_dim = q.shape[1:]
        q = q * head_dim**-0.5

        def asked(offset: Tensor | None) -> Tensor:  # [heads, number · rows, head_dim]
            return (q if offset is None else q + offset * head_dim**-0.5).transpose(0, 1).contiguous()

        far = (asked(v) @ r.permute(1, 2, 0)).view(heads * n, rows, -1)  # (q + v)·r of all distances
        keys = k.view(n, columns, heads, head_dim).permute(2, 0, 3, 1).reshape(heads * n, head_dim, columns)
        content, more = asked(u).view(heads * n, rows, head_dim), None
        if self.s is not None and self.segments is not None and run.apart is not None:
            # what one segment adds is the same for all keys, and softmax does not see it: the difference counts
            more = (asked(self.s) @ (self.segments[1] - self.segments[0]).unsqueeze(-1)).view(heads * n, rows)
        if kernels.serve(q):
            scores = torch.bmm(content, keys)
            placed: Tensor = kernels.placed_softmax(scores, far, n, run.first, run.hidden, run.apart, more)
            return placed
        by_place = _skewed(far, columns) if run.first is None else _Placed.apply(far, run.first, columns)
        scores = torch.baddbmm(by_place, content, keys).view(heads, n, rows, columns)
        if more is not None and run.apart is not None:
            scores = scores + more.view(heads, n, rows, 1) * run.apart
        if run.hidden is None:
            return scores.softmax(-1).flatten(0, 1)
        weights = scores.masked_fill(run.hidden, torch.finfo(scores.dtype).min).softmax(-1)
        if run.first is not None:  # a place that sees nothing gets nothing
            weights = weights.masked_fill(run.hidden, 0)
        return weights.flatten(0, 1)

    def weights(self, x: Tensor, layout: Layout, relations: Shared | None = None) -> list[Tensor]:
        """The probabilities themselves, [heads, queries, keys] for each sequence: for pictures."""
        assert isinstance(relations, Relations) and relations.queries is None
        q, k, _ = self._project(x, x)
        r = self._far(relations)
        runs = relations.runs(self.spec.causal, self.spec.window)
        sizes = [run.number * run.rows for run in runs]
        found: list[Tensor] = []
        for run, qs, ks in zip(runs, q.split(sizes), k.split(sizes)):
            each = self._weights(run, qs, ks, r, relations).view(-1, run.number, run.rows, run.columns)
            found += each.unbind(1)
        return found


def _skewed(far: Tensor, columns: int) -> Tensor:
    """Row i holds distances columns … least and wants to begin rows − i later: without the first `rows` numbers,
    lines that are one number shorter do."""
    batch, rows, width = far.shape
    return far.reshape(batch, -1)[:, rows:].view(batch, rows, width - 1)[..., :columns]


class _Placed(torch.autograd.Function):
    """For each key the score at its place, [heads · number, rows, columns]: places rise by one from key to key.

    So the way back is a gather too: each place has at most one key, whereas adding up at random places is slow.
    """

    @staticmethod
    def forward(ctx: Any, far: Tensor, first: Tensor, columns: int) -> Tensor:
        n, rows = first.shape
        ctx.save_for_backward(first)
        ctx.width = far.shape[-1]
        places = first.unsqueeze(-1) + torch.arange(columns, device=far.device)
        found = far.view(-1, n, rows, ctx.width).gather(-1, places.expand(len(far) // n, -1, -1, -1))
        return found.view(-1, rows, columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (first,) = ctx.saved_tensors
        n, rows = first.shape
        columns = grad.shape[-1]
        key = torch.arange(ctx.width, device=grad.device) - first.unsqueeze(-1)
        outside = (key < 0) | (key >= columns)
        by_key = grad.reshape(-1, n, rows, columns)
        found = by_key.gather(-1, key.clamp(0, columns - 1).expand(len(by_key), -1, -1, -1))
        return found.masked_fill(outside, 0).view(-1, rows, ctx.width), None, None
