"""Send requests to a server of embeddings and measure its responses.

    python benchmarks/serve_load.py http://127.0.0.1:8000 [--clients 64] [--requests 2000] [--texts-per-request 1]

Closed loop: each client sends its next request when it has the response. Open loop (`--rate`): requests start at fixed
times whatever the server does, as in reality; the time of a request counts from when it should have started.
Connections are plain sockets with prepared requests, so that the generator takes little of the processor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from encode_cpu import make_texts


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


def make_requests(path: str, host: str, bodies: Sequence[dict]) -> list[bytes]:
    """Return complete HTTP requests."""
    requests = []
    for body in bodies:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        requests.append(head.encode() + b"\r\n\r\n" + data)
    return requests


class Connection:
    """A connection that is opened again when the server closes it."""

    def __init__(self, host: str, port: int):
        self.host, self.port = host, port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the response."""
        if self.writer is None or self.reader is None or self.writer.is_closing():
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        try:
            self.writer.write(request)
            head = await self.reader.readuntil(b"\r\n\r\n")
            fields = head.lower().split(b"\r\n")
            length = next(int(field.split(b":")[1]) for field in fields if field.startswith(b"content-length"))
            body = await self.reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0, b""
        if b"connection: close" in head.lower():
            self.close()
        return int(head[9:12]), body

    def close(self) -> None:
        """Close the connection."""
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def run_closed(host: str, port: int, requests: Sequence[bytes], num_clients: int) -> list[Exchange]:
    """Send all requests once, by clients that take the next one in turn."""
    exchanges: list[Exchange] = []
    remaining = iter(enumerate(requests))

    async def client() -> None:
        connection = Connection(host, port)
        for index, request in remaining:
            start = time.perf_counter()
            status, body = await connection.send(request)
            exchanges.append(Exchange(start, time.perf_counter(), status, index, len(body)))
        connection.close()

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return exchanges


async def run_open(host: str, port: int, requests: Sequence[bytes], rate: float, seconds: float) -> list[Exchange]:
    """Send `rate` requests a second for some time, over as many connections as are needed."""
    exchanges: list[Exchange] = []
    idle: list[Connection] = []

    async def exchange(index: int, due: float) -> None:
        connection = idle.pop() if idle else Connection(host, port)
        status, body = await connection.send(requests[index % len(requests)])
        exchanges.append(Exchange(due, time.perf_counter(), status, index, len(body)))
        idle.append(connection)

    start, tasks = time.perf_counter(), []
    for index in range(int(rate * seconds)):
        due = start + index / rate
        if (delay := due - time.perf_counter()) > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.create_task(exchange(index, due)))
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return exchanges


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
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second (open loop)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the open loop")
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
    if args.rate:
        exchanges = asyncio.run(run_open(host, port, requests, args.rate, args.seconds))
    else:
        exchanges = asyncio.run(run_closed(host, port, requests, args.clients))
    output: dict[str, Any] = {"summary": summarize(exchanges, size)}
    if args.exchanges:
        start = output["start"] = min(each.due for each in exchanges)  # on the clock that all processes share
        output["exchanges"] = [asdict(each) | {"due": each.due - start, "end": each.end - start} for each in exchanges]
    print(json.dumps(output))


if __name__ == "__main__":
    main()
