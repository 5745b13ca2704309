"""Semantic roles: the arguments of a predicate, as tags of the words of its sentence."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import DataError
from polyseme.tasks.encoded import EncodedExample, IdsAndSegments, add_special_tokens, encode_words, separator_id
from polyseme.tasks.formats import PredictionFormat
from polyseme.tasks.metrics.srl import format_props, srl_scores
from polyseme.tasks.readers.rows import Columns, RowReader
from polyseme.tasks.readers.srl import PredicateExample, iter_predicates
from polyseme.tasks.tagging import WordTask, parse_words, place_words, read_tagged_record
from polyseme.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class SemanticRolesTask(WordTask):
    """One tag for each word, of the arguments of a predicate; counted as CoNLL-2005's srl-eval does."""

    task_type = "semantic_roles"
    usage_example = (("Anna", "feeds", "the", "dog"), 1)  # the words, and the index of the predicate
    example_type = PredicateExample
    own_suffixes = (".conll", ".props")
    has_word_marks = True

    @classmethod
    def iter_rows(cls, path: Path, columns: Columns, needs_labels: bool) -> Iterator[RowReader]:
        """Read records with `words`, `tags` and `predicate`, or columns as CoNLL-2005 and CoNLL-2012 have them."""
        if cls.record_format(path, columns):
            return cls.iter_record_rows(path, columns, needs_labels)
        columns.reject(path, "CoNLL columns")
        return iter_predicates(path, needs_labels)

    @classmethod
    def from_record(cls, record: dict[str, Any], location: str, columns: Columns, needs_labels: bool) -> Any:
        words, tags = read_tagged_record(record, location, columns, needs_labels)
        place = record.get("predicate")
        if isinstance(place, str):  # a cell of a table
            place = int(place) if place.isdecimal() else place or None
        if place is None:
            return PredicateExample(location, words, tags)
        if type(place) is not int or not 0 <= place < len(words):
            wrong = f"predicate is {str(place)[:40]!r}"
            raise DataError(f"{location}: {wrong}, not the index of a word, 0 to {len(words) - 1}")
        return PredicateExample(location, words, tags, (place, words[place]))

    @classmethod
    def parse_value(cls, value: Any, location: str) -> PredicateExample:
        if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], int):
            record = {"words": list(parse_words(value[0], location)), "predicate": value[1]}
            return cls.from_record(record, location, Columns(), needs_labels=False)
        return PredicateExample(location, parse_words(value, location))

    def encode_sentence(
        self, example: PredicateExample, target: Any, tokenizer: Tokenizer, max_len: int
    ) -> tuple[EncodedExample, int]:
        """Put the predicate first, as a text of its own, and between two separators in its sentence.

        Shi and Lin 2019 put it after the sentence, but a causal model has to read it before. The separators distinguish
        it from other occurrences of the same word.
        """
        if example.predicate is None:
            return super().encode_sentence(example, target, tokenizer, max_len)
        pieces, word_of = encode_words(tokenizer, example.words)
        predicted = self.predicted_pieces(word_of, len(example.words))
        place = example.predicate[0]
        first, end = np.searchsorted(word_of, [place, place + 1])
        predicate = pieces[first:end].tolist()
        pieces = np.insert(pieces, [first, end], separator_id(tokenizer))
        predicted[place:] += 1
        predicted[place + 1 :] += 1

        def wrap(piece_ids: list[int]) -> IdsAndSegments:
            return add_special_tokens(tokenizer, predicate, piece_ids)

        return place_words(pieces, predicted, target, wrap, max_len)

    def feature_positions(self, example: PredicateExample, segments: np.ndarray) -> np.ndarray:
        if example.predicate is not None:
            segments[example.predicate[0]] = 1
        return super().feature_positions(example, segments)

    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        return super().score(gold, predicted) | srl_scores(gold, predicted)

    def example_columns(self, example: PredicateExample) -> Mapping[str, Any]:
        columns = super().example_columns(example)
        place = {"predicate": example.predicate[0]} if example.predicate and example.row is None else {}
        return {**columns, **place}

    def own_formats(self, path: Path, examples: Iterable[PredicateExample]) -> dict[Path, PredictionFormat]:
        """Return columns as srl-eval reads them (.props), or with the words in front (.conll)."""

        def format_sentences(examples: Sequence[Any], predictions: Sequence[Any], start: int) -> Iterator[str]:
            return format_props(examples, [p.tags for p in predictions], path.suffix == ".conll")

        return {path: PredictionFormat(format_sentences, separator="\n", group_key=attrgetter("location"))}
