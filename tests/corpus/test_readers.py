"""Readers: every format gives its documents, plain and packed; what is bad is one line and harms nothing else."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from polyseme.corpus.sources import lines, tables
from polyseme.corpus.sources.lines import Document, ReadResult
from polyseme.corpus.sources.readers import FORMATS, SourceFile, detect_format
from polyseme.errors import PolysemeError
from polyseme.io.compression import CorruptFileError, read_decompressed
from tests.corpus.samples import EXPECTED, FILES, PACKERS, TEXTS, article, parquet, record

SPLIT = {"text": "blank"}


def found(path: Path, data: bytes | str, **options: str) -> list[ReadResult]:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return list(SourceFile(0, path, **({"format": detect_format(path) or "text"} | options)).read())  # type: ignore[arg-type]


def texts(path: Path, data: bytes | str, **options: str) -> list[str]:
    """Documents as their texts, errors as `!` and what they say after the file's name."""
    shown = []
    for each in found(path, data, **options):
        assert isinstance(each, Document | PolysemeError)
        if isinstance(each, PolysemeError):
            assert str(each).startswith(str(path)) and "\n" not in str(each)
            shown.append("!" + str(each).removeprefix(str(path)).strip(" :"))
        else:
            assert each.source == str(path)
            shown.append(each.text)
    return shown


@pytest.mark.parametrize("ending", ["", *PACKERS])
@pytest.mark.parametrize("form", FILES)
def test_every_format_plain_and_packed(tmp_path: Path, form: str, ending: str) -> None:
    assert set(FILES) == set(FORMATS) - {"midi"}  # which has a test file of its own
    name, data = FILES[form]
    path = tmp_path / (name + ending)
    assert detect_format(path) == form
    pack = PACKERS.get(ending, bytes)
    assert texts(path, pack(data), split=SPLIT.get(form, "file")) == EXPECTED[form]
    other = tmp_path / ("other" + ending)
    assert texts(other, pack(data), split=SPLIT.get(form, "file"), format=form) == EXPECTED[form]


@pytest.mark.parametrize("ending", PACKERS)
def test_packed_in_several_members_cut_off_or_damaged(tmp_path: Path, ending: str) -> None:
    pack, path = PACKERS[ending], tmp_path / f"a.jsonl{ending}"
    rows = [json.dumps({"text": f"{i} {i * i}"}) + "\n" for i in range(40_000)]
    one, two = (pack("".join(half).encode()) for half in (rows[:20_000], rows[20_000:]))
    everything = texts(path, one + two)
    assert len(everything) == 40_000 and everything[-1] == "39999 1599920001"
    cut = texts(path, one + two[: len(two) // 2])
    assert 20_000 < len(cut) < 38_000 and cut[:-1] == everything[: len(cut) - 1]
    assert cut[-1] == f"!is cut off or damaged: it cannot be unpacked beyond line {len(cut) - 1}"
    assert texts(path, b"not packed at all")[-1] == "!is cut off or damaged: it cannot be unpacked beyond line 0"
    if ending in (".gz", ".zst"):  # the others take what follows for no part of the file
        damaged = texts(path, one + b"no more of it")
        assert damaged[:-1] == everything[:20_000] and damaged[-1].startswith("!is cut off or damaged")
    path.write_bytes(one[:-20])
    with pytest.raises(CorruptFileError, match=r"a\.jsonl"):
        list(read_decompressed(path))


def test_places_in_files(tmp_path: Path) -> None:
    for form, (name, data) in FILES.items():
        where = [each.location for each in found(tmp_path / name, data, split=SPLIT.get(form, "file"))]  # type: ignore[union-attr]
        assert (
            where
            == {
                "text": ["line 1", "line 3"],
                "jsonl": ["line 1", "line 2"],
                "csv": ["line 2", "line 3"],
                "tsv": ["line 2", "line 3"],
                "parquet": ["row 1", "row 2"],
                "wiki": ["line 2", "line 6"],
                "wet": ["record 2", "record 3"],
                "mo": [""],
            }[form]
        )


# ------------------------------------------------------------------------------------------------ plain text


def test_bad_bytes_lose_their_line_only(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfone\r\ntwo\nthr\xffe\nfour\n\nfive"
    path = tmp_path / "a.txt"
    bad = "!line 3: byte 15 is not UTF-8 text"
    assert texts(path, data) == ["one\ntwo", bad, "four\n\nfive"]
    assert texts(path, data, split="line") == ["one", "two", bad, "four", "", "five"]
    assert texts(path, data, split="blank") == ["one\ntwo", bad, "four", "five"]
    assert [each.location for each in found(path, data) if isinstance(each, Document)] == ["line 1", "line 4"]
    utf16 = "one\ntwo\n".encode("utf-16")
    assert texts(path, utf16) == ["!line 1: byte 0 is not UTF-8 text, it looks like UTF-16"]
    assert texts(path, b"\xef\xbb\xbf") == ["!is empty"]


@pytest.mark.parametrize("split", ["file", "blank", "line"])
def test_a_long_document_is_cut_where_it_hurts_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    monkeypatch.setattr(lines, "MAX_DOCUMENT_CHARS", 10)
    monkeypatch.setattr(lines, "_LINE_CHUNK_BYTES", 10)
    path = tmp_path / "a.txt"
    assert texts(path, "abc def\nghij kl\nmno", split=split) == ["abc def", "ghij kl", "mno"]
    assert texts(path, "a bcd efghijk lmnopqrstuvwxyz", split=split) == ["a bcd ", "efghijk ", "lmnopqrstu", "vwxyz"]
    assert texts(path, "é" * 25, split=split) == ["é" * 10, "é" * 10, "é" * 5]
    assert (
        texts(path, "😀" * 11 + "\r\n" + "b\r\n", split=split)
        == {
            "file": ["😀" * 10, "😀\nb"],
            "blank": ["😀" * 10, "😀\nb"],
            "line": ["😀" * 10, "😀", "b"],
        }[split]
    )
    rows = found(tmp_path / "a.jsonl", json.dumps({"text": "abc def\nghij kl\nmno"}))
    assert [(row.text, row.location) for row in rows] == [  # type: ignore[union-attr]
        ("abc def\n", "line 1 part 1"),
        ("ghij kl\n", "line 1 part 2"),
        ("mno", "line 1 part 3"),
    ]


def test_where_a_text_is_cut_does_not_depend_on_the_blocks_it_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_DOCUMENT_CHARS", 40)
    monkeypatch.setattr(lines, "_LINE_CHUNK_BYTES", 40)
    data = ("wörter " * 30 + "\r\n" + "x" * 100 + "\r\n" + "ab\r\n\r\n" * 20 + "ü" * 90).encode() + b"\xff\n" + b"end"
    path = tmp_path / "a.txt"
    for split in ("file", "blank", "line"):
        seen = set()
        for size in (1, 2, 3, 7, 39, 40):
            monkeypatch.setattr(
                lines, "read_decompressed", lambda path, n=size: (data[i : i + n] for i in range(0, len(data), n))
            )
            seen.add(tuple(map(repr, found(path, data, split=split))))
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
    for each in SourceFile(0, path).read():
        assert isinstance(each, Document) and len(each.text) <= 4_000_000
        size += len(each.text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 99_000_000 and peak < 30_000_000


def test_a_row_too_long_is_bad_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_ROW_BYTES", 1 << 20)
    monkeypatch.setattr(tables, "MAX_ROW_BYTES", 1 << 20)
    row = json.dumps({"text": "x"}) + "\n"
    long = json.dumps({"text": "y" * 20_000_000}) + "\n"
    path = tmp_path / "a.jsonl"
    path.write_text(row + long + row)
    gc.collect()
    tracemalloc.start()
    got = list(SourceFile(0, path, format="jsonl").read())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
    assert [str(each) for each in got if isinstance(each, PolysemeError)] == [f"{path} line 2: longer than 1 MB"]
    assert [each.location for each in got if isinstance(each, Document)] == ["line 1", "line 3"]
    assert texts(path, long) == ["!line 1: longer than 1 MB"]
    quote = 'text\n"' + ("z" * 50 + "\n") * 25_000 + '"\nlast\n'
    got = texts(tmp_path / "a.csv", quote)
    assert got[0] == "!line 2: a quote that is not closed" and got[-1] == "last"


# -------------------------------------------------------------------------------------- JSON lines and tables


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert texts(path, '{"a": "one", "b": "two"}\n{"b": "x"}\n', key="b+a") == [
        "two\none",
        "!line 2: no key 'a' among b; valid: b",
    ]
    assert texts(path, '{"a+b": "one", "a": "two"}', key="a+b") == ["one"]
    escaped = r'{"text": "a\ud83d\ude00b\ud83dc\udc00\u0000d"}'
    assert texts(path, escaped) == ["a😀b\ufffdc\ufffd\0d"]
    assert texts(path, r'{"\ud800": ""}') == ["!line 1: no key 'text' among \ufffd; valid: \ufffd"]
    assert texts(path, '{"text": [1]}\n{"text": null}') == [
        "!line 1: 'text' is list, not a string",
        "!line 2: 'text' is null, not a string",
    ]
    assert texts(path, "[" * 100_000)[0].startswith("!is one JSON array")
    assert texts(path, '{"text": ' + "[" * 100_000)[0].startswith("!line 1: malformed JSON")
    assert texts(path, '{"text": ' + "9" * 5000 + "}")[0].startswith("!line 1: malformed JSON")


@pytest.mark.parametrize("array", ['[{"text": "a"}, {"text": "b"}]', '\n [\n  {"text": "a"},\n  {"text": "b"}\n]\n'])
def test_a_json_array_is_one_clear_error(tmp_path: Path, array: str) -> None:
    for ending in ("", ".gz"):
        data = PACKERS.get(ending, bytes)(array.encode())
        assert texts(tmp_path / f"a.json{ending}", data) == ["!is one JSON array: it must be one object a line"]


def test_csv_quotes_as_the_standard_says(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = 'id,text\n1,"a ""b"", c\n\nd"\n2,plain\n\n3,"' + "x" * 300_000 + '"\n4,5" disk\n'
    assert texts(path, rows) == ['a "b", c\n\nd', "plain", "x" * 300_000, '5" disk']
    assert texts(path, "text\n\na\n") == ["", "a"]
    assert texts(path, '"te""xt","b,c"\r\n1,2\r\n', key='b,c+te"xt') == ["2\n1"]
    assert texts(path, "id,text\n1,a\n2,b,c\n3\n4,d\n") == [
        "a",
        "!line 3: 3 fields, but the first line has 2",
        "!line 4: 1 fields, but the first line has 2",
        "d",
    ]
    assert texts(path, "id,txt\n1,a\n2,b\n") == ["!line 1: no column 'text' among id, txt; did you mean 'txt'?"]
    assert texts(path, "") == ["!is empty"]


def test_csv_goes_on_after_wrong_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = 'id,text\n1,a\n2,"open\n3,b\n4,c\n5,"right"\n6,d\n'
    assert texts(path, rows) == ["a", "!line 3: 'right\"' after a closing quote", "b", "c", "right", "d"]
    assert texts(path, rows.replace('"right"', "right")) == [
        "a",
        "!line 3: a quote that is not closed",
        *("b", "c", "right", "d"),
    ]
    bad = texts(path, b'id,text\n1,"open\n2,\xff"\n3,c\n')
    assert bad == ["!line 2: a quote that is not closed", "!line 3: byte 18 is not UTF-8 text", "c"]


def test_csv_reads_no_line_often_whatever_the_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these lines opens a quote that runs through all the others to the end of the file."""
    reads = 0
    plain = tables._CsvRecords._next

    def counted(self: tables._CsvRecords) -> object:
        nonlocal reads
        reads += 1
        return plain(self)

    monkeypatch.setattr(tables._CsvRecords, "_next", counted)
    got = texts(tmp_path / "a.csv", "a,text\n" + 'x","y\n' * 5_000)
    assert reads < 50_000
    assert "lines after it are lost" in got[-1] and all(each.startswith("!") for each in got)


def test_tsv_has_no_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    assert texts(path, 'id\ttext\n1\t"a\n2\tb "c" d\n3\n4\te\n') == [
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
    data = parquet(table, row_group_size=1000)
    got = texts(path, data)
    assert got[:5] == ["a", "!row 2: there is no text, but null", "b\nc", "", "0"] and got[4:] == list(
        map(str, range(3000))
    )
    assert texts(path, data, key="title+text")[2] == "t\nb\nc"
    assert texts(path, data, key="txt") == ["!no column 'txt' among title, text, n; did you mean 'text'?"]
    assert texts(path, data, key="n") == ["!column 'n' holds int64, not text"]
    assert texts(path, data[:-100]) == ["!is cut off or damaged: it cannot be read beyond row 0"]
    assert texts(path, b"") == ["!is empty"]
    middle = data.find(b"PAR1", 4) * 2 // 3
    damaged = texts(path, data[:middle] + bytes(200) + data[middle + 200 :])
    assert damaged[-1].startswith("!is cut off or damaged") and damaged[:-1] == got[: len(damaged) - 1]


def test_parquet_that_is_not_utf8(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"b\xffd", b"fine"], pa.binary())
    array = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    got = texts(tmp_path / "a.parquet", parquet(pa.table({"text": array})))
    assert got == ["good", "!row 2: byte 1 of its text is not UTF-8", "fine"]


# -------------------------------------------------------------------------------------------------- wiki and web


def test_wikiextractor(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    one, two = article("Title\n\nText of it.\nMore."), article("Second\n\nText.")
    assert texts(path, one + two) == ["Title\n\nText of it.\nMore.", "Second\n\nText."]
    as_json = "".join(json.dumps({"id": "1", "title": "T", "text": text}) + "\n" for text in TEXTS)
    assert texts(path, "\n" + as_json) == TEXTS
    unclosed = one.replace("</doc>\n", "")
    assert texts(path, unclosed + two + "stray\n" + one + unclosed) == [
        "!line 1: a document that is not closed before line 7",
        "Second\n\nText.",
        "!line 13: text outside of <doc …> and </doc>",
        "Title\n\nText of it.\nMore.",
        "!line 21: a document that is not closed",
    ]
    bad = one.encode().replace(b"More", b"M\xffre")
    assert texts(path, bad + two.encode()) == ["!line 5: byte 78 is not UTF-8 text", "Second\n\nText."]


def test_web_text(tmp_path: Path) -> None:
    path = tmp_path / "a.wet"
    info, one, two = record("x: y", "warcinfo"), record("One\r\nline."), record("Two é.")
    assert texts(path, info + one + two) == ["One\nline.", "Two é."]
    assert texts(path, info) == []
    wrong = one.replace(b"Length: 10", b"Length: ten")
    assert texts(path, info + wrong + two) == ["!record 2: its Content-Length is 'ten', not a number", "Two é."]
    short = one.replace(b"Length: 10", b"Length: 5")
    assert texts(path, info + short + two) == [
        "!record 2: its Content-Length is wrong, it goes on behind that",
        "Two é.",
    ]
    assert texts(path, one + two[:-7]) == ["One\nline.", "!record 2: cut off, 3 of its 7 bytes are missing"]
    assert texts(path, b"junk\n" + one) == ["!record 1: it begins without WARC/1.0", "One\nline."]
    bad = two.replace("é".encode(), b"\xff\xff")
    assert texts(path, bad + one) == ["!record 1: byte 4 of it is not UTF-8 text", "One\nline."]
    members = b"".join(map(PACKERS[".gz"], (info, one, two)))
    assert texts(tmp_path / "a.warc.wet.gz", members[:-30]) == [
        "One\nline.",
        "!is cut off or damaged: it cannot be unpacked beyond record 2",
    ]
