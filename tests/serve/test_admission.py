"""Admission by the delay of the event loop, which may be overloaded while the model is not."""

import asyncio
import time

import pytest

from polyseme.serve.admission import NUM_TURNS, LoopDelay
from polyseme.serve.batching.worker import ModelWorker, WorkerLimits


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize("block, is_counted", [(compute, True), (time.sleep, False)], ids=["computes", "waits"])
def test_only_a_busy_loop_is_late(block, is_counted):
    """A loop that waits for a core, as beside computing threads, is not what limits the server."""

    async def measure() -> list[float]:
        delay = LoopDelay()
        delay.start()
        await asyncio.sleep(0.03)
        block(0.2)
        await asyncio.sleep(0.001)
        late = delay.seconds
        await asyncio.sleep(0.3)
        return [late, delay.seconds]

    late, later = asyncio.run(measure())
    assert (late > 0.1) == is_counted
    assert later < 0.1, "it is forgotten soon"


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
