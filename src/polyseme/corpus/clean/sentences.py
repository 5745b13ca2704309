"""Sentences that add up to the text: nothing lost, and byte-level BPE cannot tell that it was cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from polyseme.errors import UserError

# What Unicode and the tokenizers call white space; `str.strip()` alone also takes four control characters.
_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a" + (
    "\u2028\u2029\u202f\u205f\u3000"
)
_PLAIN = str.maketrans(dict.fromkeys(_SPACE, " "))
_LONGEST = 10_000  # characters; the splitter looks far ahead for closing quotes, so a huge line is cut up


def split_sentences(text: str, lang: str = "en") -> list[str]:
    """Split a text into sentences whose concatenation is the text.

    A line break always ends a sentence. White space between two sentences goes to the front of the second,
    where byte-level BPE wants it: a pre-token never reaches from a word over the white space behind it, so
    encoding the sentences one by one gives the ids of the whole text. Only the last may end in white space.
    """
    found: list[str] = []
    parts: list[str] = []  # of the sentence that may go on
    space = ""  # what stands between the last sentence and the next
    for number, line in enumerate(text.split("\n")):
        if number:
            space += "\n"
        for piece in _pieces(line, lang):
            body = piece.rstrip(_SPACE)
            if not body:
                space += piece
                continue
            if parts and not space and not _may_cut(parts[-1][-1], body[0]):
                parts.append(body)
            else:
                found += ["".join(parts)] * bool(parts)
                parts = [space + body]
            space = piece[len(body) :]
    found += ["".join(parts)] * bool(parts)
    if space:
        found[-1:] = ["".join(found[-1:]) + space]
    return found


def _pieces(line: str, lang: str) -> Iterator[str]:
    """A line as the splitter cuts it. It is shown plain spaces only: some others make it panic."""
    segment = _splitter()
    for start in range(0, len(line), _LONGEST):
        part = line[start : start + _LONGEST]
        if part.isascii():
            yield from segment(lang, part)
        else:
            end = 0
            for piece in segment(lang, part.translate(_PLAIN)):
                yield part[end : end + len(piece)]
                end += len(piece)


def _may_cut(before: str, after: str) -> bool:
    """Whether a sentence may end here although no space stands between.

    Yes at `。我`; no at `torch.Tensor`, a name, nor at `.”` and the like, which may be one token.
    """
    return after in _SPACE or (after.isalnum() and not before.isalnum() and not before.isascii() and before != "’")


@cache
def _splitter() -> Callable[[str, str], list[str]]:
    try:
        import sentencex
    except ImportError:
        raise UserError("sentences are split by sentencex, which is not installed: pip install sentencex") from None
    split: Callable[[str, str], list[str]] = sentencex.segment
    return split
