"""Hashes of the words of tokenized text, to compare texts when only tokens are stored.

Tokens are decoded and split into words: runs of letters and digits, without case, accents and punctuation. The
comparison therefore does not depend on how the tokenizer splits words, or on byte-level BPE having different tokens
for a word at the start of a text and after a space.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from polyseme.corpus.dedup.minhash import SCRIPTS_WITHOUT_SPACES
from polyseme.corpus.store import Corpus
from polyseme.errors import DataError
from polyseme.rng import hash_combine, splitmix64
from polyseme.text.cached_encoder import hash_spans
from polyseme.text.tokenizer import Tokenizer

DOCUMENT_BREAK = "\U0010ffff"  # precedes each document; a Unicode noncharacter
_REPLACEMENT_CHAR = 0xFFFD  # stands for unknown tokens and invalid bytes
# Character classes: between words, part of a word, a word by itself, ignored
_SEPARATOR, _WORD, _SINGLE_CHAR_WORD, _IGNORED = range(4)


class HashedWords(NamedTuple):
    """Hashes of the words of some documents, in order."""

    hashes: np.ndarray  # uint64
    starts: np.ndarray  # int64: first character of each word
    document_ids: np.ndarray  # int64: index of its document
    has_unknown: np.ndarray  # bool: contains an unknown token
    touches_edges: tuple[bool, bool]  # whether a word touches the start and the end of the text

    def drop_edge_words(self, at_start: bool, at_end: bool) -> "HashedWords":
        """Drop the words that touch the start or end of the text, which may be incomplete where it was cut."""
        starts, ends = int(at_start and self.touches_edges[0]), int(at_end and self.touches_edges[1])
        arrays = (array[starts : len(array) - ends] for array in self[:4])
        return HashedWords._make([*arrays, self.touches_edges])

    def hash_ngrams(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each n-gram its hash, whether it lies within one document, and whether it contains an unknown."""
        count = max(len(self.hashes) - n + 1, 0)
        num_unknown = np.concatenate([[0], np.cumsum(self.has_unknown)])
        hashes = splitmix64(hash_spans(self.hashes, slice(count), slice(n, None)))
        return hashes, self.document_ids[:count] == self.document_ids[n - 1 :], num_unknown[n:] > num_unknown[:count]


def hash_words(text: str) -> HashedWords:
    """Hash the words of a text in which `DOCUMENT_BREAK` separates documents.

    A span to hash extends to the next word, since separators add 0.
    """
    classes, values = _character_classes()
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32).astype(np.int64)
    char_classes, positions = classes[codes], None
    if (char_classes == _IGNORED).any():
        positions = np.flatnonzero(char_classes != _IGNORED)
        codes, char_classes = codes[positions], char_classes[positions]
    starts_word = char_classes != _SEPARATOR
    starts_word[1:] &= (char_classes[1:] != _WORD) | (char_classes[:-1] != _WORD)
    starts = np.flatnonzero(starts_word)
    has_unknown = np.zeros(len(starts), bool)
    has_unknown[np.searchsorted(starts, np.flatnonzero(codes == _REPLACEMENT_CHAR), side="right") - 1] = True
    breaks = np.flatnonzero(codes == ord(DOCUMENT_BREAK))
    first = int(breaks.size > 0 and breaks[0] == 0)
    edges = char_classes[first : first + 1], char_classes[-1:]
    touches_edges = bool((edges[0] != _SEPARATOR).any()), bool((edges[1] != _SEPARATOR).any())
    document_ids = np.searchsorted(breaks, starts) - first
    hashes = splitmix64(hash_spans(values[codes], starts, np.append(starts, len(codes))[1:]))
    starts = starts if positions is None else positions[starts]
    return HashedWords(hashes, starts, document_ids, has_unknown, touches_edges)


@lru_cache(maxsize=1)
def _character_classes() -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each code point, and a random value that is equal for a, A and Á."""
    classes = np.full(0x110000, _SEPARATOR, np.uint8)
    bases = np.arange(0x110000)
    for code in range(0x20000):
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Cf" or unicodedata.combining(character) >= 200:  # joiners, direction marks; accents
            classes[code] = _IGNORED
        elif category[0] in "LMN":
            classes[code] = _WORD
            base, *marks = list(unicodedata.normalize("NFD", character))
            base_char = base if all(unicodedata.combining(mark) >= 200 for mark in marks) else character
            bases[code] = ord(base_char.lower()[0])
    for start, end in SCRIPTS_WITHOUT_SPACES:
        part = classes[start : end + 1]
        part[(part == _WORD) | (start >= 0x20000)] = _SINGLE_CHAR_WORD
    classes[_REPLACEMENT_CHAR] = _WORD
    values = hash_combine(np.zeros(1, np.uint64), bases)
    values[classes == _SEPARATOR] = 0
    return classes, values


class Detokenizer:
    """Decodes tokens to text. Where tokens carry no spaces (BERT), inserts one before each word."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        pieces = _piece_bytes(tokenizer)
        self.vocab_size = len(pieces)
        self.has_spaces = any(b" " in piece for piece in pieces)
        self.pieces = np.empty(3 * self.vocab_size, object)
        self.pieces[:] = [mark + piece for mark in (b"", b" ", DOCUMENT_BREAK.encode()) for piece in pieces]

    def decode(self, ids: np.ndarray, word_starts: np.ndarray | None, lengths: np.ndarray) -> str:
        """Decode documents of the given lengths, with `DOCUMENT_BREAK` before each."""
        if ids.size and (largest := int(ids.max())) >= self.vocab_size:
            raise DataError(f"the corpus is damaged: token {largest} is not in its vocabulary of {self.vocab_size}")
        rows = ids.astype(np.int64)
        if word_starts is not None:
            rows += word_starts * self.vocab_size
        document_starts = (np.cumsum(lengths) - lengths)[lengths > 0]
        rows[document_starts] = ids[document_starts] + np.int64(2 * self.vocab_size)
        return b"".join(self.pieces[rows].tolist()).decode("utf-8", "replace")

    def round_trip(self, texts: Sequence[str]) -> tuple[str, np.ndarray]:
        """Encode and decode texts; return the decoded text and the number of tokens of each."""
        valid_texts = [text.encode("utf-8", "replace").decode().replace(DOCUMENT_BREAK, " ") for text in texts]
        encoded = self.tokenizer.encode_corpus(valid_texts)
        word_starts = None if self.has_spaces else encoded.word_starts
        return self.decode(encoded.ids, word_starts, encoded.lengths), encoded.lengths

    def hash_corpus_words(self, corpus: Corpus, starts: np.ndarray, lengths: np.ndarray) -> HashedWords:
        """Hash the words of token ranges of a corpus, each treated as a document."""
        word_starts = None if self.has_spaces else corpus.gather_word_starts(starts, lengths)
        return hash_words(self.decode(corpus.gather_tokens(starts, lengths), word_starts, lengths))


def _piece_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each vocabulary entry, with its spaces. An entry may be part of a character."""
    tokenizer_json = json.loads(tokenizer.backend.to_str())
    model, specials = tokenizer_json["model"], tokenizer.special_token_ids
    if '"ByteLevel"' in json.dumps([tokenizer_json["pre_tokenizer"], tokenizer_json["decoder"]]):
        byte_values = _byte_level_alphabet()

        def to_bytes(piece: str) -> bytes:
            return bytes(byte_values[char] for char in piece) if byte_values.keys() >= set(piece) else piece.encode()
    else:
        prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""

        def to_bytes(piece: str) -> bytes:
            if model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", piece):
                return bytes([int(piece[3:5], 16)])
            space = " " if suffix and piece.endswith(suffix) else ""
            return (piece.removeprefix(prefix).removesuffix(suffix).replace("▁", " ") + space).encode()

    token_bytes = [to_bytes(piece) for piece in tokenizer.vocabulary]
    if specials.unk is not None and specials.unk not in (specials.bos, specials.eos):
        token_bytes[specials.unk] = chr(_REPLACEMENT_CHAR).encode()
    return token_bytes


def _byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's byte alphabet: a printable byte stands for itself, others for characters from U+0100 on."""
    printable_bytes = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other_bytes = [byte for byte in range(256) if byte not in printable_bytes]
    return {chr(byte): byte for byte in printable_bytes} | {chr(0x100 + i): byte for i, byte in enumerate(other_bytes)}
