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

from polyseme.errors import UserError
from polyseme.tasks.examples import Document, Example, Unit, read_lines
from polyseme.tasks.metrics.coreference import Clusters, Mention

WORD, SPEAKER, FEWEST = 3, 9, 5
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_BEGIN = re.compile(r"#begin document \((.*)\);?\s*(?:part\s+(\d+))?\s*")
_MARK = re.compile(r"(\()?(\d+)(\))?")
FOLDER = "*gold_conll"  # the files of a folder


@dataclass(frozen=True)
class _Row:
    line: int
    text: str
    cells: list[str]


def document_units(path: Path, need_labels: bool) -> Iterator[Unit]:
    """Each document of a file, or of all `*gold_conll` under a folder, not yet read."""
    if path.is_dir():
        files = sorted(path.rglob(FOLDER))
        if not files:
            raise UserError(f"{path} holds no files {FOLDER}")
        for file in files:
            yield from document_units(file, need_labels)
        return
    header, begun, rows = "", 0, list[_Row | None]()
    for number, line in enumerate(read_lines(path), 1):
        text = line.rstrip()
        if text.startswith("#begin document"):
            if begun:
                raise UserError(f"{path}:{number}: a document begins before that of line {begun} has ended")
            if _BEGIN.fullmatch(text) is None:
                raise UserError(f"{path}:{number}: {text[:60]!r} is not #begin document (name); part 000")
            header, begun, rows = text, number, []
        elif text.startswith("#end document"):
            if not begun:
                raise UserError(f"{path}:{number}: a document ends that has not begun")
            yield partial(_document, path, header, begun, rows, need_labels)
            begun = 0
        elif begun and not text:
            rows.append(None)
        elif begun:
            rows.append(_Row(number, text, text.split()))
        elif text and not text.startswith("#"):
            raise UserError(f"{path}:{number}: a word outside of a document: there is no #begin document before it")
    if begun:
        raise UserError(f"{path}:{begun}: the document that begins here has no #end document")


def _document(path: Path, header: str, begun: int, rows: list[_Row | None], need_labels: bool) -> Example:
    words, sizes, size = [row for row in rows if row], [], 0
    for row in [*rows, None]:
        if row is None and size:
            sizes.append(size)
        size = size + 1 if row else 0
    if not words:
        raise UserError(f"{path}:{begun}: the document has no words")
    for row in words:
        if len(row.cells) < FEWEST:
            raise UserError(f"{path}:{row.line}: {len(row.cells)} columns, but a row has {FEWEST} or more")
    speakers = tuple(row.cells[SPEAKER] if len(row.cells) > SPEAKER + 1 else "-" for row in words)
    found = _BEGIN.fullmatch(header)
    name = found[1] if found else ""
    about = Document(
        header,
        tuple(row.text.removesuffix(row.cells[-1]) for row in words),
        tuple(sizes),
        speakers,
        name.partition("/")[0] if "/" in name else "",
    )
    clusters = _clusters(path, words) if need_labels else None
    where, id_ = f"{path}:{begun}", f"{name};{found[2] or ''}" if found else ""
    return Example(
        where, words=tuple(_plain(row.cells[WORD]) for row in words), document=about, clusters=clusters, id=id_
    )


def _plain(word: str) -> str:
    """A word as it was written: OntoNotes spells brackets out, and sets a slash before some marks."""
    return word[1:] if word in ("/.", "/?", "/-") else BRACKETS.get(word, word)


def _clusters(path: Path, rows: list[_Row]) -> tuple[tuple[Mention, ...], ...]:
    """The chains that the last column marks. Of two mentions of a chain that are open the last one is closed first."""
    opened: dict[str, list[int]] = defaultdict(list)
    chains: dict[str, list[Mention]] = defaultdict(list)
    for i, row in enumerate(rows):
        for mark in row.cells[-1].split("|") if row.cells[-1] not in ("-", "_", "*") else ():
            found = _MARK.fullmatch(mark)
            if found is None or not (found[1] or found[3]):
                said = f"the mention {mark!r} in {row.cells[-1][:40]!r}"
                raise UserError(f"{path}:{row.line}: {said} is not like (12 or 12) or (12), or - for none")
            if found[1]:
                opened[found[2]].append(i)
            if found[3]:
                if not opened[found[2]]:
                    raise UserError(f"{path}:{row.line}: {mark!r} closes a mention of {found[2]} that was never opened")
                chains[found[2]].append((opened[found[2]].pop(), i))
    for name, places in opened.items():
        if places:
            line = rows[places[-1]].line
            raise UserError(f"{path}:{line}: '({name}' opens a mention that is not closed before the document ends")
    joined = _joined([sorted(set(chain)) for chain in chains.values()])
    if lost := len(chains) - len(joined):
        print(
            f"{path}:{rows[0].line}: {lost} chains share a mention with another, and are one with it", file=sys.stderr
        )
    return tuple(sorted(tuple(sorted(chain)) for chain in joined))


def _joined(chains: list[list[Mention]]) -> list[set[Mention]]:
    """Chains that share a mention as one: what stands in both refers to the same."""
    found: list[set[Mention]] = []
    for chain in chains:
        touched = [other for other in found if not other.isdisjoint(chain)]
        found = [other for other in found if other.isdisjoint(chain)]
        found.append(set(chain).union(*touched))
    return found


def plain_document(sentences: Sequence[Sequence[str]], where: str) -> Example:
    """Sentences of words as a document that can be written in columns."""
    words = [word for sentence in sentences for word in sentence]
    numbers = [i for sentence in sentences for i in range(len(sentence))]
    stems = tuple(f"document\t0\t{i}\t{word}\t" for i, word in zip(numbers, words))
    about = Document("#begin document (document); part 000", stems, tuple(map(len, sentences)), ("-",) * len(words))
    return Example(where, words=tuple(words), document=about)


def in_columns(example: Example, clusters: Clusters) -> str:
    """The document as it was read, with these clusters in its last column."""
    document = example.document
    assert document is not None
    cells: list[list[str]] = [[] for _ in document.stems]
    chains = sorted(sorted((int(a), int(b)) for a, b in cluster) for cluster in clusters)
    numbered = [(first, last, number) for number, chain in enumerate(chains) for first, last in chain]
    for first, last, number in sorted(numbered, key=lambda m: (m[0], -m[1])):
        cells[first].append(f"({number})" if first == last else f"({number}")
    for first, last, number in sorted(numbered, key=lambda m: (m[1], -m[0])):
        if first != last:
            cells[last].append(f"{number})")
    rows, lines = iter(zip(document.stems, cells)), [document.header]
    for size in document.sentences:
        lines += [stem + ("|".join(marks) or "-") for stem, marks in (next(rows) for _ in range(size))] + [""]
    return "\n".join([*lines, "#end document"]) + "\n"
