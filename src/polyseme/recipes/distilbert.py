"""Distillation recipes of DistilBERT."""

from __future__ import annotations

from polyseme.objectives.distillation import Distillation
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.recipes import roberta
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """DistilBERT from BERT-base as in the paper: soft targets, masked LM and cosine loss, dynamic masking.

    Sanh et al. 2019, §3: large batches, no next-sentence prediction. The rest is from the released code: Adam with
    learning rate 5e-4, β₂ 0.98 and ε 1e-6, no weight decay, 5 % warm-up, clipping at 5, three epochs of BERT's
    3.3 billion words.
    """
    return Recipe(
        name="distilbert-base",
        family="distilbert",
        size="base",
        objective=Distillation(MaskedLM()),
        max_len=512,
        batch_tokens=4096 * 512,
        micro_batch_tokens=32768,
        budget=BudgetConfig(tokens=13_000_000_000),
        optimizer=OptimizerConfig(lr=5e-4, beta2=0.98, weight_decay=0.0, max_grad_norm=5.0),
        schedule=ScheduleConfig("linear", warmup=0.05),
        compile=True,
        log_every=10,
    )


def tiny() -> Recipe:
    """DistilBERT with 2 layers of 128, with or without a teacher: two minutes on two CPU cores."""
    return roberta.tiny().replace(name="distilbert-tiny", family="distilbert", objective=MaskedLM(mask_prob=0.4))
