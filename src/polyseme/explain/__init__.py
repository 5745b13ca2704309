"""Look inside a model: attention, layers, gradients, translations, and backpropagation on a computation graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyseme.explain.graph import Graph

if TYPE_CHECKING:
    from polyseme.explain.gradients import explain_gradients
    from polyseme.explain.logit_lens import explain_logit_lens
    from polyseme.explain.patching import PatchingPair, explain_patching, explain_patching_pairs
    from polyseme.explain.self_attention import attention_steps

_MODULES = {
    "PatchingPair": "patching",
    "attention_steps": "self_attention",
    "explain_gradients": "gradients",
    "explain_logit_lens": "logit_lens",
    "explain_patching": "patching",
    "explain_patching_pairs": "patching",
}
__all__ = [
    "Graph",
    "PatchingPair",
    "attention_steps",
    "explain_gradients",
    "explain_logit_lens",
    "explain_patching",
    "explain_patching_pairs",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _MODULES:
        return getattr(import_module(f"polyseme.explain.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyseme.explain' has no attribute {name!r}")
