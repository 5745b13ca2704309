"""Recurrent trunks: reference against equations, fused implementation against reference and torch modules."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.layers import rnn
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.recurrent import RecurrentTrunk, RecurrentTrunkConfig
from polyseme.nn.trunks.shallow import FeedForwardLMConfig

VOCAB, DIM = 20, 6
UNEVEN, EVEN = (3, 0, 7, 1, 7), (5, 5, 5)


def make_config(**changes) -> RecurrentTrunkConfig:
    """Three layers of one size, or half of it if bidirectional."""
    hidden_dim = DIM // 2 if changes.get("direction") == "bidirectional" else DIM
    hidden_dims = (hidden_dim,) * 3 if not changes.get("projection_dim") else (10,) * 3
    defaults = {
        "embeddings": EmbeddingsConfig(VOCAB, DIM, 99, position_embedding_type="none"),
        "hidden_dims": hidden_dims,
    }
    return RecurrentTrunkConfig(**defaults | changes)


def build_trunk(config: RecurrentTrunkConfig) -> RecurrentTrunk:
    trunk = config.build().double()
    trunk.initialize(torch.Generator().manual_seed(1))
    return trunk


def make_tokens(lengths=UNEVEN, seed=0):
    layout = PackedLayout.from_lengths(lengths)
    return torch.randint(0, VOCAB, (layout.num_tokens,), generator=torch.Generator().manual_seed(seed)), layout


DIRECTIONS = ("forward", "backward", "both", "bidirectional")
KINDS = [
    {"cell": cell, "direction": direction, "skip": skip}
    for cell, direction, skip in itertools.product(("rnn", "gru", "lstm"), DIRECTIONS, ("none", "dense", "highway"))
] + [{"projection_dim": 6, "skip": "residual"}, {"projection_dim": 3, "direction": "both"}]


@pytest.mark.parametrize("lengths", [UNEVEN, EVEN], ids=["uneven", "even"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_fused_and_reference_implementations_agree(kind, lengths):
    trunk = build_trunk(make_config(**kind))
    tokens, layout = make_tokens(lengths)
    outputs = []
    for use_reference in (False, True):
        trunk.use_reference = use_reference
        trunk.zero_grad()
        output = trunk(Inputs(tokens, layout), layers=range(4))
        output.hidden.square().sum().backward()
        assert torch.equal(output.layers[3], output.hidden) and output.hidden.shape[-1] == trunk.config.dim
        outputs.append([output.hidden, *(p.grad for p in trunk.parameters())])
    for fused, use_reference in zip(*outputs):
        torch.testing.assert_close(fused, use_reference, atol=1e-10, rtol=0)
    matrices = sum(p.numel() for p in trunk.stacks.parameters() if p.ndim > 1)
    assert (
        matrices == trunk.config.matmul_params
        and RecurrentTrunkConfig.from_json(trunk.config.to_json()) == trunk.config
    )


@pytest.mark.parametrize("lengths", [UNEVEN, EVEN], ids=["uneven", "even"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.get("direction") == "bidirectional"], ids=str)
def test_one_kernel_for_both_directions_as_on_a_gpu(kind, lengths, monkeypatch):
    trunk, (tokens, layout), outputs = build_trunk(make_config(**kind)), make_tokens(lengths), []
    for is_joint in (False, True):
        monkeypatch.setattr(rnn, "prefers_joint_kernel", lambda x, is_joint=is_joint: is_joint)
        trunk.zero_grad()
        hidden = trunk(Inputs(tokens, layout)).hidden
        hidden.square().sum().backward()
        outputs.append([hidden, *(p.grad for p in trunk.parameters())])
    for separate, joint in zip(*outputs, strict=True):
        torch.testing.assert_close(joint, separate, atol=1e-12, rtol=0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("gru_reset", ["before", "after"])
def test_gru_matches_its_equations(gru_reset):
    """Cho et al. 2014, eq. 5 to 8: h̃ = tanh(Wx + U(r ⊙ h)), h = z·h + (1 − z)·h̃; torch has r ⊙ (Uh)."""
    trunk = build_trunk(make_config(hidden_dims=(5,), cell="gru", gru_reset=gru_reset))
    trunk.use_reference = True
    tokens, layout = make_tokens((4,))
    cell = trunk.stacks[0][0].cells[0]
    (w_r, w_z, w_n), (u_r, u_z, u_n) = (np.split(w.detach().numpy(), 3) for w in (cell.weight_ih, cell.weight_hh))
    (b_r, b_z, b_n), (c_r, c_z, c_n) = (np.split(b.detach().numpy(), 3) for b in (cell.bias_ih, cell.bias_hh))
    h = np.zeros(5)
    with torch.no_grad():
        states = trunk(Inputs(tokens, layout)).hidden.numpy()
    for x, state in zip(trunk.token_embeddings.detach().numpy()[tokens], states):
        r, z = sigmoid(w_r @ x + b_r + u_r @ h + c_r), sigmoid(w_z @ x + b_z + u_z @ h + c_z)
        inner = u_n @ (r * h) + c_n if gru_reset == "before" else r * (u_n @ h + c_n)
        h = z * h + (1 - z) * np.tanh(w_n @ x + b_n + inner)
        np.testing.assert_allclose(state, h, atol=1e-12)


@pytest.mark.parametrize("use_reference", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("cell,torch_class", [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_trunk_matches_torch_modules(cell, torch_class, direction, use_reference):
    """Outputs and final states of nn.RNN, nn.GRU and nn.LSTM on sequences of several lengths."""
    is_bidirectional = direction == "bidirectional"
    trunk = build_trunk(make_config(cell=cell, direction=direction, hidden_dims=(4, 4)))
    trunk.use_reference = use_reference
    torch_module = torch_class(DIM, 4, 2, bidirectional=is_bidirectional).double()
    weights = {
        f"{name}_l{depth}{'_reverse' * i}": weight
        for depth, layer in enumerate(trunk.stacks[0])
        for i, cell_module in enumerate(layer.cells)
        for name, weight in cell_module.named_parameters()
    }
    torch_module.load_state_dict(weights)
    tokens, layout = make_tokens((3, 7, 1))
    rows = trunk.token_embeddings.index_select(0, tokens).split([3, 7, 1])
    packed = nn.utils.rnn.pack_sequence(list(rows), enforce_sorted=False)
    expected, ends = torch_module(packed)
    padded, _ = nn.utils.rnn.pad_packed_sequence(expected, batch_first=True)
    output = trunk(Inputs(tokens, layout), return_memory=not is_bidirectional)
    torch.testing.assert_close(output.hidden, layout.unpad(padded), atol=1e-12, rtol=0)
    if not is_bidirectional:
        ends = ends if cell == "lstm" else (ends,)
        for depth, cell_module in enumerate(output.memory.states):
            for state, end in zip(cell_module, ends, strict=True):
                torch.testing.assert_close(state, end[depth], atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_backward_memory_continues_with_the_preceding_chunk(cell):
    trunk = build_trunk(make_config(cell=cell, direction="backward"))
    tokens, layout = make_tokens((9, 9))
    first, second = tokens.view(2, 9)[:, :4].reshape(-1), tokens.view(2, 9)[:, 4:].reshape(-1)
    with torch.no_grad():
        expected = trunk(Inputs(tokens, layout)).hidden.view(2, 9, -1)
        last_chunk = trunk(Inputs(second, PackedLayout.from_lengths([5, 5])), return_memory=True)
        first_chunk = trunk(Inputs(first, PackedLayout.from_lengths([4, 4])), memory=last_chunk.memory)
    torch.testing.assert_close(last_chunk.hidden.view(2, 5, -1), expected[:, 4:], atol=1e-12, rtol=0)
    torch.testing.assert_close(first_chunk.hidden.view(2, 4, -1), expected[:, :4], atol=1e-12, rtol=0)
    assert last_chunk.memory.num_seen == (5, 5) and len(last_chunk.memory.states[0]) == (2 if cell == "lstm" else 1)


def test_empty_sequence_keeps_its_state():
    trunk = build_trunk(make_config(cell="lstm"))
    tokens, layout = make_tokens((3, 2))
    memory = trunk(Inputs(tokens, layout), return_memory=True).memory
    after = trunk(Inputs(tokens[:2], PackedLayout.from_lengths([0, 2])), memory=memory, return_memory=True).memory
    for old, new in zip(memory.states, after.states):
        for a, b in zip(old, new):
            assert torch.equal(a[0], b[0]) and not torch.equal(a[1], b[1])
    empty = trunk(Inputs(tokens[:0], PackedLayout.from_lengths([0, 0])), memory=memory, return_memory=True)
    assert empty.hidden.shape == (0, DIM) and torch.equal(empty.memory.states[0][0], memory.states[0][0])


@pytest.mark.parametrize("lengths", [UNEVEN, (6, 6, 6)], ids=["uneven", "even"])
@pytest.mark.parametrize("field", ["input_dropout", "dropout", "output_dropout"])
def test_variational_dropout_mask_is_constant_in_time(field, lengths):
    """One mask per sequence; without `variational_dropout`, per time step. `layers` are outputs before dropout."""
    tokens, layout = make_tokens(lengths)
    for variational in (True, False):
        trunk = build_trunk(make_config(hidden_dims=(40, 40), variational_dropout=variational, **{field: 0.5})).train()
        with torch.no_grad():
            output = trunk(Inputs(tokens, layout), layers=[0, 1, 2])
            assert torch.equal(trunk.eval()(Inputs(tokens, layout), layers=[0]).layers[0], output.layers[0])
        if field != "output_dropout":
            assert torch.equal(output.hidden, output.layers[2])
            continue
        ratio = output.hidden / output.layers[2]
        assert set(ratio.round(decimals=6).unique().tolist()) == {0.0, 2.0}
        masks = [mask for mask in ratio.split(list(lengths)) if len(mask) > 1]
        is_constant = [bool((mask == mask[:1]).all()) for mask in masks]
        assert all(is_constant) if variational else not any(is_constant)
        assert not torch.equal(masks[0][0], masks[1][0])


@pytest.mark.parametrize("cell,torch_class", [("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_weight_dropout_matches_torch_with_dropped_weights(cell, torch_class):
    """One mask for all steps, a new one for each forward pass; the raw weights are unchanged and get the gradient."""
    trunk = build_trunk(make_config(cell=cell, hidden_dims=(DIM,), weight_dropout=0.5)).train()
    tokens, layout = make_tokens((6, 6))
    cell_module = trunk.stacks[0][0].cells[0]
    before = cell_module.weight_hh.detach().clone()
    torch.manual_seed(5)
    hidden = trunk(Inputs(tokens, layout)).hidden
    hidden.sum().backward()
    torch.manual_seed(5)
    dropped = nn.functional.dropout(before, 0.5)
    torch_module = torch_class(DIM, DIM).double()
    torch_module.load_state_dict({"weight_ih_l0": cell_module.weight_ih, "weight_hh_l0": dropped,
                           "bias_ih_l0": cell_module.bias_ih, "bias_hh_l0": cell_module.bias_hh})  # fmt: skip
    x = trunk.token_embeddings.detach().index_select(0, tokens).view(2, 6, -1).transpose(0, 1)
    expected, _ = torch_module(x)
    torch.testing.assert_close(hidden, expected.transpose(0, 1).reshape(12, -1), atol=1e-12, rtol=0)
    assert torch.equal(cell_module.weight_hh, before) and cell_module.weight_hh.requires_grad
    assert (cell_module.weight_hh.grad[dropped == 0] == 0).all() and (
        cell_module.weight_hh.grad[dropped != 0] != 0
    ).any()
    assert not torch.equal(trunk(Inputs(tokens, layout)).hidden, hidden)
    assert torch.equal(trunk.eval()(Inputs(tokens, layout)).hidden, trunk(Inputs(tokens, layout)).hidden)


def test_embedding_row_dropout_drops_all_occurrences_of_a_word():
    embeddings = (
        EmbeddingsConfig(VOCAB, DIM, 99, position_embedding_type="none", embedding_row_dropout=0.5).build().train()
    )
    tokens = torch.arange(VOCAB).repeat(3)
    table = embeddings.token_embeddings.detach().clone()
    inputs = Inputs(tokens, PackedLayout.from_lengths([len(tokens)]))
    output = embeddings(inputs).view(3, VOCAB, DIM)
    ratio = output / table
    assert torch.equal(ratio[0], ratio[1]) and set(ratio.detach().round(decimals=4).unique().tolist()) == {0.0, 2.0}
    assert (ratio == ratio[..., :1]).all() and torch.equal(embeddings.token_embeddings, table)
    assert torch.equal(embeddings.eval()(inputs)[:VOCAB], table)


@pytest.mark.parametrize("changes,message", [
    ({"cell": "gru", "projection_dim": 3}, "projection_dim is 3"),
    ({"skip": "residual", "hidden_dims": (6, 8)}, "of one size"),
    ({"skip": "highway", "direction": "bidirectional", "hidden_dims": (6, 6)}, "of one size"),
    ({"weight_dropout": 1.0}, "weight_dropout is 1.0"),
    ({"hidden_dims": (6, 0)}, "is 0"),
])  # fmt: skip
def test_invalid_configs_are_rejected(changes, message):
    with pytest.raises(PolysemeError, match=message):
        make_config(**changes)


def test_empty_stack_and_bidirectional_memory_are_rejected():
    with pytest.raises(PolysemeError, match="at least one layer"):
        make_config(hidden_dims=()).build()
    tokens, layout = make_tokens((3, 3))
    with pytest.raises(PolysemeError, match="does not support memory"):
        build_trunk(make_config(direction="bidirectional"))(Inputs(tokens, layout), return_memory=True)


def test_awd_lstm_encoder_has_the_expected_number_of_parameters():
    """AWD-LSTM's encoder with 60,003 words and layers 300 → 1150 → 1150 → 300."""
    config = RecurrentTrunkConfig(
        EmbeddingsConfig(60_003, 300, 1 << 20, position_embedding_type="none"), (1150, 1150, 300)
    )
    with torch.device("meta"):
        assert sum(p.numel() for p in config.build().parameters()) == 37_011_700


def test_window_model_matches_its_equation():
    """The state is tanh(d + Hx) of the words in the window, zero-padded, followed by x with direct connections."""
    trunk = (
        FeedForwardLMConfig(
            EmbeddingsConfig(VOCAB, 4, 99, position_embedding_type="none"), 3, 7, direct_connections=True
        )
        .build()
        .double()
    )
    trunk.initialize(torch.Generator().manual_seed(1))
    tokens, layout = make_tokens((5, 2))
    vectors = trunk.token_embeddings.detach().index_select(0, tokens)
    with torch.no_grad():
        hidden = trunk(Inputs(tokens, layout)).hidden
        for row, window in ((4, [2, 3, 4]), (0, [None, None, 0]), (6, [None, 5, 6])):
            x = torch.cat([torch.zeros(4).double() if i is None else vectors[i] for i in window])
            state = torch.tanh(trunk.hidden.weight @ x + trunk.hidden.bias)
            torch.testing.assert_close(hidden[row], torch.cat([state, x]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("direct_connections", [False, True])
def test_window_model_has_the_published_number_of_parameters(direct_connections):
    """Bengio et al. 2003, §2: |V|(1 + nm + h) + h(1 + (n − 1)m) with direct connections."""
    v, m, h, n = 17_964, 100, 60, 6
    with torch.device("meta"):
        model = FAMILIES["nnlm"].model_config("ap", direct_connections=direct_connections).build()
    num_params = sum(p.numel() for p in model.parameters())
    assert num_params == v * (1 + n * m + h) + h * (1 + (n - 1) * m) - (0 if direct_connections else v * (n - 1) * m)
