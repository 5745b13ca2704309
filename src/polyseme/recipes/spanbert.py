"""SpanBERT's pre-training, and a small run of the same kind."""

from __future__ import annotations

from polyseme.objectives.specs import MaskedSpans
from polyseme.train.optimizer import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def large() -> Recipe:
    """SpanBERT as in the paper (BERT-large): 256 × 512 tokens a step, 2.4 million steps.

    Joshi et al. 2020, §4.2: AdamW at 1e-4 with ε 1e-8 and decay 0.1, warm-up over 10,000 steps, linear decay, dropout
    0.1; single sequences of up to 512 tokens, new masks in each epoch.
    """
    return Recipe(
        name="spanbert-large",
        family="spanbert",
        size="large",
        objective=MaskedSpans(),
        max_len=512,
        batch_tokens=131072,
        bin_tokens=16384,
        budget=BudgetSpec(steps=2_400_000),
        optim=OptimSpec(rate=1e-4, eps=1e-8, decay=0.1),
        schedule=ScheduleSpec("linear", warmup=10_000),
        compile=True,
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def base() -> Recipe:
    """SpanBERT at BERT-base's size, which was published with the same settings."""
    return large().replace(name="spanbert-base", size="base", bin_tokens=32768)


def tiny() -> Recipe:
    """SpanBERT at L2 H128: minutes on a CPU, to try things out."""
    return Recipe(
        name="spanbert-tiny",
        family="spanbert",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "max_len": 128, "init_std": 0.06},
        objective=MaskedSpans(),
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
