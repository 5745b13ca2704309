"""Batches filled up to one shape: the same losses and gradients, by kernels that do not depend on lengths."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from polyseme.nn.attention import attend, relative
from polyseme.nn.attention.attend import AttentionOptions
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.span_corruption import SpanCorruption
from tests.support import cases
from tests.support.corpora import BERT, random_corpus

FAMILIES = ["xlnet", "t5", "music"]  # whose attention has a bias or relative positions
OBJECTIVES = {"xlnet": PermutationLM(), "t5": SpanCorruption(), "music": CausalLM()}
SPECIAL_IDS = replace(BERT, eos=6, pad=0, bos=7, sentinels=tuple(range(40, 50)))


@pytest.fixture
def use_padding(monkeypatch):
    """Attend over one padded batch of all slots, as on a GPU."""
    for module in (attend, relative):
        monkeypatch.setattr(module, "prefers_padding", lambda x: True)


def build_batches(family: str):
    """Return batches of the same samples, of exact size and of a static shape."""
    corpus = random_corpus(20, 6, 14)
    corpus.tokens = corpus.tokens % 30 + 10
    builder = OBJECTIVES[family].bind(corpus, SPECIAL_IDS, 24, 1)
    return [builder.batch(np.arange(9), 3, shape) for shape in (None, builder.static_shape(400))]


def loss_and_grads(model, batch):
    model.zero_grad()
    (loss,) = compute_losses(model, batch).values()
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
def test_filler_changes_neither_losses_nor_gradients(family, use_padding):
    model = cases.tiny_model(family)
    exact, static = build_batches(family)
    assert static.inputs.layout.has_static_shape and not exact.inputs.layout.has_static_shape
    assert len(static.inputs.tokens) > len(exact.inputs.tokens)
    expected_loss, expected = loss_and_grads(model, exact)
    loss, grads = loss_and_grads(model, static)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=1e-12)
    assert grads.keys() == expected.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cpu_computes_the_same(family):
    model = cases.tiny_model(family)
    exact, static = (loss_and_grads(model, batch)[0] for batch in build_batches(family))
    torch.testing.assert_close(exact, static, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_a_bias_reads_no_length_and_is_one_graph(causal, use_padding):
    """Dynamo traces it without a break, and the graph of one batch serves another of its shape."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    bias = torch.randn(2, 2 * 9 - 1, dtype=torch.float64)
    options = AttentionOptions(causal, bias=bias)
    compiled = torch.compile(attend.attend, backend=backend, fullgraph=True)
    for lengths in ((3, 5, 5, 9), (1, 9, 9, 3), (8, 7, 7)):
        exact, static = PackedLayout.from_lengths(lengths), PackedLayout.from_lengths(lengths, 6, 9)
        q, k, v = torch.randn(3, exact.num_tokens, 2, 16, dtype=torch.float64)
        expected = attend.attend_bucketed(q, k, v, exact, exact, options)
        hidden = replace(static, lengths=())
        torch.testing.assert_close(compiled(q, k, v, hidden, hidden, options), expected, atol=1e-12, rtol=0)
    assert len(graphs) == 1


def test_relative_attention_has_one_run_for_all_slots(use_padding, monkeypatch):
    model, (_, static), shapes = cases.tiny_model("xlnet"), build_batches("xlnet"), []
    compute_runs = relative.RelativePositionContext._compute_runs

    def record_shapes(self, *args):
        runs = compute_runs(self, *args)
        shapes.append([(run.num_sequences, run.num_queries, run.num_keys) for run in runs])
        return runs

    monkeypatch.setattr(relative.RelativePositionContext, "_compute_runs", record_shapes)
    compute_losses(model, static)
    num_slots = len(static.inputs.layout.cu_seqlens) - 1
    assert shapes == [[(num_slots, 24, 24)], [(num_slots, 3, 24)]], "of tokens, then of targets"


def test_filler_targets_of_a_query_stream():
    """They fill the stream up, belong to filler sequences, and are not counted."""
    exact, static = build_batches("xlnet")
    target, stream = static.targets["masked"], static.inputs.query_stream
    assert target.count == exact.targets["masked"].count == int((target.labels != IGNORE_INDEX).sum())
    assert len(target.rows) == len(stream.target_positions) == stream.layout.num_tokens
    assert (target.rows[: target.count] == len(static.inputs.tokens) + torch.arange(target.count)).all()
    sequence_ids = static.inputs.layout.sequence_ids[stream.target_positions]
    assert torch.equal(sequence_ids, stream.layout.sequence_ids), "a target and its token are in the same sequence"
    assert (sequence_ids[target.count :] >= len(exact.inputs.layout.lengths)).all()
    assert max(stream.layout.lengths) <= stream.layout.max_seqlen
    assert stream.layout.cu_seqlens.shape == static.inputs.layout.cu_seqlens.shape
