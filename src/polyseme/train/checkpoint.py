"""Checkpoints that survive a crash at any moment.

Written to a temporary folder, synced, renamed, verified, and only then named in LATEST; only then are old ones removed.
The loader walks back to the newest one whose hashes hold. Safetensors and JSON only.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from polyseme.errors import UserError
from polyseme.files import read_json, sha256, whole_folder, write_json, write_text

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
            save_file({k: t.detach().contiguous().cpu() for k, t in tensors.items()}, path)
            hashes[path.name] = sha256(path)
        write_json(temporary / "state.json", {"step": checkpoint.step, "sha256": hashes, "state": checkpoint.state})
    if not _whole(target):
        raise UserError(f"{target} was written but does not read back: is the disk failing?")
    write_text(folder / "LATEST", target.name + "\n")
    for old in _steps(folder)[keep:]:
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


def _steps(folder: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    found = [p for p in folder.glob("step-*") if STEP.fullmatch(p.name)]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")), reverse=True)


def _whole(path: Path) -> bool:
    try:
        about = read_json(path / "state.json")
        return all(sha256(path / name) == expected for name, expected in about["sha256"].items())
    except (UserError, OSError, KeyError, AttributeError):
        return False
