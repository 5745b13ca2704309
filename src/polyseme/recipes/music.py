"""Training recipes of the Music Transformer."""

from __future__ import annotations

from polyseme.objectives.causal_lm import CausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """Music Transformer on piano performances, split at 2,048 events as in the paper (Huang et al. 2018, §4.2).

    The paper does not specify the length of training; learning rate and schedule are not from the paper.
    """
    return Recipe(
        name="music-base",
        family="music",
        size="base",
        objective=CausalLM(),
        max_len=2048,
        batch_tokens=65536,
        micro_batch_tokens=16384,
        budget=BudgetConfig(steps=20_000),
        optimizer=OptimizerConfig(lr=5e-4, beta2=0.98, eps=1e-8),
        schedule=ScheduleConfig("cosine", warmup=1000, min_lr_ratio=0.1),
        eval_every=1000,
        save_every=1000,
        log_every=50,
    )


def tiny() -> Recipe:
    """Music Transformer with 2 layers of 128, for experiments: two minutes on a CPU."""
    return Recipe(
        name="music-tiny",
        family="music",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0},
        objective=CausalLM(),
        max_len=256,
        batch_tokens=4096,
        micro_batch_tokens=4096,
        budget=BudgetConfig(steps=400),
        optimizer=OptimizerConfig(lr=3e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=50, min_lr_ratio=0.1),
        eval_every=250,
        save_every=250,
    )
