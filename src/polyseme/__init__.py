"""Polyseme: from a folder of text to a pre-trained language model, and from that model to a measured task model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyseme.errors import DataError
    from polyseme.inference.language_model import LanguageModel, load

__version__ = "0.1.0"
__all__ = ["LanguageModel", "DataError", "load"]


def __getattr__(name: str) -> Any:
    """`import polyseme` is quick: torch is imported when a model is first asked for."""
    if name in ("load", "LanguageModel"):
        from polyseme.inference import language_model

        return getattr(language_model, name)
    if name == "DataError":
        from polyseme.errors import DataError

        return DataError
    raise AttributeError(f"module 'polyseme' has no attribute {name!r}")
