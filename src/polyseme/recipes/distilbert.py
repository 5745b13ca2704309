"""DistilBERT's distillation, and a small run of the same model."""

from __future__ import annotations

from polyseme.objectives.distillation import Distillation
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.recipes import roberta
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """DistilBERT from BERT-base, as in the paper: soft targets, masked words and states of its teacher; new masks.

    Sanh et al. 2019, §3: large batches, no next sentence. The rest is from the released code: Adam at 5e-4 with β₂ 0.98
    and ε 1e-6, no decay, warm-up over 5 %, clipping at 5, three passes over the 3.3 billion words BERT had.
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
    """DistilBERT at L2 H128: two minutes on two CPU cores, with a teacher (`distil`) or without (`pretrain`)."""
    return roberta.tiny().replace(name="distilbert-tiny", family="distilbert", objective=MaskedLM(mask_prob=0.4))
