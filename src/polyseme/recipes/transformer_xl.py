"""Training recipes of Transformer-XL on segments with memory."""

from __future__ import annotations

from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """Transformer-XL base for WikiText-103: 60 parallel streams, segments and memory of 150 tokens, 200,000 steps.

    Dai et al. 2019, §4.1, and the authors' code: Adam with learning rate 2.5e-4, cosine to zero, clipping at 0.25, no
    weight decay, dropout 0.1.
    """
    return Recipe(
        name="transformer_xl-base",
        family="transformer_xl",
        size="base",
        objective=StreamingCausalLM(),
        max_len=150,
        batch_tokens=9000,
        micro_batch_tokens=9000,
        budget=BudgetConfig(steps=200_000),
        optimizer=OptimizerConfig(lr=2.5e-4, eps=1e-8, weight_decay=0.0, max_grad_norm=0.25),
        schedule=ScheduleConfig("cosine", warmup=1),
        eval_every=4000,
        save_every=4000,
        log_every=100,
    )


def tiny() -> Recipe:
    """Transformer-XL with 2 layers of 128, for experiments: minutes on a CPU."""
    return Recipe(
        name="transformer_xl-tiny",
        family="transformer_xl",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "memory_len": 64},
        objective=StreamingCausalLM(),
        max_len=64,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(steps=900),
        optimizer=OptimizerConfig(lr=3e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=100, min_lr_ratio=0.1),
        eval_every=250,
        save_every=250,
    )
