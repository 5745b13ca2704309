"""Training recipes of the Transformer for translation."""

from __future__ import annotations

from polyseme.objectives.translation import Translation
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """Transformer-base as in the paper: 25,000 tokens per side and step, 100,000 steps, five checkpoints averaged.

    Vaswani et al. 2017, §5 and §6.1. The peak learning rate, after 4,000 steps, is dim^-0.5 · warmup^-0.5.
    """
    return Recipe(
        name="transformer-base",
        family="transformer",
        size="base",
        objective=Translation(),
        max_len=256,
        batch_tokens=24576,
        micro_batch_tokens=24576,
        budget=BudgetConfig(steps=100_000),
        optimizer=OptimizerConfig(lr=7e-4, beta2=0.98, eps=1e-9, weight_decay=0.0, max_grad_norm=0.0),
        schedule=ScheduleConfig("inverse_sqrt", warmup=4000),
        eval_every=2500,
        save_every=1500,
        num_averaged=5,
        log_every=100,
    )


def multi30k() -> Recipe:
    """A small Transformer for the 29,000 caption pairs of Multi30k: high dropout, ten checkpoints averaged.

    Sizes and learning rate are those that Wu et al. 2021 (Good for Misconceived Reasons, §4) found best for text only.
    """
    return Recipe(
        name="transformer-multi30k",
        family="transformer",
        model={"num_layers": 4, "dim": 128, "num_heads": 4, "ffn_dim": 256, "max_len": 256, "dropout": 0.3},
        objective=Translation(),
        max_len=128,
        batch_tokens=4096,
        micro_batch_tokens=4096,
        budget=BudgetConfig(steps=8000),
        optimizer=OptimizerConfig(lr=5e-3, beta2=0.98, weight_decay=0.0),
        schedule=ScheduleConfig("inverse_sqrt", warmup=2000),
        valid_fraction=0.01,
        eval_every=400,
        save_every=200,
        num_averaged=10,
        log_every=50,
    )


def tiny() -> Recipe:
    """A Transformer with 2 layers of 128, for experiments: minutes on a CPU."""
    return Recipe(
        name="transformer-tiny",
        family="transformer",
        size="tiny",
        objective=Translation(),
        max_len=128,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(steps=1000),
        optimizer=OptimizerConfig(lr=2e-3, beta2=0.98, weight_decay=0.0),
        schedule=ScheduleConfig("inverse_sqrt", warmup=200),
        eval_every=250,
        save_every=100,
        num_averaged=5,
    )
