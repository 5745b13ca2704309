"""Look inside a model: attention, attribution, gradients, translations, and backpropagation on a computation graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyseme.explain.graph import Graph

if TYPE_CHECKING:
    from polyseme.explain.attribution import explain_attribution
    from polyseme.explain.self_attention import attention_steps

_MODULES = {
    "attention_steps": "self_attention",
    "explain_attribution": "attribution",
}
__all__ = ["Graph", "attention_steps", "explain_attribution"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _MODULES:
        return getattr(import_module(f"polyseme.explain.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyseme.explain' has no attribute {name!r}")
