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

from polyseme.errors import UserError

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Task = Callable[[Any, Item], Answer]  # given what the job opened, and an item
_local = threading.local()


class Job(Protocol):
    """What all items of a run share; small, and sent once to each worker."""

    @property
    def key(self) -> str:
        """Equal for equal jobs."""
        ...

    def open(self) -> Any:
        """What the tasks are given: loaded tokenizers, tables."""
        ...


def perform(task: Task[Item, Answer], job: Job, item: Item) -> Answer:
    """Do one item here; the job is opened once a thread."""
    if getattr(_local, "key", None) != job.key:
        _local.opened, _local.key = job.open(), job.key
    return task(_local.opened, item)


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool(Protocol):
    """Somewhere to do work: `size` items at a time."""

    size: int

    def submit(self, task: Task[Item, Answer], job: Job, item: Item) -> Future[Answer]: ...


@contextmanager
def open_pool(workers: int, cluster: str = "") -> Iterator[Pool]:
    """The workers of one run. Processes are started when there is more than one item for them."""
    if cluster:
        with _cluster(cluster) as client:
            yield _Cluster(client)
    else:
        crew = _Crew(workers)
        try:
            yield crew
        finally:
            crew.close()


def in_order(pool: Pool, task: Task[Item, Answer], job: Job, items: Iterable[Item]) -> Iterator[tuple[Item, Answer]]:
    """Every item with its answer, in order; a few items are under way at a time, so memory is bounded."""
    waiting: deque[tuple[Item, Future[Answer]]] = deque()
    ahead = iter(items)
    first = list(itertools.islice(ahead, 2))
    if len(first) < 2 or pool.size == 1:  # one item alone, or one worker: here
        for item in itertools.chain(first, ahead):
            yield item, perform(task, job, item)
        return
    for item in itertools.chain(first, ahead):
        waiting.append((item, pool.submit(task, job, item)))
        if len(waiting) > pool.size + 1:
            done, future = waiting.popleft()
            yield done, future.result()
    for done, future in waiting:
        yield done, future.result()


class _Cluster:
    """The workers of a dask cluster. The job is sent to each of them once."""

    def __init__(self, client: Any):
        self.client, self.size = client, 2 * max(sum(client.nthreads().values()), 1)
        self.sent: tuple[str, Any] = ("", None)

    def submit(self, task: Task[Item, Answer], job: Job, item: Item) -> Future[Answer]:
        if self.sent[0] != job.key:
            self.sent = job.key, self.client.scatter(job, broadcast=True)
        return _Sent(self.client.submit(perform, task, self.sent[1], item, pure=False))  # type: ignore[return-value]


class _Sent:
    """An answer that a cluster owes; when it breaks down, one line says so."""

    def __init__(self, future: Any):
        self.future = future

    def result(self) -> Any:
        try:
            return self.future.result()
        except UserError:
            raise
        except Exception as error:
            if not type(error).__module__.startswith(("distributed", "asyncio", "concurrent", "tornado")):
                raise
            raise UserError(f"the cluster broke down ({type(error).__name__}); run the command again") from None


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        raise UserError("a cluster is reached by dask, which is not installed: pip install distributed") from None
    _check_answers(address)
    try:
        client = Client(address, timeout=20, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(f"what listens at {address!r} is no dask scheduler ({type(error).__name__})") from None
    try:
        if not client.nthreads():
            client.wait_for_workers(1, timeout=60)
        yield client
    except TimeoutError:
        raise UserError(f"the scheduler at {address!r} has no workers") from None
    finally:
        client.close()


def _check_answers(address: str) -> None:
    """Whether something listens there: dask itself would try for long, and leave noise."""
    host, _, port = address.removeprefix("tcp://").removeprefix("tls://").rpartition(":")
    if not host or "/" in host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"the address of a dask scheduler is HOST:PORT or tcp://HOST:PORT, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no dask scheduler answers at {address!r}: {error}") from None


class _Crew:
    """Worker processes, each served by one thread that sends an item and waits for the answer."""

    def __init__(self, size: int):
        self.size = size
        self.processes: list[subprocess.Popen[bytes]] = []
        self.threads: Executor | None = None

    def submit(self, task: Task[Item, Answer], job: Job, item: Item) -> Future[Answer]:
        if self.threads is None:
            self.threads = ThreadPoolExecutor(self.size, initializer=self._start)
        return self.threads.submit(self._ask, task, job, item)

    def _start(self) -> None:
        """A process for this thread."""
        environment = os.environ | {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-c", "from polyseme.corpus.build.workers import serve; serve()"]
        _local.key = ""
        _local.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )  # in a session of its own: Ctrl-C is the parent's to handle
        self.processes.append(_local.process)

    def _ask(self, task: Task[Item, Answer], job: Job, item: Item) -> Answer:
        process = _local.process
        try:
            _send(process.stdin, (task, None if _local.key == job.key else job, item))
            _local.key = job.key
            good, answer = _receive(process.stdout)
        except (EOFError, OSError):
            status = process.wait()
            why = "it was killed, as when memory runs out" if status < 0 else f"it ended with status {status}"
            raise UserError(f"a worker is gone ({why}); run the command again") from None
        if not good:
            raise answer
        return answer

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        if self.threads is not None:
            self.threads.shutdown(wait=True, cancel_futures=True)
        for process in self.processes:
            process.communicate()


def serve() -> None:
    """A worker's life: items until the pipe closes. What tasks print goes to standard error."""
    given, said = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    try:
        os.dup2(2, 1)
    except OSError:  # nobody listens there
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    job: Any = None
    while True:
        try:
            task, new, item = _receive(given)
        except EOFError:
            return
        job = new or job
        try:
            answer = (True, perform(task, job, item))
        except Exception as error:
            answer = (False, error)
        try:
            _send(said, answer)
        except BrokenPipeError:  # nobody waits for it any more
            os._exit(0)


def _send(pipe: BinaryIO | Any, message: Any) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    pipe.write(struct.pack("<Q", len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: BinaryIO | Any) -> Any:
    head = pipe.read(8)
    data = pipe.read(struct.unpack("<Q", head)[0]) if len(head) == 8 else b""
    if len(head) < 8 or len(data) < struct.unpack("<Q", head)[0]:
        raise EOFError
    return pickle.loads(data)
