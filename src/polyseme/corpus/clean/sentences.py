"""Lossless sentence splitting: the sentences concatenate to the text and to the same byte-level BPE tokens."""

from collections.abc import Callable, Iterator

from polyseme.errors import require_package

# White space as in Unicode and tokenizers; `str.strip()` also strips four control characters.
_WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_TO_PLAIN_SPACES = str.maketrans(dict.fromkeys(_WHITESPACE, " "))
_MAX_SEGMENT_CHARS = 10_000  # sentencex searches far ahead for closing quotes, so huge lines are split first


def split_sentences(text: str, lang: str = "en") -> list[str]:
    """Split a text into sentences whose concatenation is the text.

    A line break always ends a sentence. White space between two sentences is put at the front of the second, as in
    byte-level BPE: a pre-token never extends from a word into the white space after it, so encoding the sentences
    one by one gives the ids of the whole text. Only the last sentence may end in white space.
    """
    segment = require_package("sentencex", "sentence splitting").segment
    sentences: list[str] = []
    parts: list[str] = []  # of the current sentence
    whitespace = ""  # between the last sentence and the next
    for number, line in enumerate(text.split("\n")):
        if number:
            whitespace += "\n"
        for piece in _segment_line(segment, line, lang):
            body = piece.rstrip(_WHITESPACE)
            if not body:
                whitespace += piece
                continue
            if parts and not whitespace and not _is_boundary(parts[-1][-1], body[0]):
                parts.append(body)
            else:
                sentences += ["".join(parts)] * bool(parts)
                parts = [whitespace + body]
            whitespace = piece[len(body) :]
    sentences += ["".join(parts)] * bool(parts)
    if whitespace:
        sentences[-1:] = ["".join(sentences[-1:]) + whitespace]
    return sentences


def _segment_line(segment: Callable[[str, str], list[str]], line: str, lang: str) -> Iterator[str]:
    """Yield the segments of a line. Other spaces are replaced by plain ones, because some make sentencex panic."""
    for start in range(0, len(line), _MAX_SEGMENT_CHARS):
        part = line[start : start + _MAX_SEGMENT_CHARS]
        if part.isascii():
            yield from segment(lang, part)
        else:
            end = 0
            for piece in segment(lang, part.translate(_TO_PLAIN_SPACES)):
                yield part[end : end + len(piece)]
                end += len(piece)


def _is_boundary(before: str, after: str) -> bool:
    """Return whether a sentence may end there without a space: True for `。我`, False for `torch.Tensor` and `.”`."""
    return after in _WHITESPACE or (after.isalnum() and not before.isalnum() and not before.isascii() and before != "’")
