"""Look inside a model: attention, gradients, translations, and backpropagation on a computation graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyseme.explain.graph import Graph

if TYPE_CHECKING:
    from polyseme.explain.attention import explain_attention
    from polyseme.explain.self_attention import attention_steps

_MODULES = {
    "explain_attention": "attention",
    "attention_steps": "self_attention",
}
__all__ = ["Graph", "attention_steps", "explain_attention"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _MODULES:
        return getattr(import_module(f"polyseme.explain.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyseme.explain' has no attribute {name!r}")
