"""The head over what a text ends with, its greatest and its mean; batch norm; texts read chunk by chunk."""

import pytest
import torch
from torch import nn

from polyseme.families import FAMILIES
from polyseme.nn.chunking import forward_chunked
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.inputs import Inputs
from polyseme.nn.layers.norms import BatchNormConfig
from polyseme.nn.packing import PackedLayout
from polyseme.train.mixed_precision import BF16WorkingCopy

HEAD = ClassificationHeadConfig(
    ("no", "yes"), "concat", 0.1, dense=True, hidden_dim=50, activation="relu", norm=BatchNormConfig(),
    input_norm=BatchNormConfig(), input_dropout=0.4,
)  # fmt: skip


def last_of(hidden, layout):
    return hidden.index_select(0, layout.last_indices)


def test_the_lecture_s_head_has_its_parameters():
    assert sum(p.numel() for p in HEAD.build(300).parameters()) == 47_052
    assert HEAD.matmul_params(300) == 900 * 50 + 50 * 2


def test_against_torch_s_own_layers():
    """In training and at work, after some steps in which the running figures moved."""
    torch.manual_seed(0)
    spec = HEAD.replace(dropout=0.0, input_dropout=0.0)
    head = spec.build(7).double()
    theirs = nn.Sequential(
        nn.BatchNorm1d(21), nn.Linear(21, 50), nn.ReLU(), nn.BatchNorm1d(50), nn.Linear(50, 2)
    ).double()  # fmt: skip
    for part, mine in zip((theirs[1], theirs[4]), (head.dense, head.linear)):
        mine.load_state_dict(part.state_dict())
    for _ in range(3):
        lengths = torch.randint(1, 9, (6,)).tolist()
        layout, rows = PackedLayout.from_lengths(lengths), torch.randn(sum(lengths), 7, dtype=torch.float64)
        texts = rows.split(lengths)
        pooled = torch.stack([torch.cat([t[-1], t.max(0).values, t.mean(0)]) for t in texts])
        found = head(head.select_states(rows, layout, None, last_of), rows)
        torch.testing.assert_close(found, theirs(pooled))
    head.eval(), theirs.eval()
    torch.testing.assert_close(head(pooled, rows), theirs(pooled))


def test_the_greatest_of_each_column_has_the_gradient():
    rows = torch.tensor([[1.0, 5.0], [3.0, 2.0], [2.0, 0.0]], requires_grad=True)
    layout = PackedLayout.from_lengths([2, 1])
    layout.max_pool(rows).sum().backward()
    assert rows.grad.tolist() == [[0, 1], [1, 0], [1, 1]]


def test_one_row_is_set_right_by_the_running_figures():
    norm = BatchNormConfig().build(3)
    row = torch.tensor([[1.0, 2.0, 3.0]])
    before = norm.state_dict()["running_mean"].clone()
    torch.testing.assert_close(norm.train()(row), norm.eval()(row))
    assert torch.equal(norm.running_mean, before)


def test_a_half_copy_moves_the_model_s_own_running_figures():
    spec = FAMILIES["gpt2"].model_config(num_layers=1, dim=8, num_heads=2, vocab_size=20, max_len=8, dropout=0.0)
    model = spec.replace(heads={"classify": HEAD}).build(seed=0).train()
    half = BF16WorkingCopy(model)
    before = model.heads["classify"].input_norm.running_mean.clone()
    layout = PackedLayout.from_lengths([3, 4])
    last = half.copy_weights_from_master().trunk(Inputs(torch.arange(7), layout)).hidden
    half.model.predict("classify", last, layout)
    moved = model.heads["classify"].input_norm.running_mean
    assert moved.dtype == torch.float32 and not torch.equal(moved, before)


def test_new_running_figures_begin_at_zero_and_one():
    spec = FAMILIES["gpt2"].model_config(num_layers=1, dim=8, num_heads=2, vocab_size=20, max_len=8)
    with torch.device("meta"):
        model = spec.replace(heads={"classify": HEAD}).build()
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


LENGTHS = (5, 13, 1, 8)


def reader(family):
    torch.manual_seed(0)
    spec = FAMILIES[family].model_config(
        num_layers=2, dim=12, num_heads=2, vocab_size=30, max_len=64, dropout=0.0, attention_dropout=0.0
    )
    return spec.build(seed=3).double().train()


@pytest.mark.parametrize("chunk", [1, 4, 13, 50])
@pytest.mark.parametrize("family", ["gpt2", "transformer_xl"])
def test_in_chunks_as_at_once(family, chunk):
    model, layout = reader(family), PackedLayout.from_lengths(LENGTHS)
    tokens = torch.randint(0, 30, (layout.num_tokens,))
    whole = model.trunk(Inputs(tokens, layout)).hidden
    found = forward_chunked(model.trunk, Inputs(tokens, layout), chunk, grad_tokens=3)
    torch.testing.assert_close(found, whole, atol=1e-10, rtol=0)


def test_the_gradient_of_a_text_comes_from_its_own_last_tokens():
    """Alone or among others: chunks before those with the last `learnt` tokens have none, nor does memory."""
    model, layout = reader("gpt2"), PackedLayout.from_lengths(LENGTHS)
    tokens = torch.arange(layout.num_tokens)  # each token once: its row of the table says where gradients arrive
    table = model.trunk.embeddings.tokens.weight
    forward_chunked(model.trunk, Inputs(tokens, layout), 4, grad_tokens=6).square().sum().backward()
    together = table.grad.clone()
    reached = [i.item() for i in together.abs().sum(1).nonzero()]
    # 5: all; 13: chunks end at 4, 8, 12 and 13, and what is learnt begins at 7; 1: all; 8: begins at 2
    assert reached == [*range(5), *range(5 + 4, 18), 18, *range(19, 27)]
    table.grad = None
    for row in tokens.split(list(LENGTHS)):
        inputs = Inputs(row, PackedLayout.from_lengths([len(row)]))
        forward_chunked(model.trunk, inputs, 4, grad_tokens=6).square().sum().backward()
    torch.testing.assert_close(table.grad, together, atol=1e-10, rtol=0)
