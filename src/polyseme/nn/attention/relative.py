"""Relative attention, whose position scores depend on the query (Dai et al. 2019, §3.3).

The score of query i and key j is (q + u)·k + (q + v)·r(i − j), plus, with relative segments (Yang et al. 2019, §2.5),
(q + s)·g(same segment or not). r is a projected sinusoid, or learned for each distance (Huang et al. 2018, §3.4,
without u and v). Adjacent sequences of equal length form one dense batch; the product with r is computed once for each
distance and its scores are skewed into place, so no vector is stored for each pair of tokens.

In two-stream attention (Yang et al. 2019, §2.3) the rows of the query stream follow those of the tokens in one matrix;
they serve as queries, never as keys. All layers share one `RelativePositionContext` during a forward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn import kernels
from polyseme.nn.attention import attend
from polyseme.nn.attention.attend import equal_length_pairs, visibility_mask
from polyseme.nn.attention.groups import PaddedGroup, group_sequences, prefers_padding
from polyseme.nn.attention.multihead import BaseAttention, BaseAttentionConfig
from polyseme.nn.attention.terms import AttentionTerms, split_heads
from polyseme.nn.layers.positions import sinusoidal_embedding
from polyseme.nn.memory import LayerCache
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.padding import PaddedLayout

Rows = slice | Tensor
MEMORY_RANK = torch.iinfo(torch.int64).min  # rank of tokens in memory: before all others


@dataclass(frozen=True, eq=False)
class QueryStream:
    """Query stream of two-stream attention: each target is predicted from the tokens before it in the factorization.

    Tokens of equal rank attend to each other; a target attends only to lower ranks, so never to its own token.
    """

    rank: Tensor  # int64 [T], position of each token in the factorization order
    target_positions: Tensor  # int64 [P], indices of the predicted tokens
    layout: PackedLayout  # number of targets in each sequence


@dataclass(frozen=True, eq=False)
class EqualLengthRun:
    """`num_sequences` adjacent sequences with `num_queries` queries and `num_keys` keys each, or padded to them."""

    num_sequences: int
    num_queries: int
    num_keys: int
    masked_out: Tensor | None  # bool [queries, keys] or [sequences, queries, keys]: pairs that are not attended
    different_segment: Tensor | None  # bool [sequences, queries, keys]
    distance_start: Tensor | None  # int64 [sequences, queries], query stream only: table index of the first distance
    distance_index: Tensor | None = None  # int64 [sequences or 1, queries, keys], padded batch only: that of each key
    group: PaddedGroup | None = None  # of sequences that are padded, on a GPU

    @property
    def num_rows(self) -> tuple[int, int]:
        """Numbers of packed queries and keys."""
        if self.group is not None:
            return self.group.queries.num_rows, self.group.keys.num_rows
        return self.num_sequences * self.num_queries, self.num_sequences * self.num_keys


@dataclass(frozen=True, eq=False)
class RelativePositionContext:
    """Distances, embeddings and masks that all layers share during one forward pass."""

    distances: Tensor  # int64, decreasing by 1
    sinusoids: Tensor | None  # [distances, dim]; None if each layer learns its own distance vectors
    uv_biases: tuple[Tensor, Tensor] | None  # u and v, if all layers share them
    inputs: Inputs
    key_layout: PackedLayout  # of memory followed by the tokens
    key_segments: Tensor | None
    key_ranks: Tensor | None  # factorization ranks of the keys
    run_cache: dict[tuple[bool, int, bool], list[EqualLengthRun]] = field(default_factory=dict)

    @property
    def largest_distance(self) -> int:
        """The first distance."""
        return self.key_layout.longest

    def get_runs(self, causal: bool, window: int, is_query_stream: bool = False) -> list[EqualLengthRun]:
        """Return the runs of the tokens or of the query stream, computed by the first layer and then cached."""
        key = causal, window, is_query_stream
        if key not in self.run_cache:
            self.run_cache[key] = self._compute_runs(*key)
        return self.run_cache[key]

    def _compute_runs(self, causal: bool, window: int, is_query_stream: bool) -> list[EqualLengthRun]:
        layout, segments, stream = self.inputs.layout, self.inputs.segments, self.inputs.query_stream
        if isinstance(layout, PaddedLayout):
            return [self._padded_run(layout, causal, window)]
        query_layout, positions, ranks = layout, None, None if stream is None else stream.rank
        if is_query_stream and stream is not None:
            query_layout, targets = stream.layout, stream.target_positions
            ranks = stream.rank.index_select(0, targets) - 1  # not its own rank
            segments = None if segments is None else segments.index_select(0, targets)
            # on the device, so that a CUDA graph can capture it
            num_past = (self.key_layout.cu_seqlens.diff() - layout.cu_seqlens.diff()).long()
            num_past = num_past.index_select(0, layout.sequence_ids.index_select(0, targets))
            positions = layout.positions.index_select(0, targets) + num_past
        pairs, groups = equal_length_pairs(query_layout, self.key_layout), list[PaddedGroup]()
        has_many_lengths = layout.has_static_shape or len(pairs) > 1
        if has_many_lengths and self.key_layout is layout and prefers_padding(self.distances):  # without memory
            groups = group_sequences(query_layout, layout)
            pairs = [(group.num_sequences, group.queries.length, group.keys.length) for group in groups]
        runs, query_stop, key_stop = [], 0, 0
        for i, (n, num_queries, num_keys) in enumerate(pairs):
            queries: Rows = slice(query_stop, query_stop := query_stop + n * num_queries)
            keys: Rows = slice(key_stop, key_stop := key_stop + n * num_keys)
            masked_out = different_segment = distance_start = None
            if not is_query_stream:
                visible = visibility_mask(num_queries, num_keys, causal, window, self.distances.device)
                masked_out = None if visible is None else ~visible
            if groups:
                queries, keys = (side.padded_to_packed + side.start for side in (groups[i].queries, groups[i].keys))
                is_padding = groups[i].keys.is_padding[:, None].expand(-1, num_queries, -1).contiguous()
                masked_out = is_padding if masked_out is None else masked_out | is_padding
            if ranks is not None and self.key_ranks is not None:
                is_later = self.key_ranks[keys].view(n, 1, num_keys) > ranks[queries].view(n, num_queries, 1)
                masked_out = is_later if masked_out is None else masked_out | is_later
            if segments is not None and self.key_segments is not None:
                different_segment = segments[queries].view(n, -1, 1) != self.key_segments[keys].view(n, 1, -1)
            if positions is not None:
                distance_start = self.largest_distance - positions[queries].view(n, num_queries)
            group = groups[i] if groups else None
            runs.append(
                EqualLengthRun(n, num_queries, num_keys, masked_out, different_segment, distance_start, group=group)
            )
        return runs

    def _padded_run(self, layout: PaddedLayout, causal: bool, window: int) -> EqualLengthRun:
        """Return a padded batch as one run, without a query stream."""
        keys: Any = self.key_layout
        distance = layout.distances_to(keys)  # [B or 1, queries, keys], of the key from the query
        visible = keys.mask[:, None]
        if causal or window:
            visible = visible & (distance <= (0 if causal else window))
        visible = visible & (distance >= -window) if window else visible
        segments = None if self.inputs.segments is None else layout.unflatten(self.inputs.segments)
        different_segment = None if segments is None else segments[:, :, None] != segments[:, None]
        index = distance.clamp(max=layout.max_seqlen - 1) + self.largest_distance
        n, num_queries = layout.mask.shape
        return EqualLengthRun(n, num_queries, keys.max_seqlen, ~visible, different_segment, None, index)


# what a stack passes to each attention layer: relative positions, a score bias by relative position, or nothing
PositionInfo = RelativePositionContext | Tensor | None


@dataclass(frozen=True)
class RelativePositionConfig(Config):
    """Relative positions of a stack: distance embeddings, shared biases u and v, and the start of the query stream."""

    max_distance: int = 0  # larger distances are clamped to this one; 0 means no limit
    dropout: float = 0.0
    uv_bias_shape: tuple[int, ...] = ()  # (heads, head_dim) of u and v if all layers share them
    two_stream: bool = False  # has a query stream, whose targets start from the learned vector `mask_emb`
    has_sinusoids: bool = True  # sinusoidal distance embeddings; otherwise each layer has a learned table

    def build(self, dim: int) -> RelativePositionLayer:
        return RelativePositionLayer(self, dim)


class RelativePositionLayer(nn.Module):
    """Prepares the `RelativePositionContext` of a forward pass."""

    normal_init: ClassVar = ("u", "v", "mask_emb")

    def __init__(self, config: RelativePositionConfig, dim: int):
        super().__init__()
        self.config, self.dim = config, dim
        self.u = nn.Parameter(torch.zeros(config.uv_bias_shape)) if config.uv_bias_shape else None
        self.v = nn.Parameter(torch.zeros(config.uv_bias_shape)) if config.uv_bias_shape else None
        self.mask_emb = nn.Parameter(torch.zeros(1, 1, dim)) if config.two_stream else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: Inputs, cache: LayerCache | None) -> tuple[Tensor, RelativePositionContext]:
        """Return x followed by the rows of the query stream, and the context for the attention layers."""
        layout, segments, query_stream = inputs.layout, inputs.segments, inputs.query_stream
        key_layout = layout if cache is None else cache.full_layout
        smallest_distance = 1 - (layout.longest if layout.is_padded else max(layout.longest, 1))
        distances = torch.arange(key_layout.longest, smallest_distance - 1, -1, device=x.device)
        if self.config.max_distance:
            distances = distances.clamp(-self.config.max_distance, self.config.max_distance)

        def append_to_past(values: Tensor, fill_value: int) -> Tensor:
            past_shape = (key_layout.num_tokens - layout.num_tokens,)
            return values if cache is None else cache.append(values.new_full(past_shape, fill_value), values)

        key_ranks = None
        if query_stream is not None:
            assert self.mask_emb is not None, "a query stream needs `two_stream`"
            key_ranks = append_to_past(query_stream.rank, MEMORY_RANK)
            targets = self.mask_emb.view(1, -1).expand(len(query_stream.target_positions), -1)
            x = torch.cat([x, self.dropout(targets).to(x.dtype)])
        key_segments = None if segments is None else append_to_past(segments, 0)
        uv_biases = None if self.u is None or self.v is None else (self.u, self.v)
        sinusoids = None
        if self.config.has_sinusoids:
            sinusoids = self.dropout(sinusoidal_embedding(distances, self.dim, x.dtype, interleaved=False))
        return x, RelativePositionContext(distances, sinusoids, uv_biases, inputs, key_layout, key_segments, key_ranks)


@dataclass(frozen=True)
class RelativeAttentionConfig(BaseAttentionConfig):
    """Attention with query-dependent relative positions."""

    has_segment_bias: bool = False  # scores depend on whether two tokens are in the same segment
    has_uv_biases: bool = True  # learns u and v; otherwise uses those of the stack, if any
    max_learned_distance: int = 0  # the last distance with a vector of its own; 0 means projected sinusoids
    rope_theta: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range(0, math.inf, "max_learned_distance")

    def build(self, dim: int) -> RelativeAttention:
        return RelativeAttention(self, dim)


class RelativeAttention(BaseAttention):
    """Attention to the tokens of the sequence and to its memory, which holds hidden states."""

    normal_init: ClassVar = ("u", "v", "s", "segments")

    def __init__(self, config: RelativeAttentionConfig, dim: int):
        super().__init__(config, dim, bias=False)
        self.head_dim = self.inner_dim // config.num_heads
        shape = config.num_heads, self.head_dim
        self.num_future_distances = 0 if config.causal else config.max_learned_distance
        num_distances = self.num_future_distances + config.max_learned_distance + 1
        is_learned, size = config.max_learned_distance > 0, self.inner_dim
        self.distance = nn.Embedding(num_distances, size) if is_learned else nn.Linear(dim, size, bias=False)
        self.u = nn.Parameter(torch.zeros(shape)) if config.has_uv_biases else None
        self.v = nn.Parameter(torch.zeros(shape)) if config.has_uv_biases else None
        self.s = nn.Parameter(torch.zeros(shape)) if config.has_segment_bias else None
        self.segments = nn.Parameter(torch.zeros(2, *shape)) if config.has_segment_bias else None

    def forward(
        self, x: Tensor, layout: PackedLayout, positions: Tensor, cache: LayerCache | None, position_info: PositionInfo
    ) -> Tensor:
        """Attend from x, [T, dim] or [T + P, dim] with a query stream."""
        assert isinstance(position_info, RelativePositionContext), "relative attention needs a RelativePositionContext"
        num_tokens = layout.num_tokens
        content = x if position_info.inputs.query_stream is None else x[:num_tokens]
        source = content if cache is None else cache.extend(content)[0]
        if source is x:
            q, k, v = self._project(x).unbind(1)
        else:
            q, (k, v) = self._project(x, 0, 1)[:, 0], self._project(source, 1, 3).unbind(1)
        r = self._distance_keys(position_info)
        attended = self._attend(q[:num_tokens], k, v, r, position_info, False)
        if position_info.inputs.query_stream is not None:
            attended = torch.cat([attended, self._attend(q[num_tokens:], k, v, r, position_info, True)])
        return self.out(attended)

    def _distance_keys(self, position_info: RelativePositionContext) -> Tensor:
        """Return r for each distance, [distances, heads, head_dim]."""
        distance_inputs, num_future = position_info.sinusoids, self.num_future_distances
        if isinstance(self.distance, nn.Embedding):
            distances = position_info.distances.clamp(-num_future, self.config.max_learned_distance)
            distance_inputs = distances + num_future
        elif distance_inputs is None:
            raise ConfigError("either max_learned_distance or has_sinusoids has to provide distance embeddings")
        return self.distance(distance_inputs).view(distance_inputs.shape[0], self.config.num_heads, self.head_dim)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, r: Tensor, context: RelativePositionContext, is_query_stream: bool
    ) -> Tensor:
        """Return the attended values [rows, heads · head_dim] of the tokens or of the query stream."""
        runs = context.get_runs(self.config.causal, self.config.window, is_query_stream)
        heads, dropout = self.config.num_heads, self._dropout
        sizes = [run.num_rows for run in runs]
        num_queries, num_keys = zip(*sizes) if sizes else ((), ())
        outputs = []
        for run, qs, ks, vs in zip(runs, q.split(num_queries), k.split(num_keys), v.split(num_keys)):
            if not run.num_queries:
                continue
            if run.group is None:  # [heads, rows, head_dim]
                qs, ks, vs = (x.transpose(0, 1) for x in (qs, ks, vs))
            else:
                qs, ks, vs = run.group.queries.pad(qs), run.group.keys.pad(ks), run.group.keys.pad(vs)
            weights = F.dropout(self._run_weights(run, qs.flatten(1, -2), ks, r, context), dropout)
            attended = torch.bmm(weights, vs.reshape(weights.shape[0], run.num_keys, -1)).view(heads, -1, self.head_dim)
            attended = attended.transpose(0, 1) if run.group is None else run.group.queries.unpad(attended)
            outputs.append(attended.flatten(1))
        return torch.cat(outputs) if outputs else q.flatten(1)

    def _run_weights(
        self, run: EqualLengthRun, q: Tensor, k: Tensor, r: Tensor, context: RelativePositionContext
    ) -> Tensor:
        """Return the probabilities of one run, [heads · sequences, queries, keys]; q is [heads, rows, head_dim]."""
        u, v = (self.u, self.v) if self.u is not None else context.uv_biases or (None, None)
        if run.distance_start is None and run.distance_index is None:  # select the distances that occur in this run
            largest, smallest = context.largest_distance, 0 if self.config.causal else 1 - run.num_queries
            num_distances = run.num_keys - smallest + 1
            num_distances += -num_distances % 8  # products of other sizes are several times slower on a GPU
            r = r[largest - run.num_keys :][:num_distances]
        n, num_queries, num_keys = run.num_sequences, run.num_queries, run.num_keys
        heads, _, head_dim = q.shape
        q = q * head_dim**-0.5

        def biased_queries(bias: Tensor | None) -> Tensor:  # [heads, sequences · queries, head_dim]
            return (q if bias is None else q + bias[:, None] * head_dim**-0.5).contiguous()

        # (q + v)·r for all distances
        distance_scores = (biased_queries(v) @ r.permute(1, 2, 0)).view(heads * n, num_queries, -1)
        keys = k.reshape(heads * n, num_keys, head_dim).transpose(1, 2)
        content, segment_scores = biased_queries(u).view(heads * n, num_queries, head_dim), None
        if self.s is not None and self.segments is not None and run.different_segment is not None:
            # the softmax ignores a constant over all keys, so only the difference of the two segment scores matters
            difference = (self.segments[1] - self.segments[0]).unsqueeze(-1)
            segment_scores = (biased_queries(self.s) @ difference).view(heads * n, num_queries)
        start = run.distance_start
        if kernels.supports(q):
            scores, masks = torch.bmm(content, keys), (run.masked_out, run.different_segment)
            return kernels.relative_softmax(scores, distance_scores, n, start, *masks, segment_scores)
        if run.distance_index is not None:
            index = run.distance_index.expand(heads, n, -1, -1)
            distance_bias = distance_scores.view(heads, n, num_queries, -1).gather(-1, index).flatten(0, 1)
        elif start is None:
            distance_bias = _relative_shift(distance_scores, num_keys)
        else:
            distance_bias = _GatherByDistance.apply(distance_scores, start, num_keys)
        scores = torch.baddbmm(distance_bias, content, keys).view(heads, n, num_queries, num_keys)
        if segment_scores is not None and run.different_segment is not None:
            scores = scores + segment_scores.view(heads, n, num_queries, 1) * run.different_segment
        if run.masked_out is None:
            return scores.softmax(-1).flatten(0, 1)
        weights = scores.masked_fill(run.masked_out, torch.finfo(scores.dtype).min).softmax(-1)
        if start is not None:  # a target that attends to nothing gets zeros
            weights = weights.masked_fill(run.masked_out, 0)
        return weights.flatten(0, 1)

    def terms(
        self, x: Tensor, layout: PackedLayout, positions: Tensor, cache: LayerCache | None, position_info: PositionInfo
    ) -> AttentionTerms:
        """Return what `forward` computes for one sequence without a query stream."""
        assert isinstance(position_info, RelativePositionContext) and position_info.inputs.query_stream is None
        source = x if cache is None else cache.extend(x)[0]
        q, k, v = split_heads(self._project(x, 0, 1)[:, 0], *self._project(source, 1, 3).unbind(1))
        (r,) = split_heads(self._distance_keys(position_info))  # [heads, distances, head_dim]
        (run,) = position_info.get_runs(self.config.causal, self.config.window)
        u_bias, v_bias = (self.u, self.v) if self.u is not None else position_info.uv_biases or (None, None)
        scale = self.head_dim**-0.5

        def score(bias: Tensor | None, vectors: Tensor) -> Tensor:  # (q + bias)·vector
            return (q if bias is None else q + bias[:, None]) @ vectors.transpose(1, 2) * scale

        key_positions = torch.arange(run.num_keys, device=x.device)
        distances = key_positions[run.num_keys - run.num_queries :, None] - key_positions  # [queries, keys]
        index = (position_info.largest_distance - distances).expand(len(q), -1, -1)
        biases = (
            {} if u_bias is None else {"content bias": (u_bias[:, None] @ k.transpose(1, 2) * scale).expand_as(index)}
        )
        biases["relative position"] = score(v_bias, r).gather(2, index)
        if self.s is not None and self.segments is not None and run.different_segment is not None:
            same, different = score(self.s, self.segments.transpose(0, 1)).split(1, dim=2)  # [heads, queries, 1]
            biases["relative segment"] = torch.where(run.different_segment, different, same)
        mask = None if run.masked_out is None else ~run.masked_out
        return AttentionTerms(q, k, v, q @ k.transpose(1, 2), scale, biases, mask)


def _relative_shift(distance_scores: Tensor, num_keys: int) -> Tensor:
    """Align scores by distance with keys: [batch, queries, distances] to [batch, queries, keys].

    Row i has to start `num_queries` − i entries later. Dropping the first `num_queries` numbers and viewing the rest in
    rows that are one entry shorter does that.
    """
    batch, num_queries, num_distances = distance_scores.shape
    shifted = distance_scores.reshape(batch, -1)[:, num_queries:].view(batch, num_queries, num_distances - 1)
    return shifted[..., :num_keys]


class _GatherByDistance(torch.autograd.Function):
    """Gather the distance score of each key, [heads · sequences, queries, keys].

    The index increases by 1 from key to key, so each entry is used by at most one key and the backward pass is a gather
    too, which is faster than a scatter-add.
    """

    @staticmethod
    def forward(ctx: Any, distance_scores: Tensor, distance_start: Tensor, num_keys: int) -> Tensor:
        n, num_queries = distance_start.shape
        ctx.save_for_backward(distance_start)
        ctx.width = distance_scores.shape[-1]
        distance_index = distance_start.unsqueeze(-1) + torch.arange(num_keys, device=distance_scores.device)
        distance_index = distance_index.expand(len(distance_scores) // n, -1, -1, -1)
        scores = distance_scores.view(-1, n, num_queries, ctx.width).gather(-1, distance_index)
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


def exclude_from_compile() -> None:
    """Exclude attention whose shapes change from batch to batch; call this before `torch.compile`.

    A decorator would import torch's compiler, which takes as long as importing torch, also where nothing is compiled.
    """
    for owner, name in ((attend, "attend_bucketed"), (RelativeAttention, "_attend")):
        function = getattr(owner, name)
        if not hasattr(function, "_torchdynamo_disable"):
            setattr(owner, name, torch.compiler.disable(function))
