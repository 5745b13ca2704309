"""Attention of recurrent decoders against the equations of the papers, word by word; and scheduled sampling."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.attention.rnn_attention import RNNAttentionConfig
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.nn.tree import tree_map
from polyseme.nn.trunks.recurrent_decoder import RecurrentDecoderConfig
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.packing import SpecialIds
from polyseme.objectives.translation import ParallelText, Translation
from tests.contracts import cases

SOURCES, TARGETS = (5, 2, 7), (3, 6, 1)
KINDS = [("none", "after_recurrence")]
KINDS += [
    (score, order)
    for score in ("dot", "cosine", "multiplicative", "additive")
    for order in ("inside_recurrence", "after_recurrence")
]
CELLS = {"lstm": (nn.LSTM, nn.LSTMCell), "gru": (nn.GRU, nn.GRUCell), "rnn": (nn.RNN, nn.RNNCell)}
SHORT = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0", "bias_ih": "bias_ih_l0", "bias_hh": "bias_hh_l0"}


def made(attention, order, cell="lstm", **more):
    given = {"num_layers": 1, "dim": 8, "vocab_size": 20, "dropout": 0.0, "attention_dim": 5} | more
    model = (
        FAMILIES["seq2seq"]
        .model_config(attention=attention, context_order=order, cell=cell, **given)
        .build(0)
        .double()
        .eval()
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def score(look, s, h):
    """One number, as the papers have it."""
    if look.config.score == "dot":
        return sum(float(a) * float(b) for a, b in zip(s, h))
    if look.config.score == "cosine":
        sizes = math.sqrt(float((s * s).sum())) * math.sqrt(float((h * h).sum()))
        return float(look.cosine_scale) * float((s * h).sum()) / sizes
    if look.config.score == "multiplicative":
        return float(s @ look.key_proj.weight @ h)
    inner = torch.tanh(look.query_proj.weight @ s + look.key_proj.weight @ h + look.key_proj.bias)
    return float(look.score_proj.weight[0] @ inner)


def context(look, s, states):
    scores = [score(look, s, h) for h in states]
    most = max(scores)
    parts = [math.exp(x - most) for x in scores]
    shares = [part / sum(parts) for part in parts]
    return sum(share * h for share, h in zip(shares, states)), shares


def by_the_equations(model, source, target):
    """The states and the alignment of one pair, of one layer on each side; torch's own cells do the recurrence."""
    trunk, cell = model.trunk, model.config.trunk.encoder.cell
    whole, single = CELLS[cell]
    table, half = trunk.token_embeddings.detach(), 4
    ways = []
    for number, order in enumerate((source, source.flip(0))):
        network = whole(8, half).double()
        own = dict(trunk.encoder.stacks[0][0].cells[number].named_parameters())
        network.load_state_dict({SHORT[name]: weight for name, weight in own.items()})
        ways.append(network(table[order])[0])
    states = torch.cat([ways[0], ways[1].flip(0)], dim=-1)
    decoder = trunk.decoder
    own = dict(decoder.stack.stacks[0][0].cells[0].named_parameters())
    inside = own.pop("weight_ch", None)
    if inside is not None:  # the context beside the word
        own["weight_ih"] = torch.cat([own["weight_ih"], inside], dim=1)
    step = single(own["weight_ih"].shape[1], 8).double()
    step.load_state_dict(own)
    opening = torch.tanh(decoder.bridge(torch.cat([states[-1, :half], states[0, half:]])))
    state = tuple(part[None] for part in opening.split(8))
    found, alignment = [], []
    for token in target:
        hidden = state[0][0]
        x = table[token]
        if inside is not None:
            c, shares = context(decoder.attention, hidden, states)
            x = torch.cat([x, c])
        state = step(x[None], state if cell == "lstm" else state[0])
        state = state if cell == "lstm" else (state,)
        s = state[0][0]
        if decoder.attention is None:
            found.append(s)
            continue
        if inside is None:
            c, shares = context(decoder.attention, s, states)
        found.append(torch.tanh(decoder.combine.weight @ torch.cat([c, s])))
        alignment.append(shares)
    return torch.stack(found), alignment


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("attention,order", KINDS)
def test_a_packed_batch_against_the_equations(attention, order, cell):
    model = made(attention, order, cell)
    sources, targets = cases.sequences(SOURCES), cases.sequences(TARGETS, 1)
    sources, targets = [s % 20 for s in sources], [t % 20 for t in targets]
    source = EncoderInput(torch.cat(sources), PackedLayout.from_lengths(SOURCES))
    with torch.no_grad():
        found = model.trunk(Inputs(torch.cat(targets), PackedLayout.from_lengths(TARGETS), source=source)).hidden.split(
            list(TARGETS)
        )
        maps = model.trunk.cross_weights(Inputs(torch.cat(targets), PackedLayout.from_lengths(TARGETS), source=source))
        assert len(maps) == (attention != "none")
        for i, (a, b) in enumerate(zip(sources, targets)):
            expected, shares = by_the_equations(model, a, b)
            torch.testing.assert_close(found[i], expected, atol=1e-10, rtol=0)
            if maps:
                np.testing.assert_allclose(maps[0][i][0], shares, atol=1e-10)


@pytest.mark.parametrize("order", ["inside_recurrence", "after_recurrence"])
def test_gradients_reach_every_weight(order):
    for attention in ("dot", "cosine", "multiplicative", "additive"):
        model = made(attention, order, num_layers=2)
        batch = cases.training_batch(model, [row % 20 for row in cases.sequences((4, 7, 2))])
        batch.targets["next"].labels.remainder_(20)
        compute_losses(model, batch)["next"].backward()
        assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]


def test_specs_that_do_not_fit():
    with pytest.raises(PolysemeError, match="dim is 7"):
        FAMILIES["seq2seq"].model_config(dim=7)
    with pytest.raises(PolysemeError, match="dot compares states of one size, not 8 with 6"):
        RNNAttentionConfig("dot").build(8, 6)
    trunk = FAMILIES["seq2seq"].trunk_config(dim=8, context_order="inside_recurrence")
    with pytest.raises(PolysemeError, match="with attention"):
        RecurrentDecoderConfig(trunk.decoder.stack, 8)
    with pytest.raises(PolysemeError, match="attention"):
        data = FAMILIES["seq2seq"].model_config(dim=8).to_json()
        data["trunk"]["decoder"]["attention"]["score"] = "attention"
        ModelConfig.from_json(data)


@pytest.mark.parametrize("attention", ["none", "cosine", "additive"])
def test_its_folder_says_all_of_it(attention):
    family = FAMILIES["seq2seq"]
    for order in ("inside_recurrence", "after_recurrence"):
        given = {
            "attention_dim": 5,
            "cell": "gru",
            "gru_reset": "before",
            "tie_word_embeddings": False,
            "target_vocab_size": 12,
        }
        spec = family.model_config(dim=8, attention=attention, context_order=order, num_decoder_layers=2, **given)
        assert family.from_hf_config(family.to_hf_config(spec)) == spec.trunk
    with pytest.raises(PolysemeError, match="attention is 'hard'"):
        family.from_hf_config(family.to_hf_config(spec) | {"attention": "hard"})


# --- scheduled sampling ----------------------------------------------------------------------------------------------

MARKS = SpecialIds(20, frozenset([0]), bos=0, eos=0)


def pairs(count=30):
    rng = np.random.default_rng(0)
    texts = [[rng.integers(1, 20, rng.integers(1, 9)).tolist() for _ in range(count)] for _ in range(2)]
    return ParallelText.from_ids(*texts)


def test_how_often_words_are_the_models_own():
    spec = Translation(scheduled_sampling=0.4, scheduled_sampling_epochs=4)
    assert Translation.from_json(spec.to_json()) == spec
    bound = spec.bind(pairs(3000), MARKS, 16, seed=3)
    ids = np.arange(3000)
    assert bound.batch(ids, 0).extra is None, "at first all words are true"
    for epoch, expected in ((1, 0.1), (2, 0.2), (4, 0.4), (9, 0.4)):
        batch = bound.batch(ids, epoch)
        first = batch.inputs.layout.positions == 0
        assert not batch.extra.mask[first].any()
        assert float(batch.extra.mask[~first].float().mean()) == pytest.approx(expected, abs=0.02)
    alone = [bound.batch(np.array([i]), 2).extra.mask for i in range(5)]
    together = bound.batch(np.arange(5), 2)
    order = np.lexsort((bound.target_lengths[:5], bound.source_lengths[:5]))
    assert torch.equal(together.extra.mask, torch.cat([alone[i] for i in order])), "it depends on no neighbour"
    filled = bound.batch(np.arange(20), 2, bound.static_shape(400))
    assert len(filled.extra.mask) == len(filled.inputs.tokens)
    with pytest.raises(PolysemeError, match="scheduled_sampling is 1"):
        Translation(scheduled_sampling=1.0)


def test_own_words_are_the_likeliest_behind_the_true_ones():
    model = made("multiplicative", "after_recurrence").train()
    batch = Translation(0.0, scheduled_sampling=0.5).bind(pairs(), MARKS, 16).batch(np.arange(30), 0)
    with torch.no_grad():
        last = batch.forward(model).hidden
        said = model.predict("next", last, batch.inputs.layout).argmax(-1)
    tokens = batch.inputs.tokens.clone()
    for i in range(1, len(tokens)):
        if batch.extra.mask[i]:
            tokens[i] = said[i - 1]
    assert (tokens != batch.inputs.tokens).sum() > 10
    with torch.no_grad():
        plain = model.trunk(Inputs(tokens, batch.inputs.layout, source=batch.inputs.source)).hidden
        scores = model.predict("next", plain, batch.inputs.layout)
        expected = nn.functional.cross_entropy(scores, batch.targets["next"].labels, reduction="sum")
        assert compute_losses(model, batch)["next"].item() == pytest.approx(expected.item())
        model.eval()  # what is measured reads the truth
        scores = model.predict("next", last, batch.inputs.layout)
        expected = nn.functional.cross_entropy(scores, batch.targets["next"].labels, reduction="sum")
        assert compute_losses(model, batch)["next"].item() == pytest.approx(expected.item())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("attention,order", KINDS)
def test_a_gpu_gives_the_same_and_nothing_waits_for_it(attention, order):
    model = made(attention, order, num_layers=2).float()
    sources, targets = ([row % 20 for row in cases.sequences(n, 3)] for n in (SOURCES, TARGETS))
    source, layout = (
        EncoderInput(torch.cat(sources), PackedLayout.from_lengths(SOURCES)),
        PackedLayout.from_lengths(TARGETS),
    )
    tokens = torch.cat(targets)
    with torch.no_grad():
        expected = model.trunk(Inputs(tokens, layout, source=source)).hidden
    model.cuda().train()  # kernels that cuDNN can go back through
    given = tokens.cuda(), layout.to("cuda"), tree_map(source, torch.Tensor.cuda)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = model.trunk(Inputs(*given[:2], source=given[2])).hidden
        found.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.detach().cpu(), expected, atol=5e-3, rtol=0)  # cuDNN rounds to TF32
