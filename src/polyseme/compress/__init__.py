"""Smaller models from larger ones: a model folder in, a model folder out."""

from polyseme.compress.distillation import distill

__all__ = ["distill"]
