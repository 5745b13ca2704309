"""Reader and writer of ARPA files, the standard text format of n-gram models, plain or compressed.

Reading is strict: an error names the line, and an incomplete file is rejected.
"""

from __future__ import annotations

import gzip
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from polyseme.corpus.store import token_dtype
from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.io.atomic import atomic_write
from polyseme.io.compression import read_decompressed
from polyseme.ngram.trie import LOG10_ZERO, MAX_ORDER, NgramTrie, NgramVocab, TrieLevel, find_ngrams
from polyseme.text.pipelines import build_whitespace
from polyseme.text.tokenizer import Tokenizer

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
_BLOCK_SIZE = 1 << 16  # n-grams formatted at once
_EMPTY = np.empty(0)


def arpa_names(tokenizer: Tokenizer, vocab: NgramVocab) -> list[str]:
    """Return the name of each id in an ARPA file: piece, `<s>`, `</s>`, `<unk>`, or `<id>` for a piece with spaces."""
    names = [*tokenizer.vocabulary, *[""] * (vocab.size - tokenizer.vocab_size)]
    reserved = {BOS, EOS, UNK}
    for i, name in enumerate(names):
        if not name or name in reserved or re.search(r"\s", name):
            names[i] = f"<{i}>"
    if tokenizer.special_token_ids.unk is not None:
        names[tokenizer.special_token_ids.unk] = UNK
    names[vocab.bos_id], names[vocab.eos_id] = BOS, EOS
    if len(set(names)) < len(names):
        duplicate = next(name for i, name in enumerate(names) if name in names[:i])
        raise ModelError(f"two pieces of the vocabulary have the same name {duplicate!r} in an ARPA file")
    return names


def write_arpa(path: Path, ngrams: NgramTrie, tokenizer: Tokenizer) -> None:
    """Write a model, with the shortest decimals that restore the same float32 values."""
    if path.suffix not in (".arpa", ".gz"):
        raise ConfigError(f"{path} must end in .arpa or .arpa.gz")
    names = np.array(arpa_names(tokenizer, ngrams.vocab), dtype=object)

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as raw_file:
            gzip_file = gzip.GzipFile("", "wb", 6, raw_file, mtime=0) if path.suffix == ".gz" else None
            with io.TextIOWrapper(gzip_file or raw_file, encoding="utf-8", newline="\n") as file:
                for text in _format_arpa(ngrams, names):
                    file.write(text)

    atomic_write(path, write)


def _format_arpa(ngrams: NgramTrie, names: np.ndarray) -> Iterator[str]:
    unigram_ids = np.flatnonzero(ngrams.levels[0].logp > LOG10_ZERO)
    unigram_ids = np.union1d(unigram_ids, [ngrams.vocab.bos_id])
    sizes = [len(unigram_ids), *ngrams.sizes[1:]]
    yield "\\data\\\n" + "".join(f"ngram {n}={size}\n" for n, size in enumerate(sizes, start=1))
    for order, (size, level) in enumerate(zip(sizes, ngrams.levels), start=1):
        yield f"\n\\{order}-grams:\n"
        for block_start in range(0, size, _BLOCK_SIZE):
            ids = (
                np.arange(block_start, min(block_start + _BLOCK_SIZE, size))
                if order > 1
                else unigram_ids[block_start : block_start + _BLOCK_SIZE]
            )
            text = [" ".join(row) for row in zip(*(names[column] for column in _ngram_columns(ngrams, order, ids)))]
            fields = [map(str, level.logp[ids]), text]
            if order < ngrams.order:
                fields.append(map(str, level.backoff[ids]))
            yield "".join("\t".join(row) + "\n" for row in zip(*fields))
    yield "\n\\end\\\n"


def _ngram_columns(ngrams: NgramTrie, order: int, ids: np.ndarray) -> list[np.ndarray]:
    """Return the words of n-grams, one array per position."""
    columns = []
    for level in reversed(ngrams.levels[1:order]):
        columns.append(level.words[ids])
        ids = np.searchsorted(level.child_offsets, ids, side="right") - 1
    return [ids, *reversed(columns)]


def read_arpa(path: Path, tokenizer: Tokenizer | None = None) -> tuple[NgramTrie, Tokenizer]:
    """Read a model. The words must be pieces of `tokenizer`; by default, build one that splits at white space."""
    lines = _ArpaReader(path)
    sizes = _read_header(lines)
    word_index: dict[str, int] = {}
    levels: list[TrieLevel] = []
    section_lines: list[int] = []  # line number of each section's heading
    missing_backoffs: list[np.ndarray] = []  # per level: row without a back-off, else -1
    vocab: NgramVocab | None = None
    for order, size in enumerate(sizes, start=1):
        lines.expect(f"\\{order}-grams:")
        section_lines.append(lines.line_number)
        rows, logp, backoff = _read_section(lines, order, size, order == len(sizes), word_index)
        if order == 1:
            tokenizer = tokenizer or Tokenizer(build_whitespace([*word_index, *{UNK} - word_index.keys()]))
            vocab = NgramVocab.from_tokenizer(tokenizer)
            token_ids = _token_ids(lines, word_index, tokenizer, vocab)
            level, missing_rows = _unigram_level(token_ids, logp, backoff, vocab)
        else:
            assert vocab is not None
            level, missing_rows = _build_level(lines, token_ids[rows], logp, backoff, levels, vocab, section_lines[-1])
            _check_backoffs(lines, level, missing_backoffs[-1], section_lines[-2])
        missing_backoffs.append(missing_rows)
        levels.append(level)
    levels[-1] = levels[-1]._replace(backoff=np.zeros(0, np.float32))
    lines.expect("\\end\\")
    lines.expect_end()
    assert vocab is not None and tokenizer is not None
    return NgramTrie(vocab, levels), tokenizer


class _ArpaReader:
    """Iterator over the lines of a file that keeps track of the line number."""

    def __init__(self, path: Path):
        self.path, self.line_number = path, 0
        self._lines = self._read_lines()

    def _read_lines(self) -> Iterator[str]:
        partial_line = b""
        for block in read_decompressed(self.path):
            *full_lines, partial_line = (partial_line + block).split(b"\n")
            yield from map(self._decode_line, full_lines)
        if partial_line:
            yield self._decode_line(partial_line)

    def _decode_line(self, line: bytes) -> str:
        self.line_number += 1
        try:
            return line.decode().rstrip("\r")
        except UnicodeDecodeError:
            raise self.error("is not UTF-8 text") from None

    def error(self, problem: str, line: int | None = None) -> DataError:
        """Return an error about a line, by default the current one."""
        return DataError(f"{self.path}, line {self.line_number if line is None else line} {problem}")

    def next(self) -> str:
        """Return the next line; raise `DataError` at the end of the file."""
        try:
            return next(self._lines)
        except StopIteration:
            raise DataError(f"{self.path} is truncated: it ends at line {self.line_number}, before \\end\\") from None

    def expect(self, expected: str) -> None:
        """Skip empty lines and check that the next one is `expected`."""
        line = self.next()
        while not line.strip():
            line = self.next()
        if line.strip() != expected:
            raise self.error(f"is {line[:60]!r}, expected {expected!r}")

    def expect_end(self) -> None:
        """Check that only empty lines remain."""
        for line in self._lines:
            if line.strip():
                raise self.error(f"is {line[:60]!r}, but nothing may follow \\end\\")


def _read_header(lines: _ArpaReader) -> list[int]:
    """Read the number of n-grams of each order. Text before `\\data\\` is a comment."""
    while (line := lines.next()).strip() != "\\data\\":
        if re.match(r"ngram \d|\\\d+-grams:", line):
            raise lines.error("belongs to a section, but there is no \\data\\ before it")
    sizes: list[int] = []
    while (line := lines.next().strip()) or not sizes:
        if not line:
            continue
        match = re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line)
        if not match:
            raise lines.error(f"is {line[:60]!r}, expected 'ngram {len(sizes) + 1}=…' or an empty line")
        if int(match[1]) != len(sizes) + 1:
            raise lines.error(f"counts {match[1]}-grams, expected {len(sizes) + 1}-grams")
        sizes.append(int(match[2]))
    if len(sizes) > MAX_ORDER:
        raise lines.error(f"ends a header of {len(sizes)} orders; at most {MAX_ORDER} can be read")
    return sizes


def _read_section(
    lines: _ArpaReader, order: int, size: int, is_last: bool, word_index: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the n-grams of one order; return word indices [rows, order], log10 probabilities and log10 back-offs.

    The section of 1-grams fills `word_index`. A missing back-off is NaN.
    """
    word_ids: list[int] = []
    values: list[float] = []
    while (line := lines.next()).strip():
        if line.startswith("\\"):
            raise lines.error(f"is {line[:60]!r}, but an empty line must end the {order}-grams")
        fields = line.split()
        if len(fields) not in ((order + 1,) if is_last else (order + 1, order + 2)):
            raise lines.error(f"has {len(fields)} fields, expected a number and {order} words: {line[:60]!r}")
        if order == 1:
            if fields[1] in word_index:
                raise lines.error(f"repeats the word {fields[1]!r}")
            word_index[fields[1]] = len(word_index)
        try:
            word_ids += [word_index[word] for word in fields[1 : order + 1]]
        except KeyError as error:
            raise lines.error(f"has the word {error.args[0]!r}, which is not among the 1-grams") from None
        try:
            log_prob, backoff = float(fields[0]), float(fields[order + 1]) if len(fields) > order + 1 else math.nan
        except ValueError:
            raise lines.error(f"has an invalid number: {line[:60]!r}") from None
        if (
            not (-math.inf < log_prob <= 0)
            or abs(backoff) == math.inf
            or (backoff != backoff and len(fields) > order + 1)
        ):
            raise lines.error(f"has an invalid log10 probability or back-off: {line[:60]!r}")
        values += (log_prob, backoff)
    if len(values) // 2 != size:
        raise lines.error(f"ends a section of {len(values) // 2} {order}-grams, but the header declares {size}")
    logp_and_backoff = np.array(values, np.float32).reshape(-1, 2)
    return np.array(word_ids, np.int64).reshape(-1, order), logp_and_backoff[:, 0], logp_and_backoff[:, 1]


def _token_ids(lines: _ArpaReader, word_index: dict[str, int], tokenizer: Tokenizer, vocab: NgramVocab) -> np.ndarray:
    """Return the tokenizer's id of each word of the file."""
    ids = {name: i for i, name in enumerate(arpa_names(tokenizer, vocab))}
    for marker in (BOS, EOS):
        if marker not in word_index:
            raise lines.error(f"ends the 1-grams, but {marker} is not among them")
    if unknown_words := [word for word in word_index if word not in ids]:
        raise lines.error(f"ends the 1-grams, but {unknown_words[0]!r} is not a piece of the tokenizer")
    return np.array([ids[word] for word in word_index], np.int64)


def _unigram_level(
    token_ids: np.ndarray, logp: np.ndarray, backoff: np.ndarray, vocab: NgramVocab
) -> tuple[TrieLevel, np.ndarray]:
    log_probs, backoffs = np.full(vocab.size, LOG10_ZERO, np.float32), np.zeros(vocab.size, np.float32)
    missing_rows = np.full(vocab.size, -1, np.int64)
    log_probs[token_ids] = np.where(token_ids == vocab.bos_id, np.float32(LOG10_ZERO), logp)
    backoffs[token_ids] = np.nan_to_num(backoff)
    missing_rows[token_ids] = np.where(np.isnan(backoff), np.arange(len(token_ids)), -1)
    return TrieLevel(_EMPTY, _EMPTY, log_probs, backoffs), missing_rows


def _build_level(
    lines: _ArpaReader,
    rows: np.ndarray,
    logp: np.ndarray,
    backoff: np.ndarray,
    levels: Sequence[TrieLevel],
    vocab: NgramVocab,
    section_line: int,
) -> tuple[TrieLevel, np.ndarray]:
    """Build a level from rows of ids; also return, per n-gram, its row if it lacks a back-off, else -1."""
    contexts = rows[:, 0]
    for level, column in zip(levels[1:], rows[:, 1:].T):
        contexts = find_ngrams(level, contexts, column)
    if (missing_contexts := np.flatnonzero(contexts < 0)).size:
        raise lines.error(
            "has an n-gram whose context (all but its last word) is not in the file",
            section_line + 1 + int(missing_contexts[0]),
        )
    sort_order = np.lexsort((rows[:, -1], contexts))
    is_duplicate = (np.diff(contexts[sort_order]) == 0) & (np.diff(rows[sort_order, -1]) == 0)
    if is_duplicate.any():
        raise lines.error("repeats an n-gram", section_line + 1 + int(sort_order[1:][is_duplicate].min()))
    is_misplaced = (rows[:, 1:] == vocab.bos_id).any(1) | (rows[:, :-1] == vocab.eos_id).any(1)
    if is_misplaced.any():
        problem = f"has {BOS} after the first word or {EOS} before the last"
        raise lines.error(problem, section_line + 1 + int(np.flatnonzero(is_misplaced)[0]))
    num_contexts = len(levels[-1].logp)
    child_offsets = np.concatenate([[0], np.cumsum(np.bincount(contexts, minlength=num_contexts))]).astype(np.uint32)
    backoffs = backoff[sort_order]
    missing_rows = np.where(np.isnan(backoffs), sort_order, -1)
    last_words = rows[sort_order, -1].astype(token_dtype(vocab.size))
    return TrieLevel(last_words, child_offsets, logp[sort_order], np.nan_to_num(backoffs)), missing_rows


def _check_backoffs(lines: _ArpaReader, level: TrieLevel, missing_rows: np.ndarray, section_line: int) -> None:
    """Check that n-grams which are the context of longer ones have a back-off; otherwise it is never used."""
    has_children = np.diff(level.child_offsets.astype(np.int64)) > 0
    if (missing_backoffs := missing_rows[has_children & (missing_rows >= 0)]).size:
        raise lines.error(
            "has no back-off, but is the context of longer n-grams", section_line + 1 + int(missing_backoffs.min())
        )
