"""Adaptive vectors and softmax: the ways for a CPU and for a GPU are the same function."""

from __future__ import annotations

import pytest
import torch

from polyseme.nn.layers.adaptive import (
    AdaptiveEmbeddings,
    AdaptiveEmbeddingsConfig,
    AdaptiveSoftmaxHead,
    AdaptiveSoftmaxHeadConfig,
)

VOCABULARY, DIM, ROWS = 300, 32, 200


def parts(factor: int) -> tuple[AdaptiveEmbeddings, AdaptiveSoftmaxHead]:
    torch.manual_seed(0)
    cutoffs = (40, 100, 260)
    tables = AdaptiveEmbeddingsConfig(VOCABULARY, DIM, cutoffs, factor).build()
    return tables, AdaptiveSoftmaxHeadConfig(VOCABULARY, DIM, cutoffs, factor).build(DIM)


def drawn(low: int = 0) -> torch.Tensor:
    return torch.randint(low, VOCABULARY, (ROWS,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("low", [0, 100], ids=["all bands", "none of the first"])
def test_looking_up_for_all_is_looking_up_for_each(factor: int, low: int) -> None:
    tables, _ = parts(factor)
    tokens, weight = drawn(low), torch.randn(ROWS, DIM)
    found = []
    for way in (tables._lookup_per_band, tables._lookup_masked):
        tables.zero_grad()
        vectors = way(tokens)
        (vectors * weight).sum().backward()
        found.append(
            [vectors.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad for p in tables.parameters())]
        )
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("factor", [1, 2])
def test_on_a_gpu_the_loss_is_that_of_a_cpu(factor: int) -> None:
    tables, head = parts(factor)
    states = torch.randn(ROWS, DIM)
    values = drawn()
    values[:20] = -100
    found = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        there, own = tables.to(device, dtype), head.to(device, dtype)
        given = states.detach().to(device, dtype).clone().requires_grad_()
        for part in (there, own):
            part.zero_grad(set_to_none=True)
        loss = own.loss(given, there, values.to(device), -100)
        loss.backward()
        grads = [p.grad for p in (*there.parameters(), *own.parameters()) if p.grad is not None]
        found.append([loss.detach().float().cpu(), given.grad.float().cpu(), *(g.float().cpu().clone() for g in grads)])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 0.03 * one.norm()
