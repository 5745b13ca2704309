"""On a GPU, CUDA graphs of steps with sequences of one length give the results of eager steps, also with a memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.heads.word_vectors import WindowBatch
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import Batch, SegmentExtra, SegmentState, SparseUpdateBatch, Targets
from polyseme.objectives.word2vec import Word2Vec
from polyseme.recipes import get_training_recipe
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
LANES, VOCABULARY, STEPS = 8, 500, 24


def stream(lengths: list[int]) -> list[Batch]:
    """Return segments of many lanes; every ninth starts without memory."""
    draw, carry, found = torch.Generator().manual_seed(0), SegmentState(), []
    for number, length in enumerate(lengths):
        tokens = torch.randint(0, VOCABULARY // 10, (LANES, length + 1), generator=draw)
        rows = torch.arange(LANES * length)
        targets = {"next": Targets(rows, tokens[:, 1:].flatten(), len(rows))}
        batch = Batch(Inputs(tokens[:, :-1].flatten(), PackedLayout.from_lengths([length] * LANES)), targets, len(rows))
        found.append(replace(batch, extra=SegmentExtra(carry, starts_fresh=number % 9 == 0)))
    return found


def permuted() -> list[Batch]:
    """Return sequences whose last third of a permutation is predicted by a query stream."""
    draw, found, length, each = torch.Generator().manual_seed(0), [], 24, 8
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCABULARY // 10, (LANES * length,), generator=draw)
        order = torch.cat([torch.randperm(length, generator=draw) for _ in range(LANES)]) - (length - each)
        rows = (order >= 0).nonzero()[:, 0]
        queries = QueryStream(order.clamp(min=-1), rows, PackedLayout.from_lengths([each] * LANES))
        targets = {"masked": Targets(len(tokens) + torch.arange(len(rows)), tokens[rows], len(rows))}
        found.append(
            Batch(
                Inputs(tokens, PackedLayout.from_lengths([length] * LANES), query_stream=queries), targets, len(tokens)
            )
        )
    return found


def windows(output: str, mean: bool) -> list[SparseUpdateBatch]:
    """Return blocks of words for sparse updates, more than one update uses."""
    draw, found, size = torch.Generator().manual_seed(0), [], 40 * 16
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCABULARY // 10, (size + 10,), generator=draw)
        reach = torch.rand(size, 11, generator=draw) < 0.5
        reach[:, 5] = False  # nobody reaches itself
        negatives = torch.randint(0, VOCABULARY, (40, 4), generator=draw)
        near = WindowBatch(tokens, reach, negatives, 16, 5, 5 / 4, mean)
        found.append(SparseUpdateBatch(output, near, size, size))
    return found


def run(name: str, batches: list[Batch], record: bool) -> tuple[list[float], Model]:
    recipe, (head,), optim = get_training_recipe(name), batches[0].counts(), OptimizerConfig(lr=2e-3)
    if isinstance(recipe.objective, Word2Vec):
        recipe = recipe.replace(objective=recipe.objective.replace(loss=head))
        optim = OptimizerConfig(name="sparse_sgd", lr=0.05, words_per_update=160, count_damping=1.0)
    model = recipe.model_config(VOCABULARY).build(seed=0).to("cuda")
    run = TrainState(model, optim.build(model, model.trunk.layer_groups()), optim, ScheduleConfig("constant"),
                     len(batches), torch.device("cuda"), "bf16", use_cuda_graphs=record)  # fmt: skip
    return [report.loss[head] for report in train(run, (([b], None) for b in batches))], model


def agree(recipe: str, batches: Callable[[], list[Batch]]) -> None:
    plain, model = run(recipe, batches(), False)
    noise = max(abs(a - b) for a, b in zip(plain, run(recipe, batches(), False)[0]))
    replayed, same = run(recipe, batches(), True)
    assert plain[-1] < plain[0]
    assert max(abs(a - b) for a, b in zip(plain, replayed)) <= 2 * noise + 1e-5
    for p, q in zip(model.parameters(), same.parameters()):
        torch.testing.assert_close(p, q, atol=1e-3, rtol=0)


@pytest.mark.parametrize("lengths", [[16] * STEPS, [16, 12] * (STEPS // 2)], ids=["even", "varied"])
@pytest.mark.parametrize("recipe", ["rnn_lm-tiny", "ulmfit-tiny", "nnlm-tiny", "transformer_xl-tiny"])
def test_replayed_segments_are_the_plain_ones(recipe: str, lengths: list[int]) -> None:
    agree(recipe, lambda: stream(lengths))


def test_a_replayed_query_stream_is_the_plain_one() -> None:
    agree("xlnet-tiny", permuted)


@pytest.mark.parametrize("output", ["negative_sampling", "hierarchical_softmax"])
@pytest.mark.parametrize("mean", [False, True], ids=["skip-gram", "cbow"])
def test_replayed_rows_are_the_plain_ones(output: str, mean: bool) -> None:
    agree("word2vec-tiny", lambda: windows(output, mean))
