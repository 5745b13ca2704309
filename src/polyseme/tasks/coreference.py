"""Coreference: which mentions in a document mean the same.

A document that is longer than the model reads is cut into segments, between sentences where that is possible; each is
read by itself (Joshi et al. 2019), and mentions are linked over all of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.families.family import Family
from polyseme.nn.heads import coreference as head_columns
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.coreference import FIRST_TOKEN, LAST_TOKEN, SENTENCE_END, CoreferenceHead, CoreferenceHeadConfig
from polyseme.nn.model import Model
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.objectives.batch import Batch
from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks.base import BaselineFn, Prediction, RowsAndLabels, TaskConfig, Words
from polyseme.tasks.baselines.texts import no_mentions, string_match
from polyseme.tasks.encoded import Encoded, EncodedExample, Examples, encode_words
from polyseme.tasks.formats import PredictionFormat, row_format
from polyseme.tasks.metrics.coreference import coreference_metrics
from polyseme.tasks.metrics.diagnostics import diagnose_documents
from polyseme.tasks.readers.conll2012 import Clusters, DocumentExample, format_conll, iter_documents, make_document
from polyseme.tasks.readers.rows import Columns, RowReader
from polyseme.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CoreferenceClusters(Prediction):
    """Clusters of mentions."""

    value_field = "clusters"

    clusters: Clusters


@dataclass(frozen=True)
class CoreferenceTask(TaskConfig):
    """Mentions are found and linked by one head, whose settings are those of the task."""

    task_type = "coreference"
    usage_example = (("Anna", "has", "a", "dog", "."), ("She", "feeds", "it", "."))
    example_type = DocumentExample
    default_metric = "f1"
    required_packages = {"scipy": "the coreference score CEAF"}  # noqa: RUF012
    head_type = "coreference"
    own_suffixes = (".conll",)
    feature_networks = ("bilstm", "linear")

    head: CoreferenceHeadConfig = field(default_factory=CoreferenceHeadConfig)

    @classmethod
    def iter_rows(cls, path: Path, columns: Columns, needs_labels: bool) -> Iterator[RowReader]:
        """Read the columns of CoNLL-2012, a file or a folder of them."""
        columns.reject(path, "CoNLL columns")
        return iter_documents(path, needs_labels)

    @classmethod
    def parse_value(cls, value: Any, location: str) -> DocumentExample:
        sentences: Sequence[Any] = value if isinstance(value, list | tuple) and value else [None]
        if not all(isinstance(s, list | tuple) and s and all(w and isinstance(w, str) for w in s) for s in sentences):
            raise DataError(f"{location} is {str(value)[:40]!r}: a document is needed, a list of sentences of words")
        return make_document(sentences, location)

    def fit(self, examples: Sequence[DocumentExample]) -> Self:
        """Return the task with the genres of the training set, each of which has an embedding."""
        if not any(e.clusters for e in examples):
            raise DataError(f"the training data has no mentions ({examples[0].location} …): there is nothing to learn")
        genres = {e.document.genre for e in examples if e.document.genre}
        return self.replace(head=self.head.replace(genres=tuple(sorted(genres))))

    def describe_data(self, train: Sequence[DocumentExample], dev: Sequence[DocumentExample]) -> dict[str, Any]:
        counts = {name: self.unreachable_mentions(examples) for name, examples in (("train", train), ("dev", dev))}
        return {"unreachable_mentions": counts}

    def unreachable_mentions(self, examples: Sequence[DocumentExample]) -> list[int]:
        """Count the gold mentions that are no candidates (too wide, or across sentences), and all gold mentions."""
        unreachable = total = 0
        for example in examples:
            mentions, ends = self.target(example), self.word_rows(example)[:, SENTENCE_END]
            if mentions is not None and len(mentions):
                first, last = mentions[:, 0], mentions[:, 1]
                unreachable += int(((last - first >= self.head.max_span_width) | (last > ends[first])).sum())
                total += len(mentions)
        return [unreachable, total]

    def heads(self, family: Family, trunk: TrunkConfig) -> dict[str, HeadConfig]:
        return {self.head_name: self.head}

    def feature_head(self) -> HeadConfig:
        return self.head

    @classmethod
    def from_heads(cls, heads: Mapping[str, HeadConfig]) -> Self | None:
        head = heads.get(cls.head_type)
        return cls(head=head) if isinstance(head, CoreferenceHeadConfig) else None

    def target(self, example: DocumentExample) -> np.ndarray | None:
        """Return the true mentions: first word, last word, cluster from 1, [m, 3]."""
        if example.clusters is None:
            return None
        mentions = [(a, b, number) for number, cluster in enumerate(example.clusters, 1) for a, b in cluster]
        return np.array(mentions, dtype=np.int64).reshape(-1, 3)

    def word_rows(self, example: DocumentExample) -> np.ndarray:
        """Return what is known of each word, [n, 6]; its tokens are those of its index."""
        document, size = example.document, len(example.words)
        if not size:
            raise DataError(f"{example.location}: the document has no words")
        rows = np.zeros((size, 6), dtype=np.int64)
        rows[:, FIRST_TOKEN] = rows[:, LAST_TOKEN] = np.arange(size)
        rows[:, SENTENCE_END] = np.repeat(np.cumsum(document.sentence_lengths) - 1, document.sentence_lengths)
        numbers = {name: i for i, name in enumerate(dict.fromkeys(document.speakers))}
        rows[:, head_columns.SPEAKER] = [numbers[name] for name in document.speakers]
        genres = self.head.genres
        rows[:, head_columns.GENRE] = genres.index(document.genre) + 1 if document.genre in genres else 0
        return rows

    def encode(
        self, examples: Examples, tokenizer: Tokenizer, max_len: int, truncate: bool = False, use_labels: bool = True
    ) -> list[EncodedExample]:
        """Encode documents as segments, end to end. A word that is longer than a segment is an error, or is cut."""
        room = max_len - tokenizer.num_special_tokens_to_add()
        if room < 2:
            raise ConfigError(f"max_len {max_len} leaves no room for text beside the special tokens")
        lead = tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
        encoded = []
        for index, example in enumerate(examples):
            rows = self.word_rows(example)
            pieces, word_of = encode_words(tokenizer, example.words)
            starts = np.searchsorted(word_of, np.arange(len(rows) + 1))
            sizes = np.diff(starts)
            if sizes.max() > room and not truncate:
                shown = f"the word {example.words[int(sizes.argmax())][:40]!r} has {sizes.max()} tokens"
                raise DataError(f"{example.location}: {shown}, and {room} are read")
            cut_sizes, parts, num_tokens = np.minimum(sizes, room), [], 0
            for a, b in _split_segments(cut_sizes, rows[:, SENTENCE_END], room):
                inner = [int(i) for w in range(a, b) for i in pieces[starts[w] : starts[w] + cut_sizes[w]]]
                parts.append(tokenizer.build_inputs_with_special_tokens(inner))
                ends = num_tokens + lead + np.cumsum(cut_sizes[a:b])
                rows[a:b, FIRST_TOKEN], rows[a:b, LAST_TOKEN] = ends - cut_sizes[a:b], ends - 1
                num_tokens += len(parts[-1][0])
            ids, segments = (np.array([*chain(*part)], dtype=np.int64) for part in zip(*parts))
            target, lengths = self.target(example) if use_labels else None, tuple(len(part) for part, _ in parts)
            encoded.append(EncodedExample(ids, segments, rows, target, lengths, bool((sizes > room).any()), index))
        return encoded

    def batch_targets(self, encoded: Encoded, ranks: np.ndarray, starts: np.ndarray) -> RowsAndLabels:
        """Return the rows of all words; the labels are the true mentions of all documents."""
        rows, mentions = [], [np.zeros((0, 3), dtype=np.int64)]
        num_words = num_clusters = sequence = 0
        for number, document in enumerate(encoded):
            row, borders = document.positions.copy(), np.cumsum([0, *document.sequence_lengths])
            segment = np.searchsorted(borders, row[:, FIRST_TOKEN], side="right") - 1
            for column in (FIRST_TOKEN, LAST_TOKEN):
                row[:, column] += starts[sequence + segment] - borders[segment]
            row[:, SENTENCE_END] += num_words
            row[:, head_columns.DOCUMENT] = number
            if isinstance(document.target, np.ndarray) and len(document.target):
                mentions.append(document.target + np.array([num_words, num_words, num_clusters]))
                num_clusters += int(document.target[:, 2].max())
            num_words, sequence = num_words + len(row), sequence + len(document.sequence_lengths)
            rows.append(row)
        return np.concatenate(rows), np.concatenate(mentions)

    def num_targets(self, encoded: EncodedExample) -> int:
        return self.head.max_mentions(len(encoded.positions))

    def head_scores(self, model: Model, hidden: torch.Tensor, batch: Batch, encoded: Encoded) -> list[Clusters]:
        """Return the clusters of each document."""
        head = model.heads[self.head_name]
        assert isinstance(head, CoreferenceHead)
        rows = batch.targets[self.head_name].rows
        states = head.select_states(hidden, batch.inputs.layout, rows, model.trunk.pool)
        return [tuple(sorted(tuple(sorted(c)) for c in clusters)) for clusters in head.decode_clusters(states)]

    def average(self, scores: Sequence[Sequence[Any]], models: Any, encoded: Any) -> list[Any]:
        raise UnsupportedError(f"predictions of several models cannot be averaged for {self.task_type}: no ensemble")

    def decode(self, scored: Iterable[tuple[EncodedExample, Any]], examples: Examples) -> list[CoreferenceClusters]:
        return [CoreferenceClusters(clusters) for _, clusters in scored]

    def score(self, gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
        return coreference_metrics(gold, predicted)

    def diagnose(self, train: Examples, dev: Examples, predictions: Sequence[Any]) -> Diagnostics:
        return diagnose_documents(dev, predictions, coreference_metrics)

    def baselines(self) -> dict[str, BaselineFn]:
        return {"majority": no_mentions, "linear": string_match}

    def example_columns(self, example: DocumentExample) -> Mapping[str, Any]:
        return {"id": example.id, "words": example.words}

    def own_formats(self, path: Path, examples: Iterable[DocumentExample]) -> dict[Path, PredictionFormat]:
        return {path: row_format(lambda example, prediction: format_conll(example.document, prediction.clusters))}

    def word_sequences(self, example: DocumentExample) -> list[tuple[Words, ...]]:
        ends = np.unique(self.word_rows(example)[:, SENTENCE_END]) + 1
        return [(example.words[a:b],) for a, b in pairwise([0, *ends.tolist()])]

    def feature_positions(self, example: DocumentExample, segments: np.ndarray) -> np.ndarray:
        return self.word_rows(example)


def _split_segments(sizes: np.ndarray, sentence_ends: np.ndarray, room: int) -> list[tuple[int, int]]:
    """Return runs of words with at most `room` tokens; each ends with a sentence, unless that does not fit."""
    totals, runs, begin = np.cumsum(sizes), list[tuple[int, int]](), 0
    while begin < len(sizes):
        before = int(totals[begin - 1]) if begin else 0
        end = int(np.searchsorted(totals, before + room, side="right"))
        whole = [i for i in range(begin + 1, end + 1) if sentence_ends[i - 1] == i - 1]
        runs.append((begin, whole[-1] if whole else end))
        begin = runs[-1][1]
    return runs
