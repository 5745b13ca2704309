"""The index cache evicts old entries, but never retained ones."""

from concurrent.futures import ThreadPoolExecutor

import torch

from polyseme.nn.index_cache import cached_index, retain_entries


def test_recent_and_retained_entries_are_cached() -> None:
    computed = []

    @cached_index(2)
    def compute(number: int) -> list[int]:
        computed.append(number)
        return [number]

    first = compute(1)
    with retain_entries():
        second = compute(2)
        assert compute(1) is first
    for number in range(3, 9):
        compute(number)
    assert compute(1) is first and compute(2) is second and computed == [1, 2, *range(3, 9)]
    assert compute(8) is compute(8) and computed[-1] == 8
    compute(3)
    assert computed[-1] == 3  # had been evicted


def test_entries_from_inference_mode_can_be_used_in_training() -> None:
    @cached_index(2)
    def make_index(number: int) -> torch.Tensor:
        return torch.arange(number)

    with torch.inference_mode():
        make_index(3)
    rows = torch.ones(3, 2, requires_grad=True)
    rows.index_select(0, make_index(3)).sum().backward()
    assert rows.grad is not None and not make_index(3).is_inference()


def test_threads_share_entries_but_not_the_retaining_context() -> None:
    computed = []

    @cached_index(2)
    def compute(number: int) -> list[int]:
        computed.append(number)
        return [number]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(compute, [1] * 100)) == [[1]] * 100 and computed == [1]
        with retain_entries():
            pool.submit(compute, 2).result()  # another thread retains nothing
        for number in (3, 4, 2):
            compute(number)
        assert computed == [1, 2, 3, 4, 2]
        assert sorted({entry[0] for entry in pool.map(compute, list(range(10)) * 50)}) == list(range(10))
