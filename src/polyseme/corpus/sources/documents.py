"""Documents, and splitting those that are too long."""

from collections.abc import Iterator
from dataclasses import dataclass

from polyseme.errors import DataError

MAX_DOCUMENT_CHARS = 4_000_000  # a longer document is split into parts


@dataclass(frozen=True)
class Document:
    """A text and where it was read."""

    text: str
    source: str
    location: str = ""  # a line of a file, a row, a module


# Readers yield documents, and errors (not raised) for input that they cannot read.
ReadResult = Document | DataError


def find_split_point(text: str) -> int:
    """Return where to end the first part of a long text: after a line break, else after a space, else anywhere."""
    limit = MAX_DOCUMENT_CHARS
    return text.rfind("\n", 0, limit) + 1 or text.rfind(" ", 0, limit) + 1 or limit


def split_long_document(document: ReadResult) -> Iterator[ReadResult]:
    """Yield a document in parts of at most `MAX_DOCUMENT_CHARS` characters. Errors are passed through."""
    if isinstance(document, DataError) or len(document.text) <= MAX_DOCUMENT_CHARS:
        yield document
        return
    text, start, part_number = document.text, 0, 1
    while start < len(text):
        remaining = text[start : start + MAX_DOCUMENT_CHARS + 1]
        end = find_split_point(remaining) if len(remaining) > MAX_DOCUMENT_CHARS else len(remaining)
        yield Document(remaining[:end], document.source, f"{document.location} part {part_number}".lstrip())
        start, part_number = start + end, part_number + 1


class DocumentBuilder:
    """Builds a document from lines or parts of lines, and yields a part whenever it gets too long."""

    def __init__(self, source: str):
        self.source = source
        self.clear()

    def clear(self) -> None:
        """Drop what was added since the last document."""
        self.chunks: list[str] = []
        self.num_characters, self.first_line = 0, 0

    def add(self, line_number: int, text: str) -> Iterator[Document]:
        """Add text that starts in line `line_number`; yield the parts that are full."""
        if not self.chunks:
            self.first_line = line_number
        self.chunks.append(text)
        self.num_characters += len(text)
        while self.num_characters > MAX_DOCUMENT_CHARS:
            joined_text = "".join(self.chunks)
            end = find_split_point(joined_text)
            yield self._document(joined_text[:end])
            self.first_line += joined_text.count("\n", 0, end)
            self.chunks, self.num_characters = [joined_text[end:]], self.num_characters - end

    def finish(self) -> Iterator[Document]:
        """Yield the document, unless it is empty, and start a new one."""
        if self.num_characters:
            yield self._document("".join(self.chunks))
        self.clear()

    def _document(self, text: str) -> Document:
        return Document(text.rstrip("\n"), self.source, f"line {self.first_line}")
