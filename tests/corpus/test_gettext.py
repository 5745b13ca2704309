"""Gettext catalogs as documents and as pairs, with the languages of their folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyseme.corpus.sources import gettext_catalogs
from polyseme.corpus.sources.gettext_catalogs import find_catalogs, parse_language, read_messages
from polyseme.corpus.sources.sources import Document, open_sources
from polyseme.errors import PolysemeError
from tests.corpus.samples import COMPRESSORS, build_catalog

GERMAN = {
    "Hello": "Grüß Gott",
    "%d file\0%d files": "%d Datei\0%d Dateien",
    "menu\x04Open": "Öffnen",
    "Usage:\n  x FILE\n": "Aufruf:\n  x DATEI\n",
    "Quit": "Beenden",
    "untranslated": "",
}


@pytest.fixture
def locales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up three catalogs in the first folder, and two in a second that repeats one of them."""
    files = {
        "own/de/LC_MESSAGES/app.mo": build_catalog(GERMAN),
        "own/pt_BR/LC_MESSAGES/app.mo": build_catalog({"Hello": "Olá"}, "ISO-8859-1"),
        "own/sr@latin/LC_MESSAGES/app.mo": build_catalog({"Hello": "Zdravo"}, order=">"),
        "own/de/LC_TIME/other.mo": b"",
        "own/fr/LC_MESSAGES/empty.mo": b"",
        "share/locale/de/LC_MESSAGES/app.mo": build_catalog({"Hello": "another"}),
        "share/locale/de/LC_MESSAGES/zoo.mo": build_catalog({"cat": "Katze"}),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("TEXTDOMAINDIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "share"))
    for prefix in ("prefix", "base_prefix"):
        monkeypatch.setattr(gettext_catalogs.sys, prefix, str(tmp_path / "none"))
    return tmp_path


def test_read_messages(tmp_path: Path) -> None:
    expected = [
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
        ("Hello", "Grüß Gott"),
        ("Quit", "Beenden"),
        ("Usage:\n  x FILE\n", "Aufruf:\n  x DATEI\n"),
        ("Open", "Öffnen"),
    ]
    for charset in ("UTF-8", "ISO-8859-1"):
        for order in "<>":
            path = tmp_path / "a.mo"
            path.write_bytes(build_catalog(GERMAN, charset, order))
            assert read_messages(path) == expected
    (tmp_path / "a.mo.xz").write_bytes(COMPRESSORS[".xz"](build_catalog(GERMAN)))
    assert read_messages(tmp_path / "a.mo.xz") == expected


def test_each_catalog_is_a_document_in_its_language(locales: Path) -> None:
    sources = open_sources(["gettext"], lang="en")
    assert [file.lang for file in sources.files] == ["de", "de", "pt", "sr"]
    documents = list(sources)
    german = "%d Datei\n%d Dateien\nGrüß Gott\nBeenden\n\nAufruf:\n  x DATEI\n\nÖffnen"
    assert [document.text for document in documents] == [german, "Katze", "Olá", "Zdravo"]
    assert documents[0].source == str(locales / "own/de/LC_MESSAGES/app.mo")
    assert len(sources.file_facts) == 4 and all(file["bytes"] for file in sources.file_facts)
    assert sources.estimated_characters


def test_select_language(locales: Path) -> None:
    assert [document.text for document in open_sources(["gettext::lang=pt"])] == ["Olá"]
    assert [document.text for document in open_sources(["gettext::lang=pt-BR"])] == ["Olá"]
    assert open_sources(["gettext::lang=pt_BR"]).files[0].lang == "pt"
    with pytest.raises(PolysemeError, match=r"there is no gettext catalog for 'dee': did you mean 'de'\?"):
        open_sources(["gettext::lang=dee"])


def test_catalog_given_by_path(locales: Path) -> None:
    path = locales / "own/pt_BR/LC_MESSAGES/app.mo"
    sources = open_sources([str(path)])
    assert list(sources) == [Document("Olá", str(path))] and sources.files[0].lang == "pt"
    assert open_sources([f"{path}::lang=gl"]).files[0].lang == "gl"
    (locales / "plain.mo").write_bytes(path.read_bytes())
    assert open_sources([str(locales / "plain.mo")], lang="xx").files[0].lang == "xx"
    assert [file.lang for file in open_sources([locales / "own"]).files] == ["de", "pt", "sr"]


def test_no_catalogs(locales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXTDOMAINDIR", "")
    monkeypatch.setenv("XDG_DATA_DIRS", str(locales / "none"))
    with pytest.raises(PolysemeError, match="there are no gettext catalogs in"):
        find_catalogs()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.mo is empty"),
        (b"not a catalog", "a.mo is not a gettext catalog"),
        (build_catalog(GERMAN)[:20], "a.mo is truncated or damaged: cannot read it beyond message 0"),
        (build_catalog(GERMAN)[:-9], "a.mo is truncated or damaged: cannot read it beyond message 5"),
        (build_catalog(GERMAN).replace(b"charset=UTF-8", b"charset=WTF-8"), "a.mo: unknown encoding 'WTF-8'"),
        (build_catalog(GERMAN).replace("Grüß".encode(), b"Gr\xff\xff\xffx"), "a.mo message 3: not UTF-8 text"),
        (build_catalog(GERMAN).replace(b"=UTF-8", b"=zip  "), "a.mo: unknown encoding 'zip'"),
        (b"\xde\x12\x04\x95\0\0\x02\0" + bytes(20), "a.mo has the unknown catalog revision 2"),
    ],
)
def test_bad_catalogs(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.mo"
    path.write_bytes(content)
    with pytest.raises(PolysemeError) as raised:
        read_messages(path)
    assert message in str(raised.value)
    sources = open_sources([path], skip_bad=True)
    documents = list(sources)
    assert sources.skipped.bad_row_messages == [str(raised.value)]
    assert bool(documents) == any(word in message for word in ("message 3", "message 5"))


@pytest.mark.parametrize(
    ("locale", "lang"), [("de", "de"), ("pt_BR", "pt"), ("sr@latin", "sr"), ("pl.UTF-8", "pl"), ("ast", "ast")]
)
def test_parse_language(locale: str, lang: str) -> None:
    assert parse_language(locale) == lang


def test_catalogs_of_this_machine() -> None:
    try:
        catalogs = find_catalogs()
    except PolysemeError:
        pytest.skip("no catalogs installed")
    assert all(lang and path.is_file() for lang, path in catalogs)
    sources = open_sources([f"gettext::lang={catalogs[0][0]}"], skip_bad=True)
    assert list(sources) and not sources.skipped.num_bad
