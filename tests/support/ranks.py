"""Two ranks of a distributed run, as forks of the test process."""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from polyseme.errors import PolysemeError
from polyseme.train import distributed

_FORK = multiprocessing.get_context("fork")  # importing torch in new processes would take most of the time


def run_ranks(
    function: Callable[[int], object], *, num_started: int = 2, timeout: float = 60.0
) -> tuple[list[int | None], list[object]]:
    """Call `function(rank)` in two processes; return the exit status of each and what they raised, or None."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    pipes, processes = [], []

    def run(rank: int, sender: Connection) -> None:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        try:
            sender.send(function(rank))
            distributed.shutdown()
        except PolysemeError as error:
            sender.send(f"{type(error).__name__}: {error}")
            os._exit(2)
        except BaseException as error:
            sender.send(repr(error))
            os._exit(1)
        os._exit(0)

    for rank in range(num_started):
        receiver, sender = _FORK.Pipe(duplex=False)
        processes.append(_FORK.Process(target=run, args=(rank, sender)))
        processes[-1].start()
        sender.close()
        pipes.append(receiver)
    end_time = time.monotonic() + timeout
    for process in processes:
        process.join(max(end_time - time.monotonic(), 0.1))
    hanging = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    assert not hanging, f"ranks {hanging} are still running"
    answers = [_receive(pipe) for pipe in pipes]
    return [process.exitcode for process in processes], answers


def _receive(pipe: Connection) -> object:
    try:
        return pipe.recv()
    except EOFError:
        return None
