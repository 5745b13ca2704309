"""Rows and timing of `gpu.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

DEVICE = torch.device("cuda")


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    family: str
    size: dict[str, int]
    sequences: int
    length: int
    dropout: float = 0.0
    work: str = "train"


@dataclass
class Measurement:
    """Speed and memory of one side."""

    tokens: float  # per second
    memory: float  # GiB
    mfu: float = 0.0
    cold: float = 0.0  # seconds of the first step
    notes: dict[str, float] = field(default_factory=dict)


def timed(step: Callable[[], object], steps: int) -> float:
    """Return milliseconds per step: the median of three series of steps."""
    times = []
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(steps):
            step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / steps)
    return statistics.median(times)


def reset() -> None:
    """Forget compiled code, cached memory and the peak of memory."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measure(step: Callable[[], object], tokens: int, flops: int, peak: float, steps: int) -> Measurement:
    """Time the first step, warm up, and measure the following steps."""
    start = time.monotonic()
    step()
    torch.cuda.synchronize()
    cold = time.monotonic() - start
    for _ in range(4):
        step()
    seconds = timed(step, steps) / 1e3
    return Measurement(tokens / seconds, torch.cuda.max_memory_allocated() / 2**30, flops / seconds / peak, cold)


def matrix_peak() -> float:
    """Return the FLOP/s of a large matrix product in bf16, at the clock of a warm chip."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(1000):  # a second and a half: a cold chip is faster
        a @ b
    return 2 * 8192**3 / (timed(lambda: a @ b, 20) / 1e3)
