"""Texts that join and leave a running batch are the same as alone."""

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.generation import continuous
from polyseme.generation import cuda_graph as graphs
from polyseme.generation.config import GREEDY, SamplingConfig
from polyseme.generation.continuous import ContinuousBatch, SequenceRequest
from polyseme.generation.row_sampling import RowSampler
from polyseme.generation.sample import generate_tokens, sample_tokens
from tests.support import cases

EOS = {3, 7, 11}
CONFIGS = [
    GREEDY,
    SamplingConfig(1.3, seed=2),
    SamplingConfig(0.7, top_k=5, seed=4),
    SamplingConfig(1.0, top_p=0.8, seed=5),
    SamplingConfig(1.5, top_k=20, top_p=0.9, repetition_penalty=1.4, seed=1),
    SamplingConfig(0.0, repetition_penalty=1.7),
]
STATIC_FAMILIES = ["gpt", "gpt2", "gpt-bert"]
OTHER_FAMILIES = ["rnn_lm lstm True 40", "ulmfit", "transformer_xl", "xlnet", "nnlm"]


def make_requests(count=14, seed=0):
    rng = np.random.default_rng(seed)
    prompts = [row.tolist() for row in cases.sequences(tuple(rng.integers(1, 9, count).tolist()), seed)]
    limits = rng.integers(1, 14, count).tolist()
    return [SequenceRequest(p, n, CONFIGS[i % len(CONFIGS)]) for i, (p, n) in enumerate(zip(prompts, limits))]


def run_alone(model, request):
    """Return the tokens of a text with its end token, and the log-probability of each."""
    indices = [request.sample_index]
    (text,) = generate_tokens(
        model, [request.prompt], request.max_new_tokens, request.sampling, None, EOS, sample_indices=indices
    )
    return text


def run_joined(model, requests, arrivals, max_cells=1 << 14, leave=None):
    """Add requests before the steps of their arrival; return the tokens and scores of each, and the rows of steps."""
    batch = ContinuousBatch(model, EOS, max_cells=max_cells)
    waiting = sorted(range(len(requests)), key=lambda i: arrivals[i])
    tokens, scores = [[] for _ in requests], [0.0] * len(requests)
    owners, num_rows, step = {}, [], 0

    def has_left(number):
        return leave is not None and leave(owners[number], len(tokens[owners[number]]))

    while waiting or batch.rows:
        ready = [i for i in waiting if arrivals[i] <= step]
        ready = ready[: batch.count_fitting(requests[i].max_len for i in ready)]
        if ready:
            owners.update(zip(batch.join([requests[i] for i in ready]), ready))
            waiting = [i for i in waiting if i not in ready]
        if batch.rows:
            num_rows.append(len(batch.rows))
            for number, token, score in batch.sample():
                i = owners[number]
                scores[i] += score
                tokens[i] += [] if token in EOS else [token]
            batch.advance(has_left)
        step += 1
    return [tuple(each) for each in tokens], scores, num_rows


@pytest.mark.parametrize("family", STATIC_FAMILIES + OTHER_FAMILIES)
def test_joined_texts_are_the_same_as_alone(family):
    model, requests = cases.tiny_model(family, torch.float32), make_requests()
    arrivals = [0, 0, 0, 2, 3, 3, 3, 5, 9, 9, 10, 30, 30, 31]
    tokens, scores, _ = run_joined(model, requests, arrivals)
    alone = [run_alone(model, each) for each in requests]
    assert tokens == [each.tokens for each in alone]
    np.testing.assert_allclose(scores, [each.score for each in alone], atol=1e-5)


def test_rows_are_reused_and_cells_are_limited(monkeypatch):
    monkeypatch.setattr(continuous, "CAPACITY_STEP", 8)
    monkeypatch.setattr(continuous, "MIN_ROWS", 2)
    model, requests = cases.tiny_model("gpt2", torch.float32), make_requests(20, seed=1)
    for max_cells in (64, 96, 1000):
        tokens, _, num_rows = run_joined(model, requests, [0] * len(requests), max_cells)
        assert tokens == [run_alone(model, each).tokens for each in requests]
        assert max(num_rows) <= max_cells // 8 and (max_cells == 1000) == (max(num_rows) == len(requests))
    tokens, _, num_rows = run_joined(model, requests, [0] * len(requests), max_cells=8)
    assert set(num_rows) == {1}, "a text that needs more runs alone"


def test_buffers_grow_and_shrink_with_what_they_contain(monkeypatch):
    monkeypatch.setattr(continuous, "CAPACITY_STEP", 4)
    model = cases.tiny_model("gpt2", torch.float32)
    batch = ContinuousBatch(model, max_cells=128)
    batch.join([SequenceRequest([1, 2], 2)])
    assert batch.session.cache.states[0][0].shape[:2] == (8, 4)
    batch.join([SequenceRequest([1, 2, 4], 20)])
    assert batch.session.cache.states[0][0].shape[:2] == (5, 24)
    batch.sample()
    batch.advance(lambda number: number == 1)
    short = [SequenceRequest([5, i], 2) for i in range(20)]
    batch.join(short)
    assert batch.session.cache.states[0][0].shape[:2] == (32, 4)
    tokens = {number: [] for number in batch.sequences}
    while batch.rows:
        for number, token, _ in batch.sample():
            tokens[number].append(token)
        batch.advance()
    expected = generate_tokens(model, [each.prompt for each in short], 2)
    assert [tuple(tokens[number]) for number in range(2, 22)] == [each.tokens for each in expected]


def test_a_text_that_leaves_frees_its_row_at_once():
    model, requests = cases.tiny_model("gpt2", torch.float32), make_requests(8, seed=3)
    tokens, _, num_rows = run_joined(model, requests, [0] * 8, leave=lambda i, n: i % 2 == 0)
    alone = [run_alone(model, each).tokens for each in requests]
    for i, each in enumerate(tokens):
        assert each == (alone[i] if i % 2 else alone[i][:1])
    assert num_rows[0] == 8 and num_rows[1] <= 4


def test_copies_of_a_prompt_are_read_once_and_sampled_apart():
    model = cases.tiny_model("gpt2", torch.float32)
    lengths = []
    hook = model.trunk.register_forward_pre_hook(lambda _, args: lengths.append(args[0].layout.lengths))
    requests = [SequenceRequest(p, 8, SamplingConfig(seed=3), i) for p in ([4, 5, 6], [7, 8]) for i in range(3)]
    tokens, _, _ = run_joined(model, requests, [0] * 6)
    hook.remove()
    assert lengths[0] == (3, 2) and len(set(tokens)) == 6
    assert tokens == [run_alone(model, each).tokens for each in requests]


def test_a_failed_join_leaves_the_others_alone(monkeypatch):
    model, requests = cases.tiny_model("gpt2", torch.float32), make_requests(3, seed=4)
    batch = ContinuousBatch(model, EOS)
    batch.join(requests[:2])
    with pytest.raises(PolysemeError, match="positions"):
        batch.join([SequenceRequest([1, 2], 1000)])
    with pytest.raises(PolysemeError, match="no tokens"):
        batch.join([requests[2], SequenceRequest([], 3)])
    with pytest.raises(IndexError):
        batch.join([SequenceRequest([10_000], 3)])
    tokens = {0: [], 1: []}
    while batch.rows:
        for number, token, _ in batch.sample():
            tokens[number] += [] if token in EOS else [token]
        batch.advance()
    assert [tuple(each) for each in tokens.values()] == [run_alone(model, each).tokens for each in requests[:2]]


def test_models_without_joining_are_rejected():
    with pytest.raises(PolysemeError, match="cannot join"):
        ContinuousBatch(cases.tiny_model("t5"))


def test_rows_are_sampled_as_with_one_config():
    generator = torch.Generator().manual_seed(0)
    scores, keys = torch.randn(len(CONFIGS), 50, generator=generator), np.arange(len(CONFIGS), dtype=np.uint64)
    seen = [torch.zeros(50, dtype=torch.bool) for _ in CONFIGS]
    rows = RowSampler(CONFIGS, keys, scores)(scores.clone(), np.arange(len(CONFIGS)), seen)
    from polyseme.rng import RandomStream, random_bits, uniform

    for i, config in enumerate(CONFIGS):
        if not config.temperature:
            assert rows[i] == scores[i].argmax()
        else:
            uniforms = uniform(random_bits(keys[i : i + 1], np.array([i]), RandomStream.GENERATION))
            assert rows[i] == sample_tokens(scores[i : i + 1], config, torch.from_numpy(uniforms))[0]
    assert [int(each.sum()) for each in seen] == [int(c.repetition_penalty != 1) for c in CONFIGS]


# ------------------------------------------------------------------------------------------------------- GPU


def test_texts_are_the_same_with_the_buffers_of_a_gpu(monkeypatch):
    """As on a GPU, except for the capture: rows without a text are computed, and buffers are kept and replaced."""
    monkeypatch.setattr(continuous, "uses_cuda_graphs", lambda device: True)
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 0)
    for module in (graphs, continuous):
        monkeypatch.setattr(module, "CAPACITY_STEP", 8)
    monkeypatch.setattr(continuous, "MIN_ROWS", 2)
    graphs._DECODERS.clear()
    for family in STATIC_FAMILIES:
        model, requests = cases.tiny_model(family, torch.float32), make_requests()
        alone = [run_alone(model, each).tokens for each in requests]
        for _ in range(2):  # the second batch takes over the buffers of the first
            tokens, _, _ = run_joined(model, requests, [0, 0, 0, 2, 3, 3, 3, 5, 9, 9, 10, 30, 30, 31])
            assert tokens == alone
            buffers = graphs._DECODERS[model].memory
        assert buffers is graphs._DECODERS[model].memory


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", STATIC_FAMILIES)
def test_texts_that_join_replayed_steps_are_the_same_as_alone(family):
    model, requests = cases.tiny_model(family, torch.float32, "cuda"), make_requests()
    alone = [run_alone(model, each).tokens for each in requests]
    for _ in range(2):
        assert run_joined(model, requests, [0, 0, 0, 2, 3, 3, 3, 5, 9, 9, 10, 30, 30, 31])[0] == alone
    assert graphs._DECODERS[model].graphs.graphs
