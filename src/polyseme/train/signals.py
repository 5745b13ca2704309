"""Signals that end a training run after the current step, so that it can save its state."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list; a second Ctrl-C interrupts at once."""
    caught: list[int] = []

    def note(signum: int, frame: Any) -> None:
        if caught and signum == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(signum)

    try:
        previous_handlers = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, which alone may handle signals
        previous_handlers = {}
    try:
        yield caught
    finally:
        for s, handler in previous_handlers.items():
            signal.signal(s, handler)
