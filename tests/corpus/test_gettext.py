"""The catalogues of gettext as text and as pairs, in the languages of their folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyseme.corpus.sources import gettext_catalogs as gettext_catalogues
from polyseme.corpus.sources.gettext_catalogs import find_catalogs, parse_language, read_messages
from polyseme.corpus.sources.sources import Document, open_sources
from polyseme.errors import PolysemeError
from tests.corpus.samples import PACKERS, catalogue

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
    """A machine with three catalogues, and another of one that two folders have."""
    files = {
        "own/de/LC_MESSAGES/app.mo": catalogue(GERMAN),
        "own/pt_BR/LC_MESSAGES/app.mo": catalogue({"Hello": "Olá"}, "ISO-8859-1"),
        "own/sr@latin/LC_MESSAGES/app.mo": catalogue({"Hello": "Zdravo"}, order=">"),
        "own/de/LC_TIME/other.mo": b"",
        "own/fr/LC_MESSAGES/empty.mo": b"",
        "share/locale/de/LC_MESSAGES/app.mo": catalogue({"Hello": "another"}),
        "share/locale/de/LC_MESSAGES/zoo.mo": catalogue({"cat": "Katze"}),
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    monkeypatch.setenv("TEXTDOMAINDIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "share"))
    for prefix in ("prefix", "base_prefix"):
        monkeypatch.setattr(gettext_catalogues.sys, prefix, str(tmp_path / "none"))
    return tmp_path


def test_messages_are_pairs(tmp_path: Path) -> None:
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
            path.write_bytes(catalogue(GERMAN, charset, order))
            assert read_messages(path) == expected
    (tmp_path / "a.mo.xz").write_bytes(PACKERS[".xz"](catalogue(GERMAN)))
    assert read_messages(tmp_path / "a.mo.xz") == expected


def test_one_document_for_each_catalogue_in_its_language(locales: Path) -> None:
    sources = open_sources(["gettext"], lang="en")
    assert [each.lang for each in sources.files] == ["de", "de", "pt", "sr"]
    documents = list(sources)
    german = "%d Datei\n%d Dateien\nGrüß Gott\nBeenden\n\nAufruf:\n  x DATEI\n\nÖffnen"
    assert [document.text for document in documents] == [german, "Katze", "Olá", "Zdravo"]
    assert documents[0].source == str(locales / "own/de/LC_MESSAGES/app.mo")
    assert len(sources.file_facts) == 4 and all(each["bytes"] for each in sources.file_facts)
    assert sources.estimated_characters


def test_one_language(locales: Path) -> None:
    assert [document.text for document in open_sources(["gettext::lang=pt"])] == ["Olá"]
    assert [document.text for document in open_sources(["gettext::lang=pt-BR"])] == ["Olá"]
    assert open_sources(["gettext::lang=pt_BR"]).files[0].lang == "pt"
    with pytest.raises(PolysemeError, match=r"gettext has no catalog in 'dee': did you mean 'de'\?"):
        open_sources(["gettext::lang=dee"])


def test_a_catalogue_by_its_path(locales: Path) -> None:
    path = locales / "own/pt_BR/LC_MESSAGES/app.mo"
    sources = open_sources([str(path)])
    assert list(sources) == [Document("Olá", str(path))] and sources.files[0].lang == "pt"
    assert open_sources([f"{path}::lang=gl"]).files[0].lang == "gl"
    (locales / "plain.mo").write_bytes(path.read_bytes())
    assert open_sources([str(locales / "plain.mo")], lang="xx").files[0].lang == "xx"
    assert [each.lang for each in open_sources([locales / "own"]).files] == ["de", "pt", "sr"]


def test_no_catalogue(locales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXTDOMAINDIR", "")
    monkeypatch.setenv("XDG_DATA_DIRS", str(locales / "none"))
    with pytest.raises(PolysemeError, match="there is no catalog of gettext in"):
        find_catalogs()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "a.mo is empty"),
        (b"not a catalogue", "a.mo is no catalog of gettext"),
        (catalogue(GERMAN)[:20], "a.mo is cut off or damaged: it cannot be read beyond message 0"),
        (catalogue(GERMAN)[:-9], "a.mo is cut off or damaged: it cannot be read beyond message 5"),
        (catalogue(GERMAN).replace(b"charset=UTF-8", b"charset=WTF-8"), "a.mo: there is no encoding 'WTF-8'"),
        (catalogue(GERMAN).replace("Grüß".encode(), b"Gr\xff\xff\xffx"), "a.mo message 3: not UTF-8 text"),
        (catalogue(GERMAN).replace(b"=UTF-8", b"=zip  "), "a.mo: there is no encoding 'zip'"),
        (b"\xde\x12\x04\x95\0\0\x02\0" + bytes(20), "a.mo is a catalog of the unknown revision 2"),
    ],
)
def test_bad_catalogues(tmp_path: Path, data: bytes, line: str) -> None:
    path = tmp_path / "a.mo"
    path.write_bytes(data)
    with pytest.raises(PolysemeError) as caught:
        read_messages(path)
    assert line in str(caught.value)
    sources = open_sources([path], skip_bad=True)
    documents = list(sources)
    assert sources.bad_row_messages == [str(caught.value)]
    assert bool(documents) == any(word in line for word in ("message 3", "message 5"))


@pytest.mark.parametrize(
    ("locale", "lang"), [("de", "de"), ("pt_BR", "pt"), ("sr@latin", "sr"), ("pl.UTF-8", "pl"), ("ast", "ast")]
)
def test_languages_of_locales(locale: str, lang: str) -> None:
    assert parse_language(locale) == lang


def test_the_catalogues_of_this_machine() -> None:
    try:
        found = find_catalogs()
    except PolysemeError:
        pytest.skip("this machine has no catalog")
    assert all(lang and path.is_file() for lang, path in found)
    sources = open_sources([f"gettext::lang={found[0][0]}"], skip_bad=True)
    assert list(sources) and not sources.num_bad
