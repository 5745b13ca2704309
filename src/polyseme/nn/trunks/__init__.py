"""Trunks: networks from tokens to hidden states."""
