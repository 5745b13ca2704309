"""Several processes that answer at one port: their start and end, and their metrics."""
