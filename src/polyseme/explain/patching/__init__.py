"""Activation patching: which layer and position carry the difference between two texts (Vig et al. 2020)."""

from polyseme.explain.patching.page import explain_patching

__all__ = ["explain_patching"]
