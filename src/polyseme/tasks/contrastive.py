"""Contrastive learning of text vectors: a text is closer to its pair than to the other texts of a batch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.families.family import Family
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.embedding import EmbeddingHeadConfig
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.objectives.batch import Batch, RecomputedExtra
from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks.base import Metrics, MetricsFn, Prediction, RowsAndLabels
from polyseme.tasks.encoded import Encoded, EncodedExample, Examples, RowScores
from polyseme.tasks.metrics.diagnostics import diagnose_ranks, diagnose_similarities
from polyseme.tasks.metrics.retrieval import alignment, rank_positives, retrieval_metrics, uniformity
from polyseme.tasks.metrics.standard import regression_metrics
from polyseme.tasks.readers import rows
from polyseme.tasks.sequence import TextExample, TextPair, TextTask
from polyseme.weights.pooling import read_pooling


@dataclass(frozen=True)
class TripletExample(TextExample):
    """A text, a text that is close to it, and perhaps one that is not (a hard negative); `label` is a score."""

    negative: str | None = None


@dataclass(frozen=True)
class Similarity(Prediction):
    """The cosine of the vectors of two texts; `vectors` are these, [2, dim]."""

    value_field = "similarity"

    similarity: float
    vectors: np.ndarray = field(repr=False, compare=False)


@dataclass(frozen=True)
class ContrastiveTask(TextTask):
    """Vectors of texts for search, learned with in-batch negatives (InfoNCE over cosines).

    `positives` are `pairs` (text and pair columns: Henderson et al. 2017; Reimers and Gurevych 2019), or `dropout`, the
    same text read twice with other dropout (SimCSE, Gao et al. 2021), for texts without pairs; `auto` decides by the
    training examples. Of labeled pairs, `positive_label` or `min_score` says which are close. A column `negative` has
    hard negatives. `pooling` is `auto` for that of the model's sentence-transformers files, or the mean.

    All texts of a step are compared: law 3 does not apply to this loss, so a batch is never divided into micro-batches
    but recomputed in parts. Dev pairs with scores are evaluated by rank correlation, others by retrieval.
    """

    allows_lm_loss = False
    task_type = "contrastive"
    verb = "classify"
    default_metric = "spearman"
    head_type = "embed"
    example_type = TripletExample
    pair_column = "optional"
    pipeline_tag = "sentence-similarity"
    usage_method = "embed"
    loss_unit = "nats"
    feature_networks = ()
    needs_labels = False
    has_new_weights = False
    finetune_settings: ClassVar[Mapping[str, Any]] = {"batch_size": 64, "truncate": True}

    positives: Literal["auto", "pairs", "dropout"] = "auto"
    pooling: Literal["auto", "mean", "cls"] = "auto"
    temperature: float = 0.05
    positive_label: str = ""
    min_score: float | None = None

    # ------------------------------------------------------------------------------------------------ examples

    @classmethod
    def row_format(cls, columns: rows.Columns, needs_labels: bool) -> rows.RowFormat:
        base = super().row_format(columns, needs_labels)
        names = {**base.columns, "negative": "negative"}

        def build(location: str, values: dict[str, Any]) -> TripletExample:
            example, negative = base.build(location, values), values.get("negative") or None
            if negative is not None:
                negative = rows.parse_text(negative, location, "negative")
            return TripletExample(**vars(example), negative=negative)

        return rows.RowFormat(names, (*base.optional, "negative"), build)

    @classmethod
    def parse_value(cls, value: Any, location: str) -> TripletExample:
        parts = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
        if not 1 <= len(parts) <= 3 or not all(isinstance(part, str) and part.strip() for part in parts):
            problem = f"{location} is {str(value)[:40]!r}"
            raise DataError(f"{problem}: a text, a pair of texts, or a pair and a hard negative is needed")
        pair, negative = (*parts[1:], None, None)[:2]
        return TripletExample(location, parts[0], pair, negative=negative)

    def fit(self, examples: Sequence[TripletExample]) -> Self:
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}: cosines are divided by it, so it must be above 0")
        without_pair = [e for e in examples if e.pair is None]
        if self.positives == "pairs" and without_pair:
            raise DataError(f"{without_pair[0].location}: there is no pair, the text that should be close")
        if self.positives == "auto" and 0 < len(without_pair) < len(examples):
            some = f"{len(without_pair)} of {len(examples)} training examples have no pair"
            raise DataError(f"{some}, the first at {without_pair[0].location}: all need one, or none")
        positives: Any = self.positives if self.positives != "auto" else "dropout" if without_pair else "pairs"
        task = self.replace(positives=positives)
        num_examples = len(task.training_examples(examples))
        if num_examples < 2:
            kind = "different texts" if positives == "dropout" else "positive pairs"
            raise DataError(f"the training data has {num_examples} {kind} ({examples[0].location} …): 2 are needed")
        return task

    def training_examples(self, examples: Sequence[TripletExample]) -> list[TripletExample]:
        if self.positives == "dropout":
            texts = {text: e for e in examples for text in (e.text, e.pair) if text is not None}
            return [TripletExample(e.location, text) for text, e in texts.items()]
        return [e for e in examples if self._is_positive(e)]

    def _is_positive(self, example: TripletExample) -> bool:
        if self.positive_label or self.min_score is not None:
            if example.label is None:
                raise DataError(f"{example.location}: there is no label to tell whether the pair is positive")
            if self.positive_label and self.positive_label != example.label:
                return False
            return self.min_score is None or rows.parse_float(example.label, example.location) >= self.min_score
        if example.label is not None:
            choice = "positive_label or min_score has to say which pairs are positive"
            raise DataError(f"{example.location}: the pair has the label {example.label!r}: {choice}")
        return True

    def select_usage_example(self, train: Sequence[Any]) -> Any:
        return ["The film was a delight.", "I liked the film."]

    def describe_data(self, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, Any]:
        return {"positives": self.positives}

    # --------------------------------------------------------------------------------------------------- model

    def fit_model(self, folder: Path) -> Self:
        if self.pooling != "auto":
            return self
        return self.replace(pooling="cls" if read_pooling(folder).mode == "cls" else "mean")

    def for_features(self) -> Self:
        raise UnsupportedError("contrastive training changes the vectors of a model, and those of features are frozen")

    def heads(self, family: Family, trunk: TrunkConfig) -> dict[str, HeadConfig]:
        if self.pooling == "cls" and family.cls_position != "first":
            raise ConfigError(f"pooling is 'cls', but texts of {family.name} do not start with it: use 'mean'")
        if self.pooling == "cls" and trunk.causal:
            raise ConfigError(
                f"pooling is 'cls', but the first token of a causal {family.name} sees no text: use 'mean'"
            )
        if self.positives == "dropout" and not _has_dropout(trunk.to_json()):
            same = "both readings of a text are the same"
            raise ConfigError(f"positives are 'dropout', but the model has none, so {same}: train on pairs")
        return {self.head_name: EmbeddingHeadConfig("first" if self.pooling == "cls" else "mean", self.temperature)}

    @classmethod
    def from_heads(cls, heads: Mapping[str, HeadConfig]) -> Self | None:
        head = heads.get(cls.head_type)
        if not isinstance(head, EmbeddingHeadConfig):
            return None
        return cls(pooling="mean" if head.pooling == "mean" else "cls", temperature=head.temperature)

    def text_sequences(self, example: Any) -> list[TextPair]:
        texts = (example.text, example.pair or example.text, example.negative)
        return [(text, None) for text in texts if text is not None]

    def target(self, example: TripletExample) -> int:
        return 0

    def batch_targets(self, encoded: Encoded, ranks: np.ndarray, starts: np.ndarray) -> RowsAndLabels:
        """Return the sequences of each example, [n, 2 or 3], and numbers that are equal for equal texts."""
        counts = [len(e.sequence_lengths) for e in encoded]
        sequences = np.full((len(encoded), max(counts)), -1, dtype=np.int64)
        sequences[np.arange(max(counts)) < np.array(counts)[:, None]] = ranks
        numbers: dict[bytes, int] = {}
        texts = [part.tobytes() for e in encoded for part in np.split(e.ids, np.cumsum(e.sequence_lengths)[:-1])]
        labels = np.full_like(sequences, -1)
        labels[sequences >= 0] = [numbers.setdefault(text, len(numbers)) for text in texts]
        return sequences, labels

    def collate_step(self, encoded: Encoded, max_tokens: int) -> list[Batch]:
        batch, _ = self.collate(encoded)
        if batch.num_tokens > max_tokens:
            batch = replace(batch, extra=RecomputedExtra(max_tokens))
        return [batch]

    def decode(self, scored: Iterable[tuple[EncodedExample, RowScores]], examples: Sequence[Any]) -> list[Any]:
        for example in examples:
            if example.pair is None:
                raise DataError(f"{example.location}: similarity is that of two texts, and there is one")
        return super().decode(scored, examples)

    def decode_one(self, logits: np.ndarray, example: Any) -> Similarity:
        text, pair = logits[0, :2]
        return Similarity(float(text @ pair), logits[0, :2])

    def average(self, scores: Sequence[Sequence[Any]], models: Any, encoded: Any) -> list[Any]:
        raise UnsupportedError("vectors of different models cannot be averaged: choose one model")

    # -------------------------------------------------------------------------------------------------- scores

    def score(self, gold: Sequence[str | float], predicted: Sequence[float]) -> dict[str, float]:
        if None in gold:
            raise DataError("the pairs have no scores to compare the similarities with")
        metrics = regression_metrics(gold, predicted)
        return {name: metrics[name] for name in ("spearman", "pearson")}  # a cosine is not on the scale of the scores

    def score_values(self, examples: Examples, values: list[Any], extra: MetricsFn | None = None) -> Metrics:
        labeled = [e for e in examples if e.gold is not None]
        if without_pair := [e for e in examples if e.pair is None]:
            raise DataError(f"{without_pair[0].location}: dev examples are pairs, with scores or without")
        if labeled and len(labeled) < len(examples):
            raise DataError(f"{len(examples) - len(labeled)} of {len(examples)} dev pairs have no score: all or none")
        if labeled:
            return super().score_values(examples, values, extra)
        return retrieval_metrics(np.ones(len(examples)))

    def perfect_values(self, examples: Sequence[Any]) -> list[Any]:
        return [0.0 if e.gold is None else rows.parse_float(e.gold, e.location) for e in examples]

    def metrics(self, examples: Examples, predictions: Sequence[Any], extra: MetricsFn | None = None) -> Metrics:
        """Return rank correlation with scores, or how well pairs are found; alignment and uniformity of the vectors."""
        vectors = np.stack([p.vectors for p in predictions], axis=1)  # [2, n, dim]
        values, has_scores = [p.value for p in predictions], examples[0].gold is not None
        metrics = self.score_values(examples, values, extra)
        if not has_scores:
            texts = [e.pair for e in examples]
            metrics = retrieval_metrics(rank_positives(vectors[0], vectors[1], texts))
        scores = np.array(self.perfect_values(examples))
        is_close = scores >= 0.8 * scores.max() if has_scores else np.ones(len(values), dtype=bool)
        return metrics | {"alignment": alignment(vectors[:, is_close]), "uniformity": uniformity(vectors)}

    def diagnose(self, train: Examples, dev: Examples, predictions: Sequence[Any]) -> Diagnostics:
        similarities = np.array([p.similarity for p in predictions])
        if dev[0].gold is not None:
            return diagnose_similarities(dev, np.array(self.perfect_values(dev)), similarities)
        queries, texts = np.stack([p.vectors for p in predictions], axis=1)
        return diagnose_ranks(dev, rank_positives(queries, texts, [e.pair for e in dev]), similarities)


def _has_dropout(config: Any) -> bool:
    """Whether a config in JSON has a dropout above 0 anywhere."""
    if isinstance(config, list):
        return any(map(_has_dropout, config))
    if not isinstance(config, dict):
        return False
    return any(
        ("dropout" in key and isinstance(value, float | int) and value > 0) or _has_dropout(value)
        for key, value in config.items()
    )
