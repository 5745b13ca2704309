"""Text in UTF-16 and UTF-32 is recognized; compressed files that expand a thousandfold are refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from polyseme.corpus.sources.sources import open_sources
from polyseme.errors import DataError
from polyseme.io import compression
from polyseme.io.compression import read_decompressed
from polyseme.io.lines import detect_wide_encoding
from polyseme.tasks.readers.rows import read_lines

TEXTS = ["hi", "The cat sat.\n", "Müller: naïve café\r\nzweite Zeile\n" * 300, '{"text": "a row"}\n' * 9]
WIDE_ENCODINGS = ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"]


@pytest.mark.parametrize("encoding", WIDE_ENCODINGS)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_wide_encodings_are_detected(encoding: str, mark: str) -> None:
    assert all(detect_wide_encoding((mark + text).encode(encoding)) == encoding for text in TEXTS)


def test_other_text_is_not_mistaken_for_a_wide_encoding() -> None:
    other = ["", "a", "漢字かな" * 99, "a\x00b and a few more\x00\n" * 50, "\x00" * 100, "abcd\x00\x00\x00\x00" * 20]
    assert not any(detect_wide_encoding(text.encode()) for text in [*TEXTS, *other])
    assert not any(detect_wide_encoding(text.encode("latin-1")) for text in TEXTS)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "wiki_00"])
def test_readers_name_the_encoding(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(TEXTS[3].encode("utf-16-be"))
    with pytest.raises(DataError, match=rf"{name}.*looks like UTF-16BE: convert it with iconv -f UTF-16BE -t UTF-8"):
        list(open_sources([tmp_path / name]))
    with pytest.raises(DataError, match="looks like UTF-16BE"):
        read_lines(tmp_path / name)
    assert read_lines(tmp_path / name, "utf-16-be")[0] == '{"text": "a row"}'


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(compression, "MIN_CHECKED_BYTES", 1 << 20)
    return 3 << 20


def compress(path: Path, content: bytes) -> Path:
    if path.suffix == ".zst":
        path.write_bytes(pyarrow.compress(content, codec="zstd", asbytes=True))
    else:
        codec = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[path.suffix]
        path.write_bytes(codec(content))
    return path


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.wet"])
def test_decompression_bombs_are_refused(tmp_path: Path, name: str, suffix: str, low_limit: int) -> None:
    header = {"a.jsonl": b'{"text": "a"}\n', "a.wet": b"WARC/1.0\nContent-Length: 0\n\n"}.get(name, b"text\n")
    path = compress(tmp_path / f"{name}.{suffix}", header + b" " * low_limit)
    with pytest.raises(DataError, match=rf"{name}.{suffix} expands more than 1,000 times, .* set `allow_large`"):
        list(open_sources([path]))
    reader = open_sources([path], skip_bad=True, allow_large=True)
    list(reader)
    assert not any("expands" in message for message in reader.skipped.bad_row_messages)


def test_bombs_are_checked_only_beyond_the_floor(tmp_path: Path, low_limit: int) -> None:
    small = compress(tmp_path / "a.bz2", b"\n" * (1 << 20))
    assert sum(map(len, read_decompressed(small))) == 1 << 20
    plain = tmp_path / "a.txt"
    plain.write_bytes(b"\n" * low_limit)
    assert sum(map(len, read_decompressed(plain))) == low_limit
    bomb = compress(tmp_path / "b.bz2", b"\n" * low_limit)
    blocks = read_decompressed(bomb)
    with pytest.raises(DataError, match=r"over [12] MB"):
        list(blocks)
    assert sum(map(len, read_decompressed(bomb, allow_large=True))) == low_limit


def test_parquet_files_are_checked_after_decoding(tmp_path: Path, low_limit: int) -> None:
    path = tmp_path / "a.parquet"
    texts = pyarrow.array(["x" * 1000] * 20_000).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    with pytest.raises(DataError, match=r"a.parquet expands more than 1,000 times"):
        list(open_sources([path]))
    assert len(list(open_sources([path], allow_large=True))) == 20_000
