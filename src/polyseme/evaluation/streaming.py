"""Commands over files in bounded memory: read windows of the input, compute, append to the output, and go on.

Windows depend on the input alone, so a resumed run computes the same batches as one that was never interrupted.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from polyseme.errors import ConfigError, DataError
from polyseme.io.atomic import sha256
from polyseme.io.partial import PartialOutput, part_path
from polyseme.io.specs import split_spec
from polyseme.io.table_output import TableOutput
from polyseme.progress import progress
from polyseme.tasks.readers.columns import SPEC_OPTIONS

T = TypeVar("T")
MAX_EXAMPLES = 8192  # of a window
MAX_CHARACTERS = 1 << 20
Compute = Callable[[list[T], int, dict[str, Any]], Sequence[bytes]]  # window, its first row, summary -> bytes per part


class Source(Generic[T]):
    """Examples that can be read again and again without holding all of them.

    `read` yields them from the start; its argument is True the first time, when it may log warnings. That pass counts
    them and raises the errors of bad rows before anything is computed. What is not a regular file or a folder, such
    as a pipe, can be read once and is held.
    """

    def __init__(self, path: Path | None, read: Callable[[bool], Iterable[T]]):
        self.path: Path | None = path
        self._read = read
        if path is None or not (path.is_file() or path.is_dir()):
            examples = list(read(True))
            self.path, self._read, self.total = None, lambda _: examples, len(examples)
        else:
            self.total = sum(1 for _ in read(True))

    def __iter__(self) -> Iterator[T]:
        return iter(self._read(False))

    @property
    def hash(self) -> str:
        """The hash of the file or folder, or of the values."""
        if self.path is not None:
            return hash_path(self.path)
        digest = hashlib.sha256()
        for example in self:
            digest.update(f"{example!r}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def windows(
        self, max_characters: int = MAX_CHARACTERS, group_key: Callable[[T], Any] | None = None
    ) -> Iterator[list[T]]:
        """Yield lists of examples with bounded numbers of examples and characters.

        Adjacent examples with the same `group_key` are in one window.
        """
        window, num_characters = list[T](), 0
        for example in self:
            size = count_characters(example)
            is_full = len(window) >= MAX_EXAMPLES or num_characters + size > max_characters
            if window and is_full and (group_key is None or group_key(example) != group_key(window[-1])):
                yield window
                window, num_characters = [], 0
            window.append(example)
            num_characters += size
        yield window


def count_characters(example: Any) -> int:
    """Return the number of characters of a text, of a tuple of texts, or of the texts of an example's fields.

    An example that keeps the row of its file counts as much as the longer of the two. Its `location` is not counted,
    so that windows do not depend on how a path is written.
    """
    if isinstance(example, str):
        return len(example)
    if type(example) is tuple:
        return sum(map(count_characters, example))
    fields = example._asdict() if hasattr(example, "_asdict") else getattr(example, "__dict__", {})
    values = [value for name, value in fields.items() if name != "location"]
    row = sum(len(cell) for value in values if isinstance(value, dict) for cell in value.values() if type(cell) is str)
    return max(sum(count_characters(value) for value in values if isinstance(value, str | tuple)), row)


def hash_path(path: Path) -> str:
    """Return the SHA-256 hash of a file, or of all files of a folder that are not hidden."""
    if not path.is_dir():
        return sha256(path) if path.is_file() else ""
    files = sorted(p.relative_to(path) for p in path.rglob("[!.]*") if p.is_file())
    return hashlib.sha256("".join(f"{file} {sha256(path / file)}\n" for file in files).encode()).hexdigest()


def hash_spec(source: str | Path) -> str:
    """Return the hash of the file that `PATH::name=value,…` names."""
    return hash_path(Path(split_spec(str(source), SPEC_OPTIONS)[0]))


def reject_input(out: Path, source: str | Path) -> None:
    """Raise `ConfigError` if an output file is also an input, `PATH::name=value,…`."""
    path = Path(split_spec(str(source), SPEC_OPTIONS)[0])
    if out.exists() and path.exists() and out.samefile(path):
        raise ConfigError(f"{out} is the input: choose another output file")


class WindowOutput(Protocol):
    """What windows are written to: `PartialOutput`, or `ConsoleOutput`."""

    num_windows: int
    num_rows: int
    summary: dict[str, Any]
    is_resumable: bool

    def append(self, chunks: Sequence[bytes], num_rows: int) -> None:
        """Write a window."""

    def checkpoint(self) -> None:
        """Make all windows so far permanent."""

    def finish(self, footers: Sequence[bytes]) -> None:
        """Write the end."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exception: Any) -> None: ...


class ConsoleOutput:
    """Windows that are shown as text when they are complete, and that cannot be resumed."""

    def __init__(self, show: Callable[[str], object]):
        self.show, self.num_windows, self.num_rows, self.is_resumable = show, 0, 0, False
        self.summary: dict[str, Any] = {}

    def append(self, chunks: Sequence[bytes], num_rows: int) -> None:
        """Show a window."""
        self.show("".join(chunk.decode() for chunk in chunks))
        self.num_rows += num_rows

    def checkpoint(self) -> None:
        """Do nothing: what is shown stays."""

    def finish(self, footers: Sequence[bytes]) -> None:
        """Show the end."""
        self.append(footers, 0)

    def __enter__(self) -> "ConsoleOutput":
        return self

    def __exit__(self, *exception: Any) -> None:
        pass


def open_row_output(
    table: TableOutput | None, show: Callable[[str], object], settings: Callable[[], Mapping[str, Any]], resume: bool
) -> WindowOutput:
    """Return a file of rows to write, or the console if there is none."""
    if table is not None:
        part = part_path(table.out)
        return PartialOutput(table.out, [part], lambda: table.install(part), settings, resume)
    if resume:
        raise ConfigError("`resume` needs an output file: set `out`")
    return ConsoleOutput(show)


def run_windows(
    source: Source[T],
    windows: Iterable[list[T]],
    output: WindowOutput,
    compute: Compute[T],
    footers: Callable[[dict[str, Any]], Sequence[bytes]],
    title: str,
    unit: str = "texts",
) -> dict[str, Any]:
    """Compute and write every window that the output does not have yet; return the summary of all of them.

    `compute` returns the bytes of a window for each part of the output and updates the summary, which `footers` turns
    into the end of each part.
    """
    target = getattr(output, "out", None)
    if source.path is not None and target is not None:
        reject_input(target, source.path)
    with output, progress(title, source.total, unit, show=source.total > 1) as bar:
        bar.add_completed(output.num_rows)
        for window in islice(windows, output.num_windows, None):
            start = output.num_rows
            try:
                with bar.window(len(window)):
                    chunks = compute(window, start, output.summary)
            except (ConfigError, DataError) as error:  # about these rows: a resumed run would end with it again
                output.is_resumable = False
                if isinstance(error, ConfigError) or len(window) == source.total or getattr(error, "location", None):
                    raise
                raise DataError(f"rows {start + 1:,} to {start + len(window):,}: {error}") from None
            output.append(chunks, len(window))
            if output.num_rows < source.total or output.is_resumable:
                output.checkpoint()
        output.finish(footers(output.summary))
        bar.finish()
    return output.summary
