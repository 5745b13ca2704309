"""Sources: every format gives its documents, and every bad input its one line."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from polyseme.corpus import python_docs
from polyseme.corpus.sources import Document, open_sources
from polyseme.errors import UserError

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
    assert sources.size == (rows.stat().st_size if pack is None else None)


def test_a_folder_is_read_in_order_without_what_is_not_text(tmp_path: Path) -> None:
    for name in ("b/2.md", "b/10.rst", "a.txt", "z.ndjson", ".hidden.txt", "x.bin", ".git/c.txt"):
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
    before = open_sources([path]).fingerprint
    assert before[0]["bytes"] == 3 and open_sources([path]).fingerprint == before
    path.write_text("two")
    assert open_sources([path]).fingerprint != before
    assert "python 3" in open_sources(["python-docs"]).fingerprint[0]["version"]


def test_python_docs_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_docs, "documents", lambda: iter([("json", "Text.")]))
    sources = open_sources(["python-docs"])
    assert list(sources) == [Document("Text.", "python-docs", "json")] and sources.size is None


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("e.txt", b"", "e.txt is empty"),
        ("e.txt.gz", gzip.compress(b""), "e.txt.gz is empty"),
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
    with pytest.raises(UserError) as caught:
        texts(path)
    assert line in str(caught.value) and "\n" not in str(caught.value)
    sources = open_sources([str(path)], skip_bad=True)
    list(sources)
    assert sources.num_bad == 1 and sources.bad == [str(caught.value)]


def test_bad_rows_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(ROWS + "{\n" + ROWS + '{"txt": ""}\n')
    sources = open_sources([path], skip_bad=True)
    assert len(list(sources)) == 4 and sources.num_bad == 2
    assert [row.split(":")[0].split()[-1] for row in sources.bad] == ["3", "6"]


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a")
    with pytest.raises(UserError, match=r"did you mean 'corpus.txt'"):
        open_sources([str(tmp_path / "corpsu.txt")])
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="has no text in files that end in"):
        open_sources([str(tmp_path / "none")])
    with pytest.raises(UserError, match="no source"):
        open_sources([])
    with pytest.raises(UserError, match="split is 'lines': did you mean 'line'"):
        open_sources([str(tmp_path)], split="lines")
