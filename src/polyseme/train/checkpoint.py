"""Checkpoints that survive a crash at any moment.

A checkpoint is written to a temporary folder, synced, renamed, verified and then named in LATEST; only then are old
ones removed. The newest one whose hashes match is loaded. All files are safetensors or JSON.
"""

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from polyseme.errors import ModelError, PolysemeError
from polyseme.io.atomic import atomic_directory, sha256, write_tensors, write_text
from polyseme.io.json import read_json, write_json

STEP_PATTERN = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """The tensors and plain values of a run after a step."""

    step: int
    tensors: dict[str, dict[str, Tensor]]  # by file name without suffix
    state: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep_checkpoints: int) -> Path:
    """Write the folder `step-N`, then remove all but the newest `keep_checkpoints`."""
    target = folder / f"step-{checkpoint.step}"
    with atomic_directory(target) as temporary:
        hashes = {}
        for name, tensors in checkpoint.tensors.items():
            path = temporary / f"{name}.safetensors"
            write_tensors(path, tensors)
            hashes[path.name] = sha256(path)
        manifest = {"step": checkpoint.step, "sha256": hashes, "state": checkpoint.state}
        write_json(temporary / "state.json", manifest | {"hash": _hash(manifest)})
    if not _is_valid(target):
        raise ModelError(f"{target} was written but does not read back: is the disk failing?")
    write_text(folder / "LATEST", target.name + "\n")
    older_checkpoints = [path for path in _list_checkpoints(folder) if _step_number(path) < checkpoint.step]
    for old in older_checkpoints[keep_checkpoints - 1 :]:
        shutil.rmtree(old)
    return target


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest valid checkpoint, or None."""
    for path in _list_checkpoints(folder):
        if _is_valid(path):
            manifest = read_json(path / "state.json")
            tensors = {Path(name).stem: load_file(path / name) for name in manifest["sha256"]}
            return Checkpoint(manifest["step"], tensors, manifest["state"])
    return None


def average_checkpoints(model: torch.nn.Module, folder: Path, num_averaged: int) -> list[int]:
    """Set the weights of a model to the mean of the newest checkpoints (Vaswani et al. 2017, §6.1); return their steps.

    With `num_averaged` below 2, the model is unchanged.
    """
    paths = [path for path in _list_checkpoints(folder) if _is_valid(path)][:num_averaged] if num_averaged > 1 else []
    sums: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in load_file(path / "model.safetensors").items():
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    if sums:
        model.load_state_dict({name: t / len(paths) for name, t in sums.items()})
    return [_step_number(path) for path in paths]


def _list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    paths = [p for p in folder.glob("step-*") if STEP_PATTERN.fullmatch(p.name)]
    return sorted(paths, key=_step_number, reverse=True)


def _step_number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _hash(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _is_valid(path: Path) -> bool:
    try:
        manifest = read_json(path / "state.json")
        if manifest.pop("hash") != _hash(manifest):
            return False
        return all(sha256(path / name) == expected for name, expected in manifest["sha256"].items())
    except (PolysemeError, OSError, KeyError, AttributeError):
        return False
