"""Checkpoints that survive a crash at any moment.

Written to a temporary folder, synced, renamed, verified, and only then named in LATEST; only then are old ones removed.
The loader walks back to the newest one whose hashes hold. Safetensors and JSON only.
"""

from __future__ import annotations

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

from polyseme.errors import UserError
from polyseme.io.files import read_json, sha256, whole_folder, write_json, write_tensors, write_text

STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    step: int
    tensors: dict[str, dict[str, Tensor]]  # file name -> tensors
    state: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write `step-N`; then, and only then, forget all but the newest `keep`."""
    target = folder / f"step-{checkpoint.step}"
    with whole_folder(target) as temporary:
        hashes = {}
        for name, tensors in checkpoint.tensors.items():
            path = temporary / f"{name}.safetensors"
            write_tensors(path, tensors)
            hashes[path.name] = sha256(path)
        about = {"step": checkpoint.step, "sha256": hashes, "state": checkpoint.state}
        write_json(temporary / "state.json", about | {"hash": _hash(about)})
    if not _whole(target):
        raise UserError(f"{target} was written but does not read back: is the disk failing?")
    write_text(folder / "LATEST", target.name + "\n")
    older = [path for path in _steps(folder) if _number(path) < checkpoint.step]
    for old in older[keep - 1 :]:
        shutil.rmtree(old)
    return target


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, or None where there is none."""
    for path in _steps(folder):
        if _whole(path):
            about = read_json(path / "state.json")
            tensors = {Path(name).stem: load_file(path / name) for name in about["sha256"]}
            return Checkpoint(about["step"], tensors, about["state"])
    return None


def mean_weights(model: torch.nn.Module, folder: Path, number: int) -> list[int]:
    """Give a model the mean of the weights of the newest checkpoints (Vaswani et al. 2017, §6.1); returns their steps.

    Nothing happens for a number below 2.
    """
    whole = [path for path in _steps(folder) if _whole(path)][:number] if number > 1 else []
    total: dict[str, Tensor] = {}
    for path in whole:
        for name, tensor in load_file(path / "model.safetensors").items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    if total:
        model.load_state_dict({name: t / len(whole) for name, t in total.items()})
    return [_number(path) for path in whole]


def _steps(folder: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    found = [p for p in folder.glob("step-*") if STEP.fullmatch(p.name)]
    return sorted(found, key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _hash(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _whole(path: Path) -> bool:
    try:
        about = read_json(path / "state.json")
        if about.pop("hash") != _hash(about):
            return False
        return all(sha256(path / name) == expected for name, expected in about["sha256"].items())
    except (UserError, OSError, KeyError, AttributeError):
        return False
