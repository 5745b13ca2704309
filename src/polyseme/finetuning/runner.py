"""The experiment runner: seeds, early stopping, the best checkpoint, metrics on extra sets.

It drives single tasks, several tasks over one trunk, networks over frozen features, and text-to-text models. Layer
groups have their own learning rates, and may be frozen or unfrozen one by one.
"""

import math
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from polyseme.errors import ConfigError
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import Evaluation, Experiment, RunOptions
from polyseme.finetuning.results import ExperimentResults
from polyseme.nn.model import Model
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder
from polyseme.progress import progress
from polyseme.train.loop import SYNC_EVERY, StepReport, TrainState, setup_device, train
from polyseme.train.optimizer import load_optimizer_state_dict, optimizer_state_dict
from polyseme.train.step import can_capture


def run_experiment(experiment: Experiment, out: Path | None, options: RunOptions = RunOptions()) -> dict[str, Any]:
    """Train once per seed, evaluate on the dev examples, and write the run folder; return the results.

    `out` gets `results.json`, `log.jsonl`, `predictions.json` and the model of the seed that did best on the dev
    examples (that choice makes its own score optimistic, but not the mean).
    """
    results = ExperimentResults(experiment)
    best: tuple[float, int, Model, list[Evaluation]] | None = None
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        training = SeedTraining(experiment, seed)
        keeper = CheckpointKeeper(experiment, out, seed, options.keep_checkpoints)
        started = time.perf_counter()
        reports = []
        for report in training.steps():
            reports.append(report)
            if training.is_epoch_end or report.step == training.state.total_steps:
                keeper.add(report.step, training.model)
        results.add_training(seed, reports, time.perf_counter() - started)
        evaluations = results.add_seed(seed, training.model)
        if out is not None and options.keep_seeds:
            metadata = experiment.metadata([e.task for e in evaluations], **_seed_info(experiment, seed))
            experiment.save(out / "seeds" / str(seed), training.model, metadata)
        if options.on_predictions is not None:
            options.on_predictions(seed, evaluations[0].predictions)
        if best is None or results.seed_scores[seed] > best[0]:
            best = (results.seed_scores[seed], seed, training.model, evaluations)
    assert best is not None
    _, seed, model, evaluations = best
    summary = results.summarize(seed, model, has_folder=out is not None)
    if out is not None:
        results.write(out, summary, model, experiment.metadata([e.task for e in evaluations]))
    return summary


class SeedTraining:
    """The training of one seed, which can stop after any step and continue exactly.

    Its state is plain data and tensors: seed, step, model, optimizer, and the best epoch so far.
    """

    def __init__(self, experiment: Experiment, seed: int):
        self.experiment, self.seed, self.step = experiment, seed, 0
        self.state = build_train_state(experiment, seed)
        self.early_stopping = EarlyStopping(experiment.config.patience)

    @property
    def model(self) -> Model:
        """The model in its current state."""
        return self.state.model

    @property
    def is_epoch_end(self) -> bool:
        """Whether the last step was the last of an epoch."""
        return self.step % self.experiment.epoch_steps == 0

    def steps(self) -> Iterator[StepReport]:
        """Train to the end, or with patience to the best epoch; yield a report after each step."""
        experiment, state = self.experiment, self.state
        terms = {run.task.codec.head_name for run in experiment.runs}
        with progress(f"finetune, seed {self.seed}", state.total_steps, "steps") as bar:
            bar.advance(self.step)
            for report in run_phases(experiment, state, self.seed, self.step):
                self.step = report.step
                is_synced = state.device.type == "cpu" or report.step % SYNC_EVERY == 0
                losses = [f"{loss:.3f}" for term, loss in report.loss.items() if term in terms] if is_synced else []
                bar.advance(1, f"loss {losses[0]}" if losses else "")
                if self.early_stopping.patience and self.is_epoch_end:
                    self.early_stopping.update(report.step, self._dev_score(), self.model)
                yield report
                if self.early_stopping.should_stop:
                    break
        self.early_stopping.restore(self.model)

    def _dev_score(self) -> float:
        runs = self.experiment.runs
        return statistics.fmean(run.evaluate(run.predict(self.model)).metrics[run.primary_metric] for run in runs)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is needed to continue."""
        optimizer_state = optimizer_state_dict(self.state.optimizer, self.model)
        return {
            "seed": self.seed,
            "step": self.step,
            "model": {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()},
            "optimizer": {name: tensor.clone() for name, tensor in optimizer_state.items()},
            "early_stopping": dict(vars(self.early_stopping)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.seed, self.step = state["seed"], state["step"]
        self.model.load_state_dict(state["model"])
        load_optimizer_state_dict(self.state.optimizer, self.model, state["optimizer"])
        self.early_stopping = EarlyStopping(**state["early_stopping"])


@dataclass
class EarlyStopping:
    """Keeps the best of several states of a model; without patience there is only the last."""

    patience: int
    best_score: float = -math.inf
    best_step: int = 0
    num_bad_epochs: int = 0
    best_state: dict[str, torch.Tensor] = field(default_factory=dict)

    def update(self, step: int, score: float, model: Model) -> None:
        """Record the score of an epoch, and the model if it is the best so far."""
        self.num_bad_epochs += 1
        if score > self.best_score:
            self.best_score, self.best_step, self.num_bad_epochs = score, step, 0
            self.best_state = {name: t.detach().to("cpu", copy=True) for name, t in model.state_dict().items()}

    @property
    def should_stop(self) -> bool:
        """Whether as many epochs as `patience` in a row were no better than the best."""
        return self.num_bad_epochs >= self.patience > 0

    def restore(self, model: Model) -> None:
        """Load the best state, if one was recorded."""
        if self.best_state:
            model.load_state_dict(self.best_state)


class CheckpointKeeper:
    """Keeps the last epochs of a seed as whole model folders; each records its metrics on the dev examples."""

    def __init__(self, experiment: Experiment, out: Path | None, seed: int, max_checkpoints: int):
        self.experiment, self.seed = experiment, seed
        self.max_checkpoints = max_checkpoints if out is not None else 0
        self.folder = Path() if out is None else out / "checkpoints" / f"seed-{seed}"
        self.paths: list[Path] = []

    def add(self, step: int, model: Model) -> None:
        """Save the model after a step, and remove the oldest checkpoint if there are too many."""
        if not self.max_checkpoints:
            return
        evaluations = [run.evaluate(run.predict(model)) for run in self.experiment.runs]
        info = {**_seed_info(self.experiment, self.seed), "step": step, "dev": evaluations[0].metrics}
        self.paths.append(self.folder / f"step-{step}")
        self.experiment.save(self.paths[-1], model, self.experiment.metadata([e.task for e in evaluations], **info))
        if len(self.paths) > self.max_checkpoints:
            shutil.rmtree(self.paths.pop(0))


def _seed_info(experiment: Experiment, seed: int) -> dict[str, Any]:
    return {"data": experiment.run_info.get("data", ""), "seed": seed}


def build_train_state(experiment: Experiment, seed: int) -> TrainState:
    """Build the model of a seed and its training state."""
    state = train_state(experiment.build(seed), experiment.config, experiment.num_examples, seed)
    state.loss_fn = experiment.loss_fn or state.loss_fn
    if experiment.is_multitask:
        state.use_cuda_graphs = False  # a graph gives unused heads zero gradients instead of none
    return state


def train_state(model: Model, config: FinetuneConfig, num_examples: int, seed: int) -> TrainState:
    """Return a training state whose optimizer has a learning rate for each group of parameters."""
    device = setup_device()
    model = model.to(device)
    groups = layer_groups(model)
    if config.num_frozen_groups > len(groups):
        raise ConfigError(f"cannot freeze {config.num_frozen_groups} groups: the model has {len(groups)}")
    for group in groups[: config.num_frozen_groups]:
        for parameter in group:
            parameter.requires_grad_(False)
    trunk = model.config.trunk
    if config.chunk_size and not (trunk.has_bounded_memory or (trunk.causal and trunk.num_layers)):
        family = model.config.family
        raise ConfigError(f"chunk_size is {config.chunk_size}, but {family} has no memory to continue from")
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "float32"
    use_cuda_graphs = (
        device.type == "cuda"
        and precision == "bf16"
        and not has_decoder(model)
        and not any(head.crf for head in model.heads.values())
        and can_capture(model, has_static_shapes=False, is_padded=True)
    )
    optimizer, total_steps = config.optimizer.build(model, groups), config.total_steps(num_examples)
    state = TrainState(model, optimizer, config.optimizer, config.schedule, total_steps, device, precision, seed)
    return replace(state, use_cuda_graphs=use_cuda_graphs)


def has_decoder(model: Model) -> bool:
    """Whether the model answers in text, so that its decoder is used."""
    return isinstance(model.trunk, EncoderDecoder) and "next" in model.heads


def layer_groups(model: Model) -> list[list[torch.nn.Parameter]]:
    """Return the parameters from input to output; only those of the encoder if the decoder is not used."""
    trunk = model.trunk
    if isinstance(trunk, EncoderDecoder) and not has_decoder(model):
        return trunk.encoder.layer_groups()
    return trunk.layer_groups()


def run_phases(experiment: Experiment, state: TrainState, seed: int, num_done: int = 0) -> Iterator[StepReport]:
    """Run the training loop for each phase of unfreezing, from step `num_done` on."""
    groups = layer_groups(state.model)
    if not any(True for _ in state.model.heads.parameters()):
        groups = groups[:-1]  # there is no new head, so the last layer is trained from the start
    bucket_len = state.model.config.trunk.embeddings.max_len if state.use_cuda_graphs else 0
    total = state.total_steps
    for first, end, num_frozen in experiment.config.unfreezing_phases(experiment.num_examples, len(groups)):
        if end <= num_done:
            continue
        for number, group in enumerate(groups):
            for parameter in group:
                parameter.requires_grad_(number >= num_frozen)
        start = max(first, num_done)
        phase = replace(state, start_step=start, schedule_start=first, total_steps=end)
        yield from train(phase, experiment.batches(seed, total, start, state.model.config.trunk, bucket_len))
