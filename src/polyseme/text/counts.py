"""Word counts for tokenizer training, by source and language, in bounded memory and time.

Three measures bound the counts: large sources are sampled, rare words are dropped from a full table, and the total is
scaled down. None of them applies to a small corpus, and all are deterministic: the same text gives the same counts.
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

MAX_SAMPLE_CHARS = 200_000_000  # counted before documents are sampled
SMOOTHING = 0.7  # multilingual BERT's exponent
MAX_WORDS = 2_000_000  # in all tables together
_MAX_CHARS_PER_WORD = 20  # mean length that the limit on characters allows
_BATCH_CHARS = 16_000_000  # characters counted at once
_MAX_TOTAL_COUNT = 50_000_000  # sum of the counts passed to a trainer
_NUM_SAMPLES, _SAMPLE_CHARS = 200, 2_000  # documents, and characters of each, for validation

# White space as defined by Unicode. A unit is white space and the text up to the next white space.
_WHITESPACE = frozenset(map(chr, [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029]))
_WHITESPACE |= frozenset("\u202f\u205f\u3000")
_WHITESPACE_CLASS = "".join(sorted(_WHITESPACE))
_UNIT_PATTERN = re.compile(f"[{_WHITESPACE_CLASS}]*[^{_WHITESPACE_CLASS}]+|[{_WHITESPACE_CLASS}]+")


class TextGroup(NamedTuple):
    """Group of texts (language, source, sampling weight) whose words are counted separately."""

    lang: str = ""
    source: int = 0
    weight: float = 1.0


DEFAULT_GROUP = TextGroup()


class _GroupCounts:
    """Counts of one group and how much of its text they represent."""

    def __init__(self) -> None:
        self.word_counts: dict[str, int] = {}
        self.num_letters = 0  # in the keys of `word_counts`
        self.pending: list[str] = []
        self.pending_chars = 0
        self.num_documents = self.num_chars = 0  # including documents that are not sampled
        self.chars_at_rate = 0  # characters sampled at the current rate
        self.rate_halvings = 0  # one of 2^halvings documents is sampled, with that weight
        self.num_sampled_chars = 0  # characters counted
        self.num_words = self.num_dropped = 0  # occurrences counted, and those that pruning removed
        self.samples: list[tuple[int, int, str]] = []


class WordCounts:
    """Counts of words as a tokenizer of this kind splits them. Call `add` for each text, then `smoothed_counts`."""

    def __init__(
        self,
        kind: str,
        lowercase: bool | None = None,
        max_sample_chars: int = MAX_SAMPLE_CHARS,
        num_groups: int = 1,
        max_words: int = MAX_WORDS,
    ):
        if kind not in TOKENIZER_KINDS:
            raise ConfigError(f"unknown tokenizer kind {kind!r}; {suggest(kind, TOKENIZER_KINDS)}")
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
        """Add a document. Its index within its group decides whether it is sampled."""
        if not text or text.isspace():
            return
        group_counts = self.groups.setdefault(group, _GroupCounts())
        document_index = group_counts.num_documents
        group_counts.num_documents += 1
        group_counts.num_chars += len(text)
        while group_counts.chars_at_rate >= self.group_sample_chars:
            self._count_pending(group_counts)  # the pending texts were sampled at the old rate
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
        """Return a deterministic sample of the documents of every group."""
        return [
            text
            for group_counts in self.groups.values()
            for _, _, text in sorted(group_counts.samples, key=lambda s: s[1])
        ]

    @property
    def num_chars(self) -> int:
        """Number of characters added."""
        return sum(group_counts.num_chars for group_counts in self.groups.values())

    @property
    def num_sampled_chars(self) -> int:
        """Number of characters counted."""
        return sum(group_counts.num_sampled_chars for group_counts in self.groups.values())

    @property
    def dropped_fraction(self) -> float:
        """Share of all counted words that were dropped because they were rare."""
        total = sum(group_counts.num_words for group_counts in self.groups.values())
        return sum(group_counts.num_dropped for group_counts in self.groups.values()) / max(total, 1)

    def smoothed_counts(self, smoothing: float = SMOOTHING, max_total: int = _MAX_TOTAL_COUNT) -> dict[str, int]:
        """Return one sorted table in which a language of n characters has a share proportional to n^smoothing.

        Within a language, sources keep their proportions, multiplied by their weights. The largest language at the
        smallest weight keeps its counts; if the sum exceeds `max_total`, all counts are scaled down.
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
        """Count the pending texts.

        Text is split where the tokenizer is certain to split too. The units are counted, and each then goes through the
        tokenizer once per set bit of its count: a few times instead of thousands.
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
        """Count words after normalization and pre-tokenization.

        A trainer with `vocab_size=0` only counts, in parallel threads; the counts are part of its pickled state.
        """
        trainer = trainers.WordLevelTrainer(vocab_size=0, show_progress=False)
        self._counter.train_from_iterator(self._join_units(texts), trainer)
        word_counts: dict[str, int] = json.loads(trainer.__getstate__())["WordLevelTrainer"]["words"]
        return word_counts

    def _join_units(self, units: list[str]) -> Iterator[str]:
        """Join units into longer texts that split the same way; one text per unit would be slow."""
        separator = " "
        if self._split_units is not _split_at_spaces:
            separator = ""
            yield from (unit for unit in units if unit[0] not in _WHITESPACE or unit[-1] in _WHITESPACE)
            units = [unit for unit in units if unit[0] in _WHITESPACE and unit[-1] not in _WHITESPACE]
        for start in range(0, len(units), 1000):
            yield separator.join(units[start : start + 1000])

    def _prune(self) -> None:
        """While the tables are too large in total, drop the rarer half of the words of the largest one."""
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
    """Split at spaces and line ends, which no word of WordPiece, unigram or words spans."""
    return text.replace("\n", " ").split(" ")


def _splitmix64(number: int) -> int:
    """Hash a number to 64 bits (splitmix64)."""
    mask = (1 << 64) - 1
    number = (number + 1) * 0x9E3779B97F4A7C15 & mask
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
    number = (number ^ number >> 27) * 0x94D049BB133111EB & mask
    return number ^ number >> 31


def _hash_order(word: str) -> tuple[int, str]:
    """Sort key that orders words by hash, independent of their letters."""
    return zlib.crc32(word.encode()), word
