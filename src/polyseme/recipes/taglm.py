"""Training recipes of TagLM's language models (Peters et al. 2017): a forward and a backward LSTM over words."""

from __future__ import annotations

from polyseme.objectives.causal_lm import CausalLM
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig


def paper() -> Recipe:
    """LSTM-2048-512 (§3) in both directions; the paper's forward model is larger and reads characters.

    An hour on one GPU. A tagger uses the last layer as features, joined between its first two layers.
    """
    return Recipe(
        name="taglm",
        family="rnn_lm",
        model={
            "num_layers": 1,
            "dim": 512,
            "hidden_dim": 2048,
            "has_projection": True,
            "direction": "both",
            "dropout": 0.1,
        },
        objective=CausalLM(direction="both"),
        max_len=128,
        batch_tokens=16384,
        micro_batch_tokens=16384,
        budget=BudgetConfig(minutes=60),
        optimizer=OptimizerConfig(lr=2e-3, weight_decay=0.0, max_grad_norm=10.0),
        schedule=ScheduleConfig("cosine", warmup=1000),
        eval_every=1000,
        save_every=1000,
        log_every=100,
    )


def tiny() -> Recipe:
    """LSTMs of 128 units, for experiments: two minutes on a CPU."""
    return Recipe(
        name="taglm-tiny",
        family="rnn_lm",
        size="tiny",
        model={"direction": "both"},
        objective=CausalLM(direction="both"),
        max_len=64,
        batch_tokens=2048,
        micro_batch_tokens=2048,
        budget=BudgetConfig(steps=300),
        optimizer=OptimizerConfig(lr=5e-3, beta2=0.98),
        schedule=ScheduleConfig("cosine", warmup=50, min_lr_ratio=0.1),
        eval_every=150,
        save_every=150,
    )
