"""Run folders that can be resumed: the same call continues a run that was stopped at any moment."""

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.inference.feature_extraction import hash_model_files
from polyseme.io.atomic import is_occupied, is_temporary, remove_directory, remove_leftovers
from polyseme.io.hashes import write_hashes
from polyseme.io.json import read_json, write_json
from polyseme.io.model_path import resolve_model
from polyseme.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

logger = logging.getLogger(__name__)
RECORD_NAME = "unfinished.json"
RESULTS_NAME = "results.json"


class UnfinishedRun:
    """The folder of a run until the run is finished; None is a run without a folder, which saves nothing.

    `unfinished.json` records the settings of the run, and `unfinished/` has its checkpoints. They are written when
    there is something to save, after `on_start` was called, and removed when the run is finished.
    """

    def __init__(self, out: Path | None, settings: Mapping[str, Any], on_start: Callable[[], object] | None = None):
        """Raise `ConfigError` unless the folder is new or has an unfinished run with the same settings."""
        self.out, self.on_start = out, on_start
        self.record = {"settings": json.loads(json.dumps(settings)), "environment": describe_environment()}
        self.is_started = out is not None and (out / RECORD_NAME).exists()
        if out is None or not check_folder(out):
            return
        existing = read_json(out / RECORD_NAME)
        if not isinstance(existing, dict) or not self.record.keys() <= existing.keys():
            raise DataError(f"{out / RECORD_NAME} is not the record of a run: remove the folder to start again")
        if difference := first_difference(existing["settings"], self.record["settings"]):
            advice = "repeat that call to resume it, or choose another folder"
            raise ConfigError(f"{out} has an unfinished run with other settings: {difference}; {advice}")
        for key, value in self.record["environment"].items():
            if (saved_value := existing["environment"].get(key)) != value:
                logger.warning("%s was %s, now %s: bits may differ", key, saved_value, value)
        logger.info("resuming the run in %s", out)

    @property
    def is_complete(self) -> bool:
        """Whether the results are written, and only temporary files are left to remove."""
        return self.is_started and (self.folder / RESULTS_NAME).is_file()

    @property
    def folder(self) -> Path:
        """The run folder, if there is one."""
        assert self.out is not None
        return self.out

    def start(self) -> None:
        """Write the record of the run; call this before anything else is written to the folder."""
        if self.out is not None and not self.is_started:
            if self.on_start is not None:
                self.on_start()
            write_json(self.out / RECORD_NAME, self.record)
            self.is_started = True

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """Save a checkpoint, and remove the one before it."""
        if self.out is not None:
            self.start()
            save_checkpoint(self.out / "unfinished" / name, checkpoint, keep_checkpoints=1)

    def load(self, name: str) -> Checkpoint | None:
        """Load the checkpoint of this name; None if there is none, `ModelError` if it is damaged."""
        return None if self.out is None else load_checkpoint(self.out / "unfinished" / name)

    def remove(self, name: str) -> None:
        """Remove the checkpoint of this name."""
        if self.out is not None and (self.out / "unfinished" / name).exists():
            remove_directory(self.out / "unfinished" / name)

    def finish(self) -> None:
        """Remove the checkpoints, write the hashes, then remove the record: the run is finished."""
        if self.out is not None:
            self.remove("")
            remove_leftovers(self.out)
            write_hashes(self.out)
            (self.out / RECORD_NAME).unlink(missing_ok=True)


def check_folder(out: Path) -> bool:
    """Return whether a folder has an unfinished run; raise `ConfigError` if it has anything else."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file: give a folder for the run")
    if (out / RECORD_NAME).exists():
        return True
    if is_occupied(out):
        names = [path.name for path in out.iterdir() if not is_temporary(path)]
        name = RESULTS_NAME if RESULTS_NAME in names else min(names)
        raise ConfigError(f"{out} already holds {name}: give another folder for the run")
    return False


def read_finished_results(out: Path) -> dict[str, Any] | None:
    """Return the results of a finished run; None if the folder has none."""
    if (out / RECORD_NAME).exists() or not (out / RESULTS_NAME).is_file():
        return None
    results: dict[str, Any] = read_json(out / RESULTS_NAME)
    return results


def first_difference(old: Any, new: Any, path: str = "") -> str:
    """Describe the first difference of two JSON values, `path was old, now new`; empty if they are equal."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        differences = (first_difference(old.get(key), new.get(key), f"{path}.{key}") for key in {**old, **new})
        return next(filter(None, differences), "")
    return "" if old == new else f"{path.removeprefix('.')} was {old!r}, now {new!r}"


def describe_run(
    models: Path | Sequence[Path], data: Sequence[TaskData], config: FinetuneConfig, options: RunOptions
) -> dict[str, Any]:
    """Return everything that determines the results of a run, with hashes of the models and the examples."""
    paths, tasks = [models] if isinstance(models, Path) else models, {}
    for each in data:
        sets = {"train": each.train, "dev": each.dev, **each.extra_eval}
        tasks[each.name or each.task.task_type] = {
            "config": each.task.to_json(),
            "metric": each.primary_metric,
            "dataset": each.dataset_name,
            "examples": {name: hash_examples(examples) for name, examples in sets.items()},
        }
    names = ("from_scratch", "keep_seeds", "keep_checkpoints")
    run_options = {"seeds": options.seed_list, **{name: getattr(options, name) for name in names}}
    if missing := [path for path in paths if not resolve_model(path).exists()]:
        raise ModelError(f"there is no model folder at {missing[0]}")
    model_hashes = [hash_model_files(path)[:16] for path in paths]
    return {"models": model_hashes, "tasks": tasks, **run_options, **config.to_json()}


def hash_examples(examples: Sequence[Any]) -> str:
    """Return a short hash of the contents of examples, wherever they were read."""
    digest = hashlib.sha256()
    for example_type, group in groupby(examples, type):
        content = attrgetter("__class__", *(f.name for f in fields(example_type) if f.name != "location"))
        for example in group:
            digest.update(repr(content(example)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def describe_environment() -> dict[str, Any]:
    """Return what a resumed run needs to give the same bits."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    return {"torch": torch.__version__, "machine": platform.machine(), "device": device, "threads": threads}
