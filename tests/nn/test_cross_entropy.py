"""Chunked cross entropy over a vocabulary, compared with torch."""

import pytest
import torch
import torch.nn.functional as F

from polyseme.nn import losses as module
from polyseme.nn.losses import chunked_cross_entropy


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("max_chunk_logits", [1, 40 * 7, 1 << 25])  # chunks of 16 rows (the minimum), 16 rows, all rows
def test_loss_and_gradients_match_torch(monkeypatch, max_chunk_logits, has_bias, label_smoothing):
    monkeypatch.setattr(module, "MAX_CHUNK_LOGITS", max_chunk_logits)
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    hidden, weight, bias = randn(37, 5), randn(40, 5), randn(40) if has_bias else None
    targets = torch.randint(0, 40, (37,), generator=generator)
    targets[::5] = -100
    inputs = [t for t in (hidden, weight, bias) if t is not None]
    expected = F.cross_entropy(
        F.linear(hidden, weight, bias), targets, ignore_index=-100, reduction="sum", label_smoothing=label_smoothing
    )
    loss = chunked_cross_entropy(hidden, weight, bias, targets, -100, label_smoothing)
    torch.testing.assert_close(loss, expected, atol=1e-11, rtol=0)
    for a, b in zip(torch.autograd.grad(loss / 3, inputs), torch.autograd.grad(expected / 3, inputs)):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_target_with_zero_probability_has_a_finite_loss():
    hidden, weight = torch.tensor([[1000.0]], requires_grad=True), torch.tensor([[1.0], [0.0], [-1.0]])
    loss = chunked_cross_entropy(hidden, weight, None, torch.tensor([2]), -100)
    assert loss.item() == 2000
    assert torch.autograd.grad(loss, hidden)[0].item() == 2


def test_ignored_rows_have_zero_loss():
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    loss = chunked_cross_entropy(hidden, weight, None, torch.full((3,), -100), -100)
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, hidden)[0].any()
    assert chunked_cross_entropy(hidden[:0], weight, None, torch.zeros(0, dtype=torch.long), -100).item() == 0
