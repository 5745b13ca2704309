"""Word vectors, each as its paper trains it, and small runs of the same kind."""

from __future__ import annotations

from polyseme.objectives.glove import Counts
from polyseme.objectives.word2vec import Windows
from polyseme.train.optimizer import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def _windows(
    name: str,
    family: str,
    size: str,
    objective: Windows,
    tokens: int,
    rate: float = 0.025,
    damp: float = 0.1,
    at_once: int = 1024,
) -> Recipe:
    """The rate falls linearly to nothing over the run, as in the authors' code; a step is 16,384 words of text."""
    return Recipe(
        name=name,
        family=family,
        size=size,
        objective=objective,
        max_len=256,
        batch_tokens=16384,
        bin_tokens=16384,
        budget=BudgetSpec(tokens=tokens),
        optim=OptimSpec(method="rows", rate=rate, at_once=at_once, damp=damp),
        schedule=ScheduleSpec("linear", warmup=1),
        holdout=0.001,
        eval_every=2000,
        save_every=2000,
        log_every=20,
        precision="float32",
    )


def word2vec() -> Recipe:
    """Skip-gram with 15 negatives, 300 numbers a word: five times through 100 M words.

    Negatives, sampling and size are those of Mikolov et al. (2013b, §3 and §5), window and rate of their code.
    """
    return _windows("word2vec", "word2vec", "base", Windows(subsample=1e-5, negatives=15, drawn=64), 500_000_000)


def word2vec_tiny() -> Recipe:
    """Skip-gram at 100 numbers a word: five times through 6 M words, minutes on two CPU cores."""
    return _windows("word2vec-tiny", "word2vec", "tiny", Windows(), 30_000_000)


def cbow_tiny() -> Recipe:
    """CBOW at 100 numbers a word; two thousand words at once, since each is one prediction, not one for each pair."""
    objective = Windows(predict="word")
    return _windows("cbow-tiny", "word2vec", "tiny", objective, 30_000_000, rate=0.05, damp=0.02, at_once=2048)


def fasttext() -> Recipe:
    """Skip-gram over n-grams of 3 to 6 characters, 300 numbers (Bojanowski et al. 2017, §4.3)."""
    return _windows("fasttext", "fasttext", "base", Windows(subsample=1e-4), 500_000_000, rate=0.05)


def fasttext_tiny() -> Recipe:
    """fastText at 100 numbers and 100,000 buckets."""
    return _windows("fasttext-tiny", "fasttext", "tiny", Windows(), 30_000_000)


def _counts(name: str, size: str, cells: int) -> Recipe:
    """AdaGrad at 0.05 (Pennington et al. 2014, §4.2); a token of the budget is one cell of the table of counts."""
    return Recipe(
        name=name,
        family="glove",
        size=size,
        objective=Counts(),
        max_len=256,
        batch_tokens=65536,
        bin_tokens=65536,
        budget=BudgetSpec(tokens=cells),
        optim=OptimSpec(method="adagrad", rate=0.05, at_once=4096),
        schedule=ScheduleSpec("constant", warmup=1),
        holdout=0.001,
        eval_every=2000,
        save_every=2000,
        log_every=20,
        precision="float32",
    )


def glove() -> Recipe:
    """GloVe at 300 numbers a word: windows of 10, 50 times through some 100 M cells."""
    return _counts("glove", "base", 5_000_000_000)


def glove_tiny() -> Recipe:
    """GloVe at 100 numbers a word."""
    return _counts("glove-tiny", "tiny", 100_000_000)
