"""Mutated files give documents or errors of one line, whatever was done to them: no traceback, no hang."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from polyseme.corpus.sources.lines import Document
from polyseme.corpus.sources.readers import SourceFile
from polyseme.errors import PolysemeError
from polyseme.tasks.classification import ClassificationTask
from tests.corpus.samples import FILES, PACKERS, catalogue, parquet

COUNT, PACKED_COUNT = 10_000, 1_000
MOST = 10_000  # items; no file here has one item a byte
SPECIAL = [b"\n", b"\r", b'"', b",", b"\t", b"{", b"[", b"\\u", b"\\ud800", b"\0", b"\xff", b"\xef\xbb\xbf", b"<doc "]
SPECIAL += [
    b"</doc>",
    b"WARC/1.0\r\n",
    b"Content-Length: 9",
    b"\x80",
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"charset=utf-7",
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Some bytes flipped, taken away, put in, doubled or cut off; one to four times."""
    found = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) + 1)
        size = min(draw.choice((1, 1, 2, 4, 16, 64)), len(found) - at)
        how = draw.randrange(6)
        if how == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif how == 1 and at < len(found):
            found[at] = draw.randrange(256)
        elif how == 2:
            del found[at : at + size]
        elif how == 3:
            found[at:at] = draw.choice(SPECIAL) if draw.random() < 0.7 else draw.randbytes(size)
        elif how == 4:
            found[at:at] = found[at : at + size] * draw.randint(1, 3)
        elif draw.random() < 0.3:
            del found[at:]
    return bytes(found)


def check(source: SourceFile, data: bytes) -> tuple[int, int]:
    """How many documents and errors a file gives; each must be good for what comes after."""
    source.local_path.write_bytes(data)
    documents = errors = 0
    for found in islice(source.read(), MOST):
        if isinstance(found, Document):
            found.text.encode()
            documents += 1
        else:
            assert isinstance(found, PolysemeError)
            message = str(found)
            assert "\n" not in message and len(message.encode()) < 2000
            errors += 1
    assert documents + errors < MOST
    return documents, errors


def fuzz(source: SourceFile, data: bytes, count: int, seed: int = 0) -> tuple[int, int]:
    draw = random.Random(seed)
    given = [check(source, mutated(data, draw)) for _ in range(count)]
    return sum(documents for documents, _ in given), sum(errors for _, errors in given)


@pytest.mark.parametrize("form", [form for form in FILES if form != "parquet"])
def test_every_format(folder: Path, form: str) -> None:
    for number, split in enumerate(("file", "blank", "line") if form == "text" else ("file",)):
        count = COUNT // 3 + 1 if form == "text" else COUNT
        source = SourceFile(0, folder / f"a.{form}", format=form, split=split)
        documents, errors = fuzz(source, FILES[form][1], count, number)
        assert documents > count // 3 and errors > count // 20


def small_parquet(kind: pa.DataType, compression: str) -> bytes:
    table = pa.table({"text": pa.array(["one", "two é", None, "one"]).cast(kind)})
    return parquet(table, compression=compression, write_statistics=False)


PARQUETS = [
    (pa.string(), "none"),
    (pa.large_string(), "snappy"),
    (pa.dictionary(pa.int8(), pa.string()), "zstd"),
]


@pytest.mark.parametrize(("kind", "compression"), PARQUETS)
def test_parquet(folder: Path, kind: pa.DataType, compression: str) -> None:
    source = SourceFile(0, folder / "a.parquet", format="parquet")
    documents, errors = fuzz(source, small_parquet(kind, compression), COUNT // 2)
    assert documents > COUNT // 20 and errors > COUNT // 20


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("form", ["text", "jsonl", "wet", "mo"])
def test_packed(folder: Path, form: str, ending: str) -> None:
    source = SourceFile(0, folder / f"a.{form}{ending}", format=form, split="line")
    assert fuzz(source, PACKERS[ending](FILES[form][1]), PACKED_COUNT)[1] > PACKED_COUNT // 2


@pytest.mark.parametrize("order", ["<", ">"])
def test_catalogues_in_other_encodings(folder: Path, order: str) -> None:
    data = catalogue({"a\x04one\0many": "eins\0viele é"}, "latin-1", order)
    documents, errors = fuzz(SourceFile(0, folder / "a.mo", format="mo"), data, COUNT // 10)
    assert documents and errors


def test_labelled_examples(folder: Path) -> None:
    """Tasks open their files by the same function."""
    draw = random.Random(0)
    for ending in PACKERS:
        path, data = folder / f"a.tsv{ending}", PACKERS[ending](b"text\tlabel\na\tb\nc\td\n")
        read = 0
        for _ in range(PACKED_COUNT // 4):
            path.write_bytes(mutated(data, draw))
            try:
                read += len(ClassificationTask.read(path))
            except PolysemeError:
                continue
        assert read
