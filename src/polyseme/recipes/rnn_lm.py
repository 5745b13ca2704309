"""Recurrent language models by truncated back-propagation through time, small and as in Zaremba et al. (2014)."""

from __future__ import annotations

from polyseme.objectives.streaming_lm import SegmentLM
from polyseme.train.optimizer import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def medium() -> Recipe:
    """LSTM of 2 × 650 as for the Penn Treebank: 20 lanes, segments of 35 tokens, gradients clipped at 5.

    Zaremba et al. 2014, §4.1, whose 39 epochs of its million words are 50,000 steps. It falls by SGD; here AdamW.
    """
    return Recipe(
        name="rnn_lm-medium",
        family="rnn_lm",
        size="medium",
        objective=SegmentLM(),
        max_len=35,
        batch_tokens=700,
        bin_tokens=700,
        budget=BudgetSpec(steps=50_000),
        optim=OptimSpec(rate=1e-3, eps=1e-8, decay=0.0, clip=5.0),
        schedule=ScheduleSpec("cosine", warmup=100),
        eval_every=2000,
        save_every=2000,
        log_every=100,
    )


def tiny() -> Recipe:
    """LSTM of 128 units: two minutes on a CPU, to try things out. `--set model.cell=gru` or `rnn` for the others."""
    return Recipe(
        name="rnn_lm-tiny",
        family="rnn_lm",
        size="tiny",
        objective=SegmentLM(),
        max_len=64,
        batch_tokens=2048,
        bin_tokens=2048,
        budget=BudgetSpec(steps=500),
        optim=OptimSpec(rate=5e-3, beta2=0.98),
        schedule=ScheduleSpec("cosine", warmup=50, floor=0.1),
        eval_every=250,
        save_every=250,
    )
