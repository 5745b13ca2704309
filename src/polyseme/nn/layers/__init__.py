"""Layers that trunks are made of."""
