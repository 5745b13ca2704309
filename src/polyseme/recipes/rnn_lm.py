"""Training recipes of recurrent language models, by truncated back-propagation through time."""

from __future__ import annotations

from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def medium() -> Recipe:
    """LSTM with 2 layers of 650 for the Penn Treebank: 20 parallel streams, segments of 35 tokens, clipping at 5.

    Zaremba et al. 2014, §4.1; their 39 epochs of a million words are 50,000 steps. The paper uses SGD; here AdamW.
    """
    return Recipe(
        name="rnn_lm-medium",
        family="rnn_lm",
        size="medium",
        objective=StreamingCausalLM(),
        max_len=35,
        batch_tokens=700,
        micro_batch_tokens=700,
        budget=BudgetConfig(steps=50_000),
        optimizer=OptimizerConfig(lr=1e-3, eps=1e-8, weight_decay=0.0, max_grad_norm=5.0),
        schedule=ScheduleConfig("cosine", warmup=100),
        eval_every=2000,
        save_every=2000,
        log_every=100,
    )


def tiny() -> Recipe:
    """LSTM of 128 units, for experiments: two minutes on a CPU. `model.cell` may also be gru or rnn."""
    return Recipe(
        name="rnn_lm-tiny",
        family="rnn_lm",
        size="tiny",
        objective=StreamingCausalLM(),
        max_len=64,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(steps=500),
        optimizer=OptimizerConfig(lr=5e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=50, min_lr_ratio=0.1),
        eval_every=250,
        save_every=250,
    )
