"""The task protocol: labeled examples in, predictions out; between them is the packed batch of pre-training.

`Reader → Example → TaskConfig.encode → Batch → trunk and head → TaskConfig.decode → Prediction → metrics`. A new task
is one file: a frozen dataclass that derives from `TaskConfig`, with an `Example` and a `Prediction` of its own.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from polyseme.config import Config
from polyseme.errors import ConfigError, DataError, UnsupportedError, require_package, suggest
from polyseme.families.family import Family
from polyseme.io.atomic import write_text
from polyseme.io.partial import part_path
from polyseme.io.table_output import TABLE_SUFFIXES, check_output_suffix
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.objectives.batch import Batch, Targets
from polyseme.report.cards.readme import format_literal
from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks.encoded import Codec, Encoded, EncodedExample, Examples, RowScores, mean_rows, softmax
from polyseme.tasks.formats import PredictionFormat, table_format
from polyseme.tasks.metrics.diagnostics import diagnose_values
from polyseme.tasks.metrics.occlusion import PredictFn, Weights
from polyseme.tasks.readers.columns import Columns
from polyseme.tasks.readers.records import detect_record_format, open_records, parse_input
from polyseme.tasks.readers.rows import RowReader, iter_records, iter_valid_rows, read_rows, wrong_suffix
from polyseme.tasks.text_templates import TextToTextTemplate

Metrics = dict[str, float]
MetricsFn = Callable[[Sequence[Any], Sequence[Any]], Metrics]  # (examples, predicted values) -> metrics
BaselineFn = Callable[[Sequence[Any], Sequence[Any]], list[Any]]  # (train, dev) -> one value per dev example
Words = tuple[str, ...]
RowsAndLabels = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Example:
    """One labeled or unlabeled input, and where it was read."""

    gold_field: ClassVar[str] = "label"

    location: str
    row: Mapping[str, Any] | None = field(default=None, kw_only=True, compare=False, repr=False)  # as in the file

    @property
    def is_trainable(self) -> bool:
        """Whether a model can learn from it."""
        return True

    @property
    def gold(self) -> Any:
        """The true answer as a plain value; None if it is unknown."""
        return getattr(self, self.gold_field)


class Prediction:
    """The answer of a model to one example."""

    value_field: ClassVar[str] = "label"

    @property
    def value(self) -> Any:
        """The answer as a plain value, comparable with `Example.gold`."""
        return getattr(self, self.value_field)


@dataclass(frozen=True)
class TaskConfig(Config, Codec):
    """What is predicted and how: labels and settings, saved in `polyseme.json` and read back.

    `name` is set where one model answers several tasks; it is part of the head's name. With a `text_template` the
    model answers in text (T5): then `codec`, and not the task itself, encodes examples and decodes scores.
    """

    task_type: ClassVar[str]  # its name on the command line and in results
    example_type: ClassVar[type[Example]]
    default_metric: ClassVar[str]
    required_packages: ClassVar[Mapping[str, str]] = {}  # modules that its metrics need, with their purpose
    head_type: ClassVar[str]
    record_suffixes: ClassVar[tuple[str, ...]] = ()  # of files whose rows `from_record` reads
    own_suffixes: ClassVar[tuple[str, ...]] = ()  # of predictions in formats of the field
    loss_unit: ClassVar[str] = "nats"
    repairs_labels: ClassVar[bool] = False  # whether `collect` repairs labels of files, which `strict` makes errors
    feature_networks: ClassVar[tuple[str, ...]] = ("linear", "bilstm")  # over frozen features; the first is the default
    averages_logits: ClassVar[bool] = False  # whether ensembles average scores instead of probabilities
    needs_labels: ClassVar[bool] = True  # whether every training and dev example must have a label
    has_new_weights: ClassVar[bool] = True  # whether a model has to be trained before it can answer
    finetune_settings: ClassVar[Mapping[str, Any]] = {}  # defaults of this task that differ from `FinetuneConfig`
    has_word_marks: ClassVar[bool] = False  # whether one word of an example is marked, as a predicate is
    answers_questions: ClassVar[bool] = False  # whether it finds the answer to a question in a text
    usage_example: ClassVar[Any] = "The film was a delight."  # what is passed to it in the code of a model card
    usage_method: ClassVar[str] = "predict"  # of a loaded model, which that code calls
    verb: ClassVar[str] = ""  # of a server, which its models answer besides `predict`
    pipeline_tag: ClassVar[str] = ""  # the Hub's name of the task, if it has one
    text_format: ClassVar[str] = ""  # how it is written as text: its name, then its fields; empty if it cannot be

    name: str = field(default="", kw_only=True)
    text_template: TextToTextTemplate | None = field(default=None, kw_only=True)

    @classmethod
    def read(
        cls, source: Path | str | Iterable[Any], columns: Columns = Columns(), *, needs_labels: bool = True,
        skip_bad: bool = False, strict: bool = False,
    ) -> list[Any]:  # fmt: skip
        """Read examples from a file, `PATH::name=value,…`, or from plain Python values.

        Values are texts, tuples, or dictionaries as in JSON lines. A row that cannot be read is an error, or is counted
        and skipped with `skip_bad`. With `strict`, labels that would otherwise be repaired are an error.
        """
        if isinstance(source, str | Path):
            path, columns = cls.open_input(source, columns)
            return cls.collect(path, cls.iter_rows(path, columns, needs_labels), skip_bad, strict)
        return [cls.from_value(value, f"example {i}", needs_labels) for i, value in enumerate(source, 1)]

    @classmethod
    def open_input(cls, source: Path | str, columns: Columns = Columns()) -> tuple[Path, Columns]:
        """Parse `PATH::name=value,…` or `-`; return the file to open, and its columns, as `iter_rows` takes them."""
        path, columns = parse_input(source, columns)
        if path.is_file() and (format := cls.record_format(path, columns)):
            columns = open_records(path, columns, format).resolve(path, columns)
        return path, columns

    @classmethod
    def record_format(cls, path: Path, columns: Columns) -> str:
        """Return the format of a file whose rows `from_record` reads; empty if it is of another kind."""
        return detect_record_format(path, columns, cls.record_suffixes)

    @classmethod
    def iter_examples(
        cls, path: Path, columns: Columns = Columns(), *, skip_bad: bool = False, log_skipped: bool = True
    ) -> Iterator[Any]:
        """Yield the unlabeled examples of a file without holding all of them; labels that are present do not matter."""
        return iter_valid_rows(path, cls.iter_rows(path, columns, needs_labels=False), skip_bad, log_skipped)

    @classmethod
    def collect(cls, path: Path, rows: Iterable[RowReader], skip_bad: bool = False, strict: bool = False) -> list[Any]:
        """Read every row; a task whose labels can be malformed repairs them here."""
        return read_rows(path, rows, skip_bad)

    @classmethod
    @abstractmethod
    def iter_rows(cls, path: Path, columns: Columns, needs_labels: bool) -> Iterator[RowReader]:
        """Yield one function per row of a file; calling it parses the row."""

    @classmethod
    def iter_record_rows(cls, path: Path, columns: Columns, needs_labels: bool) -> Iterator[RowReader]:
        """Yield the rows of JSON lines, a table or Parquet, which `from_record` parses."""
        format = cls.record_format(path, columns)
        if not format:
            raise wrong_suffix(path, cls.task_type, cls.record_suffixes)
        build = partial(cls.from_record, columns=columns, needs_labels=needs_labels)
        return iter_records(open_records(path, columns, format).rows, build, columns.keep_rows)

    @classmethod
    def from_value(cls, value: Any, location: str, needs_labels: bool = False) -> Any:
        """Convert a plain Python value to an example."""
        if isinstance(value, cls.example_type):
            return value
        if isinstance(value, Mapping):
            return cls.from_record(dict(value), location, Columns(), needs_labels)
        return cls.parse_value(value, location)

    @classmethod
    def from_record(cls, record: dict[str, Any], location: str, columns: Columns, needs_labels: bool) -> Any:
        """Convert a JSON object, or the row of a table by column, to an example."""
        raise UnsupportedError(f"{location}: {cls.task_type} does not read JSON objects")

    @classmethod
    @abstractmethod
    def parse_value(cls, value: Any, location: str) -> Any:
        """Convert an unlabeled plain value, for example a text or a list of words, to an example."""

    @abstractmethod
    def fit(self, examples: Sequence[Any]) -> Self:
        """Return the task with the labels of a training set."""

    def fit_model(self, folder: Path) -> Self:
        """Return the task with settings that depend on the model to fine-tune."""
        return self

    @classmethod
    def from_examples(cls, examples: Sequence[Any], **settings: Any) -> Self:
        """Build the task of a training set: labels, thresholds and head settings."""
        known = {each.name for each in fields(cls)}
        for name in settings:
            if name not in known:
                raise ConfigError(f"{cls.task_type} has no setting {name!r}; {suggest(name, known)}")
        return cls(**settings).fit(examples)

    def training_examples(self, examples: Sequence[Any]) -> list[Any]:
        """Return the examples that a model is trained on."""
        return [e for e in examples if e.is_trainable]

    def describe_data(self, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, Any]:
        """Return facts about the data for the results of a run."""
        return {}

    def select_usage_example(self, train: Sequence[Any]) -> Any:
        """Return an unlabeled value of the same form as the training examples."""
        return self.usage_example

    def describe_usage(self, train: Sequence[Any]) -> dict[str, str]:
        """Return how a model of the task is used, for its card: the Hub's name of the task, and an example as code.

        If the model reads text, `source` is the example as it reads it.
        """
        value = self.select_usage_example(train)
        usage = {"pipeline_tag": self.pipeline_tag, "method": self.usage_method, "example": format_literal(value)}
        if self.text_template is not None:
            parts = self.text_template.render_parts(self.parse_value(value, "example"))
            usage["source"] = " ".join(part for each in parts for part in each if part)
        return usage

    # --------------------------------------------------------------------------------------------------- model

    @property
    def codec(self) -> Codec:
        """What puts the task to a model and reads its scores: the task itself, or a wrapper for text."""
        return self

    @property
    def output_labels(self) -> tuple[str, ...]:
        """The names of the head's outputs, none for a number."""
        return ()

    @property
    def head_name(self) -> str:
        return self.head_type + (f"@{self.name}" if self.name else "")

    def heads(self, family: Family, trunk: TrunkConfig) -> dict[str, HeadConfig]:
        return {self.head_name: family.task_head(self.head_type, self.output_labels, trunk)}

    @classmethod
    def from_heads(cls, heads: Mapping[str, HeadConfig]) -> Self | None:
        """Return the task of a folder that other tools wrote, which has heads but no task; None if it is another."""
        head = heads.get(cls.head_type)
        return cls.from_head(head) if isinstance(head, ClassificationHeadConfig) else None

    @classmethod
    def from_head(cls, head: ClassificationHeadConfig) -> Self | None:
        """Return the task of a published head; None if it is another's."""
        return None

    def collate(self, encoded: Encoded) -> tuple[Batch, list[int]]:
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i].ids))
        ordered = [encoded[i] for i in order]
        sizes = np.array([size for e in ordered for size in e.sequence_lengths])
        by_length = np.argsort(sizes, kind="stable")
        ranks = np.argsort(by_length, kind="stable")  # the position of each sequence in the batch
        layout = PackedLayout.from_lengths(sizes[by_length])
        starts = layout.cu_seqlens.numpy()[ranks]
        rows, labels = map(torch.from_numpy, self.batch_targets(ordered, ranks, starts))
        count = sum(self.num_targets(e) for e in ordered if e.target is not None)
        targets = Targets(rows, labels, count, groups=self.row_groups(ordered, starts))

        def pack(parts: list[np.ndarray]) -> torch.Tensor:
            sequences = np.split(np.concatenate(parts), np.cumsum(sizes)[:-1])
            return torch.from_numpy(np.concatenate([sequences[i] for i in by_length]))

        tokens, segments = pack([e.ids for e in ordered]), pack([e.segments for e in ordered])
        inputs = Inputs(tokens, layout, segments, features=encoded[0].features)
        return Batch(inputs, {self.head_name: targets}, layout.num_tokens), order

    @abstractmethod
    def batch_targets(self, encoded: Encoded, ranks: np.ndarray, starts: np.ndarray) -> RowsAndLabels:
        """Return the rows that the head reads and their labels.

        `ranks` has the position of each sequence of the batch, `starts` its first token, in the order of `encoded`.
        """

    def num_targets(self, encoded: EncodedExample) -> int:
        """Return how many predictions of a labeled example the loss averages over."""
        return 1

    def num_rows(self, encoded: EncodedExample) -> int:
        """Return how many rows of scores an encoded example has."""
        return 1

    def predict(self, model: Model, encoded: Encoded) -> list[Any]:
        batch, order = self.collate(encoded)
        batch = batch.for_trunk(model.config.trunk).to(next(model.parameters()).device)
        hidden, batch = batch.forward_for_head(model, self.head_name)
        scores = self.head_scores(model, hidden, batch, [encoded[i] for i in order])
        return [each for _, each in sorted(zip(order, scores), key=itemgetter(0))]

    def answer_logits(self, model: Model, encoded: Encoded) -> list[torch.Tensor]:
        batch, order = self.collate(encoded)
        batch = batch.for_trunk(model.config.trunk).to(next(model.parameters()).device)
        hidden, batch = batch.forward_for_head(model, self.head_name)
        rows = batch.targets[self.head_name].rows
        logits = model.predict_labels(self.head_name, hidden, batch.inputs.layout, rows)[0]
        parts = logits.split([self.num_rows(encoded[i]) for i in order])
        return [parts[rank] for rank in np.argsort(order)]

    def head_scores(self, model: Model, hidden: torch.Tensor, batch: Batch, encoded: Encoded) -> Iterable[Any]:
        """Return the scores of each encoded example, in the order of the batch."""
        rows = batch.targets[self.head_name].rows
        outputs = model.predict_labels(self.head_name, hidden, batch.inputs.layout, rows)
        ends = np.cumsum([self.num_rows(e) for e in encoded])[:-1]
        return map(RowScores, *(np.split(tensor.cpu().numpy(), ends) for tensor in outputs))

    def average(self, scores: Sequence[Sequence[Any]], models: Any, encoded: Any) -> list[Any]:
        if self.averages_logits:
            means = mean_rows([[s.logits.astype(np.float64) for s in one] for one in scores])
        else:
            shares = mean_rows([[self.to_probabilities(s.logits) for s in one] for one in scores])
            means = [np.log(np.maximum(share, 1e-300)) for share in shares]
        return [RowScores(logits, logits.argmax(-1)) for logits in means]

    def to_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities of labels."""
        return softmax(logits, axis=-1)

    @property
    def ensemble_key(self) -> tuple[Any, ...]:
        return self.task_type, self.output_labels

    # -------------------------------------------------------------------------------------------------- scores

    def calibrate(self, predictions: list[Any], dev: Sequence[Any]) -> tuple[Self, list[Any]]:
        """Tune thresholds on dev examples; return the task with them and the predictions they change."""
        return self, predictions

    @property
    def dev_choices(self) -> list[str]:
        """What `calibrate` chooses on the dev examples, for the note that a dev score is optimistic."""
        return []

    @abstractmethod
    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of predicted values."""

    def metrics(self, examples: Examples, predictions: Sequence[Any], extra: MetricsFn | None = None) -> Metrics:
        """Return the metrics of predictions, with those of the data set if it has its own."""
        return self.score_values(examples, [self.scored_value(p) for p in predictions], extra)

    def score_values(self, examples: Examples, values: list[Any], extra: MetricsFn | None = None) -> Metrics:
        """Return the metrics of predicted values, with the `extra` ones of a data set."""
        return self.score([e.gold for e in examples], values) | (extra(examples, values) if extra else {})

    def scored_value(self, prediction: Any) -> Any:
        """Return a prediction as the metrics count it."""
        return prediction.value

    def perfect_values(self, examples: Sequence[Any]) -> list[Any]:
        """Return the values that a perfect model predicts."""
        return [e.gold for e in examples]

    def baselines(self) -> dict[str, BaselineFn]:
        """Return simple models by name, the trivial one first."""
        return {}

    def baseline_metrics(self, name: str, train: Examples, dev: Examples, extra: MetricsFn | None = None) -> Metrics:
        """Return the metrics of a baseline that has learned from `train`."""
        self.check_baseline(name)
        require_gold([*train, *dev])
        return self.score_values(dev, self.baselines()[name](train, dev), extra)

    def check_baseline(self, name: str) -> None:
        """Raise an error if the task has no such baseline, or if a library that it needs is missing."""
        known = list(self.baselines())
        if name not in known:
            raise ConfigError(f"{self.task_type} has no baseline {name!r}; {suggest(name, known)}")
        if name != known[0]:
            require_package("sklearn", f"the baseline {name}", "'polyseme[tasks]'")

    # --------------------------------------------------------------------------------------------- diagnostics

    def diagnose(self, train: Examples, dev: Examples, predictions: Sequence[Any]) -> Diagnostics:
        """Return what predictions get right and wrong, for the report of a run; by default a list of errors."""
        return diagnose_values(dev, [self.scored_value(p) for p in predictions])

    def attribute(self, example: Any, prediction: Any, predict: PredictFn) -> Weights:
        """Return the words of an example and how much each adds to the answer; nothing if the task cannot tell."""
        return (), ()

    # -------------------------------------------------------------------------------------------------- output

    def write(self, path: Path, examples: Sequence[Any], predictions: Sequence[Any]) -> None:
        """Write predictions in the order of the examples, in a format that can be read as examples."""
        for file, file_format in self.output_formats(path, examples).items():
            write_text(part_path(file), file_format.format_file(examples, predictions))
            file_format.install(part_path(file), file)
            part_path(file).unlink(missing_ok=True)

    def output_formats(self, path: Path, examples: Iterable[Any]) -> dict[Path, PredictionFormat]:
        """Return the files that predictions are written to, and the format of each, by the suffix of `path`.

        A format may depend on all examples, which are read once more for that.
        """
        suffixes = tuple(dict.fromkeys((*self.own_suffixes, *TABLE_SUFFIXES)))
        check_output_suffix(path, suffixes, f"predictions of {self.task_type}")
        if path.suffix in self.own_suffixes:
            return self.own_formats(path, examples)
        return {path: table_format(path, examples, self.example_columns, self.prediction_columns)}

    def example_columns(self, example: Any) -> Mapping[str, Any]:
        """Return an example as columns: the row of the file that it was read from, or else its fields."""
        if example.row is not None:
            return example.row
        values = {each.name: getattr(example, each.name) for each in fields(example)}
        return {n: v for n, v in values.items() if n not in ("location", "row") and v is not None and v not in ("", ())}

    def prediction_columns(self, example: Any, prediction: Any) -> dict[str, Any]:
        """Return a prediction as columns that follow those of its example; the first is `prediction`."""
        return {"prediction": prediction.value}

    def own_formats(self, path: Path, examples: Iterable[Any]) -> dict[Path, PredictionFormat]:
        """Return the files of a format in `own_suffixes`, as `output_formats` does."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------- frozen features, text

    def word_sequences(self, example: Any) -> list[tuple[Words, ...]]:
        """Return the texts of each sequence of an example as words, for a network over frozen features."""
        raise UnsupportedError(f"{self.task_type} cannot be learned over frozen features")

    def encode_features(
        self, example: Any, index: int, offsets: Mapping[Words, int], max_words: int, use_labels: bool
    ) -> Iterator[EncodedExample]:
        """Encode an example as positions of a feature store, where `offsets` has the first word of each text."""
        sequences = self.word_sequences(example)
        sizes = [[len(text) for text in texts] for texts in sequences]
        ids = np.concatenate([offsets[text] + np.arange(len(text)) for texts in sequences for text in texts])
        segments = np.concatenate([np.repeat(np.arange(len(each)), each) for each in sizes])
        if use_labels:
            require_gold([example])
        target = self.target(example) if use_labels else None
        lengths = tuple(map(sum, sizes)) if len(sizes) > 1 else ()
        positions = self.feature_positions(example, segments)
        yield EncodedExample(ids, segments, positions, target, lengths, example_index=index)

    def feature_positions(self, example: Any, segments: np.ndarray) -> np.ndarray:
        """Return the positions that are predicted; a task that marks a word does so in `segments`."""
        return np.arange(0)

    def feature_head(self) -> HeadConfig:
        """Return the head over a network on frozen features."""
        return ClassificationHeadConfig(self.output_labels, "tokens")

    def for_features(self) -> Self:
        """Return the task with the settings that are usual over frozen features."""
        return self

    def with_text_template(self, name: str, examples: Sequence[Any]) -> Self:
        """Return the task with a template to answer it in text, that of the data set `name` if there is one."""
        raise UnsupportedError(f"{self.task_type} cannot be answered in text")


@dataclass(frozen=True)
class LabelSetTask(TaskConfig):
    """A task whose answers are among the labels of its training set."""

    labels: tuple[str, ...] = ()

    @property
    def output_labels(self) -> tuple[str, ...]:
        return self.labels

    @cached_property
    def _label_ids(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.labels)}

    def label_id(self, label: str, location: str = "") -> int:
        """Return the index of a label; one that is not among those of training is an error."""
        if label not in self._label_ids:
            place = f"{location}: " if location else ""
            raise DataError(f"{place}the label {label!r} was never seen in training; {suggest(label, self._label_ids)}")
        return self._label_ids[label]


def require_gold(examples: Examples) -> None:
    """Raise an error if there are no examples, or one has no label."""
    if unlabeled := next((example for example in examples if example.gold is None), None):
        raise DataError(f"{unlabeled.location}: there is no label")
    if not examples:
        raise DataError("there are no examples")


def require_labels(labels: Sequence[str], examples: Sequence[Any], min_labels: int = 2) -> None:
    """Raise an error if the labels of a training set are too few to learn from."""
    if len(labels) < min_labels:
        shown = f"only the label {labels[0]!r}" if labels else "no labels"
        raise DataError(f"the training data has {shown} ({examples[0].location} …): there is nothing to learn")
