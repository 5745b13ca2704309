"""The demo's pre-training: a small BERT on the documentation of this machine's Python, in minutes."""

from __future__ import annotations

from polyseme.objectives.specs import MaskedLM
from polyseme.train.optimizer import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def demo() -> Recipe:
    """A two-layer BERT on Python's documentation: what `./dev demo` trains.

    What differs from BERT is for the sake of minutes on a CPU: masked words alone, no dropout, a high rate, and three
    choices that docs/log.md has the runs behind: a wider start (deviation 0.06), many words masked (40 %), short
    sequences.
    """
    return Recipe(
        name="demo",
        family="bert",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "max_len": 128, "init_std": 0.06},
        objective=MaskedLM(rate=0.4, unit="word"),
        max_len=48,
        batch_tokens=2048,
        bin_tokens=2048,
        budget=BudgetSpec(minutes=4.0),
        optim=OptimSpec(rate=3e-3, beta2=0.98),
        schedule=ScheduleSpec("linear", warmup=0.1),
        eval_every=250,
        eval_tokens=32768,
        save_every=1000,
    )
