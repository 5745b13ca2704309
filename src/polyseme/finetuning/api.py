"""`polyseme.finetune`: read the data of one or several tasks, then fine-tune, train over features, or search a grid."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from polyseme.datasets.base import NamedDataset
from polyseme.datasets.catalog import DATASETS
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.finetuning.config import CrossViewSettings, FinetuneConfig
from polyseme.finetuning.cross_view import UnlabeledText
from polyseme.finetuning.distillation import TaskTeacher
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune as finetune_model
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, FeatureInputs, train_on_features
from polyseme.finetuning.grid import expand_grid, grid_search, override
from polyseme.finetuning.resume import UnfinishedRun, check_folder, describe_run
from polyseme.io.lock import locks_folder
from polyseme.report.pages.finetuning_page import truncation_note
from polyseme.report.results import FinetuneResult
from polyseme.tasks import TASKS
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.readers.rows import Columns

logger = logging.getLogger(__name__)
OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True)
class ReadOptions:
    """How files of examples are read: the columns or keys of a row, and what happens to bad rows."""

    text_column: str = ""
    pair_column: str = ""
    label_column: str = ""
    header: bool = True
    skip_bad: bool = False
    strict: bool = False

    @property
    def columns(self) -> Columns:
        """The columns of tables."""
        return Columns(self.text_column, self.pair_column, self.label_column, self.header)

    def read(
        self, task: TaskConfig | type[TaskConfig], source: Any, columns: Columns, needs_labels: bool = True
    ) -> list[Any]:
        """Read the examples of a task from a file, or from plain values."""
        return task.read(source, columns, needs_labels=needs_labels, skip_bad=self.skip_bad, strict=self.strict)


@dataclass(frozen=True)
class FeatureOptions:
    """A network over frozen features instead of fine-tuning; empty `features` are a network over words alone.

    `cross_view` is unlabeled text, for cross-view training of a BiLSTM over words.
    """

    features: str | Path | Sequence[str | Path] | None = None
    word_vectors: str | Path | None = None
    network: str | Mapping[str, Any] = "auto"
    layers: str | Sequence[str] = ()
    join_at: str = ""
    freeze_word_embeddings: bool = False
    cache_dir: str | Path | None = None
    cross_view: str | Path | Sequence[Any] | None = None

    @property
    def is_used(self) -> bool:
        """Whether there is a network at all."""
        inputs = (self.features, self.word_vectors, self.cross_view)
        return any(each is not None for each in inputs) or self.network != "auto"

    @cached_property
    def unlabeled(self) -> UnlabeledText | None:
        """The unlabeled text, read once."""
        return None if self.cross_view is None else UnlabeledText.read(self.cross_view)

    @property
    def encoders(self) -> list[Path]:
        """The folders of the models that are frozen."""
        features = [self.features] if isinstance(self.features, str | Path) else self.features
        return [Path(path) for path in features or ()]

    def inputs(self, out: Path) -> FeatureInputs:
        """What the network reads; features are cached next to the run unless `cache_dir` says where."""
        vectors = Path(self.word_vectors) if self.word_vectors is not None else None
        return FeatureInputs(self.encoders, vectors, Path(self.cache_dir or out.parent / "features"), self.unlabeled)

    def network_fields(self) -> dict[str, Any]:
        """The fields of the network that the options set."""
        network = {"name": self.network} if isinstance(self.network, str) else dict(self.network)
        layers = self.layers if isinstance(self.layers, str) else ",".join(self.layers)
        chosen = {"layers": layers, "join_at": self.join_at, "freeze_word_embeddings": self.freeze_word_embeddings}
        num_layers = {"num_layers": 2} if self.join_at == "between" or self.cross_view is not None else {}
        return num_layers | {name: value for name, value in chosen.items() if value} | network


@locks_folder("finetune")
def finetune(
    model: Path | None,
    task: Any,
    out: Path,
    files: Mapping[str, Any],
    seeds: int | Sequence[int],
    grid: Any,
    options: dict[str, Any],
) -> FinetuneResult:
    """Read the data, run the experiment or a grid of them, and log warnings; see `polyseme.finetune`."""
    baselines, overrides = _list_baselines(options.pop("baselines", ())), options.pop("overrides", {})
    teacher: TaskTeacher | None = options.pop("teacher", None)  # of `polyseme.compress.distill`
    grid = [grid] if isinstance(grid, str) else grid
    reading, features = pop_options(ReadOptions, options), pop_options(FeatureOptions, options)
    run_options = replace(pop_options(RunOptions, options), seeds=seeds)
    is_multitask = isinstance(task, Mapping | list | tuple)
    _check_options(model, features, run_options, options)
    if is_multitask:
        _check_multitask(run_options, baselines)
    sources = task if isinstance(task, Mapping) else {name: name for name in task} if is_multitask else {"": task}
    tasks = [TaskData(create_task(source), (), (), name) for name, source in sources.items()]
    _check_inputs(tasks, files, reading)
    config = FinetuneConfig(**tasks[0].task.finetune_settings if len(tasks) == 1 else {})
    if model is None:
        config, tasks = FEATURE_DEFAULTS, [replace(each, task=each.task.for_features()) for each in tasks]
        if features.cross_view is not None:
            config = config.replace(cross_view=CrossViewSettings())
        config, tasks = override(config, tasks, "network", features.network_fields())
    for path, value in {**options, **overrides}.items():
        if value is not None:
            config, tasks = override(config, tasks, path, value)
    baseline_names = [_baseline_names(each.task, baselines) for each in tasks]
    check_folder(out)  # before anything is read
    tasks = [read_task_data(each, sources[each.name], files, reading) for each in tasks]
    tasks = [replace(each, baselines=_lazy_baselines(each, names)) for each, names in zip(tasks, baseline_names)]

    def run_point(config: FinetuneConfig, tasks: Sequence[TaskData], folder: Path) -> dict[str, Any]:
        if model is None:
            data = tasks if is_multitask else tasks[0]
            return train_on_features(features.inputs(out), data, folder, config, run_options)
        return finetune_model(model, tasks if is_multitask else tasks[0], folder, config, run_options, teacher)

    if grid:
        points = expand_grid(config, tasks, grid)
        inputs = features.inputs(out) if model is None else None
        settings = describe_run(inputs.paths if inputs else model, tasks, config, run_options)  # type: ignore[arg-type]
        settings |= {"grid": [point.name for point in points], **(inputs.describe() if inputs else {})}
        run = UnfinishedRun(out, settings)
        run_options = replace(run_options, on_start=run.start)
        results = grid_search(run_point, run, points)
    else:
        results = run_point(config, tasks, out)
    for each in tasks:
        for line in _warnings(each, results["tasks"][each.name] if is_multitask else results):
            logger.warning(f"{each.name}: {line}" if is_multitask else line)
    return FinetuneResult.from_results(out, results)


def find_task_type(name: str) -> type[TaskConfig]:
    """Return the task of this name, or that of the data set of this name."""
    if name in DATASETS:
        return DATASETS[name].task
    if name not in TASKS:
        raise ConfigError(f"there is no task {name!r}; {suggest(name, [*TASKS, *DATASETS])}")
    return TASKS[name]


def create_task(source: str | NamedDataset | TaskConfig | type[TaskConfig]) -> TaskConfig:
    """Return the task of a name, a data set or a type, with its default settings."""
    if isinstance(source, TaskConfig):
        return source
    if isinstance(source, str):
        return find_task_type(source)()
    return source.task() if isinstance(source, NamedDataset) else source()


def pop_options(cls: type[OptionsT], options: dict[str, Any]) -> OptionsT:
    """Take the fields of a dataclass out of the options; None is a field's default."""
    values = {field.name: options.pop(field.name, None) for field in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in values.items() if value is not None})


def read_options(options: dict[str, Any]) -> ReadOptions:
    """Return options that are all about reading files; raise `ConfigError` for others."""
    parsed = pop_options(ReadOptions, options)
    for name in options:
        raise ConfigError(f"there is no option {name!r}; {suggest(name, [f.name for f in fields(ReadOptions)])}")
    return parsed


def _check_options(model: Path | None, features: FeatureOptions, run: RunOptions, overrides: Mapping[str, Any]) -> None:
    if features.cross_view is not None:
        views = "cross-view training needs a BiLSTM over words, whose directions see a part of the sentence"
        if model is not None or features.encoders:
            raise ConfigError(f"{views}: {model or features.encoders[0]} sees all of it, so leave the model out")
        if (network := features.network_fields().get("name", "auto")) not in ("auto", "bilstm"):
            raise ConfigError(f"{views}: `network` is {network!r}, expected bilstm")
    if (model is None) != features.is_used:
        options = "`features`, `word_vectors`, `network`"
        raise ConfigError(f"choose one: a model to fine-tune, or a network over frozen features ({options})")
    if not features.encoders and (features.layers or features.join_at or features.cache_dir):
        raise ConfigError("`layers`, `join_at` and `cache_dir` apply to frozen models: they need `features`")
    if features.freeze_word_embeddings and features.word_vectors is None:
        raise ConfigError("`freeze_word_embeddings` has no effect without `word_vectors`")
    overridden = map(overrides.get, ("layer_decay", "unfreeze_every", "lm_loss_weight"))
    finetuning_only = (run.from_scratch, run.keep_checkpoints, *overridden)
    if model is None and any(finetuning_only):
        names = "`from_scratch`, `layer_decay`, `unfreeze_every`, `lm_loss_weight` and `keep_checkpoints`"
        raise ConfigError(f"{names} apply to fine-tuning, and features are frozen")


def _check_inputs(tasks: Sequence[TaskData], files: Mapping[str, Any], reading: ReadOptions) -> None:
    """Raise `ConfigError` for data of tasks that there are not, and for options of reading without effect."""
    names = [each.name for each in tasks if each.name]
    for key, value in files.items():
        if names and isinstance(value, Mapping) and (unknown := [name for name in value if name not in names]):
            raise ConfigError(
                f"`{key}` has the task {unknown[0]!r}, which is not trained; {suggest(unknown[0], names)}"
            )
    values = [part for value in files.values() for part in (value.values() if isinstance(value, Mapping) else [value])]
    has_files = any(isinstance(value, str | Path) for value in values)
    if reading.columns != Columns() and not has_files:
        columns = "`text_column`, `pair_column`, `label_column` and `header`"
        raise ConfigError(f"{columns} apply to files, and the examples are values: name their keys as the task does")
    if reading.strict and not (has_files and any(each.task.repairs_labels for each in tasks)):
        raise ConfigError("`strict` has no effect: it is for malformed tags in files")


def _check_multitask(run: RunOptions, baselines: Sequence[str]) -> None:
    if run.keep_seeds or run.keep_checkpoints or set(baselines) - {"default"}:
        raise ConfigError("`baseline`, `keep_seeds` and `keep_checkpoints` are for one task")


def _list_baselines(baselines: bool | str | Sequence[str]) -> list[str]:
    """Return the names of baselines; True stands for the default ones."""
    if isinstance(baselines, bool):
        return ["default"] * baselines
    return [baselines] if isinstance(baselines, str) else list(baselines)


def _lazy_baselines(data: TaskData, names: Sequence[str]) -> Callable[[], dict[str, dict[str, float]]]:
    """Return a function that computes the baselines of a task when it is first called."""

    @cache
    def compute() -> dict[str, dict[str, float]]:
        fitted, sets = data.task.fit(data.train), (data.train, data.dev, data.extra_metrics)
        return {name: fitted.baseline_metrics(name, *sets) for name in names}

    return compute


def _baseline_names(task: TaskConfig, names: Sequence[str]) -> list[str]:
    """Return the baselines to run; "default" stands for the first two of the task."""
    default = list(task.baselines())[:2]
    chosen = list(dict.fromkeys(each for name in names for each in (default if name == "default" else [name])))
    for name in chosen:
        task.check_baseline(name)
    return chosen


def read_task_data(data: TaskData, source: Any, files: Mapping[str, Any], options: ReadOptions) -> TaskData:
    """Read the examples of a task: the folder of a named data set, or train and dev examples."""
    if data.name:
        files = {key: _of_task(key, value, data.name) for key, value in files.items()}
    train, dev, folder = files["train"], files["dev"], files["data"]
    dataset = source if isinstance(source, NamedDataset) else DATASETS.get(source) if isinstance(source, str) else None
    if dataset is None:
        label = source if isinstance(source, str) else data.task.task_type
        if folder is not None:
            raise ConfigError(f"`data` is for named data sets: {label} needs `train` and `dev`")
        if train is None or dev is None:
            missing = "train" if train is None else "dev"
            raise ConfigError(f"`{missing}` is missing: {label} needs `train` and `dev`")
        names = {
            key: Path(str(files[key]).split("::")[0]).name
            for key in ("train", "dev")
            if isinstance(files[key], str | Path)
        }
        columns, needs_labels = options.columns, data.task.needs_labels
        if isinstance(train, str | Path):
            train, columns = data.task.open_input(train, columns)
        train_examples = options.read(data.task, train, columns, needs_labels)
        dev_columns = replace(options.columns, remembered=columns)  # those of the training file by default
        dev_examples = options.read(data.task, dev, dev_columns, needs_labels)
        for key, examples in (("train", train_examples), ("dev", dev_examples)):
            if not examples:
                raise DataError(f"`{key}` has no examples")
        return replace(data, train=train_examples, dev=dev_examples, columns=columns.to_metadata(), files=names)
    name = source if isinstance(source, str) else dataset.folder
    if train is not None or dev is not None or options.columns != Columns():
        raise ConfigError(f"{name} has its own files and columns: pass `data` alone")
    if folder is None:
        raise ConfigError(f"`data` is missing: the folder that contains {dataset.folder}, or that folder itself")
    train, dev = dataset.read(folder, options.skip_bad, options.strict)
    metric, extra = dataset.metric, dataset.extra_metrics
    return replace(data, train=train, dev=dev, primary_metric=metric, dataset_name=name, extra_metrics=extra)


def _of_task(key: str, value: Any, name: str) -> Any:
    """Return the part of `train`, `dev` or `data` that belongs to one of several tasks."""
    if isinstance(value, Mapping):
        return value.get(name)
    if value is not None and key != "data":
        raise ConfigError(f"`{key}` must map the name of each task to its examples")
    return value


def _warnings(data: TaskData, results: Mapping[str, Any]) -> Iterator[str]:
    """What a user should know about the run of a task besides its scores."""
    if results["failed_seeds"]:
        failed = ", ".join(map(str, results["failed_seeds"]))
        trivial = f"no better than the majority baseline ({results['majority_score']:.4f})"
        yield f"failed seeds, {trivial}: {failed}; try another learning rate"
    metric = results["primary_metric"]
    scores = {name: metrics[metric] for name, metrics in results["baselines"].items() if metric in metrics}
    if scores and results["mean"][metric] <= scores[best := max(scores, key=scores.__getitem__)]:
        comparison = f"{metric} {results['mean'][metric]:.4f} does not beat the baseline {best!r} ({scores[best]:.4f})"
        yield f"{comparison}; try more epochs, another learning rate (`grid`), or a better pre-trained model"
    dataset = DATASETS.get(data.dataset_name)
    if dataset and dataset.get_warnings:
        for line in dataset.get_warnings(list(data.train), list(data.dev), results["mean"]["accuracy"]):
            yield f"{data.dataset_name}: {line}"
    for split, (num_bad, num_lost) in results.get("bad_offsets", {}).items():
        if num_bad:
            consequence = f", so {num_lost} questions were not trained on" if split == "train" else ""
            yield f"{split}: {num_bad} answers are not at their offset{consequence}"
    for split, (num_lost, total) in results.get("unreachable_mentions", {}).items():
        if num_lost:
            yield f"{split}: {num_lost} of {total} mentions are too wide or cross sentences, so they are never found"
    for split in results["num_truncated"]:
        if line := truncation_note(dict(results), split):
            yield line
