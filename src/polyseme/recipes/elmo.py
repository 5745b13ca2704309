"""Pre-training recipes of ELMo, a bidirectional language model over the characters of words."""

from __future__ import annotations

from polyseme.objectives.causal_lm import CausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def original() -> Recipe:
    """ELMo as published, 93.6 M parameters: 128 × 20 tokens per step on three GPUs, ten epochs of 1B Word.

    Peters et al. 2018, §3.4, and the published program, which uses Adagrad with learning rate 0.2 and clipping at 10;
    here AdamW. Ten epochs are 1,000,000 steps.
    """
    return Recipe(
        name="elmo-original",
        family="elmo",
        size="original",
        objective=CausalLM(direction="both"),
        max_len=128,
        batch_tokens=7680,
        micro_batch_tokens=7680,
        budget=BudgetConfig(steps=1_000_000),
        optimizer=OptimizerConfig(lr=5e-4, weight_decay=0.0, max_grad_norm=10.0),
        schedule=ScheduleConfig("cosine", warmup=2000),
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def small() -> Recipe:
    """ELMo-small, 13.6 M parameters: an hour on one GPU."""
    return original().replace(name="elmo-small", size="small", batch_tokens=16384, micro_batch_tokens=16384,
                              budget=BudgetConfig(minutes=60), optimizer=OptimizerConfig(lr=2e-3, weight_decay=0.0,
                              max_grad_norm=10.0), eval_every=1000, save_every=1000)  # fmt: skip


def tiny() -> Recipe:
    """ELMo with states of 128, for experiments on a CPU."""
    return Recipe(
        name="elmo-tiny",
        family="elmo",
        size="tiny",
        objective=CausalLM(direction="both"),
        max_len=64,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(steps=900),
        optimizer=OptimizerConfig(lr=5e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=50, min_lr_ratio=0.1),
        eval_every=250,
        save_every=250,
    )
