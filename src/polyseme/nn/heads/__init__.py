"""Heads: predictions and losses from hidden states."""
