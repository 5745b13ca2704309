"""Inputs of all commands that write, and a limit on the time of a test."""

import signal

import pytest

from tests.faults.writers import Inputs

MAX_SECONDS = 60  # on a busy machine; no bad input may keep a command busy


@pytest.fixture(scope="session")
def inputs(project, tiny_folders, tmp_path_factory) -> Inputs:
    """What the commands read."""
    return Inputs(project, tiny_folders, tmp_path_factory.mktemp("inputs"))


@pytest.fixture(autouse=True)
def limit_seconds(request):
    """Fail a test that takes too long, unless it is a slow one."""
    if request.node.get_closest_marker("slow"):
        yield
        return

    def stop(signum, frame):
        pytest.fail(f"took more than {MAX_SECONDS} s")

    previous_handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous_handler)
