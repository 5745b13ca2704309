"""What all ranks of a run have to have in common, before its first step and after its state is loaded."""

import functools
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyseme.corpus.store import read_manifest
from polyseme.io.atomic import sha256
from polyseme.train import distributed
from polyseme.train.checkpoint import Checkpoint
from polyseme.train.loop import TrainState
from polyseme.train.optimizer import optimizer_state_dict
from polyseme.train.recipe import Recipe


def require_same_run(recipe: Recipe, corpus_path: Path, out: Path, provenance: dict[str, str], resume: bool) -> None:
    """Raise on every rank unless all have the same code, recipe, corpus and run folder."""
    if not distributed.is_distributed():
        return
    facts: dict[str, Any] = {f"recipe.{name}": value for name, value in recipe.to_json().items()}
    distributed.require_agreement(
        {
            "world size": os.environ.get("WORLD_SIZE"),
            "code": _hash_code(),
            "torch": torch.__version__,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            **facts,
            "corpus": read_manifest(corpus_path)["hash"][:16],
            "initial model": provenance.get("initialized_from_hash", "")[:16],
            "resume": resume,
            "run folder": _hash_record(out),
        }
    )


def require_same_state(state: TrainState, position: Any) -> None:
    """Raise on every rank unless all are at the same step with the same weights and optimizer state."""
    if distributed.is_distributed():
        tensors = [*state.model.state_dict().items(), *optimizer_state_dict(state.optimizer, state.model).items()]
        distributed.require_agreement(
            {
                "step": state.start_step,
                "total_steps": state.total_steps,
                "position": str(position),
                "state": hash_tensors(tensors),
            },
            distributed.AGREEMENT_SECONDS * 5,  # hashing gigabytes takes a while
        )


def broadcast_checkpoint(load: Callable[[], Checkpoint | None], device: torch.device) -> Checkpoint | None:
    """Load a checkpoint on rank 0 and return it on every rank."""
    loaded: list[Checkpoint] = []

    def load_header() -> tuple[int, dict[str, Any], list[str]] | None:
        if (checkpoint := load()) is None:
            return None
        loaded.append(checkpoint)
        return checkpoint.step, checkpoint.state, list(checkpoint.tensors)

    if (header := distributed.on_rank_zero(load_header)) is None:
        return None
    step, values, files = header
    tensors = {file: loaded[0].tensors[file] if loaded else {} for file in files}
    return Checkpoint(step, {f: distributed.broadcast_tensors(tensors[f], device) for f in files}, values)


def hash_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a hash of the names and bytes of tensors."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


@functools.cache
def _hash_code() -> str:
    """Return a hash of the source files of the package."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def _hash_record(out: Path) -> str:
    """Return a hash of `recipe.json` as this rank sees it."""
    names = os.listdir(out) if out.is_dir() else []  # which refreshes the cache of a network file system
    return sha256(out / "recipe.json")[:16] if "recipe.json" in names else "without a run"
