"""Deny every connection to another machine. Python imports this at its start, so children of the tests do too."""

import socket
import sys

_LOCAL = {"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", socket.gethostname(), None}


def _deny_network(event: str, args: tuple) -> None:
    if event in ("socket.connect", "socket.sendto"):
        host = args[1][0] if isinstance(args[1], tuple) else None  # a path is a socket of this machine
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host not in _LOCAL and not str(host).startswith("127."):
        raise PermissionError(f"tests may not use the network: {event} {host}")


sys.addaudithook(_deny_network)
