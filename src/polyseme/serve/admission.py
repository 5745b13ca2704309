"""Rejection of requests before they are read, while no model has room for them."""

import asyncio
import contextlib
import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from polyseme.serve.handling import MAX_BODY_BYTES
from polyseme.serve.security import send_error
from polyseme.serve.state import ServerState

TICK_SECONDS = 0.01
BUSY_SHARE = 0.5  # of the time that a busy event loop computes; one that only waits for a core is not overloaded
NUM_TURNS = 4  # in which the event loop works for a request: to read, to encode, to respond, and to write


class LoopDelay:
    """How late a busy event loop runs what is due: the time that a request waits for each of its turns."""

    def __init__(self) -> None:
        self.seconds, self._due, self._last_tick = 0.0, 0.0, (0.0, 0.0)

    def start(self) -> None:
        """Begin to measure, in the running event loop."""
        if not self._due:
            self._schedule(asyncio.get_running_loop())

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last_tick, self._due = (loop.time(), time.thread_time()), loop.time() + TICK_SECONDS
        loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        (last_time, last_computed), now = self._last_tick, loop.time()
        is_busy = time.thread_time() - last_computed > BUSY_SHARE * (now - last_time)
        self.seconds = max(now - self._due if is_busy else 0.0, self.seconds / 2)
        self._schedule(loop)


class AdmissionMiddleware:
    """Answer requests for a verb with status 429, without parsing them, while the queues of all models are full.

    A rejection costs little, so that an overloaded server keeps computing for the requests that it has accepted. The
    body is read and dropped first: the connection stays in step, and the client can use it again. With a fast model,
    the event loop may be what is overloaded, so that its delay counts too.
    """

    def __init__(self, app: ASGIApp, state: ServerState, verbs: Mapping[str, str]):
        self.app, self.state, self.verbs = app, state, verbs  # paths with the names of their verbs in the metrics
        self.loop_delay = LoopDelay()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        verb = self.verbs.get(scope["path"]) if is_post else None
        self.loop_delay.start()
        delay = NUM_TURNS * self.loop_delay.seconds
        error = self.state.find_overload(content_length(scope), delay) if verb is not None else None
        if verb is None or error is None:
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        is_read: bool | None = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.state.config.timeout):
                is_read = await drain(scope, receive)
        if is_read is not None:
            await send_error(error, send, closes_connection=not is_read)
        self.state.record_request(verb, error.status if is_read is not None else 499, time.perf_counter() - start)


def content_length(scope: Scope) -> int:
    """Return the size of a request's body as its header says; 0 if it does not."""
    value = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(value) if value.isdigit() and len(value) < 10 else 0


async def drain(scope: Scope, receive: Receive) -> bool | None:
    """Drop the body of a request; return whether all of it was read, or None if the client has disconnected."""
    if any(name == b"expect" for name, _ in scope["headers"]):
        return False  # the client waits for permission to send its body, and gets the response instead
    num_bytes = 0
    while num_bytes <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        num_bytes += len(message.get("body", b""))
        if not message.get("more_body"):
            return True
    return False
