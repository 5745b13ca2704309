"""Look inside a model: attention, gradients, translations, probes, and backpropagation on a computation graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyseme.explain.graph import Graph

if TYPE_CHECKING:
    from polyseme.explain.probing.api import probe
    from polyseme.explain.self_attention import attention_steps

_MODULES = {
    "attention_steps": "self_attention",
    "probe": "probing.api",
}
__all__ = ["Graph", "attention_steps", "probe"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _MODULES:
        return getattr(import_module(f"polyseme.explain.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyseme.explain' has no attribute {name!r}")
