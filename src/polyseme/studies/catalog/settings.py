"""Settings that the arms of all studies share, so that they differ only in what a study is about.

They are those that train a small model in a minute or two on one GPU (docs/results/modern.md, speedrun.md): no dropout,
Muon, 32,768 tokens per step, short sequences. The learning rate is twice that of the first studies, whose searches all
chose the largest of their rates, 0.002. Arms say in their `note` where they differ.
"""

from typing import Any

from polyseme.objectives.base import Objective

SHORT_RUN: dict[str, Any] = {
    "max_len": 128,
    "batch_tokens": 32_768,
    "micro_batch_tokens": 32_768,
    "compile": True,
    "optimizer": {
        "name": "muon",
        "lr": 2e-3,
        "beta1": 0.9,
        "beta2": 0.98,
        "eps": 1e-6,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
    },
    "schedule": {"shape": "linear", "warmup": 0.06, "min_lr_ratio": 0.0},
}
# 12.6 M parameters outside embeddings; the size is spelled out, so that the family's published sizes do not matter
SMALL = {"size": "", "model.num_layers": 4, "model.dim": 512, "model.num_heads": 8}
NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0}
SMALL_TRANSFORMER = {**SHORT_RUN, **SMALL, **NO_DROPOUT}
GLUE = ("cola", "sst-2", "mrpc", "sts-b")
# To run any study on a CPU in seconds: settings for all arms, of which `tiny_overrides` selects those of a study.
TINY: dict[str, Any] = {
    "model.num_layers": 4,
    "model.dim": 32,
    "model.num_heads": 2,
    "model.ffn_dim": 128,
    "model.hidden_dim": 48,
    "model.num_decoder_layers": 2,
    "model.window": 3,
    "model.num_buckets": 32,
    "max_len": 32,
    "batch_tokens": 1024,
    "micro_batch_tokens": 128,  # the hybrid study needs eight of them
}


def train_with(objective: Objective, **settings: Any) -> dict[str, Any]:
    """Return the override of an objective, and others with it."""
    return {"objective": objective.to_json(), **settings}
