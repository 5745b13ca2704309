"""ALBERT's pre-training, and a small run of the same kind."""

from __future__ import annotations

from polyseme.objectives.specs import MaskedPairs
from polyseme.train.optimizer import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def base() -> Recipe:
    """ALBERT-base as in the paper: 4,096 × 512 tokens a step, 125,000 steps.

    Lan et al. 2020, §4.1: n-gram masks, sentence order, a peak rate of 0.00176 (with LAMB there, AdamW here), one in
    ten inputs short. The warm-up of 3,125 steps and decay 0.01 are those of its code.
    """
    return Recipe(
        name="albert-base",
        family="albert",
        size="base",
        objective=MaskedPairs(unit="ngram", question="order"),
        max_len=512,
        batch_tokens=2_097_152,
        bin_tokens=32768,
        budget=BudgetSpec(steps=125_000),
        optim=OptimSpec(rate=0.00176),
        schedule=ScheduleSpec("linear", warmup=3125),
        compile=True,
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def large() -> Recipe:
    """ALBERT-large as in the paper."""
    return base().replace(name="albert-large", size="large", bin_tokens=16384)


def xlarge() -> Recipe:
    """ALBERT-xlarge as in the paper."""
    return base().replace(name="albert-xlarge", size="xlarge", bin_tokens=8192, recompute=True)


def xxlarge() -> Recipe:
    """ALBERT-xxlarge as in the paper, without dropout (§4.8)."""
    return base().replace(
        name="albert-xxlarge",
        size="xxlarge",
        model={"dropout": 0.0, "attention_dropout": 0.0},
        bin_tokens=8192,
        recompute=True,
    )


def tiny() -> Recipe:
    """ALBERT at L2 H128 with token vectors of 64: minutes on a CPU, to try things out."""
    return Recipe(
        name="albert-tiny",
        family="albert",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "max_len": 128, "init_std": 0.06},
        objective=MaskedPairs(unit="ngram", question="order"),
        max_len=64,
        batch_tokens=2048,
        bin_tokens=2048,
        budget=BudgetSpec(minutes=2.0),
        optim=OptimSpec(rate=3e-3, beta2=0.98),
        schedule=ScheduleSpec("linear", warmup=0.1),
        eval_every=500,
        eval_tokens=32768,
        save_every=1000,
    )
