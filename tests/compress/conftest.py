"""Short measurements of latency."""

import pytest

from polyseme.compress import result


@pytest.fixture(autouse=True)
def few_timings(monkeypatch):
    """Time two texts twice."""
    monkeypatch.setattr(result, "NUM_TIMED_TEXTS", 2)
    monkeypatch.setattr(result, "NUM_REPEATS", 2)
