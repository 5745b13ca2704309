"""XLNet's pre-training, and a small run of the same kind."""

from __future__ import annotations

from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """XLNet-base after the paper: one token in six predicted, 512 tokens.

    Yang et al. 2019, §3.1 and A.4: batches of 8,192 × 512 for 500,000 steps is the large model's, with Adam at 4e-4,
    ε 1e-6, decay 0.01, linear to zero after 40,000 steps; the base model here reads a quarter of that a step.
    """
    return Recipe(
        name="xlnet-base",
        family="xlnet",
        size="base",
        objective=PermutationLM(),
        max_len=512,
        batch_tokens=1_048_576,
        micro_batch_tokens=16384,
        budget=BudgetConfig(steps=500_000),
        optimizer=OptimizerConfig(lr=4e-4),
        schedule=ScheduleConfig("linear", warmup=40_000),
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def tiny() -> Recipe:
    """XLNet at L2 H128: minutes on a CPU, to try things out."""
    return Recipe(
        name="xlnet-tiny",
        family="xlnet",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.05},
        objective=PermutationLM(),
        max_len=64,
        batch_tokens=4096,
        micro_batch_tokens=4096,
        budget=BudgetConfig(steps=550),
        optimizer=OptimizerConfig(lr=3e-3, beta2=0.98),
        eval_every=250,
        save_every=250,
    )
