"""ARPA files: n-grams as text, which every tool for them reads and writes. Plain, or packed as the ending says.

Reading is strict: what is wrong is named by its line, and nothing is taken from a file that is not whole.
"""

from __future__ import annotations

import gzip
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from polyseme.corpus.store import token_type
from polyseme.errors import UserError
from polyseme.io.files import unpacked, write_whole
from polyseme.ngram.trie import MOST, ZERO, Level, Ngrams, Words, find
from polyseme.text.pipelines import build_listed
from polyseme.text.tokenizer import Tokenizer

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
_BLOCK = 1 << 16  # n-grams written at once
_NONE = np.empty(0)


def names_of(tokenizer: Tokenizer, words: Words) -> list[str]:
    """How an ARPA file writes each id: its piece; a mark by the mark's name; a piece with white space by its number."""
    names = [*tokenizer.vocabulary, *[""] * (words.size - tokenizer.vocab_size)]
    taken = {START, END, UNKNOWN}
    for i, name in enumerate(names):
        if not name or name in taken or re.search(r"\s", name):
            names[i] = f"<{i}>"
    if tokenizer.specials.unk is not None:
        names[tokenizer.specials.unk] = UNKNOWN
    names[words.start], names[words.end] = START, END
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UserError(f"two pieces of the vocabulary would both be {twice!r} in an ARPA file")
    return names


def write_arpa(path: Path, ngrams: Ngrams, tokenizer: Tokenizer) -> None:
    """Write a model; numbers are as short as gives back the same ones."""
    if path.suffix not in (".arpa", ".gz"):
        raise UserError(f"{path} does not end in .arpa or .arpa.gz")
    names = np.array(names_of(tokenizer, ngrams.words), dtype=object)

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as plain:
            packed = gzip.GzipFile("", "wb", 6, plain, mtime=0) if path.suffix == ".gz" else None
            with io.TextIOWrapper(packed or plain, encoding="utf-8", newline="\n") as file:
                for text in _written(ngrams, names):
                    file.write(text)

    write_whole(path, write)


def _written(ngrams: Ngrams, names: np.ndarray) -> Iterator[str]:
    first = np.flatnonzero(ngrams.levels[0].logp > ZERO)
    first = np.union1d(first, [ngrams.words.start])
    sizes = [len(first), *ngrams.sizes[1:]]
    yield "\\data\\\n" + "".join(f"ngram {n}={size}\n" for n, size in enumerate(sizes, start=1))
    for order, (size, level) in enumerate(zip(sizes, ngrams.levels), start=1):
        yield f"\n\\{order}-grams:\n"
        for begin in range(0, size, _BLOCK):
            ids = np.arange(begin, min(begin + _BLOCK, size)) if order > 1 else first[begin : begin + _BLOCK]
            text = [" ".join(row) for row in zip(*(names[column] for column in _columns(ngrams, order, ids)))]
            fields = [map(str, level.logp[ids]), text]
            if order < ngrams.order:
                fields.append(map(str, level.backoff[ids]))
            yield "".join("\t".join(row) + "\n" for row in zip(*fields))
    yield "\n\\end\\\n"


def _columns(ngrams: Ngrams, order: int, ids: np.ndarray) -> list[np.ndarray]:
    """The words of n-grams that are given by their numbers."""
    columns = []
    for level in reversed(ngrams.levels[1:order]):
        columns.append(level.words[ids])
        ids = np.searchsorted(level.begins, ids, side="right") - 1
    return [ids, *reversed(columns)]


def read_arpa(path: Path, tokenizer: Tokenizer | None = None) -> tuple[Ngrams, Tokenizer]:
    """A model and its tokenizer: the given one, whose pieces the file's words are, else one that cuts at spaces."""
    lines = _Lines(path)
    sizes = _header(lines)
    vocabulary: dict[str, int] = {}
    levels: list[Level] = []
    begun: list[int] = []  # the line before the n-grams of each length
    lacking: list[np.ndarray] = []  # where no back-off is written
    words: Words | None = None
    for order, size in enumerate(sizes, start=1):
        lines.expect(f"\\{order}-grams:")
        begun.append(lines.number)
        rows, logp, backoff = _section(lines, order, size, order == len(sizes), vocabulary)
        if order == 1:
            tokenizer = tokenizer or Tokenizer(build_listed([*vocabulary, *{UNKNOWN} - vocabulary.keys()]))
            words = Words.of(tokenizer)
            places = _places(lines, vocabulary, tokenizer, words)
            level, absent = _first(places, logp, backoff, words)
        else:
            assert words is not None
            level, absent = _level(lines, places[rows], logp, backoff, levels, words, begun[-1])
            _check_weights(lines, level, lacking[-1], begun[-2])
        lacking.append(absent)
        levels.append(level)
    levels[-1] = levels[-1]._replace(backoff=np.zeros(0, np.float32))
    lines.expect("\\end\\")
    lines.end()
    assert words is not None and tokenizer is not None
    return Ngrams(words, levels), tokenizer


class _Lines:
    """The lines of a file one by one, with their numbers."""

    def __init__(self, path: Path):
        self.path, self.number = path, 0
        self._lines = self._read()

    def _read(self) -> Iterator[str]:
        rest = b""
        for block in unpacked(self.path):
            *whole, rest = (rest + block).split(b"\n")
            yield from map(self._text, whole)
        if rest:
            yield self._text(rest)

    def _text(self, line: bytes) -> str:
        self.number += 1
        try:
            return line.decode().rstrip("\r")
        except UnicodeDecodeError:
            raise self.wrong("is not text in UTF-8") from None

    def wrong(self, what: str, line: int | None = None) -> UserError:
        return UserError(f"{self.path}, line {self.number if line is None else line} {what}")

    def next(self) -> str:
        try:
            return next(self._lines)
        except StopIteration:
            raise UserError(f"{self.path} is truncated: it ends at line {self.number}, before \\end\\") from None

    def expect(self, wanted: str) -> None:
        line = self.next()
        while not line.strip():
            line = self.next()
        if line.strip() != wanted:
            raise self.wrong(f"is {line[:60]!r}, expected {wanted!r}")

    def end(self) -> None:
        for line in self._lines:
            if line.strip():
                raise self.wrong(f"is {line[:60]!r}, but nothing may stand behind \\end\\")


def _header(lines: _Lines) -> list[int]:
    """How many n-grams there are of each length. What stands before `\\data\\` is for people."""
    while (line := lines.next()).strip() != "\\data\\":
        if re.match(r"ngram \d|\\\d+-grams:", line):
            raise lines.wrong("is of n-grams, but there is no \\data\\ before it")
    sizes: list[int] = []
    while (line := lines.next().strip()) or not sizes:
        if not line:
            continue
        found = re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line)
        if not found:
            raise lines.wrong(f"is {line[:60]!r}, expected 'ngram {len(sizes) + 1}=…' or an empty line")
        if int(found[1]) != len(sizes) + 1:
            raise lines.wrong(f"counts {found[1]}-grams, expected {len(sizes) + 1}-grams")
        sizes.append(int(found[2]))
    if len(sizes) > MOST:
        raise lines.wrong(f"ends a header of {len(sizes)} orders; at most {MOST} can be read")
    return sizes


def _section(
    lines: _Lines, order: int, size: int, last: bool, vocabulary: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The n-grams of one length: the numbers of their words in the vocabulary, which the first section fills; log10 of
    probability and of back-off, the latter NaN where none is written."""
    words: list[int] = []
    numbers: list[float] = []
    while (line := lines.next()).strip():
        if line.startswith("\\"):
            raise lines.wrong(f"is {line[:60]!r} where an empty line has to end the {order}-grams")
        fields = line.split()
        if len(fields) not in ((order + 1,) if last else (order + 1, order + 2)):
            raise lines.wrong(f"has {len(fields)} fields, expected a number and {order} words: {line[:60]!r}")
        if order == 1:
            if fields[1] in vocabulary:
                raise lines.wrong(f"has the word {fields[1]!r} a second time")
            vocabulary[fields[1]] = len(vocabulary)
        try:
            words += [vocabulary[word] for word in fields[1 : order + 1]]
        except KeyError as error:
            raise lines.wrong(f"has the word {error.args[0]!r}, which is not among the 1-grams") from None
        try:
            chance, weight = float(fields[0]), float(fields[order + 1]) if len(fields) > order + 1 else math.nan
        except ValueError:
            raise lines.wrong(f"has a number that is none: {line[:60]!r}") from None
        if not (-math.inf < chance <= 0) or abs(weight) == math.inf or (weight != weight and len(fields) > order + 1):
            raise lines.wrong(f"has no log10 of a probability and a back-off: {line[:60]!r}")
        numbers += (chance, weight)
    if len(numbers) // 2 != size:
        raise lines.wrong(f"ends {len(numbers) // 2} {order}-grams, but the header says {size}")
    both = np.array(numbers, np.float32).reshape(-1, 2)
    return np.array(words, np.int64).reshape(-1, order), both[:, 0], both[:, 1]


def _places(lines: _Lines, vocabulary: dict[str, int], tokenizer: Tokenizer, words: Words) -> np.ndarray:
    """The tokenizer's id of each word of the file."""
    ids = {name: i for i, name in enumerate(names_of(tokenizer, words))}
    for mark in (START, END):
        if mark not in vocabulary:
            raise lines.wrong(f"ends 1-grams without {mark}")
    if unknown := [word for word in vocabulary if word not in ids]:
        raise lines.wrong(f"ends 1-grams of which {unknown[0]!r} is no piece of the tokenizer")
    return np.array([ids[word] for word in vocabulary], np.int64)


def _first(places: np.ndarray, logp: np.ndarray, backoff: np.ndarray, words: Words) -> tuple[Level, np.ndarray]:
    chances, weights = np.full(words.size, ZERO, np.float32), np.zeros(words.size, np.float32)
    absent = np.full(words.size, -1, np.int64)
    chances[places] = np.where(places == words.start, np.float32(ZERO), logp)
    weights[places] = np.nan_to_num(backoff)
    absent[places] = np.where(np.isnan(backoff), np.arange(len(places)), -1)
    return Level(_NONE, _NONE, chances, weights), absent


def _level(
    lines: _Lines,
    rows: np.ndarray,
    logp: np.ndarray,
    backoff: np.ndarray,
    levels: Sequence[Level],
    words: Words,
    at: int,
) -> tuple[Level, np.ndarray]:
    """Rows of ids to a level; the second is the row where a back-off is missing, else -1."""
    contexts = rows[:, 0]
    for level, column in zip(levels[1:], rows[:, 1:].T):
        contexts = find(level, contexts, column)
    if (lost := np.flatnonzero(contexts < 0)).size:
        raise lines.wrong(
            "has an n-gram whose context, all but its last word, is not in the file", at + 1 + int(lost[0])
        )
    order = np.lexsort((rows[:, -1], contexts))
    same = (np.diff(contexts[order]) == 0) & (np.diff(rows[order, -1]) == 0)
    if same.any():
        raise lines.wrong("has an n-gram a second time", at + 1 + int(order[1:][same].min()))
    if (inside := np.flatnonzero((rows[:, 1:] == words.start).any(1) | (rows[:, :-1] == words.end).any(1))).size:
        raise lines.wrong(f"has {START} inside or {END} before the end", at + 1 + int(inside[0]))
    below = len(levels[-1].logp)
    begins = np.concatenate([[0], np.cumsum(np.bincount(contexts, minlength=below))]).astype(np.uint32)
    weights = backoff[order]
    absent = np.where(np.isnan(weights), order, -1)
    last = rows[order, -1].astype(token_type(words.size))
    return Level(last, begins, logp[order], np.nan_to_num(weights)), absent


def _check_weights(lines: _Lines, level: Level, absent: np.ndarray, at: int) -> None:
    """What other n-grams follow has a back-off; where none does, it may be left out, as it is never used."""
    used = np.diff(level.begins.astype(np.int64)) > 0
    if (lost := absent[used & (absent >= 0)]).size:
        raise lines.wrong("has no back-off, but longer n-grams go on from it", at + 1 + int(lost.min()))
