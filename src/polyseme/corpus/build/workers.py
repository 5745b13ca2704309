"""Ordered parallel map over local processes or a dask cluster.

Local workers are plain processes that communicate over pipes. They do not import the main module, so scripts and
notebooks need no `if __name__ == "__main__"` guard. When the parent is killed its pipes close and the workers exit.
"""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol, TypeVar

from polyseme.errors import ConfigError, PolysemeError, UnsupportedError

Item = TypeVar("Item")
Result = TypeVar("Result")
TaskFn = Callable[[Any, Item], Result]  # called with the opened context and an item
_local = threading.local()


class TaskContext(Protocol):
    """Settings shared by all items of a run; small, and sent to each worker once."""

    @property
    def key(self) -> str:
        """Identifier that is equal for equal contexts."""
        ...

    def open(self) -> Any:
        """Build the first argument of the tasks, e.g. load a tokenizer."""
        ...


def run_task(task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Result:
    """Run one item in this thread. The context is opened once per thread."""
    if getattr(_local, "key", None) != context.key:
        _local.state, _local.key = context.open(), context.key
    return task(_local.state, item)


def num_cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool(Protocol):
    """Executor that runs up to `size` items at a time."""

    size: int

    def submit(self, task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Future[Result]:
        """Start an item and return a future for its output."""
        ...


@contextmanager
def open_pool(num_workers: int, dask_address: str = "") -> Iterator[WorkerPool]:
    """Open a pool of local processes, or of the dask cluster at `dask_address`.

    Processes are started when the first item is submitted.
    """
    if dask_address:
        with _connect_cluster(dask_address) as client:
            yield _DaskPool(client)
    else:
        pool = _ProcessPool(num_workers)
        try:
            yield pool
        finally:
            pool.close()


def map_ordered(
    pool: WorkerPool, task: TaskFn[Item, Result], context: TaskContext, items: Iterable[Item]
) -> Iterator[tuple[Item, Result]]:
    """Yield every item with its output, in order. Only a few items are in flight at a time, which bounds memory."""
    pending: deque[tuple[Item, Future[Result]]] = deque()
    remaining = iter(items)
    first_items = list(itertools.islice(remaining, 2))
    if len(first_items) < 2 or pool.size == 1:  # run in this process
        for item in itertools.chain(first_items, remaining):
            yield item, run_task(task, context, item)
        return
    for item in itertools.chain(first_items, remaining):
        pending.append((item, pool.submit(task, context, item)))
        if len(pending) > pool.size + 1:
            first_item, future = pending.popleft()
            yield first_item, future.result()
    for item, future in pending:
        yield item, future.result()


class _DaskPool:
    """Workers of a dask cluster. The context is sent to each of them once."""

    def __init__(self, client: Any):
        self.client, self.size = client, 2 * max(sum(client.nthreads().values()), 1)
        self._scattered: tuple[str, Any] = ("", None)

    def submit(self, task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Future[Result]:
        if self._scattered[0] != context.key:
            self._scattered = context.key, self.client.scatter(context, broadcast=True)
        return _ClusterFuture(self.client.submit(run_task, task, self._scattered[1], item, pure=False))  # type: ignore[return-value]


class _ClusterFuture:
    """Future of a cluster task that turns cluster failures into a `PolysemeError`."""

    def __init__(self, future: Any):
        self.future = future

    def result(self) -> Any:
        try:
            return self.future.result()
        except PolysemeError:
            raise
        except Exception as error:
            if not type(error).__module__.startswith(("distributed", "asyncio", "concurrent", "tornado")):
                raise
            raise PolysemeError(f"the dask cluster failed ({type(error).__name__}); run again to resume") from None


@contextmanager
def _connect_cluster(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        raise UnsupportedError("dask.distributed is not installed: pip install distributed") from None
    _check_reachable(address)
    try:
        client = Client(address, timeout=20, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{address!r} is not the address of a dask scheduler ({type(error).__name__})") from None
    try:
        if not client.nthreads():
            client.wait_for_workers(1, timeout=60)
        yield client
    except TimeoutError:
        raise ConfigError(f"the dask scheduler at {address!r} has no workers") from None
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
    """Local worker processes, each served by a thread that sends an item and waits for the reply."""

    def __init__(self, size: int):
        self.size = size
        self.processes: list[subprocess.Popen[bytes]] = []
        self.threads: Executor | None = None

    def submit(self, task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Future[Result]:
        if self.threads is None:
            self.threads = ThreadPoolExecutor(self.size, initializer=self._start_worker)
        return self.threads.submit(self._call_worker, task, context, item)

    def _start_worker(self) -> None:
        """Start the worker process of this thread."""
        environment = os.environ | {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-c", "from polyseme.corpus.build.workers import worker_main; worker_main()"]
        _local.key = ""
        _local.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )  # in a new session, so that only the parent handles Ctrl-C
        self.processes.append(_local.process)

    def _call_worker(self, task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Result:
        process = _local.process
        try:
            _send(process.stdin, (task, None if _local.key == context.key else context, item))
            _local.key = context.key
            succeeded, output = _receive(process.stdout)
        except (EOFError, OSError):
            status = process.wait()
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
            process.communicate()


def worker_main() -> None:
    """Run items from standard input until the pipe closes. Output printed by tasks goes to standard error."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    try:
        os.dup2(2, 1)
    except OSError:  # standard error is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    context: Any = None
    while True:
        try:
            task, new_context, item = _receive(requests)
        except EOFError:
            return
        context = new_context or context
        try:
            reply = (True, run_task(task, context, item))
        except Exception as error:
            reply = (False, error)
        try:
            _send(replies, reply)
        except BrokenPipeError:  # the parent has gone
            os._exit(0)


def _send(pipe: BinaryIO | Any, message: Any) -> None:
    payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    pipe.write(struct.pack("<Q", len(payload)))
    pipe.write(payload)
    pipe.flush()


def _receive(pipe: BinaryIO | Any) -> Any:
    header = pipe.read(8)
    payload = pipe.read(struct.unpack("<Q", header)[0]) if len(header) == 8 else b""
    if len(header) < 8 or len(payload) < struct.unpack("<Q", header)[0]:
        raise EOFError
    return pickle.loads(payload)
