"""Ordered parallel map over blocks, in local processes or on a dask cluster.

Local workers are plain processes connected by sockets. They do not import the main module, so scripts and notebooks
need no `if __name__ == "__main__"` guard. When the parent is killed its sockets close and the workers exit.
"""

import itertools
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from typing import Any

from polyseme.corpus.build.blocks import DocumentBlock, WorkerConfig
from polyseme.errors import ConfigError, PolysemeError, require_package

BlockTask = Callable[[WorkerConfig, DocumentBlock], Any]
_local = threading.local()


def run_task(task: BlockTask, config: WorkerConfig, block: DocumentBlock) -> Any:
    """Run a task on a block, with a cleaner and a tokenizer of this thread."""
    if getattr(_local, "key", None) != config.key:
        _local.config, _local.key = replace(config), config.key  # a copy, since a tokenizer is locked while it encodes
    return task(_local.config, block)


def num_cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def open_pool(num_workers: int, dask_address: str = "") -> Iterator["WorkerPool"]:
    """Open a pool of the dask cluster at `dask_address`, or of local processes, started with the first block."""
    if dask_address:
        with _connect_cluster(dask_address) as client:
            yield _DaskPool(client)
    else:
        with closing(_ProcessPool(num_workers)) as pool:
            yield pool


def map_ordered(
    pool: "WorkerPool", task: BlockTask, config: WorkerConfig, blocks: Iterable[DocumentBlock]
) -> Iterator[tuple[DocumentBlock, Any]]:
    """Yield every block with its output, in order. Only a few blocks are in flight at a time, which bounds memory."""
    remaining = iter(blocks)
    first_blocks = list(itertools.islice(remaining, 2))
    blocks = itertools.chain(first_blocks, remaining)
    if len(first_blocks) < 2 or pool.size == 1:  # run in this process
        yield from ((block, run_task(task, config, block)) for block in blocks)
        return
    pending: deque[tuple[DocumentBlock, Any]] = deque()
    for block in blocks:
        pending.append((block, pool.submit(task, config, block)))
        if len(pending) > pool.size + 1:
            first_block, future = pending.popleft()
            yield first_block, future.result()
    yield from ((block, future.result()) for block, future in pending)


class _DaskPool:
    """Workers of a dask cluster. The config is sent to each of them once."""

    def __init__(self, client: Any):
        self.client, self.size = client, 2 * max(sum(client.nthreads().values()), 1)
        self._scattered: tuple[str, Any] = ("", None)

    def submit(self, task: BlockTask, config: WorkerConfig, block: DocumentBlock) -> Any:
        if self._scattered[0] != config.key:
            self._scattered = config.key, self.client.scatter(config, broadcast=True)
        return self.client.submit(run_task, task, self._scattered[1], block, pure=False)


@contextmanager
def _connect_cluster(address: str) -> Iterator[Any]:
    distributed = require_package("distributed", "a dask cluster")
    _check_reachable(address)
    try:
        client = distributed.Client(address, timeout=20, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{address!r} is not the address of a dask scheduler ({type(error).__name__})") from None
    try:
        if not client.nthreads():
            client.wait_for_workers(1, timeout=60)
        yield client
    except TimeoutError:
        raise ConfigError(f"the dask scheduler at {address!r} has no workers") from None
    except Exception as error:
        if not type(error).__module__.startswith(("distributed", "asyncio", "concurrent", "tornado")):
            raise
        raise PolysemeError(f"the dask cluster failed ({type(error).__name__}); run again to resume") from None
    finally:
        client.close()


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at the address: dask itself would retry for a long time and log noise."""
    host, _, port = address.removeprefix("tcp://").removeprefix("tls://").rpartition(":")
    if not host or "/" in host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"invalid dask address {address!r}: expected HOST:PORT or tcp://HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot connect to a dask scheduler at {address!r}: {error}") from None


class _ProcessPool:
    """Local worker processes, each served by a thread that sends a block and waits for the reply."""

    def __init__(self, size: int):
        self.size = size
        self.processes: list[subprocess.Popen[bytes]] = []
        self.threads: Executor | None = None

    def submit(self, task: BlockTask, config: WorkerConfig, block: DocumentBlock) -> Any:
        if self.threads is None:
            self.threads = ThreadPoolExecutor(self.size, initializer=self._start_worker)
        return self.threads.submit(self._call_worker, task, config, block)

    def _start_worker(self) -> None:
        """Start the worker process of this thread."""
        environment = os.environ | {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        _local.key, (_local.connection, worker_end) = "", Pipe()
        code = f"from polyseme.corpus.build.workers import worker_main; worker_main({worker_end.fileno()})"
        _local.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=[worker_end.fileno()], env=environment,
            start_new_session=True,  # so that only the parent handles Ctrl-C
        )  # fmt: skip
        worker_end.close()
        self.processes.append(_local.process)

    def _call_worker(self, task: BlockTask, config: WorkerConfig, block: DocumentBlock) -> Any:
        try:
            _local.connection.send((task, None if _local.key == config.key else config, block))
            _local.key = config.key
            succeeded, output = _local.connection.recv()
        except (EOFError, OSError):
            status = _local.process.wait()
            reason = "was killed, possibly out of memory" if status < 0 else f"exited with status {status}"
            raise PolysemeError(f"a worker process {reason}; run again to resume") from None
        if not succeeded:
            raise output
        return output

    def close(self) -> None:
        """Stop the processes and threads."""
        for process in self.processes:
            process.kill()
        if self.threads is not None:
            self.threads.shutdown(wait=True, cancel_futures=True)
        for process in self.processes:
            process.wait()


WorkerPool = _DaskPool | _ProcessPool


def worker_main(descriptor: int) -> None:
    """Run tasks from a connection until it closes. Output that they print goes to standard error."""
    connection = Connection(descriptor)
    config: Any = None
    try:
        os.dup2(2, 1)
    except OSError:  # standard error is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        try:
            task, new_config, block = connection.recv()
            config = new_config or config
            try:
                reply = (True, run_task(task, config, block))
            except Exception as error:
                reply = (False, error)
            connection.send(reply)
        except (EOFError, ConnectionError):  # the parent has gone
            os._exit(0)
