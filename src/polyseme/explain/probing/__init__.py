"""Probes: what can be decoded from each layer of a model."""
