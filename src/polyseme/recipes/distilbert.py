"""DistilBERT's distillation, and a small run of the same model."""

from __future__ import annotations

from polyseme.objectives.distillation import Distilled
from polyseme.objectives.specs import MaskedLM
from polyseme.recipes import roberta
from polyseme.train.optimizer import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def base() -> Recipe:
    """DistilBERT from BERT-base, as in the paper: soft targets, masked words and states of its teacher; new masks.

    Sanh et al. 2019, §3: large batches, no next sentence. The rest is from the released code: Adam at 5e-4 with β₂ 0.98
    and ε 1e-6, no decay, warm-up over 5 %, clipping at 5, three passes over the 3.3 billion words BERT had.
    """
    return Recipe(
        name="distilbert-base",
        family="distilbert",
        size="base",
        objective=Distilled(MaskedLM()),
        max_len=512,
        batch_tokens=4096 * 512,
        bin_tokens=32768,
        budget=BudgetSpec(tokens=13_000_000_000),
        optim=OptimSpec(rate=5e-4, beta2=0.98, decay=0.0, clip=5.0),
        schedule=ScheduleSpec("linear", warmup=0.05),
        compile=True,
        log_every=10,
    )


def tiny() -> Recipe:
    """DistilBERT at L2 H128: two minutes on two CPU cores, with a teacher (`distil`) or without (`pretrain`)."""
    return roberta.tiny().replace(name="distilbert-tiny", family="distilbert", objective=MaskedLM(rate=0.4))
