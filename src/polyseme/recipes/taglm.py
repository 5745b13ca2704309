"""The language models of TagLM (Peters et al. 2017): one LSTM over words for each direction, in one folder."""

from __future__ import annotations

from polyseme.objectives.specs import CausalLM
from polyseme.train.optimizer import OptimSpec
from polyseme.train.recipe import BudgetSpec, Recipe
from polyseme.train.schedule import ScheduleSpec


def paper() -> Recipe:
    """LSTM-2048-512 (§3), as its backward one; the forward one of the paper is larger and reads characters.

    An hour of one GPU. A tagger reads them by `finetune --features MODEL --layers last --where between`.
    """
    return Recipe(
        name="taglm",
        family="rnn_lm",
        model={
            "num_layers": 1,
            "dim": 512,
            "hidden_dim": 2048,
            "projection": True,
            "direction": "both",
            "dropout": 0.1,
        },
        objective=CausalLM(direction="both"),
        max_len=128,
        batch_tokens=16384,
        bin_tokens=16384,
        budget=BudgetSpec(minutes=60),
        optim=OptimSpec(rate=2e-3, decay=0.0, clip=10.0),
        schedule=ScheduleSpec("cosine", warmup=1000),
        eval_every=1000,
        save_every=1000,
        log_every=100,
    )


def tiny() -> Recipe:
    """LSTMs of 128 units: two minutes on a CPU, to try things out."""
    return Recipe(
        name="taglm-tiny",
        family="rnn_lm",
        size="tiny",
        model={"direction": "both"},
        objective=CausalLM(direction="both"),
        max_len=64,
        batch_tokens=2048,
        bin_tokens=2048,
        budget=BudgetSpec(steps=300),
        optim=OptimSpec(rate=5e-3, beta2=0.98),
        schedule=ScheduleSpec("cosine", warmup=50, floor=0.1),
        eval_every=150,
        save_every=150,
    )
