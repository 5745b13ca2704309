"""No test may reach another machine: neither this process nor its children."""

import socket
import subprocess
import sys
import urllib.request

import pytest

ADDRESS = "192.0.2.1"  # reserved for documentation


def test_connections_are_denied():
    with pytest.raises(PermissionError, match="network"):
        socket.create_connection((ADDRESS, 80), timeout=1)
    with pytest.raises(PermissionError, match="network"):
        socket.getaddrinfo("example.org", 80)
    with pytest.raises((PermissionError, OSError), match="network"):
        urllib.request.urlopen("http://example.org", timeout=1)


def test_connections_of_children_are_denied():
    code = f"import socket; socket.create_connection(('{ADDRESS}', 80), timeout=1)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 1 and "tests may not use the network" in child.stderr


def test_this_machine_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 1):
        pass
