"""Checkpoints that survive a crash at any moment.

A checkpoint is written to a temporary folder, synced, renamed, verified and then named in LATEST; only then are old
ones removed. The newest one whose hashes match is loaded; damaged ones are reported and never removed. All files are
safetensors or JSON.
"""

import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from polyseme.errors import DataError, ModelError
from polyseme.io.atomic import (
    atomic_directory,
    remove_directory,
    remove_leftovers,
    sha256,
    write_tensors,
    write_text,
)
from polyseme.io.json import read_json, write_json
from polyseme.weights.finite import check_finite

logger = logging.getLogger(__name__)
STEP_PATTERN = re.compile(r"step-(\d+)")
_intact_checkpoints: set[tuple[tuple[str, int, int], ...]] = set()  # files of those that this process verified


@dataclass(frozen=True)
class Checkpoint:
    """The tensors and plain values of a run after a step."""

    step: int
    tensors: dict[str, dict[str, Tensor]]  # by file name without suffix
    state: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep_checkpoints: int) -> Path:
    """Write the folder `step-N`, then remove all but the newest `keep_checkpoints` that are intact.

    A damaged checkpoint is never removed; one of the same step is renamed.
    """
    target = folder / f"step-{checkpoint.step}"
    if target.exists() and find_damage(target):
        os.rename(target, _unused_name(target.with_name(f"{target.name}.damaged")))
    with atomic_directory(target) as temporary:
        hashes = {}
        for name, tensors in checkpoint.tensors.items():
            path = temporary / f"{name}.safetensors"
            write_tensors(path, tensors)
            hashes[path.name] = sha256(path)
        manifest = {"step": checkpoint.step, "sha256": hashes, "state": checkpoint.state}
        write_json(temporary / "state.json", manifest | {"hash": _hash(manifest)})
    if damage := find_damage(target):
        raise ModelError(f"{target} was written but does not read back ({damage}): is the disk failing?")
    publish_checkpoint(folder, checkpoint.step, keep_checkpoints)
    return target


def publish_checkpoint(folder: Path, step: int, keep_checkpoints: int) -> None:
    """Name an intact checkpoint in LATEST, and remove all but `keep_checkpoints` intact ones up to it.

    A resumed run repeats this for its checkpoint, because a kill may have come before.
    """
    if not (folder / "LATEST").is_file() or (folder / "LATEST").read_text("utf-8", "replace") != f"step-{step}\n":
        write_text(folder / "LATEST", f"step-{step}\n")
    older = [path for path in list_checkpoints(folder) if _step_number(path) < step]
    for old in [path for path in older if _is_intact(path)][keep_checkpoints - 1 :]:
        remove_directory(old)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None if there has never been one.

    Logs a warning for each newer one that is damaged or missing; raises `ModelError` if there are some but none is
    intact.
    """
    if folder.is_dir():
        remove_leftovers(folder)
    for path in _skip_damaged(folder):
        manifest = read_json(path / "state.json")
        try:
            tensors = {Path(name).stem: load_file(path / name) for name in manifest["sha256"]}
        except SafetensorError as error:
            raise ModelError(f"{path} was not written by Polyseme: {error}") from None
        check_finite(tensors.get("model", {}), path)
        return Checkpoint(manifest["step"], tensors, manifest["state"])
    return None


def average_checkpoints(model: torch.nn.Module, folder: Path, num_averaged: int) -> list[int]:
    """Set the weights of a model to the mean of the newest checkpoints (Vaswani et al. 2017, §6.1); return their steps.

    With `num_averaged` below 2, the model is unchanged. Damaged checkpoints are skipped as in `load_checkpoint`.
    """
    if num_averaged < 2:
        return []
    sums: dict[str, Tensor] = {}
    steps = []
    for path in itertools.islice(_skip_damaged(folder), num_averaged):
        steps.append(_step_number(path))
        for name, tensor in load_file(path / "model.safetensors").items():
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    if sums:
        model.load_state_dict({name: t / len(steps) for name, t in sums.items()})
    return steps


def find_damage(path: Path) -> str:
    """Describe what is wrong with a checkpoint; empty if it is intact."""
    try:
        manifest = read_json(path / "state.json")
        if manifest.pop("hash") != _hash(manifest):
            return "state.json does not match its hash"
        if manifest["step"] != _step_number(path):
            return f"state.json is that of step {manifest['step']}"
        for name, expected in manifest["sha256"].items():
            if sha256(path / name) != expected:
                return f"{name} does not match its hash"
    except DataError as error:
        return str(error).removeprefix(f"{path}/")
    except OSError as error:
        return f"{Path(error.filename or path).name}: {error.strerror or error}"
    except (KeyError, TypeError, ValueError, AttributeError):
        return "state.json is not that of a checkpoint"
    _intact_checkpoints.add(_file_times(path))
    return ""


def _skip_damaged(folder: Path) -> Iterator[Path]:
    """Yield the intact checkpoints, newest first; log a warning for each other one, raise if all are damaged."""
    damages, num_intact = list[str](), 0
    latest = (folder / "LATEST").read_text(errors="replace").strip()[:40] if (folder / "LATEST").is_file() else ""
    if latest and not (STEP_PATTERN.fullmatch(latest) and (folder / latest).is_dir()):
        damages.append(f"LATEST names {latest!r}, which is missing")
        logger.warning("%s: %s", folder, damages[-1])
    for path in list_checkpoints(folder):
        if damage := find_damage(path):
            damages.append(f"{path.name}: {damage}")
            logger.warning("skipping the checkpoint %s, which is damaged: %s", path, damage)
        else:
            num_intact += 1
            yield path
    if damages and not num_intact:
        raise ModelError(
            f"no checkpoint in {folder} is intact ({'; '.join(damages)}): restore one, or start in another folder"
        )


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    paths = [p for p in folder.glob("step-*") if STEP_PATTERN.fullmatch(p.name)]
    return sorted(paths, key=_step_number, reverse=True)


def _step_number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _hash(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _is_intact(path: Path) -> bool:
    """Return whether a checkpoint is intact, by what this process has verified before if no file has changed since."""
    return _file_times(path) in _intact_checkpoints or not find_damage(path)


def _file_times(path: Path) -> tuple[tuple[str, int, int], ...]:
    files = ((file.name, file.stat()) for file in sorted(path.iterdir()))
    return tuple((name, facts.st_ino, facts.st_mtime_ns) for name, facts in files)


def _unused_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}{number or ''}") for number in itertools.count())
    return next(name for name in names if not name.exists())
