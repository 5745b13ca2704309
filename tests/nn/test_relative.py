"""Relative attention against its definition for each pair of tokens; memory; adaptive softmax."""

import itertools

import pytest
import torch

from polyseme.errors import ConfigError, PolysemeError
from polyseme.nn.attention import relative
from polyseme.nn.attention.multihead import AttentionConfig, NoPositionBiasConfig
from polyseme.nn.attention.relative import QueryStream, RelativeAttentionConfig, RelativePositionConfig
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsConfig, AdaptiveSoftmaxHeadConfig
from polyseme.nn.layers.block import FeedForwardConfig, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.positions import sinusoidal_embedding
from polyseme.nn.memory import Memory
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.transformer import TransformerConfig
from tests.support.cases import tiny_model

DIM = 12


@pytest.fixture(autouse=True, params=["runs", "groups"])
def grouping(request, monkeypatch):
    """Sequences of equal length as one dense batch, or, as on a GPU, sequences of similar length with padding."""
    monkeypatch.setattr(relative, "prefers_padding", lambda x: request.param == "groups")


def build_attention(config: RelativeAttentionConfig, position_config: RelativePositionConfig):
    torch.manual_seed(0)
    attention, position_layer = config.build(DIM).double(), position_config.build(DIM).double()
    with torch.no_grad():
        for p in itertools.chain(attention.parameters(), position_layer.parameters()):
            p.normal_()
    return attention, position_layer


def distance_vector(attention, distance):
    """Return r of one distance: a row of the learned table (distance 0 in the middle if not causal), or sinusoidal."""
    table, largest = attention.distance.weight, attention.config.max_learned_distance
    if not largest:
        return table @ sinusoidal_embedding(distance, DIM, torch.float64, interleaved=False)[0]
    smallest = 0 if attention.config.causal else -largest
    return table[min(max(int(distance), smallest), largest) - smallest]


def reference_scores(attention, position_layer, position_config, x, source, segments, query_positions):
    """Compute the scores [heads, queries, keys] of one sequence by the formula, pair by pair."""
    heads, head_dim = attention.config.num_heads, attention.head_dim
    q, k, v = attention.qkv.weight.view(3, heads * head_dim, DIM)
    u_bias, v_bias = (attention.u, attention.v) if attention.u is not None else (position_layer.u, position_layer.v)
    u_bias, v_bias = (0, 0) if u_bias is None else (u_bias, v_bias)
    scores = torch.zeros(heads, len(x), len(source)).double()
    for i, j in itertools.product(range(len(x)), range(len(source))):
        distance = torch.tensor([query_positions[i] - j])
        if position_config.max_distance:
            distance = distance.clamp(-position_config.max_distance, position_config.max_distance)
        r = distance_vector(attention, distance).view(heads, head_dim)
        query, key = (q @ x[i]).view(heads, head_dim), (k @ source[j]).view(heads, head_dim)
        pair_score = ((query + u_bias) * key + (query + v_bias) * r).sum(-1)
        if segments is not None and attention.s is not None:
            segment_index = int(segments[0][i] != segments[1][j])
            pair_score = pair_score + ((query + attention.s) * attention.segments[segment_index]).sum(-1)
        scores[:, i, j] = pair_score / head_dim**0.5
    return scores, (source @ v.T).view(-1, heads, head_dim)


def reference_attention(scores, masked_out, values):
    weights = scores.masked_fill(masked_out, float("-inf")).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hij,jhd->ihd", weights, values).flatten(1)


@pytest.mark.parametrize("causal,window,max_distance,uv_biases,has_segments,max_learned_distance", [
    (True, 0, 0, "shared", False, 0), (True, 3, 2, "separate", False, 0), (False, 0, 0, "separate", True, 0),
    (False, 2, 3, "separate", True, 0), (True, 0, 0, "none", False, 4), (True, 0, 0, "none", False, 20),
    (False, 0, 0, "none", False, 3), (True, 0, 0, "separate", False, 1), (True, 0, 0, "none", False, 0),
])  # fmt: skip
@pytest.mark.parametrize("past", [(0, 0, 0), (2, 2, 5)])
def test_attention_matches_the_definition(
    causal, window, max_distance, uv_biases, has_segments, max_learned_distance, past
):
    config = RelativeAttentionConfig(
        3,
        head_dim=4,
        causal=causal,
        window=window,
        has_segment_bias=has_segments,
        has_uv_biases=uv_biases == "separate",
        max_learned_distance=max_learned_distance,
    )
    position_config = RelativePositionConfig(
        max_distance, uv_bias_shape=(3, 4) if uv_biases == "shared" else (), has_sinusoids=not max_learned_distance
    )
    attention, position_layer = build_attention(config, position_config)
    lengths = (4, 4, 6)
    layout = PackedLayout.from_lengths(lengths)
    x = torch.randn(layout.num_tokens, DIM).double()
    segments = torch.randint(0, 3, (layout.num_tokens,)) if has_segments else None
    memory_states = torch.randn(sum(past), DIM).double()
    memory = Memory(PackedLayout.from_lengths(past), ((memory_states,),), past) if any(past) else None
    cache = memory.create_caches(layout, 1)[0] if memory else None
    _, position_info = position_layer(x, Inputs(x, layout, segments), cache)
    output = attention(x, layout, layout.positions, cache, position_info)
    for i, (states, past_states) in enumerate(zip(x.split(lengths), memory_states.split(past))):
        source = torch.cat([past_states, states])
        segment_pair = None
        if segments is not None:
            sequence_segments = segments.split(lengths)[i]
            segment_pair = sequence_segments, torch.cat([torch.zeros(past[i], dtype=torch.long), sequence_segments])
        query_positions = [past[i] + n for n in range(len(states))]
        scores, values = reference_scores(
            attention, position_layer, position_config, states, source, segment_pair, query_positions
        )
        relative_positions = torch.arange(len(source)) - torch.tensor(query_positions)[:, None]
        masked_out = (relative_positions > 0) if causal else torch.zeros_like(relative_positions, dtype=torch.bool)
        if window:
            masked_out = masked_out | (relative_positions < -window) | (relative_positions > window)
        expected = reference_attention(scores, masked_out, values) @ attention.out.weight.T
        torch.testing.assert_close(output.split(lengths)[i], expected, atol=1e-10, rtol=1e-10)
        one = PackedLayout.from_lengths([len(states)])
        past_layout = PackedLayout.from_lengths(past[i : i + 1])
        one_cache = Memory(past_layout, ((past_states,),), past[i : i + 1]).create_caches(one, 1)[0]
        _, one_info = position_layer(states, Inputs(states, one, segment_pair and segment_pair[0]), one_cache)
        terms = attention.terms(states, one, one.positions, one_cache, one_info)
        torch.testing.assert_close(attention.out(terms.attended.transpose(0, 1).flatten(1)), expected)


@pytest.mark.parametrize("causal", [True, False])
def test_learned_distances_pass_gradcheck(causal):
    """Including distances beyond the table; vectors of distances that do not occur get no gradient."""
    attention, position_layer = build_attention(
        RelativeAttentionConfig(2, causal=causal, head_dim=3, has_uv_biases=False, max_learned_distance=3),
        RelativePositionConfig(),
    )
    layout = PackedLayout.from_lengths([5, 2])
    x = torch.randn(layout.num_tokens, DIM).double().requires_grad_()

    def forward(x, table, qkv):
        position_info = position_layer(x, Inputs(x, layout), None)[1]
        params = {"distance.weight": table, "qkv.weight": qkv, "out.weight": attention.out.weight}
        return torch.func.functional_call(attention, params, (x, layout, layout.positions, None, position_info))

    assert torch.autograd.gradcheck(forward, (x, attention.distance.weight, attention.qkv.weight))
    table = attention.distance.weight
    short_layout = PackedLayout.from_lengths([2, 2])
    output = attention(
        x[:4],
        short_layout,
        short_layout.positions,
        None,
        position_layer(x[:4], Inputs(x[:4], short_layout), None)[1],
    )
    (gradient,) = torch.autograd.grad(output.square().sum(), table)
    has_grad = (gradient != 0).any(-1).tolist()
    assert has_grad == ([True, True, False, False] if causal else [False, False, True, True, True, False, False])


def test_missing_distance_embeddings_are_rejected():
    attention, position_layer = build_attention(RelativeAttentionConfig(3), RelativePositionConfig(has_sinusoids=False))
    layout = PackedLayout.from_lengths([2])
    x = torch.zeros(2, DIM).double()
    position_info = position_layer(x, Inputs(x, layout), None)[1]
    with pytest.raises(PolysemeError, match="provide distance embeddings"):
        attention(x, layout, layout.positions, None, position_info)


@pytest.mark.parametrize("past", [(0, 0, 0, 0), (2, 2, 1, 0)])
def test_two_stream_attention_matches_the_definition(past):
    """Sequences without targets, with targets only, and with a target that attends to nothing."""
    attention, position_layer = build_attention(
        RelativeAttentionConfig(3, has_segment_bias=True), RelativePositionConfig(two_stream=True)
    )
    lengths, counts = (4, 4, 5, 3), (2, 2, 0, 3)
    layout = PackedLayout.from_lengths(lengths)
    targets = torch.tensor([1, 3, 4, 7, 13, 14, 15])
    ranks = torch.tensor([-1, 1, -1, 0, 2, -1, -1, 1, -1, -1, -1, -1, -1, 1, 0, 2])
    query_stream = QueryStream(ranks, targets, PackedLayout.from_lengths(counts))
    x, memory_states = torch.randn(layout.num_tokens, DIM).double(), torch.randn(sum(past), DIM).double()
    segments = torch.randint(0, 2, (layout.num_tokens,))
    memory = Memory(PackedLayout.from_lengths(past), ((memory_states,),), past) if any(past) else None
    cache = memory.create_caches(layout, 1)[0] if memory else None
    states, position_info = position_layer(x, Inputs(x, layout, segments, None, query_stream), cache)
    assert torch.equal(states[layout.num_tokens :], position_layer.mask_emb.view(1, -1).expand(7, -1))
    states = torch.cat([x, torch.randn(7, DIM).double()])
    output = attention(states, layout, layout.positions, cache, position_info)
    starts = layout.cu_seqlens.tolist()
    for i, (tokens, past_states, sequence_targets) in enumerate(
        zip(x.split(lengths), memory_states.split(past), targets.split(counts))
    ):
        source, sequence_ranks = torch.cat([past_states, tokens]), ranks.split(lengths)[i]
        key_ranks = torch.cat([torch.full((past[i],), -5), sequence_ranks])
        sequence_segments = segments.split(lengths)[i]
        key_segments = torch.cat([torch.zeros(past[i], dtype=torch.long), sequence_segments])
        target_positions = sequence_targets - starts[i]
        for queries, query_positions, limit, actual in (
            (tokens, torch.arange(len(tokens)), sequence_ranks, output[: layout.num_tokens].split(lengths)[i]),
            (
                states[layout.num_tokens :].split(counts)[i],
                target_positions,
                sequence_ranks[target_positions] - 1,
                output[layout.num_tokens :].split(counts)[i],
            ),
        ):
            scores, values = reference_scores(
                attention,
                position_layer,
                RelativePositionConfig(),
                queries,
                source,
                (sequence_segments[query_positions], key_segments),
                (query_positions + past[i]).tolist(),
            )
            expected = reference_attention(scores, key_ranks[None] > limit[:, None], values) @ attention.out.weight.T
            torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def test_query_stream_without_two_streams_is_rejected():
    layout = PackedLayout.from_lengths([2])
    query_stream = QueryStream(torch.zeros(2, dtype=torch.long), torch.tensor([0]), PackedLayout.from_lengths([1]))
    inputs = Inputs(torch.zeros(2, dtype=torch.long), layout, query_stream=query_stream)
    configs = (AttentionConfig(2), NoPositionBiasConfig()), (RelativeAttentionConfig(2), RelativePositionConfig())
    for attention, positions in configs:
        block = TransformerBlockConfig(attention, FeedForwardConfig(8))
        trunk = TransformerConfig(EmbeddingsConfig(10, 4, 4), block, (0,), position_bias=positions).build()
        with pytest.raises(PolysemeError, match="does not support a query stream"):
            trunk(inputs)


def test_memory_truncation_and_tensor_round_trip():
    layout = PackedLayout.from_lengths([3, 1, 5])
    caches = Memory.empty(layout).create_caches(layout, 2)
    for i, cache in enumerate(caches):
        cache.extend(torch.arange(9.0)[:, None] + 10 * i)
    memory = Memory.empty(layout).update(caches, layout)
    truncated = memory.truncate(2)
    assert truncated.layout.lengths == (2, 1, 2) and truncated.num_seen == (3, 1, 5)
    assert truncated.states[1][0][:, 0].tolist() == [11, 12, 13, 17, 18] and memory.truncate(5) is memory
    restored = Memory.from_tensors({k: t.clone() for k, t in truncated.to_tensors().items()})
    assert restored.layout.lengths == truncated.layout.lengths and restored.num_seen == truncated.num_seen
    assert all(torch.equal(a, b) for one, two in zip(restored.states, truncated.states) for a, b in zip(one, two))
    caches = truncated.create_caches(PackedLayout.from_lengths([1, 2, 0]), 2)
    states, full_layout = caches[0].extend(torch.tensor([[100.0], [101.0], [102.0]]))
    assert states[:, 0].tolist() == [1, 2, 100, 3, 101, 102, 7, 8] and full_layout.lengths == (3, 3, 2)
    assert truncated.update(caches, PackedLayout.from_lengths([1, 2, 0])).num_seen == (4, 3, 5)


@pytest.mark.parametrize("div_value", [1, 2, 4])
def test_adaptive_softmax_matches_torch(div_value):
    """torch's version projects only the rare bands and has no bias there."""
    torch.manual_seed(1)
    cutoffs, vocab_size, dim = (5, 9, 20), 40, 64
    expected_head = torch.nn.AdaptiveLogSoftmaxWithLoss(
        dim, vocab_size, list(cutoffs), div_value=div_value, head_bias=True
    ).double()
    head = AdaptiveSoftmaxHeadConfig(vocab_size, dim, cutoffs, div_value).build(dim).double()
    embeddings = AdaptiveEmbeddingsConfig(vocab_size, dim, cutoffs, div_value).build().double()
    with torch.no_grad():
        embeddings.tables[0].weight.copy_(expected_head.head.weight[:5])
        head.clusters.weight.copy_(expected_head.head.weight[5:])
        head.biases[0].copy_(expected_head.head.bias[:5])
        head.clusters.bias.copy_(expected_head.head.bias[5:])
        if head.projection is not None:
            head.projection.weight.copy_(torch.eye(dim))
        for i, (down, up) in enumerate(expected_head.tail, start=1):
            if div_value > 1:
                embeddings.projections[i].weight.copy_(down.weight.T)
                embeddings.tables[i].weight.copy_(up.weight)
            else:  # no projection here: one matrix instead of two
                embeddings.tables[i].weight.copy_(up.weight @ down.weight)
    states, labels = torch.randn(50, dim).double(), torch.randint(0, vocab_size, (50,))
    torch.testing.assert_close(
        head(states, embeddings), expected_head.log_prob(states), check_dtype=False, atol=1e-5, rtol=1e-5
    )
    expected = -expected_head(states, labels).output.sum()
    torch.testing.assert_close(head.loss(states, embeddings, labels), expected, check_dtype=False, rtol=1e-5, atol=1e-5)
    labels[::2] = -100
    expected = -expected_head(states[1::2], labels[1::2]).output.sum()
    torch.testing.assert_close(head.loss(states, embeddings, labels), expected, check_dtype=False, rtol=1e-5, atol=1e-5)


def test_adaptive_embeddings_match_their_definition():
    config = AdaptiveEmbeddingsConfig(20, 8, (4, 9), 2)
    embeddings = config.build()
    tokens = torch.tensor([3, 19, 4, 0, 8, 9, 3])
    vectors = embeddings(Inputs(tokens, PackedLayout.from_lengths([7])))
    for token, distance_vector in zip(tokens.tolist(), vectors):
        band = sum(token >= cut for cut in config.cutoffs)
        row = embeddings.tables[band].weight[token - config.boundaries[band]]
        torch.testing.assert_close(distance_vector, embeddings.projections[band](row) * 8**0.5)
    with pytest.raises(PolysemeError, match="expected increasing ids"):
        AdaptiveEmbeddingsConfig(20, 8, (9, 4))
    with pytest.raises(PolysemeError, match="leaves no dimensions"):
        AdaptiveEmbeddingsConfig(20, 8, (4, 9), 3)


def test_relative_positions_and_attention_go_together():
    music, bert = tiny_model("music").config.trunk, tiny_model("bert").config.trunk
    for trunk in (bert.replace(position_bias=music.position_bias), music.replace(position_bias=bert.position_bias)):
        with pytest.raises(ConfigError, match="both have to be relative, or neither"):
            trunk.build()
