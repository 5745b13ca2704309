"""Defaults that recipes share."""

from typing import Any

from polyseme.objectives.base import Objective
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import BudgetConfig, Recipe

LINEAR = ScheduleConfig()
SHORT_COSINE = ScheduleConfig("cosine", warmup=50, min_lr_ratio=0.1)
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def define(
    name: str,
    objective: Objective,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    *,
    batch_tokens: int,
    every: int = 5000,
    **settings: Any,
) -> Recipe:
    """Return the recipe `family-size`, with one micro-batch per step unless `settings` says otherwise.

    The model is evaluated and saved every `every` steps. `settings` are fields of the recipe, or `steps` or `tokens` of
    its budget.
    """
    family, _, size = name.rpartition("-")
    budget = BudgetConfig(settings.pop("steps", 0), settings.pop("tokens", 0))
    defaults: dict[str, Any] = {"family": family, "size": size, "budget": budget, "micro_batch_tokens": batch_tokens}
    defaults |= {"optimizer": optimizer, "schedule": schedule, "eval_every": every, "save_every": every}
    return Recipe(name, objective=objective, batch_tokens=batch_tokens, **defaults | {"log_every": 100} | settings)


def define_tiny(
    family: str,
    objective: Objective,
    optimizer: OptimizerConfig | None = None,
    schedule: ScheduleConfig = LINEAR,
    *,
    lr: float = 3e-3,
    **settings: Any,
) -> Recipe:
    """Return the recipe of a family's size `tiny`, for experiments on a CPU."""
    optimizer = optimizer or OptimizerConfig(lr=lr, beta2=0.98)
    return define(f"{family}-tiny", objective, optimizer, schedule, **{"every": 250, "log_every": 10} | settings)
