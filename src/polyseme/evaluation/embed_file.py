"""Vectors of the texts of a file, written in bounded memory: an `.npz` file, or rows with a vector each."""

import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from polyseme.errors import ConfigError, DataError
from polyseme.evaluation.streaming import MAX_CHARACTERS, hash_path, run_windows
from polyseme.evaluation.text_rows import TextFile, TextRow
from polyseme.inference.base import Granularity, LanguageModel
from polyseme.io.atomic import atomic_write
from polyseme.io.partial import PartialOutput, part_path
from polyseme.io.table_output import TableOutput, check_output_suffix

Shape = tuple[int, ...]
EMBED_SUFFIXES = (".npz", ".jsonl", ".parquet")
MAX_BLOCK_ROWS = 8192


def embed_file(
    model: LanguageModel,
    texts: TextFile,
    out: Path,
    layers: str | int = "last",
    granularity: Granularity = "text",
    truncate: bool = False,
    precision: str = "float32",
    resume: bool = False,
) -> dict[str, Shape]:
    """Write `vectors` and, for tokens or words, `starts`, the first row of each text; return the shapes.

    If the file has ids, they are in `id`. A file that does not end in .npz has the columns of the input and `vector`.
    `precision` is that of the model; a run is resumed with the same one.
    """
    check_output_suffix(out, EMBED_SUFFIXES, "vectors")
    if out.suffix != ".npz" and granularity != "text":
        raise ConfigError(f"{out}: one vector per {granularity} is written as .npz, not {out.suffix!r}")
    source, names = texts.source, ("vectors",) if granularity == "text" else ("vectors", "starts")
    table = None if out.suffix == ".npz" else TableOutput(out, texts.names)
    id_names = ("id",) if texts.id_column and table is None else ()
    parts = {name: part_path(out, name) for name in (*names, *id_names)} if table is None else {"rows": part_path(out)}

    def settings() -> dict[str, Any]:
        options = {"layers": layers, "granularity": granularity, "truncate": truncate, "precision": precision}
        columns = {"text": texts.text_column, "id": texts.id_column}
        return {"input": source.hash, "model": hash_path(model.path), **columns, **options}

    def compute(window: list[TextRow], start: int, summary: dict[str, Any]) -> list[bytes]:
        vectors = model.embed([row.text for row in window], layers, granularity, truncate)
        rows = np.concatenate(vectors) if isinstance(vectors, list) else vectors
        num_rows = summary.get("num_rows", 0)
        summary.update(num_rows=num_rows + len(rows), row_shape=rows.shape[1:], dtype=rows.dtype.str)
        if table is not None:
            pairs = [(row.row, {"vector": vector}) for row, vector in zip(window, rows.tolist())]
            return [table.encode(pairs, start).encode()]
        chunks = [rows.tobytes()]
        if isinstance(vectors, list):
            starts = num_rows + np.cumsum([0, *map(len, vectors)])
            chunks.append(starts[1 if start else 0 :].tobytes())
        ids = "".join(json.dumps(row.row.get(texts.id_column), default=str) + "\n" for row in window)
        return [*chunks, ids.encode()] if id_names else chunks

    def shapes() -> dict[str, Shape]:
        vectors_shape = (output.summary["num_rows"], *output.summary["row_shape"])
        return {name: vectors_shape if name == "vectors" else (source.total + 1,) for name in names}

    def install() -> None:
        if table is not None:
            table.install(parts["rows"])
        elif all(path.exists() for path in parts.values()):  # else the output was complete before
            dtypes = {"vectors": np.dtype(output.summary["dtype"]), "starts": np.dtype(np.int64)}
            ids = {name: read_ids(parts[name]) for name in id_names}
            files = {name: (parts[name], dtypes[name], shape) for name, shape in shapes().items()}
            write_npz(out, files, ids, comment=json.dumps(settings()))

    output = PartialOutput(out, list(parts.values()), install, settings, resume)
    max_characters = MAX_CHARACTERS if granularity == "text" else MAX_CHARACTERS // 8
    run_windows(source, source.windows(max_characters), output, compute, lambda _: [b""] * len(parts), "embed")
    return shapes()


def read_ids(path: Path) -> np.ndarray:
    """Return the ids of a file of JSON values, one per line: integers, or texts."""
    with open(path, encoding="utf-8") as lines:
        ids = [json.loads(line) for line in lines]
    return np.array(ids if all(type(each) is int for each in ids) else [str(each) for each in ids])


def write_npz(
    out: Path,
    files: Mapping[str, tuple[Path, np.dtype[Any], Shape]],
    arrays: Mapping[str, np.ndarray] | None = None,
    comment: str = "",
) -> None:
    """Write arrays, and those whose content is in files, as `np.savez` does, and a comment, which `np.load` ignores."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            archive.comment = comment.encode()
            for name, (path, dtype, shape) in files.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry, open(path, "rb") as content:
                    descr = npy.dtype_to_descr(dtype)
                    npy.write_array_header_1_0(entry, {"descr": descr, "fortran_order": False, "shape": shape})
                    shutil.copyfileobj(content, entry, 1 << 20)
            for name, array in (arrays or {}).items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    npy.write_array(entry, array, allow_pickle=False)

    atomic_write(out, write)


@dataclass(frozen=True, eq=False)
class MappedVectors:
    """The vectors of an `.npz` file, read from disk when they are used, and the settings of `embed` that wrote it."""

    vectors: np.ndarray
    settings: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> "MappedVectors":
        """Map the vectors of a file; the settings are empty if another tool wrote it."""
        try:
            with zipfile.ZipFile(path) as archive:
                info, comment = archive.getinfo("vectors.npy"), archive.comment
            with open(path, "rb") as file:
                file.seek(info.header_offset + 26)  # of the entry's local header: the lengths of name and extra field
                name_size, extra_size = (int.from_bytes(file.read(2), "little") for _ in range(2))
                file.seek(info.header_offset + 30 + name_size + extra_size)
                if npy.read_magic(file) != (1, 0) or info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("it is compressed, or in another version of the format")
                shape, _, dtype = npy.read_array_header_1_0(file)
                vectors = np.memmap(path, dtype, "r", file.tell(), shape)
            settings = json.loads(comment) if comment else {}
        except FileNotFoundError:
            raise DataError(f"there is no file {path}: write vectors with `polyseme embed`") from None
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise DataError(f"{path} is not a file of vectors that `polyseme embed` wrote ({error})") from None
        return cls(vectors, settings if isinstance(settings, dict) else {})

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the first row of each block of vectors, and the block."""
        for start in range(0, len(self.vectors), MAX_BLOCK_ROWS):
            yield start, np.asarray(self.vectors[start : start + MAX_BLOCK_ROWS])
