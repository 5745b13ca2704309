"""Defaults that recipes share."""

from typing import Any

from polyseme.objectives.base import Objective
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import BudgetConfig, Recipe

SHORT_COSINE = ScheduleConfig("cosine", warmup=50, min_lr_ratio=0.1)
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def define(
    name: str, objective: Objective, *, batch_tokens: int, steps: int = 0, every: int = 5000, **settings: Any
) -> Recipe:
    """Return the recipe `family-size`, with one micro-batch per step unless `settings` says otherwise.

    The model is evaluated and saved `every` so many steps; with `steps` 0, `settings` has a `budget`.
    """
    family, _, size = name.rpartition("-")
    defaults: dict[str, Any] = {"family": family, "size": size, "budget": BudgetConfig(steps=steps)}
    defaults |= {"micro_batch_tokens": batch_tokens, "eval_every": every, "save_every": every, "log_every": 100}
    return Recipe(name=name, objective=objective, batch_tokens=batch_tokens, **defaults | settings)


def define_tiny(family: str, objective: Objective, *, lr: float = 3e-3, **settings: Any) -> Recipe:
    """Return the recipe of a family's size `tiny`, for experiments on a CPU."""
    defaults: dict[str, Any] = {"optimizer": OptimizerConfig(lr=lr, beta2=0.98), "every": 250, "log_every": 10}
    return define(f"{family}-tiny", objective, **defaults | settings)
