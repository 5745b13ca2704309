"""RoBERTa's pre-training, and a small run of the same kind."""

from __future__ import annotations

from polyseme.objectives.specs import MaskedLM
from polyseme.train.optimizer import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def base() -> Recipe:
    """RoBERTa-base as in the paper: 8,192 × 512 tokens a step, 500,000 steps, full sentences, new masks each time.

    Liu et al. 2019, table 9: Adam at 6e-4 with β₂ 0.98 and ε 1e-6, decay 0.01, warm-up over 24,000 steps, linear decay,
    dropout 0.1, no clipping.
    """
    return Recipe(
        name="roberta-base",
        family="roberta",
        size="base",
        objective=MaskedLM(across=True),
        max_len=512,
        batch_tokens=8192 * 512,
        bin_tokens=32768,
        budget=BudgetSpec(steps=500_000),
        optim=OptimSpec(rate=6e-4, beta2=0.98, clip=0.0),
        schedule=ScheduleSpec("linear", warmup=24_000),
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
        bin_tokens=16384,
        optim=OptimSpec(rate=4e-4, beta2=0.98, clip=0.0),
        schedule=ScheduleSpec("linear", warmup=30_000),
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
        objective=MaskedLM(rate=0.4, across=True),
        max_len=64,
        batch_tokens=2048,
        bin_tokens=2048,
        budget=BudgetSpec(steps=700),
        optim=OptimSpec(rate=3e-3, beta2=0.98),
        eval_every=250,
        eval_tokens=32768,
        save_every=500,
    )
