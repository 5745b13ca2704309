"""Music Transformer's training, small and as in its paper."""

from __future__ import annotations

from polyseme.objectives.specs import CausalLM
from polyseme.train.optimizer import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def base() -> Recipe:
    """Music Transformer on piano performances, cut at 2,048 events as the paper's (Huang et al. 2018, §4.2).

    The paper gives no length of training; rate and schedule are ours.
    """
    return Recipe(
        name="music-base",
        family="music",
        size="base",
        objective=CausalLM(),
        max_len=2048,
        batch_tokens=65536,
        bin_tokens=16384,
        budget=BudgetSpec(steps=20_000),
        optim=OptimSpec(rate=5e-4, beta2=0.98, eps=1e-8),
        schedule=ScheduleSpec("cosine", warmup=1000, floor=0.1),
        eval_every=1000,
        save_every=1000,
        log_every=50,
    )


def tiny() -> Recipe:
    """Music Transformer at L2 H128: two minutes on a CPU, to try things out."""
    return Recipe(
        name="music-tiny",
        family="music",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0},
        objective=CausalLM(),
        max_len=256,
        batch_tokens=4096,
        bin_tokens=4096,
        budget=BudgetSpec(steps=400),
        optim=OptimSpec(rate=3e-3, beta2=0.98),
        schedule=ScheduleSpec("cosine", warmup=50, floor=0.1),
        eval_every=250,
        save_every=250,
    )
