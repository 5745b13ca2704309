"""Batches of concurrent requests: a worker thread per model, and generation that streams."""
