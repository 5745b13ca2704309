"""Activation patching: which layer and position carry the difference between two texts (Vig et al. 2020)."""

from polyseme.explain.patching.page import explain_patching, explain_patching_pairs
from polyseme.explain.patching.pairs import TextPair, read_pairs

__all__ = ["TextPair", "explain_patching", "explain_patching_pairs", "read_pairs"]
