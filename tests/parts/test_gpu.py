"""What runs on a GPU alone: our kernels against their definitions, and the loop in bfloat16 against float32."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyseme.nn.attention.attend import attend_eager, attend_varlen
from polyseme.nn.inputs import Inputs
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.objectives.losses import compute_losses

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
LENGTHS = [[128] * 3, [5, 17, 128, 1, 64, 90], [512, 511, 3], [1000, 64, 513], [33, 32, 31], [7]]


def error(found: torch.Tensor, true: torch.Tensor) -> float:
    return ((found.double() - true.double()).norm() / true.double().norm()).item()


@pytest.mark.parametrize("causal,window", [(False, 0), (True, 0), (False, 20), (True, 100)])
@pytest.mark.parametrize("heads,dim", [(3, 64), (2, 32), (1, 128), (2, 16)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_flash_is_attention(lengths: list[int], heads: int, dim: int, causal: bool, window: int) -> None:
    from polyseme.nn.kernels.flash_attention import flash

    torch.manual_seed(0)
    layout = PackedLayout.from_lengths(lengths, num_slots=len(lengths) + 2, max_seqlen=max(lengths) + 9, device="cuda")
    qkv = torch.randn(layout.num_tokens, 3, heads, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    above = torch.randn(layout.num_tokens, heads, dim, device="cuda", dtype=torch.bfloat16)
    found = flash(qkv, layout.cu_seqlens, layout.max_seqlen, causal, window=window)
    (gradient,) = torch.autograd.grad(found, qkv, above)
    exact = qkv.detach().double().requires_grad_()
    true = attend_eager(*exact.unbind(1), layout, layout, causal, window)
    (true_gradient,) = torch.autograd.grad(true, exact, above.double())
    other = qkv.detach().clone().requires_grad_()
    theirs = attend_varlen(*other.unbind(1), layout, layout, causal, 0.0, window)
    (their_gradient,) = torch.autograd.grad(theirs, other, above)
    assert error(found, true) < max(1.5 * error(theirs, true), 1e-4)
    assert error(gradient, true_gradient) < max(1.5 * error(their_gradient, true_gradient), 1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 32, 128])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_flash_turns_as_rotary_positions_do(lengths: list[int], dim: int, causal: bool) -> None:
    from polyseme.nn.attention.attend import attend_self
    from polyseme.nn.layers.positions import apply_rotary

    torch.manual_seed(0)
    layout = PackedLayout.from_lengths(lengths, num_slots=len(lengths) + 2, max_seqlen=max(lengths) + 9, device="cuda")
    qkv = torch.randn(layout.num_tokens, 3, 2, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    above = torch.randn(layout.num_tokens, 2, dim, device="cuda", dtype=torch.bfloat16)
    found = attend_self(qkv, layout, causal, rope_theta=1e4)
    (gradient,) = torch.autograd.grad(found, qkv, above)
    exact = qkv.detach().double().requires_grad_()
    true = attend_eager(*apply_rotary(exact, layout.positions, 1e4).unbind(1), layout, layout, causal)
    (true_gradient,) = torch.autograd.grad(true, exact, above.double())
    assert error(found, true) < 0.01 and error(gradient, true_gradient) < 0.015


@pytest.mark.parametrize("length", [100, 300])
def test_flash_drops_out_as_asked_and_the_same_backwards(length: int) -> None:
    from polyseme.nn.kernels.flash_attention import flash, flash_backward, flash_forward

    torch.manual_seed(0)
    starts = torch.tensor([0, length, 2 * length], device="cuda", dtype=torch.int32)
    qkv = torch.randn(2 * length, 3, 4, 64, device="cuda", dtype=torch.bfloat16)
    ones = qkv.clone()
    ones[:, 2] = 1
    kept = flash(ones, starts, length, dropout=0.25).float()
    assert kept.mean().item() == pytest.approx(1, abs=0.01) and kept.std().item() > 0.02
    assert not torch.equal(kept, flash(ones, starts, length, dropout=0.25).float())  # another seed
    # The output is linear in the values, so their gradient must say exactly how it changes.
    seed = torch.tensor([5], device="cuda", dtype=torch.int32)
    out, lse = flash_forward(qkv, starts, seed, seed, length, False, 0, 0.25)
    above = torch.randn_like(out)
    gradient = flash_backward(above, qkv, out, lse, starts, seed, seed, length, False, 0, 0.25)
    change = torch.randn_like(qkv)
    change[:, :2] = 0
    moved = flash_forward(qkv + change, starts, seed, seed, length, False, 0, 0.25)[0]
    said = (gradient[:, 2].double() * change[:, 2].double()).sum()
    seen = (above.double() * (moved.double() - out.double())).sum()
    assert said.item() == pytest.approx(seen.item(), rel=0.02, abs=1.0)


@pytest.mark.parametrize("size,rows,bias", [(30_522, 300, True), (101, 9000, False), (640, 64, True)])
def test_vocabulary_loss_is_cross_entropy(size: int, rows: int, bias: bool) -> None:
    from polyseme.nn.kernels.cross_entropy import linear_cross_entropy

    torch.manual_seed(0)
    shapes: list[tuple[int, ...]] = [(rows, 64), (size, 64), *([(size,)] if bias else [])]
    given = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    targets = torch.randint(0, size, (rows,), device="cuda")
    targets[::7] = IGNORE_INDEX
    states, table, *rest = given
    found = linear_cross_entropy(states, table, rest[0] if rest else None, targets, IGNORE_INDEX)
    gradients = torch.autograd.grad(found / rows, given)
    exact = [each.detach().double().requires_grad_() for each in given]
    scores = F.linear(exact[0], exact[1], exact[2] if rest else None)
    true = F.cross_entropy(scores, targets, ignore_index=IGNORE_INDEX, reduction="sum")
    assert found.item() == pytest.approx(true.item(), rel=2e-3)
    for ours, theirs in zip(gradients, torch.autograd.grad(true / rows, exact)):
        assert error(ours, theirs) < 0.02


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_activated_linear_is_its_parts(activation: str) -> None:
    from polyseme.nn.kernels.fused import activated_linear
    from polyseme.nn.layers.feedforward import ACTIVATIONS

    torch.manual_seed(0)
    shapes = [(1000, 300), (300,), (64, 300), (64,)]
    given = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    found = activated_linear(*given, activation)
    above = torch.randn_like(found)
    exact = [each.detach().double().requires_grad_() for each in given]
    true = F.linear(ACTIVATIONS[activation](exact[0] + exact[1]), exact[2], exact[3])
    assert error(found, true) < 0.01
    for ours, theirs in zip(torch.autograd.grad(found, given, above), torch.autograd.grad(true, exact, above.double())):
        assert error(ours, theirs) < 0.01


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_gated_linear_is_its_parts(activation: str) -> None:
    from polyseme.nn.kernels.fused import gated_linear
    from polyseme.nn.layers.feedforward import ACTIVATIONS

    torch.manual_seed(0)
    shapes = [(300, 2 * 344), (96, 344)]
    given = [torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in shapes]
    above = torch.randn(300, 96, device="cuda", dtype=torch.bfloat16)
    exact = [t.detach().double().requires_grad_() for t in given]
    a, b = exact[0].chunk(2, dim=-1)
    true = F.linear(ACTIVATIONS[activation](a) * b, exact[1])
    found = gated_linear(*given, activation)
    assert error(found, true) < 0.01
    for ours, theirs in zip(torch.autograd.grad(found, given, above), torch.autograd.grad(true, exact, above.double())):
        assert error(ours, theirs) < 0.01


def model_and_batch(**changes: Any) -> tuple[Any, Batch]:
    from polyseme.families import FAMILIES

    spec = FAMILIES["bert"].model_config(
        num_layers=2,
        dim=128,
        num_heads=2,
        vocab_size=500,
        max_len=128,
        **({"dropout": 0.0, "attention_dropout": 0.0} | changes),
    )
    draw = torch.Generator().manual_seed(0)
    layout = PackedLayout.from_lengths([100, 128, 30, 66])
    rows = torch.randperm(layout.num_tokens, generator=draw)[:64]
    targets = {
        "masked": Targets(rows, torch.randint(0, 500, (64,), generator=draw), 64),
        "pair": Targets(torch.arange(4), torch.tensor([0, 1, 1, 0]), 4),
    }
    tokens = torch.randint(0, 500, (layout.num_tokens,), generator=draw)
    return spec.build(seed=1), Batch(Inputs(tokens, layout, torch.zeros_like(tokens)), targets, layout.num_tokens)


def test_a_model_in_bfloat16_says_what_it_says_in_float32() -> None:
    model, batch = model_and_batch()
    true = compute_losses(model, batch)
    found = compute_losses(model.to("cuda", torch.bfloat16), batch.to("cuda"))
    for name, value in true.items():
        assert found[name].item() == pytest.approx(value.item(), rel=0.01)


def train_tiny(
    precision: str, steps: int, rate: float = 1e-3, record: bool = False, method: Any = "adamw", dropout: float = 0.0
) -> tuple[list[float], Any]:
    """Losses and model of a short run on two micro-batches a step, which change in their order."""
    from polyseme.train.loop import TrainState, train
    from polyseme.train.optimizer import OptimizerConfig
    from polyseme.train.schedule import ScheduleConfig

    model, batch = model_and_batch(dropout=dropout, attention_dropout=dropout)
    model = model.to("cuda")
    other = dataclasses.replace(batch, tokens=batch.inputs.tokens.flip(0))
    optim = OptimizerConfig(lr=rate, name=method)
    run = TrainState(
        model,
        optim.build(model, model.trunk.layer_groups()),
        optim,
        ScheduleConfig("linear"),
        steps,
        torch.device("cuda"),
        precision,
        use_cuda_graphs=record,
    )
    data = (([batch, other] if i % 3 else [other, batch], i) for i in range(steps))
    found = [report.loss["masked"] for report in train(run, data)]
    return found, model


@pytest.mark.parametrize("method", ["adamw", "muon"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_recorded_steps_are_the_plain_ones(method: str, dropout: float) -> None:
    plain, model = train_tiny("bf16", 20, method=method, dropout=dropout)
    again, same = train_tiny("bf16", 20, record=True, method=method, dropout=dropout)
    noise = max(abs(a - b) for a, b in zip(plain, train_tiny("bf16", 20, method=method, dropout=dropout)[0]))
    assert plain[-1] < plain[0]
    assert max(abs(a - b) for a, b in zip(plain, again)) <= 2 * noise + 1e-6
    for p, q in zip(model.parameters(), same.parameters()):
        torch.testing.assert_close(p, q, atol=1e-3, rtol=0)


def test_sum_and_norm_in_one() -> None:
    from polyseme.nn.kernels.fused import add_norm

    torch.manual_seed(0)
    x, y = torch.randn(2, 300, 96, device="cuda", dtype=torch.bfloat16)
    w, b = torch.randn(2, 96, device="cuda", dtype=torch.bfloat16)
    true = F.layer_norm(x.double() + y.double(), (96,), w.double(), b.double(), 1e-5)
    assert error(add_norm(x, y, w, b, 1e-5), true) < 0.004


def test_training_in_bfloat16_follows_float32() -> None:
    half, _ = train_tiny("bf16", 60)
    full, _ = train_tiny("float32", 60)
    assert full[-1] < 0.5 * full[0]
    assert max(abs(a - b) for a, b in zip(half, full)) < 0.1 * full[0]


@pytest.mark.parametrize("record", [False, True])
def test_a_step_that_is_not_finite_changes_nothing(record: bool) -> None:
    from polyseme.errors import PolysemeError
    from polyseme.train.loop import TrainState, train
    from polyseme.train.optimizer import OptimizerConfig
    from polyseme.train.schedule import ScheduleConfig

    model, batch = model_and_batch()
    model = model.to("cuda")
    with torch.no_grad():
        model.trunk.blocks[0].ffn.up.weight[0, 0] = math.inf
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optim = OptimizerConfig(lr=0.1)
    run = TrainState(
        model,
        optim.build(model, model.trunk.layer_groups()),
        optim,
        ScheduleConfig("constant"),
        200,
        torch.device("cuda"),
        "bf16",
        use_cuda_graphs=record,
    )
    with pytest.raises(PolysemeError, match="step 1 is not finite"):
        for _ in train(run, (([batch], i) for i in range(200))):
            pass
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("rows,columns", [(5, 5), (64, 90), (130, 513)])
def test_placed_softmax_is_softmax_of_skewed_scores(rows: int, columns: int, stream: bool) -> None:
    from polyseme.nn.attention.relative import _GatherByDistance, _relative_shift
    from polyseme.nn.kernels.relative_softmax import relative_softmax

    torch.manual_seed(0)
    heads, n, width = 3, 2, rows + columns
    given = torch.randn(heads * n, rows, columns), torch.randn(heads * n, rows, width), torch.randn(heads * n, rows)
    content, far, more = (x.to("cuda", torch.bfloat16).requires_grad_() for x in given)
    hidden = torch.rand(n, rows, columns, device="cuda") < 0.3
    hidden[..., 0] = False
    hidden[0, 0] = stream  # a place of the query stream may see nothing
    apart = torch.rand(n, rows, columns, device="cuda") < 0.5
    first = torch.randint(0, rows + 1, (n, rows), device="cuda") if stream else None
    above = torch.randn(heads * n, rows, columns, device="cuda", dtype=torch.bfloat16)
    found = relative_softmax(content, far, n, first, hidden, apart, more)
    gradients = torch.autograd.grad(found, (content, far, more), above)

    exact = [x.detach().double().requires_grad_() for x in (content, far, more)]
    by_place = (
        _relative_shift(exact[1], columns) if first is None else _GatherByDistance.apply(exact[1], first, columns)
    )
    scores = (exact[0] + by_place).view(heads, n, rows, columns) + exact[2].view(heads, n, rows, 1) * apart
    true = scores.masked_fill(hidden, -1e300).softmax(-1).masked_fill(hidden, 0).flatten(0, 1)
    assert error(found, true) < 5e-3
    for mine, theirs in zip(gradients, torch.autograd.grad(true, exact, above.double())):
        assert error(mine, theirs) < 1e-2
