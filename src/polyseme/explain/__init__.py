"""Look inside a model: attention, gradients, translations, probes, and backpropagation on a computation graph."""

from importlib import import_module
from typing import Any

from polyseme.explain.graph import Graph

_LAZY = {"probe": "polyseme.explain.probing.api"}  # names that import torch
__all__ = ["Graph", "probe"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
