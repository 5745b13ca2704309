"""Serve models over HTTP, and use them from another process.

    polyseme serve run/model task/model
    remote = polyseme.connect("http://127.0.0.1:8000")
    remote.embed(["a cat", "a dog"])

`create_app` returns the application for another server, `serve_models` runs one with loaded models, and `serve_paths`
loads the models itself, in one process or several.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyseme.serve.app import create_app
    from polyseme.serve.client import RemoteModel, connect
    from polyseme.serve.config import AppConfig, ServerConfig
    from polyseme.serve.processes.supervisor import ModelSources, serve_paths
    from polyseme.serve.registry import ModelRegistry, load_models
    from polyseme.serve.server import serve_models

__all__ = [
    "AppConfig",
    "ModelRegistry",
    "ModelSources",
    "RemoteModel",
    "ServerConfig",
    "connect",
    "create_app",
    "load_models",
    "serve_models",
    "serve_paths",
]
_MODULES = {
    "app": ("create_app",),
    "client": ("RemoteModel", "connect"),
    "config": ("AppConfig", "ServerConfig"),
    "processes.supervisor": ("ModelSources", "serve_paths"),
    "registry": ("ModelRegistry", "load_models"),
    "server": ("serve_models",),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the client does not need the server's packages."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"polyseme.serve.{module}"), name)
    raise AttributeError(f"module 'polyseme.serve' has no attribute {name!r}")
