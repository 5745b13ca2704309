"""The words that tokens stand for, as hashes: what two texts are compared by when only tokens are stored.

Tokens are written out as text again and read as words: runs of letters and digits without case, accents and
punctuation. So it does not matter how a tokenizer cuts, or that byte-level BPE has other tokens for the first word of
a text than for the same word behind a space.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from polyseme.corpus.dedup.minhash import SPACELESS
from polyseme.corpus.sampling import fold, mix
from polyseme.corpus.store import Corpus
from polyseme.errors import UserError
from polyseme.text.cached_encoder import powers
from polyseme.text.tokenizer import Tokenizer

BREAK = "\U0010ffff"  # stands before each document; Unicode promises that it is no character
_LOST = 0xFFFD  # what stands for an unknown token, and for bytes that are no text
_GAP, _WORD, _ALONE, _NOTHING = range(4)  # between words, part of a word, a word of one character, as if not there


class Words(NamedTuple):
    """The words of some documents, in order."""

    hashes: np.ndarray  # uint64
    starts: np.ndarray  # int64: the character each begins with
    document: np.ndarray  # int64: which document it is in, from 0
    lost: np.ndarray  # bool: a part of it is unknown
    edges: tuple[bool, bool]  # whether a word touches the beginning and the end of the text

    def inner(self, front: bool, back: bool) -> Words:
        """Without the words at those edges: where a text was cut they may be parts of words."""
        kept = slice(int(front and self.edges[0]), len(self.hashes) - int(back and self.edges[1]))
        return Words(self.hashes[kept], self.starts[kept], self.document[kept], self.lost[kept], self.edges)

    def grams(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The hash of the n words from each word on; whether all are of one document; whether one is lost."""
        size = len(self.hashes)
        count = max(size - n + 1, 0)
        factors, inverses = powers(max(size.bit_length(), 16))
        sums = np.zeros(size + 1, np.uint64)
        np.cumsum(self.hashes * factors[:size], out=sums[1:])
        lost = np.concatenate([[0], np.cumsum(self.lost)])
        hashes = mix((sums[n:] - sums[:count]) * inverses[:count])
        return hashes, self.document[:count] == self.document[n - 1 :], lost[n:] > lost[:count]


def read_words(text: str) -> Words:
    """The words of a text, whose documents `BREAK` parts.

    A word's hash is a polynomial over its characters, as a sum over the whole text divided by where the word begins.
    """
    classes, values = _alphabet()
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32).astype(np.int64)
    kinds, places = classes[codes], None
    if (kinds == _NOTHING).any():
        places = np.flatnonzero(kinds != _NOTHING)
        codes, kinds = codes[places], kinds[places]
    begins = kinds != _GAP
    begins[1:] &= (kinds[1:] != _WORD) | (kinds[:-1] != _WORD)
    starts = np.flatnonzero(begins)
    factors, inverses = powers(max(len(codes).bit_length(), 16))
    sums = np.add.reduceat(values[codes] * factors[: len(codes)], starts) if starts.size else np.zeros(0, np.uint64)
    lost = np.zeros(len(starts), bool)
    lost[np.searchsorted(starts, np.flatnonzero(codes == _LOST), side="right") - 1] = True
    breaks = np.flatnonzero(codes == ord(BREAK))
    first = int(breaks.size > 0 and breaks[0] == 0)
    edges = bool((kinds[first : first + 1] != _GAP).any()), bool((kinds[-1:] != _GAP).any())
    document = np.searchsorted(breaks, starts) - first
    return Words(mix(sums * inverses[starts]), starts if places is None else places[starts], document, lost, edges)


@lru_cache(maxsize=1)
def _alphabet() -> tuple[np.ndarray, np.ndarray]:
    """For each code point its class, and a random number that stands for it: one for a, A and Á."""
    classes = np.full(0x110000, _GAP, np.uint8)
    bases = np.arange(0x110000)
    for code in range(0x20000):
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Cf" or unicodedata.combining(character) >= 200:  # joiners, marks of direction; accents
            classes[code] = _NOTHING
        elif category[0] in "LMN":
            classes[code] = _WORD
            base, *marks = list(unicodedata.normalize("NFD", character))
            plain = base if all(unicodedata.combining(mark) >= 200 for mark in marks) else character
            bases[code] = ord(plain.lower()[0])
    for start, end in SPACELESS:
        part = classes[start : end + 1]
        part[(part == _WORD) | (start >= 0x20000)] = _ALONE
    classes[_LOST] = _WORD
    values = fold(np.zeros(1, np.uint64), bases)
    values[classes == _GAP] = 0
    return classes, values


class Writer:
    """Writes tokens out. Pieces that carry no spaces (BERT's) get one where a word starts."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        pieces = _piece_bytes(tokenizer)
        self.size = len(pieces)
        self.spaced = any(b" " in piece for piece in pieces)
        self.pieces = np.empty(3 * self.size, object)
        self.pieces[:] = [mark + piece for mark in (b"", b" ", BREAK.encode()) for piece in pieces]

    def write(self, ids: np.ndarray, words: np.ndarray | None, lengths: np.ndarray) -> str:
        """Documents of the given lengths, with a break before each."""
        if ids.size and int(ids.max()) >= self.size:
            raise UserError(f"token {int(ids.max())} is not in the corpus's vocabulary of {self.size}: it is damaged")
        rows = ids.astype(np.int64)
        if words is not None:
            rows += words * self.size
        firsts = (np.cumsum(lengths) - lengths)[lengths > 0]
        rows[firsts] = ids[firsts] + np.int64(2 * self.size)
        return b"".join(self.pieces[rows].tolist()).decode("utf-8", "replace")

    def encode(self, texts: Sequence[str]) -> tuple[str, np.ndarray]:
        """Texts as their tokens give them, and how many tokens each has."""
        sound = [text.encode("utf-8", "replace").decode().replace(BREAK, " ") for text in texts]
        run = self.tokenizer.encode_run(sound)
        return self.write(run.ids, None if self.spaced else run.words, run.lengths), run.lengths

    def words(self, corpus: Corpus, starts: np.ndarray, lengths: np.ndarray) -> Words:
        """The words of stretches of a corpus, each stretch a document of its own."""
        words = None if self.spaced else corpus.gather_words(starts, lengths)
        return read_words(self.write(corpus.gather(starts, lengths), words, lengths))


def _piece_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """What each vocabulary entry writes, with its spaces; bytes, as an entry may be a part of a character."""
    said = json.loads(tokenizer.backend.to_str())
    model, specials = said["model"], tokenizer.specials
    if '"ByteLevel"' in json.dumps([said["pre_tokenizer"], said["decoder"]]):
        written = _byte_letters()
        found = [bytes(written[c] for c in p) if written.keys() >= set(p) else p.encode() for p in tokenizer.vocabulary]
    else:
        prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""

        def write(piece: str) -> bytes:
            if model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", piece):
                return bytes([int(piece[3:5], 16)])
            space = " " if suffix and piece.endswith(suffix) else ""
            return (piece.removeprefix(prefix).removesuffix(suffix).replace("▁", " ") + space).encode()

        found = [write(piece) for piece in tokenizer.vocabulary]
    if specials.unk is not None and specials.unk not in (specials.bos, specials.eos):
        found[specials.unk] = chr(_LOST).encode()
    return found


def _byte_letters() -> dict[str, int]:
    """The letter that GPT-2's vocabulary writes for each byte: itself where it can be seen, else one from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}
