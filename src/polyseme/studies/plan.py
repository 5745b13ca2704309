"""The plan of a study: everything that determines its rows, in `study.json`, and the places of its files."""

import json
import platform
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.finetuning.experiment import list_seeds
from polyseme.finetuning.resume import first_difference
from polyseme.io.atomic import atomic_directory, is_occupied
from polyseme.io.json import has_shape, read_json_object, write_json
from polyseme.studies.base import Arm, Study
from polyseme.studies.metrics import METRICS
from polyseme.train.recipe import BudgetConfig

SEARCH_SEED = 1_000_003  # of the learning-rate search; no result uses it
LOCAL_KEYS = ("corpus", "data", "held_out", "command", "versions", "keep_models")  # may differ in a resumed run

TRANSFER_VERSION = 5  # to increase if models are transferred to tasks in another way, so that no study mixes two
BASELINES_FILE = "baselines.json"
FAILED_ROW_SHAPE = {"arm": str, "seed": int, "error": str}
ROW_SHAPE = {"arm": str, "seed": int, "recipe": dict, "is_void": bool, "metrics": {str: dict}}
TRAINING_KEYS = ("recipe", "overrides", "tokenizer", "from_arm")  # of an arm, the others are about its transfer
TRAINING_FILES = ("calibration.json", "lr.json")


@dataclass(frozen=True)
class StudyOptions:
    """How a study is run.

    `overrides` change the recipe of every arm that has the setting, and `finetune` the fine-tuning of every task.
    `max_examples` limits each split of each task, the sentences of held-out text, and the minimal pairs of each
    paradigm. Each learning rate is tried for `search_fraction` of the budget. `arms` are those to run now, by default
    all. `jobs` jobs run at a time, each in a process of its own (0: four on a GPU, one on a CPU). No job is started
    that is not expected to end within `time_limit` seconds, after which the others save their state and stop.
    """

    overrides: Mapping[str, Any] = field(default_factory=dict)
    finetune: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[str] = ()
    held_out: Path | None = None
    max_examples: int = 0
    search_fraction: float = 1 / 6
    keep_models: bool = False
    arms: Sequence[str] = ()
    jobs: int = 0
    time_limit: float = 0.0
    command: str = ""

    def check(self) -> Self:
        """Return the options, or raise `ConfigError` for values out of range."""
        if not 0 < self.search_fraction <= 1:
            raise ConfigError(f"`search_fraction` is {self.search_fraction}, expected more than 0 and at most 1")
        for name in ("max_examples", "jobs", "time_limit"):
            if getattr(self, name) < 0:
                raise ConfigError(f"`{name}` is {getattr(self, name)}, expected 0 or more")
        return self


@dataclass(frozen=True)
class StudyPlan:
    """A study with its text, data, budget and seeds, and the folder of its results."""

    study: Study
    out: Path
    corpus: Path
    data: Path
    budget: BudgetConfig
    seeds: tuple[int, ...]
    options: StudyOptions = field(default_factory=StudyOptions)

    @classmethod
    def create(
        cls, study: Study, corpus: Path, data: Path, out: Path, budget: str, seeds: Any, options: StudyOptions
    ) -> Self:
        """Return the plan of a new study, or of the one in `out`, which has to be the same."""
        if options.metrics:
            study = study.select_metrics(tuple(dict.fromkeys(options.metrics)))
        seed_list = list_seeds(seeds)
        if SEARCH_SEED in seed_list:
            raise ConfigError(f"`seeds` has {SEARCH_SEED}, which the learning-rate search uses")
        for name in options.arms:
            study.find_arm(name)
        folder = Path(data).resolve()
        if not folder.is_dir():
            raise DataError(f"there is no folder {data}: `data` is the folder of the data sets")
        if options.held_out and not any(
            name in METRICS and METRICS[name].kind == "likelihood" for name in study.metrics
        ):
            raise ConfigError(
                f"`held_out` has no effect: no metric of the study {study.name} is the likelihood of text"
            )
        held_out = options.held_out or _find_held_out(folder)
        options = replace(options.check(), held_out=held_out and Path(held_out).resolve())
        return cls(study, out, Path(corpus).resolve(), folder, BudgetConfig.parse(budget), tuple(seed_list), options)

    @classmethod
    def read(cls, out: Path) -> Self:
        """Read the plan of the study in a folder."""
        record = read_json_object(out / "study.json")
        try:
            names = ("overrides", "finetune", "max_examples", "search_fraction", "keep_models")
            options = StudyOptions(**{name: record[name] for name in names}, command=str(record["command"]))
            options = replace(options, held_out=Path(record["held_out"]) if record["held_out"] else None)
            study, budget = (
                Study.from_json(record["study"], str(out / "study.json")),
                BudgetConfig.parse(record["budget"]),
            )
            return cls(
                study, out, Path(record["corpus"]), Path(record["data"]), budget, tuple(record["seeds"]), options
            )
        except (KeyError, TypeError) as error:
            raise DataError(f"{out / 'study.json'} is not the plan of a study: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return the contents of `study.json`."""
        options = asdict(self.options)
        names = ("overrides", "finetune", "max_examples", "search_fraction", "keep_models", "command")
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        plan = {
            "kind": "study",
            "study": self.study.to_plain(),
            "corpus": str(self.corpus),
            "corpus_hash": Corpus.open(self.corpus).content_hash,
            "data": str(self.data),
            "held_out": str(self.options.held_out or ""),
            "budget": str(self.budget),
            "seeds": list(self.seeds),
            "transfer_version": TRANSFER_VERSION,
            **{name: options[name] for name in names},
            "versions": versions,
        }
        return dict(json.loads(json.dumps(plan)))

    def write(self, limits: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Write `study.json` with the limits and data of the metrics; raise `ConfigError` if it is of another study.

        Seeds may be added to a started study, and arms without a finished row may change: what was measured and
        chosen for them is deleted, except for what concerns their training if only their transfer changes.
        """
        path, plan = self.out / "study.json", self.to_json() | {"limits": dict(limits), "inputs": dict(inputs)}
        remaining: dict[str, tuple[str, ...]] = {}  # the files that stay, by the name of each arm that has changed
        if path.is_file():
            existing, current = (_row_settings(each, path) for each in (read_json_object(path), plan))
            if existing["seeds"] == current["seeds"][: len(existing["seeds"])]:
                existing["seeds"] = current["seeds"]
            arms = existing["study"]["arms"], current["study"]["arms"]
            for arm in self.study.arms:
                versions = [each.get(arm.name) for each in arms]
                if self._may_change(arm, *versions):
                    trainings = [{key: (each or {}).get(key) for key in TRAINING_KEYS} for each in versions]
                    remaining[arm.name] = TRAINING_FILES if trainings[0] == trainings[1] else ()
                    for each in arms:
                        each.pop(arm.name, None)
            if difference := first_difference(existing, current):
                advice = "repeat that call to continue it, or choose another folder"
                raise ConfigError(f"{self.out} has a study with other settings: {difference}; {advice}")
        elif is_occupied(self.out):
            raise ConfigError(f"{self.out} already exists and is no study: choose another folder")
        for name in [name for name, files in remaining.items() if not files]:  # arms that use its model lose it, too
            remaining |= {arm.name: () for arm in self.evaluated_arms(self.study.find_arm(name))}
        for name, files in remaining.items():
            for entry in (self.out / "arms" / name).glob("*"):
                if not entry.is_dir():
                    if entry.name not in files:
                        entry.unlink()
                elif not files:
                    shutil.rmtree(entry)
        write_json(path, plan)

    def _may_change(self, arm: Arm, existing: Any, current: Any) -> bool:
        """Return whether an arm has changed, and no row depends on it yet."""
        has_rows = any(self.is_done(each, seed) for each in self.evaluated_arms(arm) for seed in self.seeds)
        return existing != current and not has_rows

    @property
    def arms(self) -> list[Arm]:
        """The arms to run now that train a model; those that use it are evaluated with it."""
        chosen = [arm for arm in self.study.arms if not self.options.arms or arm.name in self.options.arms]
        names = {arm.from_arm or arm.name for arm in chosen}
        return [arm for arm in self.study.arms if arm.name in names]

    def seeds_left(self, arm: Arm) -> list[int]:
        """Return the seeds of which a row on the model of an arm is missing."""
        return [seed for seed in self.seeds if not all(self.is_done(each, seed) for each in self.evaluated_arms(arm))]

    def evaluated_arms(self, arm: Arm) -> list[Arm]:
        """Return the arms that are evaluated on the model of an arm: itself, and those that use it."""
        return [each for each in self.study.arms if arm.name in (each.name, each.from_arm)]

    def trained_arm(self, arm: Arm) -> Arm:
        """Return the arm whose model is evaluated as this one."""
        return self.study.find_arm(arm.from_arm) if arm.from_arm else arm

    def arm_folder(self, arm: Arm) -> Path:
        """Return the folder of the files of an arm."""
        return self.out / "arms" / arm.name

    def row_path(self, arm: Arm, seed: int) -> Path:
        """Return the file of a finished arm and seed."""
        return self.arm_folder(arm) / f"seed-{seed}.json"

    def partial_row_path(self, arm: Arm, seed: int) -> Path:
        """Return the file of an arm and seed that is not finished, with the metrics that were measured so far."""
        return self.arm_folder(arm) / f"seed-{seed}.partial.json"

    def run_folder(self, arm: Arm, seed: int) -> Path:
        """Return the folder of a run while it trains."""
        return self.arm_folder(arm) / f"seed-{seed}"

    def is_done(self, arm: Arm, seed: int) -> bool:
        """Return whether a row is finished, without an error."""
        path = self.row_path(arm, seed)
        return path.is_file() and "error" not in read_row(path)

    def read_partial_row(self, arm: Arm, seed: int) -> dict[str, Any]:
        """Return what was measured so far of a row that is not finished; empty if nothing was."""
        path = self.partial_row_path(arm, seed)
        return read_json_object(path) if path.is_file() else {}

    def read_arm_file(self, arm: Arm, name: str) -> dict[str, Any]:
        """Return the contents of a file of an arm; empty if there is none."""
        path = self.arm_folder(arm) / name
        return read_json_object(path) if path.is_file() else {}

    @cached_property
    def minimal_pairs(self) -> Path:
        """The folder of BLiMP, which is extracted from `blimp.tar.xz` if the data have only that."""
        if (self.data / "blimp").is_dir():
            return self.data / "blimp"
        folder = self.out / "cache" / "blimp"
        if not folder.is_dir():
            with atomic_directory(folder) as temporary, tarfile.open(self.data / "blimp.tar.xz") as archive:
                for member in archive:
                    if member.isfile() and Path(member.name).match("data/*.jsonl"):
                        file = archive.extractfile(member)
                        assert file is not None
                        with open(temporary / Path(member.name).name, "wb") as target:
                            shutil.copyfileobj(file, target)
        return folder


def read_row(path: Path) -> dict[str, Any]:
    """Read the row of an arm and seed, or that of one which failed."""
    row = read_json_object(path)
    if not has_shape(row, FAILED_ROW_SHAPE if "error" in row else ROW_SHAPE):
        raise DataError(f"{path} is damaged: it is no row of a study; remove it and run the study again")
    return row


def _row_settings(plan: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what determines the rows of a study: its settings without places, and without texts and questions."""
    if not has_shape(plan, {"study": {"arms": [{"name": str}]}, "seeds": [int]}):
        raise DataError(f"{path} is not the plan of a study")
    settings = {key: value for key, value in plan.items() if key not in LOCAL_KEYS}
    study = {key: value for key, value in plan["study"].items() if key not in ("title", "source", "questions")}
    arms = {arm["name"]: {key: value for key, value in arm.items() if key != "note"} for arm in study["arms"]}
    return settings | {"study": study | {"arms": arms}}


def _find_held_out(data: Path) -> Path | None:
    path = data / "pretrain" / "heldout-wiki.jsonl.xz"
    return path if path.is_file() else None
