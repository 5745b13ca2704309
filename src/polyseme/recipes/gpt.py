"""Pre-training recipes of GPT."""

from __future__ import annotations

from polyseme.objectives.causal_lm import CausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """GPT as in the paper: 64 × 512 tokens per step, 100 epochs of BooksCorpus.

    The corpus uses the published vocabulary, which has no tokens for the beginning and end of a text.
    Radford et al. 2018, §4.1: Adam with learning rate 2.5e-4, 2,000 warm-up steps, cosine to zero, weight decay 0.01 of
    matrices, dropout 0.1. BooksCorpus has 800 M words (Devlin et al. 2019, §3.1), about a billion tokens.
    """
    return Recipe(
        name="gpt-base",
        family="gpt",
        size="base",
        objective=CausalLM(add_bos_eos=False),
        max_len=512,
        batch_tokens=32768,
        micro_batch_tokens=32768,
        budget=BudgetConfig(tokens=100_000_000_000),
        optimizer=OptimizerConfig(lr=2.5e-4, eps=1e-8),
        schedule=ScheduleConfig("cosine", warmup=2000),
        compile=True,
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def tiny() -> Recipe:
    """GPT with 2 layers of 128, for experiments: two minutes on two CPU cores.

    To train that fast, it has no dropout, a high learning rate, short sequences, and an initial standard deviation of
    0.06. With the paper's 0.02, a post-norm model of this size learns only word frequencies in that time.
    """
    return Recipe(
        name="gpt-tiny",
        family="gpt",
        size="tiny",
        model={"dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.06},
        objective=CausalLM(),
        max_len=64,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(steps=600),
        optimizer=OptimizerConfig(lr=3e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=0.1),
        eval_every=250,
        save_every=500,
    )
