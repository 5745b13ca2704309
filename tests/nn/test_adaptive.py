"""Adaptive embeddings and softmax: the implementations for CPU and GPU agree."""

from __future__ import annotations

import pytest
import torch

from polyseme.nn.layers.adaptive import (
    AdaptiveEmbeddings,
    AdaptiveEmbeddingsConfig,
    AdaptiveSoftmaxHead,
    AdaptiveSoftmaxHeadConfig,
)

VOCAB_SIZE, DIM, NUM_ROWS = 300, 32, 200


def build_embeddings_and_head(div_value: int) -> tuple[AdaptiveEmbeddings, AdaptiveSoftmaxHead]:
    torch.manual_seed(0)
    cutoffs = (40, 100, 260)
    tables = AdaptiveEmbeddingsConfig(VOCAB_SIZE, DIM, cutoffs, div_value).build()
    return tables, AdaptiveSoftmaxHeadConfig(VOCAB_SIZE, DIM, cutoffs, div_value).build(DIM)


def draw_tokens(low: int = 0) -> torch.Tensor:
    return torch.randint(low, VOCAB_SIZE, (NUM_ROWS,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("div_value", [1, 2])
@pytest.mark.parametrize("low", [0, 100], ids=["all bands", "tail bands only"])
def test_both_lookups_agree_with_their_gradients(div_value: int, low: int) -> None:
    embeddings, _ = build_embeddings_and_head(div_value)
    tokens, weight = draw_tokens(low), torch.randn(NUM_ROWS, DIM)
    outputs = []
    for is_masked in (False, True):
        embeddings.zero_grad()
        vectors = embeddings._look_up(tokens, is_masked)
        (vectors * weight).sum().backward()
        outputs.append(
            [vectors.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad for p in embeddings.parameters())]
        )
    for actual, expected in zip(*outputs):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("div_value", [1, 2])
def test_gpu_loss_matches_cpu(div_value: int) -> None:
    embeddings, head = build_embeddings_and_head(div_value)
    states = torch.randn(NUM_ROWS, DIM)
    labels = draw_tokens()
    labels[:20] = -100
    outputs = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        device_embeddings, device_head = embeddings.to(device, dtype), head.to(device, dtype)
        inputs = states.detach().to(device, dtype).clone().requires_grad_()
        for module in (device_embeddings, device_head):
            module.zero_grad(set_to_none=True)
        loss = device_head.loss(inputs, device_embeddings, labels.to(device))
        loss.backward()
        grads = [p.grad for p in (*device_embeddings.parameters(), *device_head.parameters()) if p.grad is not None]
        outputs.append(
            [loss.detach().float().cpu(), inputs.grad.float().cpu(), *(g.float().cpu().clone() for g in grads)]
        )
    for expected, actual in zip(*outputs, strict=True):
        assert (expected - actual).norm() <= 0.03 * expected.norm()
