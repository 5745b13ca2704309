"""Training that goes with pruning: a model is trained while, or after, a part of it is removed."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from polyseme.compress.examples import QualityExamples
from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.masks import GradualMasks, WeightMasks
from polyseme.compress.pruning.select import Pruned, prune_model
from polyseme.errors import ConfigError
from polyseme.finetuning.finetune import reinitialize
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model
from polyseme.train.loop import setup_device

logger = logging.getLogger(__name__)
StepHook = Callable[[Model, int], None]  # the model, and the number of steps done


class Retraining(ABC):
    """Training of a model, once per seed, of which parts are removed before or meanwhile.

    `examples` are what parts are chosen on. `metric` names what `score` returns.
    """

    seeds: Sequence[int]
    examples: QualityExamples | None
    metric: str
    is_lower_better: bool
    total_steps: int  # of one training
    texts: Sequence[str]

    @abstractmethod
    def build(self, seed: int) -> Model:
        """Return the model of a seed before training, on the device of training."""

    @abstractmethod
    def run(
        self, model: Model, seed: int, after_step: StepHook | None, start: Any = None, snapshot_step: int | None = None
    ) -> Any:
        """Train a model, from the start or from the snapshot `start`; return a snapshot after a step, if asked."""

    @abstractmethod
    def score(self, model: Model) -> float:
        """Return the metric of a model."""

    @abstractmethod
    def network_of(self, model: Model) -> NeuralLM:
        """Return a trained model with its tokenizer and metadata."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the settings of the training as plain values."""

    def prune_by_gates(self, config: PruningConfig, seed: int) -> Pruned:
        """Train a model with gates on its heads, and remove those that close."""
        raise ConfigError("the `strategy` gates needs labeled examples: pass `data` and `dev`, and no `corpus`")

    def train(self, model: Model, seed: int, after_step: StepHook | None = None) -> Model:
        """Train a model to the end and return it."""
        self.run(model, seed, after_step)
        return model.eval()

    def train_masked(self, masks: WeightMasks, seed: int) -> Model:
        """Train a model whose removed weights stay zero."""
        return self.train(masks.model, seed, lambda model, step: masks.apply())

    def prune(self, config: PruningConfig, seed: int) -> Pruned:
        """Remove a part of the model of a seed and train what stays."""
        if config.part == "weights":
            return self._prune_weights(config, seed)
        if config.strategy == "gates":
            return self.prune_by_gates(config, seed)
        pruned, record = prune_model(self.build(seed).eval(), config, self.examples)
        return self.train(pruned, seed), record

    def _prune_weights(self, config: PruningConfig, seed: int) -> Pruned:
        """Train a model whose weights are removed at once, gradually, or iteratively."""
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
        return masks.model, record

    def _prune_iteratively(self, masks: WeightMasks, config: PruningConfig, seed: int) -> list[dict[str, Any]]:
        """Train, remove the smallest weights, return the others to an early step, and train again, in rounds."""
        if config.rewind_step >= self.total_steps:
            raise ConfigError(f"`rewind_step` is {config.rewind_step}, but there are {self.total_steps} training steps")
        start = self.run(masks.model, seed, None, snapshot_step=config.rewind_step)
        rounds = [{"removed": 0, "score": self.score(masks.model)}]
        for count in config.iterative_counts(masks.total):
            masks.prune(count)
            self.run(masks.model, seed, lambda model, step: masks.apply(), start)
            rounds.append({"removed": count, "score": self.score(masks.model)})
            logger.info("seed %d: %s", seed, f"{count:,} of {masks.total:,} weights removed, {rounds[-1]['score']:.4f}")
        masks.model.eval()
        return rounds

    def prune_at_random(self, config: PruningConfig, seed: int) -> Model:
        """Remove parts at random, as many, and train what stays for as long."""
        settings = {"strategy": "random", "schedule": "one-shot", "rounds": 0, "rewind_step": 0, "seed": seed}
        return self.prune(config.replace(**settings), seed)[0]

    def train_from_scratch(self, pruned: Model, seed: int) -> Model:
        """Train a model of the same shape, with the same zeros among its weights, from random weights."""
        masks = WeightMasks(reinitialize(pruned, seed).to(setup_device()))
        masks.is_removed = [weight == 0 for weight in WeightMasks(pruned).weights]
        masks.apply()
        return self.train_masked(masks, seed)
