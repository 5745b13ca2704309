"""Classification over concat pooling (last state, maximum, mean), batch norm, and chunked forward passes."""

import pytest
import torch
from torch import nn

from polyseme.families import FAMILIES
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.layers.block import BatchNormConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.base import forward_chunked
from polyseme.train.step import BF16WorkingCopy

HEAD = ClassificationHeadConfig(
    ("no", "yes"), "concat", 0.1, dense=True, hidden_dim=50, activation="relu", norm=BatchNormConfig(),
    input_norm=BatchNormConfig(), input_dropout=0.4,
)  # fmt: skip


def select_last_states(hidden, layout):
    return hidden.index_select(0, layout.last_indices)


def test_ulmfit_head_has_the_expected_number_of_parameters():
    assert sum(p.numel() for p in HEAD.build(300).parameters()) == 47_052
    assert HEAD.matmul_params(300) == 900 * 50 + 50 * 2


def test_head_matches_torch_layers():
    """In training and at inference, after some steps that updated the running statistics."""
    torch.manual_seed(0)
    config = HEAD.replace(dropout=0.0, input_dropout=0.0)
    head = config.build(7).double()
    expected_head = nn.Sequential(
        nn.BatchNorm1d(21), nn.Linear(21, 50), nn.ReLU(), nn.BatchNorm1d(50), nn.Linear(50, 2)
    ).double()  # fmt: skip
    for expected_layer, layer in zip((expected_head[1], expected_head[4]), (head.dense, head.linear)):
        layer.load_state_dict(expected_layer.state_dict())
    for _ in range(3):
        lengths = torch.randint(1, 9, (6,)).tolist()
        layout, hidden = PackedLayout.from_lengths(lengths), torch.randn(sum(lengths), 7, dtype=torch.float64)
        texts = hidden.split(lengths)
        pooled = torch.stack([torch.cat([t[-1], t.max(0).values, t.mean(0)]) for t in texts])
        logits = head(head.select_states(hidden, layout, None, select_last_states), hidden)
        torch.testing.assert_close(logits, expected_head(pooled))
    head.eval(), expected_head.eval()
    torch.testing.assert_close(head(pooled, hidden), expected_head(pooled))


def test_max_pooling_passes_the_gradient_to_the_maximum():
    hidden = torch.tensor([[1.0, 5.0], [3.0, 2.0], [2.0, 0.0]], requires_grad=True)
    layout = PackedLayout.from_lengths([2, 1])
    layout.max_pool(hidden).sum().backward()
    assert hidden.grad.tolist() == [[0, 1], [1, 0], [1, 1]]


def test_batch_norm_of_one_row_uses_running_statistics():
    norm = BatchNormConfig().build(3)
    row = torch.tensor([[1.0, 2.0, 3.0]])
    before = norm.state_dict()["running_mean"].clone()
    torch.testing.assert_close(norm.train()(row), norm.eval()(row))
    assert torch.equal(norm.running_mean, before)


def test_bf16_copy_updates_the_running_statistics_of_the_model():
    config = FAMILIES["gpt2"].model_config(num_layers=1, dim=8, num_heads=2, vocab_size=20, max_len=8, dropout=0.0)
    model = config.replace(heads={"classify": HEAD}).build(seed=0).train()
    working_copy = BF16WorkingCopy(model)
    before = model.heads["classify"].input_norm.running_mean.clone()
    layout = PackedLayout.from_lengths([3, 4])
    hidden = working_copy.copy_weights_from_master().trunk(Inputs(torch.arange(7), layout)).hidden
    working_copy.model.predict("classify", hidden, layout)
    after = model.heads["classify"].input_norm.running_mean
    assert after.dtype == torch.float32 and not torch.equal(after, before)


def test_running_statistics_are_initialized():
    config = FAMILIES["gpt2"].model_config(num_layers=1, dim=8, num_heads=2, vocab_size=20, max_len=8)
    with torch.device("meta"):
        model = config.replace(heads={"classify": HEAD}).build()
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        tensor.fill_(float("nan"))
    model.initialize(torch.Generator().manual_seed(0))
    norm = model.heads["classify"].norm
    assert (
        (norm.running_mean == 0).all()
        and (norm.running_var == 1).all()
        and (norm.weight == 1).all()
        and (norm.bias == 0).all()
    )


SEQUENCE_LENGTHS = (5, 13, 1, 8)


def build_model(family):
    torch.manual_seed(0)
    config = FAMILIES[family].model_config(
        num_layers=2, dim=12, num_heads=2, vocab_size=30, max_len=64, dropout=0.0, attention_dropout=0.0
    )
    return config.build(seed=3).double().train()


@pytest.mark.parametrize("chunk", [1, 4, 13, 50])
@pytest.mark.parametrize("family", ["gpt2", "transformer_xl"])
def test_chunked_forward_matches_whole_forward(family, chunk):
    model, layout = build_model(family), PackedLayout.from_lengths(SEQUENCE_LENGTHS)
    tokens = torch.randint(0, 30, (layout.num_tokens,))
    expected = model.trunk(Inputs(tokens, layout)).hidden
    actual = forward_chunked(model.trunk, Inputs(tokens, layout), chunk, grad_tokens=3)
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def test_gradients_reach_only_the_last_tokens_of_each_text():
    """Alone or in a batch: chunks before those with the last `grad_tokens` tokens have no gradient, nor has memory."""
    model, layout = build_model("gpt2"), PackedLayout.from_lengths(SEQUENCE_LENGTHS)
    tokens = torch.arange(layout.num_tokens)  # each id once: its row of the table shows where gradients arrive
    table = model.trunk.embeddings.tokens.weight
    forward_chunked(model.trunk, Inputs(tokens, layout), 4, grad_tokens=6).square().sum().backward()
    batched_grad = table.grad.clone()
    token_ids_with_grad = [i.item() for i in batched_grad.abs().sum(1).nonzero()]
    # length 5: all; 13: chunks end at 4, 8, 12, 13, gradients start at 7, so from 4; 1: all; 8: start at 2, so all
    assert token_ids_with_grad == [*range(5), *range(5 + 4, 18), 18, *range(19, 27)]
    table.grad = None
    for row in tokens.split(list(SEQUENCE_LENGTHS)):
        inputs = Inputs(row, PackedLayout.from_lengths([len(row)]))
        forward_chunked(model.trunk, inputs, 4, grad_tokens=6).square().sum().backward()
    torch.testing.assert_close(table.grad, batched_grad, atol=1e-10, rtol=0)
