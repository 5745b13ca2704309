"""AWD-LSTM: where each of the five dropouts applies, and two training steps against a plain implementation."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from polyseme.families import FAMILIES
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import SegmentExtra, SegmentState
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from tests.support.corpora import GPT2, MemoryCorpus

NO_DROPOUT = dict.fromkeys(
    ["embedding_row_dropout", "input_dropout", "weight_dropout", "hidden_dropout", "output_dropout"], 0.0
)
NUM_STREAMS, SEGMENT_LEN = 3, 12


def build_model(**dropouts):
    sizes = {"num_layers": 3, "dim": 10, "hidden_dim": 14, "vocab_size": 120, "max_len": 64}
    return FAMILIES["ulmfit"].model_config(**sizes, **{**NO_DROPOUT, **dropouts}).build(seed=1).double().train()


def make_batch(seed=0):
    tokens = torch.randint(0, 40, (NUM_STREAMS * SEGMENT_LEN,), generator=torch.Generator().manual_seed(seed))
    return tokens, PackedLayout.from_lengths([SEGMENT_LEN] * NUM_STREAMS)


def make_corpus():
    return MemoryCorpus([[60, 40], [90]], tokens=np.random.default_rng(0).integers(1, 120, 190))


def split_streams(states):
    return states.view(NUM_STREAMS, SEGMENT_LEN, -1)


def record_activations(model):
    """Record input and output of each module by name."""
    activations = {}
    stack = model.trunk.stacks[0]
    for name, module in {
        "embeddings": model.trunk.embeddings,
        **{f"layer{i}": layer for i, layer in enumerate(stack)},
    }.items():
        module.register_forward_hook(
            lambda m, inputs, output, name=name: activations.update({name: (inputs[0], output)})
        )
    return activations


def to_batch_major(x):
    """[time, streams, dim] to [streams, time, dim]."""
    return x.transpose(0, 1)


def variational_mask(dropped, undropped):
    """Return the mask of each stream; check that it is constant in time and differs between streams."""
    mask = (dropped / undropped).nan_to_num(0.0)
    torch.testing.assert_close(mask, mask[:, :1].expand_as(mask))
    assert not torch.equal(mask[0, 0], mask[1, 0])
    return mask[:, 0]


def test_embedding_row_dropout_drops_words_but_not_the_tied_table():
    model = build_model(embedding_row_dropout=0.5)
    before = model.trunk.token_embeddings.detach().clone()
    tokens, layout = make_batch()
    activations = record_activations(model)
    model.trunk(Inputs(tokens, layout))
    mask = (activations["embeddings"][1] / F.embedding(tokens, before)).nan_to_num(0.0)
    assert all(len(row.unique()) == 1 for row in mask.round(decimals=6))  # whole words
    for word in tokens.unique():
        assert len(mask[tokens == word][:, 0].round(decimals=6).unique()) == 1  # at all positions
    assert set(mask[:, 0].round(decimals=6).tolist()) == {0.0, 2.0}
    assert torch.equal(model.trunk.token_embeddings, before)  # the tied softmax uses it


def test_input_dropout_is_variational_after_the_embeddings():
    model = build_model(input_dropout=0.5)
    tokens, layout = make_batch()
    activations = record_activations(model)
    model.trunk(Inputs(tokens, layout))
    mask = variational_mask(to_batch_major(activations["layer0"][0]), split_streams(activations["embeddings"][1]))
    assert set(mask.round(decimals=6).unique().tolist()) == {0.0, 2.0}


def test_hidden_dropout_is_variational_between_layers_only():
    model = build_model(hidden_dropout=0.5)
    tokens, layout = make_batch()
    activations = record_activations(model)
    hidden = model.trunk(Inputs(tokens, layout)).hidden
    masks = [
        variational_mask(
            to_batch_major(activations[f"layer{i + 1}"][0]), to_batch_major(activations[f"layer{i}"][1][0])
        )
        for i in (0, 1)
    ]
    assert not torch.equal(*masks)
    torch.testing.assert_close(to_batch_major(activations["layer0"][0]), split_streams(activations["embeddings"][1]))
    torch.testing.assert_close(
        split_streams(hidden), to_batch_major(activations["layer2"][1][0])
    )  # not on the last layer


def test_output_dropout_is_variational_on_the_last_layer_only():
    model = build_model(output_dropout=0.5)
    tokens, layout = make_batch()
    activations = record_activations(model)
    output = model.trunk(Inputs(tokens, layout), layers=[3])
    variational_mask(split_streams(output.hidden), to_batch_major(activations["layer2"][1][0]))
    torch.testing.assert_close(to_batch_major(activations["layer1"][0]), to_batch_major(activations["layer0"][1][0]))
    torch.testing.assert_close(
        split_streams(output.layers[3]), to_batch_major(activations["layer2"][1][0])
    )  # before dropout, for TAR


@pytest.mark.parametrize("use_reference", [False, True], ids=["fused", "reference"])
def test_weight_dropout_is_on_hidden_to_hidden_weights(use_reference, monkeypatch):
    """One mask for all steps and streams of a forward pass, a new one for the next; raw weights get the gradient."""
    model = build_model(weight_dropout=0.5)
    model.trunk.use_reference = use_reference
    initial_params = {name: p.detach().clone() for name, p in model.named_parameters()}
    cells = [layer.cells[0] for layer in model.trunk.stacks[0]]
    dropped_weights, real_dropout = [], F.dropout

    def record_dropout(x, p=0.5, training=True, inplace=False):
        dropped = real_dropout(x, p, training)
        dropped_weights.extend([dropped] * (p > 0))
        return dropped

    monkeypatch.setattr(F, "dropout", record_dropout)
    tokens, layout = make_batch()
    hidden = model.trunk(Inputs(tokens, layout)).hidden
    hidden.square().sum().backward()
    assert [d.shape for d in dropped_weights] == [c.weight_hh.shape for c in cells]
    x = split_streams(F.embedding(tokens, model.trunk.token_embeddings))
    for cell, matrix in zip(cells, dropped_weights):  # compare with torch's module with dropped weights
        lstm = torch.nn.LSTM(x.shape[-1], cell.hidden_dim, batch_first=True).double()
        weights = cell.weight_ih, matrix, cell.bias_ih, cell.bias_hh
        with torch.no_grad():
            for p, value in zip(lstm.parameters(), weights):
                p.copy_(value)
            x = lstm(x)[0]
        assert ((cell.weight_hh.grad != 0) == (matrix != 0)).all()
    torch.testing.assert_close(split_streams(hidden.detach()), x)
    assert all(torch.equal(p, initial_params[name]) for name, p in model.named_parameters())
    again = model.trunk(Inputs(tokens, layout)).hidden
    assert not torch.allclose(again, hidden)
    model.eval()
    torch.testing.assert_close(model.trunk(Inputs(tokens, layout)).hidden, model.trunk(Inputs(tokens, layout)).hidden)


def reference_step(weights, tokens, labels, states, masks, lr, reg_weights, max_grad_norm, weight_decay):
    """One training step of AWD-LSTM in plain loops, independent of the package."""
    masks = iter(masks)
    params = {name: t.clone().requires_grad_() for name, t in weights.items()}
    table = params["trunk.embeddings.tokens.weight"]
    row_mask, input_mask = next(masks), next(masks)
    layer_masks = []
    for _ in range(3):
        layer_masks.append((next(masks), next(masks)))
    loss = activation_reg = temporal_reg = 0.0
    new_states = [[None] * NUM_STREAMS for _ in range(3)]
    for stream in range(NUM_STREAMS):
        h = [states[layer][stream][0] for layer in range(3)]
        c = [states[layer][stream][1] for layer in range(3)]
        previous_hidden = None
        for t in range(tokens.shape[1]):
            token = int(tokens[stream, t])
            x = table[token] * row_mask[token] * input_mask[stream]
            for layer in range(3):
                name = f"trunk.stacks.0.{layer}.cells.0."
                weight_mask, output_mask = layer_masks[layer]
                gates = params[name + "weight_ih"] @ x + params[name + "bias_ih"]
                gates = gates + (params[name + "weight_hh"] * weight_mask) @ h[layer] + params[name + "bias_hh"]
                size = len(h[layer])
                i, f, g, o = (gates[k * size : (k + 1) * size] for k in range(4))
                c[layer] = torch.sigmoid(f) * c[layer] + torch.sigmoid(i) * torch.tanh(g)
                h[layer] = torch.sigmoid(o) * torch.tanh(c[layer])
                x = h[layer] * output_mask[stream]
            scores = table @ x + params["heads.next.bias"]
            loss = loss - torch.log_softmax(scores, 0)[int(labels[stream, t])]
            activation_reg = activation_reg + x.pow(2).mean()
            if previous_hidden is not None:
                temporal_reg = temporal_reg + (h[2] - previous_hidden).pow(2).mean()
            previous_hidden = h[2]
        for layer in range(3):
            new_states[layer][stream] = (h[layer].detach(), c[layer].detach())
    num_tokens = tokens.numel()
    losses = loss / num_tokens, activation_reg / num_tokens, temporal_reg / (num_tokens - NUM_STREAMS)
    (losses[0] + reg_weights[0] * losses[1] + reg_weights[1] * losses[2]).backward()
    norm = sum(t.grad.pow(2).sum().item() for t in params.values()) ** 0.5
    scale = min(max_grad_norm / norm, 1.0)
    new_weights = {
        name: (t - lr * (scale * t.grad + (weight_decay if t.ndim > 1 else 0.0) * t)).detach()
        for name, t in params.items()
    }
    return new_weights, new_states, [part.item() for part in losses]


def test_two_steps_match_the_reference(monkeypatch):
    """Five dropouts, tied softmax, AR and TAR, learning rate scaled by length, clipping, weight decay, SGD, memory."""
    model = build_model(
        embedding_row_dropout=0.2, input_dropout=0.3, weight_dropout=0.4, hidden_dropout=0.25, output_dropout=0.35
    )
    objective = StreamingCausalLM(bptt_std=4.0, activation_reg=2.0, temporal_activation_reg=1.5)
    bound_objective = objective.bind(make_corpus(), GPT2, SEGMENT_LEN, 0)
    optimizer_config = OptimizerConfig(lr=3.0, name="nt_asgd", max_grad_norm=0.25, weight_decay=0.01)
    schedule = ScheduleConfig("constant", warmup=1)
    state = TrainState(
        model,
        optimizer_config.build(model, model.trunk.layer_groups()),
        optimizer_config,
        schedule,
        2,
        torch.device("cpu"),
    )
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    layer_sizes = [14] * 2 + [10]
    states = [[(torch.zeros(n).double(), torch.zeros(n).double()) for _ in range(NUM_STREAMS)] for n in layer_sizes]
    segment_state, masks, batches = SegmentState(), [], []
    for start, length in ((0, 9), (9, 14)):
        batch = bound_objective.segment_batch(torch.arange(NUM_STREAMS).numpy() * 30 + start, length)
        batches.append(dataclasses.replace(batch, extra=SegmentExtra(segment_state, starts_fresh=start == 0)))
    real_dropout = F.dropout

    def record_dropout(x, p=0.5, training=True, inplace=False):
        dropped = real_dropout(x, p, training)
        masks.extend([(dropped / x).detach().clone()] * (p > 0))
        return dropped

    monkeypatch.setattr(F, "dropout", record_dropout)
    for batch, report in zip(batches, train(state, iter([([b], None) for b in batches]))):
        length = batch.inputs.layout.lengths[0]
        step_masks, masks[:] = list(masks), []
        # in order: embedding rows, input, then weights and output of each layer
        assert [tuple(m.shape) for m in step_masks] == [
            (120, 1), (NUM_STREAMS, 10), (56, 14), (NUM_STREAMS, 14),
            (56, 14), (NUM_STREAMS, 14), (40, 10), (NUM_STREAMS, 10),
        ]  # fmt: skip
        tokens_and_labels = (
            batch.inputs.tokens.view(NUM_STREAMS, length),
            batch.targets["next"].labels.view(NUM_STREAMS, length),
        )
        lr = 3.0 * length / SEGMENT_LEN
        assert report.lr == pytest.approx(lr)
        weights, states, losses = reference_step(
            weights, *tokens_and_labels, states, step_masks, lr, (2.0, 1.5), 0.25, 0.01
        )
        assert [report.loss[n] for n in ("next", "activation_reg", "temporal_activation_reg")] == pytest.approx(
            losses, rel=1e-4
        )
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), weights[name], atol=2e-6, rtol=0)  # losses are float32
        for layer in range(3):
            for i in range(2):
                expected_state = torch.stack([states[layer][stream][i] for stream in range(NUM_STREAMS)])
                torch.testing.assert_close(segment_state.memory.states[layer][i], expected_state, atol=2e-6, rtol=0)


def test_regularization_terms_sum_over_micro_batches():
    """Sums do not depend on the micro-batches; the first token of a sequence has no temporal term."""
    model = build_model()
    bound_objective = StreamingCausalLM(activation_reg=2.0, temporal_activation_reg=1.0).bind(make_corpus(), GPT2, 8, 0)
    batch = bound_objective.batch(torch.arange(6).numpy(), 0)
    micro_batches = [bound_objective.batch(torch.tensor(ids).numpy(), 0) for ids in ([0], [1, 2, 3], [4, 5])]
    for name in ("next", "activation_reg", "temporal_activation_reg"):
        total = sum(compute_losses(model, micro_batch)[name] for micro_batch in micro_batches)
        torch.testing.assert_close(compute_losses(model, batch)[name], total)
        assert batch.targets[name].count == sum(micro_batch.targets[name].count for micro_batch in micro_batches)
    assert batch.targets["temporal_activation_reg"].count == 6 * 7


def test_published_sizes_have_the_expected_parameters():
    family = FAMILIES["ulmfit"]
    with torch.device("meta"):
        for size, dim in (("lecture", 300), ("paper", 400)):
            config = family.model_config(size)
            head = family.task_head("classify", ("no", "yes"), config.trunk)
            trunk = config.trunk.build()
            assert sum(p.numel() for p in trunk.parameters()) == family.num_params[size]
            assert config.trunk.hidden_dims == (1150, 1150, dim) and config.trunk.dim == dim
            head_params = [sum(p.numel() for p in head.build(dim).parameters())]
            assert head_params == [{300: 47_052, 400: 62_652}[dim]]
            assert len(trunk.layer_groups()) == 4
