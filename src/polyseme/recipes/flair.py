"""Pre-training recipes of Flair: character language models whose states at word boundaries are features."""

from __future__ import annotations

from polyseme.objectives.causal_lm import CausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def paper() -> Recipe:
    """LSTMs of 2048 units in both directions, 100 × 250 characters per step, clipping at 0.25 (Akbik et al. 2018, §3).

    The steps are one epoch of the 1B Word benchmark. The paper uses SGD with learning rate 20; here AdamW.
    """
    return Recipe(
        name="flair",
        family="flair",
        size="paper",
        objective=CausalLM(direction="both"),
        max_len=250,
        batch_tokens=25_000,
        micro_batch_tokens=25_000,
        budget=BudgetConfig(steps=220_000),
        optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.0, max_grad_norm=0.25),
        schedule=ScheduleConfig("cosine", warmup=1000),
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def small() -> Recipe:
    """LSTMs of 1024 units: an hour on one GPU."""
    return paper().replace(name="flair-small", size="small", batch_tokens=50_000, micro_batch_tokens=50_000,
                           budget=BudgetConfig(minutes=60), optimizer=OptimizerConfig(lr=2e-3, weight_decay=0.0,
                           max_grad_norm=0.25), eval_every=1000, save_every=1000)  # fmt: skip


def tiny() -> Recipe:
    """LSTMs of 192 units, for experiments: two minutes on a CPU."""
    return Recipe(
        name="flair-tiny",
        family="flair",
        size="tiny",
        objective=CausalLM(direction="both"),
        max_len=128,
        batch_tokens=4096,
        micro_batch_tokens=4096,
        budget=BudgetConfig(steps=400),
        optimizer=OptimizerConfig(lr=5e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=50, min_lr_ratio=0.1),
        eval_every=250,
        save_every=250,
    )
