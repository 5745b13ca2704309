"""Recurrent trunks: the plain body against equations, the fused one against the plain one and torch's own modules."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.inputs import Inputs
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.recurrent import RecurrentTrunk, RecurrentTrunkConfig
from polyseme.nn.trunks.window import FeedForwardLMConfig

VOCAB, DIM = 20, 6
UNEVEN, EVEN = (3, 0, 7, 1, 7), (5, 5, 5)


def spec(**changes) -> RecurrentTrunkConfig:
    """Three layers of one size, of half of it where two directions stand side by side."""
    size = DIM // 2 if changes.get("direction") == "bidirectional" else DIM
    sizes = (size,) * 3 if not changes.get("projection_dim") else (10,) * 3
    given = {"embeddings": EmbeddingsConfig(VOCAB, DIM, 99, position_embedding_type="none"), "hidden_dims": sizes}
    return RecurrentTrunkConfig(**given | changes)


def built(spec: RecurrentTrunkConfig) -> RecurrentTrunk:
    trunk = spec.build().double()
    trunk.initialize(torch.Generator().manual_seed(1))
    return trunk


def text(lengths=UNEVEN, seed=0):
    layout = PackedLayout.from_lengths(lengths)
    return torch.randint(0, VOCAB, (layout.num_tokens,), generator=torch.Generator().manual_seed(seed)), layout


WAYS = ("forward", "backward", "both", "bidirectional")
KINDS = [
    {"cell": cell, "direction": direction, "skip": skip}
    for cell, direction, skip in itertools.product(("rnn", "gru", "lstm"), WAYS, ("none", "dense", "highway"))
] + [{"projection_dim": 6, "skip": "residual"}, {"projection_dim": 3, "direction": "both"}]


@pytest.mark.parametrize("lengths", [UNEVEN, EVEN], ids=["uneven", "even"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_both_bodies_are_one(kind, lengths):
    trunk = built(spec(**kind))
    tokens, layout = text(lengths)
    found = []
    for plain in (False, True):
        trunk.use_reference = plain
        trunk.zero_grad()
        reading = trunk(Inputs(tokens, layout), layers=range(4))
        reading.hidden.square().sum().backward()
        assert torch.equal(reading.layers[3], reading.hidden) and reading.hidden.shape[-1] == trunk.config.dim
        found.append([reading.hidden, *(p.grad for p in trunk.parameters())])
    for fused, plain in zip(*found):
        torch.testing.assert_close(fused, plain, atol=1e-10, rtol=0)
    matrices = sum(p.numel() for p in trunk.stacks.parameters() if p.ndim > 1)
    assert (
        matrices == trunk.config.matmul_params
        and RecurrentTrunkConfig.from_json(trunk.config.to_json()) == trunk.config
    )


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("gru_reset", ["before", "after"])
def test_the_gru_is_its_equations(gru_reset):
    """Cho et al. 2014, eq. 5 to 8: h̃ = tanh(Wx + U(r ⊙ h)), h = z·h + (1 − z)·h̃; torch has r ⊙ (Uh)."""
    trunk = built(spec(hidden_dims=(5,), cell="gru", gru_reset=gru_reset))
    trunk.use_reference = True
    tokens, layout = text((4,))
    cell = trunk.stacks[0][0].cells[0]
    (w_r, w_z, w_n), (u_r, u_z, u_n) = (np.split(w.detach().numpy(), 3) for w in (cell.weight_ih, cell.weight_hh))
    (b_r, b_z, b_n), (c_r, c_z, c_n) = (np.split(b.detach().numpy(), 3) for b in (cell.bias_ih, cell.bias_hh))
    h = np.zeros(5)
    with torch.no_grad():
        states = trunk(Inputs(tokens, layout)).hidden.numpy()
    for x, found in zip(trunk.token_embeddings.detach().numpy()[tokens], states):
        r, z = sigmoid(w_r @ x + b_r + u_r @ h + c_r), sigmoid(w_z @ x + b_z + u_z @ h + c_z)
        inner = u_n @ (r * h) + c_n if gru_reset == "before" else r * (u_n @ h + c_n)
        h = z * h + (1 - z) * np.tanh(w_n @ x + b_n + inner)
        np.testing.assert_allclose(found, h, atol=1e-12)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("cell,theirs", [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_equals_torchs_modules(cell, theirs, direction, plain):
    """Outputs and last states of nn.RNN, nn.GRU and nn.LSTM, on sequences of several lengths, with a state before."""
    two = direction == "bidirectional"
    trunk = built(spec(cell=cell, direction=direction, hidden_dims=(4, 4)))
    trunk.use_reference = plain
    other = theirs(DIM, 4, 2, bidirectional=two).double()
    own = {
        f"{name}_l{depth}{'_reverse' * way}": weight
        for depth, layer in enumerate(trunk.stacks[0])
        for way, part in enumerate(layer.cells)
        for name, weight in part.named_parameters()
    }
    other.load_state_dict(own)
    tokens, layout = text((3, 7, 1))
    rows = trunk.token_embeddings.index_select(0, tokens).split([3, 7, 1])
    packed = nn.utils.rnn.pack_sequence(list(rows), enforce_sorted=False)
    expected, ends = other(packed)
    padded, _ = nn.utils.rnn.pad_packed_sequence(expected, batch_first=True)
    reading = trunk(Inputs(tokens, layout), return_memory=not two)
    torch.testing.assert_close(reading.hidden, layout.unpad(padded), atol=1e-12, rtol=0)
    if not two:
        ends = ends if cell == "lstm" else (ends,)
        for depth, part in enumerate(reading.memory.states):
            for found, end in zip(part, ends, strict=True):
                torch.testing.assert_close(found, end[depth], atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_backwards_the_next_chunk_is_the_one_before(cell):
    trunk = built(spec(cell=cell, direction="backward"))
    tokens, layout = text((9, 9))
    first, second = tokens.view(2, 9)[:, :4].reshape(-1), tokens.view(2, 9)[:, 4:].reshape(-1)
    with torch.no_grad():
        whole = trunk(Inputs(tokens, layout)).hidden.view(2, 9, -1)
        late = trunk(Inputs(second, PackedLayout.from_lengths([5, 5])), return_memory=True)
        early = trunk(Inputs(first, PackedLayout.from_lengths([4, 4])), memory=late.memory)
    torch.testing.assert_close(late.hidden.view(2, 5, -1), whole[:, 4:], atol=1e-12, rtol=0)
    torch.testing.assert_close(early.hidden.view(2, 4, -1), whole[:, :4], atol=1e-12, rtol=0)
    assert late.memory.num_seen == (5, 5) and len(late.memory.states[0]) == (2 if cell == "lstm" else 1)


def test_the_state_of_an_empty_sequence_stays():
    trunk = built(spec(cell="lstm"))
    tokens, layout = text((3, 2))
    memory = trunk(Inputs(tokens, layout), return_memory=True).memory
    after = trunk(Inputs(tokens[:2], PackedLayout.from_lengths([0, 2])), memory=memory, return_memory=True).memory
    for old, new in zip(memory.states, after.states):
        for a, b in zip(old, new):
            assert torch.equal(a[0], b[0]) and not torch.equal(a[1], b[1])
    none = trunk(Inputs(tokens[:0], PackedLayout.from_lengths([0, 0])), memory=memory, return_memory=True)
    assert none.hidden.shape == (0, DIM) and torch.equal(none.memory.states[0][0], memory.states[0][0])


@pytest.mark.parametrize("lengths", [UNEVEN, (6, 6, 6)], ids=["uneven", "even"])
@pytest.mark.parametrize("where", ["input_dropout", "dropout", "output_dropout"])
def test_a_variational_mask_is_constant_in_time(where, lengths):
    """Of each sequence its own; without `variational_dropout`, of each time step. Layers are kept before what follows
    them."""
    tokens, layout = text(lengths)
    for variational in (True, False):
        trunk = built(spec(hidden_dims=(40, 40), variational_dropout=variational, **{where: 0.5})).train()
        with torch.no_grad():
            reading = trunk(Inputs(tokens, layout), layers=[0, 1, 2])
            assert torch.equal(trunk.eval()(Inputs(tokens, layout), layers=[0]).layers[0], reading.layers[0])
        if where != "output_dropout":
            assert torch.equal(reading.hidden, reading.layers[2])
            continue
        ratio = reading.hidden / reading.layers[2]
        assert set(ratio.round(decimals=6).unique().tolist()) == {0.0, 2.0}
        masks = [part for part in ratio.split(list(lengths)) if len(part) > 1]
        same = [bool((mask == mask[:1]).all()) for mask in masks]
        assert all(same) if variational else not any(same)
        assert not torch.equal(masks[0][0], masks[1][0])


@pytest.mark.parametrize("cell,theirs", [("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_weight_drop(cell, theirs):
    """One mask for all steps, another at each reading; the raw weights stay, and get the gradient that passed."""
    trunk = built(spec(cell=cell, hidden_dims=(DIM,), weight_dropout=0.5)).train()
    tokens, layout = text((6, 6))
    own = trunk.stacks[0][0].cells[0]
    before = own.weight_hh.detach().clone()
    torch.manual_seed(5)
    found = trunk(Inputs(tokens, layout)).hidden
    found.sum().backward()
    torch.manual_seed(5)
    dropped = nn.functional.dropout(before, 0.5)
    other = theirs(DIM, DIM).double()
    other.load_state_dict({"weight_ih_l0": own.weight_ih, "weight_hh_l0": dropped,
                           "bias_ih_l0": own.bias_ih, "bias_hh_l0": own.bias_hh})  # fmt: skip
    x = trunk.token_embeddings.detach().index_select(0, tokens).view(2, 6, -1).transpose(0, 1)
    expected, _ = other(x)
    torch.testing.assert_close(found, expected.transpose(0, 1).reshape(12, -1), atol=1e-12, rtol=0)
    assert torch.equal(own.weight_hh, before) and own.weight_hh.requires_grad
    assert (own.weight_hh.grad[dropped == 0] == 0).all() and (own.weight_hh.grad[dropped != 0] != 0).any()
    assert not torch.equal(trunk(Inputs(tokens, layout)).hidden, found)
    assert torch.equal(trunk.eval()(Inputs(tokens, layout)).hidden, trunk(Inputs(tokens, layout)).hidden)


def test_word_dropout_takes_a_word_wherever_it_stands():
    part = EmbeddingsConfig(VOCAB, DIM, 99, position_embedding_type="none", embedding_row_dropout=0.5).build().train()
    tokens = torch.arange(VOCAB).repeat(3)
    table = part.token_embeddings.detach().clone()
    found = part(tokens, tokens, None, 60).view(3, VOCAB, DIM)
    ratio = found / table
    assert torch.equal(ratio[0], ratio[1]) and set(ratio.detach().round(decimals=4).unique().tolist()) == {0.0, 2.0}
    assert (ratio == ratio[..., :1]).all() and torch.equal(part.token_embeddings, table)
    assert torch.equal(part.eval()(tokens, tokens, None, 60)[:VOCAB], table)


@pytest.mark.parametrize("changes,says", [
    ({"cell": "gru", "projection_dim": 3}, "projection_dim is 3"),
    ({"skip": "residual", "hidden_dims": (6, 8)}, "of one size"),
    ({"skip": "highway", "direction": "bidirectional", "hidden_dims": (6, 6)}, "of one size"),
    ({"weight_dropout": 1.0}, "weight_dropout is 1.0"),
    ({"hidden_dims": (6, 0)}, "is 0"),
])  # fmt: skip
def test_what_does_not_fit_is_told(changes, says):
    with pytest.raises(PolysemeError, match=says):
        spec(**changes)


def test_no_layers_and_no_memory_of_bidirectional_layers():
    with pytest.raises(PolysemeError, match="at least one layer"):
        spec(hidden_dims=()).build()
    tokens, layout = text((3, 3))
    with pytest.raises(PolysemeError, match="does not support memory"):
        built(spec(direction="bidirectional"))(Inputs(tokens, layout), return_memory=True)


def test_per_layer_sizes_have_the_counts_of_the_lecture():
    """AWD-LSTM's encoder with 60,003 words, 300 → 1150 → 1150 → 300 has 37,011,700 parameters."""
    given = RecurrentTrunkConfig(
        EmbeddingsConfig(60_003, 300, 1 << 20, position_embedding_type="none"), (1150, 1150, 300)
    )
    with torch.device("meta"):
        assert sum(p.numel() for p in given.build().parameters()) == 37_011_700


def test_one_word_on_each_side_of_a_window_is_not_read():
    """The state is tanh(d + Hx) of the last words alone, zeros before the first; the vectors behind it if direct."""
    trunk = (
        FeedForwardLMConfig(
            EmbeddingsConfig(VOCAB, 4, 99, position_embedding_type="none"), 3, 7, direct_connections=True
        )
        .build()
        .double()
    )
    trunk.initialize(torch.Generator().manual_seed(1))
    tokens, layout = text((5, 2))
    vectors = trunk.token_embeddings.detach().index_select(0, tokens)
    with torch.no_grad():
        found = trunk(Inputs(tokens, layout)).hidden
        for row, window in ((4, [2, 3, 4]), (0, [None, None, 0]), (6, [None, 5, 6])):
            x = torch.cat([torch.zeros(4).double() if i is None else vectors[i] for i in window])
            state = torch.tanh(trunk.hidden.weight @ x + trunk.hidden.bias)
            torch.testing.assert_close(found[row], torch.cat([state, x]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("direct_connections", [False, True])
def test_the_window_model_has_the_papers_number_of_weights(direct_connections):
    """Bengio et al. 2003, §2: |V|(1 + nm + h) + h(1 + (n − 1)m) with direct connections."""
    v, m, h, n = 17_964, 100, 60, 6
    with torch.device("meta"):
        model = FAMILIES["nnlm"].model_config("ap", direct_connections=direct_connections).build()
    count = sum(p.numel() for p in model.parameters())
    assert count == v * (1 + n * m + h) + h * (1 + (n - 1) * m) - (0 if direct_connections else v * (n - 1) * m)
