"""Load and serve models in one process, or in several that answer at the same port, under a process without models.

Each process has its own socket with SO_REUSEPORT; Linux assigns a connection to one of them by a hash of its address.
(An event loop accepts all connections that wait: of one socket for two processes, one got over 90% of 64 connections.)
A process that ends is replaced; connections go to the others until the new one is ready.
"""

import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, PolysemeError, UnsupportedError, require_packages
from polyseme.serve import server
from polyseme.serve.config import ServerConfig
from polyseme.serve.processes.shared_metrics import EndedMetrics
from polyseme.serve.server import open_socket

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.1
MAX_FAILED_STARTS = 3  # in a row, without a process that works
FIRST_DELAY, MAX_DELAY = 0.2, 30.0  # seconds before a process is replaced, doubled each time it ends soon
STABLE_SECONDS = 30.0  # after which the delay is the first again


@dataclass(frozen=True)
class ModelSources:
    """Models that are not loaded yet: the arguments of `load_models`."""

    paths: tuple[str, ...]
    device: str | None = None
    precision: str = "float32"
    engine: str = "torch"


def serve_paths(sources: ModelSources, config: ServerConfig | None = None) -> None:
    """Load models and serve them until the process is told to stop, in `num_workers` processes."""
    require_packages({"starlette": "the server", "uvicorn": "the server"})
    config = config or ServerConfig()
    if config.num_workers == 1:
        from polyseme.serve.registry import load_models

        with open_socket(config.host, config.port) as listener:  # before the models, which may take a while to load
            server.serve_models(load_models(**dataclasses.asdict(sources)), config, listener)
        return
    _check_workers(config.num_workers, sources.device)
    with _reserve_address(config) as placeholder, _metrics_folder() as folder:
        port = placeholder.getsockname()[1]
        Supervisor(sources, dataclasses.replace(config, port=port, metrics_folder=str(folder))).run()


def _check_workers(num_workers: int, device: str | None) -> None:
    """Raise if there cannot be several processes."""
    if num_workers < 1:
        raise ConfigError(f"num_workers is {num_workers}, expected 1 or more")
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f"{num_workers} workers cannot share a port on {sys.platform}: start one")
    if device not in (None, "cpu"):
        raise gpu_error(num_workers)


def gpu_error(num_workers: int) -> ConfigError:
    """Return the error for several processes on a GPU."""
    advice = "start one, or set `device` to cpu"
    return ConfigError(f"{num_workers} workers would each load the models to the GPU and take turns: {advice}")


def _reserve_address(config: ServerConfig) -> socket.socket:
    """Return a socket at an address that processes can share, which does not listen; raise if another server does."""
    with open_socket(config.host, config.port) as probe:
        port = probe.getsockname()[1]
    return open_socket(config.host, port, is_shared=True)


@contextlib.contextmanager
def _metrics_folder() -> Iterator[Path]:
    """Yield a temporary folder, in memory if possible."""
    memory = "/dev/shm"
    parent = memory if os.path.isdir(memory) and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="polyseme-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class WorkerProcess:
    """A process that answers requests, and the channel to it: lines of JSON in both directions."""

    def __init__(self, settings: dict[str, Any], environment: dict[str, str]):
        self.channel, theirs = socket.socketpair()
        self.start, self.is_ready, self.buffer = time.monotonic(), False, b""
        with theirs:
            command = [sys.executable, "-P", "-m", "polyseme.serve.processes.worker", str(theirs.fileno())]
            options: dict[str, Any] = {"pass_fds": [theirs.fileno()], "start_new_session": True, "env": environment}
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)  # Ctrl-C does not reach it
        self.send(settings)
        self.channel.setblocking(False)

    @property
    def name(self) -> str:
        """The process id."""
        return str(self.process.pid)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; nothing happens if the process has ended."""
        with contextlib.suppress(OSError):
            self.channel.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have come."""
        with contextlib.suppress(OSError):
            self.buffer += self.channel.recv(1 << 16)
        *lines, self.buffer = self.buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Kill the process if it has not ended."""
        self.process.kill()
        self.process.wait()
        self.channel.close()


class Supervisor:
    """Starts processes, replaces those that end, and stops all of them when it is told to."""

    def __init__(self, sources: ModelSources, config: ServerConfig):
        settings = dataclasses.asdict(config)
        level = logging.getLogger("polyseme").getEffectiveLevel()
        self.settings = {"sources": dataclasses.asdict(sources), "config": settings, "log_level": level}
        self.config, self.environment = config, _worker_environment(config.num_workers)
        self.workers: list[WorkerProcess | None] = [None] * config.num_workers
        self.restart_times, self.delays = [0.0] * config.num_workers, [FIRST_DELAY] * config.num_workers
        self.has_started, self.num_failed_starts = False, 0
        self.metrics = EndedMetrics(Path(config.metrics_folder))
        self.is_stopping, self.signals = threading.Event(), list[int]()

    def run(self) -> None:
        """Run until SIGTERM or SIGINT; requests in progress are finished."""
        with self._signal_handlers():
            try:
                while not self.is_stopping.is_set():
                    self.check()
                    self.is_stopping.wait(POLL_SECONDS)
            finally:
                self.stop()
        if signal.SIGINT in self.signals:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: object) -> None:
            self.signals.append(number)
            self.is_stopping.set()

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        """Start processes that are missing, and take note of those that are ready or have ended."""
        for index, worker in enumerate(self.workers):
            if worker is None:
                if time.monotonic() >= self.restart_times[index]:
                    self.workers[index] = WorkerProcess(self.settings, self.environment)
                continue
            has_ended = worker.process.poll() is not None  # before its last messages are read
            for message in worker.receive():
                self._handle(worker, message)
            if has_ended:
                self._replace(index, worker)
        if not self.has_started and all(worker is not None and worker.is_ready for worker in self.workers):
            self.has_started = True
            self._write_metrics()
            for index, worker in enumerate(self.workers):
                assert worker is not None
                worker.send({"announces": index == 0})

    def _handle(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        if "error" in message and not self.has_started:
            raise ConfigError(message["error"])
        if "error" in message:
            logger.warning(f"worker {worker.name} cannot start: {message['error']}")
        if message.get("status") == "ready":
            worker.is_ready, self.num_failed_starts = True, 0
            if self.has_started:
                self._write_metrics()
                worker.send({"announces": False})

    def _replace(self, index: int, worker: WorkerProcess) -> None:
        """Plan the start of a new process after one has ended; raise if none works and new ones keep ending."""
        status = worker.process.returncode
        self.num_failed_starts += not worker.is_ready
        self.workers[index] = None
        worker.close()
        is_any_ready = any(each is not None and each.is_ready for each in self.workers)
        if self.num_failed_starts >= MAX_FAILED_STARTS and not (self.has_started and is_any_ready):
            raise PolysemeError(
                f"{self.num_failed_starts} workers in a row ended before they were ready, the last with status {status}"
            )
        if worker.is_ready and time.monotonic() - worker.start > STABLE_SECONDS:
            self.delays[index] = FIRST_DELAY
        delay, self.delays[index] = self.delays[index], min(2 * self.delays[index], MAX_DELAY)
        self.restart_times[index] = time.monotonic() + delay
        logger.warning(f"worker {worker.name} ended with status {status}: another one starts in {delay:g} s")
        self.metrics.metrics.count("polyseme_worker_restarts_total")
        self.metrics.add(worker.name)
        self._write_metrics()

    def _write_metrics(self) -> None:
        self.metrics.set_workers([worker.name for worker in self.workers if worker is not None and worker.is_ready])

    def stop(self) -> None:
        """Let all processes finish their requests; kill those that take too long, or all at a second Ctrl-C."""
        workers = [worker for worker in self.workers if worker is not None]
        deadline = time.monotonic() + self.config.drain_seconds + 5
        while any(worker.process.poll() is None for worker in workers):
            if time.monotonic() > deadline or self.signals.count(signal.SIGINT) > 1:
                break
            for worker in workers:
                worker.process.terminate()  # again and again: one that has just started may miss a signal
            time.sleep(POLL_SECONDS)
        for worker in workers:
            worker.close()


def _worker_environment(num_workers: int) -> dict[str, str]:
    """Return the environment of a process: our modules, and a share of the cores unless OMP_NUM_THREADS is set."""
    path = os.pathsep.join(filter(None, sys.path))
    return {"OMP_NUM_THREADS": str(max(_count_cores() // num_workers, 1)), **os.environ, "PYTHONPATH": path}


def _count_cores() -> int:
    """Count the cores that this process may use; two threads of a core are one."""
    numbers = os.sched_getaffinity(0)
    siblings = [Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list") for number in numbers]
    return len({path.read_text() if path.exists() else path.as_posix() for path in siblings})
