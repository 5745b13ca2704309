"""Pre-training recipes of small ModernBERT models, for one GPU or a CPU."""

from __future__ import annotations

from polyseme.objectives.masked_lm import MaskedLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def small() -> Recipe:
    """ModernBERT at the size of BERT-small (4 layers of 512), for one GPU.

    Warner et al. 2024, §2.2.2: 30 % masked tokens, no sentence pairs, no dropout. Learning rate, weight decay and
    schedule are those of bert-small, for comparison.
    """
    return Recipe(
        name="modernbert-small",
        family="modernbert",
        size="small",
        objective=MaskedLM(mask_prob=0.3),
        max_len=128,
        batch_tokens=131072,
        micro_batch_tokens=65536,
        budget=BudgetConfig(steps=20_000),
        optimizer=OptimizerConfig(lr=1e-3, beta2=0.98),
        schedule=ScheduleConfig("linear", warmup=1000),
        compile=True,
    )


def tiny() -> Recipe:
    """ModernBERT with 2 layers of 128, for experiments: minutes on a CPU."""
    return Recipe(
        name="modernbert-tiny",
        family="modernbert",
        size="tiny",
        objective=MaskedLM(mask_prob=0.3),
        max_len=128,
        batch_tokens=8192,
        micro_batch_tokens=8192,
        budget=BudgetConfig(steps=2000),
        optimizer=OptimizerConfig(lr=2e-3, beta2=0.98),
        eval_every=250,
        save_every=250,
    )
