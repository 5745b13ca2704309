"""Attention that knows how far apart two tokens are, by scores that depend on the query (Dai et al. 2019, §3.3).

The score of query i and key j is (q + u)·k + (q + v)·r(i − j), and where relative segments are asked for
(Yang et al. 2019, §2.5) (q + s)·g of whether the two lie in one segment. r is a projected sinusoid, or learned for each
distance (Huang et al. 2018, §3.4, without u and v). Sequences of equal length that are neighbours are one dense batch;
r is met once for each distance, and its scores are skewed into place, so no vector is held for each pair of tokens.

In two-stream attention (Yang et al. 2019, §2.3) the rows of a query stream stand behind those of the tokens, in
one matrix: they ask, but are never asked. A `RelativePositionContext` is what all depths of one reading share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config, check_in_range
from polyseme.errors import ConfigError, UnsupportedError
from polyseme.nn import kernels
from polyseme.nn.attention.attend import equal_length_pairs, visibility_mask
from polyseme.nn.memory import LayerCache
from polyseme.nn.packing import PackedLayout

MEMORY_RANK = torch.iinfo(torch.int64).min  # the rank of what is remembered: before every other


@dataclass(frozen=True, eq=False)
class QueryStream:
    """A query stream: the places to be predicted, each from what stands before it in an order of factorisation.

    Tokens of one rank see each other; a place in the query stream sees lower ranks alone, so never its own token.
    """

    rank: Tensor  # int64 [T]: the rank of each token
    target_positions: Tensor  # int64 [P]: the tokens that are predicted
    layout: PackedLayout  # how many of them each sequence has


@dataclass(frozen=True, eq=False)
class EqualLengthRun:
    """Neighbours alike in length: `num_sequences` sequences of `num_queries` queries and `num_keys` keys."""

    num_sequences: int
    num_queries: int
    num_keys: int
    masked_out: Tensor | None  # bool, [rows, columns] or one for each sequence: what is not seen
    different_segment: Tensor | None = None  # bool [number, rows, columns]: in different segments
    distance_start: Tensor | None = (
        None  # int64 [number, rows], of a query stream: where in the table of distances keys begin
    )


@dataclass(frozen=True, eq=False)
class RelativePositionContext:
    """What the depths share: the distances from the greatest to the least, how they are written, who sees whom."""

    distances: Tensor  # int64, falling by one
    sinusoids: Tensor | None  # [distances, dim], where no depth has vectors of its own
    largest_distance: int  # the first distance
    uv_biases: tuple[Tensor, Tensor] | None  # u and v, where all depths share them
    layout: PackedLayout
    key_layout: PackedLayout  # of the tokens and, before them, what is remembered
    segments: tuple[Tensor, Tensor] | None  # of the tokens and of the keys
    query_stream: QueryStream | None
    key_ranks: Tensor | None  # of the keys
    run_cache: dict[tuple[bool, int, bool], list[EqualLengthRun]] = field(default_factory=dict)

    def get_runs(self, causal: bool, window: int, is_query_stream: bool = False) -> list[EqualLengthRun]:
        """The runs of the tokens, or of the query stream; worked out at the first depth that asks."""
        key = causal, window, is_query_stream
        if key not in self.run_cache:
            self.run_cache[key] = self._query_runs() if is_query_stream else self._token_runs(causal, window)
        return self.run_cache[key]

    def _token_runs(self, causal: bool, window: int) -> list[EqualLengthRun]:
        runs, query_offset, key_offset = [], 0, 0
        device = self.distances.device
        for n, num_queries, num_keys in equal_length_pairs(self.layout, self.key_layout):
            query_slice, key_slice = (
                slice(query_offset, query_offset + n * num_queries),
                slice(key_offset, key_offset + n * num_keys),
            )
            visible = visibility_mask(num_queries, num_keys, causal, window, device)
            masked_out = None if visible is None else ~visible
            if self.query_stream is not None and self.key_ranks is not None:
                rank = self.query_stream.rank[query_slice].view(n, num_queries, 1)
                is_later = self.key_ranks[key_slice].view(n, 1, num_keys) > rank
                masked_out = is_later if masked_out is None else masked_out | is_later
            runs.append(
                EqualLengthRun(n, num_queries, num_keys, masked_out, self._different_segment(query_slice, key_slice, n))
            )
            query_offset, key_offset = query_slice.stop, key_slice.stop
        return runs

    def _query_runs(self) -> list[EqualLengthRun]:
        assert self.query_stream is not None and self.key_ranks is not None
        runs, query_offset, key_offset = [], 0, 0
        target_positions, rank = (
            self.query_stream.target_positions,
            self.query_stream.rank.index_select(0, self.query_stream.target_positions),
        )
        num_past = (
            self.key_layout.cu_seqlens.diff() - self.layout.cu_seqlens.diff()
        ).long()  # by the device: a recording may ask it
        positions = self.layout.positions.index_select(0, target_positions)
        sequence_end = 0
        for n, num_queries, num_keys in equal_length_pairs(self.query_stream.layout, self.key_layout):
            query_slice, key_slice = (
                slice(query_offset, query_offset + n * num_queries),
                slice(key_offset, key_offset + n * num_keys),
            )
            sequence_end, sequence_start = sequence_end + n, sequence_end
            query_offset, key_offset = query_slice.stop, key_slice.stop
            masked_out = self.key_ranks[key_slice].view(n, 1, num_keys) >= rank[query_slice].view(n, num_queries, 1)
            distance_start = (
                self.largest_distance
                - positions[query_slice].view(n, num_queries)
                - num_past[sequence_start:sequence_end, None]
            )
            query_segments = (
                None if self.segments is None else self.segments[0].index_select(0, target_positions[query_slice])
            )
            runs.append(
                EqualLengthRun(
                    n,
                    num_queries,
                    num_keys,
                    masked_out,
                    self._different_segment(query_segments, key_slice, n),
                    distance_start,
                )
            )
        return runs

    def _different_segment(self, queries: slice | Tensor | None, key_slice: slice, num_sequences: int) -> Tensor | None:
        if self.segments is None or queries is None:
            return None
        query_segments = self.segments[0][queries] if isinstance(queries, slice) else queries
        return query_segments.view(num_sequences, -1, 1) != self.segments[1][key_slice].view(num_sequences, 1, -1)


PositionInfo = (
    RelativePositionContext | Tensor
)  # what a stack hands to each attention: relative positions, or what is added to scores by distance


@dataclass(frozen=True)
class NoPositionBiasConfig(Config):
    def build(self, dim: int) -> NoPositionBias:
        return NoPositionBias()


class NoPositionBias(nn.Module):
    def forward(
        self,
        x: Tensor,
        layout: PackedLayout,
        segments: Tensor | None,
        query_stream: QueryStream | None,
        cache: LayerCache | None,
    ) -> tuple[Tensor, None]:
        if query_stream is not None:
            raise UnsupportedError("this model has no query stream, so it cannot predict in an order of its own")
        return x, None


@dataclass(frozen=True)
class RelativePositionConfig(Config):
    """What stands on the stack: how distances are written, the offsets u and v where all depths share them
    (`uv_bias_shape` is their shape, heads by head_dim), and the vector that every place of a query stream starts
    from."""

    max_distance: int = 0  # greater distances count as this one; 0 is none
    dropout: float = 0.0
    uv_bias_shape: tuple[int, ...] = ()
    two_stream: bool = False
    has_sinusoids: bool = True  # distances are written as sinusoids; else each depth has a table of its own

    def build(self, dim: int) -> RelativePositionLayer:
        return RelativePositionLayer(self, dim)


class RelativePositionLayer(nn.Module):
    def __init__(self, config: RelativePositionConfig, dim: int):
        super().__init__()
        self.config, self.dim = config, dim
        self.u = nn.Parameter(torch.zeros(config.uv_bias_shape)) if config.uv_bias_shape else None
        self.v = nn.Parameter(torch.zeros(config.uv_bias_shape)) if config.uv_bias_shape else None
        self.mask_emb = nn.Parameter(torch.zeros(1, 1, dim)) if config.two_stream else None
        self.dropout = nn.Dropout(config.dropout)

    def normal_init_params(self) -> list[nn.Parameter]:
        return [p for p in (self.u, self.v, self.mask_emb) if p is not None]

    def forward(
        self,
        x: Tensor,
        layout: PackedLayout,
        segments: Tensor | None,
        query_stream: QueryStream | None,
        cache: LayerCache | None,
    ) -> tuple[Tensor, RelativePositionContext]:
        """The states with those of the query stream behind them, and what attention needs to know."""
        key_layout = layout if cache is None else cache.full_layout
        largest_distance, smallest_distance = max(key_layout.lengths, default=0), 1 - max(layout.lengths, default=1)
        distances = torch.arange(largest_distance, smallest_distance - 1, -1, device=x.device)
        if self.config.max_distance:
            distances = distances.clamp(-self.config.max_distance, self.config.max_distance)
        num_past = key_layout.num_tokens - layout.num_tokens
        key_ranks = None
        if query_stream is not None:
            if self.mask_emb is None:
                raise UnsupportedError("this model has no query stream, so it cannot predict in an order of its own")
            key_ranks = _append_to_past(cache, query_stream.rank, num_past, MEMORY_RANK)
            x = torch.cat(
                [x, self.dropout(self.mask_emb.view(1, -1).expand(len(query_stream.target_positions), -1)).to(x.dtype)]
            )
        segment_pair = None if segments is None else (segments, _append_to_past(cache, segments, num_past, 0))
        uv_biases = None if self.u is None or self.v is None else (self.u, self.v)
        waves = (
            self.dropout(sinusoidal_distance_embedding(distances, self.dim, x.dtype))
            if self.config.has_sinusoids
            else None
        )
        return x, RelativePositionContext(
            distances, waves, largest_distance, uv_biases, layout, key_layout, segment_pair, query_stream, key_ranks
        )


def _append_to_past(cache: LayerCache | None, values: Tensor, num_past: int, fill_value: int) -> Tensor:
    return values if cache is None else cache.append(values.new_full((num_past,), fill_value), values)


def sinusoidal_distance_embedding(distances: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Vaswani et al. 2017, §3.5, with all sines before all cosines."""
    angle_dtype = torch.promote_types(dtype, torch.float32)
    frequencies = 10000 ** (-torch.arange(0, dim, 2, device=distances.device, dtype=angle_dtype) / dim)
    angles = distances.to(angle_dtype)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :dim].to(dtype)


@dataclass(frozen=True)
class RelativeAttentionConfig(Config):
    num_heads: int
    head_dim: int = 0  # 0 is dim / num_heads
    dropout: float = 0.0  # on the probabilities
    causal: bool = False
    window: int = 0  # how far a query sees, on each side or back; 0 is all
    has_segment_bias: bool = False  # scores know whether two tokens lie in one segment
    has_uv_biases: bool = True  # u and v of its own; else those of the stack, which may have none
    max_learned_distance: int = (
        0  # a vector of its own for each distance up to this, which greater ones share; 0 is waves
    )
    rope_theta: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_in_range("attention dropout", self.dropout, 0, 1)
        self.check_range(0, math.inf, "window", "head_dim", "max_learned_distance")

    def inner_dim(self, dim: int) -> int:
        """All heads together."""
        return self.num_heads * self.head_dim or dim

    def build(self, dim: int) -> RelativeAttention:
        if self.num_heads < 1 or (not self.head_dim and dim % self.num_heads):
            raise ConfigError(f"num_heads is {self.num_heads}, which does not divide dim {dim}")
        return RelativeAttention(self, dim)


class RelativeAttention(nn.Module):
    """Attention to keys in the same sequence and in what is remembered of it, which is hidden states."""

    fused_count: ClassVar = {"qkv": 3}  # how many matrices are one

    def __init__(self, config: RelativeAttentionConfig, dim: int):
        super().__init__()
        self.config = config
        inner_dim = config.inner_dim(dim)
        self.head_dim = inner_dim // config.num_heads
        shape = config.num_heads, self.head_dim
        self.qkv = nn.Linear(dim, 3 * inner_dim, bias=False)
        self.out = nn.Linear(inner_dim, dim, bias=False)
        self.num_future_distances = (
            0 if config.causal else config.max_learned_distance
        )  # how many of the learned distances are those of later keys
        num_distances = self.num_future_distances + config.max_learned_distance + 1
        self.distance = (
            nn.Embedding(num_distances, inner_dim)
            if config.max_learned_distance
            else nn.Linear(dim, inner_dim, bias=False)
        )
        self.u = nn.Parameter(torch.zeros(shape)) if config.has_uv_biases else None
        self.v = nn.Parameter(torch.zeros(shape)) if config.has_uv_biases else None
        self.s = nn.Parameter(torch.zeros(shape)) if config.has_segment_bias else None
        self.segments = nn.Parameter(torch.zeros(2, *shape)) if config.has_segment_bias else None

    def normal_init_params(self) -> list[nn.Parameter]:
        return [p for p in (self.u, self.v, self.s, self.segments) if p is not None]

    def forward(
        self,
        x: Tensor,
        layout: PackedLayout,
        positions: Tensor,
        cache: LayerCache | None = None,
        position_info: PositionInfo | None = None,
    ) -> Tensor:
        assert isinstance(position_info, RelativePositionContext), (
            "relative attention stands in a stack with relative positions"
        )
        num_tokens = layout.num_tokens
        content = x if position_info.query_stream is None else x[:num_tokens]
        source = content if cache is None else cache.extend(content)[0]
        q, k, v = self._project(x, source)
        r = self._distance_keys(position_info)
        attended = self._attend(q[:num_tokens], k, v, r, position_info)
        if position_info.query_stream is not None:
            attended = torch.cat([attended, self._attend(q[num_tokens:], k, v, r, position_info, is_query_stream=True)])
        return self.out(attended)

    def _distance_keys(self, position_info: RelativePositionContext) -> Tensor:
        """r of every distance, [distances, heads, head_dim]."""
        distance_inputs = position_info.sinusoids
        if isinstance(self.distance, nn.Embedding):
            distance_inputs = (
                position_info.distances.clamp(-self.num_future_distances, self.config.max_learned_distance)
                + self.num_future_distances
            )
        elif distance_inputs is None:
            raise ConfigError("attention without learned distances stands in a stack that has no waves for them")
        return self.distance(distance_inputs).view(len(distance_inputs), self.config.num_heads, self.head_dim)

    def _project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, keys and values of the source, each [rows, heads, head_dim]."""
        heads, inner_dim = self.config.num_heads, self.config.num_heads * self.head_dim
        if source is x:
            q, k, v = self.qkv(x).view(len(x), 3, heads, -1).unbind(1)
        else:
            q = F.linear(x, self.qkv.weight[:inner_dim]).view(len(x), heads, -1)
            k, v = F.linear(source, self.qkv.weight[inner_dim:]).view(len(source), 2, heads, -1).unbind(1)
        return q, k, v

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        r: Tensor,
        position_info: RelativePositionContext,
        is_query_stream: bool = False,
    ) -> Tensor:
        runs = position_info.get_runs(self.config.causal, self.config.window, is_query_stream)
        heads, dropout = self.config.num_heads, self.config.dropout if self.training else 0.0
        num_queries, num_keys = (
            [run.num_sequences * run.num_queries for run in runs],
            [run.num_sequences * run.num_keys for run in runs],
        )
        outputs = []
        for run, qs, ks, vs in zip(runs, q.split(num_queries), k.split(num_keys), v.split(num_keys)):
            if run.num_queries:
                weights = F.dropout(self._run_weights(run, qs, ks, r, position_info), dropout)
                values = vs.view(run.num_sequences, run.num_keys, heads, -1).permute(2, 0, 1, 3).flatten(0, 1)
                attended = torch.bmm(weights, values).view(heads, run.num_sequences * run.num_queries, -1)
                outputs.append(attended.transpose(0, 1).flatten(1))
        return torch.cat(outputs) if outputs else q.flatten(1)

    def _run_weights(
        self, run: EqualLengthRun, q: Tensor, k: Tensor, r: Tensor, position_info: RelativePositionContext
    ) -> Tensor:
        """Probabilities of one run, [heads · number, rows, columns]."""
        u, v = (self.u, self.v) if self.u is not None else position_info.uv_biases or (None, None)
        if run.distance_start is None:  # of all distances, those that occur
            smallest_distance = 0 if self.config.causal else 1 - run.num_queries
            r = r[
                position_info.largest_distance - run.num_keys : position_info.largest_distance - smallest_distance + 1
            ]
        n, num_queries, num_keys = run.num_sequences, run.num_queries, run.num_keys
        heads, head_dim = q.shape[1:]
        q = q * head_dim**-0.5

        def biased_queries(bias: Tensor | None) -> Tensor:  # [heads, number · rows, head_dim]
            return (q if bias is None else q + bias * head_dim**-0.5).transpose(0, 1).contiguous()

        distance_scores = (biased_queries(v) @ r.permute(1, 2, 0)).view(
            heads * n, num_queries, -1
        )  # (q + v)·r of all distances
        keys = k.view(n, num_keys, heads, head_dim).permute(2, 0, 3, 1).reshape(heads * n, head_dim, num_keys)
        content, segment_scores = biased_queries(u).view(heads * n, num_queries, head_dim), None
        if self.s is not None and self.segments is not None and run.different_segment is not None:
            # what one segment adds is the same for all keys, and softmax does not see it: the difference counts
            segment_scores = (biased_queries(self.s) @ (self.segments[1] - self.segments[0]).unsqueeze(-1)).view(
                heads * n, num_queries
            )
        if kernels.supports(q):
            scores = torch.bmm(content, keys)
            probs: Tensor = kernels.relative_softmax(
                scores, distance_scores, n, run.distance_start, run.masked_out, run.different_segment, segment_scores
            )
            return probs
        distance_bias = (
            _relative_shift(distance_scores, num_keys)
            if run.distance_start is None
            else _GatherByDistance.apply(distance_scores, run.distance_start, num_keys)
        )
        scores = torch.baddbmm(distance_bias, content, keys).view(heads, n, num_queries, num_keys)
        if segment_scores is not None and run.different_segment is not None:
            scores = scores + segment_scores.view(heads, n, num_queries, 1) * run.different_segment
        if run.masked_out is None:
            return scores.softmax(-1).flatten(0, 1)
        weights = scores.masked_fill(run.masked_out, torch.finfo(scores.dtype).min).softmax(-1)
        if run.distance_start is not None:  # a place that sees nothing gets nothing
            weights = weights.masked_fill(run.masked_out, 0)
        return weights.flatten(0, 1)

    def weights(self, x: Tensor, layout: PackedLayout, position_info: PositionInfo | None = None) -> list[Tensor]:
        """The probabilities themselves, [heads, queries, keys] for each sequence: for pictures."""
        assert isinstance(position_info, RelativePositionContext) and position_info.query_stream is None
        q, k, _ = self._project(x, x)
        r = self._distance_keys(position_info)
        runs = position_info.get_runs(self.config.causal, self.config.window)
        sizes = [run.num_sequences * run.num_queries for run in runs]
        sequence_weights: list[Tensor] = []
        for run, qs, ks in zip(runs, q.split(sizes), k.split(sizes)):
            run_weights = self._run_weights(run, qs, ks, r, position_info).view(
                -1, run.num_sequences, run.num_queries, run.num_keys
            )
            sequence_weights += run_weights.unbind(1)
        return sequence_weights


def _relative_shift(distance_scores: Tensor, num_keys: int) -> Tensor:
    """Row i holds distances columns … least and wants to begin rows − i later: without the first `num_queries` numbers,
    lines that are one number shorter do."""
    batch, num_queries, num_distances = distance_scores.shape
    return distance_scores.reshape(batch, -1)[:, num_queries:].view(batch, num_queries, num_distances - 1)[
        ..., :num_keys
    ]


class _GatherByDistance(torch.autograd.Function):
    """For each key the score at its place, [heads · number, rows, columns]: places rise by one from key to key.

    So the way back is a gather too: each place has at most one key, whereas adding up at random places is slow.
    """

    @staticmethod
    def forward(ctx: Any, distance_scores: Tensor, distance_start: Tensor, num_keys: int) -> Tensor:
        n, num_queries = distance_start.shape
        ctx.save_for_backward(distance_start)
        ctx.width = distance_scores.shape[-1]
        distance_index = distance_start.unsqueeze(-1) + torch.arange(num_keys, device=distance_scores.device)
        scores = distance_scores.view(-1, n, num_queries, ctx.width).gather(
            -1, distance_index.expand(len(distance_scores) // n, -1, -1, -1)
        )
        return scores.view(-1, num_queries, num_keys)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (distance_start,) = ctx.saved_tensors
        n, num_queries = distance_start.shape
        num_keys = grad_output.shape[-1]
        key_index = torch.arange(ctx.width, device=grad_output.device) - distance_start.unsqueeze(-1)
        outside = (key_index < 0) | (key_index >= num_keys)
        by_key = grad_output.reshape(-1, n, num_queries, num_keys)
        grad_distance = by_key.gather(-1, key_index.clamp(0, num_keys - 1).expand(len(by_key), -1, -1, -1))
        return grad_distance.masked_fill(outside, 0).view(-1, num_queries, ctx.width), None, None
