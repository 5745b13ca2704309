"""Progress: bars inside a window of another one advance that one, and the last line shows that all is complete."""

import logging
import time
from types import SimpleNamespace

import pytest

from polyseme.progress import progress, waiting


def test_bars_inside_a_window_advance_the_outer_one(caplog):
    seen = []
    with progress("outer", 20, "texts") as bar:
        bar.interval = 0  # log every step
        for _ in range(2):
            with bar.window(10):
                for unit in ("tokens", "rows"):  # two passes over one window
                    with progress("inner", 4, unit) as inner:
                        inner.advance(1)
                        seen.append(bar.completed)
                        inner.advance(3)
        assert seen == [2.5, 10, 12.5, 20] and bar.completed == 20
        with progress("other", 4, "texts") as other:  # outside of a window
            other.advance(1)
        assert bar.completed == 20


def test_the_last_line_is_complete(caplog):
    caplog.set_level(logging.INFO, "polyseme.progress")
    logging.getLogger("polyseme").addHandler(caplog.handler)
    try:
        for seconds in (0.0, 1e9):
            with progress("work", 20, "texts") as bar:
                bar.add_completed(5)
                bar.interval = seconds
                bar.advance(10)
                bar.interval = 1e9
                bar.advance(5)
                bar.finish()
    finally:
        logging.getLogger("polyseme").removeHandler(caplog.handler)
    assert [message.split(",")[0] for message in caplog.messages] == ["work: 15 of 20 texts", "work: 20 of 20 texts"]
    assert "texts/s" in caplog.messages[-1]


def test_every_bar_ends_at_100_percent_unless_it_fails(caplog):
    """Whatever the caller counted, the last line is complete; a bar that an error ends is not."""
    caplog.set_level(logging.INFO, "polyseme.progress")
    logging.getLogger("polyseme").addHandler(caplog.handler)
    try:
        for total in (100, None):
            with progress("work", total, "texts") as bar:
                bar.interval = 0
                bar.advance(40)
        with pytest.raises(KeyError), progress("failed", 100, "texts") as bar:
            bar.interval = 0
            bar.advance(40)
            raise KeyError
    finally:
        logging.getLogger("polyseme").removeHandler(caplog.handler)
    assert [message.split(",")[0] for message in caplog.messages] == [
        "work: 40 of 100 texts",
        "work: 40 of 40 texts",
        "work: 40 texts",
        "work: 40 of 40 texts",
        "failed: 40 of 100 texts",
    ]


def test_the_bar_of_a_terminal_ends_at_100_percent(monkeypatch):
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True, write=lambda text: None, flush=lambda: None))
    for total in (100, None):
        with progress("work", total, "texts") as bar:
            bar.show_note("compiling kernels in the first step")
            assert bar._bar.tasks[0].fields["note"] == "compiling kernels in the first step"
            bar.advance(40)
        assert bar._bar.tasks[0].percentage == 100 and bar._bar.tasks[0].finished


def test_waiting_is_logged(monkeypatch, caplog):
    monkeypatch.setattr("polyseme.progress.LOG_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "polyseme.progress")
    logging.getLogger("polyseme").addHandler(caplog.handler)
    try:
        with waiting("training"):
            time.sleep(0.1)
        num_messages = len(caplog.messages)
        time.sleep(0.03)
    finally:
        logging.getLogger("polyseme").removeHandler(caplog.handler)
    assert caplog.messages[0] == "training: 0:00 so far" and len(caplog.messages) == num_messages
