"""Send requests to a server of embeddings and measure its responses.

    python benchmarks/serve_load.py http://127.0.0.1:8000 [--clients 64] [--requests 2000] [--texts-per-request 1]

Closed loop: each client sends its next request when it has the response. Open loop (`--rate`): requests start at fixed
times whatever the server does, as in reality; the time of a request counts from when it should have started.
Requests are prepared, and one thread drives plain sockets by epoll, so that the generator takes little of the
processor; the summary has its own share.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from texts import make_texts

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
SILENCE_SECONDS = 120.0  # without any event, what has no response is lost


@dataclass(frozen=True)
class Exchange:
    """One request: when it was due and when its response was complete, in seconds, and the status (0: none)."""

    due: float
    end: float
    status: int
    index: int
    num_bytes: int

    @property
    def seconds(self) -> float:
        """The time of the request."""
        return self.end - self.due

    def to_json(self, start: float) -> dict[str, Any]:
        """Return all values, with times relative to a start."""
        return asdict(self) | {"due": self.due - start, "end": self.end - start}


def make_requests(path: str, host: str, bodies: Sequence[dict]) -> list[bytes]:
    """Return complete HTTP requests."""
    requests = []
    for body in bodies:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        requests.append(head.encode() + HEAD_END + data)
    return requests


class Connection:
    """A connection with at most one request in progress."""

    def __init__(self, address: tuple[str, int]):
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received, self.size = b"", 0  # of the response, and its size when its head is complete
        self.index, self.due = -1, 0.0  # of the request; -1: none

    def send(self, request: bytes, index: int, due: float) -> None:
        """Send a request."""
        self.received, self.size, self.index, self.due = b"", 0, index, due
        self.socket.sendall(request)

    def receive(self) -> bool | None:
        """Read what has arrived; return whether the response is complete, or None if the connection has ended."""
        try:
            data = self.socket.recv(1 << 18, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return None
        if not data:
            return None
        self.received = self.received + data if self.received else data
        if not self.size and (end := self.received.find(HEAD_END)) >= 0:
            head = self.received[: end + 2].lower()
            place = head.index(LENGTH) + len(LENGTH)
            self.size = end + len(HEAD_END) + int(head[place : head.index(b"\r\n", place)])
        return 0 < self.size <= len(self.received)


class LoadGenerator:
    """Connections to one server, what was exchanged over them, and irregularities."""

    def __init__(self, address: tuple[str, int], requests: Sequence[bytes]):
        self.address, self.requests = address, requests
        self.poll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.idle: list[Connection] = []
        self.exchanges: list[Exchange] = []
        self.num_extra = 0  # times that more was received than one response to one request

    def start(self, index: int, due: float) -> None:
        """Send a request over an idle connection, or a new one."""
        if self.idle:
            connection = self.idle.pop()
        else:
            connection = Connection(self.address)
            self.connections[connection.socket.fileno()] = connection
            self.poll.register(connection.socket.fileno(), select.EPOLLIN)
        try:
            connection.send(self.requests[index % len(self.requests)], index, due)
        except OSError:
            self._close(connection)

    def step(self, timeout: float) -> bool:
        """Take responses that have arrived, or wait for some; return whether anything happened."""
        events = self.poll.poll(timeout)
        for number, _ in events:
            connection = self.connections[number]
            is_complete = connection.receive()
            if is_complete is None:
                self._close(connection)
            elif connection.index < 0:
                self.num_extra += 1  # nothing was asked
            elif is_complete:
                self._finish(connection)
        return bool(events)

    def _finish(self, connection: Connection) -> None:
        self._record(connection, int(connection.received[9:12]), connection.size)
        self.num_extra += len(connection.received) > connection.size
        if b"connection: close" in connection.received[:1000].lower():
            self._close(connection)
        else:
            self.idle.append(connection)

    def _record(self, connection: Connection, status: int, size: int) -> None:
        self.exchanges.append(Exchange(connection.due, time.perf_counter(), status, connection.index, size))
        connection.index = -1

    def _close(self, connection: Connection) -> None:
        """Close a connection; a request without a response is lost."""
        if connection.index >= 0:
            self._record(connection, 0, 0)
        elif connection in self.idle:
            self.idle.remove(connection)
        del self.connections[connection.socket.fileno()]
        self.poll.unregister(connection.socket.fileno())
        connection.socket.close()

    def run_closed(self, num_clients: int, max_seconds: float) -> None:
        """Send all requests once, or as many as there is time for, by clients that take the next one in turn."""
        num_started, num_requests, is_alive = 0, len(self.requests), True
        deadline = time.perf_counter() + (max_seconds or float("inf"))
        while len(self.exchanges) < num_requests and is_alive:
            if time.perf_counter() > deadline:
                num_requests = num_started
            while num_started < min(num_requests, len(self.exchanges) + num_clients):
                self.start(num_started, time.perf_counter())
                num_started += 1
            is_alive = self.step(SILENCE_SECONDS) or len(self.exchanges) == num_requests

    def run_open(self, rate: float, seconds: float) -> None:
        """Send `rate` requests a second for some time, over as many connections as are needed."""
        num_requests, num_started, is_alive = int(rate * seconds), 0, True
        begin = time.perf_counter()
        while len(self.exchanges) < num_requests and is_alive:
            now = time.perf_counter()
            while num_started < num_requests and (due := begin + num_started / rate) <= now:
                self.start(num_started, due)
                num_started += 1
            is_last = num_started == num_requests
            timeout = SILENCE_SECONDS if is_last else max(begin + num_started / rate - now, 0)
            is_alive = self.step(timeout) or not is_last

    def finish(self) -> list[Exchange]:
        """Close all connections and return all exchanges; requests without a response are lost."""
        for connection in list(self.connections.values()):
            self._close(connection)
        self.poll.close()
        return self.exchanges


def summarize(exchanges: Sequence[Exchange], texts_per_request: int = 1) -> dict[str, float | dict[str, int]]:
    """Return rates and times in milliseconds of the requests that were answered, and the number of each status."""
    accepted = [each.seconds for each in exchanges if each.status == 200]
    rejected = [each.seconds for each in exchanges if each.status == 429]
    span = max(each.end for each in exchanges) - min(each.due for each in exchanges)
    statuses = {str(s): sum(each.status == s for each in exchanges) for s in sorted({e.status for e in exchanges})}
    summary: dict[str, float | dict[str, int]] = {"statuses": statuses, "seconds": span}
    if accepted:
        p50, p99 = np.percentile(accepted, [50, 99]) * 1000
        summary |= {"texts_per_second": len(accepted) * texts_per_request / span, "p50_ms": p50, "p99_ms": p99}
    if rejected:
        summary["rejected_p50_ms"], summary["rejected_p99_ms"] = np.percentile(rejected, [50, 99]) * 1000
    return summary


def main() -> None:
    """Run one load and print its summary and, with `--exchanges`, every request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--texts-per-request", type=int, default=1)
    parser.add_argument("--path", default="/v1/embeddings")
    parser.add_argument("--model", default="")
    parser.add_argument("--encoding", default="base64")
    parser.add_argument("--max-seconds", type=float, default=0.0, help="of the closed loop")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second (open loop)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the open loop")
    parser.add_argument("--single-after", type=int, default=0, help="number of requests by one client at the end")
    parser.add_argument("--exchanges", action="store_true")
    args = parser.parse_args()
    parts = urlsplit(args.url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    assert host in ("127.0.0.1", "localhost"), "only servers of this machine"
    texts = make_texts(args.requests * args.texts_per_request)
    size = args.texts_per_request
    groups = [texts[i : i + size] if size > 1 else texts[i] for i in range(0, len(texts), size)]
    body = {"encoding_format": args.encoding, **({"model": args.model} if args.model else {})}
    requests = make_requests(args.path, f"{host}:{port}", [body | {"input": group} for group in groups])
    generator = LoadGenerator((host, port), requests)
    cpu_start = time.process_time()
    if args.rate:
        generator.run_open(args.rate, args.seconds)
    else:
        generator.run_closed(args.clients, args.max_seconds)
    cpu_ms = 1000 * (time.process_time() - cpu_start)
    exchanges = generator.finish()
    output: dict[str, Any] = {"summary": summarize(exchanges, size)}
    output["summary"] |= {"num_extra": generator.num_extra, "generator_ms_per_request": cpu_ms / len(exchanges)}
    start = min(each.due for each in exchanges)
    if args.exchanges:
        output["exchanges"] = [each.to_json(start) for each in exchanges]
    if args.single_after:
        generator = LoadGenerator((host, port), requests[: args.single_after])
        generator.run_closed(1, 0.0)
        output["after"] = [each.to_json(start) for each in generator.finish()]
    print(json.dumps(output))


if __name__ == "__main__":
    main()
