"""One training for each seed, all measured on the same examples: what fine-tuning and networks over features share."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, suggest
from polyseme.evaluation.latency import model_latency_ms
from polyseme.evaluation.predict import MetricsFn, evaluate_predictions, predict_encoded
from polyseme.io.atomic import write_text
from polyseme.io.json import write_json
from polyseme.nn.model import Model
from polyseme.nn.packing import token_budget_batches
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder
from polyseme.objectives.batch import Batch, ChunkedExtra, Targets
from polyseme.objectives.packing import pad_to_bucket
from polyseme.progress import progress
from polyseme.report.html import write_report
from polyseme.tasks.baselines.surface import majority_baseline
from polyseme.tasks.coreference import count_unreachable_mentions
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.standard import DEFAULT_METRIC, compute_metrics
from polyseme.tasks.spans import apply_threshold, find_best_threshold
from polyseme.tasks.task import Prediction, Task
from polyseme.train.cuda_graph import can_capture
from polyseme.train.flops import count_parameters
from polyseme.train.loop import SYNC_EVERY, StepReport, TrainState, setup_device, train

if TYPE_CHECKING:
    from polyseme.finetuning.finetune import FinetuneConfig

StepBatches = Iterator[tuple[list[Batch], Any]]  # micro-batches of each step, and where it stands
SaveFn = Callable[[Path, Model, dict[str, Any]], None]  # a model, and what its folder says of it
OnSeedPredictions = Callable[
    [int, list[Prediction]], object
]  # hears of each seed what it predicts for the dev examples


@dataclass(frozen=True, eq=False)
class Split:
    """Examples, and how the model reads them."""

    examples: Sequence[Example]
    encoded: Sequence[EncodedExample]

    def num_truncated(self, task: Task) -> int:
        """How many examples lost tokens; one read in windows counts once."""
        return len(
            {e.example_index if task.task_type == "span" else i for i, e in enumerate(self.encoded) if e.is_truncated}
        )


@dataclass(frozen=True, eq=False)
class Experiment:
    """What every seed learns, is measured on, and is measured by.

    `primary_metric` is the metric that counts, if it is not the one the kind has; `extra_metrics` are further metrics,
    and `extra_eval` further examples. `loss_fn` are the losses, if not the usual ones, and `extra_targets` what else
    they have targets of. `measure_latency` says whether the speed of the model is that of its answers: over features,
    most of it was spent before.
    """

    task: Task
    train: Split
    dev: Split
    settings: FinetuneConfig
    primary_metric: str = ""
    extra_metrics: MetricsFn | None = None
    extra_eval: Mapping[str, Split] = field(default_factory=dict)
    loss_fn: Callable[[Model, Batch], dict[str, Tensor]] | None = None
    extra_targets: Mapping[str, Targets] = field(default_factory=dict)
    measure_latency: bool = True

    def resolve_primary_metric(self) -> str:
        """The metric that counts, which must be among those there are."""
        task_type, gold = self.task.task_type, [e.gold for e in self.dev.examples]
        perfect_predictions: Sequence[Any] = (
            [answer[0] if answer else "" for answer in gold] if task_type == "span" else gold
        )
        metrics = compute_metrics(task_type, gold, perfect_predictions, self.task.labels)
        metrics |= self.extra_metrics(self.dev.examples, perfect_predictions) if self.extra_metrics else {}
        primary_metric = self.primary_metric or DEFAULT_METRIC[task_type]
        if primary_metric not in metrics:
            raise ConfigError(f"there is no metric {primary_metric!r} here; {suggest(primary_metric, metrics)}")
        return primary_metric

    def evaluate(self, model: Model) -> tuple[Task, list[Prediction], dict[str, float]]:
        """What a model says of the dev examples and what that is worth; and the task with the threshold it needs."""
        return self.score_predictions(predict_encoded(model, self.task, self.dev.examples, self.dev.encoded))

    def score_predictions(self, predictions: list[Prediction]) -> tuple[Task, list[Prediction], dict[str, float]]:
        calibrated_task, predictions = tune_no_answer_threshold(
            self.task, self.settings, self.dev.examples, predictions
        )
        return (
            calibrated_task,
            predictions,
            evaluate_predictions(calibrated_task, self.dev.examples, predictions, self.extra_metrics),
        )

    @property
    def dev_choices(self) -> list[str]:
        """What is chosen on the dev examples that a score is reported on, so that it flatters."""
        choices = ["the epoch"] if self.settings.patience else []
        tunes_threshold = (
            self.task.span.null_score_diff_threshold is not None
            and self.settings.span.null_score_diff_threshold is None
        )
        return (
            [*choices, "the threshold of no answer"] if self.task.task_type == "span" and tunes_threshold else choices
        )

    def metadata(self, task: Task, **extra: Any) -> dict[str, Any]:
        """What the folder of a model says of its task."""
        settings = self.settings.replace(span=task.span).to_json()
        metadata = {"task": task.task_type, "labels": list(task.labels), "settings": settings, **extra}
        return metadata | ({"text_template": task.text_template.to_json()} if task.text_template else {})


def run_seeds(
    experiment: Experiment,
    build: Callable[[int], Model],
    save: SaveFn,
    out: Path | None,
    seeds: Sequence[int],
    run_info: dict[str, Any],
    on_predictions: OnSeedPredictions | None = None,
    keep_seeds: bool = False,
    keep_checkpoints: int = 0,
) -> dict[str, Any]:
    """Train once for each seed the model that `build` makes for it, measure, and write the run folder.

    For ensembles: with `keep_seeds` the model of every seed stays, in `seeds/N`; of each seed the last so many
    `keep_checkpoints`, one an epoch, in `checkpoints/seed-N/step-N`, as model folders.
    """
    task, settings, dev, primary_metric = (
        experiment.task,
        experiment.settings,
        experiment.dev,
        experiment.resolve_primary_metric(),
    )
    num_examples = len(experiment.train.encoded)
    majority_score = majority_baseline(experiment.train.examples, dev.examples, task.task_type).get(
        primary_metric, -math.inf
    )
    log_rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    predictions_by_seed: dict[int, list[Any]] = {}
    extra_scores: dict[str, list[float]] = {name: [] for name in experiment.extra_eval}
    best: tuple[float, int, Model, Task] | None = None
    cost = {"tokens": 0, "flops": 0, "seconds": 0.0}
    predict_seconds = 0.0
    for seed in seeds:
        run = build_train_state(build(seed), settings, num_examples, seed)
        run.loss_fn = experiment.loss_fn or run.loss_fn
        start_time = time.perf_counter()
        seed_info = {"data": run_info.get("data", ""), "seed": seed}
        checkpoint_keeper = (
            CheckpointKeeper(experiment, save, out / "checkpoints" / f"seed-{seed}", keep_checkpoints, seed_info)
            if out
            else None
        )
        reports = _train_one_seed(experiment, run, seed, primary_metric, checkpoint_keeper)
        log_rows += _log_rows(seed, reports)
        cost["tokens"] += sum(report.tokens for report in reports)
        cost["flops"] += sum(report.flops for report in reports)
        cost["seconds"] += time.perf_counter() - start_time
        start_time = time.perf_counter()
        dev_predictions = predict_encoded(run.model, task, dev.examples, dev.encoded)
        predict_seconds += time.perf_counter() - start_time
        calibrated_task, dev_predictions, metrics = experiment.score_predictions(dev_predictions)
        if out is not None and keep_seeds:
            save(out / "seeds" / str(seed), run.model, experiment.metadata(calibrated_task, **seed_info))
        if on_predictions is not None:
            on_predictions(seed, dev_predictions)
        predictions_by_seed[seed] = [p.value for p in dev_predictions]
        for name, split in experiment.extra_eval.items():
            extra_predictions = predict_encoded(run.model, calibrated_task, split.examples, split.encoded)
            extra_scores[name].append(
                evaluate_predictions(calibrated_task, split.examples, extra_predictions, experiment.extra_metrics)[
                    primary_metric
                ]
            )
        runs.append({"seed": seed, primary_metric: metrics[primary_metric], **metrics})
        if best is None or metrics[primary_metric] > best[0]:
            best = (metrics[primary_metric], seed, run.model, calibrated_task)
    assert best is not None
    results = {
        "task": task.task_type,
        **run_info,
        "primary_metric": primary_metric,
        **_summarize(runs),
        **({"extra_eval": extra_scores} if extra_scores else {}),
        "best_seed": best[1],
        "majority_score": majority_score if math.isfinite(majority_score) else None,
        "failed_seeds": [run["seed"] for run in runs if run[primary_metric] <= majority_score],
        "steps": settings.total_steps(num_examples),
        "train_examples": len(experiment.train.examples),
        "dev_examples": len(dev.examples),
        "num_truncated": {
            name: split.num_truncated(task) for name, split in (("train", experiment.train), ("dev", dev))
        },
        **count_unreachable_mentions(task, experiment.train.examples, dev.examples),
        "chosen_on_dev": experiment.dev_choices,
        "parameters": count_parameters(best[2]),
        **cost,
    }
    if experiment.measure_latency:
        results["examples_per_second"] = len(seeds) * len(dev.examples) / predict_seconds
    if out is not None:
        if experiment.measure_latency:
            results["ms_per_text"] = model_latency_ms(best[2], task, dev)
        selection = f"seed {best[1]}: the best {primary_metric} on the dev examples of {len(seeds)} seed(s)"
        metadata = experiment.metadata(best[3], data=run_info.get("data", ""), results=results, selection=selection)
        write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for row in log_rows))
        save(out / "model", best[2], metadata)
        gold = [e.gold for e in dev.examples]
        write_json(out / "predictions.json", {"gold": gold, "predictions": predictions_by_seed, "labels": task.labels})
        write_json(out / "results.json", results)
        write_report(out)
    return results


def _train_one_seed(
    experiment: Experiment,
    run: TrainState,
    seed: int,
    primary_metric: str,
    checkpoint_keeper: CheckpointKeeper | None = None,
) -> list[StepReport]:
    """Train one seed's model; with patience, to the best of its epochs."""
    early_stopping, reports = EarlyStopping(experiment.settings.patience), []
    steps_per_epoch = math.ceil(len(experiment.train.encoded) / experiment.settings.batch_size)
    with progress(f"finetune, seed {seed}", run.total_steps, "steps") as bar:
        for report in train_with_unfreezing(
            run, experiment.task, experiment.train.encoded, experiment.settings, seed, experiment.extra_targets
        ):
            is_synced = run.device.type == "cpu" or report.step % SYNC_EVERY == 0  # when the loop has asked the GPU
            bar.advance(1, f"loss {report.loss[experiment.task.head_name]:.3f}" if is_synced else "")
            reports.append(report)
            if checkpoint_keeper and (report.step % steps_per_epoch == 0 or report.step == run.total_steps):
                checkpoint_keeper.add(report.step, run.model)
            if early_stopping.patience and report.step % steps_per_epoch == 0:
                early_stopping.update(report.step, experiment.evaluate(run.model)[2][primary_metric], run.model)
                if early_stopping.should_stop:
                    break
    early_stopping.restore(run.model)
    return reports


class CheckpointKeeper:
    """The last `max_checkpoints` states of a model, as whole model folders; each says what it was worth on the dev
    examples.
    """

    def __init__(
        self, experiment: Experiment, save: SaveFn, folder: Path, max_checkpoints: int, seed_info: dict[str, Any]
    ):
        self.experiment, self.save, self.folder, self.max_checkpoints, self.seed_info = (
            experiment,
            save,
            folder,
            max_checkpoints,
            seed_info,
        )
        self.paths: list[Path] = []

    def add(self, step: int, model: Model) -> None:
        if not self.max_checkpoints:
            return
        calibrated_task, _, metrics = self.experiment.evaluate(model)
        self.paths.append(self.folder / f"step-{step}")
        self.save(
            self.paths[-1], model, self.experiment.metadata(calibrated_task, **self.seed_info, step=step, dev=metrics)
        )
        while len(self.paths) > self.max_checkpoints:
            shutil.rmtree(self.paths.pop(0))


class EarlyStopping:
    """The best of several states of a model; without patience there is but the last."""

    def __init__(self, patience: int):
        self.patience, self.best_score, self.best_step, self.num_bad_epochs = patience, -math.inf, 0, 0
        self.best_state: dict[str, torch.Tensor] = {}

    def update(self, step: int, score: float, model: Model) -> None:
        self.num_bad_epochs += 1
        if score > self.best_score:
            self.best_score, self.best_step, self.num_bad_epochs = score, step, 0
            self.best_state = {name: t.detach().to("cpu", copy=True) for name, t in model.state_dict().items()}

    @property
    def should_stop(self) -> bool:
        return self.num_bad_epochs >= self.patience > 0

    def restore(self, model: Model) -> None:
        if self.best_state:
            model.load_state_dict(self.best_state)


def tune_no_answer_threshold(
    task: Task, settings: FinetuneConfig, examples: Sequence[Example], predictions: list[Prediction]
) -> tuple[Task, list[Prediction]]:
    """Where questions may have no answer and nobody gave a threshold: the task with the best one, and its answers."""
    if (
        task.task_type != "span"
        or task.span.null_score_diff_threshold is None
        or settings.span.null_score_diff_threshold is not None
    ):
        return task, predictions
    spans = [p.span for p in predictions if p.span]
    threshold = find_best_threshold(examples, spans)
    final_predictions = [
        Prediction(span=apply_threshold(span, e.text or "", threshold)) for e, span in zip(examples, spans)
    ]
    return dataclasses.replace(task, span=task.span.replace(null_score_diff_threshold=threshold)), final_predictions


def build_train_state(model: Model, settings: FinetuneConfig, num_examples: int, seed: int) -> TrainState:
    """A run of the one loop, its optimiser with a rate for each group of parameters."""
    device = setup_device()
    model = model.to(device)
    param_groups = layer_groups(model)
    if settings.num_frozen_groups > len(param_groups):
        raise ConfigError(f"cannot freeze {settings.num_frozen_groups} groups: the model has {len(param_groups)}")
    for group in param_groups[: settings.num_frozen_groups]:
        for parameter in group:
            parameter.requires_grad_(False)
    trunk = model.config.trunk
    if settings.chunk_size and not (trunk.has_bounded_memory or (trunk.causal and trunk.num_layers)):
        raise ConfigError(
            f"chunk_size is {settings.chunk_size}, but {model.config.family} has no memory to read on with"
        )
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "float32"
    return TrainState(
        model,
        settings.optimizer.build(model, param_groups),
        settings.optimizer,
        settings.schedule,
        settings.total_steps(num_examples),
        device,
        precision,
        seed,
        use_cuda_graphs=device.type == "cuda"
        and precision == "bf16"
        and not is_text_to_text(model)
        and not any(head.crf for head in model.heads.values())
        and can_capture(model, has_static_shapes=False, is_padded=True),
    )


def is_text_to_text(model: Model) -> bool:
    """Whether it answers in text: then its decoder has something to read."""
    return isinstance(model.trunk, EncoderDecoder) and "next" in model.heads


def layer_groups(model: Model) -> list[list[torch.nn.Parameter]]:
    """Parameters from input to output; of two stacks those of the encoder, unless there is a target to decode."""
    trunk = model.trunk
    return (
        trunk.encoder.layer_groups()
        if isinstance(trunk, EncoderDecoder) and not is_text_to_text(model)
        else trunk.layer_groups()
    )


def train_with_unfreezing(
    run: TrainState,
    task: Task,
    encoded: Sequence[EncodedExample],
    settings: FinetuneConfig,
    seed: int,
    extra_targets: Mapping[str, Targets] | None = None,
) -> Iterator[StepReport]:
    """The one loop, once for each phase of unfreezing."""
    return run_phases(
        run,
        settings,
        len(encoded),
        lambda first: epoch_batches(task, encoded, settings, seed, run, first, extra_targets),
    )


def run_phases(
    run: TrainState, settings: FinetuneConfig, num_examples: int, stream: Callable[[int], StepBatches]
) -> Iterator[StepReport]:
    """The same for any steps: `stream` gives those after the first so many."""
    param_groups = layer_groups(run.model)
    if not any(True for _ in run.model.heads.parameters()):
        param_groups = param_groups[:-1]  # no head is new: the last layer learns from the beginning
    for first, end, num_frozen in settings.unfreezing_phases(num_examples, len(param_groups)):
        for group_index, group in enumerate(param_groups):
            for parameter in group:
                parameter.requires_grad_(group_index >= num_frozen)
        phase = dataclasses.replace(run, start_step=first, schedule_start=first, total_steps=end)
        yield from train(phase, stream(first))


def epoch_batches(
    task: Task,
    encoded: Sequence[EncodedExample],
    settings: FinetuneConfig,
    seed: int,
    run: TrainState | None = None,
    num_done: int = 0,
    extra_targets: Mapping[str, Targets] | None = None,
) -> Iterator[tuple[list[Batch], tuple[int, int]]]:
    """Micro-batches of each step after the `num_done` ones, without end: each epoch is a permutation of (seed, epoch).

    Those of a `run` that records its kernels are filled up to few shapes.
    """
    batch_size = settings.batch_size
    epoch, num_skipped = divmod(num_done, math.ceil(len(encoded) / batch_size))
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(len(encoded))
        for start in range(num_skipped * batch_size, len(order), batch_size):
            step_examples = [encoded[i] for i in order[start : start + batch_size]]
            micro_batches = token_budget_batches([len(e.ids) for e in step_examples], settings.micro_batch_tokens)
            batches = [task.collate([step_examples[i] for i in members])[0] for members in micro_batches]
            if run is not None:
                batches = [b.for_trunk(run.model.config.trunk) for b in batches]
            if settings.chunk_size:
                extra = ChunkedExtra(settings.chunk_size, settings.grad_tokens)
                batches = [dataclasses.replace(b, extra=extra) for b in batches]
            if extra_targets:
                batches = [dataclasses.replace(b, targets={**b.targets, **extra_targets}) for b in batches]
            if settings.lm_loss_weight:
                batches = [_with_lm_targets(batch, settings.lm_loss_weight) for batch in batches]
            if run is not None and run.use_cuda_graphs:
                batches = [pad_to_bucket(batch, run.model.config.trunk.embeddings.max_len) for batch in batches]
            yield batches, (epoch, start + batch_size)
        epoch, num_skipped = epoch + 1, 0


def _with_lm_targets(batch: Batch, weight: float) -> Batch:
    """The batch with one more term: each token but a sequence's first, from those before it."""
    rows = (
        torch.ones(batch.inputs.layout.num_tokens, dtype=torch.bool)
        .index_fill(0, batch.inputs.layout.last_indices, False)
        .nonzero()[:, 0]
    )
    targets = Targets(rows, batch.inputs.tokens.index_select(0, rows + 1), len(rows), weight)
    return dataclasses.replace(batch, targets={**batch.targets, "next": targets})


def _summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Every run, and of each metric the mean and the sample deviation (None for one seed: it is unknown)."""
    names = [name for name in runs[0] if name != "seed"]
    values = {name: [run[name] for run in runs] for name in names}
    return {
        "seeds": runs,
        "mean": {name: statistics.fmean(v) for name, v in values.items()},
        "std": {name: statistics.stdev(v) if len(v) > 1 else None for name, v in values.items()},
    }


def _log_rows(seed: int, reports: Sequence[StepReport]) -> list[dict[str, Any]]:
    """The log of a run. What lies on a GPU comes in one transfer: thousands would each wait for their turn."""
    rows = []
    for report, values in zip(reports, torch.stack([report.raw_metrics for report in reports]).tolist()):
        *losses, grad_norm, is_nonfinite = values
        if is_nonfinite:
            report.metrics  # noqa: B018  # raises, and says which step
        loss = dict(zip(report.terms, losses))
        row = {"step": report.step, "loss": loss, "lr": report.lr, "grad_norm": grad_norm, "tokens": report.tokens}
        rows.append({"seed": seed, **row})
    return rows
