"""One of several processes that serve the same models: `python -m polyseme.serve.processes.worker CHANNEL`.

The channel is a socket to the process that started it (see `polyseme.serve.processes.supervisor`). It reads the
settings, loads the models, says that it is ready, and listens when the others are ready too. It ends with the process
that started it.
"""

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import torch

from polyseme.errors import PolysemeError
from polyseme.logs import log_to_stderr
from polyseme.serve.config import ServerConfig
from polyseme.serve.processes.supervisor import gpu_error
from polyseme.serve.registry import load_models
from polyseme.serve.server import open_socket, serve_models


def main() -> None:
    """Serve until the process is told to stop."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    messages = channel.makefile("r", encoding="utf-8")
    settings = json.loads(messages.readline())
    log_to_stderr(settings["log_level"])
    config = ServerConfig(**settings["config"] | {"hosts": tuple(settings["config"]["hosts"])})
    try:
        if settings["sources"]["device"] is None and torch.cuda.is_available():
            raise gpu_error(config.num_workers)
        listener = open_socket(config.host, config.port, is_shared=True)
        models = load_models(**settings["sources"])
    except PolysemeError as error:
        send(channel, {"error": str(error)})
        sys.exit(2)
    send(channel, {"status": "ready"})
    answer = messages.readline()
    if not answer:
        return
    if not json.loads(answer)["announces"]:
        logging.getLogger("polyseme.serve.server").setLevel(logging.ERROR)
    threading.Thread(target=watch, args=(channel,), name="watch", daemon=True).start()
    serve_models(models, replace(config, num_workers=1), listener)


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send a message."""
    channel.sendall(json.dumps(message).encode() + b"\n")


def watch(channel: socket.socket) -> None:
    """Stop this process when the one that started it, which sends no more, has ended."""
    channel.recv(1)
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


if __name__ == "__main__":
    main()
