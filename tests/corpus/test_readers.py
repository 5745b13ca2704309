"""Readers of every format, plain and compressed. Bad input gives a one-line error and affects nothing else."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from polyseme.corpus.sources import documents
from polyseme.corpus.sources.documents import Document, ReadResult
from polyseme.corpus.sources.readers import FORMATS, SourceFile, detect_format
from polyseme.errors import PolysemeError
from polyseme.io import lines, tables
from polyseme.io.compression import CorruptFileError, read_decompressed
from tests.corpus.samples import COMPRESSORS, EXPECTED, FILES, TEXTS, build_parquet, warc_record, wiki_article

SPLIT = {"text": "blank"}


def read_items(path: Path, content: bytes | str, **options: str) -> list[ReadResult]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(SourceFile(0, path, **({"format": detect_format(path) or "text"} | options)).read())  # type: ignore[arg-type]


def read_texts(path: Path, content: bytes | str, **options: str) -> list[str]:
    """Read a file; errors become `!` and their message after the file name."""
    texts = []
    for document in read_items(path, content, **options):
        assert isinstance(document, Document | PolysemeError)
        if isinstance(document, PolysemeError):
            assert str(document).startswith(str(path)) and "\n" not in str(document)
            texts.append("!" + str(document).removeprefix(str(path)).strip(" :"))
        else:
            assert document.source == str(path)
            texts.append(document.text)
    return texts


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS])
@pytest.mark.parametrize("format_name", FILES)
def test_every_format_plain_and_compressed(tmp_path: Path, format_name: str, suffix: str) -> None:
    assert set(FILES) == set(FORMATS) - {"midi"}  # tested in test_midi.py
    name, content = FILES[format_name]
    path = tmp_path / (name + suffix)
    assert detect_format(path) == format_name
    compress = COMPRESSORS.get(suffix, bytes)
    assert read_texts(path, compress(content), split=SPLIT.get(format_name, "file")) == EXPECTED[format_name]
    other = tmp_path / ("other" + suffix)
    assert (
        read_texts(other, compress(content), split=SPLIT.get(format_name, "file"), format=format_name)
        == EXPECTED[format_name]
    )


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_files_with_several_members_truncated_or_damaged(tmp_path: Path, suffix: str) -> None:
    compress, path = COMPRESSORS[suffix], tmp_path / f"a.jsonl{suffix}"
    rows = [json.dumps({"text": f"{i} {i * i}"}) + "\n" for i in range(20_000)]
    one, two = (compress("".join(half).encode()) for half in (rows[:10_000], rows[10_000:]))
    all_texts = read_texts(path, one + two)
    assert len(all_texts) == 20_000 and all_texts[-1] == "19999 399960001"
    cut = read_texts(path, one + two[: len(two) // 2])
    assert 10_000 < len(cut) < 19_000 and cut[:-1] == all_texts[: len(cut) - 1]
    assert cut[-1] == f"!is truncated or damaged: cannot decompress it beyond line {len(cut) - 1}"
    assert (
        read_texts(path, b"not compressed at all")[-1] == "!is truncated or damaged: cannot decompress it beyond line 0"
    )
    if suffix in (".gz", ".zst"):  # the other formats ignore trailing bytes
        damaged = read_texts(path, one + b"no more of it")
        assert damaged[:-1] == all_texts[:10_000] and damaged[-1].startswith("!is truncated or damaged")
    path.write_bytes(one[:-20])
    with pytest.raises(CorruptFileError, match=r"a\.jsonl"):
        list(read_decompressed(path))


def test_locations(tmp_path: Path) -> None:
    for format_name, (name, content) in FILES.items():
        locations = [
            document.location for document in read_items(tmp_path / name, content, split=SPLIT.get(format_name, "file"))
        ]  # type: ignore[union-attr]
        assert (
            locations
            == {
                "text": ["line 1", "line 3"],
                "jsonl": ["line 1", "line 2"],
                "csv": ["line 2", "line 3"],
                "tsv": ["line 2", "line 3"],
                "parquet": ["row 1", "row 2"],
                "wiki": ["line 2", "line 6"],
                "wet": ["record 2", "record 3"],
                "mo": [""],
            }[format_name]
        )


# ------------------------------------------------------------------------------------------------ plain text


def test_invalid_bytes_cost_one_line(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfone\r\ntwo\nthr\xffe\nfour\n\nfive"
    path = tmp_path / "a.txt"
    bad = "!line 3: byte 15 is not UTF-8 text"
    assert read_texts(path, content) == ["one\ntwo", bad, "four\n\nfive"]
    assert read_texts(path, content, split="line") == ["one", "two", bad, "four", "", "five"]
    assert read_texts(path, content, split="blank") == ["one\ntwo", bad, "four", "five"]
    assert [document.location for document in read_items(path, content) if isinstance(document, Document)] == [
        "line 1",
        "line 4",
    ]
    utf16 = "one\ntwo\n".encode("utf-16")
    advice = "it looks like UTF-16LE: convert it with iconv -f UTF-16LE -t UTF-8"
    assert read_texts(path, utf16) == [f"!line 1: byte 0 is not UTF-8 text, {advice}"]
    assert read_texts(path, b"\xef\xbb\xbf") == ["!is empty"]


@pytest.mark.parametrize("split", ["file", "blank", "line"])
def test_long_documents_are_split_at_lines_then_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_CHARS", 10)
    monkeypatch.setattr(lines, "_LINE_CHUNK_BYTES", 10)
    path = tmp_path / "a.txt"
    assert read_texts(path, "abc def\nghij kl\nmno", split=split) == ["abc def", "ghij kl", "mno"]
    assert read_texts(path, "a bcd efghijk lmnopqrstuvwxyz", split=split) == [
        "a bcd ",
        "efghijk ",
        "lmnopqrstu",
        "vwxyz",
    ]
    assert read_texts(path, "é" * 25, split=split) == ["é" * 10, "é" * 10, "é" * 5]
    assert (
        read_texts(path, "😀" * 11 + "\r\n" + "b\r\n", split=split)
        == {
            "file": ["😀" * 10, "😀\nb"],
            "blank": ["😀" * 10, "😀\nb"],
            "line": ["😀" * 10, "😀", "b"],
        }[split]
    )
    rows = read_items(tmp_path / "a.jsonl", json.dumps({"text": "abc def\nghij kl\nmno"}))
    assert [(row.text, row.location) for row in rows] == [  # type: ignore[union-attr]
        ("abc def\n", "line 1 part 1"),
        ("ghij kl\n", "line 1 part 2"),
        ("mno", "line 1 part 3"),
    ]


def test_splits_do_not_depend_on_read_block_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_CHARS", 40)
    monkeypatch.setattr(lines, "_LINE_CHUNK_BYTES", 40)
    content = (
        ("wörter " * 30 + "\r\n" + "x" * 100 + "\r\n" + "ab\r\n\r\n" * 20 + "ü" * 90).encode() + b"\xff\n" + b"end"
    )
    path = tmp_path / "a.txt"
    for split in ("file", "blank", "line"):
        seen = set()
        for size in (1, 2, 3, 7, 39, 40):
            monkeypatch.setattr(
                lines,
                "read_decompressed",
                lambda path, _, n=size: (content[i : i + n] for i in range(0, len(content), n)),
            )
            seen.add(tuple(map(repr, read_items(path, content, split=split))))
        assert len(seen) == 1 and "DataError" in str(seen)


@pytest.mark.parametrize("line", [b"a few words in a line of text\n", b"many words and never a line break "])
def test_memory_is_bounded(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "long.txt"
    with open(path, "wb") as file:
        for _ in range(100):
            file.write(line * (1_000_000 // len(line)))
    gc.collect()
    tracemalloc.start()
    size = 0
    for document in SourceFile(0, path).read():
        assert isinstance(document, Document) and len(document.text) <= 4_000_000
        size += len(document.text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 99_000_000 and peak < 30_000_000


def test_too_long_row_is_an_error_and_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_ROW_BYTES", 1 << 20)
    monkeypatch.setattr(tables, "MAX_ROW_BYTES", 1 << 20)
    row = json.dumps({"text": "x"}) + "\n"
    long = json.dumps({"text": "y" * 20_000_000}) + "\n"
    path = tmp_path / "a.jsonl"
    path.write_text(row + long + row)
    gc.collect()
    tracemalloc.start()
    texts = list(SourceFile(0, path, format="jsonl").read())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
    assert [str(document) for document in texts if isinstance(document, PolysemeError)] == [
        f"{path} line 2: longer than 1 MB"
    ]
    assert [document.location for document in texts if isinstance(document, Document)] == ["line 1", "line 3"]
    assert read_texts(path, long) == ["!line 1: longer than 1 MB"]
    quote = 'text\n"' + ("z" * 50 + "\n") * 25_000 + '"\nlast\n'
    texts = read_texts(tmp_path / "a.csv", quote)
    assert texts[0] == "!line 2: unclosed quote" and texts[-1] == "last"


# -------------------------------------------------------------------------------------- JSON lines and tables


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert read_texts(path, '{"a": "one", "b": "two"}\n{"b": "x"}\n', text="b+a") == [
        "two\none",
        "!line 2: no key 'a' among b; valid: b (choose with ::text=KEY)",
    ]
    assert read_texts(path, '{"a+b": "one", "a": "two"}', text="a+b") == ["one"]
    escaped = r'{"text": "a\ud83d\ude00b\ud83dc\udc00\u0000d"}'
    assert read_texts(path, escaped) == ["a😀b\ufffdc\ufffd\0d"]
    assert read_texts(path, r'{"\ud800": ""}') == [
        "!line 1: no key 'text' among \ufffd; valid: \ufffd (choose with ::text=KEY)"
    ]
    assert read_texts(path, '{"text": [1]}\n{"text": null}') == [
        "!line 1: 'text' is list, not a string",
        "!line 2: 'text' is null, not a string",
    ]
    assert read_texts(path, "[" * 100_000)[0].startswith("!is one JSON array")
    assert read_texts(path, '{"text": ' + "[" * 100_000)[0].startswith("!line 1: malformed JSON")
    assert read_texts(path, '{"text": ' + "9" * 5000 + "}")[0].startswith("!line 1: malformed JSON")


@pytest.mark.parametrize("array", ['[{"text": "a"}, {"text": "b"}]', '\n [\n  {"text": "a"},\n  {"text": "b"}\n]\n'])
def test_json_array_gives_one_clear_error(tmp_path: Path, array: str) -> None:
    for suffix in ("", ".gz"):
        content = COMPRESSORS.get(suffix, bytes)(array.encode())
        assert read_texts(tmp_path / f"a.json{suffix}", content) == ["!is one JSON array: expected one object per line"]


def test_csv_quotes_follow_rfc_4180(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = 'id,text\n1,"a ""b"", c\n\nd"\n2,plain\n\n3,"' + "x" * 300_000 + '"\n4,5" disk\n'
    assert read_texts(path, rows) == ['a "b", c\n\nd', "plain", "x" * 300_000, '5" disk']
    assert read_texts(path, "text\n\na\n") == ["", "a"]
    assert read_texts(path, '"te""xt","b,c"\r\n1,2\r\n', text='b,c+te"xt') == ["2\n1"]
    assert read_texts(path, "id,text\n1,a\n2,b,c\n3\n4,d\n") == [
        "a",
        "!line 3: 3 fields, but the first line has 2",
        "!line 4: 1 fields, but the first line has 2",
        "d",
    ]
    assert read_texts(path, "id,txt\n1,a\n2,b\n") == [
        "!line 1: no column 'text' among id, txt; did you mean 'txt'? (choose with ::text=COLUMN)"
    ]
    assert read_texts(path, "") == ["!is empty"]


def test_csv_continues_after_invalid_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = 'id,text\n1,a\n2,"open\n3,b\n4,c\n5,"right"\n6,d\n'
    assert read_texts(path, rows) == [
        "a",
        "!line 3: unexpected 'right\"' after a closing quote",
        "b",
        "c",
        "right",
        "d",
    ]
    assert read_texts(path, rows.replace('"right"', "right")) == [
        "a",
        "!line 3: unclosed quote",
        *("b", "c", "right", "d"),
    ]
    bad = read_texts(path, b'id,text\n1,"open\n2,\xff"\n3,c\n')
    assert bad == ["!line 2: unclosed quote", "!line 3: byte 18 is not UTF-8 text", "c"]


def test_csv_time_is_linear_whatever_the_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these lines opens a quote that extends to the end of the file."""
    reads = 0
    real_next = tables._CsvParser._next

    def count_next(self: tables._CsvParser) -> object:
        nonlocal reads
        reads += 1
        return real_next(self)

    monkeypatch.setattr(tables._CsvParser, "_next", count_next)
    texts = read_texts(tmp_path / "a.csv", "a,text\n" + 'x","y\n' * 5_000)
    assert reads < 50_000
    assert "lines after it" in texts[-1] and all(document.startswith("!") for document in texts)


def test_tsv_quotes_have_no_meaning(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    assert read_texts(path, 'id\ttext\n1\t"a\n2\tb "c" d\n3\n4\te\n') == [
        '"a',
        'b "c" d',
        "!line 4: 1 fields, but the first line has 2",
        "e",
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "a.parquet"
    values = ["a", None, "b\r\nc", "", *map(str, range(3000))]
    table = pa.table({"title": ["t"] * len(values), "text": pa.array(values).cast(kind), "n": range(len(values))})
    content = build_parquet(table, row_group_size=1000)
    texts = read_texts(path, content)
    assert texts[:5] == ["a", "!row 2: the text is null", "b\nc", "", "0"] and texts[4:] == list(map(str, range(3000)))
    assert read_texts(path, content, text="title+text")[2] == "t\nb\nc"
    assert read_texts(path, content, text="txt") == [
        "!no column 'txt' among title, text, n; did you mean 'text'? (choose with ::text=COLUMN)"
    ]
    assert read_texts(path, content, text="n") == ["!column 'n' holds int64, not text"]
    assert read_texts(path, content[:-100]) == ["!is truncated or damaged: cannot read it beyond row 0"]
    assert read_texts(path, b"") == ["!is empty"]
    middle = content.find(b"PAR1", 4) * 2 // 3
    damaged = read_texts(path, content[:middle] + bytes(200) + content[middle + 200 :])
    assert damaged[-1].startswith("!is truncated or damaged") and damaged[:-1] == texts[: len(damaged) - 1]


def test_parquet_with_invalid_utf8(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"b\xffd", b"fine"], pa.binary())
    array = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    texts = read_texts(tmp_path / "a.parquet", build_parquet(pa.table({"text": array})))
    assert texts == ["good", "!row 2: byte 1 of the text is not UTF-8", "fine"]


# -------------------------------------------------------------------------------------------------- wiki and web


def test_wikiextractor_output(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    one, two = wiki_article("Title\n\nText of it.\nMore."), wiki_article("Second\n\nText.")
    assert read_texts(path, one + two) == ["Title\n\nText of it.\nMore.", "Second\n\nText."]
    as_json = "".join(json.dumps({"id": "1", "title": "T", "text": text}) + "\n" for text in TEXTS)
    assert read_texts(path, "\n" + as_json) == TEXTS
    unclosed = one.replace("</doc>\n", "")
    assert read_texts(path, unclosed + two + "stray\n" + one + unclosed) == [
        "!line 1: <doc> is not closed before line 7",
        "Second\n\nText.",
        "!line 13: text outside <doc …> and </doc>",
        "Title\n\nText of it.\nMore.",
        "!line 21: <doc> is not closed",
    ]
    bad = one.encode().replace(b"More", b"M\xffre")
    assert read_texts(path, bad + two.encode()) == ["!line 5: byte 78 is not UTF-8 text", "Second\n\nText."]


def test_wet_records(tmp_path: Path) -> None:
    path = tmp_path / "a.wet"
    info, one, two = warc_record("x: y", "warcinfo"), warc_record("One\r\nline."), warc_record("Two é.")
    assert read_texts(path, info + one + two) == ["One\nline.", "Two é."]
    assert read_texts(path, info) == []
    wrong = one.replace(b"Length: 10", b"Length: ten")
    assert read_texts(path, info + wrong + two) == ["!record 2: Content-Length is 'ten', not a number", "Two é."]
    short = one.replace(b"Length: 10", b"Length: 5")
    assert read_texts(path, info + short + two) == [
        "!record 2: longer than its Content-Length",
        "Two é.",
    ]
    assert read_texts(path, one + two[:-7]) == ["One\nline.", "!record 2: truncated, 3 of 7 bytes are missing"]
    assert read_texts(path, b"junk\n" + one) == ["!record 1: does not begin with WARC/", "One\nline."]
    bad = two.replace("é".encode(), b"\xff\xff")
    assert read_texts(path, bad + one) == ["!record 1: byte 4 is not UTF-8 text", "One\nline."]
    members = b"".join(map(COMPRESSORS[".gz"], (info, one, two)))
    assert read_texts(tmp_path / "a.warc.wet.gz", members[:-30]) == [
        "One\nline.",
        "!is truncated or damaged: cannot decompress it beyond record 2",
    ]
