"""A small file of every format, and what packs it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": lambda data: bz2.compress(data, 1),
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
TEXTS = ["One é.", "Two, “two”.\nStill two."]


def catalogue(messages: Mapping[str, str], charset: str = "UTF-8", order: str = "<") -> bytes:
    """A `.mo` file as msgfmt writes it, without its hash table."""
    head = {"": f"Project-Id-Version: x\nContent-Type: text/plain; charset={charset}\n"}
    items = sorted((head | dict(messages)).items())
    count, at = len(items), 28 + 16 * len(items)
    tables, strings = ([], []), b""
    for column in range(2):
        for item in items:
            raw = item[column].encode(charset)
            tables[column].append(struct.pack(f"{order}2I", len(raw), at + len(strings)))
            strings += raw + b"\0"
    start = struct.pack(f"{order}7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, at)
    return start + b"".join(tables[0] + tables[1]) + strings


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def record(text: str, kind: str = "conversion") -> bytes:
    body = text.encode()
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body + b"\r\n\r\n"


def article(text: str) -> str:
    return f'<doc id="1" url="https://example.org/?curid=1" title="T">\n{text}\n\n</doc>\n'


def quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"'


# A file name of each format, and its content with the two texts above.
FILES: dict[str, tuple[str, bytes]] = {
    "text": ("a.txt", "\n\n".join(TEXTS).encode()),
    "jsonl": ("a.jsonl", "".join(json.dumps({"text": text, "title": "t"}) + "\n" for text in TEXTS).encode()),
    "csv": ("a.csv", ("title,text\r\n" + "".join(f"t,{quoted(text)}\r\n" for text in TEXTS)).encode()),
    "tsv": ("a.tsv", ("title\ttext\n" + "".join("t\t" + text.replace("\n", " ") + "\n" for text in TEXTS)).encode()),
    "parquet": ("a.parquet", parquet(pa.table({"title": ["t", "t"], "text": TEXTS}), compression="none")),
    "wiki": ("wiki_00", "".join(map(article, TEXTS)).encode()),
    "wet": ("a.warc.wet", record("software: x", "warcinfo") + b"".join(map(record, TEXTS))),
    "mo": ("a.mo", catalogue({"one": TEXTS[0], "two": TEXTS[1]})),
}
EXPECTED = {name: TEXTS for name in FILES} | {
    "tsv": [text.replace("\n", " ") for text in TEXTS],
    "mo": ["\n\n".join(TEXTS)],
}
