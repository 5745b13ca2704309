"""The demo's pre-training: a small BERT on the documentation of this machine's Python, in minutes."""

from __future__ import annotations

from polyseme.objectives.masked_lm import MaskedLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


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
        objective=MaskedLM(mask_prob=0.4, mask_unit="word"),
        max_len=48,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(minutes=4.0),
        optimizer=OptimizerConfig(lr=3e-3, beta2=0.98),
        schedule=ScheduleConfig("linear", warmup=0.1),
        eval_every=250,
        eval_tokens=32768,
        save_every=1000,
    )
