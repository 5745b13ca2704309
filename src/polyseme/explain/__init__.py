"""Look inside a model: attention, layers, gradients, translations, and backpropagation on a computation graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyseme.explain.graph import Graph

if TYPE_CHECKING:
    from polyseme.explain.gradients import explain_gradients
    from polyseme.explain.logit_lens import explain_logit_lens
    from polyseme.explain.patching import explain_patching

_MODULES = {
    "explain_gradients": "gradients",
    "explain_logit_lens": "logit_lens",
    "explain_patching": "patching",
}

__all__ = ["Graph", "explain_gradients", "explain_logit_lens", "explain_patching"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
