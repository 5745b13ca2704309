"""Sources: parsing, listing files in a fixed order, and resuming from any position."""

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
from tests.corpus.samples import COMPRESSORS, EXPECTED, FILES, wiki_article

ROWS = "".join(json.dumps({"text": text, "title": "t"}) + "\n" for text in ("One é.", "Two.\nStill two."))


def read_texts(*paths: Path | str, **options: object) -> list[str]:
    return [document.text for document in open_sources([str(p) for p in paths], **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("compress", [None, gzip.compress, lzma.compress])
def test_text_and_json_lines_plain_and_compressed(tmp_path: Path, compress: Callable[[bytes], bytes] | None) -> None:
    suffix = "" if compress is None else {gzip.compress: ".gz", lzma.compress: ".xz"}[compress]
    contents = {"a.txt": "\ufeffA b.\r\nC.\n\n\nD é.\n", "b.jsonl": ROWS + "\n"}
    for name, text in contents.items():
        (tmp_path / (name + suffix)).write_bytes((compress or bytes)(text.encode()))
    text, rows = tmp_path / ("a.txt" + suffix), tmp_path / ("b.jsonl" + suffix)
    assert read_texts(text) == ["A b.\nC.\n\n\nD é."]
    assert read_texts(text, split="blank") == ["A b.\nC.", "D é."]
    assert read_texts(text, split="line") == ["A b.", "C.", "D é."]
    assert read_texts(rows) == ["One é.", "Two.\nStill two."]
    assert read_texts(rows, text_column="title") == ["t", "t"]
    assert read_texts(tmp_path) == read_texts(text, rows)
    sources = open_sources([rows])
    assert list(sources)[1] == Document("Two.\nStill two.", str(rows), "line 2")
    assert sources.estimated_characters == rows.stat().st_size * (1 if compress is None else 3)  # an estimate


def test_folder_is_read_in_order_without_other_files(tmp_path: Path) -> None:
    for name in ("b/2.md", "b/10.rst", "a.txt", "z.ndjson", ".hidden.txt", "x.bin", ".git/c.txt", "wiki_x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"text": name}) if "json" in name else name)
    (tmp_path / "empty.txt").write_text("")
    assert read_texts(tmp_path) == ["a.txt", "b/10.rst", "b/2.md", "z.ndjson"]


def test_blank_documents_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n \ntwo\n")
    sources = open_sources([str(tmp_path / "a.txt")], split="line")
    for _ in range(2):
        assert len(list(sources)) == 2 and sources.skipped.num_blank == 2


def test_file_facts_depend_on_content(tmp_path: Path) -> None:
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
    ("name", "content", "message"),
    [
        ("e.txt", b"", "e.txt is empty"),
        ("e.txt.gz", gzip.compress(b"", mtime=0), "e.txt.gz is empty"),
        ("e.jsonl", b"", "e.jsonl is empty"),
        ("l.txt", b"good\nbad \xe9\n", "l.txt line 2: byte 9 is not UTF-8 text"),
        ("u.txt", "text".encode("utf-16"), "u.txt line 1: byte 0 is not UTF-8 text, it looks like UTF-16"),
        ("t.txt.gz", gzip.compress(bytes(range(100)) * 99, mtime=0)[:-20], "t.txt.gz is truncated or damaged"),
        ("t.jsonl.xz", lzma.compress(ROWS.encode())[:-20], "t.jsonl.xz is truncated or damaged"),
        (
            "n.txt.gz",
            b"not compressed at all",
            "n.txt.gz is truncated or damaged: cannot decompress it beyond line 0",
        ),
        ("m.jsonl", ROWS.encode() + b'{"text": \n', "m.jsonl line 3: malformed JSON"),
        ("k.jsonl", b'{"texts": "a", "id": 1}', "no key 'text' among texts, id; did you mean 'texts'?"),
        ("s.jsonl", b'{"text": 3}', "s.jsonl line 1: 'text' is 3, not a string"),
        ("o.jsonl", b'["text"]', "o.jsonl line 1: expected an object with 'text', not list"),
    ],
)
def test_bad_input_gives_a_one_line_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PolysemeError) as raised:
        read_texts(path)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    sources = open_sources([str(path)], skip_bad=True)
    list(sources)
    assert sources.skipped.num_bad == 1 and sources.skipped.bad_row_messages == [str(raised.value)]


def test_bad_rows_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(ROWS + "{\n" + ROWS + '{"txt": ""}\n')
    sources = open_sources([path], skip_bad=True)
    assert len(list(sources)) == 4 and sources.skipped.num_bad == 2
    assert [row.split(":")[0].split()[-1] for row in sources.skipped.bad_row_messages] == ["3", "6"]


def test_missing_sources_are_reported(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a")
    with pytest.raises(PolysemeError, match=r"did you mean 'corpus.txt'"):
        open_sources([str(tmp_path / "corpsu.txt")])
    (tmp_path / "none").mkdir()
    with pytest.raises(PolysemeError, match="contains no text in files that end in"):
        open_sources([str(tmp_path / "none")])
    with pytest.raises(PolysemeError, match="no source"):
        open_sources([])
    with pytest.raises(PolysemeError, match="split is 'lines': did you mean 'line'"):
        open_sources([str(tmp_path)], split="lines")


# ------------------------------------------------------------------------------------ source specifications


def test_parse_source() -> None:
    assert parse_source("a.txt") == CorpusSource("a.txt", "", 1.0, "text", "file", "")
    specification = "wiki.jsonl.zst::lang=de,weight=2,text=title+body,format=jsonl"
    assert parse_source(specification) == CorpusSource("wiki.jsonl.zst", "de", 2.0, "title+body", "file", "jsonl")
    defaults = CorpusSource("", lang="fr", text="k", split="line", format="csv")
    assert parse_source("-::weight=0.5,split=blank", defaults) == CorpusSource("-", "fr", 0.5, "k", "blank", "csv")
    assert parse_source("a::b.txt::lang=de").path == "a::b.txt"


def test_existing_path_with_separator_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a::lang=de").write_text("text")
    source = parse_source(str(tmp_path / "a::lang=de"))
    assert source.path.endswith("a::lang=de") and source.lang == ""
    assert parse_source(str(tmp_path / "a::lang=de::lang=fr")).lang == "fr"
    assert open_sources([tmp_path / "a::lang=de"]).sources == [source]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("langs=de", "there is no option 'langs' here; did you mean 'lang'?"),
        ("path=b", "there is no option 'path' here"),
        ("", "there is no option '' here"),
        ("lang", "lang is set without a value"),
        ("lang=", "lang is set without a value"),
        ("lang=de,lang=fr", "lang is set twice"),
        ("weight=much", "weight is 'much', not a number"),
        ("weight=0", "weight is 0.0; it must be greater than 0"),
        ("weight=-1", "weight is -1.0; it must be greater than 0"),
        ("weight=nan", "weight is nan; it must be greater than 0"),
        ("weight=inf", "weight is inf; it must be greater than 0"),
        ("format=json", "format is 'json': did you mean 'jsonl'?"),
        ("format=python-docs", "format is 'python-docs': valid: csv, jsonl, midi, mo, parquet, text, tsv, wet, wiki"),
        ("split=lines", "split is 'lines': did you mean 'line'?"),
    ],
)
def test_invalid_options(options: str, message: str) -> None:
    with pytest.raises(PolysemeError) as raised:
        open_sources([f"a.txt::{options}"])
    assert message in str(raised.value)


def test_source_objects_are_validated(tmp_path: Path) -> None:
    for wrong in ({"weight": -1.0}, {"split": "x"}, {"format": "x"}):
        with pytest.raises(PolysemeError):
            open_sources([dataclasses.replace(CorpusSource(str(tmp_path)), **wrong)])  # type: ignore[arg-type]
    with pytest.raises(PolysemeError, match="format is 'x'"):
        open_sources([str(tmp_path)], format="x")


def test_each_source_has_its_own_options(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / "b.jsonl").write_text('{"x": "three"}\n')
    (tmp_path / "c.jsonl").write_text('{"y": "four"}\n')
    specification = [
        f"{tmp_path / 'a.txt'}::split=line,lang=de",
        f"{tmp_path / 'b.jsonl'}::text=x,weight=3",
        tmp_path / "c.jsonl::text=y",
    ]
    sources = open_sources(specification, lang="fr")
    assert [document.text for document in sources] == ["one", "two", "three", "four"]
    assert [(file.source_index, file.lang) for file in sources.files] == [(0, "de"), (1, "fr"), (2, "fr")]
    assert [source.weight for source in sources.sources] == [1.0, 3.0, 1.0]
    assert [file["source_index"] for file in sources.file_facts] == [0, 1, 2]
    assert open_sources([f"{tmp_path / 'b.jsonl'}::format=text"]).estimated_characters == 15
    assert read_texts(f"{tmp_path / 'b.jsonl'}::format=text") == ['{"x": "three"}']


def test_columns_chosen_twice_or_in_vain_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.csv").write_text("id,body\n1,two\n")
    (tmp_path / "c.tsv").write_text("body\nthree\n")
    table, text = tmp_path / "b.csv", tmp_path / "a.txt"
    assert read_texts(f"{table}::text=body") == read_texts(table, text_column="body") == ["two"]
    assert read_texts(tmp_path / "c.tsv") == ["three"]  # the only column
    for source, options, message in (
        (f"{table}::text=body", {"text_column": "id"}, "text is 'body', but `text_column` is 'id': leave out one"),
        (f"{text}::text=body", {}, "text=body has no effect on its format, text"),
        (f"{table}::split=line", {}, "split=line has no effect on its format, csv"),
        (text, {"text_column": "body"}, "`text_column` is 'body', but no source has columns"),
        (table, {"text_column": "body", "split": "line"}, "`split` is 'line', but no source is plain text"),
        ("python-docs", {"format": "jsonl"}, "`format` is 'jsonl', but it applies to no source"),
        ("python-docs::format=jsonl", {}, "format=jsonl has no effect on its format, python-docs"),
        (table, {}, r"no column 'text' among id, body; valid: body, id \(choose with ::text=COLUMN\)"),
    ):
        with pytest.raises(PolysemeError, match=message):
            read_texts(source, **options)
    assert read_texts(tmp_path, text_column="body") == ["one", "two", "three"]  # has an effect on some files
    assert read_texts(table, text_column="body", default_split="line") == ["two"]
    recorded = [CorpusSource(str(path), text="body", split="line") for path in (text, table)]  # as in a manifest
    assert [document.text for document in open_sources(recorded)] == ["one", "two"]


# ----------------------------------------------------------------------------------- folders, standard input


def test_folder_with_many_formats(tmp_path: Path) -> None:
    expected = []
    for number, (format_name, (name, content)) in enumerate(sorted(FILES.items())):
        suffix = ["", *COMPRESSORS][number % 5]
        path = tmp_path / f"{number}" / (name + suffix)
        path.parent.mkdir()
        path.write_bytes(COMPRESSORS.get(suffix, bytes)(content))
        expected += ["\n\n".join(EXPECTED[format_name])] if format_name == "text" else EXPECTED[format_name]
    assert read_texts(tmp_path) == expected
    assert len(open_sources([tmp_path]).files) == len(FILES)


def test_wikiextractor_folders(tmp_path: Path) -> None:
    for name in ("AB/wiki_00", "AA/wiki_01", "AA/wiki_00.bz2", "AA/wiki_00.log"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(COMPRESSORS.get(path.suffix, bytes)(wiki_article(name).encode()))
    assert read_texts(tmp_path) == ["AA/wiki_00.bz2", "AA/wiki_01", "AB/wiki_00"]


def test_explicit_format_reads_every_file_of_a_folder(tmp_path: Path) -> None:
    for name in ("part-0", "part-1.dat", ".hidden", "c.txt"):
        (tmp_path / name).write_text(json.dumps({"text": name}))
    assert read_texts(f"{tmp_path}::format=jsonl") == ["c.txt", "part-0", "part-1.dat"]
    empty = tmp_path / "none"
    empty.mkdir()
    with pytest.raises(PolysemeError, match=r"contains no text$"):
        open_sources([empty], format="jsonl")


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    for name in ("elsewhere/deep/a.txt", "text/b.txt", "text/real/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    text = tmp_path / "text"
    links = {"again": text / "real", "far": tmp_path / "elsewhere", "loop": text, "same": tmp_path / "elsewhere/deep"}
    for name, target in links.items():
        (text / name).symlink_to(target)
    sources = open_sources([text])
    names = [Path(file.path).relative_to(text).as_posix() for file in sources.files]
    assert names == ["b.txt", "far/deep/a.txt", "real/c.txt"] and not sources.skipped_files
    (tmp_path / "gone.txt").symlink_to("nowhere")
    with pytest.raises(PolysemeError, match=r"gone\.txt is a link to nowhere, which does not exist"):
        open_sources([tmp_path / "gone.txt"])


def test_folder_that_cannot_be_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.txt").write_text("x")
    scandir = os.scandir

    def deny(path: Path | str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deny)
    assert open_sources([tmp_path]).skipped_files == [f"{tmp_path / 'locked'} (Permission denied)"]


class Piped(io.TextIOWrapper):
    def __init__(self, content: bytes):
        super().__init__(io.BytesIO(content), encoding="utf-8")


def test_standard_input_can_be_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert sources.skipped.bad_row_messages == ["standard input line 2: no key 'text'; there is none"]
    copy = sources.files[0].local_path
    assert copy.is_file()
    del sources
    assert not copy.exists()


def test_binary_standard_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(gzip.compress(b"text")))
    with pytest.raises(PolysemeError, match=r"^standard input is gzip data"):
        read_texts("-")


def test_missing_standard_input_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(b""))
    with pytest.raises(PolysemeError, match="standard input is empty"):
        read_texts("-")
    with pytest.raises(PolysemeError, match="can be a source only once"):
        open_sources(["-", "-::lang=de"])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(PolysemeError, match="not piped"):
        open_sources(["-"])


def test_missing_package_is_reported_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("a.parquet", "a.txt.zst"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(PolysemeError, match="needs pyarrow: pip install pyarrow"):
            open_sources([tmp_path / name], skip_bad=True)
    (tmp_path / "a.txt").write_text("x")
    assert read_texts(tmp_path / "a.txt") == ["x"]


def test_file_names_that_are_not_unicode(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/odd \xff.txt"
    try:
        Path(os.fsdecode(name)).write_bytes(b"good\n\xff\n")
    except OSError:
        pytest.skip("the file system rejects such a name")
    sources = open_sources([tmp_path], skip_bad=True)
    assert [document.text for document in sources] == ["good"]
    json.dumps(
        [sources.file_facts, sources.skipped.bad_row_messages, next(iter(sources)).source], ensure_ascii=False
    ).encode()


# ------------------------------------------------------------------------------------------------------ positions


def read_items(sources: SourceReader, start: ReadPosition = START) -> list[tuple[ReadPosition, str]]:
    return [(position, repr(item)) for position, item in sources.read(start)]


@pytest.fixture
def mixed_reader(tmp_path: Path) -> SourceReader:
    """Files of every format, with blank documents, bad rows and truncated files."""
    for format_name, (name, content) in FILES.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"b{name}.gz").write_bytes(gzip.compress(content)[:-12])
        (tmp_path / f"c.{format_name}").write_bytes(content)
    (tmp_path / "d.jsonl").write_text(ROWS + '\n{"text": ""}\n{"text": \n' + ROWS)
    (tmp_path / "e.txt").write_bytes(b"one\n\n \ntwo\n\xff\nthree")
    return open_sources([f"{tmp_path}::split=line"])


def test_reading_from_every_position_gives_the_rest(mixed_reader: SourceReader) -> None:
    all_items = read_items(mixed_reader)
    assert len(all_items) > 40 and sum("DataError" in item for _, item in all_items) > 5
    positions = [position for position, _ in all_items]
    assert positions == sorted(set(positions)) and read_items(mixed_reader, ReadPosition()) == all_items
    for number, position in enumerate(positions, 1):
        assert read_items(mixed_reader, position) == all_items[number:]
    for number in range(len(mixed_reader.files) + 1):
        assert read_items(mixed_reader, ReadPosition(number)) == [
            entry for entry in all_items if entry[0].file_index >= number
        ]


def test_files_before_the_position_are_not_opened(mixed_reader: SourceReader) -> None:
    expected = read_items(mixed_reader, ReadPosition(5, 1))
    for file in mixed_reader.files[:5]:
        file.local_path.unlink()
    assert expected and read_items(mixed_reader, ReadPosition(5, 1)) == expected


def test_source_files_can_be_pickled(mixed_reader: SourceReader) -> None:
    for file in mixed_reader.files:
        assert list(map(repr, pickle.loads(pickle.dumps(file)).read())) == list(map(repr, file.read()))


def test_tags_of_a_page_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<html><p>The cat sat.</p></html>\n")
    with pytest.raises(PolysemeError, match=r"page\.html is an HTML page, whose tags would be read"):
        open_sources([tmp_path / "page.html"])
    with pytest.raises(PolysemeError, match="contains no text"):
        open_sources([tmp_path])
    (document,) = open_sources([f"{tmp_path / 'page.html'}::format=text"])
    assert document.text.startswith("<html>")
