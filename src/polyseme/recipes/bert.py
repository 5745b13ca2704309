"""Pre-training recipes of BERT."""

from __future__ import annotations

from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """BERT-base as in the paper: 256 × 512 tokens per step, 1,000,000 steps.

    Devlin et al. 2019, appendix A.2: Adam with learning rate 1e-4, β₂ 0.999, weight decay 0.01, 10,000 warm-up steps,
    linear decay, dropout 0.1. The paper trains 90 % of the steps with length 128; here all have length 512.
    """
    return Recipe(
        name="bert-base",
        family="bert",
        size="base",
        objective=MaskedLMWithSentencePairs(num_static_masks=10),
        max_len=512,
        batch_tokens=131072,
        micro_batch_tokens=32768,
        budget=BudgetConfig(steps=1_000_000),
        optimizer=OptimizerConfig(lr=1e-4),
        schedule=ScheduleConfig("linear", warmup=10_000),
        compile=True,
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def large() -> Recipe:
    """BERT-large as in the paper."""
    return base().replace(name="bert-large", size="large", micro_batch_tokens=16384)


def small() -> Recipe:
    """BERT-small (4 layers of 512) with whole-word masked LM only, for one GPU."""
    return Recipe(
        name="bert-small",
        family="bert",
        size="small",
        objective=MaskedLM(mask_unit="word"),
        max_len=128,
        batch_tokens=131072,
        micro_batch_tokens=65536,
        budget=BudgetConfig(steps=20_000),
        optimizer=OptimizerConfig(lr=1e-3, beta2=0.98),
        schedule=ScheduleConfig("linear", warmup=1000),
    )


def tiny() -> Recipe:
    """BERT-tiny (2 layers of 128), for experiments: minutes on a CPU."""
    return Recipe(
        name="bert-tiny",
        family="bert",
        size="tiny",
        objective=MaskedLMWithSentencePairs(),
        max_len=128,
        batch_tokens=8192,
        micro_batch_tokens=8192,
        budget=BudgetConfig(steps=2000),
        optimizer=OptimizerConfig(lr=2e-3, beta2=0.98),
        eval_every=250,
        save_every=250,
    )
