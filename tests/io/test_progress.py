"""Progress: bars inside a window of another one advance that one, and the last line shows that all is complete."""

import logging

from polyseme.progress import progress


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
