"""Rejection of requests before they are read, while no model has room for them."""

import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from polyseme.serve.handling import MAX_BODY_BYTES
from polyseme.serve.security import send_error
from polyseme.serve.state import ServerState


class AdmissionMiddleware:
    """Answer requests for a verb with status 429, without parsing them, while the queues of all models are full.

    A rejection costs little, so that an overloaded server keeps computing for the requests that it has accepted. The
    body is read and dropped first: the connection stays in step, and the client can use it again.
    """

    def __init__(self, app: ASGIApp, state: ServerState, verbs: Mapping[str, str]):
        self.app, self.state, self.verbs = app, state, verbs  # paths with the names of their verbs in the metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        verb = self.verbs.get(scope["path"]) if is_post else None
        error = self.state.find_overload(content_length(scope)) if verb is not None else None
        if verb is None or error is None:
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
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
