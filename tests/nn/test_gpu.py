"""GPU only: kernels against their definitions, and training in bfloat16 against float32."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from polyseme.nn.attention.attend import AttentionOptions, attend_self, attend_varlen
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.objectives.losses import compute_losses
from tests.support.attention import attend_eager

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
LENGTHS = [[128] * 3, [5, 17, 128, 1, 64, 90], [512, 511, 3], [1000, 64, 513], [33, 32, 31], [7]]


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("causal,window", [(False, 0), (True, 0), (False, 20), (True, 100)])
@pytest.mark.parametrize("heads,dim", [(3, 64), (2, 32), (1, 128), (2, 16)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_flash_matches_eager_attention(lengths: list[int], heads: int, dim: int, causal: bool, window: int) -> None:
    from polyseme.nn.kernels.flash_attention import flash

    torch.manual_seed(0)
    layout = PackedLayout.from_lengths(lengths, num_slots=len(lengths) + 2, max_seqlen=max(lengths) + 9, device="cuda")
    qkv = torch.randn(layout.num_tokens, 3, heads, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad_output = torch.randn(layout.num_tokens, heads, dim, device="cuda", dtype=torch.bfloat16)
    output = flash(qkv, layout.cu_seqlens, layout.max_seqlen, causal, window=window)
    (grad,) = torch.autograd.grad(output, qkv, grad_output)
    exact = qkv.detach().double().requires_grad_()
    expected = attend_eager(*exact.unbind(1), layout, layout, AttentionOptions(causal, window))
    (expected_grad,) = torch.autograd.grad(expected, exact, grad_output.double())
    varlen_qkv = qkv.detach().clone().requires_grad_()
    varlen_output = attend_varlen(*varlen_qkv.unbind(1), layout, layout, AttentionOptions(causal, window))
    (varlen_grad,) = torch.autograd.grad(varlen_output, varlen_qkv, grad_output)
    assert relative_error(output, expected) < max(1.5 * relative_error(varlen_output, expected), 1e-4)
    assert relative_error(grad, expected_grad) < max(1.5 * relative_error(varlen_grad, expected_grad), 1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 32, 128])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_flash_matches_eager_attention_with_rotary_positions(lengths: list[int], dim: int, causal: bool) -> None:
    from polyseme.nn.layers.positions import apply_rotary

    torch.manual_seed(0)
    layout = PackedLayout.from_lengths(lengths, num_slots=len(lengths) + 2, max_seqlen=max(lengths) + 9, device="cuda")
    qkv = torch.randn(layout.num_tokens, 3, 2, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad_output = torch.randn(layout.num_tokens, 2, dim, device="cuda", dtype=torch.bfloat16)
    output = attend_self(qkv, layout, AttentionOptions(causal), rope_theta=1e4)
    (grad,) = torch.autograd.grad(output, qkv, grad_output)
    exact = qkv.detach().double().requires_grad_()
    rotated = apply_rotary(exact, layout.positions, 1e4).unbind(1)
    expected = attend_eager(*rotated, layout, layout, AttentionOptions(causal))
    (expected_grad,) = torch.autograd.grad(expected, exact, grad_output.double())
    assert relative_error(output, expected) < 0.01 and relative_error(grad, expected_grad) < 0.015


@pytest.mark.parametrize("length", [100, 300])
def test_flash_dropout_is_the_same_in_both_passes(length: int) -> None:
    from polyseme.nn.kernels.flash_attention import flash, flash_backward, flash_forward

    torch.manual_seed(0)
    cu_seqlens = torch.tensor([0, length, 2 * length], device="cuda", dtype=torch.int32)
    qkv = torch.randn(2 * length, 3, 4, 64, device="cuda", dtype=torch.bfloat16)
    ones = qkv.clone()
    ones[:, 2] = 1
    dropped = flash(ones, cu_seqlens, length, dropout=0.25).float()
    assert dropped.mean().item() == pytest.approx(1, abs=0.01) and dropped.std().item() > 0.02
    assert not torch.equal(dropped, flash(ones, cu_seqlens, length, dropout=0.25).float())  # a new seed
    # The output is linear in the values, so their gradient predicts its change exactly.
    seed = torch.tensor([5], device="cuda", dtype=torch.int32)
    out, lse = flash_forward(qkv, cu_seqlens, seed, seed, length, False, 0, 0.25)
    grad_output = torch.randn_like(out)
    grad = flash_backward(grad_output, qkv, out, lse, cu_seqlens, seed, seed, length, False, 0, 0.25)
    change = torch.randn_like(qkv)
    change[:, :2] = 0
    changed = flash_forward(qkv + change, cu_seqlens, seed, seed, length, False, 0, 0.25)[0]
    predicted_change = (grad[:, 2].double() * change[:, 2].double()).sum()
    actual_change = (grad_output.double() * (changed.double() - out.double())).sum()
    assert predicted_change.item() == pytest.approx(actual_change.item(), rel=0.02, abs=1.0)


@pytest.mark.parametrize("vocab_size,num_rows,has_bias", [(30_522, 300, True), (101, 9000, False), (640, 64, True)])
def test_linear_cross_entropy_matches_torch(vocab_size: int, num_rows: int, has_bias: bool) -> None:
    from polyseme.nn.kernels.cross_entropy import linear_cross_entropy

    torch.manual_seed(0)
    shapes: list[tuple[int, ...]] = [(num_rows, 64), (vocab_size, 64), *([(vocab_size,)] if has_bias else [])]
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    targets = torch.randint(0, vocab_size, (num_rows,), device="cuda")
    targets[::7] = IGNORE_INDEX
    hidden, weight, *optional_bias = inputs
    loss = linear_cross_entropy(hidden, weight, optional_bias[0] if optional_bias else None, targets, IGNORE_INDEX)
    grads = torch.autograd.grad(loss / num_rows, inputs)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    logits = F.linear(exact[0], exact[1], exact[2] if optional_bias else None)
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=2e-3)
    for grad, expected_grad in zip(grads, torch.autograd.grad(expected / num_rows, exact)):
        assert relative_error(grad, expected_grad) < 0.02


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_activated_linear_matches_torch(activation: str) -> None:
    from polyseme.nn.kernels.fused import activated_linear
    from polyseme.nn.layers.block import ACTIVATIONS

    torch.manual_seed(0)
    shapes = [(1000, 300), (300,), (64, 300), (64,)]
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    output = activated_linear(*inputs, activation)
    grad_output = torch.randn_like(output)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = F.linear(ACTIVATIONS[activation](exact[0] + exact[1]), exact[2], exact[3])
    assert relative_error(output, expected) < 0.01
    for grad, expected_grad in zip(
        torch.autograd.grad(output, inputs, grad_output), torch.autograd.grad(expected, exact, grad_output.double())
    ):
        assert relative_error(grad, expected_grad) < 0.01


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_gated_linear_matches_torch(activation: str) -> None:
    from polyseme.nn.kernels.fused import gated_linear
    from polyseme.nn.layers.block import ACTIVATIONS

    torch.manual_seed(0)
    shapes = [(300, 2 * 344), (96, 344)]
    inputs = [torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in shapes]
    grad_output = torch.randn(300, 96, device="cuda", dtype=torch.bfloat16)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    a, b = exact[0].chunk(2, dim=-1)
    expected = F.linear(ACTIVATIONS[activation](a) * b, exact[1])
    output = gated_linear(*inputs, activation)
    assert relative_error(output, expected) < 0.01
    for grad, expected_grad in zip(
        torch.autograd.grad(output, inputs, grad_output), torch.autograd.grad(expected, exact, grad_output.double())
    ):
        assert relative_error(grad, expected_grad) < 0.01


def build_model_and_batch(**changes: Any) -> tuple[Any, Batch]:
    from polyseme.families import FAMILIES

    config = FAMILIES["bert"].model_config(
        num_layers=2,
        dim=128,
        num_heads=2,
        vocab_size=500,
        max_len=128,
        **({"dropout": 0.0, "attention_dropout": 0.0} | changes),
    )
    generator = torch.Generator().manual_seed(0)
    layout = PackedLayout.from_lengths([100, 128, 30, 66])
    rows = torch.randperm(layout.num_tokens, generator=generator)[:64]
    targets = {
        "masked": Targets(rows, torch.randint(0, 500, (64,), generator=generator), 64),
        "pair": Targets(torch.arange(4), torch.tensor([0, 1, 1, 0]), 4),
    }
    tokens = torch.randint(0, 500, (layout.num_tokens,), generator=generator)
    return config.build(seed=1), Batch(Inputs(tokens, layout, torch.zeros_like(tokens)), targets, layout.num_tokens)


def test_bfloat16_losses_match_float32() -> None:
    model, batch = build_model_and_batch()
    expected = compute_losses(model, batch)
    losses = compute_losses(model.to("cuda", torch.bfloat16), batch.to("cuda"))
    for name, value in expected.items():
        assert losses[name].item() == pytest.approx(value.item(), rel=0.01)


def train_tiny(
    precision: str,
    steps: int,
    lr: float = 1e-3,
    use_cuda_graphs: bool = False,
    optimizer: Any = "adamw",
    dropout: float = 0.0,
) -> tuple[list[float], Any]:
    """Return losses and model of a short run with two micro-batches per step, in alternating order."""
    from polyseme.train.loop import TrainState, train
    from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig

    model, batch = build_model_and_batch(dropout=dropout, attention_dropout=dropout)
    model = model.to("cuda")
    reversed_inputs = dataclasses.replace(batch.inputs, tokens=batch.inputs.tokens.flip(0))
    reversed_batch = dataclasses.replace(batch, inputs=reversed_inputs)
    optimizer_config = OptimizerConfig(lr=lr, name=optimizer)
    state = TrainState(
        model,
        optimizer_config.build(model, model.trunk.layer_groups()),
        optimizer_config,
        ScheduleConfig("linear"),
        steps,
        torch.device("cuda"),
        precision,
        use_cuda_graphs=use_cuda_graphs,
    )
    steps_of_batches = (([batch, reversed_batch] if i % 3 else [reversed_batch, batch], i) for i in range(steps))
    losses = [report.loss["masked"] for report in train(state, steps_of_batches)]
    return losses, model


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "lamb", "stable_adamw"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_cuda_graph_steps_match_eager_steps(optimizer: str, dropout: float) -> None:
    losses, model = train_tiny("bf16", 20, optimizer=optimizer, dropout=dropout)
    graph_losses, graph_model = train_tiny("bf16", 20, use_cuda_graphs=True, optimizer=optimizer, dropout=dropout)
    noise = max(abs(a - b) for a, b in zip(losses, train_tiny("bf16", 20, optimizer=optimizer, dropout=dropout)[0]))
    assert losses[-1] < losses[0]
    assert max(abs(a - b) for a, b in zip(losses, graph_losses)) <= 2 * noise + 1e-6
    for p, q in zip(model.parameters(), graph_model.parameters()):
        torch.testing.assert_close(p, q, atol=1e-3, rtol=0)


def test_add_norm_matches_torch() -> None:
    from polyseme.nn.kernels.fused import add_norm

    torch.manual_seed(0)
    x, y = torch.randn(2, 300, 96, device="cuda", dtype=torch.bfloat16)
    w, b = torch.randn(2, 96, device="cuda", dtype=torch.bfloat16)
    expected = F.layer_norm(x.double() + y.double(), (96,), w.double(), b.double(), 1e-5)
    assert relative_error(add_norm(x, y, w, b, 1e-5), expected) < 0.004


def test_bfloat16_training_follows_float32() -> None:
    bf16_losses, _ = train_tiny("bf16", 60)
    fp32_losses, _ = train_tiny("float32", 60)
    assert fp32_losses[-1] < 0.5 * fp32_losses[0]
    assert max(abs(a - b) for a, b in zip(bf16_losses, fp32_losses)) < 0.1 * fp32_losses[0]


@pytest.mark.parametrize("use_cuda_graphs", [False, True])
def test_non_finite_step_changes_nothing(use_cuda_graphs: bool) -> None:
    from polyseme.errors import PolysemeError
    from polyseme.train.loop import TrainState, train
    from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig

    model, batch = build_model_and_batch()
    model = model.to("cuda")
    with torch.no_grad():
        model.trunk.blocks[0].ffn.up.weight[0, 0] = math.inf
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer_config = OptimizerConfig(lr=0.1)
    state = TrainState(
        model,
        optimizer_config.build(model, model.trunk.layer_groups()),
        optimizer_config,
        ScheduleConfig("constant"),
        200,
        torch.device("cuda"),
        "bf16",
        use_cuda_graphs=use_cuda_graphs,
    )
    with pytest.raises(PolysemeError, match="step 1 is not finite"):
        for _ in train(state, (([batch], i) for i in range(200))):
            pass
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("is_query_stream", [False, True])
@pytest.mark.parametrize("num_queries,num_keys", [(5, 5), (64, 90), (130, 513)])
def test_relative_softmax_matches_torch(num_queries: int, num_keys: int, is_query_stream: bool) -> None:
    from polyseme.nn.attention.relative import _GatherByDistance, _relative_shift
    from polyseme.nn.kernels.relative_softmax import relative_softmax

    torch.manual_seed(0)
    heads, n, num_distances = 3, 2, num_queries + num_keys
    inputs = (
        torch.randn(heads * n, num_queries, num_keys),
        torch.randn(heads * n, num_queries, num_distances),
        torch.randn(heads * n, num_queries),
    )
    content, distance_scores, segment_scores = (x.to("cuda", torch.bfloat16).requires_grad_() for x in inputs)
    masked_out = torch.rand(n, num_queries, num_keys, device="cuda") < 0.3
    masked_out[..., 0] = False
    masked_out[0, 0] = is_query_stream  # a query-stream target may attend to nothing
    different_segment = torch.rand(n, num_queries, num_keys, device="cuda") < 0.5
    distance_start = torch.randint(0, num_queries + 1, (n, num_queries), device="cuda") if is_query_stream else None
    grad_output = torch.randn(heads * n, num_queries, num_keys, device="cuda", dtype=torch.bfloat16)
    probs = relative_softmax(content, distance_scores, n, distance_start, masked_out, different_segment, segment_scores)
    grads = torch.autograd.grad(probs, (content, distance_scores, segment_scores), grad_output)

    exact = [x.detach().double().requires_grad_() for x in (content, distance_scores, segment_scores)]
    distance_bias = (
        _relative_shift(exact[1], num_keys)
        if distance_start is None
        else _GatherByDistance.apply(exact[1], distance_start, num_keys)
    )
    scores = (exact[0] + distance_bias).view(heads, n, num_queries, num_keys) + exact[2].view(
        heads, n, num_queries, 1
    ) * different_segment
    expected = scores.masked_fill(masked_out, -1e300).softmax(-1).masked_fill(masked_out, 0).flatten(0, 1)
    assert relative_error(probs, expected) < 5e-3
    for grad, expected_grad in zip(grads, torch.autograd.grad(expected, exact, grad_output.double())):
        assert relative_error(grad, expected_grad) < 1e-2


@pytest.mark.parametrize("family", ["xlnet", "t5"])
def test_grouped_attention_matches_the_cpu(family: str, device: str = "cuda") -> None:
    """Sequences of similar length are padded on a GPU; on a CPU those of equal length form batches."""
    from polyseme.families import get_family
    from polyseme.nn.attention.relative import QueryStream
    from polyseme.nn.packing import EncoderInput

    lengths = (40, 47, 47, 52, 60, 61, 63, 90)
    tokens = torch.randint(5, 100, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    sizes = {"vocab_size": 100, "max_len": 128, "num_layers": 2, "dim": 64, "num_heads": 4, "dropout": 0.0}
    torch.manual_seed(0)
    trunk = get_family(family).trunk_config(**sizes, **({"num_decoder_layers": 2} if family == "t5" else {})).build()
    trunk = trunk.double().eval()
    for parameter in trunk.parameters():
        torch.nn.init.normal_(parameter, std=0.3)

    def run(place: str) -> list[torch.Tensor]:
        model, layout = copy.deepcopy(trunk).to(place), PackedLayout.from_lengths(lengths, device=place)
        ids = tokens.to(place)
        if family == "t5":
            inputs = Inputs(ids, layout, source=EncoderInput(ids, layout))
        else:
            targets = (layout.positions % 6 == 2).nonzero()[:, 0]
            rank = torch.full_like(ids, -1).index_copy(0, targets, targets)
            counts = PackedLayout.from_lengths(layout.count_per_sequence(targets), device=place)
            inputs = Inputs(ids, layout, query_stream=QueryStream(rank, targets, counts))
        hidden = model(inputs).hidden
        (hidden * torch.arange(hidden.numel()).double().sin().view_as(hidden).to(place)).sum().backward()
        return [hidden.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    for actual, expected in zip(run(device), run("cpu"), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("family", ["xlnet", "t5"])
def test_captured_steps_with_relative_positions_match_eager_steps(family: str) -> None:
    """Steps on batches of a static shape are captured; those on batches of exact size run kernel by kernel."""
    from polyseme.families import get_family
    from polyseme.objectives.permutation_lm import PermutationLM
    from polyseme.objectives.span_corruption import SpanCorruption
    from polyseme.train.loop import TrainState, train
    from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
    from tests.support.corpora import BERT, random_corpus

    special_ids = dataclasses.replace(BERT, eos=3, pad=0, sentinels=tuple(range(1900, 2000)))
    objective = PermutationLM() if family == "xlnet" else SpanCorruption()
    builder = objective.bind(random_corpus(), special_ids, 64, 1)
    shape = builder.static_shape(2048)
    sizes = {"vocab_size": 2000, "num_layers": 2, "dim": 128, "num_heads": 2, "dropout": 0.0}
    decoder = {"num_decoder_layers": 2} if family == "t5" else {}

    def run(is_static: bool) -> list[float]:
        model = get_family(family).model_config(**sizes, **decoder).build(seed=1).to("cuda")
        config = OptimizerConfig(lr=1e-3)
        optimizer = config.build(model, model.trunk.layer_groups())
        schedule, device = ScheduleConfig("linear"), torch.device("cuda")
        state = TrainState(model, optimizer, config, schedule, 20, device, "bf16", use_cuda_graphs=is_static)
        batches = ([builder.batch(np.arange(30) + 5 * (i % 7), 0, shape if is_static else None)] for i in range(20))
        return [sum(report.loss.values()) for report in train(state, ((batch, i) for i, batch in enumerate(batches)))]

    exact, static = run(False), run(True)
    assert exact[-1] < exact[0]
    assert max(abs(a - b) / a for a, b in zip(exact, static)) < 0.01
