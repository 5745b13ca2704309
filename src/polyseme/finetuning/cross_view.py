"""Cross-view training: auxiliary heads learn the task's predictions on unlabeled text (Clark et al. 2018)."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.sources.sources import open_sources
from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.finetuning.config import CrossViewSettings, FinetuneConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.cross_view import CrossViewHeadConfig
from polyseme.nn.layers.frozen_features import FeatureStore
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout, token_budget_batches
from polyseme.objectives.batch import Batch, BatchExtra, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.rng import derive_sample_keys, feistel_permutation
from polyseme.tasks.base import TaskConfig

CROSS_VIEW = "cross_view"  # the loss term, and the prefix of its heads
MAX_SENTENCE_WORDS = 100  # a longer sentence is cut
ORDER_KEY = np.array([0x76696577])  # separates the order of unlabeled text from other random draws
# as in treebanks: a clitic (do n't, Anna 's), a run of letters and digits, any other character by itself
WORD_PATTERN = re.compile(r"\w+?(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\w+|[^\w\s]", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class UnlabeledText:
    """Sentences as indices into their distinct `words`."""

    words: list[str]
    word_ids: np.ndarray  # int32 [T], the words of all sentences
    offsets: np.ndarray  # int64 [sentences + 1], the first word of each

    @classmethod
    def read(cls, source: Any) -> Self:
        """Read files and folders, whose names `polyseme.prepare` takes, or take sentences that are lists of words."""
        sources = [source] if isinstance(source, str | Path) else list(source)
        if all(isinstance(each, str | Path) for each in sources):
            documents = (document.text for document in open_sources(sources)) if sources else ()
            sentences: Iterable[Any] = (WORD_PATTERN.findall(s) for text in documents for s in split_sentences(text))
            name = ", ".join(map(str, sources)) or "the unlabeled text"
        else:
            sentences, name = map(_check_sentence, sources), "the unlabeled text"
        text = cls.from_sentences(sentences)
        if not len(text):
            raise DataError(f"{name} has no sentence: cross-view training needs unlabeled text")
        return text

    @classmethod
    def from_sentences(cls, sentences: Iterable[Sequence[str]]) -> Self:
        """Number the words of sentences; empty sentences are skipped."""
        ids: dict[str, int] = {}
        numbers: list[np.ndarray] = []
        for sentence in sentences:
            if words := sentence[:MAX_SENTENCE_WORDS]:
                numbers.append(np.array([ids.setdefault(word, len(ids)) for word in words], dtype=np.int32))
        offsets = np.cumsum([0, *map(len, numbers)])
        return cls(list(ids), np.concatenate(numbers) if numbers else np.zeros(0, np.int32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def hash(self) -> str:
        """A short hash of all sentences."""
        digest = hashlib.sha256("\n".join(self.words).encode("utf-8", "surrogatepass"))
        digest.update(self.word_ids.tobytes() + self.offsets.tobytes())
        return digest.hexdigest()[:16]

    def sample(self, batch_size: int, seed: int, step: int) -> np.ndarray:
        """Return the sentences of a step; every epoch is a permutation of all, which (seed, epoch) determines."""
        epoch, position = divmod(step, -(-len(self) // batch_size))
        index = np.arange(position * batch_size, min((position + 1) * batch_size, len(self)))
        return feistel_permutation(index, len(self), derive_sample_keys(seed, epoch, ORDER_KEY))

    def inputs(self, sentences: np.ndarray, store: FeatureStore, max_tokens: int) -> Iterator[Inputs]:
        """Yield sentences in packed batches of at most `max_tokens` words, shortest first; `store` has all words."""
        lengths = np.diff(self.offsets)[sentences]
        for part in token_budget_batches(lengths, max_tokens):
            sizes, starts = lengths[part[::-1]], self.offsets[sentences[part[::-1]]]
            tokens = np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
            yield Inputs(torch.from_numpy(tokens), PackedLayout.from_lengths(sizes), features=store)


def _check_sentence(words: Any) -> Sequence[str]:
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise DataError(f"the unlabeled text has {str(words)[:40]!r}: pass files, or sentences as lists of words")
    return words


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
