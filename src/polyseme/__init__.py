"""Polyseme: from a folder of text to a pre-trained language model, and from that model to an evaluated task model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyseme.errors import (
        ConfigError,
        DataError,
        Interrupted,
        ModelError,
        PolysemeError,
        UnsupportedError,
    )
    from polyseme.inference.language_model import LanguageModel, load

__version__ = "0.1.0"
_ERRORS = ("PolysemeError", "ConfigError", "DataError", "ModelError", "UnsupportedError", "Interrupted")
__all__ = [
    "ConfigError",
    "DataError",
    "Interrupted",
    "LanguageModel",
    "ModelError",
    "PolysemeError",
    "UnsupportedError",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import heavy dependencies when a name is first used, so that `import polyseme` is fast."""
    if name in ("load", "LanguageModel"):
        from polyseme.inference import language_model

        return getattr(language_model, name)
    if name in _ERRORS:
        from polyseme import errors

        return getattr(errors, name)
    raise AttributeError(f"module 'polyseme' has no attribute {name!r}")
