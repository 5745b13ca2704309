"""Pre-training recipes of XLNet."""

from __future__ import annotations

from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """XLNet-base after the paper: one token in six predicted, 512 tokens.

    Yang et al. 2019, §3.1 and A.4, for the large model: batches of 8,192 × 512, 500,000 steps, Adam with learning rate
    4e-4, ε 1e-6, weight decay 0.01, 40,000 warm-up steps, linear decay; the base model here has a quarter of the batch.
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
    """XLNet with 2 layers of 128, for experiments: minutes on a CPU."""
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
