"""Tagging: one label for each word of a sentence."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.families.family import Family
from polyseme.io.table_output import flatten_cell
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.crf import CRFConfig
from polyseme.nn.heads.tag_schemes import first_invalid, repair_tags
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks.base import BaselineFn, LabelSetTask, Prediction, RowsAndLabels, Words, require_labels
from polyseme.tasks.baselines.taggers import crf_tags, linear_tags, majority_tag, memm_tags
from polyseme.tasks.encoded import (
    AnswerCells,
    Encoded,
    EncodedExample,
    Examples,
    RowScores,
    Target,
    encode_words,
    softmax,
)
from polyseme.tasks.formats import PredictionFormat, Values
from polyseme.tasks.metrics.diagnostics import diagnose_tags
from polyseme.tasks.metrics.standard import tagging_metrics
from polyseme.tasks.readers import rows
from polyseme.tasks.readers.conll import TaggingExample, iter_sentences
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import read_model_config

logger = logging.getLogger(__name__)
WrapFn = Callable[[list[int]], tuple[list[int], list[int]]]  # pieces to token ids and segments


@dataclass(frozen=True)
class Tagging(Prediction):
    """The tag of each word and its probability, None where the word was cut off."""

    value_field = "tags"

    tags: Words
    probabilities: tuple[float | None, ...]


@dataclass(frozen=True)
class WordTask(LabelSetTask):
    """A task with one label per word. Labels are in order of frequency: the first is the best blind guess.

    With the `decoder` "crf" the tags of a sentence are chosen together (Lample et al. 2016, §2.2); transitions that the
    tag scheme forbids are barred, unless the training data has some (`is_constrained`). A word is predicted at its
    first piece, as in BERT, or at its last, before which a causal model has not read it; `auto` chooses by the model.
    """

    default_metric = "f1"
    head_type = "tag"
    repairs_labels = True
    supports_attribution = True
    verb = "tag"
    pipeline_tag = "token-classification"
    record_suffixes = rows.NESTED_SUFFIXES
    feature_networks = ("bilstm", "linear")

    decoder: Literal["softmax", "crf"] = "softmax"
    is_constrained: bool = True
    predicted_piece: Literal["auto", "first", "last"] = "auto"

    @classmethod
    def collect(
        cls, path: Path, row_readers: Iterable[rows.RowReader], skip_bad: bool = False, strict: bool = False
    ) -> list[Any]:
        return repair_examples(path, super().collect(path, row_readers, skip_bad), strict)

    def fit(self, examples: Sequence[Any]) -> Self:
        counts = Counter(tag for e in examples for tag in e.tags or ())
        labels = sorted(counts, key=lambda tag: (-counts[tag], tag))
        require_labels(labels, examples)
        is_constrained = all(first_invalid(e.tags or ()) is None for e in examples)
        return self.replace(labels=tuple(labels), is_constrained=is_constrained)

    def fit_model(self, folder: Path) -> Self:
        if self.predicted_piece != "auto":
            return self
        return self.replace(predicted_piece="last" if read_model_config(folder)[0].trunk.causal else "first")

    @property
    def crf(self) -> CRFConfig | None:
        """The config of the CRF that decodes, if one does."""
        return CRFConfig(self.is_constrained) if self.decoder == "crf" else None

    def heads(self, family: Family, trunk: TrunkConfig) -> dict[str, HeadConfig]:
        (head,) = super().heads(family, trunk).values()
        return {self.head_name: head.replace(crf=self.crf) if isinstance(head, ClassificationHeadConfig) else head}

    def feature_head(self) -> HeadConfig:
        if self.predicted_piece != "auto":
            raise ConfigError(
                f"predicted_piece is {self.predicted_piece!r}, expected auto: features are of whole words"
            )
        return ClassificationHeadConfig(self.labels, "tokens", crf=self.crf)

    def for_features(self) -> Self:
        return self.replace(decoder="crf")

    def target(self, example: Any) -> np.ndarray | None:
        return None if example.tags is None else np.array([self.label_id(t, example.location) for t in example.tags])

    def encode_truncated(
        self, examples: Examples, targets: Sequence[Target], tokenizer: Tokenizer, max_len: int
    ) -> Iterator[tuple[EncodedExample, int]]:
        for example, target in zip(examples, targets):
            yield self.encode_sentence(example, target, tokenizer, max_len)

    def encode_sentence(
        self, example: Any, target: Any, tokenizer: Tokenizer, max_len: int
    ) -> tuple[EncodedExample, int]:
        """Encode words as pieces. Also return the length before truncation."""
        pieces, word_of = encode_words(tokenizer, example.words)
        wrap = tokenizer.build_inputs_with_special_tokens
        return place_words(pieces, self.predicted_pieces(word_of, len(example.words)), target, wrap, max_len)

    def predicted_pieces(self, word_of: np.ndarray, num_words: int) -> np.ndarray:
        """Return the piece at which each word is predicted; `word_of` has the word of each piece."""
        if self.predicted_piece == "last":
            return np.searchsorted(word_of, np.arange(num_words), side="right") - 1
        return np.searchsorted(word_of, np.arange(num_words))

    def batch_targets(self, encoded: Encoded, ranks: np.ndarray, starts: np.ndarray) -> RowsAndLabels:
        word_rows = np.concatenate([start + e.positions for start, e in zip(starts.tolist(), encoded)])
        targets = [IGNORE_INDEX if e.target is None else e.target for e in encoded]
        return word_rows, np.concatenate([np.full(len(e.positions), t) for e, t in zip(encoded, targets)])

    def num_targets(self, encoded: EncodedExample) -> int:
        return len(encoded.positions)

    def num_rows(self, encoded: EncodedExample) -> int:
        return len(encoded.positions)

    def decode(self, scored: Iterable[tuple[EncodedExample, RowScores]], examples: Sequence[Any]) -> list[Tagging]:
        return [self.decode_one(s.logits, example, s.labels) for (_, s), example in zip(scored, examples)]

    def decode_one(self, logits: np.ndarray, example: Any, best: np.ndarray | None = None) -> Tagging:
        """Turn the scores of one sentence into tags; `best` are the labels if not those with the highest scores.

        Words that were cut off get the `outside_tag`, so that no word is ever lost.
        """
        best = logits.argmax(-1) if best is None else best
        shares = softmax(logits, axis=-1)[np.arange(len(best)), best].tolist()
        num_cut = len(example.words) - len(logits)
        tags = (*(self.labels[i] for i in best), *[self.outside_tag] * num_cut)
        return Tagging(tags, (*shares, *[None] * num_cut))

    @property
    def outside_tag(self) -> str:
        """The tag of words outside of everything: O, else the first and most frequent."""
        return "O" if "O" in self.labels else self.labels[0]

    def scored_value(self, prediction: Tagging) -> tuple[str | None, ...]:
        """Return the tags, without those of words that were cut off, which count as wrong."""
        pairs = zip(prediction.tags, prediction.probabilities)
        return tuple(None if share is None else tag for tag, share in pairs)

    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        return tagging_metrics(gold, predicted)

    def diagnose(self, train: Examples, dev: Examples, predictions: Sequence[Any]) -> Diagnostics:
        return diagnose_tags(train, dev, predictions)

    def baselines(self) -> dict[str, BaselineFn]:
        return {"majority": majority_tag, "linear": linear_tags, "memm": memm_tags, "crf": crf_tags}

    def prediction_columns(self, example: Any, prediction: Tagging) -> dict[str, Any]:
        return {"prediction": list(prediction.tags), "probabilities": list(prediction.probabilities)}

    def input_texts(self, example: Any) -> list[Words]:
        return [example.words]

    def locate_answer(
        self, answer: str | None, example: Any, encoded: EncodedExample, prediction: Tagging
    ) -> AnswerCells:
        """Locate `TAG@WORD`, or the predicted tag of a word; a word is written, or is a number from 1."""
        words, (tag, separator, name) = example.words, (answer or "").rpartition("@")
        if answer is None:
            is_inside = [each != self.outside_tag for each in prediction.tags]
            index, tag = (is_inside.index(True) if any(is_inside) else 0), ""
        elif answer in words or not separator:
            index, tag = self._find_word(answer, words), ""
        else:
            index = self._find_word(name, words)
        tag = tag or prediction.tags[index]
        return AnswerCells(f"{tag}@{words[index]}", (self.label_id(tag),), (int(encoded.positions[index]),))

    def _find_word(self, name: str, words: Words) -> int:
        if name in words:
            return words.index(name)
        if name.isdigit() and 1 <= int(name) <= len(words):
            return int(name) - 1
        hint = f"write {name}@WORD" if name in self.labels else suggest(name, words)
        raise DataError(f"{name!r} is no word of the text; {hint}")

    def locate_contrast(self, contrast: str, answer: AnswerCells, *arguments: Any) -> AnswerCells:
        """Locate another tag of the same word."""
        tag, word = contrast.partition("@")[0], answer.name.rpartition("@")[2]
        return replace(answer, name=f"{tag}@{word}", columns=(self.label_id(tag),))

    def word_sequences(self, example: Any) -> list[tuple[Words, ...]]:
        if not example.words:
            raise DataError(f"{example.location}: a sentence has no words")
        return [(example.words,)]

    def feature_positions(self, example: Any, segments: np.ndarray) -> np.ndarray:
        return np.arange(len(segments))


@dataclass(frozen=True)
class TaggingTask(WordTask):
    """One tag for each word: entities, chunks, parts of speech."""

    task_type = "tagging"
    usage_example = ("Anna", "lives", "in", "Paris")
    example_type = TaggingExample
    own_suffixes = (".tsv", *rows.CONLL_SUFFIXES)

    @classmethod
    def from_head(cls, head: ClassificationHeadConfig) -> Self:
        return cls(labels=head.labels, decoder="crf" if head.crf else "softmax")

    @classmethod
    def iter_rows(cls, path: Path, columns: rows.Columns, needs_labels: bool) -> Iterator[rows.RowReader]:
        """Read records with `words` and `tags`, or columns with the word first and its tag last."""
        if cls.record_format(path, columns):
            return cls.iter_record_rows(path, columns, needs_labels)
        columns.reject(path, "CoNLL columns", "text", "pair", "label", "id", "header")
        return iter_sentences(path, columns.encoding, needs_labels)

    @classmethod
    def from_record(cls, record: dict[str, Any], location: str, columns: rows.Columns, needs_labels: bool) -> Any:
        return TaggingExample(location, *read_tagged_record(record, location, columns, needs_labels))

    @classmethod
    def parse_value(cls, value: Any, location: str) -> TaggingExample:
        return TaggingExample(location, parse_words(value, location))

    def example_columns(self, example: Any) -> Mapping[str, Any]:
        return {name: value for name, value in super().example_columns(example).items() if name != "source"}

    def own_formats(self, path: Path, examples: Iterable[TaggingExample]) -> dict[Path, PredictionFormat]:
        """Return word and tag by line or, for words from a file in columns, its lines with one more column."""
        separator = "\t" if path.suffix == ".tsv" else ""

        def format_sentence(index: int, example: TaggingExample, prediction: Tagging) -> str:
            if example.source is not None:
                return example.source.with_column(prediction.tags, self.outside_tag, separator)
            pairs = zip(example.words, prediction.tags)
            text = "".join(f"{flatten_cell(word)}\t{tag}\n" for word, tag in pairs)
            return f"\n{text}" if index else text

        def format_rows(examples: Values, predictions: Values, start: int) -> Iterator[str]:
            return map(format_sentence, count(start), examples, predictions)

        return {path: PredictionFormat(format_rows)}


def place_words(
    pieces: np.ndarray, predicted: np.ndarray, target: np.ndarray | None, wrap: WrapFn, max_len: int
) -> tuple[EncodedExample, int]:
    """Add special tokens to the pieces of a sentence and cut it; `predicted` has the piece that predicts each word."""
    template = wrap([-1])[0]
    room = max(max_len - len(template) + 1, 0)
    positions = template.index(-1) + predicted[predicted < room]
    ids, segments = (np.array(part, dtype=np.int64) for part in wrap(pieces[:room].tolist()))
    target = None if target is None else target[: len(positions)]
    return EncodedExample(ids, segments, positions, target), len(pieces) + len(template) - 1


def read_tagged_record(
    record: dict[str, Any], location: str, columns: rows.Columns, needs_labels: bool
) -> tuple[Words, Words | None]:
    """Return the words and the tags of a record: lists, or in a table texts that are split at spaces."""
    names = {"words": columns.text or "words", "tags": columns.label or "tags"}
    optional = () if needs_labels else ("tags",)
    values = rows.from_record(record, location, rows.RowFormat(names, optional, lambda _, values: values))
    for role, value in values.items():
        if isinstance(value, str) and not value.startswith("["):
            values[role] = value.split() or None
    words = rows.parse_texts(values["words"], location, names["words"])
    tags = None if values.get("tags") is None else rows.parse_texts(values["tags"], location, names["tags"])
    if needs_labels and tags is None:
        raise DataError(f"{location}: the tags are missing")
    if tags is not None and len(tags) != len(words):
        raise DataError(f"{location}: {len(words)} words but {len(tags)} tags")
    return words, tags


def parse_words(value: Any, location: str) -> Words:
    """Convert a text or a list of words to words."""
    parts = value.split() if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
    if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
        raise DataError(f"{location} is {str(value)[:40]!r}: a text or a list of words is needed")
    return tuple(parts)


def repair_examples(path: Path, examples: list[Any], strict: bool) -> list[Any]:
    """Repair tags that no scheme allows (I-X after O, in IOB2) and count them; with `strict` they are an error."""
    tagged = [i for i, e in enumerate(examples) if e.tags is not None]
    repaired = dict(zip(tagged, repair_tags([examples[i].tags or () for i in tagged])))
    changed = [i for i in tagged if repaired[i] != examples[i].tags]
    if not changed:
        return examples
    first, tags = examples[changed[0]], examples[changed[0]].tags
    place = min(first_invalid(tags) or 0, len(tags) - 1)
    shown = f"{first.location}: {tags[place]!r} at word {place + 1}"
    if strict:
        raise DataError(f"{shown} cannot stand there; {len(changed)} of {len(examples)} sentences have such tags")
    number = sum(a != b for i in changed for a, b in zip(repaired[i], examples[i].tags))
    where = f"{len(changed)} of {len(examples)} sentences with invalid tags"
    logger.warning(f"{path}: repaired {number} tags in {where}, the first: {shown}")
    return [replace(e, tags=repaired[i]) if i in repaired else e for i, e in enumerate(examples)]
