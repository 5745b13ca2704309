"""Tiny studies: two arms of 2 layers of 32 by default."""

from __future__ import annotations

from typing import Any

TINY = {"model.num_layers": 2, "model.dim": 32, "model.num_heads": 2, "max_len": 32}
TINY |= {"batch_tokens": 512, "micro_batch_tokens": 256, "valid_fraction": 0.1}
FINETUNE = {"steps": 2, "batch_size": 4}


def arm(name: str, recipe: str = "bert-tiny", **fields: Any) -> dict[str, Any]:
    """Return an arm as JSON."""
    return {"name": name, "recipe": recipe, **fields}


def study_json(*arms: dict[str, Any], metrics: tuple[str, ...] = ("valid_loss",), **fields: Any) -> dict[str, Any]:
    """Return a study as the JSON that a user writes."""
    arms = arms or (arm("nsp"), arm("mlm", overrides={"objective": "MaskedLM"}))
    return {"name": "tiny", "title": "A tiny study", "source": "none", "arms": list(arms), "metrics": list(metrics),
            "questions": [], "lr_factors": [1.0], **fields}  # fmt: skip
