"""External merge sort of more numbers than fit into memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from polyseme.io.atomic import wrap_os_errors

_MAX_UINT64 = np.uint64(2**64 - 1)


class ExternalSorter:
    """Sorts uint64 numbers using about `memory_bytes` bytes of memory and sorted runs in the file `path`.

    A context manager that removes the file on exit. A file left by a killed job is overwritten. With `unique`, equal
    numbers are returned once.
    """

    def __init__(self, path: Path, memory_bytes: int, unique: bool = False):
        self.path, self.unique = path, unique
        self.num_added = 0
        self._buffer = np.empty(max(memory_bytes // 64, 256), dtype=np.uint64)  # merging needs a few times that
        self._num_buffered = 0
        self._run_lengths: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.path.unlink(missing_ok=True)

    def add(self, values: np.ndarray) -> None:
        """Add numbers in any order."""
        self.num_added += len(values)
        while len(values):
            if self._num_buffered == len(self._buffer):
                self._write_run()
            part = values[: len(self._buffer) - self._num_buffered]
            self._buffer[self._num_buffered : self._num_buffered + len(part)] = part
            self._num_buffered += len(part)
            values = values[len(part) :]

    def sorted_chunks(self) -> Iterator[np.ndarray]:
        """Yield all numbers in ascending order, in chunks. Without `unique`, equal numbers may be in two chunks."""
        if not self._run_lengths:
            yield self._sort_buffer()
            return
        self._write_run()
        with open(self.path, "rb") as file:
            for chunk in self._merge_runs(file):
                yield _drop_repeats(chunk) if self.unique else chunk  # equal numbers of several runs are in one chunk

    def sorted_counts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the distinct numbers in ascending order, in chunks, and how often each was added."""
        last_value, last_count = np.empty(0, np.uint64), np.empty(0, np.int64)  # may continue in the next chunk
        for chunk in self.sorted_chunks():
            if not len(chunk):
                continue
            run_starts = np.flatnonzero(np.append(True, chunk[1:] != chunk[:-1]))
            counts = np.diff(np.append(run_starts, len(chunk)))
            if len(last_value) and last_value[0] == chunk[0]:
                counts[0] += last_count[0]
            elif len(last_value):
                yield last_value, last_count
            if len(run_starts) > 1:
                yield chunk[run_starts[:-1]], counts[:-1]
            last_value, last_count = chunk[run_starts[-1:]], counts[-1:]
        if len(last_value):
            yield last_value, last_count

    def _merge_runs(self, file: BinaryIO) -> Iterator[np.ndarray]:
        ends = np.cumsum(self._run_lengths).tolist()
        offsets = [end - length for end, length in zip(ends, self._run_lengths)]
        block_size = max(len(self._buffer) // len(ends), 16)
        heads = [np.empty(0, dtype=np.uint64) for _ in ends]  # of each run, read but not yet yielded
        while True:
            bound = _MAX_UINT64
            for number, (offset, end) in enumerate(zip(offsets, ends)):
                count = min(block_size - len(heads[number]), end - offset)
                if count > 0:
                    file.seek(offset * 8)
                    heads[number] = np.concatenate([heads[number], np.fromfile(file, np.uint64, count)])
                    offsets[number] += count
                if offsets[number] < end:  # the rest of this run is not below its last number
                    bound = min(bound, heads[number][-1])
            cuts = [int(np.searchsorted(head, bound, side="right")) for head in heads]
            chunk = np.concatenate([head[:cut] for head, cut in zip(heads, cuts)])
            if not len(chunk):
                return
            heads = [head[cut:] for head, cut in zip(heads, cuts)]
            chunk.sort(kind="stable")  # fast on sorted runs
            yield chunk

    def _sort_buffer(self) -> np.ndarray:
        run = self._buffer[: self._num_buffered]
        self._num_buffered = 0
        run.sort()
        return _drop_repeats(run) if self.unique else run

    def _write_run(self) -> None:
        with wrap_os_errors(self.path):
            if not self._run_lengths:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            run = self._sort_buffer()
            with open(self.path, "ab" if self._run_lengths else "wb") as file:
                file.write(run.data)
            self._run_lengths.append(len(run))


def is_in_sorted(values: np.ndarray, sorted_values: np.ndarray) -> np.ndarray:
    """Return which of the values are in a sorted array."""
    if not len(sorted_values):
        return np.zeros(len(values), bool)
    return np.asarray(sorted_values[np.searchsorted(sorted_values[:-1], values)] == values)


def _drop_repeats(values: np.ndarray) -> np.ndarray:
    return values[np.append(True, values[1:] != values[:-1])] if len(values) else values
