"""Sources: what a user gives becomes files in a fixed order, and every place in them can be come back to."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import lzma
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyseme.corpus.sources import python_docs
from polyseme.corpus.sources.sources import (
    START,
    CorpusSource,
    Document,
    ReadPosition,
    SourceReader,
    open_sources,
    parse_source,
)
from polyseme.errors import PolysemeError
from tests.corpus.samples import EXPECTED, FILES, PACKERS, article

ROWS = "".join(json.dumps({"text": text, "title": "t"}) + "\n" for text in ("One é.", "Two.\nStill two."))


def texts(*paths: Path | str, **options: object) -> list[str]:
    return [document.text for document in open_sources([str(p) for p in paths], **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("pack", [None, gzip.compress, lzma.compress])
def test_text_and_json_lines_plain_and_packed(tmp_path: Path, pack: Callable[[bytes], bytes] | None) -> None:
    ending = "" if pack is None else {gzip.compress: ".gz", lzma.compress: ".xz"}[pack]
    write = {"a.txt": "\ufeffA b.\r\nC.\n\n\nD é.\n", "b.jsonl": ROWS + "\n"}
    for name, text in write.items():
        (tmp_path / (name + ending)).write_bytes((pack or bytes)(text.encode()))
    text, rows = tmp_path / ("a.txt" + ending), tmp_path / ("b.jsonl" + ending)
    assert texts(text) == ["A b.\nC.\n\n\nD é."]
    assert texts(text, split="blank") == ["A b.\nC.", "D é."]
    assert texts(text, split="line") == ["A b.", "C.", "D é."]
    assert texts(rows) == ["One é.", "Two.\nStill two."]
    assert texts(rows, key="title") == ["t", "t"]
    assert texts(tmp_path) == texts(text, rows)
    sources = open_sources([rows])
    assert list(sources)[1] == Document("Two.\nStill two.", str(rows), "line 2")
    assert sources.estimated_characters == rows.stat().st_size * (1 if pack is None else 3)  # an estimate


def test_a_folder_is_read_in_order_without_what_is_not_text(tmp_path: Path) -> None:
    for name in ("b/2.md", "b/10.rst", "a.txt", "z.ndjson", ".hidden.txt", "x.bin", ".git/c.txt", "wiki_x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"text": name}) if "json" in name else name)
    (tmp_path / "empty.txt").write_text("")
    assert texts(tmp_path) == ["a.txt", "b/10.rst", "b/2.md", "z.ndjson"]


def test_blank_documents_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n \ntwo\n")
    sources = open_sources([str(tmp_path / "a.txt")], split="line")
    for _ in range(2):
        assert len(list(sources)) == 2 and sources.num_blank == 2


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = open_sources([path]).file_facts
    assert before[0]["bytes"] == 3 and open_sources([path]).file_facts == before
    path.write_text("two")
    assert open_sources([path]).file_facts != before
    assert "python 3" in open_sources(["python-docs"]).file_facts[0]["version"]


def test_python_docs_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_docs, "read_documents", lambda: iter([("json", "Text.")]))
    sources = open_sources(["python-docs"])
    assert list(sources) == [Document("Text.", "python-docs", "json")] and sources.estimated_characters is None


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("e.txt", b"", "e.txt is empty"),
        ("e.txt.gz", gzip.compress(b"", mtime=0), "e.txt.gz is empty"),
        ("e.jsonl", b"", "e.jsonl is empty"),
        ("l.txt", b"good\nbad \xe9\n", "l.txt line 2: byte 9 is not UTF-8 text"),
        ("u.txt", "text".encode("utf-16"), "u.txt line 1: byte 0 is not UTF-8 text, it looks like UTF-16"),
        ("t.txt.gz", gzip.compress(bytes(range(100)) * 99)[:-20], "t.txt.gz is cut off or damaged"),
        ("t.jsonl.xz", lzma.compress(ROWS.encode())[:-20], "t.jsonl.xz is cut off or damaged"),
        (
            "n.txt.gz",
            b"not packed at all",
            "n.txt.gz is cut off or damaged: it cannot be unpacked beyond line 0",
        ),
        ("m.jsonl", ROWS.encode() + b'{"text": \n', "m.jsonl line 3: malformed JSON"),
        ("k.jsonl", b'{"texts": "a", "id": 1}', "no key 'text' among texts, id; did you mean 'texts'?"),
        ("s.jsonl", b'{"text": 3}', "s.jsonl line 1: 'text' is 3, not a string"),
        ("o.jsonl", b'["text"]', "o.jsonl line 1: list where an object with 'text' must be"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PolysemeError) as caught:
        texts(path)
    assert line in str(caught.value) and "\n" not in str(caught.value)
    sources = open_sources([str(path)], skip_bad=True)
    list(sources)
    assert sources.num_bad == 1 and sources.bad_row_messages == [str(caught.value)]


def test_bad_rows_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(ROWS + "{\n" + ROWS + '{"txt": ""}\n')
    sources = open_sources([path], skip_bad=True)
    assert len(list(sources)) == 4 and sources.num_bad == 2
    assert [row.split(":")[0].split()[-1] for row in sources.bad_row_messages] == ["3", "6"]


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a")
    with pytest.raises(PolysemeError, match=r"did you mean 'corpus.txt'"):
        open_sources([str(tmp_path / "corpsu.txt")])
    (tmp_path / "none").mkdir()
    with pytest.raises(PolysemeError, match="has no text in files that end in"):
        open_sources([str(tmp_path / "none")])
    with pytest.raises(PolysemeError, match="no source"):
        open_sources([])
    with pytest.raises(PolysemeError, match="split is 'lines': did you mean 'line'"):
        open_sources([str(tmp_path)], split="lines")


# ----------------------------------------------------------------------------------------------------- origins


def test_an_origin_in_words() -> None:
    assert parse_source("a.txt") == CorpusSource("a.txt", "", 1.0, "text", "file", "")
    given = "wiki.jsonl.zst::lang=de,weight=2,key=title+body,format=jsonl"
    assert parse_source(given) == CorpusSource("wiki.jsonl.zst", "de", 2.0, "title+body", "file", "jsonl")
    defaults = CorpusSource("", lang="fr", key="k", split="line", format="csv")
    assert parse_source("-::weight=0.5,split=blank", defaults) == CorpusSource("-", "fr", 0.5, "k", "blank", "csv")
    assert parse_source("a::b.txt::lang=de").path == "a::b.txt"


def test_a_path_with_the_mark_in_it_wins(tmp_path: Path) -> None:
    (tmp_path / "a::lang=de").write_text("text")
    origin = parse_source(str(tmp_path / "a::lang=de"))
    assert origin.path.endswith("a::lang=de") and origin.lang == ""
    assert parse_source(str(tmp_path / "a::lang=de::lang=fr")).lang == "fr"
    assert open_sources([tmp_path / "a::lang=de"]).sources == [origin]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("langs=de", "a source has no option 'langs'; did you mean 'lang'?"),
        ("path=b", "a source has no option 'path'"),
        ("", "a source has no option ''"),
        ("lang", "lang is given without a value"),
        ("lang=", "lang is given without a value"),
        ("lang=de,lang=fr", "lang is given twice"),
        ("weight=much", "weight is 'much', not a number"),
        ("weight=0", "weight is 0.0; it must be a number above 0"),
        ("weight=-1", "weight is -1.0; it must be a number above 0"),
        ("weight=nan", "weight is nan; it must be a number above 0"),
        ("weight=inf", "weight is inf; it must be a number above 0"),
        ("format=json", "format is 'json': did you mean 'jsonl'?"),
        ("format=python-docs", "format is 'python-docs': valid: csv, jsonl, midi, mo, parquet, text, tsv, wet, wiki"),
        ("split=lines", "split is 'lines': did you mean 'line'?"),
    ],
)
def test_wrong_options(options: str, line: str) -> None:
    with pytest.raises(PolysemeError) as caught:
        open_sources([f"a.txt::{options}"])
    assert line in str(caught.value)


def test_origins_are_checked_too(tmp_path: Path) -> None:
    for wrong in ({"weight": -1.0}, {"split": "x"}, {"format": "x"}):
        with pytest.raises(PolysemeError):
            open_sources([dataclasses.replace(CorpusSource(str(tmp_path)), **wrong)])  # type: ignore[arg-type]
    with pytest.raises(PolysemeError, match="format is 'x'"):
        open_sources([str(tmp_path)], format="x")


def test_each_origin_has_its_own_ways(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / "b.jsonl").write_text('{"x": "three"}\n')
    (tmp_path / "c.jsonl").write_text('{"y": "four"}\n')
    given = [
        f"{tmp_path / 'a.txt'}::split=line,lang=de",
        f"{tmp_path / 'b.jsonl'}::key=x,weight=3",
        tmp_path / "c.jsonl",
    ]
    sources = open_sources(given, key="y", lang="fr")
    assert [document.text for document in sources] == ["one", "two", "three", "four"]
    assert [(each.source_index, each.lang) for each in sources.files] == [(0, "de"), (1, "fr"), (2, "fr")]
    assert [origin.weight for origin in sources.sources] == [1.0, 3.0, 1.0]
    assert [each["source_index"] for each in sources.file_facts] == [0, 1, 2]
    assert open_sources([f"{tmp_path / 'b.jsonl'}::format=text"]).estimated_characters == 15
    assert texts(f"{tmp_path / 'b.jsonl'}::format=text") == ['{"x": "three"}']


# ----------------------------------------------------------------------------------- folders, standard input


def test_a_folder_of_many_formats(tmp_path: Path) -> None:
    expected = []
    for number, (form, (name, data)) in enumerate(sorted(FILES.items())):
        ending = ["", *PACKERS][number % 5]
        path = tmp_path / f"{number}" / (name + ending)
        path.parent.mkdir()
        path.write_bytes(PACKERS.get(ending, bytes)(data))
        expected += ["\n\n".join(EXPECTED[form])] if form == "text" else EXPECTED[form]
    assert texts(tmp_path) == expected
    assert len(open_sources([tmp_path]).files) == len(FILES)


def test_the_folders_of_wikiextractor(tmp_path: Path) -> None:
    for name in ("AB/wiki_00", "AA/wiki_01", "AA/wiki_00.bz2", "AA/wiki_00.log"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(PACKERS.get(path.suffix, bytes)(article(name).encode()))
    assert texts(tmp_path) == ["AA/wiki_00.bz2", "AA/wiki_01", "AB/wiki_00"]


def test_a_folder_of_a_told_format_is_read_whole(tmp_path: Path) -> None:
    for name in ("part-0", "part-1.dat", ".hidden", "c.txt"):
        (tmp_path / name).write_text(json.dumps({"text": name}))
    assert texts(f"{tmp_path}::format=jsonl") == ["c.txt", "part-0", "part-1.dat"]
    empty = tmp_path / "none"
    empty.mkdir()
    with pytest.raises(PolysemeError, match=r"has no text$"):
        open_sources([empty], format="jsonl")


class Piped(io.TextIOWrapper):
    def __init__(self, data: bytes):
        super().__init__(io.BytesIO(data), encoding="utf-8")


def test_standard_input_is_kept_for_a_second_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "same").write_bytes(b"one\ntwo\n")
    monkeypatch.setattr(sys, "stdin", Piped(b"one\ntwo\n"))
    sources = open_sources(["-::split=line,lang=de", tmp_path / "same"], spool_dir=tmp_path / "spool")
    for _ in range(2):
        assert [document.text for document in sources] == ["one", "two", "one\ntwo"]
    first, second = sources.file_facts
    assert first["path"] == "-" and first["sha256"] == second["sha256"] and first["bytes"] == 8
    assert next(iter(sources)).source == "standard input" and sources.files[0].lang == "de"
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["stdin"]

    monkeypatch.setattr(sys, "stdin", Piped(b'{"text": "a"}\n{}\n'))
    sources = open_sources(["-::format=jsonl"], skip_bad=True)
    assert [document.text for document in sources] == ["a"]
    assert sources.bad_row_messages == ["standard input line 2: no key 'text'; there is none"]
    copy = sources.files[0].local_path
    assert copy.is_file()
    del sources
    assert not copy.exists()


def test_standard_input_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(b""))
    with pytest.raises(PolysemeError, match="standard input is empty"):
        texts("-")
    with pytest.raises(PolysemeError, match="given more than once"):
        open_sources(["-", "-::lang=de"])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(PolysemeError, match="not piped"):
        open_sources(["-"])


def test_a_package_that_is_missing_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("a.parquet", "a.txt.zst"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(PolysemeError, match="needs pyarrow: pip install pyarrow"):
            open_sources([tmp_path / name], skip_bad=True)
    (tmp_path / "a.txt").write_text("x")
    assert texts(tmp_path / "a.txt") == ["x"]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/odd \xff.txt"
    try:
        Path(os.fsdecode(name)).write_bytes(b"good\n\xff\n")
    except OSError:
        pytest.skip("this disk takes no such name")
    sources = open_sources([tmp_path], skip_bad=True)
    assert [document.text for document in sources] == ["good"]
    json.dumps([sources.file_facts, sources.bad_row_messages, next(iter(sources)).source], ensure_ascii=False).encode()


# ------------------------------------------------------------------------------------------------------ places


def items(sources: SourceReader, start: ReadPosition = START) -> list[tuple[ReadPosition, str]]:
    return [(place, repr(found)) for place, found in sources.read(start)]


@pytest.fixture
def mixed(tmp_path: Path) -> SourceReader:
    """Inputs of every format with blank documents, bad rows and files that are cut off in them."""
    for form, (name, data) in FILES.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / f"b{name}.gz").write_bytes(gzip.compress(data)[:-12])
        (tmp_path / f"c.{form}").write_bytes(data)
    (tmp_path / "d.jsonl").write_text(ROWS + '\n{"text": ""}\n{"text": \n' + ROWS)
    (tmp_path / "e.txt").write_bytes(b"one\n\n \ntwo\n\xff\nthree")
    return open_sources([f"{tmp_path}::split=line"])


def test_reading_from_every_place_gives_exactly_the_rest(mixed: SourceReader) -> None:
    everything = items(mixed)
    assert len(everything) > 40 and sum("DataError" in found for _, found in everything) > 5
    places = [place for place, _ in everything]
    assert places == sorted(set(places)) and items(mixed, ReadPosition()) == everything
    for number, place in enumerate(places, 1):
        assert items(mixed, place) == everything[number:]
    for number in range(len(mixed.files) + 1):
        assert items(mixed, ReadPosition(number)) == [item for item in everything if item[0].file_index >= number]


def test_inputs_before_a_place_are_not_opened(mixed: SourceReader) -> None:
    expected = items(mixed, ReadPosition(5, 1))
    for each in mixed.files[:5]:
        each.local_path.unlink()
    assert expected and items(mixed, ReadPosition(5, 1)) == expected


def test_an_input_can_be_read_by_another_process(mixed: SourceReader) -> None:
    for each in mixed.files:
        assert list(map(repr, pickle.loads(pickle.dumps(each)).read())) == list(map(repr, each.read()))
