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

from polyseme.errors import UserError, nearest
from polyseme.text.pipelines import KINDS, empty, sound

SAMPLE_CHARACTERS = 200_000_000  # looked at before documents are left out
SMOOTHING = 0.7  # multilingual BERT's exponent
MAX_WORDS = 2_000_000  # in all tables together
_MAX_CHARACTERS = 20  # of such a table, for each word it may hold
_BATCH = 16_000_000  # characters that are counted together
_MOST = 50_000_000  # what the counts add up to at most when they are given to a trainer
_SAMPLES, _SAMPLE_LENGTH = 200, 2_000  # documents and characters of each that are kept for the contract check

# White space as Unicode has it. A unit is white space and what follows it up to the next.
_GAPS = frozenset(map(chr, [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029]))
_GAPS |= frozenset("\u202f\u205f\u3000")
_GAP = "".join(sorted(_GAPS))
_UNITS = re.compile(f"[{_GAP}]*[^{_GAP}]+|[{_GAP}]+")


class Stratum(NamedTuple):
    """Where a text belongs: words are counted for each stratum alone."""

    lang: str = ""
    source: int = 0
    weight: float = 1.0


ONE = Stratum()


class _Table:
    """One stratum: its counts so far, and how much of its text they stand for."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.letters = 0  # of the words above
        self.waiting: list[str] = []
        self.waiting_size = 0
        self.documents = self.characters = 0  # all that came
        self.looked_at = 0  # characters at the present rate
        self.halvings = 0  # one document of 2^halvings is looked at, and counts for as many
        self.sampled = 0  # characters looked at
        self.total = self.dropped = 0  # occurrences counted, and those that pruning took out again
        self.samples: list[tuple[int, int, str]] = []


class WordCounts:
    """How often each word occurs, as the tokenizer to be trained cuts words; `add` texts, then `combined`."""

    def __init__(
        self,
        kind: str,
        lowercase: bool | None = None,
        sample_characters: int = SAMPLE_CHARACTERS,
        num_strata: int = 1,
        max_words: int = MAX_WORDS,
    ):
        if kind not in KINDS:
            raise UserError(f"no tokenizer kind {kind!r}: {nearest(kind, KINDS)}")
        self.kind = kind
        self.lowercase = kind == "wordpiece" if lowercase is None else lowercase
        self.max_words = max_words
        self.budget = max(sample_characters // max(num_strata, 1), 1)
        self.samples_each = max(_SAMPLES // max(num_strata, 1), 1)
        self.tables: dict[Stratum, _Table] = {}
        self._waiting = 0
        frame = empty(kind, self.lowercase)
        self._counter = Tokenizer(models.WordLevel({}, unk_token=""))
        if frame.normalizer is not None:
            self._counter.normalizer = frame.normalizer
        self._counter.pre_tokenizer = frame.pre_tokenizer
        self._units: Callable[[str], list[str]] = (
            _words if kind in ("wordpiece", "unigram", "words") else _UNITS.findall
        )

    def add(self, text: str, stratum: Stratum = ONE) -> None:
        """One document. Its place among the documents of its stratum decides whether it is looked at."""
        if not text or text.isspace():
            return
        table = self.tables.setdefault(stratum, _Table())
        number = table.documents
        table.documents += 1
        table.characters += len(text)
        while table.looked_at >= self.budget:
            self._count(table)  # what waits was taken at the old rate
            table.looked_at -= self.budget
            table.halvings += 1
        place = _mixed(number)
        if place >> (64 - table.halvings):
            return
        text = sound(text)
        table.looked_at += len(text)
        table.sampled += len(text)
        table.waiting.append(text)
        table.waiting_size += len(text)
        self._waiting += len(text)
        keep = heapq.heappush if len(table.samples) < self.samples_each else heapq.heappushpop
        keep(table.samples, (-place, number, text[:_SAMPLE_LENGTH]))
        if self._waiting >= _BATCH:
            self._count(max(self.tables.values(), key=lambda table: table.waiting_size))

    def sample(self) -> list[str]:
        """Some of the documents of every stratum, the same each time."""
        return [text for table in self.tables.values() for _, _, text in sorted(table.samples, key=lambda s: s[1])]

    @property
    def characters(self) -> int:
        return sum(table.characters for table in self.tables.values())

    @property
    def sampled(self) -> int:
        """How many of the characters were looked at."""
        return sum(table.sampled for table in self.tables.values())

    @property
    def dropped(self) -> float:
        """The share of all words that stood in the tables and was dropped because they were rare."""
        total = sum(table.total for table in self.tables.values())
        return sum(table.dropped for table in self.tables.values()) / max(total, 1)

    def combined(self, smoothing: float = SMOOTHING, most: int = _MOST) -> dict[str, int]:
        """One table, sorted. A language of n characters gets a share that goes with n^smoothing.

        Inside a language the sources keep their proportions, times their weights. The largest language at the
        smallest weight keeps its counts; then, if all add up to more than `most`, all are scaled down.
        """
        for table in self.tables.values():
            self._count(table)
        sizes: dict[str, float] = {}
        for stratum, table in self.tables.items():
            sizes[stratum.lang] = sizes.get(stratum.lang, 0) + stratum.weight * table.characters
        largest = max(sizes.values(), default=0)
        lightest = min((stratum.weight for stratum in self.tables), default=1)
        words: Counter[str] = Counter()
        for stratum, table in self.tables.items():
            if not table.words:
                continue
            factor = (sizes[stratum.lang] / largest) ** (smoothing - 1) * stratum.weight / lightest
            words.update(table.words if factor == 1 else {w: round(n * factor) for w, n in table.words.items()})
        scale = min(most / max(words.total(), 1), 1)
        kept = words if scale == 1 else {word: round(count * scale) for word, count in words.items()}
        return {word: kept[word] for word in sorted(kept) if kept[word]}

    def _count(self, table: _Table) -> None:
        """Count what waits.

        Text is cut here where the tokenizer surely cuts too. What is between the cuts is counted, and then goes
        through the tokenizer once for each bit of its count: a few times instead of thousands.
        """
        units: Counter[str] = Counter()
        for text in table.waiting:
            units.update(self._units(text))
        self._waiting -= table.waiting_size
        table.waiting, table.waiting_size = [], 0
        bit = 1
        while units:
            for word, count in self._split([unit for unit, count in units.items() if count & bit]).items():
                count *= bit << table.halvings
                before = table.words.get(word, 0)
                table.words[word] = before + count
                table.letters += 0 if before else len(word)
                table.total += count
            units = Counter({unit: count for unit, count in units.items() if count > bit * 2 - 1})
            bit *= 2
        self._prune()

    def _split(self, texts: list[str]) -> dict[str, int]:
        """How often each word occurs after cleaning and cutting.

        A trainer asked for no vocabulary does nothing but count, at the speed of its threads; the counts are
        part of the state it gives to pickle.
        """
        trainer = trainers.WordLevelTrainer(vocab_size=0, show_progress=False)
        self._counter.train_from_iterator(self._lines(texts), trainer)
        words: dict[str, int] = json.loads(trainer.__getstate__())["WordLevelTrainer"]["words"]
        return words

    def _lines(self, units: list[str]) -> Iterator[str]:
        """Units put together again, at borders like those they were cut at; one by one they would be slow."""
        joint = " "
        if self._units is not _words:
            joint = ""
            yield from (unit for unit in units if unit[0] not in _GAPS or unit[-1] in _GAPS)
            units = [unit for unit in units if unit[0] in _GAPS and unit[-1] not in _GAPS]
        for start in range(0, len(units), 1000):
            yield joint.join(units[start : start + 1000])

    def _prune(self) -> None:
        """While the tables are too large together, the largest keeps the more frequent half of its words."""
        while len(self.tables) and (
            sum(len(table.words) for table in self.tables.values()) > self.max_words
            or sum(table.letters for table in self.tables.values()) > self.max_words * _MAX_CHARACTERS
        ):
            table = max(self.tables.values(), key=lambda table: table.letters + len(table.words))
            before, half = sum(table.words.values()), len(table.words) // 2
            counts = np.fromiter(table.words.values(), np.int64, len(table.words))
            border = int(np.partition(counts, len(counts) - half)[len(counts) - half]) if half else 1 << 62
            level = sorted((word for word, count in table.words.items() if count == border), key=_chance)
            more = {word: count for word, count in table.words.items() if count > border}
            table.words = more | dict.fromkeys(level[: half - len(more)], border)
            table.letters = sum(map(len, table.words))
            table.dropped += before - sum(table.words.values())


def _words(text: str) -> list[str]:
    """A text cut at spaces and line ends, which no word of WordPiece, unigram or words reaches over."""
    return text.replace("\n", " ").split(" ")


def _mixed(number: int) -> int:
    """A number of 64 bits that looks random (the finish of splitmix64)."""
    mask = (1 << 64) - 1
    number = (number + 1) * 0x9E3779B97F4A7C15 & mask
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
    number = (number ^ number >> 27) * 0x94D049BB133111EB & mask
    return number ^ number >> 31


def _chance(word: str) -> tuple[int, str]:
    """An order of words that favours no letter."""
    return zlib.crc32(word.encode()), word
