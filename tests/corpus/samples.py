"""Small files of every format, compressors, and random mutations."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import struct
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": lambda content: bz2.compress(content, 1),
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}
TEXTS = ["One é.", "Two, “two”.\nStill two."]
_INSERTIONS = [
    *(b"\n", b"\r", b'"', b",", b"\t", b"{", b"[", b"\\u", b"\\ud800", b"\0", b"\xff", b"\xef\xbb\xbf", b"<doc "),
    *(b"</doc>", b"WARC/1.0\r\n", b"Content-Length: 9", b"\x80", b"\xff" * 4, b"\x7f\xff\xff\xff", b"charset=utf-7"),
]


def build_catalog(messages: Mapping[str, str], charset: str = "UTF-8", order: str = "<") -> bytes:
    """Return a `.mo` file as msgfmt writes it, without the hash table."""
    header = {"": f"Project-Id-Version: x\nContent-Type: text/plain; charset={charset}\n"}
    messages_with_header = sorted((header | dict(messages)).items())
    count, at = len(messages_with_header), 28 + 16 * len(messages_with_header)
    tables, strings = ([], []), b""
    for column in range(2):
        for message in messages_with_header:
            raw = message[column].encode(charset)
            tables[column].append(struct.pack(f"{order}2I", len(raw), at + len(strings)))
            strings += raw + b"\0"
    start = struct.pack(f"{order}7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, at)
    return start + b"".join(tables[0] + tables[1]) + strings


def build_parquet(table: pa.Table, **options: object) -> bytes:
    """Return a table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def warc_record(text: str, record_type: str = "conversion") -> bytes:
    body = text.encode()
    header = f"WARC/1.0\r\nWARC-Type: {record_type}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    return header.encode() + body + b"\r\n\r\n"


def wiki_article(text: str) -> str:
    return f'<doc id="1" url="https://example.org/?curid=1" title="T">\n{text}\n\n</doc>\n'


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Flip, replace, delete, insert, repeat or cut off some bytes, one to four times."""
    mutated = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(mutated) + 1)
        size = min(rng.choice((1, 1, 2, 4, 16, 64)), len(mutated) - at)
        operation = rng.randrange(6)
        if operation == 0 and at < len(mutated):
            mutated[at] ^= 1 << rng.randrange(8)
        elif operation == 1 and at < len(mutated):
            mutated[at] = rng.randrange(256)
        elif operation == 2:
            del mutated[at : at + size]
        elif operation == 3:
            mutated[at:at] = rng.choice(_INSERTIONS) if rng.random() < 0.7 else rng.randbytes(size)
        elif operation == 4:
            mutated[at:at] = mutated[at : at + size] * rng.randint(1, 3)
        elif rng.random() < 0.3:
            del mutated[at:]
    return bytes(mutated)


def quote_field(field: str) -> str:
    return '"' + field.replace('"', '""') + '"'


# For each format a file name, and content with the two texts above.
FILES: dict[str, tuple[str, bytes]] = {
    "text": ("a.txt", "\n\n".join(TEXTS).encode()),
    "jsonl": ("a.jsonl", "".join(json.dumps({"text": text, "title": "t"}) + "\n" for text in TEXTS).encode()),
    "csv": ("a.csv", ("title,text\r\n" + "".join(f"t,{quote_field(text)}\r\n" for text in TEXTS)).encode()),
    "tsv": ("a.tsv", ("title\ttext\n" + "".join("t\t" + text.replace("\n", " ") + "\n" for text in TEXTS)).encode()),
    "parquet": ("a.parquet", build_parquet(pa.table({"title": ["t", "t"], "text": TEXTS}), compression="none")),
    "wiki": ("wiki_00", "".join(map(wiki_article, TEXTS)).encode()),
    "wet": ("a.warc.wet", warc_record("software: x", "warcinfo") + b"".join(map(warc_record, TEXTS))),
    "mo": ("a.mo", build_catalog({"one": TEXTS[0], "two": TEXTS[1]})),
}
EXPECTED = {name: TEXTS for name in FILES} | {
    "tsv": [text.replace("\n", " ") for text in TEXTS],
    "mo": ["\n\n".join(TEXTS)],
}
