"""Pre-training recipe of the demo: a small BERT on the documentation of the installed Python."""

from __future__ import annotations

from polyseme.objectives.masked_lm import MaskedLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def demo() -> Recipe:
    """A two-layer BERT on Python's documentation, trained by `./dev demo`.

    To train in minutes on a CPU, it differs from BERT: masked LM only, no dropout, a high learning rate, and, with
    measurements in docs/log.md, a larger initial standard deviation (0.06), 40 % masked words and short sequences.
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
