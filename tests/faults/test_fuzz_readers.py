"""Fuzzing: mutated files of every format give documents or one-line errors, never an exception or a hang."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from polyseme.corpus.sources.documents import Document
from polyseme.corpus.sources.readers import SourceFile
from polyseme.errors import PolysemeError
from polyseme.tasks.classification import ClassificationTask
from tests.corpus.samples import COMPRESSORS, FILES, build_catalog, build_parquet, mutate

NUM_FILES, NUM_COMPRESSED_FILES = 1_500, 300
MAX_ITEMS = 10_000  # no file here has one item per byte


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as path:
        yield Path(path)


def check_file(source: SourceFile, content: bytes) -> tuple[int, int]:
    """Return the number of documents and errors; texts must be encodable and errors one line each."""
    source.local_path.write_bytes(content)
    num_documents = num_errors = 0
    for document in islice(source.read(), MAX_ITEMS):
        if isinstance(document, Document):
            document.text.encode()
            num_documents += 1
        else:
            assert isinstance(document, PolysemeError)
            message = str(document)
            assert "\n" not in message and len(message.encode()) < 2000
            num_errors += 1
    assert num_documents + num_errors < MAX_ITEMS
    return num_documents, num_errors


def fuzz(source: SourceFile, content: bytes, count: int, seed: int = 0) -> tuple[int, int]:
    rng = random.Random(seed)
    counts = [check_file(source, mutate(content, rng)) for _ in range(count)]
    return sum(num_documents for num_documents, _ in counts), sum(num_errors for _, num_errors in counts)


@pytest.mark.parametrize("format_name", [format_name for format_name in FILES if format_name != "parquet"])
def test_mutated_files_of_every_format(folder: Path, format_name: str) -> None:
    for number, split in enumerate(("file", "blank", "line") if format_name == "text" else ("file",)):
        count = NUM_FILES // 3 + 1 if format_name == "text" else NUM_FILES
        source = SourceFile(0, folder / f"a.{format_name}", format=format_name, split=split)
        num_documents, num_errors = fuzz(source, FILES[format_name][1], count, number)
        assert num_documents > count // 3 and num_errors > count // 20


def small_parquet(kind: pa.DataType, compression: str) -> bytes:
    table = pa.table({"text": pa.array(["one", "two é", None, "one"]).cast(kind)})
    return build_parquet(table, compression=compression, write_statistics=False)


PARQUETS = [
    (pa.string(), "none"),
    (pa.large_string(), "snappy"),
    (pa.dictionary(pa.int8(), pa.string()), "zstd"),
]


@pytest.mark.parametrize(("kind", "compression"), PARQUETS)
def test_mutated_parquet(folder: Path, kind: pa.DataType, compression: str) -> None:
    source = SourceFile(0, folder / "a.parquet", format="parquet")
    num_documents, num_errors = fuzz(source, small_parquet(kind, compression), NUM_FILES // 2)
    assert num_documents > NUM_FILES // 20 and num_errors > NUM_FILES // 20


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("format_name", ["text", "jsonl", "wet", "mo"])
def test_mutated_compressed_files(folder: Path, format_name: str, suffix: str) -> None:
    source = SourceFile(0, folder / f"a.{format_name}{suffix}", format=format_name, split="line")
    assert fuzz(source, COMPRESSORS[suffix](FILES[format_name][1]), NUM_COMPRESSED_FILES)[1] > NUM_COMPRESSED_FILES // 2


@pytest.mark.parametrize("order", ["<", ">"])
def test_mutated_catalogs_in_other_encodings(folder: Path, order: str) -> None:
    content = build_catalog({"a\x04one\0many": "eins\0viele é"}, "latin-1", order)
    num_documents, num_errors = fuzz(SourceFile(0, folder / "a.mo", format="mo"), content, NUM_FILES // 10)
    assert num_documents and num_errors


def test_mutated_labeled_examples(folder: Path) -> None:
    """Task readers decompress files with the same function."""
    rng = random.Random(0)
    for suffix in COMPRESSORS:
        path, content = folder / f"a.tsv{suffix}", COMPRESSORS[suffix](b"text\tlabel\na\tb\nc\td\n")
        num_examples = 0
        for _ in range(NUM_COMPRESSED_FILES // 4):
            path.write_bytes(mutate(content, rng))
            try:
                num_examples += len(ClassificationTask.read(path))
            except PolysemeError:
                continue
        assert num_examples
