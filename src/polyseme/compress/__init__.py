"""Smaller models from larger ones: a model folder in, a model folder out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyseme.compress.distillation import distill
    from polyseme.compress.exporting.api import export
    from polyseme.compress.pruning.api import prune
    from polyseme.compress.quantization.api import quantize
    from polyseme.compress.result import CompressionResult, CompressionRow, CurvePoint

_MODULES = {
    "CompressionResult": "result",
    "CompressionRow": "result",
    "CurvePoint": "result",
    "distill": "distillation",
    "export": "exporting.api",
    "prune": "pruning.api",
    "quantize": "quantization.api",
}
__all__ = [
    "CompressionResult",
    "CompressionRow",
    "CurvePoint",
    "distill",
    "export",
    "prune",
    "quantize",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _MODULES:
        return getattr(import_module(f"polyseme.compress.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyseme.compress' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
