"""What the rows of `gpu.py` share: the row itself, the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

DEVICE = torch.device("cuda")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    family: str
    size: dict[str, int]
    sequences: int
    length: int
    dropout: float = 0.0
    work: str = "train"


@dataclass
class Measured:
    """What one side did."""

    tokens: float  # a second
    memory: float  # GiB
    mfu: float = 0.0
    cold: float = 0.0  # seconds to the first step
    notes: dict[str, float] = field(default_factory=dict)


def timed(step: Callable[[], object], steps: int) -> float:
    """Milliseconds a step: the median of three runs of steps."""
    found = []
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(steps):
            step()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / steps)
    return statistics.median(found)


def fresh() -> None:
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measure(step: Callable[[], object], tokens: int, flops: int, peak: float, steps: int) -> Measured:
    began = time.monotonic()
    step()
    torch.cuda.synchronize()
    cold = time.monotonic() - began
    for _ in range(4):
        step()
    each = timed(step, steps) / 1e3
    return Measured(tokens / each, torch.cuda.max_memory_allocated() / 2**30, flops / each / peak, cold)


def matrix_peak() -> float:
    """Operations a second of a large matrix product in bf16, at the clock that a chip at work holds."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(1000):  # a second and a half: a cold chip is faster
        a @ b
    return 2 * 8192**3 / (timed(lambda: a @ b, 20) / 1e3)
