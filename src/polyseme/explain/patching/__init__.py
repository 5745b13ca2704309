"""Activation patching: which layer and position carry the difference between two texts (Vig et al. 2020)."""

from polyseme.explain.patching.page import explain_patching, explain_patching_pairs
from polyseme.explain.patching.pairs import PatchingPair, read_pairs

__all__ = ["PatchingPair", "explain_patching", "explain_patching_pairs", "read_pairs"]
