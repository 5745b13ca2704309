"""The parts of an experiment: tasks with their data, encoded splits, batches, and functions that build and save models.

Batches depend only on the seed and the number of finished steps, so that a run can continue anywhere.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, suggest
from polyseme.finetuning.config import FinetuneConfig
from polyseme.inference.prediction import predict_encoded
from polyseme.io.json import json_differences
from polyseme.io.limits import MAX_INTEGER, MAX_SEEDS
from polyseme.nn.model import Model
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.objectives.batch import NO_EXTRA, Batch, ChunkedExtra, Targets
from polyseme.objectives.packing import pad_to_bucket
from polyseme.tasks.base import Metrics, MetricsFn, TaskConfig
from polyseme.tasks.encoded import EncodedExample

SaveFn = Callable[[Path, Model, dict[str, Any]], None]  # a folder, a model and its metadata
EncodeFn = Callable[[TaskConfig, Sequence[Any]], Iterable[EncodedExample]]  # unlabeled examples
UnlabeledFn = Callable[[int, int], Iterator[list[Batch]]]  # unlabeled batches of a seed, after some steps
StepBatches = Iterator[tuple[list[Batch], Any]]  # the micro-batches of each step, and its position


@dataclass(frozen=True, eq=False)
class TaskData:
    """A task with its training and dev examples.

    The experiment fits the task to the training examples. Each of several tasks has a `name`. `primary_metric` replaces
    the default metric of the task; `extra_metrics` are those of the data set; `extra_eval` are more evaluation sets.
    `baselines` computes the metrics of simple models, by name, for the results.
    """

    task: TaskConfig
    train: Sequence[Any]
    dev: Sequence[Any]
    name: str = ""
    primary_metric: str = ""
    dataset_name: str = ""
    extra_metrics: MetricsFn | None = None
    extra_eval: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    baselines: Callable[[], dict[str, Metrics]] = dict
    columns: Mapping[str, str] = field(default_factory=dict)  # of the training file, which the model folder remembers
    files: Mapping[str, str] = field(default_factory=dict)  # names of the files of `train` and `dev`, for cards

    @property
    def label(self) -> str:
        """The name of the data in results: the data set, or a name other than the type of the task."""
        return self.dataset_name or (self.name if self.name != self.task.task_type else "")

    @property
    def remembered(self) -> dict[str, Any]:
        """The columns that were chosen, for the metadata of the model folder."""
        return {"columns": dict(self.columns)} if self.columns else {}


def check_names(data: Sequence[TaskData]) -> None:
    """Raise `ConfigError` unless each of several tasks has a name of its own."""
    names = [each.name for each in data]
    if not data:
        raise ConfigError("there is no task to fine-tune for")
    for name in names:
        if re.fullmatch(r"\w[\w-]*(/\w[\w-]*)*", name) is None:
            raise ConfigError(f"{name!r} is no name for a task: use letters, digits, _ and -")
        if names.count(name) > 1:
            raise ConfigError(f"two tasks are called {name!r}: give each another name")


@dataclass(frozen=True)
class RunOptions:
    """How often a run is repeated, and what it saves.

    There is one training per seed; a number of seeds stands for 0, 1, 2…. With `from_scratch` the model starts from
    random weights. For ensembles, `keep_seeds` saves the model of every seed, and `keep_checkpoints` that many last
    epochs of each. `on_start` is called before anything is written, and `on_seed` with the `SeedResult` of each seed.
    """

    seeds: int | Sequence[int] = 1
    from_scratch: bool = False
    keep_seeds: bool = False
    keep_checkpoints: int = 0
    on_start: Callable[[], object] | None = None
    on_seed: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        list_seeds(self.seeds)

    @property
    def seed_list(self) -> list[int]:
        """The seeds, in order."""
        return list_seeds(self.seeds)


def list_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return the seeds that a number of them, or a list, stands for; raise `ConfigError` for impossible ones."""
    seed_list = list(range(min(seeds, MAX_SEEDS + 1))) if isinstance(seeds, int) else list(seeds)
    if not 1 <= len(seed_list) <= MAX_SEEDS:
        raise ConfigError(f"`seeds` is {seeds}, expected 1 to {MAX_SEEDS:,} seeds")
    if bad_seeds := [seed for seed in seed_list if type(seed) is not int or not 0 <= seed <= MAX_INTEGER]:
        raise ConfigError(f"`seeds` has {bad_seeds[0]!r}, expected integers from 0 on")
    if len(set(seed_list)) < len(seed_list):
        raise ConfigError(f"`seeds` is {seed_list}: a repeated seed repeats the same run, so each has to be another")
    return seed_list


@dataclass(frozen=True, eq=False)
class Split:
    """Examples and their encoded form."""

    examples: Sequence[Any]
    encoded: Sequence[EncodedExample]

    @property
    def num_truncated(self) -> int:
        """The number of truncated examples."""
        return len({e.example_index for e in self.encoded if e.is_truncated})


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions for dev examples and their metrics; `task` has the thresholds that were calibrated on them."""

    task: TaskConfig
    predictions: list[Any]
    metrics: dict[str, float]


@dataclass(frozen=True, eq=False)
class TaskRun:
    """A fitted task of an experiment with its encoded data."""

    task: TaskConfig
    data: TaskData
    train: Split
    dev: Split
    extra_eval: Mapping[str, Split] = field(default_factory=dict)
    before: Mapping[str, float] = field(default_factory=dict)  # metrics of the model before it was trained, if it can

    @cached_property
    def primary_metric(self) -> str:
        """The metric that selects models; raise `ConfigError` if there is no such metric."""
        examples = self.dev.examples
        known = self.task.score_values(examples, self.task.perfect_values(examples), self.data.extra_metrics)
        default = self.task.default_metric
        name = self.data.primary_metric or (default if default in known else next(iter(known)))
        if name not in known:
            raise ConfigError(f"there is no metric {name!r}; {suggest(name, known)}")
        return name

    @cached_property
    def trivial_score(self) -> float:
        """The primary metric of the majority baseline; a seed that is no better failed (Mosbach et al. 2021, §3)."""
        for name in self.task.baselines():  # the first is the trivial one
            metrics = self.task.baseline_metrics(name, self.train.examples, self.dev.examples)
            return metrics.get(self.primary_metric, -math.inf)
        return -math.inf

    def describe(self, task: TaskConfig) -> dict[str, Any]:
        """Return what a model folder records besides the task: columns, names of files, and how the model is used."""
        files = {"files": dict(self.data.files)} if self.data.files else {}
        return {**self.data.remembered, **files, "usage": task.describe_usage(self.data.train)}

    def predict(self, model: Model) -> list[Any]:
        """Predict the dev examples."""
        return predict_encoded(model, self.task, self.dev.examples, self.dev.encoded)

    def evaluate(self, predictions: list[Any]) -> Evaluation:
        """Calibrate the task on predictions for the dev examples, and compute their metrics."""
        task, predictions = self.task.calibrate(predictions, self.dev.examples)
        metrics = task.metrics(self.dev.examples, predictions, self.data.extra_metrics)
        return Evaluation(task, predictions, metrics)

    def evaluate_split(self, model: Model, task: TaskConfig, split: Split) -> float:
        """Return the primary metric on another evaluation set, with the thresholds from dev."""
        predictions = predict_encoded(model, task, split.examples, split.encoded)
        return task.metrics(split.examples, predictions, self.data.extra_metrics)[self.primary_metric]


@dataclass(frozen=True, eq=False)
class Experiment:
    """One task, or several over one trunk, that every seed is trained and evaluated on.

    Each step trains one task; an epoch has the steps of all tasks. Models are selected by the mean of the primary
    metrics. `build` creates the model of a seed and `save` writes its folder. `loss_fn` replaces the usual losses,
    `extra_targets` add terms to them, and so may `prepare_batch`. With `unlabeled` batches, every second step is one of
    them. `after_step` may change the weights after each step,
    as pruning does. `describe_model` adds facts about the best model.
    `measures_latency` is off for networks over features, whose latency would omit the extraction of the features.
    `encode` encodes more examples, which attributions need; None where that would cost too much.
    """

    runs: tuple[TaskRun, ...]
    config: FinetuneConfig
    build: Callable[[int], Model]
    save: SaveFn
    run_info: Mapping[str, Any]
    loss_fn: Callable[[Model, Batch], dict[str, Tensor]] | None = None
    extra_targets: Mapping[str, Targets] = field(default_factory=dict)
    prepare_batch: Callable[[Batch], Batch] | None = None
    unlabeled: UnlabeledFn | None = None
    after_step: Callable[[Model, int], None] | None = None
    describe_model: Callable[[Model], dict[str, Any]] = lambda model: {}
    measures_latency: bool = True
    encode: EncodeFn | None = None
    default_config: FinetuneConfig = field(default_factory=FinetuneConfig)

    @property
    def is_multitask(self) -> bool:
        """Whether the tasks have names, which results and folders then use."""
        return bool(self.runs[0].data.name)

    @property
    def epoch_steps(self) -> int:
        """The number of steps in an epoch, labeled and unlabeled."""
        labeled_steps = sum(math.ceil(len(run.train.encoded) / self.config.batch_size) for run in self.runs)
        return labeled_steps if self.unlabeled is None else 2 * labeled_steps

    @property
    def num_examples(self) -> int:
        """The number of examples in an epoch, in whole batches."""
        return self.config.batch_size * self.epoch_steps

    def batches(
        self, seed: int, total_steps: int, num_done: int = 0, trunk: TrunkConfig | None = None, bucket_len: int = 0
    ) -> StepBatches:
        """Yield the micro-batches of each step after `num_done`; unlabeled ones follow each step on labels, if any."""
        if self.unlabeled is None:
            yield from self.labeled_batches(seed, total_steps, num_done, trunk, bucket_len)
            return
        labeled = self.labeled_batches(seed, -(-total_steps // 2), -(-num_done // 2), trunk, bucket_len)
        unlabeled = self.unlabeled(seed, num_done // 2)
        for step in range(num_done, total_steps):
            yield (next(unlabeled), step) if step % 2 else next(labeled)

    def labeled_batches(
        self, seed: int, total_steps: int, num_done: int = 0, trunk: TrunkConfig | None = None, bucket_len: int = 0
    ) -> StepBatches:
        """Yield the micro-batches of each step after `num_done`; of several tasks, one is sampled for each step.

        Batches omit what `trunk` does not read. With a `bucket_len` they are padded to few shapes.
        """
        order = np.zeros(total_steps, dtype=np.int64)
        if len(self.runs) > 1:
            sizes = [len(run.train.examples) for run in self.runs]
            order = sample_tasks(sizes, self.config.sampling_alpha, total_steps, seed)
        done = np.bincount(order[:num_done], minlength=len(self.runs)).tolist()
        streams = [epoch_batches(r.task, r.train.encoded, self.config, seed, n) for r, n in zip(self.runs, done)]
        for number in order[num_done:].tolist():
            batches, position = next(streams[number])
            if self.prepare_batch is not None:
                batches = [self.prepare_batch(batch) for batch in batches]
            if trunk is not None:
                batches = [batch.for_trunk(trunk) for batch in batches]
            if self.extra_targets:
                batches = [replace(batch, targets={**batch.targets, **self.extra_targets}) for batch in batches]
            if bucket_len:
                batches = [pad_to_bucket(batch, bucket_len) for batch in batches]
            yield batches, (number, position)

    @property
    def dev_choices(self) -> list[str]:
        """What is selected on the dev examples, which makes the scores on them optimistic."""
        early = ["the epoch"] if self.config.patience else []
        return [*early, *dict.fromkeys(choice for run in self.runs for choice in run.task.dev_choices)]

    @property
    def changed_settings(self) -> dict[str, list[Any]]:
        """The default and the value of every setting that differs from its default, by dotted path."""
        pairs = json_differences(self.default_config.to_json(), self.config.to_json())
        return {path: [default, value] for path, default, value in pairs}

    def metadata(self, tasks: Sequence[TaskConfig], **extra: Any) -> dict[str, Any]:
        """Return the metadata of a model folder."""
        settings = self.config.to_json()
        if not self.is_multitask:
            return {"task": tasks[0].to_json(), "settings": settings, **self.runs[0].describe(tasks[0]), **extra}
        each: dict[str, Any] = {}
        for run, task in zip(self.runs, tasks):
            task_json = task.replace(name="").to_json()
            facts = {"data": run.data.label, **run.describe(task)}
            each[run.data.name] = {"task": task_json, "settings": settings, **facts}
        return {"tasks": each, "settings": settings, **extra}


def epoch_batches(
    task: TaskConfig, encoded: Sequence[EncodedExample], config: FinetuneConfig, seed: int, num_done: int = 0
) -> Iterator[tuple[list[Batch], tuple[int, int]]]:
    """Yield the micro-batches of each step after `num_done`, endlessly; (seed, epoch) determines the order."""
    size, codec = config.batch_size, task.codec
    epoch, skipped = divmod(num_done, math.ceil(len(encoded) / size))
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(len(encoded))
        for start in range(skipped * size, len(order), size):
            chosen = [encoded[i] for i in order[start : start + size]]
            batches = [with_settings(b, config) for b in codec.collate_step(chosen, config.micro_batch_tokens)]
            yield batches, (epoch, start + size)
        epoch, skipped = epoch + 1, 0


def sample_tasks(sizes: Sequence[int], alpha: float, total_steps: int, seed: int) -> np.ndarray:
    """Draw the task of each step, in proportion to size^α (Stickland and Murray 2019, §3.4)."""
    weights = np.array(sizes, dtype=np.float64) ** alpha
    generator = np.random.default_rng((seed, len(sizes)))
    tasks: np.ndarray = generator.choice(len(sizes), total_steps, p=weights / weights.sum())
    return tasks


def with_settings(batch: Batch, config: FinetuneConfig) -> Batch:
    """Add to a batch what the config asks for: reading in chunks, and the language-model loss."""
    if config.chunk_size:
        if batch.extra is not NO_EXTRA:
            raise ConfigError(f"chunk_size is {config.chunk_size}, but a loss over whole batches is not read in chunks")
        batch = replace(batch, extra=ChunkedExtra(config.chunk_size, config.grad_tokens))
    return with_lm_targets(batch, config.lm_loss_weight) if config.lm_loss_weight else batch


def with_lm_targets(batch: Batch, weight: float) -> Batch:
    """Add the language-model loss: every token except the first of a sequence is predicted from those before it."""
    layout = batch.inputs.layout
    rows = torch.ones(layout.num_tokens, dtype=torch.bool).index_fill(0, layout.last_indices, False).nonzero()[:, 0]
    targets = Targets(rows, batch.inputs.tokens.index_select(0, rows + 1), len(rows), weight)
    return replace(batch, targets={**batch.targets, "next": targets})
