"""Word counts for tokenizer training, by source and language, in bounded memory and time.

Four measures bound the counts: large sources are sampled, rare words are dropped from a full table, long words are
split, and the total is scaled down. None of them applies to a small corpus of ordinary words, and all are
deterministic: the same text gives the same counts.
"""

import heapq
import json
import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, models, trainers

from polyseme.corpus.sources.sources import SourceReader, open_sources
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.limits import MAX_WORD_CHARS
from polyseme.io.lines import replace_surrogates
from polyseme.progress import progress
from polyseme.text.cached_encoder import UNICODE_SPACES
from polyseme.text.pipelines import TOKENIZER_KINDS, build_untrained
from polyseme.text.trainers import BYTE_BPE_SPECIALS, MAX_WORDS

logger = logging.getLogger(__name__)

MAX_SAMPLE_CHARS = 200_000_000  # counted before documents are sampled
SMOOTHING = 0.7  # multilingual BERT's exponent
_MAX_CHARS_PER_WORD = 20  # mean length that the limit on characters allows
_BATCH_CHARS = 16_000_000  # characters counted at once
_MAX_TOTAL_COUNT = 50_000_000  # sum of the counts passed to a trainer
_NUM_SAMPLES, _SAMPLE_CHARS = 200, 2_000  # documents, and characters of each, for validation

# A unit is white space and the text up to the next white space.
_WHITESPACE = "".join(map(chr, UNICODE_SPACES))
_UNIT_PATTERN = re.compile(f"[{_WHITESPACE}]*[^{_WHITESPACE}]+|[{_WHITESPACE}]+")


class TextGroup(NamedTuple):
    """Group of texts (language, source, sampling weight) whose words are counted separately."""

    lang: str = ""
    source: int = 0
    weight: float = 1.0


DEFAULT_GROUP = TextGroup()


@dataclass
class _GroupCounts:
    """Counts of one group and how much of its text they represent."""

    words: dict[str, int] = field(default_factory=dict)
    num_letters: int = 0  # in the keys of `words`
    pending: list[str] = field(default_factory=list)
    pending_chars: int = 0
    num_documents: int = 0  # including documents that are not sampled
    num_chars: int = 0
    chars_at_rate: int = 0  # characters sampled at the current rate
    rate_halvings: int = 0  # one of 2^halvings documents is sampled, with that weight
    num_sampled_chars: int = 0  # characters counted
    num_words: int = 0  # occurrences counted
    num_dropped: int = 0  # occurrences that pruning removed
    samples: list[tuple[int, int, str]] = field(default_factory=list)


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
        self.max_words = max_words  # in all tables together
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
            _split_at_spaces if kind in ("wordpiece", "unigram", "unigram-roberta", "words") else _UNIT_PATTERN.findall
        )

    def add(self, text: str, group: TextGroup = DEFAULT_GROUP) -> None:
        """Add a document. Its index within its group decides whether it is sampled."""
        if not text or text.isspace():
            return
        counts = self.groups.setdefault(group, _GroupCounts())
        document_index = counts.num_documents
        counts.num_documents += 1
        counts.num_chars += len(text)
        while counts.chars_at_rate >= self.group_sample_chars:
            self._count_pending(counts)  # the pending texts were sampled at the old rate
            counts.chars_at_rate -= self.group_sample_chars
            counts.rate_halvings += 1
        document_hash = _splitmix64(document_index)
        if document_hash >> (64 - counts.rate_halvings):
            return
        text = replace_surrogates(text)
        counts.chars_at_rate += len(text)
        counts.num_sampled_chars += len(text)
        counts.pending.append(text)
        counts.pending_chars += len(text)
        self._pending_chars += len(text)
        push_sample = heapq.heappush if len(counts.samples) < self.samples_per_group else heapq.heappushpop
        push_sample(counts.samples, (-document_hash, document_index, text[:_SAMPLE_CHARS]))
        if self._pending_chars >= _BATCH_CHARS:
            self._count_pending(max(self.groups.values(), key=lambda group_counts: group_counts.pending_chars))

    def sample_texts(self) -> list[str]:
        """Return a deterministic sample of the documents of every group."""
        samples = (sorted(counts.samples, key=lambda sample: sample[1]) for counts in self.groups.values())
        return [text for group_samples in samples for _, _, text in group_samples]

    @property
    def num_chars(self) -> int:
        """Number of characters added."""
        return sum(counts.num_chars for counts in self.groups.values())

    @property
    def num_sampled_chars(self) -> int:
        """Number of characters counted."""
        return sum(counts.num_sampled_chars for counts in self.groups.values())

    @property
    def dropped_fraction(self) -> float:
        """Share of all counted words that were dropped because they were rare."""
        total = sum(counts.num_words for counts in self.groups.values())
        return sum(counts.num_dropped for counts in self.groups.values()) / max(total, 1)

    def smoothed_counts(self, smoothing: float = SMOOTHING, max_total: int = _MAX_TOTAL_COUNT) -> dict[str, int]:
        """Return one sorted table in which a language of n characters has a share proportional to n^smoothing.

        Within a language, sources keep their proportions, multiplied by their weights. The largest language at the
        smallest weight keeps its counts; if the sum exceeds `max_total`, all counts are scaled down.
        """
        chars_per_language: dict[str, float] = {}
        for group, counts in self.groups.items():
            self._count_pending(counts)
            num_chars = chars_per_language.get(group.lang, 0) + group.weight * counts.num_chars
            chars_per_language[group.lang] = num_chars
        max_chars = max(chars_per_language.values(), default=0)
        min_weight = min((group.weight for group in self.groups), default=1)
        totals: Counter[str] = Counter()
        for group, counts in self.groups.items():
            if counts.words:
                factor = (chars_per_language[group.lang] / max_chars) ** (smoothing - 1) * group.weight / min_weight
                totals.update(_scale(counts.words, factor))
        scaled = _scale(totals, min(max_total / max(totals.total(), 1), 1))
        return {word: scaled[word] for word in sorted(scaled) if scaled[word]}

    def _count_pending(self, counts: _GroupCounts) -> None:
        """Count the pending texts.

        Text is split where the tokenizer is certain to split too. The units are counted, and each then goes through the
        tokenizer once per set bit of its count: a few times instead of thousands.
        """
        units: Counter[str] = Counter()
        for text in counts.pending:
            units.update(self._split_units(text))
        self._pending_chars -= counts.pending_chars
        counts.pending, counts.pending_chars = [], 0
        bit = 1
        while units:
            for word, count in self._count_words([unit for unit, count in units.items() if count & bit]).items():
                count *= bit << counts.rate_halvings
                previous_count = counts.words.get(word, 0)
                counts.words[word] = previous_count + count
                counts.num_letters += 0 if previous_count else len(word)
                counts.num_words += count
            units = Counter({unit: count for unit, count in units.items() if count > bit * 2 - 1})
            bit *= 2
        self._prune()

    def _count_words(self, texts: list[str]) -> dict[str, int]:
        """Count words with a trainer of `vocab_size=0`, which only counts, in threads, and pickles the counts."""
        trainer = trainers.WordLevelTrainer(vocab_size=0, show_progress=False)
        self._counter.train_from_iterator(self._join_units(texts), trainer)
        word_counts: dict[str, int] = json.loads(trainer.__getstate__())["WordLevelTrainer"]["words"]
        if self.kind in ("wordpiece", *BYTE_BPE_SPECIALS):  # of the other trainers none is slow on long words
            _split_long_words(word_counts)
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
        groups = self.groups.values()
        while (
            sum(len(counts.words) for counts in groups) > self.max_words
            or sum(counts.num_letters for counts in groups) > self.max_words * _MAX_CHARS_PER_WORD
        ):
            largest = max(groups, key=lambda counts: counts.num_letters + len(counts.words))
            values, half = np.fromiter(largest.words.values(), np.int64, len(largest.words)), len(largest.words) // 2
            threshold = int(np.partition(values, len(values) - half)[len(values) - half]) if half else 1 << 62
            tied_words = sorted((word for word, count in largest.words.items() if count == threshold), key=_hash_order)
            frequent_words = {word: count for word, count in largest.words.items() if count > threshold}
            largest.words = frequent_words | dict.fromkeys(tied_words[: half - len(frequent_words)], threshold)
            largest.num_letters = sum(map(len, largest.words))
            largest.num_dropped += int(values.sum()) - sum(largest.words.values())


def count_words(
    kind: str,
    sources: str | Path | Iterable[Any],
    lowercase: bool | None = None,
    sample_characters: int = MAX_SAMPLE_CHARS,
    **source_options: Any,
) -> WordCounts:
    """Count the words of sources (a path, or a list of `Path`), or of an iterable of texts.

    After `sample_characters` characters half of the documents are read, after as many again a quarter, and so on. Other
    options are those of `open_sources`: `text_column`, `split`, `format`, `lang`, `skip_bad`, `allow_large`.
    """
    if isinstance(sources, str | Path):
        sources, are_paths = [sources], True
    else:
        are_paths = isinstance(sources, list | tuple) and all(isinstance(source, Path) for source in sources)
    if are_paths and sources:
        reader = open_sources(list(sources), **source_options)
        counts = count_source_words(kind, reader, lowercase, sample_characters)
        log_counts(counts, reader)
        return counts
    if source_options:
        raise ConfigError(f"{', '.join(source_options)} apply to files, and texts in memory were given")
    counts = WordCounts(kind, lowercase, sample_characters)
    for text in sources:
        counts.add(text)
    return counts


def count_source_words(kind: str, reader: SourceReader, lowercase: bool | None, sample_characters: int) -> WordCounts:
    """Count the words of opened sources, each language and source by itself."""
    groups = {(file.source_index, file.lang) for file in reader.files}
    counts = WordCounts(kind, lowercase, sample_characters, len(groups))
    with progress("read", None, "characters") as bar:
        for file, document in reader.documents():
            bar.advance(len(document.text))
            counts.add(document.text, TextGroup(file.lang, file.source_index, reader.sources[file.source_index].weight))
    if not counts.num_chars:
        raise DataError(f"there is no text in {', '.join(source.path for source in reader.sources)}")
    return counts


def log_counts(counts: WordCounts, reader: SourceReader) -> None:
    """Log how much text was read and counted, and what was dropped or skipped."""
    logger.info(f"{counts.num_chars:,} characters read, {counts.num_sampled_chars:,} of them counted")
    if counts.dropped_fraction:
        logger.info(f"rare words dropped to save memory: {counts.dropped_fraction:.2%} of the text")
    reader.log_skipped()


def _scale(counts: dict[str, int], factor: float) -> dict[str, int]:
    return counts if factor == 1 else {word: round(count * factor) for word, count in counts.items()}


def _split_at_spaces(text: str) -> list[str]:
    """Split at spaces and line ends, which no word of WordPiece, unigram or words spans."""
    return text.replace("\n", " ").split(" ")


def _split_long_words(word_counts: dict[str, int]) -> None:
    """Replace each word of more than `MAX_WORD_CHARS` characters by its parts: trainers need quadratic time for it."""
    for word in [word for word in word_counts if len(word) > MAX_WORD_CHARS]:
        count = word_counts.pop(word)
        for start in range(0, len(word), MAX_WORD_CHARS):
            part = word[start : start + MAX_WORD_CHARS]
            word_counts[part] = word_counts.get(part, 0) + count


def _splitmix64(number: int) -> int:
    """Hash a number to 64 bits (splitmix64)."""
    mask = (1 << 64) - 1
    number = (number + 1) * 0x9E3779B97F4A7C15 & mask
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
    number = (number ^ number >> 27) * 0x94D049BB133111EB & mask
    return number ^ number >> 31


def _hash_order(word: str) -> tuple[int, str]:
    """Sort key that orders words by hash, independent of their letters.

    It decides between words of equal count only: who chooses words for their hash gains no more than by writing each
    of them once more.
    """
    return zlib.crc32(word.encode()), word
