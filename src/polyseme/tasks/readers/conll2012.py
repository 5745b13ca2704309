"""Documents with chains of mentions, in the columns of CoNLL-2012, read and written back.

    #begin document (bc/cctv/00/cctv_0000); part 000
    bc/cctv/00/cctv_0000   0   0   Ann   NNP ... Speaker#1 ...  (12
    ...
    #end document

A row is a word: the fourth column is the word, the tenth who says it (where there are so many), the last the mentions
that begin and end there: `(12` `12)` `(12)`, several with `|` between them. A blank line ends a sentence. Each part of
a document is a document of its own, as in the shared task.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polyseme.errors import DataError
from polyseme.tasks.examples import ConllDocument, Example, RowReader, read_lines
from polyseme.tasks.metrics.coreference import Clusters, Mention

WORD_COLUMN, SPEAKER_COLUMN, MIN_COLUMNS = 3, 9, 5
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_BEGIN = re.compile(r"#begin document \((.*)\);?\s*(?:part\s+(\d+))?\s*")
_MARK = re.compile(r"(\()?(\d+)(\))?")
FILE_PATTERN = "*gold_conll"  # the files of a folder


@dataclass(frozen=True)
class _Row:
    line: int
    text: str
    cells: list[str]


def iter_documents(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Each document of a file, or of all `*gold_conll` under a folder, not yet read."""
    if path.is_dir():
        files = sorted(path.rglob(FILE_PATTERN))
        if not files:
            raise DataError(f"{path} holds no files {FILE_PATTERN}")
        for file in files:
            yield from iter_documents(file, needs_labels)
        return
    header, start_line, rows = "", 0, list[_Row | None]()
    for number, line in enumerate(read_lines(path), 1):
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


def _parse_document(path: Path, header: str, start_line: int, rows: list[_Row | None], needs_labels: bool) -> Example:
    words, sentence_lengths, size = [row for row in rows if row], [], 0
    for row in [*rows, None]:
        if row is None and size:
            sentence_lengths.append(size)
        size = size + 1 if row else 0
    if not words:
        raise DataError(f"{path}:{start_line}: the document has no words")
    for row in words:
        if len(row.cells) < MIN_COLUMNS:
            raise DataError(f"{path}:{row.line}: {len(row.cells)} columns, but a row has {MIN_COLUMNS} or more")
    speakers = tuple(row.cells[SPEAKER_COLUMN] if len(row.cells) > SPEAKER_COLUMN + 1 else "-" for row in words)
    header_match = _BEGIN.fullmatch(header)
    name = header_match[1] if header_match else ""
    document = ConllDocument(
        header,
        tuple(row.text.removesuffix(row.cells[-1]) for row in words),
        tuple(sentence_lengths),
        speakers,
        name.partition("/")[0] if "/" in name else "",
    )
    clusters = _parse_clusters(path, words) if needs_labels else None
    location, id_ = f"{path}:{start_line}", f"{name};{header_match[2] or ''}" if header_match else ""
    return Example(
        location,
        words=tuple(_unescape(row.cells[WORD_COLUMN]) for row in words),
        document=document,
        clusters=clusters,
        id=id_,
    )


def _unescape(word: str) -> str:
    """A word as it was written: OntoNotes spells brackets out, and sets a slash before some marks."""
    return word[1:] if word in ("/.", "/?", "/-") else BRACKETS.get(word, word)


def _parse_clusters(path: Path, rows: list[_Row]) -> tuple[tuple[Mention, ...], ...]:
    """The chains that the last column marks. Of two mentions of a chain that are open the last one is closed first."""
    open_mentions: dict[str, list[int]] = defaultdict(list)
    chains: dict[str, list[Mention]] = defaultdict(list)
    for i, row in enumerate(rows):
        for mark in row.cells[-1].split("|") if row.cells[-1] not in ("-", "_", "*") else ():
            mark_match = _MARK.fullmatch(mark)
            if mark_match is None or not (mark_match[1] or mark_match[3]):
                problem = f"the mention {mark!r} in {row.cells[-1][:40]!r}"
                raise DataError(f"{path}:{row.line}: {problem} is not like (12 or 12) or (12), or - for none")
            if mark_match[1]:
                open_mentions[mark_match[2]].append(i)
            if mark_match[3]:
                if not open_mentions[mark_match[2]]:
                    raise DataError(
                        f"{path}:{row.line}: {mark!r} closes a mention of {mark_match[2]} that was never opened"
                    )
                chains[mark_match[2]].append((open_mentions[mark_match[2]].pop(), i))
    for name, places in open_mentions.items():
        if places:
            line = rows[places[-1]].line
            raise DataError(f"{path}:{line}: '({name}' opens a mention that is not closed before the document ends")
    merged_chains = _merge_chains([sorted(set(chain)) for chain in chains.values()])
    if num_merged := len(chains) - len(merged_chains):
        print(
            f"{path}:{rows[0].line}: {num_merged} chains share a mention with another, and are one with it",
            file=sys.stderr,
        )
    return tuple(sorted(tuple(sorted(chain)) for chain in merged_chains))


def _merge_chains(chains: list[list[Mention]]) -> list[set[Mention]]:
    """Chains that share a mention as one: what stands in both refers to the same."""
    merged_chains: list[set[Mention]] = []
    for chain in chains:
        overlapping = [other for other in merged_chains if not other.isdisjoint(chain)]
        merged_chains = [other for other in merged_chains if other.isdisjoint(chain)]
        merged_chains.append(set(chain).union(*overlapping))
    return merged_chains


def make_document(sentences: Sequence[Sequence[str]], location: str) -> Example:
    """Sentences of words as a document that can be written in columns."""
    words = [word for sentence in sentences for word in sentence]
    numbers = [i for sentence in sentences for i in range(len(sentence))]
    row_prefixes = tuple(f"document\t0\t{i}\t{word}\t" for i, word in zip(numbers, words))
    document = ConllDocument(
        "#begin document (document); part 000", row_prefixes, tuple(map(len, sentences)), ("-",) * len(words)
    )
    return Example(location, words=tuple(words), document=document)


def format_conll(example: Example, clusters: Clusters) -> str:
    """The document as it was read, with these clusters in its last column."""
    document = example.document
    assert document is not None
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
