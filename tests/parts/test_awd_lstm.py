"""AWD-LSTM: where each of the five dropouts acts, what it keeps constant; two steps against a plain implementation."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from polyseme.families import FAMILIES
from polyseme.nn.inputs import Inputs
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.batch import SegmentExtra, SegmentState
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig
from tests.objectives.test_specs import GPT2, Pages

NONE = dict.fromkeys(
    ["embedding_row_dropout", "input_dropout", "weight_dropout", "hidden_dropout", "output_dropout"], 0.0
)
LANES, LENGTH = 3, 12


def model(**dropouts):
    sizes = {"num_layers": 3, "dim": 10, "hidden_dim": 14, "vocab_size": 120, "max_len": 64}
    return FAMILIES["ulmfit"].model_config(**sizes, **{**NONE, **dropouts}).build(seed=1).double().train()


def batch(seed=0):
    tokens = torch.randint(0, 40, (LANES * LENGTH,), generator=torch.Generator().manual_seed(seed))
    return tokens, PackedLayout.from_lengths([LENGTH] * LANES)


def pages():
    return Pages([[60, 40], [90]], tokens=np.random.default_rng(0).integers(1, 120, 190))


def lanes(states):
    return states.view(LANES, LENGTH, -1)


def entering(net):
    """What each part reads and writes, by name."""
    seen = {}
    stack = net.trunk.stacks[0]
    for name, part in {
        "embeddings": net.trunk.embeddings,
        **{f"layer{i}": layer for i, layer in enumerate(stack)},
    }.items():
        part.register_forward_hook(lambda m, given, out, name=name: seen.update({name: (given[0], out)}))
    return seen


def steps_first(x):
    """[time, lanes, dim] to [lanes, time, dim]."""
    return x.transpose(0, 1)


def locked_mask(dropped, whole):
    """The mask of each lane: the same at all time steps, differing between lanes, kept values scaled up."""
    mask = (dropped / whole).nan_to_num(0.0)
    torch.testing.assert_close(mask, mask[:, :1].expand_as(mask))
    assert not torch.equal(mask[0, 0], mask[1, 0])
    return mask[:, 0]


def test_word_dropout_takes_a_word_wherever_it_stands_and_leaves_the_table():
    net = model(embedding_row_dropout=0.5)
    before = net.trunk.token_embeddings.detach().clone()
    tokens, layout = batch()
    seen = entering(net)
    net.trunk(Inputs(tokens, layout))
    mask = (seen["embeddings"][1] / F.embedding(tokens, before)).nan_to_num(0.0)
    assert all(len(row.unique()) == 1 for row in mask.round(decimals=6))  # whole words
    for word in tokens.unique():
        assert len(mask[tokens == word][:, 0].round(decimals=6).unique()) == 1  # in all places and lanes
    assert set(mask[:, 0].round(decimals=6).tolist()) == {0.0, 2.0}
    assert torch.equal(net.trunk.token_embeddings, before)  # what the tied softmax reads


def test_input_dropout_is_locked_and_behind_the_table():
    net = model(input_dropout=0.5)
    tokens, layout = batch()
    seen = entering(net)
    net.trunk(Inputs(tokens, layout))
    mask = locked_mask(steps_first(seen["layer0"][0]), lanes(seen["embeddings"][1]))
    assert set(mask.round(decimals=6).unique().tolist()) == {0.0, 2.0}


def test_hidden_dropout_is_locked_and_between_layers_alone():
    net = model(hidden_dropout=0.5)
    tokens, layout = batch()
    seen = entering(net)
    last = net.trunk(Inputs(tokens, layout)).hidden
    masks = [locked_mask(steps_first(seen[f"layer{i + 1}"][0]), steps_first(seen[f"layer{i}"][1][0])) for i in (0, 1)]
    assert not torch.equal(*masks)
    torch.testing.assert_close(steps_first(seen["layer0"][0]), lanes(seen["embeddings"][1]))
    torch.testing.assert_close(lanes(last), steps_first(seen["layer2"][1][0]))  # the last output is not its business


def test_output_dropout_is_locked_and_on_the_last_layer_alone():
    net = model(output_dropout=0.5)
    tokens, layout = batch()
    seen = entering(net)
    reading = net.trunk(Inputs(tokens, layout), layers=[3])
    locked_mask(lanes(reading.hidden), steps_first(seen["layer2"][1][0]))
    torch.testing.assert_close(steps_first(seen["layer1"][0]), steps_first(seen["layer0"][1][0]))
    torch.testing.assert_close(lanes(reading.layers[3]), steps_first(seen["layer2"][1][0]))  # kept before it: for TAR


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
def test_weight_dropout_is_on_the_matrices_from_state_to_state(plain, monkeypatch):
    """One mask for all time steps and lanes of a reading, anew in the next; raw weights stay and get the gradient."""
    net = model(weight_dropout=0.5)
    net.trunk.use_reference = plain
    raw = {name: p.detach().clone() for name, p in net.named_parameters()}
    cells = [layer.cells[0] for layer in net.trunk.stacks[0]]
    drawn, real = [], F.dropout

    def recorded(x, p=0.5, training=True, inplace=False):
        out = real(x, p, training)
        drawn.extend([out] * (p > 0))
        return out

    monkeypatch.setattr(F, "dropout", recorded)
    tokens, layout = batch()
    found = net.trunk(Inputs(tokens, layout)).hidden
    found.square().sum().backward()
    assert [d.shape for d in drawn] == [c.weight_hh.shape for c in cells]
    x = lanes(F.embedding(tokens, net.trunk.token_embeddings))
    for cell, matrix in zip(cells, drawn):  # as torch's own module with the dropped matrix reads it
        lstm = torch.nn.LSTM(x.shape[-1], cell.hidden_dim, batch_first=True).double()
        weights = cell.weight_ih, matrix, cell.bias_ih, cell.bias_hh
        with torch.no_grad():
            for p, value in zip(lstm.parameters(), weights):
                p.copy_(value)
            x = lstm(x)[0]
        assert ((cell.weight_hh.grad != 0) == (matrix != 0)).all()
    torch.testing.assert_close(lanes(found.detach()), x)
    assert all(torch.equal(p, raw[name]) for name, p in net.named_parameters())
    again = net.trunk(Inputs(tokens, layout)).hidden
    assert not torch.allclose(again, found)
    net.eval()
    torch.testing.assert_close(net.trunk(Inputs(tokens, layout)).hidden, net.trunk(Inputs(tokens, layout)).hidden)


def plain_step(weights, tokens, values, states, masks, rate, penalties, clip, decay):
    """A step of AWD-LSTM as the paper tells it, in loops: nothing here is the project's."""
    masks = iter(masks)
    w = {name: t.clone().requires_grad_() for name, t in weights.items()}
    table = w["trunk.embeddings.tokens.weight"]
    word, entry = next(masks), next(masks)
    inner = []
    for _ in range(3):
        inner.append((next(masks), next(masks)))
    loss = dropped_square = change = 0.0
    new_states = [[None] * LANES for _ in range(3)]
    for lane in range(LANES):
        h = [states[layer][lane][0] for layer in range(3)]
        c = [states[layer][lane][1] for layer in range(3)]
        last_raw = None
        for t in range(tokens.shape[1]):
            token = int(tokens[lane, t])
            x = table[token] * word[token] * entry[lane]
            for layer in range(3):
                name = f"trunk.stacks.0.{layer}.cells.0."
                drop, out = inner[layer]
                gates = w[name + "weight_ih"] @ x + w[name + "bias_ih"]
                gates = gates + (w[name + "weight_hh"] * drop) @ h[layer] + w[name + "bias_hh"]
                size = len(h[layer])
                i, f, g, o = (gates[k * size : (k + 1) * size] for k in range(4))
                c[layer] = torch.sigmoid(f) * c[layer] + torch.sigmoid(i) * torch.tanh(g)
                h[layer] = torch.sigmoid(o) * torch.tanh(c[layer])
                x = h[layer] * out[lane]
            scores = table @ x + w["heads.next.bias"]
            loss = loss - torch.log_softmax(scores, 0)[int(values[lane, t])]
            dropped_square = dropped_square + x.pow(2).mean()
            if last_raw is not None:
                change = change + (h[2] - last_raw).pow(2).mean()
            last_raw = h[2]
        for layer in range(3):
            new_states[layer][lane] = (h[layer].detach(), c[layer].detach())
    number = tokens.numel()
    parts = loss / number, dropped_square / number, change / (number - LANES)
    (parts[0] + penalties[0] * parts[1] + penalties[1] * parts[2]).backward()
    norm = sum(t.grad.pow(2).sum().item() for t in w.values()) ** 0.5
    scale = min(clip / norm, 1.0)
    after = {name: (t - rate * (scale * t.grad + (decay if t.ndim > 1 else 0.0) * t)).detach() for name, t in w.items()}
    return after, new_states, [part.item() for part in parts]


def test_two_steps_against_a_plain_implementation(monkeypatch):
    """Five dropouts, tied softmax, AR and TAR, the rate rescaled by length, clipping, decay and SGD; memory goes on."""
    net = model(
        embedding_row_dropout=0.2, input_dropout=0.3, weight_dropout=0.4, hidden_dropout=0.25, output_dropout=0.35
    )
    spec = StreamingCausalLM(bptt_std=4.0, activation_reg=2.0, temporal_activation_reg=1.5)
    bound = spec.bind(pages(), GPT2, LENGTH, 0)
    optim = OptimizerConfig(lr=3.0, name="nt_asgd", max_grad_norm=0.25, weight_decay=0.01)
    schedule = ScheduleConfig("constant", warmup=1)
    run = TrainState(net, optim.build(net, net.trunk.layer_groups()), optim, schedule, 2, torch.device("cpu"))
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    sizes = [14] * 2 + [10]
    states = [[(torch.zeros(n).double(), torch.zeros(n).double()) for _ in range(LANES)] for n in sizes]
    carry, masks, data = SegmentState(), [], []
    for place, length in ((0, 9), (9, 14)):
        found = bound.segment_batch(torch.arange(LANES).numpy() * 30 + place, length)
        data.append(dataclasses.replace(found, extra=SegmentExtra(carry, starts_fresh=place == 0)))
    real = F.dropout

    def recorded(x, p=0.5, training=True, inplace=False):
        out = real(x, p, training)
        masks.extend([(out / x).detach().clone()] * (p > 0))
        return out

    monkeypatch.setattr(F, "dropout", recorded)
    for given, report in zip(data, train(run, iter([([b], None) for b in data]))):
        length = given.inputs.layout.lengths[0]
        drawn, masks[:] = list(masks), []
        # in the order of the reading: words, input, then of each layer its matrix and what leaves it
        assert [tuple(m.shape) for m in drawn] == [
            (120, 1), (LANES, 10), (56, 14), (LANES, 14), (56, 14), (LANES, 14), (40, 10), (LANES, 10)
        ]  # fmt: skip
        grid = given.tokens.view(LANES, length), given.targets["next"].labels.view(LANES, length)
        rate = 3.0 * length / LENGTH
        assert report.lr == pytest.approx(rate)
        weights, states, parts = plain_step(weights, *grid, states, drawn, rate, (2.0, 1.5), 0.25, 0.01)
        assert [report.loss[n] for n in ("next", "activation_reg", "temporal_activation_reg")] == pytest.approx(
            parts, rel=1e-4
        )
        for name, p in net.named_parameters():
            torch.testing.assert_close(p.detach(), weights[name], atol=2e-6, rtol=0)  # losses are float32
        for layer in range(3):
            for part in range(2):
                mine = torch.stack([states[layer][lane][part] for lane in range(LANES)])
                torch.testing.assert_close(carry.memory.states[layer][part], mine, atol=2e-6, rtol=0)


def test_penalties_obey_the_law_of_sums():
    """Sums over lanes in any micro-batches are the same, and a sequence's first token has changed from nothing."""
    net = model()
    bound = StreamingCausalLM(activation_reg=2.0, temporal_activation_reg=1.0).bind(pages(), GPT2, 8, 0)
    whole = bound.batch(torch.arange(6).numpy(), 0)
    parts = [bound.batch(torch.tensor(ids).numpy(), 0) for ids in ([0], [1, 2, 3], [4, 5])]
    for name in ("next", "activation_reg", "temporal_activation_reg"):
        total = sum(compute_losses(net, part)[name] for part in parts)
        torch.testing.assert_close(compute_losses(net, whole)[name], total)
        assert whole.targets[name].count == sum(part.targets[name].count for part in parts)
    assert whole.targets["temporal_activation_reg"].count == 6 * 7


def test_sizes_of_the_lecture_and_of_the_paper():
    family = FAMILIES["ulmfit"]
    with torch.device("meta"):
        for size, dim in (("lecture", 300), ("paper", 400)):
            spec = family.model_config(size)
            head = family.task_head("classify", ("no", "yes"), spec.trunk)
            trunk = spec.trunk.build()
            assert sum(p.numel() for p in trunk.parameters()) == family.num_params[size]
            assert spec.trunk.hidden_dims == (1150, 1150, dim) and spec.trunk.dim == dim
            numbers = [sum(p.numel() for p in head.build(dim).parameters())]
            assert numbers == [{300: 47_052, 400: 62_652}[dim]]
            assert len(trunk.layer_groups()) == 4
