"""Cross-view training: auxiliary heads learn the task's predictions on unlabeled text (Clark et al. 2018)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polyseme.errors import ConfigError, UnsupportedError
from polyseme.finetuning.config import CrossViewSettings, FinetuneConfig
from polyseme.finetuning.unlabeled import UnlabeledText
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.cross_view import CrossViewHeadConfig
from polyseme.nn.layers.frozen_features import FeatureStore
from polyseme.nn.model import Model, ModelConfig
from polyseme.objectives.batch import Batch, BatchExtra, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.tasks.base import TaskConfig

CROSS_VIEW = "cross_view"  # the loss term, and the prefix of its heads


class CrossViewExtra(BatchExtra):
    """A batch of unlabeled text, which is read once to predict and once to learn."""

    supports_cuda_graphs = False
    num_extra_forwards = 1


@dataclass(frozen=True, eq=False)
class CrossView:
    """The unlabeled side of an experiment: its batches, and the loss on them.

    `heads` maps the head of each task to its auxiliary head.
    """

    text: UnlabeledText
    store: FeatureStore
    heads: dict[str, str]
    config: FinetuneConfig

    @property
    def settings(self) -> CrossViewSettings:
        """The settings of cross-view training."""
        return self.config.cross_view or CrossViewSettings()

    def batches(self, seed: int, num_done: int = 0) -> Iterator[list[Batch]]:
        """Yield the micro-batches of each unlabeled step after `num_done`, endlessly."""
        while True:
            sentences = self.text.sample(self.settings.unlabeled_batch_size, seed, num_done)
            parts = self.text.inputs(sentences, self.store, self.config.micro_batch_tokens)
            yield [self._batch(inputs) for inputs in parts]
            num_done += 1

    def _batch(self, inputs: Any) -> Batch:
        num_words = inputs.layout.num_tokens
        rows = torch.arange(num_words)
        targets = Targets(rows, torch.zeros_like(rows), num_words, self.settings.unlabeled_weight)
        return Batch(inputs, {CROSS_VIEW: targets}, num_words, extra=CrossViewExtra())

    def compute_losses(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss of the labels, or for unlabeled text that of all views of all tasks."""
        if CROSS_VIEW not in batch.targets:
            return compute_losses(model, batch)
        inputs, rows = batch.inputs, batch.targets[CROSS_VIEW].rows
        was_training = model.training
        with torch.no_grad():  # the predictions are targets, made without dropout
            hidden = model.eval().trunk(inputs).hidden
            targets = {name: model.label_log_probs(name, hidden, inputs.layout, rows) for name in self.heads}
        model.train(was_training)
        with use_dropout(model, self.settings.unlabeled_dropout):
            states = batch.forward(model, (1,)).layers[1]  # [T, 2 lstm_dim], forward and backward
            losses = [model.loss(view, states, inputs.layout, rows, targets[name]) for name, view in self.heads.items()]
        return {CROSS_VIEW: torch.stack(losses).sum()}


@contextmanager
def use_dropout(model: nn.Module, p: float) -> Iterator[None]:
    """Change the probability of all dropout layers inside the context."""
    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    before = [layer.p for layer in layers]
    try:
        for layer in layers:
            layer.p = p
        yield
    finally:
        for layer, old in zip(layers, before):
            layer.p = old


def add_view_heads(
    config: ModelConfig, tasks: Sequence[TaskConfig], view_dim: int
) -> tuple[ModelConfig, dict[str, str]]:
    """Return the config of a model with an auxiliary head for each task, and their names by that of the task's head."""
    trunk: Any = config.trunk
    if not trunk.has_directions:
        raise ConfigError("cross-view training needs a BiLSTM over words, whose directions see a part of the sentence")
    heads, names = dict(config.heads), {}
    for task in tasks:
        head = config.heads[task.head_name]
        if task.head_type != "tag" or task.has_word_marks or not isinstance(head, ClassificationHeadConfig):
            raise UnsupportedError(f"cross-view training is for tagging, and {task.task_type} does not tag every text")
        names[task.head_name] = name = CROSS_VIEW + (f"@{task.name}" if task.name else "")
        heads[name] = CrossViewHeadConfig(head.labels, view_dim or trunk.lstm_dim)
    return config.replace(heads=heads), names
