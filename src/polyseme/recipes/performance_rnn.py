"""Training recipes of Performance RNN."""

from __future__ import annotations

from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """Three layers of 512 units on segments of 512 events in 64 parallel streams.

    The length of training, learning rate and schedule are not those of the original.
    """
    return Recipe(
        name="performance_rnn-base",
        family="performance_rnn",
        size="base",
        objective=StreamingCausalLM(),
        max_len=512,
        batch_tokens=32768,
        micro_batch_tokens=32768,
        budget=BudgetConfig(steps=20_000),
        optimizer=OptimizerConfig(lr=1e-3, eps=1e-8, weight_decay=0.0),
        schedule=ScheduleConfig("cosine", warmup=500, min_lr_ratio=0.05),
        eval_every=1000,
        save_every=1000,
        log_every=50,
    )


def tiny() -> Recipe:
    """An LSTM of 128 units, for experiments: two minutes on a CPU."""
    return Recipe(
        name="performance_rnn-tiny",
        family="performance_rnn",
        size="tiny",
        model={"dropout": 0.0},
        objective=StreamingCausalLM(),
        max_len=128,
        batch_tokens=4096,
        micro_batch_tokens=4096,
        budget=BudgetConfig(steps=400),
        optimizer=OptimizerConfig(lr=5e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=50, min_lr_ratio=0.1),
        eval_every=250,
        save_every=250,
    )
