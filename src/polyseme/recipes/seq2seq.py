"""Training recipes of recurrent translation models."""

from __future__ import annotations

from polyseme.objectives.translation import Translation
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def multi30k() -> Recipe:
    """One LSTM layer of 512 on each side for the 29,000 caption pairs of Multi30k, with ten checkpoints averaged.

    Attention is multiplicative, after the recurrence; `model.attention` may be none, dot, cosine, multiplicative or
    additive, `model.context_order` inside_recurrence or after_recurrence.
    """
    return Recipe(
        name="seq2seq-multi30k",
        family="seq2seq",
        model={"num_layers": 1, "dim": 512, "dropout": 0.5},
        objective=Translation(),
        max_len=128,
        batch_tokens=4096,
        micro_batch_tokens=4096,
        budget=BudgetConfig(steps=4000),
        optimizer=OptimizerConfig(lr=2e-3, beta2=0.98, weight_decay=0.0),
        schedule=ScheduleConfig("inverse_sqrt", warmup=400),
        valid_fraction=0.01,
        eval_every=400,
        save_every=200,
        num_averaged=10,
        log_every=50,
    )


def tiny() -> Recipe:
    """LSTMs of 128 units, for experiments: two minutes on a CPU."""
    return Recipe(
        name="seq2seq-tiny",
        family="seq2seq",
        size="tiny",
        objective=Translation(),
        max_len=128,
        batch_tokens=1024,
        micro_batch_tokens=1024,
        budget=BudgetConfig(steps=600),
        optimizer=OptimizerConfig(lr=5e-3, beta2=0.98, weight_decay=0.0),
        schedule=ScheduleConfig("inverse_sqrt", warmup=100),
        eval_every=300,
        save_every=100,
        num_averaged=5,
    )
