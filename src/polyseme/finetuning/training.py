"""The training of one seed: early stopping, layer groups with their own learning rates, gradual unfreezing."""

import math
import statistics
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from polyseme.errors import ConfigError
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.diagnostics import DevCurve
from polyseme.finetuning.experiment import Experiment
from polyseme.finetuning.results import log_rows
from polyseme.nn.model import Model
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder
from polyseme.nn.trunks.image_text import ImageText
from polyseme.progress import progress
from polyseme.train.checkpoint import Checkpoint
from polyseme.train.loop import SYNC_EVERY, StepReport, TrainState, setup_device, train
from polyseme.train.optimizer import load_optimizer_state_dict, optimizer_state_dict
from polyseme.train.step import can_capture


class SeedTraining:
    """The training of one seed, which can stop after any step and continue exactly.

    `log` has the rows of its steps, and `cost` the tokens, operations and seconds, of all calls that continued it.
    """

    def __init__(self, experiment: Experiment, seed: int):
        self.experiment, self.seed, self.step = experiment, seed, 0
        self.state = build_train_state(experiment, seed)
        self.early_stopping = EarlyStopping(experiment.config.patience)
        self.dev_curve = DevCurve(experiment)
        self._dev_scores: dict[int, dict[str, float]] = {}  # by step, of those that are not in the log yet
        self._log: list[dict[str, Any]] = []
        self._cost: dict[str, Any] = {"tokens": 0, "flops": 0, "seconds": 0.0}
        self._reports: list[StepReport] = []  # those that are not in the log yet
        self._started = time.perf_counter()

    @property
    def model(self) -> Model:
        """The model in its current state."""
        return self.state.model

    @property
    def is_epoch_end(self) -> bool:
        """Whether the last step was the last of an epoch."""
        return self.step % self.experiment.epoch_steps == 0

    @property
    def log(self) -> list[dict[str, Any]]:
        """The rows of the steps so far; on a GPU, reading them waits for the last step."""
        if self._reports:
            for row in log_rows(self.seed, self._reports):
                scores = self._dev_scores.pop(row["step"], None)
                self._log.append(row | ({"dev": scores} if scores else {}))
            self._reports.clear()
        return self._log

    @property
    def cost(self) -> dict[str, Any]:
        """The tokens, operations and seconds so far."""
        return self._cost | {"seconds": self._cost["seconds"] + time.perf_counter() - self._started}

    def steps(self) -> Generator[StepReport, None, None]:
        """Train to the end, or with patience to the best epoch; yield a report after each step."""
        experiment, state = self.experiment, self.state
        terms = {run.task.codec.head_name for run in experiment.runs}
        self._started = time.perf_counter()
        with progress(f"finetune, seed {self.seed}", state.total_steps, "steps") as bar:
            bar.advance(self.step)
            for report in (
                () if self.early_stopping.should_stop else run_phases(experiment, state, self.seed, self.step)
            ):
                self.step = report.step
                self._reports.append(report)
                self._cost["tokens"] += report.tokens
                self._cost["flops"] += report.flops
                is_synced = state.device.type == "cpu" or report.step % SYNC_EVERY == 0
                losses = [f"{loss:.3f}" for term, loss in report.loss.items() if term in terms] if is_synced else []
                bar.advance(1, f"loss {losses[0]}" if losses else "")
                is_end = self.is_epoch_end or report.step == state.total_steps  # the last epoch may be a part of one
                if report.step in self.dev_curve.steps or (self.early_stopping.patience and is_end):
                    with bar.window(0):
                        self._evaluate()
                yield report
                if self.early_stopping.should_stop:
                    break
        self.early_stopping.restore(self.model)

    def _evaluate(self) -> None:
        """Record scores on the dev examples, for the curve and for early stopping."""
        scores = self._dev_scores[self.step] = self.dev_curve.score(self.model, self.experiment.runs)
        if self.early_stopping.patience:
            self.early_stopping.update(self.step, statistics.fmean(scores.values()), self.model)

    def checkpoint(self) -> Checkpoint:
        """Return everything that is needed to continue; the tensors are those in use."""
        log = self.log  # raises if a step was not finite
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_state_dict(self.state.optimizer, self.model),
        }
        tensors |= {"best": self.early_stopping.best_state} if self.early_stopping.best_state else {}
        values = {"log": log, "cost": self.cost, "early_stopping": self.early_stopping.to_json()}
        return Checkpoint(self.step, tensors, values)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        tensors, values = checkpoint.tensors, checkpoint.state
        self.step, self._log, self._cost = checkpoint.step, values["log"], values["cost"]
        self.model.load_state_dict(tensors["model"])
        load_optimizer_state_dict(self.state.optimizer, self.model, tensors["optimizer"])
        patience = self.early_stopping.patience
        self.early_stopping = EarlyStopping(patience, **values["early_stopping"], best_state=tensors.get("best", {}))


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

    def to_json(self) -> dict[str, Any]:
        """Return the plain values; the best score only if there is one, since infinity is no JSON."""
        score = {"best_score": self.best_score} if self.best_step else {}
        return {"best_step": self.best_step, "num_bad_epochs": self.num_bad_epochs, **score}

    def restore(self, model: Model) -> None:
        """Load the best state, if one was recorded."""
        if self.best_state:
            model.load_state_dict(self.best_state)


def build_train_state(experiment: Experiment, seed: int) -> TrainState:
    """Build the model of a seed and its training state."""
    state = train_state(experiment.build(seed), experiment.config, experiment.num_examples, seed)
    state.loss_fn, state.after_step = experiment.loss_fn or state.loss_fn, experiment.after_step
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
    """Whether the model answers in text, or reads text about an image, so that its decoder is used."""
    return isinstance(model.trunk, ImageText) or (isinstance(model.trunk, EncoderDecoder) and "next" in model.heads)


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
