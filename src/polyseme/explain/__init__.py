"""Look inside a model: attention, words in context, attribution, layers, and backpropagation on a computation graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyseme.explain.graph import Graph

if TYPE_CHECKING:
    from polyseme.explain.geometry import explain_geometry
    from polyseme.explain.words import explain_word
    from polyseme.explain.words.wic import explain_wic, wic_by_layer

_MODULES = {
    "explain_geometry": "geometry",
    "explain_wic": "words.wic",
    "explain_word": "words",
    "wic_by_layer": "words.wic",
}
__all__ = ["Graph", "explain_geometry", "explain_wic", "explain_word", "wic_by_layer"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _MODULES:
        return getattr(import_module(f"polyseme.explain.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyseme.explain' has no attribute {name!r}")
