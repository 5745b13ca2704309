"""Admission by the delay of the event loop, which may be overloaded while the model is not."""

import asyncio

import pytest

from polyseme.serve import admission
from polyseme.serve.admission import NUM_TURNS, TICK_SECONDS, LoopDelay
from polyseme.serve.batching.worker import ModelWorker, WorkerLimits


class FakeLoop:
    """An event loop whose clock is set by a test."""

    def __init__(self):
        self.now, self.calls = 5.0, []

    def time(self):
        return self.now

    def call_at(self, due, callback, *args):
        self.calls.append((due, callback, args))

    def run_next(self, late):
        due, callback, args = self.calls.pop(0)
        self.now = due + late
        callback(*args)


@pytest.mark.parametrize("computed, is_counted", [(0.2, True), (0.05, False)], ids=["computes", "waits"])
def test_only_a_busy_loop_is_late(computed, is_counted, monkeypatch):
    """A loop that waits for a core, as beside computing threads, is not what limits the server."""
    loop, delay, seconds = FakeLoop(), LoopDelay(), [0.0]
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(admission.time, "thread_time", lambda: seconds[0])
    delay.start()
    delay.start()
    assert len(loop.calls) == 1 and loop.calls[0][0] == pytest.approx(5.0 + TICK_SECONDS)
    seconds[0] += computed
    loop.run_next(late=0.2)
    assert delay.seconds == (pytest.approx(0.2) if is_counted else 0.0)
    for _ in range(10):
        loop.run_next(late=0.0)
    assert delay.seconds < 0.001, "it is forgotten soon"


def test_the_delay_of_the_loop_counts():
    worker = ModelWorker("test", WorkerLimits(max_delay=1.0))
    try:
        assert worker.has_room(100) and worker.has_room(100, NUM_TURNS * 0.01)
        assert not worker.has_room(100, NUM_TURNS * 0.5)
    finally:
        worker.close()
    worker = ModelWorker("test", WorkerLimits())
    try:
        assert worker.has_room(100, 60.0), "without --max-delay nothing is late"
    finally:
        worker.close()
