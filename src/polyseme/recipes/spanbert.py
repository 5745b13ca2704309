"""Pre-training recipes of SpanBERT."""

from __future__ import annotations

from polyseme.objectives.masked_lm import SpanMaskedLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def large() -> Recipe:
    """SpanBERT as in the paper, at the size of BERT-large: 256 × 512 tokens per step, 2.4 million steps.

    Joshi et al. 2020, §4.2: AdamW with learning rate 1e-4, ε 1e-8 and weight decay 0.1, 10,000 warm-up steps, linear
    decay, dropout 0.1; single sequences of up to 512 tokens, dynamic masking.
    """
    return Recipe(
        name="spanbert-large",
        family="spanbert",
        size="large",
        objective=SpanMaskedLM(),
        max_len=512,
        batch_tokens=131072,
        micro_batch_tokens=16384,
        budget=BudgetConfig(steps=2_400_000),
        optimizer=OptimizerConfig(lr=1e-4, eps=1e-8, weight_decay=0.1),
        schedule=ScheduleConfig("linear", warmup=10_000),
        compile=True,
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def base() -> Recipe:
    """SpanBERT at the size of BERT-base, published with the same settings."""
    return large().replace(name="spanbert-base", size="base", micro_batch_tokens=32768)


def tiny() -> Recipe:
    """SpanBERT with 2 layers of 128, for experiments: minutes on a CPU."""
    return Recipe(
        name="spanbert-tiny",
        family="spanbert",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "max_len": 128, "init_std": 0.06},
        objective=SpanMaskedLM(),
        max_len=64,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(minutes=2.0),
        optimizer=OptimizerConfig(lr=3e-3, beta2=0.98),
        schedule=ScheduleConfig("linear", warmup=0.1),
        eval_every=500,
        eval_tokens=32768,
        save_every=1000,
    )
