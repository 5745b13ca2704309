"""DistilBERT's distillation, and a small run of the same model."""

from __future__ import annotations

from polyseme.objectives.specs import MaskedLM
from polyseme.recipes import roberta
from polyseme.train.recipe import Recipe


def tiny() -> Recipe:
    """DistilBERT at L2 H128: two minutes on two CPU cores, with a teacher (`distil`) or without (`pretrain`)."""
    return roberta.tiny().replace(name="distilbert-tiny", family="distilbert", objective=MaskedLM(rate=0.4))
