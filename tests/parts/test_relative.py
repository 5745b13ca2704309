"""Relative attention against its definition, one pair of tokens at a time; the memory; adaptive softmax."""

import itertools

import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.nn.attention.relative import (
    NoPositionBiasConfig,
    QueryStream,
    RelativeAttentionConfig,
    RelativePositionConfig,
    sinusoidal_distance_embedding,
)
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsConfig, AdaptiveSoftmaxHeadConfig
from polyseme.nn.memory import Memory, create_layer_caches, memory_from_caches
from polyseme.nn.packing import PackedLayout

DIM = 12


def built(spec: RelativeAttentionConfig, stack: RelativePositionConfig):
    torch.manual_seed(0)
    attention, relations = spec.build(DIM).double(), stack.build(DIM).double()
    with torch.no_grad():
        for p in itertools.chain(attention.parameters(), relations.parameters()):
            p.normal_()
    return attention, relations


def vector(attention, far):
    """r of one distance: a row of the table, in whose middle distance 0 is if later keys are seen; or a wave's."""
    table, most = attention.distance.weight, attention.config.max_learned_distance
    if not most:
        return table @ sinusoidal_distance_embedding(far, DIM, torch.float64)[0]
    least = 0 if attention.config.causal else -most
    return table[min(max(int(far), least), most) - least]


def scored(attention, relations, stack, x, source, segments, places):
    """Scores [heads, queries, keys] of one sequence, by the formula; `places` are those of queries among the keys."""
    heads, width = attention.config.num_heads, attention.head_dim
    q, k, v = attention.qkv.weight.view(3, heads * width, DIM)
    u, w = (attention.u, attention.v) if attention.u is not None else (relations.u, relations.v)
    u, w = (0, 0) if u is None else (u, w)
    found = torch.zeros(heads, len(x), len(source)).double()
    for i, j in itertools.product(range(len(x)), range(len(source))):
        far = torch.tensor([places[i] - j])
        if stack.max_distance:
            far = far.clamp(-stack.max_distance, stack.max_distance)
        r = vector(attention, far).view(heads, width)
        query, key = (q @ x[i]).view(heads, width), (k @ source[j]).view(heads, width)
        score = ((query + u) * key + (query + w) * r).sum(-1)
        if segments is not None and attention.s is not None:
            same = int(segments[0][i] != segments[1][j])
            score = score + ((query + attention.s) * attention.segments[same]).sum(-1)
        found[:, i, j] = score / width**0.5
    return found, (source @ v.T).view(-1, heads, width)


def mixed(scores, hidden, values):
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hij,jhd->ihd", weights, values).flatten(1)


@pytest.mark.parametrize("causal,window,furthest,offsets,segmented,learned", [
    (True, 0, 0, "shared", False, 0), (True, 3, 2, "own", False, 0), (False, 0, 0, "own", True, 0),
    (False, 2, 3, "own", True, 0), (True, 0, 0, "none", False, 4), (True, 0, 0, "none", False, 20),
    (False, 0, 0, "none", False, 3), (True, 0, 0, "own", False, 1), (True, 0, 0, "none", False, 0),
])  # fmt: skip
@pytest.mark.parametrize("past", [(0, 0, 0), (2, 2, 5)])
def test_every_pair_of_tokens(causal, window, furthest, offsets, segmented, learned, past):
    spec = RelativeAttentionConfig(
        3,
        4,
        causal=causal,
        window=window,
        has_segment_bias=segmented,
        has_uv_biases=offsets == "own",
        max_learned_distance=learned,
    )
    stack = RelativePositionConfig(
        furthest, uv_bias_shape=(3, 4) if offsets == "shared" else (), has_sinusoids=not learned
    )
    attention, relations = built(spec, stack)
    sizes = (4, 4, 6)
    layout = PackedLayout.from_lengths(sizes)
    x = torch.randn(layout.num_tokens, DIM).double()
    segments = torch.randint(0, 3, (layout.num_tokens,)) if segmented else None
    old = torch.randn(sum(past), DIM).double()
    memory = Memory(PackedLayout.from_lengths(past), ((old,),), past) if any(past) else None
    cache = create_layer_caches(memory, layout, 1)[0] if memory else None
    _, told = relations(x, layout, segments, None, cache)
    found = attention(x, layout, layout.positions, cache, position_info=told)
    for i, (own, before) in enumerate(zip(x.split(sizes), old.split(past))):
        source = torch.cat([before, own])
        both = None
        if segments is not None:
            mine = segments.split(sizes)[i]
            both = mine, torch.cat([torch.zeros(past[i], dtype=torch.long), mine])
        places = [past[i] + n for n in range(len(own))]
        scores, values = scored(attention, relations, stack, own, source, both, places)
        ahead = torch.arange(len(source)) - torch.tensor(places)[:, None]
        hidden = (ahead > 0) if causal else torch.zeros_like(ahead, dtype=torch.bool)
        if window:
            hidden = hidden | (ahead < -window) | (ahead > window)
        expected = mixed(scores, hidden, values) @ attention.out.weight.T
        torch.testing.assert_close(found.split(sizes)[i], expected, atol=1e-10, rtol=1e-10)
    if memory is None:
        maps = attention.weights(x, layout, told)
        assert all(torch.allclose(m.sum(-1), torch.ones(3, n).double()) for m, n in zip(maps, sizes))


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_of_learned_distances(causal):
    """By differences, with distances beyond the table; vectors of distances that do not occur get none."""
    attention, relations = built(
        RelativeAttentionConfig(2, 3, causal=causal, has_uv_biases=False, max_learned_distance=3),
        RelativePositionConfig(),
    )
    layout = PackedLayout.from_lengths([5, 2])
    x = torch.randn(layout.num_tokens, DIM).double().requires_grad_()

    def read(x, table, qkv):
        told = relations(x, layout, None, None, None)[1]
        given = {"distance.weight": table, "qkv.weight": qkv, "out.weight": attention.out.weight}
        return torch.func.functional_call(attention, given, (x, layout, layout.positions), {"position_info": told})

    assert torch.autograd.gradcheck(read, (x, attention.distance.weight, attention.qkv.weight))
    table = attention.distance.weight
    short = PackedLayout.from_lengths([2, 2])
    out = attention(x[:4], short, short.positions, position_info=relations(x[:4], short, None, None, None)[1])
    (gradient,) = torch.autograd.grad(out.square().sum(), table)
    met = (gradient != 0).any(-1).tolist()
    assert met == ([True, True, False, False] if causal else [False, False, True, True, True, False, False])


def test_no_wave_and_no_table():
    attention, relations = built(RelativeAttentionConfig(3), RelativePositionConfig(has_sinusoids=False))
    layout = PackedLayout.from_lengths([2])
    told = relations(torch.zeros(2, DIM).double(), layout, None, None, None)[1]
    with pytest.raises(PolysemeError, match="no waves"):
        attention(torch.zeros(2, DIM).double(), layout, layout.positions, position_info=told)


@pytest.mark.parametrize("past", [(0, 0, 0, 0), (2, 2, 1, 0)])
def test_both_streams_by_the_definition(past):
    """Sequences with no place to predict, with all, and with one that sees nothing."""
    attention, relations = built(
        RelativeAttentionConfig(3, has_segment_bias=True), RelativePositionConfig(two_stream=True)
    )
    sizes, counts = (4, 4, 5, 3), (2, 2, 0, 3)
    layout = PackedLayout.from_lengths(sizes)
    rows = torch.tensor([1, 3, 4, 7, 13, 14, 15])
    order = torch.tensor([-1, 1, -1, 0, 2, -1, -1, 1, -1, -1, -1, -1, -1, 1, 0, 2])
    queries = QueryStream(order, rows, PackedLayout.from_lengths(counts))
    x, old = torch.randn(layout.num_tokens, DIM).double(), torch.randn(sum(past), DIM).double()
    segments = torch.randint(0, 2, (layout.num_tokens,))
    memory = Memory(PackedLayout.from_lengths(past), ((old,),), past) if any(past) else None
    cache = create_layer_caches(memory, layout, 1)[0] if memory else None
    whole, told = relations(x, layout, segments, queries, cache)
    assert torch.equal(whole[layout.num_tokens :], relations.mask_emb.view(1, -1).expand(7, -1))
    whole = torch.cat([x, torch.randn(7, DIM).double()])
    found = attention(whole, layout, layout.positions, cache, position_info=told)
    starts = layout.cu_seqlens.tolist()
    for i, (own, before, asked) in enumerate(zip(x.split(sizes), old.split(past), rows.split(counts))):
        source, ranks = torch.cat([before, own]), order.split(sizes)[i]
        keys = torch.cat([torch.full((past[i],), -5), ranks])
        mine = segments.split(sizes)[i]
        kinds = torch.cat([torch.zeros(past[i], dtype=torch.long), mine])
        inside = asked - starts[i]
        for states, places, limit, out in (
            (own, torch.arange(len(own)), ranks, found[: layout.num_tokens].split(sizes)[i]),
            (
                whole[layout.num_tokens :].split(counts)[i],
                inside,
                ranks[inside] - 1,
                found[layout.num_tokens :].split(counts)[i],
            ),
        ):
            scores, values = scored(
                attention,
                relations,
                RelativePositionConfig(),
                states,
                source,
                (mine[places], kinds),
                (places + past[i]).tolist(),
            )
            expected = mixed(scores, keys[None] > limit[:, None], values) @ attention.out.weight.T
            torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)


def test_an_ordinary_stack_has_no_query_stream():
    layout = PackedLayout.from_lengths([2])
    queries = QueryStream(torch.zeros(2, dtype=torch.long), torch.tensor([0]), PackedLayout.from_lengths([1]))
    for spec in (NoPositionBiasConfig(), RelativePositionConfig()):
        with pytest.raises(PolysemeError, match="no query stream"):
            spec.build(4)(torch.zeros(2, 4), layout, None, queries, None)


def test_a_memory_of_set_length_and_its_tensors():
    layout = PackedLayout.from_lengths([3, 1, 5])
    caches = create_layer_caches(None, layout, 2)
    for i, cache in enumerate(caches):
        cache.extend(torch.arange(9.0)[:, None] + 10 * i)
    memory = memory_from_caches(caches, layout, None)
    short = memory.truncate(2)
    assert short.layout.lengths == (2, 1, 2) and short.num_seen == (3, 1, 5)
    assert short.states[1][0][:, 0].tolist() == [11, 12, 13, 17, 18] and memory.truncate(5) is memory
    back = Memory.from_tensors({k: t.clone() for k, t in short.to_tensors().items()})
    assert back.layout.lengths == short.layout.lengths and back.num_seen == short.num_seen
    assert all(torch.equal(a, b) for one, two in zip(back.states, short.states) for a, b in zip(one, two))
    caches = create_layer_caches(short, PackedLayout.from_lengths([1, 2, 0]), 2)
    joined, where = caches[0].extend(torch.tensor([[100.0], [101.0], [102.0]]))
    assert joined[:, 0].tolist() == [1, 2, 100, 3, 101, 102, 7, 8] and where.lengths == (3, 3, 2)
    assert memory_from_caches(caches, PackedLayout.from_lengths([1, 2, 0]), short).num_seen == (4, 3, 5)


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_adaptive_softmax_is_that_of_torch(factor):
    """Theirs projects the rare bands only and has no bias there."""
    torch.manual_seed(1)
    cutoffs, size, dim = (5, 9, 20), 40, 64
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(dim, size, list(cutoffs), div_value=factor, head_bias=True).double()
    head = AdaptiveSoftmaxHeadConfig(size, dim, cutoffs, factor).build(dim).double()
    tables = AdaptiveEmbeddingsConfig(size, dim, cutoffs, factor).build().double()
    with torch.no_grad():
        tables.tables[0].weight.copy_(theirs.head.weight[:5])
        head.clusters.weight.copy_(theirs.head.weight[5:])
        head.biases[0].copy_(theirs.head.bias[:5])
        head.clusters.bias.copy_(theirs.head.bias[5:])
        if head.projection is not None:
            head.projection.weight.copy_(torch.eye(dim))
        for i, (down, up) in enumerate(theirs.tail, start=1):
            if factor > 1:
                tables.projections[i].weight.copy_(down.weight.T)
                tables.tables[i].weight.copy_(up.weight)
            else:  # nothing lies between here: one matrix for their two
                tables.tables[i].weight.copy_(up.weight @ down.weight)
    states, values = torch.randn(50, dim).double(), torch.randint(0, size, (50,))
    torch.testing.assert_close(head(states, tables), theirs.log_prob(states), check_dtype=False, atol=1e-5, rtol=1e-5)
    expected = -theirs(states, values).output.sum()
    torch.testing.assert_close(
        head.loss(states, tables, values, -100), expected, check_dtype=False, rtol=1e-5, atol=1e-5
    )
    values[::2] = -100
    expected = -theirs(states[1::2], values[1::2]).output.sum()
    torch.testing.assert_close(
        head.loss(states, tables, values, -100), expected, check_dtype=False, rtol=1e-5, atol=1e-5
    )


def test_adaptive_embeddings():
    spec = AdaptiveEmbeddingsConfig(20, 8, (4, 9), 2)
    made = spec.build()
    tokens = torch.tensor([3, 19, 4, 0, 8, 9, 3])
    found = made(tokens, tokens, None, 7)
    for token, vector in zip(tokens.tolist(), found):
        band = sum(token >= cut for cut in spec.cutoffs)
        own = made.tables[band].weight[token - spec.boundaries[band]]
        torch.testing.assert_close(vector, made.projections[band](own) * 8**0.5)
    with pytest.raises(PolysemeError, match="do not rise"):
        AdaptiveEmbeddingsConfig(20, 8, (9, 4))
    with pytest.raises(PolysemeError, match="leaves nothing"):
        AdaptiveEmbeddingsConfig(20, 8, (4, 9), 3)
