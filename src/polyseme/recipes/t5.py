"""Pre-training recipes of T5."""

from __future__ import annotations

from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """T5-base as in the paper's baseline: 128 sources of 512 tokens per step, 2^19 steps.

    Raffel et al. 2020, §3.1.2: inverse square root schedule after 10,000 steps; §3.7: 15 % of the tokens, in spans of
    3 on average. The paper uses AdaFactor with a constant learning rate before that; here AdamW with warm-up.
    """
    return Recipe(
        name="t5-base",
        family="t5",
        size="base",
        objective=SpanCorruption(),
        max_len=512,
        batch_tokens=65536,
        micro_batch_tokens=32768,
        budget=BudgetConfig(steps=524_288),
        optimizer=OptimizerConfig(lr=1e-3, beta2=0.98, weight_decay=0.0),
        schedule=ScheduleConfig("inverse_sqrt", warmup=10_000),
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def small() -> Recipe:
    """T5-small as in the paper, like t5-base."""
    return base().replace(name="t5-small", size="small")


def large() -> Recipe:
    """T5-large as in the paper, like t5-base."""
    return base().replace(name="t5-large", size="large", micro_batch_tokens=16384)


def v11() -> Recipe:
    """T5 v1.1-base: gated feed-forward, untied output matrix, no dropout in pre-training."""
    return base().replace(name="t5-v1.1-base", size="v1.1-base", model={"dropout": 0.0})


def tiny() -> Recipe:
    """T5 with 2 layers of 128, for experiments: minutes on a CPU."""
    return Recipe(
        name="t5-tiny",
        family="t5",
        size="tiny",
        model={"dropout": 0.0},
        objective=SpanCorruption(),
        max_len=128,
        batch_tokens=4096,
        micro_batch_tokens=4096,
        budget=BudgetConfig(steps=1000),
        optimizer=OptimizerConfig(lr=3e-3, beta2=0.98, weight_decay=0.0),
        schedule=ScheduleConfig("inverse_sqrt", warmup=100),
        eval_every=250,
        save_every=250,
    )
