"""The demo's pre-training: a small BERT on the documentation of this machine's Python, in minutes."""

from __future__ import annotations

from polyseme.objectives.specs import MaskedLM
from polyseme.train.optim import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def demo() -> Recipe:
    """A two-layer BERT on Python's documentation: what `./dev demo` trains."""
    return Recipe(
        name="demo",
        family="bert",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "max_len": 128},
        objective=MaskedLM(rate=0.2, unit="word"),
        max_len=64,
        batch_tokens=2048,
        bin_tokens=2048,
        budget=BudgetSpec(minutes=3.0),
        optim=OptimSpec(rate=4e-3, beta2=0.98),
        schedule=ScheduleSpec("linear", warmup=0.1),
        eval_every=500,
        save_every=1000,
    )
