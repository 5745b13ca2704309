"""Sorting more numbers than memory holds: sorted runs in one file, read back merged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from polyseme.io.files import told

_TOP = np.uint64(2**64 - 1)


class Runs:
    """Takes uint64 in any order, gives all of them back in pieces that ascend; about `memory` bytes at once.

    What does not fit is written to `path`, which a killed job may leave behind and the next one writes over;
    leaving the block removes it. With `unique`, what is equal comes back once.
    """

    def __init__(self, path: Path, memory: int, unique: bool = False):
        self.path, self.unique = path, unique
        self.total = 0  # numbers added
        self._waiting = np.empty(max(memory // 64, 256), dtype=np.uint64)  # merging needs a few times that
        self._count = 0
        self._lengths: list[int] = []

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.path.unlink(missing_ok=True)

    def add(self, values: np.ndarray) -> None:
        self.total += len(values)
        while len(values):
            if self._count == len(self._waiting):
                self._spill()
            part = values[: len(self._waiting) - self._count]
            self._waiting[self._count : self._count + len(part)] = part
            self._count += len(part)
            values = values[len(part) :]

    def merged(self) -> Iterator[np.ndarray]:
        """Everything added, ascending within a piece and from piece to piece.

        Without `unique`, equal numbers may be on both sides of a border; with it, each run has them once, and
        all that are equal come together.
        """
        if not self._lengths:
            yield self._run()
            return
        self._spill()
        with open(self.path, "rb") as file:
            for piece in self._pieces(file):
                yield _distinct(piece) if self.unique else piece

    def _pieces(self, file: BinaryIO) -> Iterator[np.ndarray]:
        ends = np.cumsum(self._lengths).tolist()
        places = [end - length for end, length in zip(ends, self._lengths)]
        block = max(len(self._waiting) // len(ends), 16)
        heads = [np.empty(0, dtype=np.uint64) for _ in ends]  # what is read of each run and not given out
        while True:
            bound = _TOP
            for number, (place, end) in enumerate(zip(places, ends)):
                count = min(block - len(heads[number]), end - place)
                if count > 0:
                    file.seek(place * 8)
                    heads[number] = np.concatenate([heads[number], np.fromfile(file, np.uint64, count)])
                    places[number] += count
                if places[number] < end:  # more of this run may follow, but nothing below its last
                    bound = min(bound, heads[number][-1])
            cuts = [int(np.searchsorted(head, bound, side="right")) for head in heads]
            piece = np.concatenate([head[:cut] for head, cut in zip(heads, cuts)])
            if not len(piece):
                return
            heads = [head[cut:] for head, cut in zip(heads, cuts)]
            piece.sort(kind="stable")  # quick on runs
            yield piece

    def _run(self) -> np.ndarray:
        run = self._waiting[: self._count]
        self._count = 0
        run.sort()
        return _distinct(run) if self.unique else run

    def _spill(self) -> None:
        with told(self.path):
            if not self._lengths:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            run = self._run()
            with open(self.path, "ab" if self._lengths else "wb") as file:
                file.write(run.data)
            self._lengths.append(len(run))


def _distinct(ordered: np.ndarray) -> np.ndarray:
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
