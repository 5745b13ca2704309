"""Smaller models from larger ones: a model folder in, a model folder out."""
