"""Attention over packed sequences: plain, relative, and that of recurrent decoders."""
