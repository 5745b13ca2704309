"""Look inside a model: attention, gradients, translations, and backpropagation on a computation graph."""

from polyseme.explain.graph import Graph

__all__ = ["Graph"]
