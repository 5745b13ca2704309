"""Training recipes of word vectors: word2vec, fastText and GloVe."""

from __future__ import annotations

from polyseme.objectives.glove import GloVe
from polyseme.objectives.word2vec import Word2Vec
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def _word2vec_recipe(
    name: str,
    family: str,
    size: str,
    objective: Word2Vec,
    num_tokens: int,
    lr: float = 0.025,
    count_damping: float = 0.1,
    words_per_update: int = 1024,
) -> Recipe:
    """Return a recipe with linear decay to zero, as in the authors' code, and 16,384 words of text per step."""
    return Recipe(
        name=name,
        family=family,
        size=size,
        objective=objective,
        max_len=256,
        batch_tokens=16384,
        micro_batch_tokens=16384,
        budget=BudgetConfig(tokens=num_tokens),
        optimizer=OptimizerConfig(
            name="sparse_sgd", lr=lr, words_per_update=words_per_update, count_damping=count_damping
        ),
        schedule=ScheduleConfig("linear", warmup=1),
        valid_fraction=0.001,
        eval_every=2000,
        save_every=2000,
        log_every=20,
        precision="float32",
    )


def word2vec() -> Recipe:
    """Skip-gram with 15 negative samples, 300 dimensions, five epochs of 100 M words.

    Negative samples, subsampling and size are those of Mikolov et al. (2013b, §3 and §5), window and learning rate
    those of their code.
    """
    return _word2vec_recipe(
        "word2vec",
        "word2vec",
        "base",
        Word2Vec(subsample_threshold=1e-5, num_negatives=15, negatives_per_block=64),
        500_000_000,
    )


def word2vec_tiny() -> Recipe:
    """Skip-gram with 100 dimensions, five epochs of 6 M words: minutes on two CPU cores."""
    return _word2vec_recipe("word2vec-tiny", "word2vec", "tiny", Word2Vec(), 30_000_000)


def cbow_tiny() -> Recipe:
    """CBOW with 100 dimensions; 2,048 words per update, since a word is one prediction, not one for each pair."""
    objective = Word2Vec(architecture="cbow")
    return _word2vec_recipe(
        "cbow-tiny", "word2vec", "tiny", objective, 30_000_000, lr=0.05, count_damping=0.02, words_per_update=2048
    )


def fasttext() -> Recipe:
    """Skip-gram over n-grams of 3 to 6 characters, 300 dimensions (Bojanowski et al. 2017, §4.3)."""
    return _word2vec_recipe("fasttext", "fasttext", "base", Word2Vec(subsample_threshold=1e-4), 500_000_000, lr=0.05)


def fasttext_tiny() -> Recipe:
    """fastText with 100 dimensions and 100,000 buckets."""
    return _word2vec_recipe("fasttext-tiny", "fasttext", "tiny", Word2Vec(), 30_000_000)


def _glove_recipe(name: str, size: str, num_cells: int) -> Recipe:
    """AdaGrad with learning rate 0.05 (Pennington et al. 2014, §4.2); the token budget counts co-occurrence cells."""
    return Recipe(
        name=name,
        family="glove",
        size=size,
        objective=GloVe(),
        max_len=256,
        batch_tokens=65536,
        micro_batch_tokens=65536,
        budget=BudgetConfig(tokens=num_cells),
        optimizer=OptimizerConfig(name="sparse_adagrad", lr=0.05, words_per_update=4096),
        schedule=ScheduleConfig("constant", warmup=1),
        valid_fraction=0.001,
        eval_every=2000,
        save_every=2000,
        log_every=20,
        precision="float32",
    )


def glove() -> Recipe:
    """GloVe with 300 dimensions: windows of 10, 50 epochs of about 100 M cells."""
    return _glove_recipe("glove", "base", 5_000_000_000)


def glove_tiny() -> Recipe:
    """GloVe with 100 dimensions."""
    return _glove_recipe("glove-tiny", "tiny", 100_000_000)
