"""Tiny runs, and the comparison of a run that was killed and resumed with one that was not."""

import itertools
import json
import math
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.families import FAMILIES
from polyseme.recipes import RECIPES
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import pretrain as pretraining
from polyseme.train.checkpoint import Checkpoint, load_checkpoint
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import BudgetConfig, Recipe
from tests.support.cases import supported_args
from tests.support.text import documents

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
    samples = [(run / "samples.jsonl").read_text() for run in (first, second) if (run / "samples.jsonl").exists()]
    assert len(set(samples)) <= 1 and len(samples) != 1
    assert [r["step"] for r in rows[0] if "loss" in r] == list(range(1, STEPS + 1))


def prepare_text(folder: Path, kind: str = "wordpiece", num_documents: int = 40) -> Path:
    """Prepare a small corpus of generated documents."""
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents(num_documents)))
    tokenizer = Tokenizer.train(kind, iter([text.read_text()]), 120)
    prepare([text], tokenizer, folder / "corpus", PrepareConfig(split="blank"))
    return folder / "corpus"


def pretrain_killed(recipe: Recipe, corpus: Path, out: Path, kill_after: int) -> None:
    """Train by a recipe, be killed after the checkpoint of a step, and resume to the end."""
    save = pretraining.save_checkpoint

    def save_and_die(folder: Path, checkpoint: Checkpoint, keep: int) -> None:
        save(folder, checkpoint, keep)
        if checkpoint.step == kill_after:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(pretraining, "save_checkpoint", save_and_die)
        pretraining.pretrain(recipe, corpus, out)
    pretraining.pretrain(recipe, corpus, out, resume=True)


# ------------------------------------------------------------------------------------------- kills of fine-tuning


def run_with_kills(call: Callable[[], object], growth: int) -> int:
    """Run `call` in forked processes, each killed before its n-th change of a file, until one ends; count the kills.

    Renames, and removals of files and folders, are the moments at which a run folder changes. n grows from one process
    to the next, so that even a long series of changes, as at the end of a run, ends.
    """
    num_kills = 0
    while _run_killed(call, 3 + growth * num_kills):
        num_kills += 1
    return num_kills


def _run_killed(call: Callable[[], object], num_changes: int) -> bool:
    """Run `call` in a fork that is killed before its n-th change; return whether it was."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            remaining = itertools.count(num_changes, -1)

            def kill_before(change: Callable[..., object]) -> Callable[..., object]:
                def changed(*args: object, **kwargs: object) -> object:
                    is_lock = str(args[0]).endswith(".lock")  # released when the run has ended
                    if not is_lock and next(remaining) <= 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return change(*args, **kwargs)

                return changed

            for module, name in ((os, "replace"), (os, "rename"), (os, "unlink"), (os, "rmdir"), (os, "remove")):
                setattr(module, name, kill_before(getattr(module, name)))
            call()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the run failed; see its traceback"
    return os.WIFSIGNALED(status)


def folder_bytes(folder: Path) -> dict[str, bytes | None]:
    """Return the contents of every file below a folder, and None for every folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def freeze_times(monkeypatch: pytest.MonkeyPatch, save_seconds: float = -1.0) -> None:
    """Make the measured times of fine-tuning runs constant, and save a checkpoint after every step."""
    monkeypatch.setattr("polyseme.finetuning.training.time", SimpleNamespace(perf_counter=lambda: 0.0))
    clock = itertools.count()
    monkeypatch.setattr("polyseme.finetuning.results.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr("polyseme.finetuning.results.model_latency_ms", lambda *args: 1.0)
    monkeypatch.setattr("polyseme.finetuning.runner.SAVE_SECONDS", save_seconds)
    monkeypatch.setattr("polyseme.finetuning.runner.MAX_SAVE_SHARE", math.inf)
