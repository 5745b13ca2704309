"""Chunked cross entropy over a vocabulary, compared with torch."""

import pytest
import torch
import torch.nn.functional as F

from polyseme.nn import losses as module
from polyseme.nn.losses import chunked_cross_entropy, chunked_soft_divergence


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


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_soft_divergence_equals_its_definition(dtype, tolerance, has_bias, monkeypatch):
    """Σ p log(p / q) · T² with the probabilities of all rows at once, and its gradients; student and teacher differ in
    size, some rows are filler, and the last chunk is shorter."""
    monkeypatch.setattr(module, "MAX_SOFT_LOGITS", {"cpu": 31 * 16})
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    student, teacher = (draw(37, 6), draw(31, 6), draw(31)), (draw(37, 9), draw(31, 9), draw(31))
    student, teacher = (inputs if has_bias else (*inputs[:2], None) for inputs in (student, teacher))
    student = tuple(t if t is None else t.requires_grad_() for t in student)
    is_valid, temperature = torch.arange(37) % 5 != 0, 2.0
    loss = chunked_soft_divergence(student, teacher, is_valid, temperature)
    gradients = torch.autograd.grad(3 * loss, [t for t in student if t is not None])
    reference = [t if t is None else t.detach().double().requires_grad_() for t in student]
    logits, teacher_logits = (
        h @ w.T + (0 if b is None else b)
        for h, w, b in (reference, [None if t is None else t.double() for t in teacher])
    )
    probs, teacher_probs = ((z / temperature).exp() for z in (logits, teacher_logits))
    probs, teacher_probs = (p / p.sum(1, keepdim=True) for p in (probs, teacher_probs))
    rows = (teacher_probs * (teacher_probs / probs).log()).sum(1) * temperature**2
    expected_loss = (rows * is_valid).sum()
    expected = torch.autograd.grad(3 * expected_loss, [t for t in reference if t is not None])
    torch.testing.assert_close(loss.double(), expected_loss, atol=0, rtol=tolerance)
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(
            gradient.double(), wanted, atol=tolerance * wanted.abs().max().item(), rtol=tolerance
        )
