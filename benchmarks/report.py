"""Output of benchmarks: environment, Markdown tables, mean and deviation, and timing in turn."""

from __future__ import annotations

import datetime
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

import torch


def header(title: str) -> str:
    """Return a title with date, commit, device, threads and torch version."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_name()
    threads = torch.get_num_threads()
    today = datetime.date.today().isoformat()
    return f"{title}\n{today}, commit {commit or '?'}, {device}, {threads} threads, torch {torch.__version__}\n"


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format a Markdown table."""
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def mean_std(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean and sample standard deviation (None for one value)."""
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def format_mean_std(stats: Mapping[str, float | None], digits: int = 1) -> str:
    """Format what `mean_std` returns as `12.3 ± 0.4`."""
    std = "" if stats["std"] is None else f" ± {stats['std']:.{digits}f}"
    return f"{stats['mean']:.{digits}f}{std}"


def median_seconds(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median time of each step. They take turns, so that a slow moment of the machine affects all."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
