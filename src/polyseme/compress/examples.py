"""Examples that say what a model can lose: a differentiable loss per example, and the metric of the whole model.

There are three kinds of models. A task model reads labeled examples. A language model reads texts: the loss is that of
the next token, or of masked tokens. A model without a head computes vectors: of pairs with scores it gets the squared
error of the cosine; of texts alone, the projection of the vector on a random direction, whose gradient is the
sensitivity of the vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import ConfigError, DataError, UnsupportedError, require_packages, suggest
from polyseme.evaluation.api import load_predictor
from polyseme.evaluation.text_rows import open_texts
from polyseme.finetuning.api import ReadOptions
from polyseme.inference.embedding import iter_text_vectors
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.packed_model import PackedModel, inputs_for_head
from polyseme.inference.prediction import encode_examples
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.losses import compute_losses
from polyseme.tasks.base import require_gold
from polyseme.tasks.metrics.standard import regression_metrics
from polyseme.tasks.regression import RegressionTask

MASK_PROBABILITY = 0.15
BATCH_SIZE = 16  # examples per batch in evaluation


class QualityExamples(ABC):
    """Examples of one model, `texts` to time it on, and the name of its metric."""

    metric: str
    texts: Sequence[str]
    num_examples: int

    @abstractmethod
    def loss(self, model: Model, indices: Sequence[int]) -> Tensor:
        """Return the summed loss of some examples."""

    @abstractmethod
    def evaluate(self, network: NeuralLM) -> float:
        """Return the metric of a model."""

    def mean_loss(self, model: Model, indices: Sequence[int]) -> float:
        """Return the mean loss of examples, without gradients."""
        with torch.no_grad():
            starts = range(0, len(indices), BATCH_SIZE)
            losses = [float(self.loss(model, indices[i : i + BATCH_SIZE])) for i in starts]
        return sum(losses) / len(indices)


class TaskExamples(QualityExamples):
    """Labeled examples of a task model."""

    def __init__(self, network: NeuralLM, data: Any, task: str):
        predictor = load_predictor(network, task)
        require_packages(predictor.task.required_packages)
        self.task, self.name = predictor.task, task
        self.examples = predictor.read(data, task, "dev", ReadOptions())
        require_gold(self.examples)
        self.metric = DATASETS[task].metric if task in DATASETS else self.task.default_metric
        self.encoded = list(encode_examples(network.folder, self.task, self.examples, truncate=True, use_labels=True))
        self.num_examples = len(self.encoded)
        self.texts = self.input_texts(self.examples)

    def input_texts(self, examples: Sequence[Any]) -> list[str]:
        """Return the first texts of up to 256 examples."""
        inputs = (self.task.codec.input_texts(example) for example in examples[:256])
        return [text if isinstance(text, str) else " ".join(text) for texts in inputs for text in texts[:1]]

    def loss(self, model: Model, indices: Sequence[int]) -> Tensor:
        batch, _ = self.task.codec.collate([self.encoded[i] for i in indices])
        batch = batch.for_trunk(model.config.trunk).to(_device(model))
        return torch.stack(list(compute_losses(model, batch).values())).sum()

    def evaluate(self, network: NeuralLM) -> float:
        extra = DATASETS[self.name].extra_metrics if self.name in DATASETS else None
        predictions = load_predictor(network, truncate=True).predict(self.examples, use_labels=True)
        return float(self.task.metrics(self.examples, predictions, extra)[self.metric])


class LanguageModelExamples(QualityExamples):
    """Texts of a language model. A masked one predicts 15 % of the tokens, the same ones before and after."""

    def __init__(self, network: NeuralLM, texts: Sequence[str]):
        heads = network.model.heads
        self.head = next((name for name in ("next", "masked", "previous") if name in heads), "")
        if network.is_seq2seq or self.head in ("", "previous"):
            reason = "its loss on plain text is not defined here: leave `data` out, or prune a fine-tuned model"
            raise UnsupportedError(f"{network.path} is {network.description}; {reason}")
        self.metric, self.texts = f"held-out loss ({self.head})", texts
        tokenizer, generator = network.tokenizer, np.random.default_rng(0)
        if self.head == "masked" and tokenizer.special_token_ids.mask is None:
            raise UnsupportedError(f"{network.path}: the tokenizer has no mask token, which masked prediction needs")
        self.rows: list[tuple[np.ndarray, ...]] = []  # ids, segments, positions, labels
        for text, ids in zip(texts, tokenizer.encode_batch(texts)):
            if self.head == "masked":
                row: tuple[np.ndarray, ...] = self._mask(network, list(ids), generator)
            else:
                ids = np.array([*network.bos_ids, *ids])[: network.max_len + 1]
                row = ids[:-1], np.zeros(len(ids) - 1, dtype=np.int64), np.arange(len(ids) - 1), ids[1:]
            if not len(row[2]):
                raise DataError(f"the text is too short to predict a token of it: {text[:40]!r}")
            self.rows.append(row)
        self.num_examples = len(self.rows)

    @staticmethod
    def _mask(network: NeuralLM, ids: list[int], generator: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Mask a text with its special tokens: each token with probability 15 %, and at least one."""
        tokenizer = network.tokenizer
        ids = ids[: network.max_len - tokenizer.num_special_tokens_to_add()]
        template, _ = tokenizer.build_inputs_with_special_tokens([-1])
        sequence, segments = map(np.array, tokenizer.build_inputs_with_special_tokens(ids))
        draws = generator.random(len(ids))
        is_masked = (draws < MASK_PROBABILITY) | (draws == draws.min(initial=1.0))
        positions = template.index(-1) + np.flatnonzero(is_masked)
        labels = sequence[positions]
        sequence[positions] = tokenizer.special_token_ids.mask
        return sequence, segments, positions, labels

    def loss(self, model: Model, indices: Sequence[int]) -> Tensor:
        rows, device = [self.rows[i] for i in indices], _device(model)
        lengths = [len(row[0]) for row in rows]
        starts = np.cumsum([0, *lengths])
        ids, segments, _, labels = (torch.from_numpy(np.concatenate(parts)).to(device) for parts in zip(*rows))
        positions = torch.from_numpy(np.concatenate([start + row[2] for start, row in zip(starts, rows)])).to(device)
        layout = PackedLayout.from_lengths(lengths, device=device)
        inputs = Inputs(ids, layout, segments if model.config.trunk.num_segments else None)
        inputs, positions = inputs_for_head(model, self.head, inputs, positions)
        return model.loss(self.head, model.trunk(inputs).hidden, layout, positions, labels)

    def evaluate(self, network: NeuralLM) -> float:
        num_labels = sum(len(row[3]) for row in self.rows)
        return self.mean_loss(network.model, range(self.num_examples)) * self.num_examples / num_labels


class VectorExamples(QualityExamples):
    """Texts of a model that computes vectors; the metric is the mean cosine to the vectors of the unpruned model."""

    metric = "cosine to the original"

    def __init__(self, network: NeuralLM, texts: Sequence[str]):
        self.texts, self.num_examples = texts, len(texts)
        self.network = network
        self.original = _normalize(network.embed(list(texts), truncate=True))
        directions = torch.from_numpy(np.random.default_rng(0).standard_normal(self.original.shape)).float()
        self.directions = directions.to(network.device)

    def loss(self, model: Model, indices: Sequence[int]) -> Tensor:
        vectors = text_vectors(self.network, model, [self.texts[i] for i in indices])
        return (vectors * self.directions[list(indices)].to(vectors.dtype)).sum()

    def mean_loss(self, model: Model, indices: Sequence[int]) -> float:
        """Return 1 minus the mean cosine to the original vectors."""
        with torch.no_grad():
            vectors = text_vectors(self.network, model, [self.texts[i] for i in indices]).float().cpu().numpy()
        return 1 - float((_normalize(vectors) * self.original[list(indices)]).sum(1).mean())

    def evaluate(self, network: NeuralLM) -> float:
        return 1 - self.mean_loss(network.model, range(self.num_examples))


class ScoredPairExamples(QualityExamples):
    """Pairs of texts with scores, of a model that computes vectors; the metric is Spearman's correlation of cosines."""

    metric = "spearman"

    def __init__(self, network: NeuralLM, examples: Sequence[Any]):
        require_packages(RegressionTask.required_packages)
        require_gold(examples)
        self.network, self.num_examples = network, len(examples)
        self.texts = [example.text for example in examples]
        self.pairs = [example.pair for example in examples]
        if None in self.pairs:
            raise DataError(f"{examples[self.pairs.index(None)].location} has one text: a score needs two")
        self.gold = [float(example.label) for example in examples]
        low, high = min(self.gold), max(self.gold)
        self.targets = [(score - low) / (high - low or 1.0) for score in self.gold]

    def loss(self, model: Model, indices: Sequence[int]) -> Tensor:
        cosines = self._cosines(model, indices)
        return (cosines - torch.tensor([self.targets[i] for i in indices]).to(cosines)).square().sum()

    def evaluate(self, network: NeuralLM) -> float:
        chunks = [range(i, min(i + 128, self.num_examples)) for i in range(0, self.num_examples, 128)]
        with torch.no_grad():
            cosines = [value for chunk in chunks for value in self._cosines(network.model, chunk).tolist()]
        return regression_metrics(self.gold, cosines)["spearman"]

    def _cosines(self, model: Model, indices: Sequence[int]) -> Tensor:
        sides = [[side[i] for i in indices] for side in (self.texts, self.pairs)]
        first, second = (text_vectors(self.network, model, side) for side in sides)
        return torch.nn.functional.cosine_similarity(first, second)


def text_vectors(network: NeuralLM, model: Model, texts: Sequence[str]) -> Tensor:
    """Return the vectors of texts by a model with the tokenizer and pooling of `network`, with gradients if enabled."""
    packed = PackedModel(model, network.tokenizer, network.device, network.max_batch_tokens, network.folder.pooling)
    vectors: list[Any] = [None] * len(texts)
    for indices, batch_vectors in iter_text_vectors(packed, texts, "last", truncate=True):
        for i, vector in zip(indices, batch_vectors):
            vectors[i] = vector
    return torch.stack(vectors)


def read_examples(network: NeuralLM, data: Any, task: str = "") -> QualityExamples:
    """Read the examples of a model: labeled ones of its task, scored pairs, or texts."""
    if isinstance(data, list | tuple) and not data:
        raise DataError("`data` has no examples: pass labeled examples of the model's task, or texts")
    if "tasks" in network.folder.metadata:
        raise UnsupportedError(f"{network.path} answers several tasks: prune it without `data`, or before fine-tuning")
    is_embedder = not network.model.heads or (
        "predict" in network.capabilities and network._load_task().usage_method == "embed"
    )
    if is_embedder and task:
        return ScoredPairExamples(network, _read_pairs(data, task))
    if not is_embedder and "predict" in network.capabilities:
        return TaskExamples(network, data, task)
    if task:
        raise ConfigError(f"`task` has no effect: {network.path} is {network.description}, which reads plain texts")
    texts = list(_read_texts(data))
    if not texts:
        raise DataError(f"{data} has no texts")
    return VectorExamples(network, texts) if is_embedder else LanguageModelExamples(network, texts)


def _read_pairs(data: Any, task: str) -> list[Any]:
    names = {"regression", *(name for name, dataset in DATASETS.items() if dataset.metric == "spearman")}
    if task not in names:
        raise ConfigError(f"`task` is {task!r}: a model of vectors is scored on pairs; {suggest(task, names)}")
    return DATASETS[task].read_split(data, "dev") if task in DATASETS else RegressionTask.read(data)


def _read_texts(data: Any) -> Iterator[str]:
    if isinstance(data, str | Path):
        yield from (row.text for row in open_texts(data).source)
    else:
        yield from data


def _normalize(vectors: np.ndarray) -> np.ndarray:
    norms: np.ndarray = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)


def _device(model: Model) -> torch.device:
    return next(model.parameters()).device
