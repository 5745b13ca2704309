"""Training recipes of word vectors: word2vec, fastText and GloVe."""

from polyseme.objectives.glove import GloVe
from polyseme.objectives.word2vec import Word2Vec
from polyseme.recipes.base import define
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import BudgetConfig, Recipe


def word2vec_tiny() -> Recipe:
    """Skip-gram with 100 dimensions, five epochs of 6 M words: minutes on two CPU cores.

    Linear decay to zero, as in the authors' code, and 16,384 words of text per step.
    """
    optimizer = OptimizerConfig(name="sparse_sgd", lr=0.025, words_per_update=1024, count_damping=0.1)
    schedule = ScheduleConfig("linear", warmup=1)
    recipe = define("word2vec-tiny", Word2Vec(), optimizer, schedule, batch_tokens=16384, tokens=30_000_000, every=2000)
    return recipe.replace(max_len=256, valid_fraction=0.001, log_every=20, precision="float32")


def word2vec() -> Recipe:
    """Skip-gram with 15 negative samples, 300 dimensions, five epochs of 100 M words.

    Negative samples, subsampling and size are those of Mikolov et al. (2013b, §3 and §5), window and learning rate
    those of their code.
    """
    recipe = word2vec_tiny().replace(name="word2vec", size="base", budget=BudgetConfig(tokens=500_000_000))
    return recipe.replace(objective=Word2Vec(subsample_threshold=1e-5, num_negatives=15, negatives_per_block=64))


def cbow_tiny() -> Recipe:
    """CBOW with 100 dimensions; 2,048 words per update, since a word is one prediction, not one for each pair."""
    recipe = word2vec_tiny().replace(name="cbow-tiny", objective=Word2Vec(architecture="cbow"))
    return recipe.replace(optimizer=recipe.optimizer.replace(lr=0.05, count_damping=0.02, words_per_update=2048))


def fasttext() -> Recipe:
    """Skip-gram over n-grams of 3 to 6 characters, 300 dimensions (Bojanowski et al. 2017, §4.3)."""
    recipe = word2vec().replace(name="fasttext", family="fasttext", objective=Word2Vec(subsample_threshold=1e-4))
    return recipe.replace(optimizer=recipe.optimizer.replace(lr=0.05))


def fasttext_tiny() -> Recipe:
    """fastText with 100 dimensions and 100,000 buckets."""
    return word2vec_tiny().replace(name="fasttext-tiny", family="fasttext")


def glove_tiny() -> Recipe:
    """GloVe with 100 dimensions.

    AdaGrad with learning rate 0.05 (Pennington et al. 2014, §4.2); the token budget counts co-occurrence cells.
    """
    optimizer = OptimizerConfig(name="sparse_adagrad", lr=0.05, words_per_update=4096)
    schedule = ScheduleConfig("constant", warmup=1)
    recipe = define("glove-tiny", GloVe(), optimizer, schedule, batch_tokens=65536, tokens=100_000_000, every=2000)
    return recipe.replace(max_len=256, valid_fraction=0.001, log_every=20, precision="float32")


def glove() -> Recipe:
    """GloVe with 300 dimensions: windows of 10, 100 epochs of about 100 M cells (Pennington et al. 2014, §4.2)."""
    return glove_tiny().replace(name="glove", size="base", budget=BudgetConfig(tokens=10_000_000_000))
