"""Work on all cores, or on a cluster: each item is done once, and answers come back in the order of the items.

The workers are plain processes at the end of a pipe. They do not import the program that started them, so a script or
a notebook needs no guard; and when it is killed their pipe closes and they leave.
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
TaskFn = Callable[[Any, Item], Result]  # given what the job opened, and an item
_local = threading.local()


class TaskContext(Protocol):
    """What all items of a run share; small, and sent once to each worker."""

    @property
    def key(self) -> str:
        """Equal for equal jobs."""
        ...

    def open(self) -> Any:
        """What the tasks are given: loaded tokenizers, tables."""
        ...


def run_task(task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Result:
    """Do one item here; the job is opened once a thread."""
    if getattr(_local, "key", None) != context.key:
        _local.state, _local.key = context.open(), context.key
    return task(_local.state, item)


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool(Protocol):
    """Somewhere to do work: `size` items at a time."""

    size: int

    def submit(self, task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Future[Result]: ...


@contextmanager
def open_pool(num_workers: int, dask_address: str = "") -> Iterator[WorkerPool]:
    """The workers of one run. Processes are started when there is more than one item for them."""
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
    """Every item with its answer, in order; a few items are under way at a time, so memory is bounded."""
    pending: deque[tuple[Item, Future[Result]]] = deque()
    remaining = iter(items)
    first_items = list(itertools.islice(remaining, 2))
    if len(first_items) < 2 or pool.size == 1:  # one item alone, or one worker: here
        for item in itertools.chain(first_items, remaining):
            yield item, run_task(task, context, item)
        return
    for item in itertools.chain(first_items, remaining):
        pending.append((item, pool.submit(task, context, item)))
        if len(pending) > pool.size + 1:
            done_item, future = pending.popleft()
            yield done_item, future.result()
    for done_item, future in pending:
        yield done_item, future.result()


class _DaskPool:
    """The workers of a dask cluster. The job is sent to each of them once."""

    def __init__(self, client: Any):
        self.client, self.size = client, 2 * max(sum(client.nthreads().values()), 1)
        self._scattered: tuple[str, Any] = ("", None)

    def submit(self, task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Future[Result]:
        if self._scattered[0] != context.key:
            self._scattered = context.key, self.client.scatter(context, broadcast=True)
        return _ClusterFuture(self.client.submit(run_task, task, self._scattered[1], item, pure=False))  # type: ignore[return-value]


class _ClusterFuture:
    """An answer that a cluster owes; when it breaks down, one line says so."""

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
            raise PolysemeError(f"the cluster broke down ({type(error).__name__}); run the command again") from None


@contextmanager
def _connect_cluster(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        raise UnsupportedError(
            "a cluster is reached by dask, which is not installed: pip install distributed"
        ) from None
    _check_reachable(address)
    try:
        client = Client(address, timeout=20, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"what listens at {address!r} is no dask scheduler ({type(error).__name__})") from None
    try:
        if not client.nthreads():
            client.wait_for_workers(1, timeout=60)
        yield client
    except TimeoutError:
        raise ConfigError(f"the scheduler at {address!r} has no workers") from None
    finally:
        client.close()


def _check_reachable(address: str) -> None:
    """Whether something listens there: dask itself would try for long, and leave noise."""
    host, _, port = address.removeprefix("tcp://").removeprefix("tls://").rpartition(":")
    if not host or "/" in host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"the address of a dask scheduler is HOST:PORT or tcp://HOST:PORT, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"no dask scheduler answers at {address!r}: {error}") from None


class _ProcessPool:
    """Worker processes, each served by one thread that sends an item and waits for the answer."""

    def __init__(self, size: int):
        self.size = size
        self.processes: list[subprocess.Popen[bytes]] = []
        self.threads: Executor | None = None

    def submit(self, task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Future[Result]:
        if self.threads is None:
            self.threads = ThreadPoolExecutor(self.size, initializer=self._start_worker)
        return self.threads.submit(self._call_worker, task, context, item)

    def _start_worker(self) -> None:
        """A process for this thread."""
        environment = os.environ | {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-c", "from polyseme.corpus.build.workers import worker_main; worker_main()"]
        _local.key = ""
        _local.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )  # in a session of its own: Ctrl-C is the parent's to handle
        self.processes.append(_local.process)

    def _call_worker(self, task: TaskFn[Item, Result], context: TaskContext, item: Item) -> Result:
        process = _local.process
        try:
            _send(process.stdin, (task, None if _local.key == context.key else context, item))
            _local.key = context.key
            succeeded, result = _receive(process.stdout)
        except (EOFError, OSError):
            status = process.wait()
            reason = "it was killed, as when memory runs out" if status < 0 else f"it ended with status {status}"
            raise PolysemeError(f"a worker is gone ({reason}); run the command again") from None
        if not succeeded:
            raise result
        return result

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        if self.threads is not None:
            self.threads.shutdown(wait=True, cancel_futures=True)
        for process in self.processes:
            process.communicate()


def worker_main() -> None:
    """A worker's life: items until the pipe closes. What tasks print goes to standard error."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    try:
        os.dup2(2, 1)
    except OSError:  # nobody listens there
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
        except BrokenPipeError:  # nobody waits for it any more
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
