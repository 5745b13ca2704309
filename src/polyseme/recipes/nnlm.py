"""Training recipes of the neural probabilistic language model (Bengio et al. 2003)."""

from __future__ import annotations

from polyseme.objectives.causal_lm import CausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def ap() -> Recipe:
    """The AP News model (§4.2): vectors of 100, 60 hidden units, five previous words, 5 epochs of 14 M words.

    The paper uses stochastic gradient ascent with learning rate 1e-3, decreasing with the number of updates, and weight
    decay 1e-5; batch size, learning rate and schedule here are for AdamW.
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
    """Vectors of 64, 128 hidden units, five previous tokens, for experiments: two minutes on a CPU."""
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
