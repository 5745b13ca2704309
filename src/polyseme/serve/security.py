"""Checks of every request before it is read: its host, its origin, its token; and headers of every response."""

import functools
import hmac
import ipaddress
import json
import socket
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyseme.errors import ConfigError
from polyseme.serve.api.errors import RequestError

MIN_TOKEN_LENGTH = 16
MAX_CACHED_HOSTS = 64
PUBLIC_PATHS = ("/", "/health", "/ready", "/docs", "/openapi.json")  # without a token; they tell nothing about texts
PUBLIC_FOLDERS = ("/playground/", "/docs/")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def read_token(path: Path) -> str:
    """Read the bearer token of a file: its first line."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {path}: {error}") from None
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or len(token.split()) != 1:
        problem = f"one word of at least {MIN_TOKEN_LENGTH} ASCII characters is needed"
        raise ConfigError(f"the token in {path} has {len(token)} characters: {problem}")
    return token


class SecurityMiddleware:
    """Reject requests for another host (DNS rebinding), from another site, or without the token."""

    def __init__(self, app: ASGIApp, token: str = "", hosts: Iterable[str] = ()):
        self.app, self.token = app, token.encode()
        self.hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in hosts)}
        self.is_allowed_host = functools.lru_cache(MAX_CACHED_HOSTS)(self._is_allowed_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_RAW_HEADERS]
            await send(message)

        try:
            self.check(scope["path"], Headers(scope=scope))
        except RequestError as error:
            await send_error(error, send_with_headers)
            return
        await self.app(scope, receive, send_with_headers)

    def check(self, path: str, headers: Headers) -> None:
        """Raise if a request is not allowed."""
        host = headers.get("host", "")
        if not self.is_allowed_host(host):
            raise RequestError("invalid_host", f"the host {host[:80]!r} is not served here")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise RequestError("invalid_host", f"requests from {origin[:80]!r} are not allowed")
        if self.token and path not in PUBLIC_PATHS and not path.startswith(PUBLIC_FOLDERS):
            scheme, _, token = headers.get("authorization", "").partition(" ")
            is_equal = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self.token)
            if scheme.lower() != "bearer" or not is_equal:
                message = "a valid token is needed in the header `Authorization: Bearer TOKEN`"
                raise RequestError("unauthorized", message, {"WWW-Authenticate": "Bearer"})

    def _is_allowed_host(self, header: str) -> bool:
        """Whether a Host header names this server: an address, which no foreign name can stand for, or a known name."""
        name = header.rsplit(":", 1)[0] if header.rsplit(":", 1)[-1].isdigit() else header
        try:
            ipaddress.ip_address(name.strip("[]"))
            return True
        except ValueError:
            return name.lower().rstrip(".") in self.hosts


async def send_error(error: RequestError, send: Send, closes_connection: bool = True) -> None:
    """Send an error as a response; a connection has to be closed if the body of the request was not read."""
    body = json.dumps(error.to_json()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    headers |= {"connection": "close"} if closes_connection else {}
    raw_headers = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in {**headers, **error.headers}.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw_headers})
    await send({"type": "http.response.body", "body": body})
