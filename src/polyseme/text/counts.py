"""Counting words in bounded memory and bounded work, by source and language.

A tokenizer is trained on these counts. Three things keep them small: of a source that goes on and on only some
documents are looked at, words that are rare in a full table are dropped, and the total is scaled down. None of them
happens to a small corpus, and none depends on chance: the same text gives the same counts.
"""

from __future__ import annotations

import heapq
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, models, trainers

from polyseme.errors import ConfigError, suggest
from polyseme.text.pipelines import TOKENIZER_KINDS, build_untrained, replace_surrogates

MAX_SAMPLE_CHARS = 200_000_000  # looked at before documents are left out
SMOOTHING = 0.7  # multilingual BERT's exponent
MAX_WORDS = 2_000_000  # in all tables together
_MAX_CHARS_PER_WORD = 20  # of such a table, for each word it may hold
_BATCH_CHARS = 16_000_000  # characters that are counted together
_MAX_TOTAL_COUNT = 50_000_000  # what the counts add up to at most when they are given to a trainer
_NUM_SAMPLES, _SAMPLE_CHARS = 200, 2_000  # documents and characters of each that are kept for the contract check

# White space as Unicode has it. A unit is white space and what follows it up to the next.
_WHITESPACE = frozenset(map(chr, [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029]))
_WHITESPACE |= frozenset("\u202f\u205f\u3000")
_WHITESPACE_CLASS = "".join(sorted(_WHITESPACE))
_UNIT_PATTERN = re.compile(f"[{_WHITESPACE_CLASS}]*[^{_WHITESPACE_CLASS}]+|[{_WHITESPACE_CLASS}]+")


class TextGroup(NamedTuple):
    """Where a text belongs: words are counted for each stratum alone."""

    lang: str = ""
    source: int = 0
    weight: float = 1.0


DEFAULT_GROUP = TextGroup()


class _GroupCounts:
    """One stratum: its counts so far, and how much of its text they stand for."""

    def __init__(self) -> None:
        self.word_counts: dict[str, int] = {}
        self.num_letters = 0  # of the words above
        self.pending: list[str] = []
        self.pending_chars = 0
        self.num_documents = self.num_chars = 0  # all that came
        self.chars_at_rate = 0  # characters at the present rate
        self.rate_halvings = 0  # one document of 2^halvings is looked at, and counts for as many
        self.num_sampled_chars = 0  # characters looked at
        self.num_words = self.num_dropped = 0  # occurrences counted, and those that pruning took out again
        self.samples: list[tuple[int, int, str]] = []


class WordCounts:
    """How often each word occurs, as the tokenizer to be trained cuts words; `add` texts, then `smoothed_counts`."""

    def __init__(
        self,
        kind: str,
        lowercase: bool | None = None,
        max_sample_chars: int = MAX_SAMPLE_CHARS,
        num_groups: int = 1,
        max_words: int = MAX_WORDS,
    ):
        if kind not in TOKENIZER_KINDS:
            raise ConfigError(f"no tokenizer kind {kind!r}: {suggest(kind, TOKENIZER_KINDS)}")
        self.kind = kind
        self.lowercase = kind == "wordpiece" if lowercase is None else lowercase
        self.max_words = max_words
        self.group_sample_chars = max(max_sample_chars // max(num_groups, 1), 1)
        self.samples_per_group = max(_NUM_SAMPLES // max(num_groups, 1), 1)
        self.groups: dict[TextGroup, _GroupCounts] = {}
        self._pending_chars = 0
        untrained_tokenizer = build_untrained(kind, self.lowercase)
        self._counter = Tokenizer(models.WordLevel({}, unk_token=""))
        if untrained_tokenizer.normalizer is not None:
            self._counter.normalizer = untrained_tokenizer.normalizer
        self._counter.pre_tokenizer = untrained_tokenizer.pre_tokenizer
        self._split_units: Callable[[str], list[str]] = (
            _split_at_spaces if kind in ("wordpiece", "unigram", "words") else _UNIT_PATTERN.findall
        )

    def add(self, text: str, group: TextGroup = DEFAULT_GROUP) -> None:
        """One document. Its place among the documents of its stratum decides whether it is looked at."""
        if not text or text.isspace():
            return
        group_counts = self.groups.setdefault(group, _GroupCounts())
        document_index = group_counts.num_documents
        group_counts.num_documents += 1
        group_counts.num_chars += len(text)
        while group_counts.chars_at_rate >= self.group_sample_chars:
            self._count_pending(group_counts)  # what waits was taken at the old rate
            group_counts.chars_at_rate -= self.group_sample_chars
            group_counts.rate_halvings += 1
        document_hash = _splitmix64(document_index)
        if document_hash >> (64 - group_counts.rate_halvings):
            return
        text = replace_surrogates(text)
        group_counts.chars_at_rate += len(text)
        group_counts.num_sampled_chars += len(text)
        group_counts.pending.append(text)
        group_counts.pending_chars += len(text)
        self._pending_chars += len(text)
        push_sample = heapq.heappush if len(group_counts.samples) < self.samples_per_group else heapq.heappushpop
        push_sample(group_counts.samples, (-document_hash, document_index, text[:_SAMPLE_CHARS]))
        if self._pending_chars >= _BATCH_CHARS:
            self._count_pending(max(self.groups.values(), key=lambda group_counts: group_counts.pending_chars))

    def sample_texts(self) -> list[str]:
        """Some of the documents of every stratum, the same each time."""
        return [
            text
            for group_counts in self.groups.values()
            for _, _, text in sorted(group_counts.samples, key=lambda s: s[1])
        ]

    @property
    def num_chars(self) -> int:
        return sum(group_counts.num_chars for group_counts in self.groups.values())

    @property
    def num_sampled_chars(self) -> int:
        """How many of the characters were looked at."""
        return sum(group_counts.num_sampled_chars for group_counts in self.groups.values())

    @property
    def dropped_fraction(self) -> float:
        """The share of all words that stood in the tables and was dropped because they were rare."""
        total = sum(group_counts.num_words for group_counts in self.groups.values())
        return sum(group_counts.num_dropped for group_counts in self.groups.values()) / max(total, 1)

    def smoothed_counts(self, smoothing: float = SMOOTHING, max_total: int = _MAX_TOTAL_COUNT) -> dict[str, int]:
        """One table, sorted. A language of n characters gets a share that goes with n^smoothing.

        Inside a language the sources keep their proportions, times their weights. The largest language at the
        smallest weight keeps its counts; then, if all add up to more than `max_total`, all are scaled down.
        """
        for group_counts in self.groups.values():
            self._count_pending(group_counts)
        chars_per_language: dict[str, float] = {}
        for group, group_counts in self.groups.items():
            chars_per_language[group.lang] = (
                chars_per_language.get(group.lang, 0) + group.weight * group_counts.num_chars
            )
        max_chars = max(chars_per_language.values(), default=0)
        min_weight = min((group.weight for group in self.groups), default=1)
        counts: Counter[str] = Counter()
        for group, group_counts in self.groups.items():
            if not group_counts.word_counts:
                continue
            factor = (chars_per_language[group.lang] / max_chars) ** (smoothing - 1) * group.weight / min_weight
            counts.update(
                group_counts.word_counts
                if factor == 1
                else {w: round(n * factor) for w, n in group_counts.word_counts.items()}
            )
        scale = min(max_total / max(counts.total(), 1), 1)
        scaled_counts = counts if scale == 1 else {word: round(count * scale) for word, count in counts.items()}
        return {word: scaled_counts[word] for word in sorted(scaled_counts) if scaled_counts[word]}

    def _count_pending(self, group_counts: _GroupCounts) -> None:
        """Count what waits.

        Text is cut here where the tokenizer surely cuts too. What is between the cuts is counted, and then goes
        through the tokenizer once for each bit of its count: a few times instead of thousands.
        """
        units: Counter[str] = Counter()
        for text in group_counts.pending:
            units.update(self._split_units(text))
        self._pending_chars -= group_counts.pending_chars
        group_counts.pending, group_counts.pending_chars = [], 0
        bit = 1
        while units:
            for word, count in self._count_words([unit for unit, count in units.items() if count & bit]).items():
                count *= bit << group_counts.rate_halvings
                previous_count = group_counts.word_counts.get(word, 0)
                group_counts.word_counts[word] = previous_count + count
                group_counts.num_letters += 0 if previous_count else len(word)
                group_counts.num_words += count
            units = Counter({unit: count for unit, count in units.items() if count > bit * 2 - 1})
            bit *= 2
        self._prune()

    def _count_words(self, texts: list[str]) -> dict[str, int]:
        """How often each word occurs after cleaning and cutting.

        A trainer asked for no vocabulary does nothing but count, at the speed of its threads; the counts are
        part of the state it gives to pickle.
        """
        trainer = trainers.WordLevelTrainer(vocab_size=0, show_progress=False)
        self._counter.train_from_iterator(self._join_units(texts), trainer)
        word_counts: dict[str, int] = json.loads(trainer.__getstate__())["WordLevelTrainer"]["words"]
        return word_counts

    def _join_units(self, units: list[str]) -> Iterator[str]:
        """Units put together again, at borders like those they were cut at; one by one they would be slow."""
        separator = " "
        if self._split_units is not _split_at_spaces:
            separator = ""
            yield from (unit for unit in units if unit[0] not in _WHITESPACE or unit[-1] in _WHITESPACE)
            units = [unit for unit in units if unit[0] in _WHITESPACE and unit[-1] not in _WHITESPACE]
        for start in range(0, len(units), 1000):
            yield separator.join(units[start : start + 1000])

    def _prune(self) -> None:
        """While the tables are too large together, the largest keeps the more frequent half of its words."""
        while len(self.groups) and (
            sum(len(group_counts.word_counts) for group_counts in self.groups.values()) > self.max_words
            or sum(group_counts.num_letters for group_counts in self.groups.values())
            > self.max_words * _MAX_CHARS_PER_WORD
        ):
            group_counts = max(
                self.groups.values(), key=lambda group_counts: group_counts.num_letters + len(group_counts.word_counts)
            )
            previous_total, half = sum(group_counts.word_counts.values()), len(group_counts.word_counts) // 2
            counts = np.fromiter(group_counts.word_counts.values(), np.int64, len(group_counts.word_counts))
            count_threshold = int(np.partition(counts, len(counts) - half)[len(counts) - half]) if half else 1 << 62
            tied_words = sorted(
                (word for word, count in group_counts.word_counts.items() if count == count_threshold), key=_hash_order
            )
            frequent_words = {
                word: count for word, count in group_counts.word_counts.items() if count > count_threshold
            }
            group_counts.word_counts = frequent_words | dict.fromkeys(
                tied_words[: half - len(frequent_words)], count_threshold
            )
            group_counts.num_letters = sum(map(len, group_counts.word_counts))
            group_counts.num_dropped += previous_total - sum(group_counts.word_counts.values())


def _split_at_spaces(text: str) -> list[str]:
    """A text cut at spaces and line ends, which no word of WordPiece, unigram or words reaches over."""
    return text.replace("\n", " ").split(" ")


def _splitmix64(number: int) -> int:
    """A number of 64 bits that looks random (the finish of splitmix64)."""
    mask = (1 << 64) - 1
    number = (number + 1) * 0x9E3779B97F4A7C15 & mask
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
    number = (number ^ number >> 27) * 0x94D049BB133111EB & mask
    return number ^ number >> 31


def _hash_order(word: str) -> tuple[int, str]:
    """An order of words that favours no letter."""
    return zlib.crc32(word.encode()), word
