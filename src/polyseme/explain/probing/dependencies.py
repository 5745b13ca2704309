"""Dependency trees of CoNLL-U files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from polyseme.errors import DataError
from polyseme.tasks.base import Words
from polyseme.tasks.readers.rows import RowReader, read_lines, read_rows, split_sentences


@dataclass(frozen=True, eq=False)
class DependencyTree:
    """The words of a sentence, their parts of speech, and for each word its head and its relation to it.

    The head of the root is -1. Relations are universal ones, without their subtypes (`nmod:poss` is `nmod`).
    """

    words: Words
    tags: Words
    heads: np.ndarray  # int64 [words]
    relations: Words

    def distances(self) -> np.ndarray:
        """Return the number of arcs between each two words, [words, words]."""
        size = len(self.words)
        paths = []
        for word in range(size):
            path = [word]
            while (head := int(self.heads[path[-1]])) >= 0:
                path.append(head)
            paths.append(path)
        depths = np.array([len(path) for path in paths])
        is_ancestor = np.zeros((size, size), dtype=bool)  # of each word, with the word itself
        for word, path in enumerate(paths):
            is_ancestor[word, path] = True
        num_shared = is_ancestor.astype(np.int64) @ is_ancestor.T.astype(np.int64)
        return depths[:, None] + depths[None, :] - 2 * num_shared


def read_trees(path: Path) -> list[DependencyTree]:
    """Read the trees of a CoNLL-U file, plain or compressed, without multiword tokens (1-2) and empty nodes (1.1)."""
    return read_rows(path, _iter_trees(path))


def _iter_trees(path: Path) -> Iterator[RowReader]:
    for lines in split_sentences(read_lines(path)):
        if rows := [(number, line.split("\t")) for number, line in lines if not line.startswith("#")]:
            yield partial(_parse_tree, path, rows)


def _parse_tree(path: Path, rows: list[tuple[int, list[str]]]) -> DependencyTree:
    words, tags, heads, relations = list[str](), list[str](), list[int](), list[str]()
    for line, cells in rows:
        if len(cells) != 10:
            raise DataError(f"{path}:{line}: {len(cells)} columns, but CoNLL-U has 10")
        if re.fullmatch(r"\d+[-.]\d+", cells[0]):
            continue
        if not cells[0].isdecimal() or int(cells[0]) != len(words) + 1:
            raise DataError(f"{path}:{line}: the word's number is {cells[0]!r}, expected {len(words) + 1}")
        if not cells[6].isdecimal() or "_" in (cells[3], cells[7]):
            raise DataError(f"{path}:{line}: {cells[1]!r} has no part of speech, head or relation")
        words.append(cells[1].replace(" ", "\u00a0"))
        tags.append(cells[3])
        heads.append(int(cells[6]) - 1)
        relations.append(cells[7].partition(":")[0])
    line = rows[0][0]
    if not words:
        raise DataError(f"{path}:{line}: a sentence without words")
    _check_heads(f"{path}:{line}", heads)
    return DependencyTree(tuple(words), tuple(tags), np.array(heads), tuple(relations))


def _check_heads(location: str, heads: list[int]) -> None:
    """Raise an error unless every word leads to the one root."""
    if max(heads) >= len(heads) or heads.count(-1) != 1:
        raise DataError(f"{location}: the sentence has a head that is no word, or not one root")
    reaches_root = {-1}
    for word in range(len(heads)):
        path = []
        while word not in reaches_root and word not in path:
            path.append(word)
            word = heads[word]
        if word not in reaches_root:
            raise DataError(f"{location}: the heads of the sentence form a cycle, not a tree")
        reaches_root.update(path)
