"""Detection of files that are not text: documents, archives, images, programs."""

from collections.abc import Sequence
from pathlib import Path

from polyseme.errors import DataError
from polyseme.io.compression import COMPRESSED_SUFFIXES

BINARY_FORMATS = frozenset({"parquet", "midi", "mo", "wet"})  # input formats whose files are not plain text
_HEAD_BYTES = 512
_ARCHIVE_SUFFIXES = {
    ".docx": "a Word document", ".xlsx": "an Excel workbook", ".pptx": "a PowerPoint presentation",
    ".odt": "an OpenDocument text", ".ods": "an OpenDocument spreadsheet", ".epub": "an EPUB book",
    ".jar": "a Java archive", ".npz": "a NumPy archive", ".pt": "a PyTorch file",
}  # fmt: skip
_DOCUMENTS = (
    "a PDF",
    "a Word",
    "an Excel",
    "a PowerPoint",
    "an OpenDocument",
    "an EPUB",
    "an RTF",
    "an Office",
    "a MediaWiki",
)
_DOCUMENT_SUFFIXES = (".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub", ".html", ".htm", ".pptx", ".xlsx")
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"%PDF-", "a PDF"),
    (b"{\\rtf", "an RTF document"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document (.doc, .xls or .ppt)"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "a zip archive"),
    (b"\x1f\x8b", "gzip data (the file name must end in .gz)"),
    (b"\xfd7zXZ\x00", "xz data (the file name must end in .xz)"),
    (b"\x28\xb5\x2f\xfd", "zstd data (the file name must end in .zst)"),
    (b"BZh91AY&SY", "bzip2 data (the file name must end in .bz2)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x89PNG\r\n\x1a\n", "an image (PNG)"),
    (b"\xff\xd8\xff", "an image (JPEG)"),
    (b"GIF87a", "an image (GIF)"),
    (b"GIF89a", "an image (GIF)"),
    (b"II*\x00", "an image (TIFF)"),
    (b"MM\x00*", "an image (TIFF)"),
    (b"\x7fELF", "a program (ELF)"),
    (b"\xcf\xfa\xed\xfe", "a program (Mach-O)"),
    (b"\xca\xfe\xba\xbe", "a program (Mach-O or Java)"),
    (b"PAR1\x15", "a Parquet file (the file name must end in .parquet)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"MThd\x00\x00\x00\x06", "a MIDI file (the file name must end in .mid)"),
    (b"ID3\x03", "an audio file (MP3)"),
    (b"ID3\x04", "an audio file (MP3)"),
    (b"OggS\x00", "an audio file (Ogg)"),
    (b"fLaC\x00", "an audio file (FLAC)"),
    (b"<mediawiki ", "a MediaWiki dump (WikiExtractor extracts its text)"),
    (b"WARC/1.", "a WARC archive (if it contains extracted text, its format is wet)"),
)


def describe_binary(head: bytes, path: Path, name: str = "") -> str:
    """Say that a file with these first bytes is not text, what it is, and what to do; empty if it may be text.

    `name` is that of the file in the message, by default its path.
    """
    kind = _detect_kind(head, path.suffix.lower())
    advice = "convert it to text first" if kind.startswith(_DOCUMENTS) else "leave it out, or convert it to text"
    return f"{name or path} is {kind}, not text: {advice}" if kind else ""


def require_text(path: Path, format: str) -> None:
    """Raise a `DataError` that names the file if it is to be read as text but is a document, an archive or an image."""
    if format in BINARY_FORMATS or path.suffix.lower() in COMPRESSED_SUFFIXES:
        return
    with open(path, "rb") as file:
        if problem := describe_binary(file.read(_HEAD_BYTES), path):
            raise DataError(problem)


def describe_skipped(paths: Sequence[str]) -> str:
    """Say how many files of a folder were skipped, and name a document among them, which could be converted."""
    documents = [path for path in paths if Path(path).suffix.lower() in _DOCUMENT_SUFFIXES]
    counts = f"skipped {len(paths):,} files that are empty or of unknown format, e.g. {(documents or paths)[0]}"
    return f"{counts}; convert documents to text to include them" if documents else counts


def _detect_kind(head: bytes, suffix: str) -> str:
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return _ARCHIVE_SUFFIXES.get(suffix, kind) if magic.startswith(b"PK") else kind
    if head.startswith(b"MZ") and b"\x00" in head[:_HEAD_BYTES]:
        return "a program (Windows)"
    if head.startswith(b"RIFF") and head[8:12] in (b"WAVE", b"AVI ", b"WEBP"):
        return "an audio, video or image file"
    return "a video" if head[4:8] == b"ftyp" and head.startswith(b"\x00") else ""
