"""GPT's pre-training, and a small run of the same kind."""

from __future__ import annotations

from polyseme.objectives.causal_lm import CausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def base() -> Recipe:
    """GPT as in the paper: 64 × 512 tokens a step, 100 epochs of BooksCorpus.

    The corpus is made with the published vocabulary, which has no marks for where texts begin and end.
    Radford et al. 2018, §4.1: Adam at 2.5e-4, warm-up over 2,000 steps, cosine to zero, decay 0.01 of matrices,
    dropout 0.1. BooksCorpus has 800 M words (Devlin et al. 2019, §3.1), about a billion tokens: hence the budget.
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
    """GPT at L2 H128: two minutes on two CPU cores, to try things out.

    What differs is for the sake of these minutes: no dropout, a high rate, short sequences, and a wider start
    (deviation 0.06). At the paper's 0.02 so small a post-norm model stays with the frequencies of words all the while.
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
