"""Pre-training recipes of ALBERT."""

from __future__ import annotations

from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """ALBERT-base as in the paper: 4,096 × 512 tokens per step, 125,000 steps.

    Lan et al. 2020, §4.1: n-gram masking, sentence order, peak learning rate 0.00176 (LAMB in the paper, AdamW here),
    10 % short inputs. The warm-up of 3,125 steps and weight decay 0.01 are from the authors' code.
    """
    return Recipe(
        name="albert-base",
        family="albert",
        size="base",
        objective=MaskedLMWithSentencePairs(mask_unit="ngram", pair_task="sop"),
        max_len=512,
        batch_tokens=2_097_152,
        micro_batch_tokens=32768,
        budget=BudgetConfig(steps=125_000),
        optimizer=OptimizerConfig(lr=0.00176),
        schedule=ScheduleConfig("linear", warmup=3125),
        compile=True,
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def large() -> Recipe:
    """ALBERT-large as in the paper."""
    return base().replace(name="albert-large", size="large", micro_batch_tokens=16384)


def xlarge() -> Recipe:
    """ALBERT-xlarge as in the paper."""
    return base().replace(name="albert-xlarge", size="xlarge", micro_batch_tokens=8192, gradient_checkpointing=True)


def xxlarge() -> Recipe:
    """ALBERT-xxlarge as in the paper, without dropout (§4.8)."""
    return base().replace(
        name="albert-xxlarge",
        size="xxlarge",
        model={"dropout": 0.0, "attention_dropout": 0.0},
        micro_batch_tokens=8192,
        gradient_checkpointing=True,
    )


def tiny() -> Recipe:
    """ALBERT with 2 layers of 128 and embeddings of 64, for experiments: minutes on a CPU."""
    return Recipe(
        name="albert-tiny",
        family="albert",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "max_len": 128, "init_std": 0.06},
        objective=MaskedLMWithSentencePairs(mask_unit="ngram", pair_task="sop"),
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
