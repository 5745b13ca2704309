"""The loss over a vocabulary, in slices: torch's own is the measure."""

import pytest
import torch
import torch.nn.functional as F

from polyseme.nn.losses import cross_entropy as module
from polyseme.nn.losses.cross_entropy import chunked_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("scores", [1, 40 * 7, 1 << 25])  # slices of 16 rows at least, of 16, of all
def test_loss_and_gradients_are_those_of_torch(monkeypatch, scores, biased, smoothing):
    monkeypatch.setattr(module, "MAX_CHUNK_LOGITS", scores)
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_()

    states, table, bias = drawn(37, 5), drawn(40, 5), drawn(40) if biased else None
    targets = torch.randint(0, 40, (37,), generator=draw)
    targets[::5] = -100
    given = [t for t in (states, table, bias) if t is not None]
    expected = F.cross_entropy(
        F.linear(states, table, bias), targets, ignore_index=-100, reduction="sum", label_smoothing=smoothing
    )
    found = chunked_cross_entropy(states, table, bias, targets, -100, smoothing)
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)
    for a, b in zip(torch.autograd.grad(found / 3, given), torch.autograd.grad(expected / 3, given)):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_a_truth_of_no_probability_costs_what_it_should():
    states, table = torch.tensor([[1000.0]], requires_grad=True), torch.tensor([[1.0], [0.0], [-1.0]])
    found = chunked_cross_entropy(states, table, None, torch.tensor([2]), -100)
    assert found.item() == 2000
    assert torch.autograd.grad(found, states)[0].item() == 2


def test_rows_that_are_all_ignored_cost_nothing():
    states, table = torch.randn(3, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    found = chunked_cross_entropy(states, table, None, torch.full((3,), -100), -100)
    assert found.item() == 0
    assert not torch.autograd.grad(found, states)[0].any()
    assert chunked_cross_entropy(states[:0], table, None, torch.zeros(0, dtype=torch.long), -100).item() == 0
