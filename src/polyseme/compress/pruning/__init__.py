"""Pruning: remove layers, attention heads, feed-forward units or single weights of a model."""
