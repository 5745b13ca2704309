"""RoBERTa's pre-training, and a small run of the same kind."""

from __future__ import annotations

from polyseme.objectives.masked_lm import MaskedLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """RoBERTa-base as in the paper: 8,192 × 512 tokens a step, 500,000 steps, full sentences, new masks each time.

    Liu et al. 2019, table 9: Adam at 6e-4 with β₂ 0.98 and ε 1e-6, decay 0.01, warm-up over 24,000 steps, linear decay,
    dropout 0.1, no clipping.
    """
    return Recipe(
        name="roberta-base",
        family="roberta",
        size="base",
        objective=MaskedLM(cross_documents=True),
        max_len=512,
        batch_tokens=8192 * 512,
        micro_batch_tokens=32768,
        budget=BudgetConfig(steps=500_000),
        optimizer=OptimizerConfig(lr=6e-4, beta2=0.98, max_grad_norm=0.0),
        schedule=ScheduleConfig("linear", warmup=24_000),
        compile=True,
        eval_every=2000,
        save_every=1000,
        log_every=10,
    )


def large() -> Recipe:
    """RoBERTa-large as in the paper: base's, at a rate of 4e-4 and with 30,000 steps of warm-up."""
    return base().replace(
        name="roberta-large",
        size="large",
        micro_batch_tokens=16384,
        optimizer=OptimizerConfig(lr=4e-4, beta2=0.98, max_grad_norm=0.0),
        schedule=ScheduleConfig("linear", warmup=30_000),
    )


def tiny() -> Recipe:
    """RoBERTa at L2 H128: two minutes on two CPU cores.

    What differs is for the sake of these minutes, as in the demo: no dropout, a high rate, a wider start, more masks,
    short sequences, small steps.
    """
    return Recipe(
        name="roberta-tiny",
        family="roberta",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.06},
        objective=MaskedLM(mask_prob=0.4, cross_documents=True),
        max_len=64,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(steps=700),
        optimizer=OptimizerConfig(lr=3e-3, beta2=0.98),
        eval_every=250,
        eval_tokens=32768,
        save_every=500,
    )
