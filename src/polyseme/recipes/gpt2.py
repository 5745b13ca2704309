"""Pre-training recipes of GPT-2."""

from __future__ import annotations

from polyseme.objectives.causal_lm import CausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def small() -> Recipe:
    """GPT-2 small: 512 × 1,024 tokens per step.

    The batch size is that of the paper (§2.3), which specifies no learning rate or length of training; those follow
    table 2.1 of GPT-3 for the same size: 6e-4, cosine to 10 %, β₂ 0.95, weight decay 0.1.
    """
    return Recipe(
        name="gpt2-small",
        family="gpt2",
        size="small",
        objective=CausalLM(),
        max_len=1024,
        batch_tokens=524288,
        micro_batch_tokens=32768,
        budget=BudgetConfig(tokens=10_000_000_000),
        optimizer=OptimizerConfig(lr=6e-4, beta2=0.95, eps=1e-8, weight_decay=0.1),
        schedule=ScheduleConfig("cosine", warmup=700, min_lr_ratio=0.1),
        compile=True,
        eval_every=1000,
        save_every=1000,
        log_every=50,
    )


def tiny() -> Recipe:
    """GPT-2 with 2 layers of 128, for experiments: two minutes on two CPU cores."""
    return Recipe(
        name="gpt2-tiny",
        family="gpt2",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0},
        objective=CausalLM(),
        max_len=64,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(steps=600),
        optimizer=OptimizerConfig(lr=3e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=0.1),
        eval_every=250,
        save_every=250,
    )
