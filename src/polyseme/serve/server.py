"""Run the server until it is stopped; SIGTERM and SIGINT let requests in progress finish."""

import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from polyseme.errors import ConfigError, require_packages
from polyseme.serve.config import ServerConfig

if TYPE_CHECKING:
    from polyseme.inference.base import LanguageModel

logger = logging.getLogger(__name__)
MAX_CONNECTIONS = 8192
SWITCH_INTERVAL = (
    0.0005  # seconds after which a thread gives way: the event loop waits for the worker's at most so long
)


def serve_models(
    models: "Mapping[str, LanguageModel]", config: ServerConfig | None = None, listener: socket.socket | None = None
) -> None:
    """Serve models until the process is told to stop; `listener` is a socket that was opened before."""
    require_packages({"starlette": "the server", "uvicorn": "the server"})
    import uvicorn

    from polyseme.serve.app import create_app
    from polyseme.serve.registry import ModelRegistry

    config = config or ServerConfig()
    if config.num_workers != 1:
        raise ConfigError(
            f"num_workers is {config.num_workers}, but loaded models stay in this process: use serve_paths"
        )
    app = create_app(ModelRegistry(models), config)
    listener = listener or open_socket(config.host, config.port)
    sys.setswitchinterval(SWITCH_INTERVAL)
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=config.drain_seconds,
        timeout_keep_alive=30,
        backlog=2048,
        limit_concurrency=MAX_CONNECTIONS,
        ws="none",
    )
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    for name, model in models.items():
        logger.info(f"{name}: {model.description}")
    logger.info(f"serving at http://{shown}:{port}")
    if not config.token and host not in ("127.0.0.1", "::1"):
        logger.warning(f"{shown} can be reached from other machines, and there is no token: anybody can use the models")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn drains, then raises it again: the status is 0
    gc.collect()
    gc.freeze()  # otherwise a full collection looks at all objects of torch, and stops all threads for long
    uvicorn.Server(settings).run(sockets=[listener])


def open_socket(host: str, port: int, is_shared: bool = False) -> socket.socket:
    """Return a socket that listens; raise `ConfigError` if the address cannot be used.

    Several processes can have a shared one at the same address, each its own; Linux distributes connections evenly.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror or error}") from None
    return listener
