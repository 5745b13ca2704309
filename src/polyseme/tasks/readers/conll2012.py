"""Reading and writing of documents with coreference chains in the columns of CoNLL-2012.

    #begin document (bc/cctv/00/cctv_0000); part 000
    bc/cctv/00/cctv_0000   0   0   Ann   NNP ... Speaker#1 ...  (12
    ...
    #end document

Each row is a word: the fourth column is the word, the tenth the speaker (if there are so many), the last the mentions
that start and end there: `(12` `12)` `(12)`, separated by `|`. A blank line ends a sentence. Each part of a document
is a document of its own, as in the shared task.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from polyseme.errors import DataError
from polyseme.tasks.base import Example, Words
from polyseme.tasks.metrics.coreference import Mention
from polyseme.tasks.readers.conll import BRACKETS
from polyseme.tasks.readers.rows import RowReader, iter_lines

logger = logging.getLogger(__name__)

WORD_COLUMN, SPEAKER_COLUMN, MIN_COLUMNS = 3, 9, 5
_BEGIN = re.compile(r"#begin document \((.*)\);?\s*(?:part\s+(\d+))?\s*")
_MARK = re.compile(r"(\()?(\d+)(\))?")
Clusters = tuple[tuple[Mention, ...], ...]
FILE_PATTERN = "*gold_conll"  # the files of a folder


@dataclass(frozen=True)
class ConllDocument:
    """What a file contains about a document besides its words."""

    header: str
    row_prefixes: tuple[str, ...]  # each row without its last column
    sentence_lengths: tuple[int, ...]  # in words
    speakers: tuple[str, ...]  # of each word
    genre: str = ""  # empty if unknown


@dataclass(frozen=True)
class DocumentExample(Example):
    """The words of a document, and clusters of mentions, which are the first and last word of each."""

    gold_field = "clusters"

    words: Words
    document: ConllDocument
    clusters: Clusters | None = None
    id: str = ""


@dataclass(frozen=True)
class _Row:
    line: int
    text: str
    cells: list[str]


def iter_documents(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Yield readers of the documents of a file, or of all `*gold_conll` files in a folder."""
    if path.is_dir():
        files = sorted(path.rglob(FILE_PATTERN))
        if not files:
            raise DataError(f"{path} holds no files {FILE_PATTERN}")
        for file in files:
            yield from iter_documents(file, needs_labels)
        return
    header, start_line, rows = "", 0, list[_Row | None]()
    for number, line in enumerate(iter_lines(path), 1):
        text = line.rstrip()
        if text.startswith("#begin document"):
            if start_line:
                raise DataError(f"{path}:{number}: a document begins before that of line {start_line} has ended")
            if _BEGIN.fullmatch(text) is None:
                raise DataError(f"{path}:{number}: {text[:60]!r} is not #begin document (name); part 000")
            header, start_line, rows = text, number, []
        elif text.startswith("#end document"):
            if not start_line:
                raise DataError(f"{path}:{number}: a document ends that has not begun")
            yield partial(_parse_document, path, header, start_line, rows, needs_labels)
            start_line = 0
        elif start_line and not text:
            rows.append(None)
        elif start_line:
            rows.append(_Row(number, text, text.split()))
        elif text and not text.startswith("#"):
            raise DataError(f"{path}:{number}: a word outside of a document: there is no #begin document before it")
    if start_line:
        raise DataError(f"{path}:{start_line}: the document that begins here has no #end document")


def _parse_document(path: Path, header: str, line: int, rows: list[_Row | None], needs_labels: bool) -> DocumentExample:
    words = [row for row in rows if row]
    sentence_lengths = tuple(len(list(sentence)) for is_word, sentence in groupby(rows, key=bool) if is_word)
    if not words:
        raise DataError(f"{path}:{line}: the document has no words")
    for row in words:
        if len(row.cells) < MIN_COLUMNS:
            raise DataError(f"{path}:{row.line}: {len(row.cells)} columns, but a row has {MIN_COLUMNS} or more")
    speakers = tuple(row.cells[SPEAKER_COLUMN] if len(row.cells) > SPEAKER_COLUMN + 1 else "-" for row in words)
    prefixes = tuple(row.text.removesuffix(row.cells[-1]) for row in words)
    name, part = _BEGIN.fullmatch(header).groups("")  # type: ignore[union-attr]  # checked when it was read
    genre = name.partition("/")[0] if "/" in name else ""
    document = ConllDocument(header, prefixes, sentence_lengths, speakers, genre)
    clusters = _parse_clusters(path, words) if needs_labels else None
    texts = tuple(_unescape(row.cells[WORD_COLUMN]) for row in words)
    return DocumentExample(f"{path}:{line}", texts, document, clusters, f"{name};{part}")


def _unescape(word: str) -> str:
    """Return a word as it was written: OntoNotes spells out brackets, and puts a slash before some punctuation."""
    return word[1:] if word in ("/.", "/?", "/-") else BRACKETS.get(word, word)


def _parse_clusters(path: Path, rows: list[_Row]) -> Clusters:
    """Return the chains in the last column. Of two open mentions of a chain, the later one is closed first."""
    open_mentions: dict[str, list[int]] = defaultdict(list)
    chains: dict[str, list[Mention]] = defaultdict(list)
    for i, row in enumerate(rows):
        for mark in row.cells[-1].split("|") if row.cells[-1] not in ("-", "_", "*") else ():
            mark_match = _MARK.fullmatch(mark)
            if mark_match is None or not (mark_match[1] or mark_match[3]):
                problem = f"the mention {mark!r} in {row.cells[-1][:40]!r}"
                raise DataError(f"{path}:{row.line}: {problem} is not like (12 or 12) or (12), or - for none")
            opens, name, closes = mark_match.groups()
            if opens:
                open_mentions[name].append(i)
            if closes:
                if not open_mentions[name]:
                    raise DataError(f"{path}:{row.line}: {mark!r} closes a mention of {name} that was never opened")
                chains[name].append((open_mentions[name].pop(), i))
    for name, places in open_mentions.items():
        if places:
            line = rows[places[-1]].line
            raise DataError(f"{path}:{line}: '({name}' opens a mention that is not closed before the document ends")
    merged_chains: list[set[Mention]] = []  # chains that share a mention are one
    for chain in chains.values():
        overlapping = [other for other in merged_chains if not other.isdisjoint(chain)]
        merged_chains = [other for other in merged_chains if other.isdisjoint(chain)]
        merged_chains.append(set(chain).union(*overlapping))
    if num_merged := len(chains) - len(merged_chains):
        logger.warning(f"{path}:{rows[0].line}: merged {num_merged} chains with others that share a mention")
    return tuple(sorted(tuple(sorted(chain)) for chain in merged_chains))


def make_document(sentences: Sequence[Sequence[str]], location: str) -> DocumentExample:
    """Build a document, which can be written in columns, from sentences of words."""
    rows = [(i, word) for sentence in sentences for i, word in enumerate(sentence)]
    prefixes = tuple(f"document\t0\t{i}\t{word}\t" for i, word in rows)
    lengths, speakers = tuple(map(len, sentences)), ("-",) * len(rows)
    document = ConllDocument("#begin document (document); part 000", prefixes, lengths, speakers)
    return DocumentExample(location, tuple(word for _, word in rows), document)


def format_conll(document: ConllDocument, clusters: Clusters) -> str:
    """Format a document as it was read, with these clusters in its last column."""
    cells: list[list[str]] = [[] for _ in document.row_prefixes]
    chains = sorted(sorted((int(a), int(b)) for a, b in cluster) for cluster in clusters)
    mentions = [(first, last, number) for number, chain in enumerate(chains) for first, last in chain]
    for first, last, number in sorted(mentions, key=lambda m: (m[0], -m[1])):
        cells[first].append(f"({number})" if first == last else f"({number}")
    for first, last, number in sorted(mentions, key=lambda m: (m[1], -m[0])):
        if first != last:
            cells[last].append(f"{number})")
    rows, lines = iter(zip(document.row_prefixes, cells)), [document.header]
    for size in document.sentence_lengths:
        lines += [prefix + ("|".join(marks) or "-") for prefix, marks in (next(rows) for _ in range(size))] + [""]
    return "\n".join([*lines, "#end document"]) + "\n"
