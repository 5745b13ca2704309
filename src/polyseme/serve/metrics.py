"""Counts and times of requests and batches, in the text format of Prometheus."""

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

TIME_BUCKETS = (0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKEN_BUCKETS = (16, 64, 256, 1024, 4096, 16_384, 65_536)
CALL_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Labels = tuple[tuple[str, str], ...]
Gauges = Mapping[str, Mapping[Labels, float]]
Snapshot = dict[str, Any]  # the metrics of a process as JSON
MAX_GAUGES = ("polyseme_max_batch_tokens",)  # of several processes the largest, not the sum


class Histogram:
    """Numbers of values up to each bound, their sum and their count."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds, self.counts = bounds, [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.sum += value
        self.counts[bisect_left(self.bounds, value)] += 1

    def lines(self, name: str, labels: Labels) -> list[str]:
        """Return the lines of the text format."""
        lines, total = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts):
            total += count
            shown = bound if isinstance(bound, str) else f"{bound:g}"
            lines.append(f"{name}_bucket{_format((*labels, ('le', shown)))} {total}")
        return [*lines, f"{name}_sum{_format(labels)} {self.sum:.6f}", f"{name}_count{_format(labels)} {total}"]


class Metrics:
    """The metrics of a server; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start = time.time()
        self._counters: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, dict[Labels, Histogram]] = defaultdict(dict)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Increase a counter."""
        with self._lock:
            self._counters[name][tuple(labels.items())] += amount

    def observe(self, name: str, value: float, bounds: Sequence[float] = TIME_BUCKETS, **labels: str) -> None:
        """Add a value to a histogram."""
        key = tuple(labels.items())
        with self._lock:
            if key not in self._histograms[name]:
                self._histograms[name][key] = Histogram(bounds)
            self._histograms[name][key].add(value)

    def to_snapshot(self, gauges: Gauges) -> Snapshot:
        """Return all metrics, and values that are measured now, as JSON."""
        with self._lock:
            counters = [[name, key, value] for name, each in self._counters.items() for key, value in each.items()]
            histograms = [
                [name, key, list(each.bounds), list(each.counts), each.sum]
                for name, by_labels in self._histograms.items()
                for key, each in by_labels.items()
            ]
        values = [[name, key, value] for name, each in gauges.items() for key, value in each.items()]
        return {"start": self._start, "counters": counters, "histograms": histograms, "gauges": values}

    def add(self, snapshot: Snapshot) -> None:
        """Add the counters and histograms of another process."""
        with self._lock:
            self._start = min(self._start, snapshot["start"])
            for name, labels, value in snapshot["counters"]:
                self._counters[name][_to_labels(labels)] += value
            for name, labels, bounds, counts, total in snapshot["histograms"]:
                histogram = self._histograms[name].setdefault(_to_labels(labels), Histogram(bounds))
                histogram.counts = [a + b for a, b in zip(histogram.counts, counts)]
                histogram.sum += total

    def format(self, gauges: Gauges) -> str:
        """Return all metrics, and values that are measured now."""
        lines = []
        all_gauges: dict[str, Mapping[Labels, float]] = {"polyseme_uptime_seconds": {(): time.time() - self._start}}
        all_gauges |= gauges
        for name, values in all_gauges.items():
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge"]
            lines += [f"{name}{_format(labels)} {value:g}" for labels, value in values.items()]
        with self._lock:
            for name, counters in self._counters.items():
                lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} counter"]
                lines += [f"{name}{_format(labels)} {value:.15g}" for labels, value in counters.items()]
            for name, histograms in self._histograms.items():
                lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} histogram"]
                lines += [line for labels, each in histograms.items() for line in each.lines(name, labels)]
        return "\n".join(lines) + "\n"


class ModelMetrics:
    """What a worker reports about its batches."""

    def __init__(self, metrics: Metrics, model: str):
        self.metrics, self.model = metrics, model

    def record_batch(self, num_calls: int, num_tokens: int, seconds: float) -> None:
        """Count a batch."""
        self.metrics.count("polyseme_tokens_total", num_tokens, model=self.model)
        self.metrics.observe("polyseme_batch_seconds", seconds, model=self.model)
        self.metrics.observe("polyseme_batch_tokens", num_tokens, TOKEN_BUCKETS, model=self.model)
        self.metrics.observe("polyseme_batch_requests", num_calls, CALL_BUCKETS, model=self.model)


def format_snapshots(snapshots: Sequence[Snapshot]) -> str:
    """Return the metrics of several processes together."""
    metrics, gauges = Metrics(), defaultdict[str, dict[Labels, float]](dict)
    for snapshot in snapshots:
        metrics.add(snapshot)
        for name, labels, value in snapshot["gauges"]:
            key = _to_labels(labels)
            before = gauges[name].get(key, 0.0)
            gauges[name][key] = max(before, value) if name in MAX_GAUGES else before + value
    return metrics.format(gauges)


def _to_labels(pairs: Sequence[Sequence[str]]) -> Labels:
    return tuple((name, value) for name, value in pairs)


HELP = {
    "polyseme_uptime_seconds": "Seconds since the server started.",
    "polyseme_workers": "Processes that answer requests.",
    "polyseme_worker_restarts_total": "Processes that ended and were started again.",
    "polyseme_queue_length": "Requests that wait for a model.",
    "polyseme_active_generations": "Requests whose text is being generated.",
    "polyseme_requests_in_flight": "Requests that have no response yet.",
    "polyseme_max_batch_tokens": "Most tokens of a batch, fewer for a while after memory ran out.",
    "polyseme_requests_total": "Requests by verb and status.",
    "polyseme_request_seconds": "Time from the end of a request to its response.",
    "polyseme_encode_seconds": "Time to check and tokenize a request.",
    "polyseme_queue_seconds": "Time that a request waited for its batch.",
    "polyseme_render_seconds": "Time to write a response as JSON.",
    "polyseme_tokens_total": "Tokens that were read.",
    "polyseme_generated_tokens_total": "Tokens that were generated.",
    "polyseme_batch_seconds": "Time of a batch.",
    "polyseme_batch_tokens": "Tokens of a batch.",
    "polyseme_batch_requests": "Requests of a batch.",
}


def _format(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escape(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
