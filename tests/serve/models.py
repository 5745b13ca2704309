"""Small models of every kind, and a server for them in this process."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.multiple_choice import MultipleChoiceTask
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.tagging import TaggingTask
from tests.support.small_models import save_small_model
from tests.support.text import documents

TEXTS = [" ".join(text.split()[:12]) for text in documents(8, seed=3)]


def write_vectors(path: Path) -> Path:
    """Write word vectors in word2vec's text format."""
    rng = np.random.default_rng(0)
    words = ["the", "cat", "dog", "house", "river", "tree"]
    rows = [f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=4))}" for word in words]
    path.write_text(f"{len(words)} 4\n" + "\n".join(rows) + "\n")
    return path


def save_models(folder: Path) -> dict[str, Path]:
    """Write a model folder for every verb."""
    labels = ("cat", "dog")
    tasks = {
        "classify": ClassificationTask(labels=labels),
        "pairs": PairClassificationTask(labels=labels),
        "number": RegressionTask(),
        "tag": TaggingTask(labels=("O", "B-X", "I-X")),
        "answer": ExtractiveQATask(),
        "choice": MultipleChoiceTask(),
    }
    paths = {name: save_small_model(folder / name, "bert", task) for name, task in tasks.items()}
    for family in ("bert", "gpt2", "t5"):
        paths[family] = save_small_model(folder / family, family)
    paths["vectors"] = write_vectors(folder / "vectors.txt")
    return paths
