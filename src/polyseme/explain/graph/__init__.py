"""Backpropagation on a computation graph, written out: no autograd inside."""

from polyseme.explain.graph.graph import Graph, Node

__all__ = ["Graph", "Node"]
