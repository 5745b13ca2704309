"""What recorded kernels read stays; the rest is let go."""

from __future__ import annotations

import torch

from polyseme.nn.index_cache import cached_index, retain_entries


def test_the_last_answers_are_kept_and_all_that_are_pinned() -> None:
    asked = []

    @cached_index(2)
    def fact(number: int) -> list[int]:
        asked.append(number)
        return [number]

    first = fact(1)
    with retain_entries():
        second = fact(2)
        assert fact(1) is first
    for number in range(3, 9):
        fact(number)
    assert fact(1) is first and fact(2) is second and asked == [1, 2, *range(3, 9)]
    assert fact(8) is fact(8) and asked[-1] == 8
    fact(3)
    assert asked[-1] == 3  # which was let go


def test_what_was_asked_for_while_reading_serves_learning() -> None:
    @cached_index(2)
    def places(number: int) -> torch.Tensor:
        return torch.arange(number)

    with torch.inference_mode():
        places(3)
    rows = torch.ones(3, 2, requires_grad=True)
    rows.index_select(0, places(3)).sum().backward()
    assert rows.grad is not None and not places(3).is_inference()
