"""From a request to work for a model, and from its results to a response."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from polyseme.io.json import parse_strict
from polyseme.serve.api.errors import RequestError
from polyseme.serve.api.requests import ModelRequest
from polyseme.serve.api.schema import encode_json, to_plain
from polyseme.serve.batching.worker import Call, ModelWorker
from polyseme.serve.registry import ServedModel
from polyseme.serve.state import ServerState
from polyseme.serve.verbs.plan import Plan

T = TypeVar("T")
MAX_BODY_BYTES = 2 << 20
MAX_INLINE_CHARS = 20_000  # a longer body is tokenized in another thread, so that other requests do not wait for it
TIMEOUT_HEADER = "x-timeout"
WATCH_AFTER = 0.02  # seconds until a request is watched for the disconnection of its client


async def read_request(request: Request, cls: type[Any]) -> tuple[Any, int]:
    """Read, parse and check the body; return the request and the size of its body.

    A body that does not arrive within the server's timeout is an error, and ends the connection.
    """
    seconds = request.app.state.server.config.timeout
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestError("unsupported_media_type", "the header Content-Type has to be application/json")
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise RequestError("too_large", f"the body has more than {MAX_BODY_BYTES:,} bytes")
                parts.append(part)
    except ClientDisconnect:
        raise asyncio.CancelledError from None
    except TimeoutError:
        message = f"the body did not arrive within {seconds:g} s"
        raise RequestError("deadline_exceeded", message, {"Connection": "close"}) from None
    try:
        value = parse_strict(b"".join(parts).decode())
    except UnicodeDecodeError:
        raise RequestError("invalid_json", "the body is not valid JSON: it is not UTF-8") from None
    except ValueError as error:
        raise RequestError("invalid_json", f"the body is not valid JSON: {error}") from None
    return cls.from_json(value), size


def find_model(state: ServerState, request: ModelRequest, verb: str) -> tuple[ServedModel, ModelWorker]:
    """Return the model of a request and its worker; raise if the model lacks the verb, or its queue is full."""
    served = state.registry[request.model]
    served.require(verb)
    if not state.is_ready:
        raise RequestError("unavailable", "the server is starting or shutting down", {"Retry-After": "1"})
    worker = state.workers[served.name]
    worker.check_room()
    return served, worker


def resolve_timeout(state: ServerState, request: Request, body: ModelRequest) -> float:
    """Return the seconds until the deadline: of the body, the header, or the server."""
    header = request.headers.get(TIMEOUT_HEADER)
    if body.timeout is not None or header is None:
        return min(body.timeout or state.config.timeout, state.config.timeout)
    try:
        seconds = float(header)
        if not 0 < seconds <= 3600:
            raise ValueError
    except ValueError:
        message = f"the header X-Timeout is {header[:40]!r}, expected a number of seconds up to 3600"
        raise RequestError("invalid_header", message) from None
    return min(seconds, state.config.timeout)


async def call_sized(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call a function that tokenizes a body of this size: here, or in another thread if it takes long."""
    return await asyncio.to_thread(function, *args) if size > MAX_INLINE_CHARS else function(*args)


async def run_plan(state: ServerState, worker: ModelWorker, plan: Plan, request: Request, timeout: float) -> Response:
    """Wait for a plan's results, its deadline or the client's disconnection, whichever comes first."""
    loop = asyncio.get_running_loop()
    call = Call(plan.key, plan.inputs, plan.num_tokens, plan.run, loop.create_future(), plan.is_parallel, plan.join)
    worker.submit(call)
    try:
        results = await wait_until(request, call.future, timeout)
    finally:
        call.future.cancel()
    state.metrics.observe("polyseme_queue_seconds", call.start - call.arrival, model=worker.name)
    timing = f"queue;dur={1000 * (call.start - call.arrival):.2f}, run;dur={1000 * (call.end - call.start):.2f}"
    headers = {"Server-Timing": timing}
    start = time.perf_counter()
    if plan.num_tokens > MAX_INLINE_CHARS // 4:
        response = await asyncio.to_thread(lambda: json_response(plan.respond(results), headers))
    else:
        response = json_response(plan.respond(results), headers)
    state.metrics.observe("polyseme_render_seconds", time.perf_counter() - start, model=worker.name)
    return response


async def wait_until(request: Request, work: Awaitable[T], timeout: float) -> T:
    """Return what is awaited; raise if the deadline passes or the client disconnects.

    Whether the client is still there is asked only after a moment: most requests are done by then.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    watchers: list[asyncio.Task[None]] = []
    is_late = False

    def watch() -> None:
        watchers.append(loop.create_task(_wait_for_disconnect(request)))
        watchers[0].add_done_callback(lambda watcher: task.cancel() if not watcher.cancelled() else None)

    def expire() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    timers = loop.call_later(WATCH_AFTER, watch), loop.call_later(timeout, expire)
    try:
        return await task
    except asyncio.CancelledError:
        if not is_late:
            raise
        message = f"the request took longer than its timeout of {timeout:g} s"
        raise RequestError("deadline_exceeded", message) from None
    finally:
        for timer in timers:
            timer.cancel()
        for pending in (*watchers, task):
            pending.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_response(content: Any, headers: dict[str, str] | None = None) -> Response:
    """Return a dataclass, or JSON that is written already, as a response."""
    body = content if isinstance(content, bytes) else encode_json(to_plain(content))
    return Response(body, headers=headers, media_type="application/json")


def error_response(error: RequestError) -> Response:
    """Return an error as JSON."""
    return Response(json.dumps(error.to_json()), error.status, error.headers, media_type="application/json")
