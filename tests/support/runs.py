"""Tiny runs, and the comparison of a run that was killed and resumed with one that was not."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from polyseme.families import FAMILIES
from polyseme.recipes import RECIPES
from polyseme.train.checkpoint import load_checkpoint
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from tests.support.cases import supported_args

STEPS = 9


class Killed(BaseException):
    """A simulated kill, which no code under test catches."""


def tiny_recipe(family: str, compile: bool = False) -> Recipe:
    """Return a recipe of a family that takes a second."""
    usual = RECIPES[f"{family}-tiny"]()
    objective = usual.objective
    longest = 32 + 32 * bool(getattr(objective, "bptt_std", 0))  # some segments are longer than most
    model = {
        "num_layers": 1 if compile else 2,  # a compiled layer takes seconds
        "dim": 16,
        "num_heads": 2,
        "max_len": longest,
        "hidden_dim": 24,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    }
    return Recipe(
        name="test",
        family=family,
        model=supported_args(FAMILIES[family], **model, num_buckets=50),
        optimizer=usual.optimizer.replace(words_per_update=100) if usual.optimizer.is_sparse else OptimizerConfig(),
        objective=getattr(objective, "base", objective),  # the one a teacher is not needed for
        max_len=32,
        batch_tokens=512,
        micro_batch_tokens=256,
        budget=BudgetConfig(steps=STEPS),
        compile=compile,
        valid_fraction=0.1,
        eval_every=4,
        eval_tokens=256,
        save_every=2,
        log_every=1,
    )


def checkpoint_tensors(run: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of the last checkpoint: weights, optimizer state, memory."""
    last = load_checkpoint(run / "checkpoints")
    assert last.step == STEPS
    return {f"{file}/{name}": t for file, tensors in last.tensors.items() for name, t in tensors.items()}


def assert_same(first: Path, second: Path) -> None:
    """Assert that two runs have the same checkpoint, model and log."""
    a, b = checkpoint_tensors(first), checkpoint_tensors(second)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a), [n for n in a if not torch.equal(a[n], b[n])]
    models = [load_file(run / "model" / "model.safetensors") for run in (first, second)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    rows = [[json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in (first, second)]
    facts = [[(r["step"], r.get("loss"), r.get("valid")) for r in log] for log in rows]
    assert facts[0] == facts[1]
    assert [r["step"] for r in rows[0] if "loss" in r] == list(range(1, STEPS + 1))
