"""Sentences that add up to the text: nothing lost, and byte-level BPE cannot tell that it was cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from polyseme.errors import UnsupportedError

# What Unicode and the tokenizers call white space; `str.strip()` alone also takes four control characters.
_WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a" + (
    "\u2028\u2029\u202f\u205f\u3000"
)
_TO_PLAIN_SPACES = str.maketrans(dict.fromkeys(_WHITESPACE, " "))
_MAX_SEGMENT_CHARS = 10_000  # characters; the splitter looks far ahead for closing quotes, so a huge line is cut up


def split_sentences(text: str, lang: str = "en") -> list[str]:
    """Split a text into sentences whose concatenation is the text.

    A line break always ends a sentence. White space between two sentences goes to the front of the second,
    where byte-level BPE wants it: a pre-token never reaches from a word over the white space behind it, so
    encoding the sentences one by one gives the ids of the whole text. Only the last may end in white space.
    """
    sentences: list[str] = []
    parts: list[str] = []  # of the sentence that may go on
    whitespace = ""  # what stands between the last sentence and the next
    for number, line in enumerate(text.split("\n")):
        if number:
            whitespace += "\n"
        for piece in _segment_line(line, lang):
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


def _segment_line(line: str, lang: str) -> Iterator[str]:
    """A line as the splitter cuts it. It is shown plain spaces only: some others make it panic."""
    segment = _load_segmenter()
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
    """Whether a sentence may end here although no space stands between.

    Yes at `。我`; no at `torch.Tensor`, a name, nor at `.”` and the like, which may be one token.
    """
    return after in _WHITESPACE or (after.isalnum() and not before.isalnum() and not before.isascii() and before != "’")


@cache
def _load_segmenter() -> Callable[[str, str], list[str]]:
    try:
        import sentencex
    except ImportError:
        raise UnsupportedError(
            "sentences are split by sentencex, which is not installed: pip install sentencex"
        ) from None
    segment: Callable[[str, str], list[str]] = sentencex.segment
    return segment
