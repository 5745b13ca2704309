"""Strict reader and writer of ARPA files, the standard text format of n-gram models, plain or compressed."""

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
from polyseme.io.lines import raise_errors, read_lines
from polyseme.ngram.trie import LOG10_ZERO, MAX_ORDER, NgramTrie, NgramVocab, TrieLevel, find_ngrams
from polyseme.text.pipelines import build_whitespace
from polyseme.text.tokenizer import Tokenizer

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
MAX_LOG10 = 1e30  # of a probability or back-off in a file: they are stored in float32
_BLOCK_SIZE = 1 << 16  # n-grams formatted at once


def arpa_names(tokenizer: Tokenizer, vocab: NgramVocab) -> list[str]:
    """Return the name of each id in an ARPA file: piece, `<s>`, `</s>`, `<unk>`, or `<id>` for a piece with spaces."""
    names = [*tokenizer.vocabulary, *[""] * (vocab.size - tokenizer.vocab_size)]
    for i, name in enumerate(names):
        if not name or name in (BOS, EOS, UNK) or re.search(r"\s", name):
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
    unigram_ids = np.union1d(np.flatnonzero(ngrams.levels[0].logp > LOG10_ZERO), [ngrams.vocab.bos_id])
    sizes = [len(unigram_ids), *ngrams.sizes[1:]]
    yield "\\data\\\n" + "".join(f"ngram {n}={size}\n" for n, size in enumerate(sizes, start=1))
    for order, (size, level) in enumerate(zip(sizes, ngrams.levels), start=1):
        yield f"\n\\{order}-grams:\n"
        for start in range(0, size, _BLOCK_SIZE):
            ids = np.arange(start, min(start + _BLOCK_SIZE, size))
            ids = ids if order > 1 else unigram_ids[ids]
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
    lines = _ArpaFile(path)
    sizes = _read_header(lines)
    word_index: dict[str, int] = {}
    _, logp, backoff = _read_section(lines, 1, sizes, word_index)
    tokenizer = tokenizer or Tokenizer(build_whitespace([*word_index, *{UNK} - word_index.keys()]))
    vocab = NgramVocab.from_tokenizer(tokenizer)
    token_ids = _token_ids(lines, word_index, tokenizer, vocab)
    log_probs, backoffs = np.full(vocab.size, LOG10_ZERO, np.float32), np.zeros(vocab.size, np.float32)
    log_probs[token_ids] = np.where(token_ids == vocab.bos_id, np.float32(LOG10_ZERO), logp)
    backoffs[token_ids] = backoff
    levels = [TrieLevel(logp=log_probs, backoff=backoffs)]
    rows_by_id = np.zeros(vocab.size, np.int64)  # row of each n-gram in its section
    rows_by_id[token_ids] = np.arange(len(token_ids))
    for order in range(2, len(sizes) + 1):
        words, logp, backoff = _read_section(lines, order, sizes, word_index)
        level, row_order = _build_level(lines, token_ids[words], logp, backoff, levels, vocab)
        is_context = np.diff(level.child_offsets.astype(np.int64)) > 0
        missing_backoffs = rows_by_id[is_context & np.isnan(levels[-1].backoff)]
        lines.check_rows(missing_backoffs, order - 1, "has no back-off, but is the context of longer n-grams")
        levels[-1] = levels[-1]._replace(backoff=np.nan_to_num(levels[-1].backoff))
        levels.append(level)
        rows_by_id = row_order
    levels[-1] = levels[-1]._replace(backoff=np.zeros(0, np.float32))
    lines.expect("\\end\\")
    lines.expect_end()
    return NgramTrie(vocab, levels), tokenizer


class _ArpaFile:
    """Iterator over the lines of a file that keeps track of the line number."""

    def __init__(self, path: Path):
        self.path, self.line_number = path, 0
        self.section_lines: list[int] = []  # line number of the heading of each section
        self._lines = raise_errors(read_lines(path, str(path)))

    def error(self, problem: str, line: int | None = None) -> DataError:
        """Return an error about a line, by default the current one."""
        return DataError(f"{self.path}, line {self.line_number if line is None else line} {problem}")

    def check_rows(self, rows: np.ndarray, order: int, problem: str) -> None:
        """Raise an error about the first of these rows of a section, if there is any."""
        if len(rows):
            raise self.error(problem, self.section_lines[order - 1] + 1 + int(rows.min()))

    def next(self) -> str:
        """Return the next line; raise `DataError` at the end of the file."""
        numbered_line = next(self._lines, None)
        if numbered_line is None:
            raise DataError(f"{self.path} is truncated: it ends at line {self.line_number}, before \\end\\")
        self.line_number, line = numbered_line
        return line

    def expect(self, expected: str) -> None:
        """Skip empty lines and check that the next one is `expected`."""
        while not (line := self.next().strip()):
            pass
        if line != expected:
            raise self.error(f"is {line[:60]!r}, expected {expected!r}")

    def expect_end(self) -> None:
        """Check that only empty lines remain."""
        for number, line in self._lines:
            if line.strip():
                raise self.error(f"is {line[:60]!r}, but nothing may follow \\end\\", number)


def _read_header(lines: _ArpaFile) -> list[int]:
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
    lines: _ArpaFile, order: int, sizes: Sequence[int], word_index: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the n-grams of one order: word indices [rows, order], log10 probabilities, log10 back-offs or NaN."""
    lines.expect(f"\\{order}-grams:")
    lines.section_lines.append(lines.line_number)
    max_fields = order + (1 if order == len(sizes) else 2)
    word_ids: list[int] = []
    values: list[float] = []
    while (line := lines.next()).strip():
        if line.startswith("\\"):
            raise lines.error(f"is {line[:60]!r}, but an empty line must end the {order}-grams")
        fields = line.split()
        if not order + 1 <= len(fields) <= max_fields:
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
            log_prob, *backoffs = map(float, (fields[0], *fields[order + 1 :]))
        except ValueError:
            raise lines.error(f"has an invalid number: {line[:60]!r}") from None
        if not (-MAX_LOG10 < log_prob <= 0 and all(abs(backoff) < MAX_LOG10 for backoff in backoffs)):
            raise lines.error(f"has an invalid log10 probability or back-off: {line[:60]!r}")
        values += (log_prob, *(backoffs or [math.nan]))
    if (num_rows := len(values) // 2) != (size := sizes[order - 1]):
        raise lines.error(f"ends a section of {num_rows} {order}-grams, but the header declares {size}")
    logp_and_backoff = np.array(values, np.float32).reshape(-1, 2)
    return np.array(word_ids, np.int64).reshape(-1, order), logp_and_backoff[:, 0], logp_and_backoff[:, 1]


def _token_ids(lines: _ArpaFile, word_index: dict[str, int], tokenizer: Tokenizer, vocab: NgramVocab) -> np.ndarray:
    """Return the tokenizer's id of each word of the file."""
    ids = {name: i for i, name in enumerate(arpa_names(tokenizer, vocab))}
    for marker in (BOS, EOS):
        if marker not in word_index:
            raise lines.error(f"ends the 1-grams, but {marker} is not among them")
    if unknown_words := [word for word in word_index if word not in ids]:
        raise lines.error(f"ends the 1-grams, but {unknown_words[0]!r} is not a piece of the tokenizer")
    return np.array([ids[word] for word in word_index], np.int64)


def _build_level(
    lines: _ArpaFile, ids: np.ndarray, logp: np.ndarray, backoff: np.ndarray, levels: list[TrieLevel], vocab: NgramVocab
) -> tuple[TrieLevel, np.ndarray]:
    """Build a level from rows of ids; also return the row of each of its n-grams. A missing back-off is NaN."""
    order, contexts, last_words = ids.shape[1], ids[:, 0], ids[:, -1]
    for level, column in zip(levels[1:], ids[:, 1:].T):
        contexts = find_ngrams(level, contexts, column)
    problem = "has an n-gram whose context (all but its last word) is not in the file"
    lines.check_rows(np.flatnonzero(contexts < 0), order, problem)
    row_order = np.lexsort((last_words, contexts))
    is_duplicate = (np.diff(contexts[row_order]) == 0) & (np.diff(last_words[row_order]) == 0)
    lines.check_rows(row_order[1:][is_duplicate], order, "repeats an n-gram")
    is_misplaced = (ids[:, 1:] == vocab.bos_id).any(1) | (ids[:, :-1] == vocab.eos_id).any(1)
    lines.check_rows(np.flatnonzero(is_misplaced), order, f"has {BOS} after the first word or {EOS} before the last")
    num_children = np.bincount(contexts, minlength=len(levels[-1].logp))
    child_offsets = np.concatenate([[0], np.cumsum(num_children)]).astype(np.uint32)
    words = last_words[row_order].astype(token_dtype(vocab.size))
    return TrieLevel(words, child_offsets, logp[row_order], backoff[row_order]), row_order
