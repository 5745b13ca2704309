"""Pre-training recipes of RoBERTa."""

from __future__ import annotations

from polyseme.objectives.masked_lm import MaskedLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """RoBERTa-base as in the paper: 8,192 × 512 tokens per step, 500,000 steps, full sentences, dynamic masking.

    Liu et al. 2019, table 9: Adam with learning rate 6e-4, β₂ 0.98 and ε 1e-6, weight decay 0.01, 24,000 warm-up steps,
    linear decay, dropout 0.1, no clipping.
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
    """RoBERTa-large as in the paper: like base, with learning rate 4e-4 and 30,000 warm-up steps."""
    return base().replace(
        name="roberta-large",
        size="large",
        micro_batch_tokens=16384,
        optimizer=OptimizerConfig(lr=4e-4, beta2=0.98, max_grad_norm=0.0),
        schedule=ScheduleConfig("linear", warmup=30_000),
    )


def tiny() -> Recipe:
    """RoBERTa with 2 layers of 128, for experiments: two minutes on two CPU cores.

    To train that fast, it differs as in the demo: no dropout, a high learning rate, a larger initial standard
    deviation, more masked tokens, short sequences, small batches.
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
