"""`polyseme.evaluate` and `polyseme.predict`."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import ConfigError, DataError, UnsupportedError, require_packages, suggest
from polyseme.evaluation.minimal_pairs import MINIMAL_PAIR_TASKS
from polyseme.evaluation.predict import find_models, predict_ensemble
from polyseme.evaluation.streaming import Source, hash_path, run_windows
from polyseme.evaluation.submission import SUBMISSION_FILES, submission_format
from polyseme.finetuning.api import ReadOptions, find_task_type
from polyseme.inference.base import LanguageModel
from polyseme.inference.feature_model import FeatureModel
from polyseme.inference.load import load, load_neural
from polyseme.inference.prediction import count_truncated, log_truncated, median_latency_ms, select_task
from polyseme.inference.prediction import predict as predict_examples
from polyseme.io.partial import PartialOutput, part_path
from polyseme.io.specs import STDIN, split_spec
from polyseme.report.results import EvaluationResult
from polyseme.tasks import TASKS, load_task
from polyseme.tasks.base import TaskConfig, require_gold
from polyseme.tasks.readers.columns import SPEC_OPTIONS, Columns
from polyseme.text.arguments import check_list
from polyseme.train.loop import count_parameters


@dataclass(frozen=True)
class TaskPredictor:
    """One task model, or an ensemble of several. `dev_choices` were made on the dev examples of `dataset`."""

    task: TaskConfig
    num_parameters: int
    predict: Callable[..., list[Any]]
    metadata: Sequence[dict[str, Any]]
    paths: Sequence[Path]
    is_multitask: bool = False
    truncate: bool | None = None

    @property
    def dataset(self) -> str:
        """The data set that the model was fine-tuned on."""
        return str(self.metadata[0].get("data", ""))

    @property
    def dev_choices(self) -> tuple[str, ...]:
        """What was chosen on the dev examples: settings, epochs, the best of several seeds."""
        choices: list[str] = []
        for results in (each.get("results", {}) for each in self.metadata):
            choices += results.get("chosen_on_dev", [])
            choices += [f"the best of {len(results['seeds'])} seeds"] if len(results.get("seeds", ())) > 1 else []
        return tuple(dict.fromkeys(choices))

    def read(self, data: Any, name: str, split: str, options: ReadOptions, needs_labels: bool = True) -> list[Any]:
        """Read a split of the data set of this name, or else the file or values of the task of this name."""
        if name in DATASETS:
            return DATASETS[name].read_split(data, split, options.skip_bad, needs_labels)
        data = data if isinstance(data, str | Path) else check_list(data, "example")
        return options.read(self._task_type(name), data, self.columns(options), needs_labels)

    def open(self, data: Any, name: str, options: ReadOptions) -> Source[Any]:
        """Return unlabeled examples as `read` does, those of a file without holding them."""
        if not isinstance(data, str | Path) or name in DATASETS or options.strict:
            examples = self.read(data, name, "test", options, needs_labels=False)
            return Source(Path(data) if isinstance(data, str | Path) else None, lambda _: examples)
        task_type = self._task_type(name)
        path, columns = task_type.open_input(data, replace(self.columns(options), keep_rows=True))
        read = partial(task_type.iter_examples, path, columns, skip_bad=options.skip_bad)
        return Source(path, lambda is_first: read(log_skipped=is_first))

    def columns(self, options: ReadOptions) -> Columns:
        """Return the chosen columns, and those of fine-tuning."""
        return replace(options.columns, remembered=Columns.from_metadata(self.metadata[0]))

    def _task_type(self, name: str) -> type[TaskConfig]:
        return find_task_type(name) if name and not self.is_multitask else type(self.task)


def load_predictor(models: Any, task: str = "", ensemble: bool = False, truncate: bool | None = None) -> TaskPredictor:
    """Load a task model, or with `ensemble` several models or all that a run kept, whose outputs are averaged."""
    paths = [models] if isinstance(models, str | Path | LanguageModel) else check_list(models, "model")
    if not paths:
        raise ConfigError("there is no model: pass a folder or a loaded model, or a list of them")
    if ensemble:
        paths = [p for path in paths for p in (find_models(Path(path)) if isinstance(path, str | Path) else [path])]
    if ensemble != (len(paths) > 1):
        single = f"`ensemble` is for several models, or a run with `keep_seeds`: {paths[0]} is one model"
        raise ConfigError(single if ensemble else "several models are an ensemble: set `ensemble`")
    loaded = [load(path) for path in paths]
    resolved = [model.path.resolve() for model in loaded]
    if repeated := [path for i, path in enumerate(resolved) if path in resolved[:i]]:
        raise ConfigError(f"{repeated[0]} is given twice: an ensemble has different models")
    for model in loaded:
        if isinstance(model, FeatureModel):
            if ensemble:
                raise ConfigError(f"{model.path} is trained over features, and `ensemble` is for fine-tuned models")
            is_multitask, model = "tasks" in model.metadata, model.select(task)
            modules = [model.model, *(encoder.model.trunk for encoder in model.reader.encoders)]
            num_parameters = sum(map(count_parameters, modules))
            facts = [model.metadata], [model.path], is_multitask
            return TaskPredictor(model.task, num_parameters, model.predict_examples, *facts)
    networks = [load_neural(model) for model in loaded]
    folders = [select_task(network.folder, task, network.tasks) for network in networks]
    task_config = load_task(folders[0].metadata, folders[0].model.config, networks[0].tasks)

    def predict_fn(examples: Sequence[Any], use_labels: bool = False) -> list[Any]:
        if ensemble:
            return predict_ensemble(folders, examples, truncate, use_labels)[1]
        return predict_examples(folders[0], examples, task_config, truncate=truncate, use_labels=use_labels)

    num_parameters = sum(count_parameters(folder.model) for folder in folders)
    is_multitask = "tasks" in networks[0].folder.metadata
    metadata, model_paths = [folder.metadata for folder in folders], [model.path for model in loaded]
    return TaskPredictor(task_config, num_parameters, predict_fn, metadata, model_paths, is_multitask, truncate)


def evaluate(
    models: Any, data: Any, task: str, ensemble: bool, truncate: bool | None, options: ReadOptions
) -> EvaluationResult:
    """Compute the metrics and measure the speed; see `polyseme.evaluate`."""
    try:
        predictor = load_predictor(models, task, ensemble, truncate)
    except UnsupportedError:  # a model without a task
        known = (*DATASETS, *TASKS, *MINIMAL_PAIR_TASKS)
        if task and task not in known:
            raise ConfigError(f"there is no task or data set {task!r}; {suggest(task, known)}") from None
        raise
    require_packages(predictor.task.required_packages)
    examples = predictor.read(data, task, "dev", options)
    require_gold(examples)
    started = time.perf_counter()
    extra_metrics = DATASETS[task].extra_metrics if task in DATASETS else None
    metrics = predictor.task.metrics(examples, predictor.predict(examples, use_labels=True), extra_metrics)
    seconds = time.perf_counter() - started
    log_level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # truncated texts have been reported
    try:
        latency_ms = median_latency_ms(lambda i: predictor.predict([examples[i]]), len(examples))
    finally:
        logging.disable(log_level)
    choices = predictor.dev_choices if task and task == predictor.dataset else ()
    speed = len(examples) / seconds
    positive_label = getattr(predictor.task, "f1_label", "")
    sizes = (len(examples), predictor.num_parameters, speed, latency_ms)
    return EvaluationResult(metrics, *sizes, choices, positive_label)


def predict(
    models: Any,
    data: Any,
    out: Path | None,
    task: str,
    ensemble: bool,
    truncate: bool | None,
    options: ReadOptions,
    resume: bool = False,
) -> list[Any]:
    """Predict unlabeled examples and write the predictions; see `polyseme.predict`."""
    if out is None and resume:
        raise ConfigError("`resume` needs an output file: set `out`")
    if isinstance(data, str) and not task and not Path(split_spec(data, SPEC_OPTIONS)[0]).exists() and data != STDIN:
        raise DataError(f"there is no file {data[:80]!r}: `data` is a file, or a list of texts")
    predictor = load_predictor(models, task, ensemble, truncate)
    if out is None:
        predictions: list[Any] = predictor.predict(predictor.read(data, task, "test", options, needs_labels=False))
        return predictions
    predictions = []
    predict_file(predictor, data, out, task, options, resume, predictions.extend)
    return predictions


def predict_file(
    predictor: TaskPredictor,
    data: Any,
    out: Path,
    task: str,
    options: ReadOptions,
    resume: bool = False,
    collect: Callable[[list[Any]], object] = lambda predictions: None,
) -> int:
    """Predict unlabeled examples and write the predictions without holding them; return their number.

    `collect` is called with the predictions of each window. With `resume`, those that an interrupted run has written
    are neither computed again nor collected.
    """
    source = predictor.open(data, task, options)
    formats = {out: submission_format(task)} if task in SUBMISSION_FILES else predictor.task.output_formats(out, source)
    targets = {part_path(file): file for file in formats}
    group_key = next((each.group_key for each in formats.values() if each.group_key), None)

    def settings() -> dict[str, Any]:
        model_hashes = [hash_path(path) for path in predictor.paths]
        truncation = {"task": task, "truncate": predictor.truncate}
        spec = {"data": str(data)} if isinstance(data, str | Path) else {}
        return {"input": source.hash, "model": model_hashes, **truncation, **spec, **asdict(options)}

    def compute(window: list[Any], start: int, summary: dict[str, Any]) -> list[bytes]:
        with count_truncated(summary.setdefault("truncated", {})):
            predictions = predictor.predict(window)
        collect(predictions)
        return [each.format_window(window, predictions, start).encode() for each in formats.values()]

    def install() -> None:
        for (part, file), each in zip(targets.items(), formats.values()):
            if part.exists():  # else it was complete before
                each.install(part, file)

    output = PartialOutput(out, list(targets), install, settings, resume)
    footers = [each.footer.encode() for each in formats.values()]
    windows = source.windows(group_key=group_key)
    summary = run_windows(source, windows, output, compute, lambda _: footers, "predict", "examples")
    log_truncated(summary.get("truncated", {}), source.total)
    return source.total
