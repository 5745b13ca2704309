"""Attention of recurrent decoders against the equations of the papers, and scheduled sampling."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.layers.rnn import RNNAttentionConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout, tree_map
from polyseme.nn.trunks.recurrent import RecurrentDecoderConfig
from polyseme.objectives.batch import NO_EXTRA
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.packing import SpecialIds
from polyseme.objectives.translation import ParallelText, Translation
from tests.support import cases

SOURCE_LENGTHS, TARGET_LENGTHS = (5, 2, 7), (3, 6, 1)
ATTENTIONS = [("none", "after_recurrence")]
ATTENTIONS += [
    (reference_score, order)
    for reference_score in ("dot", "cosine", "multiplicative", "additive")
    for order in ("inside_recurrence", "after_recurrence")
]
CELLS = {"lstm": (nn.LSTM, nn.LSTMCell), "gru": (nn.GRU, nn.GRUCell), "rnn": (nn.RNN, nn.RNNCell)}
TORCH_NAMES = {
    "weight_ih": "weight_ih_l0",
    "weight_hh": "weight_hh_l0",
    "bias_ih": "bias_ih_l0",
    "bias_hh": "bias_hh_l0",
}


def build_model(attention, order, cell="lstm", **extra):
    overrides = {"num_layers": 1, "dim": 8, "vocab_size": 20, "dropout": 0.0, "attention_dim": 5} | extra
    model = (
        FAMILIES["seq2seq"]
        .model_config(attention=attention, context_order=order, cell=cell, **overrides)
        .build(0)
        .double()
        .eval()
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def reference_score(attention, s, h):
    """Score one pair of states by the papers' formulas."""
    if attention.config.score == "dot":
        return sum(float(a) * float(b) for a, b in zip(s, h))
    if attention.config.score == "cosine":
        sizes = math.sqrt(float((s * s).sum())) * math.sqrt(float((h * h).sum()))
        return float(attention.cosine_scale) * float((s * h).sum()) / sizes
    if attention.config.score == "multiplicative":
        return float(s @ attention.key_proj.weight @ h)
    inner = torch.tanh(attention.query_proj.weight @ s + attention.key_proj.weight @ h + attention.key_proj.bias)
    return float(attention.score_proj.weight[0] @ inner)


def reference_context(attention, s, states):
    scores = [reference_score(attention, s, h) for h in states]
    max_score = max(scores)
    exps = [math.exp(x - max_score) for x in scores]
    weights = [exp / sum(exps) for exp in exps]
    return sum(weight * h for weight, h in zip(weights, states)), weights


def reference_forward(model, source, target):
    """Compute states and attention weights of one pair with torch's cells, for one layer on each side."""
    trunk, cell = model.trunk, model.config.trunk.encoder.cell
    rnn_class, cell_class = CELLS[cell]
    table, half = trunk.token_embeddings.detach(), 4
    directions = []
    for i, order in enumerate((source, source.flip(0))):
        network = rnn_class(8, half).double()
        params = dict(trunk.encoder.stacks[0][0].cells[i].named_parameters())
        network.load_state_dict({TORCH_NAMES[name]: weight for name, weight in params.items()})
        directions.append(network(table[order])[0])
    states = torch.cat([directions[0], directions[1].flip(0)], dim=-1)
    decoder = trunk.decoder
    params = dict(decoder.stack.stacks[0][0].cells[0].named_parameters())
    context_weight = params.pop("weight_ch", None)
    if context_weight is not None:  # the context is an additional input
        params["weight_ih"] = torch.cat([params["weight_ih"], context_weight], dim=1)
    step = cell_class(params["weight_ih"].shape[1], 8).double()
    step.load_state_dict(params)
    initial_state = torch.tanh(decoder.bridge(torch.cat([states[-1, :half], states[0, half:]])))
    state = tuple(chunk[None] for chunk in initial_state.split(8))
    outputs, weights_per_token = [], []
    for token in target:
        hidden = state[0][0]
        x = table[token]
        if context_weight is not None:
            c, weights = reference_context(decoder.attention, hidden, states)
            x = torch.cat([x, c])
        state = step(x[None], state if cell == "lstm" else state[0])
        state = state if cell == "lstm" else (state,)
        s = state[0][0]
        if decoder.attention is None:
            outputs.append(s)
            continue
        if context_weight is None:
            c, weights = reference_context(decoder.attention, s, states)
        outputs.append(torch.tanh(decoder.combine.weight @ torch.cat([c, s])))
        weights_per_token.append(weights)
    return torch.stack(outputs), weights_per_token


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("attention,order", ATTENTIONS)
def test_packed_batch_matches_the_equations(attention, order, cell):
    model = build_model(attention, order, cell)
    sources, targets = cases.sequences(SOURCE_LENGTHS), cases.sequences(TARGET_LENGTHS, 1)
    sources, targets = [s % 20 for s in sources], [t % 20 for t in targets]
    source = EncoderInput(torch.cat(sources), PackedLayout.from_lengths(SOURCE_LENGTHS))
    with torch.no_grad():
        outputs = model.trunk(
            Inputs(torch.cat(targets), PackedLayout.from_lengths(TARGET_LENGTHS), source=source)
        ).hidden.split(list(TARGET_LENGTHS))
        for i, (a, b) in enumerate(zip(sources, targets)):
            expected, weights = reference_forward(model, a, b)
            torch.testing.assert_close(outputs[i], expected, atol=1e-10, rtol=0)
            one_source = EncoderInput(a, PackedLayout.from_lengths([len(a)]))
            one = Inputs(b, PackedLayout.from_lengths([len(b)]), source=one_source)
            terms = dict(model.trunk.attention_terms(one))
            assert list(terms) == ["cross"] * (attention != "none")
            if terms:
                np.testing.assert_allclose(terms["cross"].weights[0], weights, atol=1e-10)


@pytest.mark.parametrize("order", ["inside_recurrence", "after_recurrence"])
def test_gradients_reach_every_weight(order):
    for attention in ("dot", "cosine", "multiplicative", "additive"):
        model = build_model(attention, order, num_layers=2)
        batch = cases.training_batch(model, [row % 20 for row in cases.sequences((4, 7, 2))])
        batch.targets["next"].labels.remainder_(20)
        compute_losses(model, batch)["next"].backward()
        assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]


def test_invalid_configs_are_rejected():
    with pytest.raises(PolysemeError, match="dim is 7"):
        FAMILIES["seq2seq"].model_config(dim=7)
    with pytest.raises(PolysemeError, match="dot attention needs decoder and encoder states of one size, got 8 and 6"):
        RNNAttentionConfig("dot").build(8, 6)
    trunk = FAMILIES["seq2seq"].trunk_config(dim=8, context_order="inside_recurrence")
    with pytest.raises(PolysemeError, match="with attention"):
        RecurrentDecoderConfig(trunk.decoder.stack, 8)
    with pytest.raises(PolysemeError, match="attention"):
        config_json = FAMILIES["seq2seq"].model_config(dim=8).to_json()
        config_json["trunk"]["decoder"]["attention"]["score"] = "attention"
        ModelConfig.from_json(config_json)


@pytest.mark.parametrize("attention", ["none", "cosine", "additive"])
def test_hf_config_round_trip(attention):
    family = FAMILIES["seq2seq"]
    for order in ("inside_recurrence", "after_recurrence"):
        overrides = {
            "attention_dim": 5,
            "cell": "gru",
            "gru_reset": "before",
            "tie_word_embeddings": False,
            "target_vocab_size": 12,
        }
        config = family.model_config(dim=8, attention=attention, context_order=order, num_decoder_layers=2, **overrides)
        assert family.from_hf_config(family.to_hf_config(config)) == config.trunk
    with pytest.raises(PolysemeError, match="attention is 'hard'"):
        family.from_hf_config(family.to_hf_config(config) | {"attention": "hard"})


# --- scheduled sampling ----------------------------------------------------------------------------------------------

SPECIAL_IDS = SpecialIds(20, frozenset([0]), bos=0, eos=0)


def make_parallel_text(count=30):
    rng = np.random.default_rng(0)
    texts = [[rng.integers(1, 20, rng.integers(1, 9)).tolist() for _ in range(count)] for _ in range(2)]
    return ParallelText.from_ids(*texts)


def test_scheduled_sampling_rate_increases_by_epoch():
    objective = Translation(scheduled_sampling=0.4, scheduled_sampling_epochs=4)
    assert Translation.from_json(objective.to_json()) == objective
    bound_objective = objective.bind(make_parallel_text(3000), SPECIAL_IDS, 16, seed=3)
    ids = np.arange(3000)
    assert bound_objective.batch(ids, 0).extra is NO_EXTRA, "no sampling in the first epoch"
    for epoch, expected in ((1, 0.1), (2, 0.2), (4, 0.4), (9, 0.4)):
        batch = bound_objective.batch(ids, epoch)
        is_first = batch.inputs.layout.positions == 0
        assert not batch.extra.mask[is_first].any()
        assert float(batch.extra.mask[~is_first].float().mean()) == pytest.approx(expected, abs=0.02)
    single = [bound_objective.batch(np.array([i]), 2).extra.mask for i in range(5)]
    batched = bound_objective.batch(np.arange(5), 2)
    order = np.lexsort((bound_objective.target_lengths[:5], bound_objective.source_lengths[:5]))
    assert torch.equal(batched.extra.mask, torch.cat([single[i] for i in order])), "independent of the batch"
    static_batch = bound_objective.batch(np.arange(20), 2, bound_objective.static_shape(400))
    assert len(static_batch.extra.mask) == len(static_batch.inputs.tokens)
    with pytest.raises(PolysemeError, match="scheduled_sampling is 1"):
        Translation(scheduled_sampling=1.0)


def test_scheduled_sampling_uses_the_most_likely_tokens():
    model = build_model("multiplicative", "after_recurrence").train()
    batch = Translation(0.0, scheduled_sampling=0.5).bind(make_parallel_text(), SPECIAL_IDS, 16).batch(np.arange(30), 0)
    with torch.no_grad():
        hidden = batch.forward(model).hidden
        predicted = model.predict("next", hidden, batch.inputs.layout).argmax(-1)
    tokens = batch.inputs.tokens.clone()
    for i in range(1, len(tokens)):
        if batch.extra.mask[i]:
            tokens[i] = predicted[i - 1]
    assert (tokens != batch.inputs.tokens).sum() > 10
    with torch.no_grad():
        sampled_hidden = model.trunk(Inputs(tokens, batch.inputs.layout, source=batch.inputs.source)).hidden
        scores = model.predict("next", sampled_hidden, batch.inputs.layout)
        expected = nn.functional.cross_entropy(scores, batch.targets["next"].labels, reduction="sum")
        assert compute_losses(model, batch)["next"].item() == pytest.approx(expected.item())
        model.eval()  # no sampling in evaluation
        scores = model.predict("next", hidden, batch.inputs.layout)
        expected = nn.functional.cross_entropy(scores, batch.targets["next"].labels, reduction="sum")
        assert compute_losses(model, batch)["next"].item() == pytest.approx(expected.item())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("attention,order", ATTENTIONS)
def test_gpu_matches_cpu_without_host_sync(attention, order):
    model = build_model(attention, order, num_layers=2).float()
    sources, targets = ([row % 20 for row in cases.sequences(n, 3)] for n in (SOURCE_LENGTHS, TARGET_LENGTHS))
    source, layout = (
        EncoderInput(torch.cat(sources), PackedLayout.from_lengths(SOURCE_LENGTHS)),
        PackedLayout.from_lengths(TARGET_LENGTHS),
    )
    tokens = torch.cat(targets)
    with torch.no_grad():
        expected = model.trunk(Inputs(tokens, layout, source=source)).hidden
    model.cuda().train()  # cuDNN needs training mode for the backward pass
    gpu_inputs = tokens.cuda(), tree_map(layout, torch.Tensor.cuda), tree_map(source, torch.Tensor.cuda)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        hidden = model.trunk(Inputs(*gpu_inputs[:2], source=gpu_inputs[2])).hidden
        hidden.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(hidden.detach().cpu(), expected, atol=5e-3, rtol=0)  # cuDNN rounds to TF32
