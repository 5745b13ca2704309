"""Masked and causal language modeling in one model: batches of both kinds, their shares, and the laws in both modes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from polyseme.errors import ConfigError, UnsupportedError
from polyseme.nn.cuda_graph import shape_signature
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import SegmentState
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.hybrid_lm import HybridLM
from polyseme.objectives.losses import compute_losses, evaluate_batch
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.recipes import RECIPES
from tests.support import cases
from tests.support.corpora import CLS, SEP, bind, random_corpus

SMALL = random_corpus(20, 10, 20)


def step_batches(objective, step_size=4, num_steps=2, start_step=0, shape=None, world_size=1, rank=0):
    """Return the batches of the first steps, a list for each step."""
    builder = bind(objective, SMALL)
    sampler = builder.build_sampler(200, step_size, seed=3)
    steps = sampler.steps(rank=rank, world_size=world_size, start_step=start_step)
    shape = builder.static_shape(200) if shape else None
    return [
        [builder.batch_of_bin(b, shape, SegmentState()) for b in bins]
        for bins, _ in (next(steps) for _ in range(num_steps))
    ]


def test_a_causal_batch_predicts_every_token_after_the_first():
    builder = bind(HybridLM(causal_fraction=1.0), SMALL)
    ids = np.arange(5)
    batch, masked = builder.batch(ids, 0), bind(MaskedLM(), SMALL).batch(ids, 0)
    layout, targets = batch.inputs.layout, batch.targets["next"]
    assert layout.causal and layout.lengths == masked.inputs.layout.lengths and list(batch.targets) == ["next"]
    tokens = batch.inputs.tokens
    assert (tokens[layout.first_indices] == CLS).all() and (tokens[layout.last_indices] == SEP).all()
    assert targets.count == layout.num_tokens - len(ids)
    assert torch.equal(targets.labels, tokens[targets.rows + 1])
    assert not set(targets.rows.tolist()) & set(layout.last_indices.tolist())


def test_a_masked_batch_is_that_of_masked_lm():
    hybrid, masked = (bind(o, SMALL).batch(np.arange(5), 2) for o in (HybridLM(causal_fraction=0.0), MaskedLM()))
    assert torch.equal(hybrid.inputs.tokens, masked.inputs.tokens) and not hybrid.inputs.layout.causal
    assert torch.equal(hybrid.targets["masked"].rows, masked.targets["masked"].rows)


@pytest.mark.parametrize("fraction,step_size", [(0.5, 2), (0.5, 4), (0.25, 4), (1 / 16, 16), (0.3, 4), (0.9, 10)])
def test_the_share_of_causal_batches_is_exact_and_every_step_has_both(fraction, step_size):
    objective = HybridLM(causal_fraction=fraction)
    counts = [objective.num_causal(step, step_size) for step in range(1000)]
    assert abs(sum(counts) - fraction * step_size * 1000) <= 1
    assert all(0 < count < step_size for count in counts)
    for batches in step_batches(objective, step_size):
        flags = [batch.inputs.layout.causal for batch in batches]
        assert set(flags) == {True, False}
        assert all(tuple(batch.targets) == ("next", "masked") for batch in batches)
        for batch in batches:
            trained, other = ("next", "masked") if batch.inputs.layout.causal else ("masked", "next")
            share = flags.count(batch.inputs.layout.causal) / step_size
            assert batch.targets[trained].weight == pytest.approx(share) and batch.targets[trained].count
            assert batch.targets[other].count == 0


def test_ranks_divide_the_batches_of_a_step():
    whole = step_batches(HybridLM())[0]
    parts = [step_batches(HybridLM(), world_size=2, rank=rank)[0] for rank in range(2)]
    for i, batch in enumerate(whole):
        other = parts[i % 2][i // 2]
        assert torch.equal(other.inputs.tokens, batch.inputs.tokens)
        assert other.inputs.layout.causal == batch.inputs.layout.causal


def test_batches_of_one_kind_have_one_shape():
    """So a compiled model and CUDA graphs see two shapes, one for each mode."""
    batches = [batch for step in step_batches(HybridLM(), num_steps=3, shape=True) for batch in step]
    signatures = {(batch.inputs.layout.causal, shape_signature(batch)) for batch in batches}
    assert len(signatures) == 2
    inputs = batches[0].inputs
    other = replace(inputs, layout=replace(inputs.layout, causal=not inputs.layout.causal))
    assert shape_signature(inputs) != shape_signature(other)


def hybrid_batch(model, rows, causal):
    """Return a batch with a target for every other token of each sequence."""
    batch = cases.training_batch(model, rows)
    layout, name = batch.inputs.layout, "next" if causal else "masked"
    weight = 0.25 if causal else 0.75
    targets = {n: replace(t, weight=weight) for n, t in batch.targets.items()}
    empty = replace(targets[name], rows=targets[name].rows[:0], labels=targets[name].labels[:0], count=0)
    targets = {n: t if n == name else empty for n, t in targets.items()}
    inputs = replace(batch.inputs, layout=layout.as_causal() if causal else layout)
    return replace(batch, inputs=inputs, targets=targets)


def test_sum_law_over_micro_batches_of_both_modes():
    model, rows = cases.tiny_model("gpt-bert"), cases.sequences(cases.LENGTHS)
    whole = cases.gradients(model, [hybrid_batch(model, rows, False), hybrid_batch(model, rows[:4], True)])
    parts = [hybrid_batch(model, rows[:4:2], True), *(hybrid_batch(model, [row], False) for row in rows)]
    for name, gradient in cases.gradients(model, [*parts, hybrid_batch(model, rows[1:4:2], True)]).items():
        torch.testing.assert_close(gradient, whole[name], atol=1e-10, rtol=0)


def test_packing_and_causality_when_read_left_to_right():
    model, rows = cases.tiny_model("gpt-bert"), cases.sequences(cases.LENGTHS)
    layout = PackedLayout.from_lengths(cases.LENGTHS).as_causal()
    with torch.no_grad():
        together = model.trunk(Inputs(torch.cat(rows), layout)).hidden.split(list(cases.LENGTHS))
        for row, states in zip(rows, together):
            for length in {len(row), len(row) // 2 + 1}:  # a prefix has the same states
                part = PackedLayout.from_lengths([length]).as_causal()
                expected = model.trunk(Inputs(row[:length], part)).hidden
                torch.testing.assert_close(states[:length], expected, atol=1e-10, rtol=0)


def test_memory_reads_left_to_right():
    model, row = cases.tiny_model("gpt-bert"), cases.sequences((9,))[0]
    with torch.no_grad():
        expected = model.trunk(Inputs(row, PackedLayout.from_lengths([9]).as_causal())).hidden
        first = model.trunk(Inputs(row[:4], PackedLayout.from_lengths([4])), return_memory=True)
        rest = model.trunk(Inputs(row[4:], PackedLayout.from_lengths([5])), memory=first.memory, return_memory=True)
    torch.testing.assert_close(torch.cat([first.hidden, rest.hidden]), expected, atol=1e-10, rtol=0)


def test_a_masked_token_is_predicted_like_the_next_one_from_the_state_before_it():
    model, layout = cases.tiny_model("gpt-bert"), PackedLayout.from_lengths([4, 5])
    with torch.no_grad():
        hidden = model.trunk(Inputs(torch.cat(cases.sequences((4, 5))), layout)).hidden
        masked = model.predict("masked", hidden, layout)
        following = model.predict("next", hidden, layout)
    assert torch.equal(masked[[1, 2, 3, 5, 6]], following[[0, 1, 2, 4, 5]])
    assert torch.equal(masked[4], following[4]), "the first token of a sequence has no state before it"
    assert [name for name in model.state_dict() if name.startswith("heads.masked")] == []


def test_evaluation_measures_both_losses_on_all_text():
    (batch,) = step_batches(HybridLM(), step_size=1, num_steps=1)[0]
    config = cases.FAMILIES["gpt-bert"].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=2000, max_len=64)
    model = config.build(seed=0).eval()
    scores = HybridLM().evaluate(model, batch)
    assert scores["masked"] == evaluate_batch(model, batch)["masked"]
    assert scores["next"][2] == batch.inputs.layout.num_tokens - len(batch.inputs.layout.lengths)
    assert scores["next"][0] == pytest.approx(compute_losses(model, batch.extra.batch)["next"].item(), rel=1e-5)


@pytest.mark.parametrize("changes,match", [
    ({"objective": MaskedLM()}, "gpt-bert is trained by HybridLM instead of MaskedLM; its causal_fraction 0"),
    ({"objective": CausalLM()}, "gpt-bert is trained by HybridLM instead of CausalLM"),
    ({"family": "modernbert"}, "HybridLM needs a trunk that reads in one or both directions, as that of gpt-bert can"),
    ({"batch_tokens": 1024, "micro_batch_tokens": 512, "max_len": 64, "objective": HybridLM(causal_fraction=0.1)},
     "set it to 64"),
    ({"batch_tokens": 1024, "micro_batch_tokens": 512, "max_len": 128, "objective": HybridLM(causal_fraction=0.1)},
     "set batch_tokens to 5120 or more"),
    ({"objective": HybridLM(causal_fraction=1e-5)}, "needs 100000 or more micro-batches in a step: set batch_tokens"),
    ({"micro_batch_tokens": 4096}, "micro_batch_tokens is 4096, but HybridLM needs 2 or more .*: set it to 2048"),
    ({"objective": HybridLM(causal_fraction=0.1)}, "HybridLM needs 10 or more"),
    ({"batch_warmup_steps": 5}, "batch_warmup_steps is 5, expected 0"),
])  # fmt: skip
def test_what_does_not_fit_is_rejected(changes, match):
    with pytest.raises(ConfigError, match=match):
        RECIPES["gpt-bert-tiny"]().replace(**changes).model_config(99)


def test_values_and_trunks_that_do_not_fit_are_rejected():
    with pytest.raises(ConfigError, match=r"causal_fraction is 1\.5"):
        HybridLM(causal_fraction=1.5)
    model, layout = cases.tiny_model("modernbert"), PackedLayout.from_lengths([3]).as_causal()
    with pytest.raises(UnsupportedError, match="does not support reading left to right"):
        model.trunk(Inputs(torch.arange(3), layout))
    with pytest.raises(ConfigError, match="is_hybrid is true, but the trunk is causal already"):
        cases.tiny_spec("gpt2").trunk.replace(is_hybrid=True).build()
