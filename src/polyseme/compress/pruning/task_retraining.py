"""Fine-tuning of a model, of which parts are removed, on labeled examples."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyseme.compress.examples import TaskExamples
from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.gates import HeadGates, gate_targets
from polyseme.compress.pruning.retraining import Retraining, StepHook
from polyseme.compress.pruning.select import Pruned, prune_by_importance
from polyseme.compress.pruning.structure import list_heads
from polyseme.datasets.catalog import DATASETS
from polyseme.errors import ConfigError
from polyseme.finetuning.api import ReadOptions, create_task, read_task_data
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.defaults import choose_settings
from polyseme.finetuning.experiment import Experiment, RunOptions, TaskData, TaskRun
from polyseme.finetuning.finetune import build_experiment, finetuning_history
from polyseme.finetuning.grid import override
from polyseme.finetuning.training import SeedTraining
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model
from polyseme.train.checkpoint import Checkpoint
from polyseme.train.loop import setup_device
from polyseme.weights.folder import ModelFolder


class TrainingExamples(TaskExamples):
    """The training examples of an experiment, on which parts are chosen; the metric is that of its dev examples."""

    def __init__(self, run: TaskRun):
        self.run, self.task, self.metric = run, run.task, run.primary_metric
        self.encoded = list(run.train.encoded)
        self.num_examples = len(self.encoded)
        self.texts = self.input_texts(run.dev.examples)

    def evaluate(self, network: NeuralLM) -> float:
        return float(self.run.evaluate(self.run.predict(network.model)).metrics[self.metric])


class TaskRetraining(Retraining):
    """Fine-tuning for a task with training and dev examples."""

    is_lower_better = False

    def __init__(self, experiment: Experiment, folder: ModelFolder, seeds: Sequence[int]):
        self.experiment, self.folder, self.seeds = experiment, folder, seeds  # the tokenizer is that of training
        (self.task_run,) = experiment.runs
        self.examples = TrainingExamples(self.task_run)
        self.metric, self.texts = self.examples.metric, self.examples.texts
        self.total_steps = experiment.config.total_steps(experiment.num_examples)

    @classmethod
    def read(
        cls, network: NeuralLM, files: Mapping[str, Any], task: str, seeds: int | Sequence[int], options: dict[str, Any]
    ) -> "TaskRetraining":
        """Read the examples of a task: that of the model, or another one that it is fine-tuned for."""
        source = task or _saved_task(network)
        tasks = [TaskData(create_task(source), (), ())]
        config = FinetuneConfig(**tasks[0].task.finetune_settings)
        for path, value in options.items():
            config, tasks = override(config, tasks, path, value)
        if source not in DATASETS:
            files = {"train": files["data"], "dev": files["dev"], "data": None}
        examples = read_task_data(tasks[0], source, {"train": None, **files}, ReadOptions())
        config, _ = choose_settings(config.validate(), network.model.config.trunk, network.folder.metadata)
        if config.patience or config.unfreeze_every:
            name = "patience" if config.patience else "unfreeze_every"
            raise ConfigError(f"`{name}` is not supported while a model is pruned: leave it out")
        run_options = RunOptions(seeds)
        experiment, folder = build_experiment(network.path, [examples], config, run_options)
        return cls(experiment, folder, run_options.seed_list)

    def describe(self) -> dict[str, Any]:
        num_examples = {
            "train_examples": len(self.task_run.train.examples),
            "dev_examples": len(self.task_run.dev.examples),
        }
        return num_examples | {"steps": self.total_steps, "lr": self.experiment.config.optimizer.lr}

    def build(self, seed: int) -> Model:
        return copy.deepcopy(self.experiment.build(seed)).to(setup_device())

    def score(self, model: Model) -> float:
        return float(self.task_run.evaluate(self.task_run.predict(model)).metrics[self.metric])

    def run(
        self, model: Model, seed: int, after_step: StepHook | None, start: Any = None, snapshot_step: int | None = None
    ) -> Checkpoint | None:
        training, snapshot = self.start(model, seed, after_step), None
        if start is not None:
            training.restore(copy.deepcopy(start))
            if after_step is not None:
                after_step(model, training.step)
        if snapshot_step == training.step:
            snapshot = copy.deepcopy(training.checkpoint())
        for _ in training.steps():
            if snapshot_step == training.step:
                snapshot = copy.deepcopy(training.checkpoint())
        return snapshot

    def start(self, model: Model, seed: int, after_step: StepHook | None = None, **changes: Any) -> SeedTraining:
        """Return the training of a model, before its first step; `changes` are other fields of the experiment."""
        experiment = replace(self.experiment, build=lambda _: model, after_step=after_step, **changes)
        return SeedTraining(experiment, seed)

    def prune_by_gates(self, config: PruningConfig, seed: int) -> Pruned:
        model = self.build(seed)
        parts = list_heads(model)
        if parts.is_uniform or config.uniform:
            num_removed = sum(config.num_removed(size) for size in parts.group_sizes.values())
        else:
            num_removed = config.num_removed(sum(parts.sizes.values()), len(parts.sizes))
        gates = HeadGates(parts, num_removed)
        targets = gate_targets(config.gate_penalty)
        training = self.start(model, seed, loss_fn=gates.losses, extra_targets=targets)
        gates.add_to(training.state)
        with gates.attached(model):
            for _ in training.steps():
                pass
        gates.fold(model)
        pruned, record = prune_by_importance(model, config, parts, gates.importance)
        return pruned.eval(), record

    def network_of(self, model: Model) -> NeuralLM:
        run, saved = self.task_run, self.folder.metadata
        metadata = self.experiment.metadata([run.evaluate(run.predict(model)).task], data=run.data.label)
        metadata |= finetuning_history(saved) | {name: saved[name] for name in ("pruning",) if name in saved}
        return NeuralLM(replace(self.folder, model=model, metadata=metadata))


def _saved_task(network: NeuralLM) -> Any:
    """Return the type of the task that a model was fine-tuned for."""
    if "tasks" in network.folder.metadata:
        raise ConfigError(f"{network.path} answers several tasks: prune it before fine-tuning")
    if "predict" not in network.capabilities:
        description = f"{network.path} is {network.description}"
        raise ConfigError(f"{description}: pass the `task` that it is fine-tuned for, such as classification")
    return type(network._load_task())
