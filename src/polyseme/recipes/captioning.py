"""Training recipes of models that describe images."""

from polyseme.objectives.captioning import Captioning
from polyseme.recipes.base import define, define_tiny
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import Recipe

ADAM = OptimizerConfig(beta2=0.98, weight_decay=0.1)
# With these, pairs of words that never occur together in training are still described; see docs/results/vision.md.
CAPTIONING = Captioning(label_smoothing=0.1, word_dropout=0.5)
COSINE = ScheduleConfig("cosine", warmup=0.05, min_lr_ratio=0.01)


def show_attend_tell_tiny() -> Recipe:
    """An LSTM of 128 units that attends to image regions, for experiments: minutes on a CPU."""
    objective, optimizer = CAPTIONING, ADAM.replace(lr=2e-3)
    recipe = define_tiny(
        "show_attend_tell", objective, optimizer, COSINE, batch_tokens=4096, steps=1800, max_len=32, every=500
    )
    return recipe.replace(name="show-attend-tell-tiny")


def show_attend_tell_base() -> Recipe:
    """Show, Attend and Tell with 512 units, the doubly stochastic penalty, and batches of 64 images."""
    objective, optimizer = Captioning(attention_coverage=1.0), OptimizerConfig(lr=4e-4, weight_decay=0.0)
    recipe = define("show_attend_tell-base", objective, optimizer, COSINE, batch_tokens=12544, steps=50_000, max_len=64)
    return recipe.replace(name="show-attend-tell-base")


def image_transformer_tiny() -> Recipe:
    """A Transformer with 2 layers of 128 over image regions and 2 over words, for experiments: minutes on a CPU."""
    objective, optimizer = CAPTIONING, ADAM.replace(lr=1e-3)
    recipe = define_tiny(
        "image_transformer", objective, optimizer, COSINE, batch_tokens=4096, steps=1800, max_len=32, every=500
    )
    return recipe.replace(name="image-transformer-tiny")
