"""Look inside a model: attention, words in context, attribution, layers, probes, and backpropagation on a graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyseme.explain.graph import Graph

if TYPE_CHECKING:
    from polyseme.explain.attention import explain_attention
    from polyseme.explain.attribution import explain_attribution
    from polyseme.explain.bias import explain_gender_bias
    from polyseme.explain.geometry import explain_geometry
    from polyseme.explain.gradients import explain_gradients
    from polyseme.explain.graph.page import explain_graph
    from polyseme.explain.image_attention import explain_image
    from polyseme.explain.logit_lens import explain_logit_lens
    from polyseme.explain.patching import PatchingPair, explain_patching, explain_patching_pairs
    from polyseme.explain.path_length import explain_path_length
    from polyseme.explain.probing.api import probe
    from polyseme.explain.self_attention import attention_steps
    from polyseme.explain.words import explain_word
    from polyseme.explain.words.wic import explain_wic, wic_by_layer

_MODULES = {
    "PatchingPair": "patching",
    "attention_steps": "self_attention",
    "explain_attention": "attention",
    "explain_attribution": "attribution",
    "explain_gender_bias": "bias",
    "explain_geometry": "geometry",
    "explain_gradients": "gradients",
    "explain_graph": "graph.page",
    "explain_image": "image_attention",
    "explain_logit_lens": "logit_lens",
    "explain_patching": "patching",
    "explain_patching_pairs": "patching",
    "explain_path_length": "path_length",
    "explain_wic": "words.wic",
    "explain_word": "words",
    "probe": "probing.api",
    "wic_by_layer": "words.wic",
}
__all__ = [
    "Graph",
    "PatchingPair",
    "attention_steps",
    "explain_attention",
    "explain_attribution",
    "explain_gender_bias",
    "explain_geometry",
    "explain_gradients",
    "explain_graph",
    "explain_image",
    "explain_logit_lens",
    "explain_patching",
    "explain_patching_pairs",
    "explain_path_length",
    "explain_wic",
    "explain_word",
    "probe",
    "wic_by_layer",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _MODULES:
        return getattr(import_module(f"polyseme.explain.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyseme.explain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
