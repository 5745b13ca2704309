"""Training that goes with pruning: a task model is fine-tuned while, or after, a part of it is removed."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.examples import TaskExamples
from polyseme.compress.pruning.gates import HeadGates, gate_targets
from polyseme.compress.pruning.masks import GradualMasks, WeightMasks
from polyseme.compress.pruning.select import Pruned, list_parts, prune_by_importance, prune_model
from polyseme.compress.pruning.structure import check_heads
from polyseme.datasets.catalog import DATASETS
from polyseme.errors import ConfigError
from polyseme.finetuning.api import ReadOptions, create_task, read_task_data
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.defaults import choose_settings
from polyseme.finetuning.experiment import Experiment, RunOptions, TaskData
from polyseme.finetuning.finetune import build_experiment, finetuning_history, reinitialize
from polyseme.finetuning.grid import override
from polyseme.finetuning.training import SeedTraining
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model
from polyseme.train.loop import setup_device
from polyseme.weights.folder import ModelFolder

logger = logging.getLogger(__name__)
StepHook = Callable[[Model, int], None]


class TrainingExamples(TaskExamples):
    """The training examples of an experiment, on which parts are chosen; the metric is that of its dev examples."""

    def __init__(self, experiment: Experiment):
        (self.run,) = experiment.runs
        self.task, self.metric = self.run.task, self.run.primary_metric
        self.encoded = list(self.run.train.encoded)
        self.num_examples = len(self.encoded)
        self.texts = self.input_texts(self.run.dev.examples)

    def score(self, model: Model) -> float:
        """Return the metric of a model."""
        return float(self.run.evaluate(self.run.predict(model)).metrics[self.metric])

    def evaluate(self, network: NeuralLM) -> float:
        return self.score(network.model)


@dataclass(frozen=True, eq=False)
class Retraining:
    """Fine-tuning for a task with labeled training and dev examples, once per seed, of models that are pruned."""

    experiment: Experiment
    folder: ModelFolder  # with the tokenizer that training needs
    seeds: Sequence[int]

    @classmethod
    def read(
        cls, network: NeuralLM, files: Mapping[str, Any], task: str, seeds: int | Sequence[int], options: dict[str, Any]
    ) -> "Retraining":
        """Read the examples of a task: that of the model, or another one that it is fine-tuned for."""
        source = task or _saved_task(network)
        tasks = [TaskData(create_task(source), (), ())]
        config = FinetuneConfig(**tasks[0].task.finetune_settings)
        for path, value in options.items():
            config, tasks = override(config, tasks, path, value)
        if isinstance(source, str) and source in DATASETS:
            files = {"train": None, "dev": None, **files} if files["dev"] is None else files
        else:
            files = {"train": files["data"], "dev": files["dev"], "data": None}
        examples = read_task_data(tasks[0], source, {"train": None, **files}, ReadOptions())
        config, _ = choose_settings(config.validate(), network.model.config.trunk, network.folder.metadata)
        if config.patience or config.unfreeze_every:
            name = "patience" if config.patience else "unfreeze_every"
            raise ConfigError(f"`{name}` is not supported while a model is pruned: leave it out")
        run_options = RunOptions(seeds)
        experiment, folder = build_experiment(network.path, [examples], config, run_options)
        return cls(experiment, folder, run_options.seed_list)

    @property
    def total_steps(self) -> int:
        """The number of steps of one training."""
        return self.experiment.config.total_steps(self.experiment.num_examples)

    def network_of(self, model: Model) -> NeuralLM:
        """Return a trained model with its tokenizer, and with the task as calibrated on the dev examples."""
        (run,) = self.experiment.runs
        metadata = self.experiment.metadata([run.evaluate(run.predict(model)).task], data=run.data.label)
        metadata |= finetuning_history(self.folder.metadata)
        metadata |= {name: self.folder.metadata[name] for name in ("pruning",) if name in self.folder.metadata}
        return NeuralLM(replace(self.folder, model=model, metadata=metadata))

    def build(self, seed: int) -> Model:
        """Return the model of a seed before training."""
        return copy.deepcopy(self.experiment.build(seed)).to(setup_device())

    def train(self, model: Model, seed: int, after_step: StepHook | None = None) -> Model:
        """Train a model to the end and return it."""
        for _ in self._start(model, seed, after_step).steps():
            pass
        return model.eval()

    def train_masked(self, masks: WeightMasks, seed: int) -> Model:
        """Train a model whose removed weights stay zero."""
        return self.train(masks.model, seed, lambda model, step: masks.apply())

    def _start(self, model: Model, seed: int, after_step: StepHook | None = None, **changes: Any) -> SeedTraining:
        experiment = replace(self.experiment, build=lambda _: model, after_step=after_step, **changes)
        return SeedTraining(experiment, seed)

    def prune_weights(self, config: PruningConfig, seed: int) -> tuple[WeightMasks, dict[str, Any]]:
        """Train a model whose weights are removed at once, gradually, or iteratively; also return the record."""
        masks = WeightMasks(self.build(seed))
        count = config.num_removed(masks.total)
        record: dict[str, Any] = {"removed": count, "total": masks.total}
        if config.schedule == "iterative":
            record["rounds"] = self._prune_iteratively(masks, config, seed)
        elif config.schedule == "gradual":
            gradual = GradualMasks(masks, config, self.total_steps)
            self.train(masks.model, seed, lambda model, step: gradual.after_step(step))
        else:
            masks.prune(count, seed if config.strategy == "random" else None)
            self.train_masked(masks, seed)
        return masks, record

    def _prune_iteratively(self, masks: WeightMasks, config: PruningConfig, seed: int) -> list[dict[str, Any]]:
        """Train, remove the smallest weights, return the others to an early step, and train again, in rounds."""
        if config.rewind_step >= self.total_steps:
            raise ConfigError(f"`rewind_step` is {config.rewind_step}, but there are {self.total_steps} training steps")
        training, score = self._start(masks.model, seed), TrainingExamples(self.experiment).score
        start = copy.deepcopy(training.checkpoint())
        for _ in training.steps():
            if training.step == config.rewind_step:
                start = copy.deepcopy(training.checkpoint())
        rounds = [{"removed": 0, "score": score(masks.model)}]
        for count in config.iterative_counts(masks.total):
            masks.prune(count)
            training = self._start(masks.model, seed, lambda model, step: masks.apply())
            training.restore(copy.deepcopy(start))
            masks.apply()
            for _ in training.steps():
                pass
            rounds.append({"removed": count, "score": score(masks.model)})
            logger.info("seed %d: %s", seed, f"{count:,} of {masks.total:,} weights removed, {rounds[-1]['score']:.4f}")
        masks.model.eval()
        return rounds

    def prune_by_gates(self, config: PruningConfig, seed: int) -> Pruned:
        """Train a model with gates on its heads, and remove those whose gates closed first."""
        model = self.build(seed)
        check_heads(model.config)
        groups, sizes = list_parts(model, config)
        total = sum(sizes.values())
        gates = HeadGates(sizes, total - config.num_removed(total, len(sizes)))
        targets = gate_targets(config.gate_penalty)
        training = self._start(model, seed, loss_fn=gates.losses, extra_targets=targets)
        gates.add_to(training.state)
        with gates.attached(model):
            for _ in training.steps():
                pass
        gates.fold(model)
        importance = {name: logits.detach().double().cpu() for name, logits in zip(gates.names, gates.logits)}
        pruned, record = prune_by_importance(model, config, groups, importance)
        return pruned.eval(), record

    def prune(self, config: PruningConfig, seed: int) -> Pruned:
        """Remove a part of the model of a seed and train what stays."""
        if config.part == "weights":
            masks, record = self.prune_weights(config, seed)
            return masks.model, record
        if config.strategy == "gates":
            return self.prune_by_gates(config, seed)
        pruned, record = prune_model(self.build(seed).eval(), config, TrainingExamples(self.experiment))
        return self.train(pruned, seed), record

    def prune_at_random(self, config: PruningConfig, seed: int) -> Model:
        """Remove parts at random, as many, and train what stays for as long."""
        settings = {"strategy": "random", "schedule": "one-shot", "rounds": 0, "rewind_step": 0, "seed": seed}
        return self.prune(config.replace(**settings), seed)[0]

    def train_from_scratch(self, pruned: Model, seed: int) -> Model:
        """Train a model of the same shape, with the same zeros among its weights, from random weights."""
        model = reinitialize(pruned, seed).to(setup_device())
        masks = WeightMasks(model)
        masks.is_removed = [weight == 0 for weight in WeightMasks(pruned).weights]
        masks.apply()
        return self.train_masked(masks, seed)


def _saved_task(network: NeuralLM) -> Any:
    """Return the type of the task that a model was fine-tuned for."""
    if "tasks" in network.folder.metadata:
        raise ConfigError(f"{network.path} answers several tasks: prune it before fine-tuning")
    if "predict" not in network.capabilities:
        description = f"{network.path} is {network.description}"
        raise ConfigError(f"{description}: pass the `task` that it is fine-tuned for, such as classification")
    return type(network._load_task())
