"""Training recipes of encoder-decoders: translation, and T5."""

from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.objectives.translation import Translation
from polyseme.recipes.base import define, define_tiny
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import BudgetConfig, Recipe

ADAM = OptimizerConfig(beta2=0.98, weight_decay=0.0)


def seq2seq_multi30k() -> Recipe:
    """One LSTM layer of 512 on each side for the 29,000 caption pairs of Multi30k, with ten checkpoints averaged.

    Attention is multiplicative, after the recurrence; `model.attention` may be none, dot, cosine, multiplicative or
    additive, `model.context_order` inside_recurrence or after_recurrence.
    """
    model = {"num_layers": 1, "dim": 512, "dropout": 0.5}
    optimizer, schedule = ADAM.replace(lr=2e-3), ScheduleConfig("inverse_sqrt", warmup=400)
    recipe = define("seq2seq-multi30k", Translation(), optimizer, schedule, batch_tokens=4096, steps=4000, max_len=128)
    return recipe.replace(size="", model=model, eval_every=400, save_every=200, num_averaged=10, log_every=50)


def seq2seq_tiny() -> Recipe:
    """LSTMs of 128 units, for experiments: two minutes on a CPU."""
    optimizer, schedule = ADAM.replace(lr=5e-3), ScheduleConfig("inverse_sqrt", warmup=100)
    recipe = define_tiny("seq2seq", Translation(), optimizer, schedule, batch_tokens=1024, steps=600, max_len=128)
    return recipe.replace(eval_every=300, save_every=100, num_averaged=5)


def transformer_base() -> Recipe:
    """Transformer-base as in the paper: 25,000 tokens per side and step, 100,000 steps, five checkpoints averaged.

    Vaswani et al. 2017, §5 and §6.1. The peak learning rate, after 4,000 steps, is dim^-0.5 · warmup^-0.5.
    """
    optimizer = OptimizerConfig(lr=7e-4, beta2=0.98, eps=1e-9, weight_decay=0.0, max_grad_norm=0.0)
    schedule = ScheduleConfig("inverse_sqrt", warmup=4000)
    recipe = define("transformer-base", Translation(), optimizer, schedule, batch_tokens=24576, steps=100_000)
    return recipe.replace(max_len=256, eval_every=2500, save_every=1500, num_averaged=5)


def transformer_multi30k() -> Recipe:
    """A small Transformer for the 29,000 caption pairs of Multi30k: high dropout, ten checkpoints averaged.

    Sizes and learning rate are those that Wu et al. 2021 (Good for Misconceived Reasons, §4) found best for text only.
    """
    model = {"num_layers": 4, "dim": 128, "num_heads": 4, "ffn_dim": 256, "max_len": 256, "dropout": 0.3}
    optimizer, schedule = ADAM.replace(lr=5e-3), ScheduleConfig("inverse_sqrt", warmup=2000)
    recipe = seq2seq_multi30k().replace(name="transformer-multi30k", family="transformer", model=model)
    return recipe.replace(budget=BudgetConfig(steps=8000), optimizer=optimizer, schedule=schedule)


def transformer_tiny() -> Recipe:
    """A Transformer with 2 layers of 128, for experiments: minutes on a CPU."""
    optimizer, schedule = ADAM.replace(lr=2e-3), ScheduleConfig("inverse_sqrt", warmup=200)
    recipe = define_tiny("transformer", Translation(), optimizer, schedule, batch_tokens=2048, steps=1000, max_len=128)
    return recipe.replace(save_every=100, num_averaged=5)


def t5_base() -> Recipe:
    """T5-base as in the paper's baseline: 128 sources of 512 tokens per step, 2^19 steps.

    Raffel et al. 2020, §3.1.2: Adafactor, learning rate 0.01 for 10,000 steps, then 1 / √step; no clipping of the
    gradient. §3.7: 15 % of the tokens, in spans of 3 on average.
    """
    optimizer = OptimizerConfig(name="adafactor", lr=0.01, weight_decay=0.0, max_grad_norm=0.0)
    schedule = ScheduleConfig("constant_inverse_sqrt", warmup=10_000)
    recipe = define("t5-base", SpanCorruption(), optimizer, schedule, batch_tokens=65536, steps=524_288, max_len=512)
    return recipe.replace(micro_batch_tokens=32768)


def t5_small() -> Recipe:
    """T5-small as in the paper, like t5-base."""
    return t5_base().replace(name="t5-small", size="small")


def t5_large() -> Recipe:
    """T5-large as in the paper, like t5-base."""
    return t5_base().replace(name="t5-large", size="large", micro_batch_tokens=16384)


def t5_v11() -> Recipe:
    """T5 v1.1-base: gated feed-forward, untied output matrix, no dropout in pre-training."""
    return t5_base().replace(name="t5-v1.1-base", size="v1.1-base", model={"dropout": 0.0})


def t5_tiny() -> Recipe:
    """T5 with 2 layers of 128, for experiments: minutes on a CPU. It learns faster with Muon than with AdamW."""
    optimizer, schedule = ADAM.replace(name="muon", lr=4e-3), ScheduleConfig("linear", warmup=0.06)
    recipe = define_tiny("t5", SpanCorruption(), optimizer, schedule, batch_tokens=4096, steps=1000, max_len=128)
    return recipe.replace(model={"dropout": 0.0})
