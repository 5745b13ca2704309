"""Where the time of a request goes: differences of a server's `/metrics` and of the processor time of its threads."""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path
from typing import Any

STAGES = {
    "tokenize": "polyseme_encode_seconds_sum",
    "wait in the queue": "polyseme_queue_seconds_sum",
    "compute": "polyseme_batch_seconds_sum",
    "render": "polyseme_render_seconds_sum",
}


class StageTimer:
    """The state of a server at some moment, and what has changed since then."""

    def __init__(self, url: str, pid: int):
        self.url, self.pid = url, pid
        self.start, self.metrics, self.cpu = time.perf_counter(), read_metrics(url), thread_seconds(pid)

    def finish(self, num_texts: int, seconds: float) -> dict[str, Any]:
        """Return microseconds of each stage per text, the size of batches, and how busy the threads were.

        The stages but the queue say how long a thread was busy; the event loop is the main thread, which also reads and
        writes HTTP.
        """
        metrics, cpu = read_metrics(self.url), thread_seconds(self.pid)
        changes = {name: value - self.metrics.get(name, 0.0) for name, value in metrics.items()}
        threads = {tid: value - self.cpu.get(tid, 0.0) for tid, value in cpu.items()}
        num_batches = max(changes.get("polyseme_batch_requests_count", 0.0), 1.0)
        return {
            "us_per_text": {stage: 1e6 * changes.get(name, 0.0) / num_texts for stage, name in STAGES.items()},
            "event_loop_us_per_text": 1e6 * threads[self.pid] / num_texts,
            "requests_per_batch": changes.get("polyseme_batch_requests_sum", 0.0) / num_batches,
            "event_loop_share": threads[self.pid] / seconds,
            "compute_share": changes.get("polyseme_batch_seconds_sum", 0.0) / seconds,
            "processor_share": sum(threads.values()) / seconds / (os.cpu_count() or 1),
        }


def read_metrics(url: str) -> dict[str, float]:
    """Return the metrics of a server, summed over their labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    values: dict[str, float] = {}
    for line in lines:
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values


def thread_seconds(pid: int) -> dict[int, float]:
    """Return the processor time of each thread of a process in seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / ticks
    return seconds
