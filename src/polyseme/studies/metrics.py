"""The metrics of studies by name, their data, and the limits that keep them cheap, the same for every arm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.finetuning.experiment import TaskData
from polyseme.studies.base import Study
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.extractive_qa import ExtractiveQATask

MAX_SENTENCES = 5000  # of held-out text
SENTENCE_CHARACTERS = (20, 200)  # of a held-out sentence and of its neighbors, so that every model reads them whole
NUM_DEV = 500  # examples held out of a training set that comes without a dev set


@dataclass(frozen=True)
class Metric:
    """What is measured of a model: on which data, by which score, and how much of the data is used.

    `files` are what the data folder must have: of each group, one of the names.
    """

    name: str
    title: str
    kind: Literal["likelihood", "pairs", "task", "validation"]
    score: str  # the name of the score, such as f1
    higher_is_better: bool = True
    dataset: str = ""
    files: tuple[tuple[str, ...], ...] = ()
    max_train: int = 0
    max_dev: int = 0

    @property
    def limits(self) -> dict[str, int]:
        """The limits on the number of examples, for `study.json`."""
        limits = {"train": self.max_train, "dev": self.max_dev}
        return {name: limit for name, limit in limits.items() if limit}

    def is_missing(self, data: Path, held_out: Path | None) -> bool:
        """Return whether the data of the metric are missing."""
        if self.kind == "likelihood":
            return held_out is None or not held_out.is_file()
        return len(self.find_files(data)) < len(self.files)

    def find_files(self, data: Path) -> list[Path]:
        """Return what the data folder has of `files`."""
        groups = [[data / name for name in names if (data / name).exists()] for names in self.files]
        return [paths[0] for paths in groups if paths]

    def task(self) -> TaskConfig:
        """Return the task, without labels."""
        return DATASETS[self.dataset].task() if self.dataset in DATASETS else ExtractiveQATask()


def _glue(name: str, title: str, score: str, **limits: Any) -> Metric:
    folder = f"glue/{title}"
    mrpc_files = (("train.tsv", "msr_paraphrase_train.txt"), ("dev.tsv", "dev_ids.tsv"))
    names = [[f"{folder}/{each}" for each in group] for group in mrpc_files] if name == "mrpc" else [[folder]]
    files = tuple(map(tuple, names))
    return Metric(name, title, "task", score, dataset=f"glue/{name}", files=files, **limits)


def _task(name: str, title: str, score: str, folder: str, dataset: str = "", **limits: Any) -> Metric:
    return Metric(name, title, "task", score, dataset=dataset or name, files=((folder,),), **limits)


_METRICS = (
    Metric(
        "bits_per_character", "bits per character", "likelihood", "bits_per_character", False, max_dev=MAX_SENTENCES
    ),
    Metric(
        "pseudo_bits_per_character",
        "pseudo bits per character",
        "likelihood",
        "bits_per_character",
        False,
        max_dev=MAX_SENTENCES,
    ),
    Metric("valid_loss", "validation loss (nats)", "validation", "loss", False),
    Metric("valid_accuracy", "validation accuracy", "validation", "accuracy"),
    Metric("blimp", "BLiMP", "pairs", "accuracy", files=(("blimp", "blimp.tar.xz"),)),
    _glue("cola", "CoLA", "matthews"),
    _glue("sst-2", "SST-2", "accuracy", max_train=10_000),
    _glue("mrpc", "MRPC", "accuracy"),
    _glue("sts-b", "STS-B", "spearman"),
    _task("wnut-17", "WNUT-17", "f1", "wnut17"),
    _task("trec", "TREC", "accuracy", "trec", "trec-6"),
    _task("wic", "WiC", "accuracy", "wic"),
    _task("squad-shifts", "SQuAD-shifts", "f1", "squad-shifts", max_train=8000, max_dev=1500),
    _task("ud-pos", "UD English EWT", "accuracy", "ud-ewt", max_train=4000),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _METRICS}


def check_data(study: Study, data: Path, held_out: Path | None) -> None:
    """Raise an error for metrics that do not exist, and one that names all whose data are missing."""
    for name in study.metrics:
        if name not in METRICS:
            raise ConfigError(f"there is no metric {name!r}; {suggest(name, METRICS)}")
    missing = [METRICS[name] for name in study.metrics if METRICS[name].is_missing(data, held_out)]
    if not missing:
        return
    places = []
    for metric in missing:
        files = " and ".join(" or ".join(names) for names in metric.files) or "held-out text (`held_out`)"
        places.append(f"{metric.name}: {files}")
    available = ",".join(name for name in study.metrics if METRICS[name] not in missing) or "none"
    raise DataError(
        f"{data} lacks the data of {len(missing)} metrics ({'; '.join(places)}): add them, or measure only those that "
        f"are there by `metrics`: {available}"
    )


def metric_limits(study: Study, max_examples: int) -> dict[str, Any]:
    """Return the limits of each metric, for `study.json`."""
    limits: dict[str, Any] = {name: METRICS[name].limits for name in study.metrics if METRICS[name].limits}
    return limits | ({"every metric": {"max_examples": max_examples}} if max_examples else {})


def read_task_data(metric: Metric, data: Path, max_examples: int = 0) -> TaskData:
    """Read the examples of a task, at most as many of each split as its limits allow, evenly spaced."""
    task_data = _READERS.get(metric.name, _read_dataset)(metric, data)
    limits = [min(limit or len(examples), max_examples or len(examples)) for limit, examples in (
        (metric.max_train, task_data.train), (metric.max_dev, task_data.dev))]  # fmt: skip
    train, dev = (sample_evenly(e, n) for e, n in zip((task_data.train, task_data.dev), limits))
    task_data = replace(task_data, train=train, dev=dev, primary_metric=metric.score)
    return drop_new_labels(task_data) if max_examples else task_data


def drop_new_labels(data: TaskData) -> TaskData:
    """Return the data without dev examples that have a label which no training example has."""
    labels = set(getattr(data.task.fit(data.train), "labels", ()))
    if not labels:
        return data
    dev = [e for e in data.dev if ({e.gold} if isinstance(e.gold, str) else set(e.gold)) <= labels]
    return replace(data, dev=dev)


def sample_evenly(examples: Sequence[Any], num_examples: int) -> list[Any]:
    """Return at most this many examples, evenly spaced and in order."""
    if num_examples >= len(examples):
        return list(examples)
    return [examples[i] for i in ((np.arange(num_examples) + 0.5) * len(examples) / num_examples).astype(int)]


def split_evenly(examples: Sequence[Any], num_dev: int) -> tuple[list[Any], list[Any]]:
    """Hold out this many examples, evenly spaced; return the rest and them."""
    dev = {((2 * i + 1) * len(examples)) // (2 * num_dev) for i in range(num_dev)}
    return [e for i, e in enumerate(examples) if i not in dev], [e for i, e in enumerate(examples) if i in dev]


def _read_dataset(metric: Metric, data: Path) -> TaskData:
    dataset = DATASETS[metric.dataset]
    folder = data / "glue" if metric.dataset.startswith("glue/") else data
    train, dev = dataset.read(folder)
    return TaskData(dataset.task(), train, dev, dataset_name=metric.dataset, extra_metrics=dataset.extra_metrics)


def _read_trec(metric: Metric, data: Path) -> TaskData:
    """Read TREC; without its test questions, hold out some of the others."""
    dataset = DATASETS[metric.dataset]
    if (data / "trec" / dataset.splits["dev"]).is_file():
        return _read_dataset(metric, data)
    train, dev = split_evenly(dataset.read_split(data, "train"), NUM_DEV)
    return TaskData(dataset.task(), train, dev, dataset_name=metric.dataset, extra_metrics=dataset.extra_metrics)


def _read_parts_of_speech(metric: Metric, data: Path) -> TaskData:
    """Read the files of splits by their usual names, or by any that contain the split."""
    dataset, splits = DATASETS[metric.dataset], []
    for split in ("train", "dev"):
        files = sorted((data / dataset.folder).glob(f"*-ud-{split}*.conllu*"))
        if len(files) != 1:
            raise DataError(f"{data / dataset.folder} has {len(files)} files *-ud-{split}*.conllu*, expected one")
        splits.append(dataset.read_split(files[0]))
    return TaskData(dataset.task(), splits[0], splits[1], dataset_name=metric.dataset)


def _read_squad_shifts(metric: Metric, data: Path) -> TaskData:
    """Read the questions about Wikipedia for training, and those about the New York Times for evaluation."""
    splits = []
    for name in ("new_wiki", "nyt"):
        files = sorted((data / "squad-shifts").glob(f"{name}*.json*"))
        if len(files) != 1:
            raise DataError(f"{data / 'squad-shifts'} has {len(files)} files {name}*.json*, expected one")
        splits.append(ExtractiveQATask.read(files[0]))
    return TaskData(ExtractiveQATask(), splits[0], splits[1])


_READERS: dict[str, Callable[[Metric, Path], TaskData]] = {
    "trec": _read_trec,
    "ud-pos": _read_parts_of_speech,
    "squad-shifts": _read_squad_shifts,
}
