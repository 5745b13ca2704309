"""Files that are not text are rejected by name, with what they are."""

import pytest

import polyseme
from polyseme.corpus.sources.sources import open_sources
from polyseme.io.binary_files import describe_binary, describe_skipped
from polyseme.io.lines import read_lines

HEADS = {
    "paper.pdf": (b"%PDF-1.7\n%\xe2\xe3", "a PDF, not text: convert it to text first"),
    "report.txt": (b"%PDF-1.4\n", "a PDF, not text: convert it to text first"),
    "letter.docx": (b"PK\x03\x04\x14\x00", "a Word document, not text: convert"),
    "bundle.zip": (b"PK\x03\x04\x14\x00", "a zip archive, not text: leave it out"),
    "old.doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\x00", "an Office document"),
    "scan.png": (b"\x89PNG\r\n\x1a\n\x00", "an image"),
    "tool": (b"\x7fELF\x02\x01", "a program"),
    "setup.exe": (b"MZ\x90\x00\x03", "a program"),
    "dump.xml": (b"<mediawiki xmlns=", r"a MediaWiki dump \(WikiExtractor extracts its text\), not text: convert it"),
    "pages.warc": (b"WARC/1.0\r\n", r"a WARC archive \(if it contains extracted text, its format is wet\)"),
    "text.txt": (b"\x1f\x8b\x08\x00", r"gzip data \(the file name must end in \.gz\)"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_file_that_is_not_text(name, tmp_path):
    head, message = HEADS[name]
    path = tmp_path / name
    path.write_bytes(head + bytes(100))
    with pytest.raises(polyseme.DataError, match=f"{name} is {message}"):
        open_sources([path])
    errors = [line for line in read_lines(path, str(path)) if isinstance(line, polyseme.DataError)]
    assert len(errors) == 1 and f"{name} is {message.split(',')[0].split(' (')[0]}".replace("\\", "") in str(errors[0])


@pytest.mark.parametrize(
    "text",
    [
        "MZ is a code.",
        "BZ",
        "ID3 grows trees",
        "PAR1, MThd",
        "RIFF and WAVE",
        "%",
        "",
        "pkzip PK",
        "{rtf}",
        "WARC",
        "<mediawiki>",
    ],
)
def test_text_is_text(text, tmp_path):
    assert not describe_binary(text.encode(), tmp_path / "a.txt")


def test_documents_in_a_folder_are_named():
    message = describe_skipped(["a.bin", "b.pdf", "c.docx"])
    assert message.startswith("skipped 3 files")
    assert message.endswith("e.g. b.pdf; convert documents to text to include them")
    assert describe_skipped(["a.bin"]) == "skipped 1 files that are empty or of unknown format, e.g. a.bin"
