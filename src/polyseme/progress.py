"""A progress bar with rate and time left; log messages when standard error is not a terminal."""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

logger = logging.getLogger(__name__)
LOG_SECONDS = 10.0  # between messages without a terminal


class Progress:
    """Count completed work. `advance(n, note)` is cheap enough for an inner loop."""

    def __init__(self, title: str, total: float | None, unit: str, show: bool = True):
        self.title, self.total, self.unit, self.interval = title, total, unit, LOG_SECONDS if show else math.inf
        self.completed = self.resumed = 0.0
        self.start = self.last_logged = time.monotonic()
        self.is_finished = False
        self._bar: Any = None
        if show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}")]
            self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._task = self._bar.add_task(title, total=total, note="")
            self._bar.start()

    def advance(self, amount: float, note: str = "") -> None:
        """Add completed work and show the progress, with a note at the end."""
        self.completed += amount
        now = time.monotonic()
        if self._bar is not None:
            parts = [f"{_format_number(self.completed)} {self.unit}", self._format_rate(), *([note] if note else [])]
            self._bar.update(self._task, completed=self.completed, note=", ".join(parts))
        elif now - self.last_logged >= self.interval:
            self.last_logged = now
            logger.info(self._format_line(note))

    def show_note(self, note: str) -> None:
        """Show a note without progress: what the work waits for."""
        if self._bar is not None:
            self._bar.update(self._task, note=note)
        elif self.interval < math.inf:
            logger.info(f"{self.title}: {note}")

    def set_total(self, total: float) -> None:
        """Change the total amount of work."""
        if total == self.total:
            return
        self.total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def add_completed(self, amount: float) -> None:
        """Add work that an earlier run completed: it does not count toward the rate."""
        self.completed += amount
        self.resumed += amount

    @contextmanager
    def window(self, amount: float) -> Iterator[None]:
        """Complete some work in the context; the bars that it opens show as a fraction of that work."""
        start = self.completed
        token = _parent.set(lambda fraction: self.advance(max(start + fraction * amount - self.completed, 0)))
        try:
            yield
        finally:
            _parent.reset(token)
        self.advance(start + amount - self.completed)

    def finish(self) -> None:
        """Show that all is complete: 100 % of what was done, if the progress has been shown before."""
        if self.is_finished:
            return
        self.is_finished = True
        self.set_total(self.completed)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.completed)
        elif self.last_logged > self.start:
            self.last_logged = -math.inf
            self.advance(0)

    def close(self) -> None:
        """Stop the progress bar."""
        if self._bar is not None:
            self._bar.stop()

    def _format_rate(self) -> str:
        elapsed = max(time.monotonic() - self.start, 1e-9)
        return f"{_format_number((self.completed - self.resumed) / elapsed)} {self.unit}/s"

    def _format_line(self, note: str) -> str:
        total = f" of {_format_number(self.total)}" if self.total else ""
        parts = [f"{self.title}: {_format_number(self.completed)}{total} {self.unit}", self._format_rate()]
        if self.total and self.completed > self.resumed:
            seconds_per_unit = (time.monotonic() - self.start) / (self.completed - self.resumed)
            parts.append(f"{_format_duration(seconds_per_unit * max(self.total - self.completed, 0))} left")
        return ", ".join([*parts, note] if note else parts)


class _NestedProgress(Progress):
    """A bar inside a window of another one: it shows nothing but advances that one."""

    def __init__(self, title: str, total: float | None, unit: str, show_fraction: Callable[[float], None]):
        super().__init__(title, total, unit, show=False)
        self.show_fraction = show_fraction

    def advance(self, amount: float, note: str = "") -> None:
        self.completed += amount
        if self.total:
            self.show_fraction(min(self.completed / self.total, 1.0))


_parent: ContextVar[Callable[[float], None] | None] = ContextVar("parent_progress", default=None)


@contextmanager
def progress(title: str, total: float | None, unit: str, show: bool = True) -> Iterator[Progress]:
    """Show a progress bar while the context is open; it ends at 100 % unless an error ends the context."""
    show_fraction = _parent.get()
    bar = (
        Progress(title, total, unit, show)
        if show_fraction is None
        else _NestedProgress(title, total, unit, show_fraction)
    )
    try:
        yield bar
        bar.finish()
    finally:
        bar.close()


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show that work without measurable progress is going on; log it every ten seconds if there is no terminal."""
    if _parent.get() is not None:
        yield
        return
    start, is_done = time.monotonic(), threading.Event()
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(title):
            yield
        return

    def log_time() -> None:
        while not is_done.wait(LOG_SECONDS):
            logger.info(f"{title}: {_format_duration(time.monotonic() - start)} so far")

    thread = threading.Thread(target=log_time, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def _format_number(number: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def _format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
