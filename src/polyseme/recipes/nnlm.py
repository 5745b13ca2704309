"""The window model of Bengio et al. (2003), small and as on the AP News."""

from __future__ import annotations

from polyseme.objectives.causal_lm import CausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def ap() -> Recipe:
    """Vectors of 100, 60 hidden units, five words before: the AP News model (§4.2), 5 epochs of its 14 M words.

    The paper's rate is 1e-3 for stochastic gradient ascent, falling with the number of updates, with a weight decay of
    1e-5; batch, rate and schedule here are ours, for AdamW.
    """
    return Recipe(
        name="nnlm-ap",
        family="nnlm",
        size="ap",
        objective=CausalLM(),
        max_len=512,
        batch_tokens=4096,
        micro_batch_tokens=4096,
        budget=BudgetConfig(tokens=70_000_000),
        optimizer=OptimizerConfig(lr=2e-3, weight_decay=1e-5),
        schedule=ScheduleConfig("cosine", warmup=200, min_lr_ratio=0.05),
        eval_every=1000,
        save_every=1000,
        log_every=50,
    )


def tiny() -> Recipe:
    """Vectors of 64, 128 hidden units, five pieces before: two minutes on a CPU, to try things out."""
    return Recipe(
        name="nnlm-tiny",
        family="nnlm",
        size="tiny",
        objective=CausalLM(),
        max_len=512,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(steps=1000),
        optimizer=OptimizerConfig(lr=5e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=50, min_lr_ratio=0.1),
        eval_every=250,
        save_every=250,
    )
