"""A progress bar with rate and time left; plain lines when the output is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Progress:
    """Counts work done. `advance(n, note)` is cheap enough for an inner loop."""

    def __init__(self, title: str, total: float | None, unit: str, interval: float = 10.0, show: bool = True):
        self.title, self.total, self.unit, self.interval = title, total, unit, interval if show else float("inf")
        self.completed = 0.0
        self.start = self.last_printed = time.monotonic()
        self.resumed = 0.0
        self._bar: Any = None
        self._task: Any = None
        if show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}")]
            self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._task = self._bar.add_task(title, total=total, note="")
            self._bar.start()

    def format_rate(self) -> str:
        elapsed = max(time.monotonic() - self.start, 1e-9)
        return f"{_format_number((self.completed - self.resumed) / elapsed)} {self.unit}/s"

    def advance(self, amount: float, note: str = "") -> None:
        self.completed += amount
        now = time.monotonic()
        if self._bar is not None:
            text = f"{_format_number(self.completed)} {self.unit}, {self.format_rate()}" + (f", {note}" if note else "")
            self._bar.update(self._task, completed=self.completed, note=text)
        elif now - self.last_printed >= self.interval:
            self.last_printed = now
            print(self.format_line(note), file=sys.stderr, flush=True)

    def set_total(self, total: float) -> None:
        """Another amount of work than was said at first."""
        self.total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def add_completed(self, amount: float) -> None:
        """Work done earlier: it counts as done, but not towards the rate."""
        self.completed += amount
        self.resumed += amount

    def format_line(self, note: str = "") -> str:
        total_text = f" of {_format_number(self.total)}" if self.total else ""
        remaining = ""
        if self.total and self.completed > self.resumed:
            seconds_per_unit = (time.monotonic() - self.start) / (self.completed - self.resumed)
            seconds = seconds_per_unit * max(self.total - self.completed, 0)
            remaining = f", {_format_duration(seconds)} left"
        return (
            f"{self.title}: {_format_number(self.completed)}{total_text} {self.unit}, {self.format_rate()}{remaining}"
            + (f", {note}" if note else "")
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress(title: str, total: float | None, unit: str, show: bool = True) -> Iterator[Progress]:
    bar = Progress(title, total, unit, show=show)
    try:
        yield bar
    finally:
        bar.close()


def _format_number(number: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def _format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
