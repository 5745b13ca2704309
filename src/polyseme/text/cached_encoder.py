"""Encoding a corpus: each stretch of text that is encoded on its own is encoded once and then looked up.

BERT's and GPT-2's tokenizers cut a text into words first and never look across the cuts. So text is cut here where
they surely cut too, all of it at once in numpy; a unit (a word, mostly) is known by a hash, and only units that were
not met before go through the tokenizer itself. The ids are the tokenizer's own; they come ten times as fast.
"""

from __future__ import annotations

import itertools
import json
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer as Backend

BATCH = 1 << 18  # characters looked at together: the arrays stay in the processor's cache
LONGEST = 48  # characters; a longer unit is not worth remembering
_BASE = 0xD6E8FEB86659FD93  # odd, so it has an inverse modulo 2^64
_OTHER, _SPACE, _ALONE, _LETTER, _MARK, _QUOTE = range(6)


class Run(NamedTuple):
    """Many texts encoded end to end, without special tokens."""

    ids: np.ndarray  # int32 [T]
    lengths: np.ndarray  # int64, one for each text
    words: np.ndarray  # bool [T], True where a word starts; the first token of a text always does


def encode_directly(backend: Backend, texts: Sequence[str], starts_word: np.ndarray | None) -> Run:
    """What the tokenizer says. `starts_word` tells by the id whether a word starts; None asks the tokenizer."""
    encode = backend.encode_batch if starts_word is None else backend.encode_batch_fast
    found = encode(list(texts), add_special_tokens=False)
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    total = int(lengths.sum())
    chain = itertools.chain.from_iterable
    ids = np.fromiter(chain(encoding.ids for encoding in found), np.int32, total)
    if starts_word is None:
        of = np.fromiter(chain(encoding.word_ids for encoding in found), np.int32, total)
        words = np.concatenate([np.ones(min(total, 1), bool), of[1:] != of[:-1]])
    else:
        words = starts_word[ids]
    words[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    return Run(ids, lengths, words)


def cuts_of(backend: Backend) -> str | None:
    """Which rule of cutting holds for a tokenizer; None where none is known to."""
    said = json.loads(backend.to_str())
    if any(not token["special"] for token in said["added_tokens"]):
        return None  # such a token is found anywhere in a text
    model, before, normal = said["model"], said["pre_tokenizer"] or {}, said["normalizer"] or {}
    kinds = model["type"], normal.get("type"), before.get("type")
    if (
        kinds[0] in ("WordPiece", "WordLevel")
        and kinds[1:] == ("BertNormalizer", "BertPreTokenizer")
        and normal["clean_text"]
    ):
        return "bert" if normal["handle_chinese_chars"] else "bert without Han"
    if kinds in (("BPE", None, "ByteLevel"), ("BPE", "Lowercase", "ByteLevel")) and not model["dropout"]:
        return "gpt2" if before["use_regex"] and not before["add_prefix_space"] else None
    steps = [step["type"] for step in before.get("pretokenizers", [])]
    if kinds[0] == "WordLevel" and kinds[1] in (None, "Lowercase") and steps == ["WhitespaceSplit", "Split"]:
        return "spaces"
    return None


@cache
def _classes(rule: str) -> np.ndarray:
    """The class of every code point, uint8."""
    found = np.full(0x110000, _OTHER, np.uint8)
    if rule in ("gpt2", "spaces"):  # white space as Unicode has it
        found[
            [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
        ] = _SPACE
        for code in range(33, 127) if rule == "gpt2" else ():
            found[code] = _LETTER if chr(code).isalnum() else _QUOTE if chr(code) == "'" else _MARK
        return found
    # BERT's cleaning takes control characters out without a gap, so they are no space.
    found[[9, 10, 13, 32, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000]] = _SPACE
    spans = [(33, 48), (58, 65), (91, 97), (123, 127)]
    spans += [(0x2010, 0x2028), (0x2030, 0x205F), (0x3001, 0x3004), (0x3008, 0x3012), (0xFF01, 0xFF21)]
    for code in itertools.chain.from_iterable(itertools.starmap(range, spans)):
        if code < 128 or unicodedata.category(chr(code))[0] == "P":
            found[code] = _ALONE
    if rule == "bert":
        for start, end in (
            *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
            *((0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
        ):
            found[start : end + 1] = _ALONE
    return found


def _begins(classes: np.ndarray, rule: str) -> np.ndarray:
    """Where units begin, bool; the first place is for the caller to set."""
    begins = np.empty(len(classes), bool)
    before, after = classes[:-1], classes[1:]
    if rule == "gpt2":
        # A word never reaches into the white space behind it; white space belongs to what follows. Letters and marks
        # are parted too, but for what follows an apostrophe: 's is one piece.
        begins[1:] = (after == _SPACE) & (before != _SPACE)
        begins[1:] |= (before == _LETTER) & (after >= _MARK)
        begins[1:] |= (before == _MARK) & (after == _LETTER)
    else:
        begins[1:] = (before != after) | (after == _ALONE)
    return begins


@lru_cache(maxsize=8)
def powers(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The first 2^bits powers of the base of our hashes, and of its inverse.

    A stretch's hash is its sum of code times power, divided by the power it starts with: sums of all places at once
    give the hashes of all stretches.
    """

    def of(base: int) -> np.ndarray:
        factors = np.full(1 << bits, base, np.uint64)
        factors[0] = 1
        return np.multiply.accumulate(factors)

    return of(_BASE), of(pow(_BASE, -1, 1 << 64))


@dataclass(eq=False)
class _Known:
    """A table of units by hash, open addressing, and the ids of each end to end."""

    bits: int
    keys: np.ndarray
    places: np.ndarray  # int32: which unit
    starts: np.ndarray  # int64: of each unit, in ids
    sizes: np.ndarray
    ids: np.ndarray
    words: np.ndarray
    count: int = 0
    used: int = 0

    @classmethod
    def empty(cls, bits: int) -> _Known:
        units, ids = 1 << bits - 1, 1 << bits
        return cls(
            bits,
            np.zeros(1 << bits, np.uint64),
            np.zeros(1 << bits, np.int32),
            np.zeros(units, np.int64),
            np.zeros(units, np.int64),
            np.zeros(ids, np.int32),
            np.zeros(ids, bool),
        )

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """The number of each unit, -1 where it is not known."""
        slots = (hashes >> np.uint64(64 - self.bits)).astype(np.int64)
        seen = self.keys[slots]
        found = np.where(seen == hashes, self.places[slots], -1)
        left = np.flatnonzero((seen != hashes) & (seen != 0))
        while left.size:
            slots[left] = slots[left] + 1 & self.keys.size - 1
            seen = self.keys[slots[left]]
            hit = seen == hashes[left]
            found[left[hit]] = self.places[slots[left[hit]]]
            left = left[~hit & (seen != 0)]
        return found

    def fits(self, run: Run) -> bool:
        return self.count + len(run.lengths) <= len(self.starts) and self.used + len(run.ids) <= len(self.ids)

    def add(self, hashes: np.ndarray, run: Run) -> None:
        """Hashes that differ from each other and from all that are known, with what they stand for."""
        n, t = len(hashes), len(run.ids)
        numbers = np.arange(self.count, self.count + n)
        self.starts[numbers] = self.used + np.cumsum(run.lengths) - run.lengths
        self.sizes[numbers] = run.lengths
        self.ids[self.used : self.used + t] = run.ids
        self.words[self.used : self.used + t] = run.words
        self.count, self.used = self.count + n, self.used + t
        slots = (hashes >> np.uint64(64 - self.bits)).astype(np.int64)
        left = np.arange(n)
        while left.size:
            free = left[self.keys[slots[left]] == 0]
            self.keys[slots[free]] = hashes[free]  # of several for one slot the last stays
            self.places[slots[free]] = numbers[free]
            left = left[self.places[slots[left]] != numbers[left]]
            slots[left] = slots[left] + 1 & self.keys.size - 1


class Units:
    """Encodes texts unit by unit; what it remembers is bounded, and forgotten all at once when it is full."""

    def __init__(self, backend: Backend, rule: str, starts_word: np.ndarray | None, bits: int = 20):
        self.backend, self.rule, self.starts_word, self.bits = backend, rule, starts_word, bits
        self.lowercase = bool(getattr(backend.normalizer, "lowercase", backend.normalizer is not None))
        self.known = _Known.empty(bits)
        self.lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> Run:
        with self.lock:
            runs = [self._encode(batch) for batch in _batches(texts)]
        if len(runs) == 1:
            return runs[0]
        if not runs:
            return Run(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, bool))
        return Run(*map(np.concatenate, zip(*runs)))

    def _encode(self, texts: Sequence[str]) -> Run:
        joined = "".join(texts)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        if not joined:
            return Run(np.zeros(0, np.int32), np.zeros(len(texts), np.int64), np.zeros(0, bool))
        codes = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
        classes = _classes(self.rule)[codes]
        begins = _begins(classes, self.rule)
        begins[0] = True
        begins[ends[:-1][ends[:-1] < len(codes)]] = True
        starts = np.flatnonzero(begins)
        stops = np.append(starts[1:], len(codes))
        if self.rule != "gpt2":  # white space is no token
            kept = classes[starts] != _SPACE
            starts, stops = starts[kept], stops[kept]
        hashes = _hashes(codes, starts, stops)
        long = np.flatnonzero(stops - starts > LONGEST)
        hashes[long] = 2 + 2 * long.astype(np.uint64)  # even, each its own: neither known nor taken for another
        ids, words, sizes = self._look_up(joined, hashes, starts, stops)
        totals = np.concatenate([[0], np.cumsum(sizes)])
        borders = totals[np.searchsorted(starts, np.concatenate([[0], ends]))]
        lengths = np.diff(borders)
        words[borders[:-1][lengths > 0]] = True
        return Run(ids, lengths, words)

    def _look_up(
        self, joined: str, hashes: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids and word starts of all units end to end, and how many ids each unit has."""
        known = self.known
        found = known.find(hashes)
        places, sizes = known.starts[found], known.sizes[found]
        lost = np.flatnonzero(found < 0)
        if not lost.size:
            index = ranges(places, sizes)
            return known.ids[index], known.words[index], sizes
        fresh, firsts, which = np.unique(hashes[lost], return_index=True, return_inverse=True)
        first, stop = starts[lost[firsts]], stops[lost[firsts]]
        run = self._encode_units([joined[a:b] for a, b in zip(first.tolist(), stop.tolist())])
        sizes[lost] = run.lengths[which]
        places[lost] = known.used + (np.cumsum(run.lengths) - run.lengths)[which]
        index = ranges(places, sizes)
        ids = np.append(known.ids[: known.used], run.ids)[index]
        words = np.append(known.words[: known.used], run.words)[index]
        self._remember(fresh, run, stop - first)
        return ids, words, sizes

    def _encode_units(self, texts: Sequence[str]) -> Run:
        """Units not met before. Plain ASCII words are a matter of the model alone: no cleaning, nothing to cut."""
        words = list(map(self._plain_word, texts))
        tokenize = self.backend.model.tokenize
        found = [[] if word is None else [token.id for token in tokenize(word)] for word in words]
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        ids = np.fromiter(itertools.chain.from_iterable(found), np.int32, int(lengths.sum()))
        starts = np.zeros(len(ids), bool)
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        hard = np.fromiter((word is None for word in words), bool, len(words))
        if not hard.any():
            return Run(ids, lengths, starts)
        rest = encode_directly(self.backend, [t for t, word in zip(texts, words) if word is None], self.starts_word)
        places = np.cumsum(lengths) - lengths
        places[hard] = len(ids) + np.cumsum(rest.lengths) - rest.lengths
        lengths[hard] = rest.lengths
        index = ranges(places, lengths)
        return Run(np.append(ids, rest.ids)[index], lengths, np.append(starts, rest.words)[index])

    def _plain_word(self, text: str) -> str | None:
        """The word that the model is given for an ASCII word or number; None where it takes more than that."""
        body = text[1:] if self.rule == "gpt2" and text[0] == " " else text
        if not (body.isascii() and (body.isalpha() or body.isdigit() or (self.rule != "gpt2" and body.isalnum()))):
            return None
        body = body.lower() if self.lowercase else body
        return "Ġ" + body if len(body) < len(text) else body

    def _remember(self, hashes: np.ndarray, run: Run, characters: np.ndarray) -> None:
        short = characters <= LONGEST
        if not short.all():
            of = np.repeat(short, run.lengths)
            hashes, run = hashes[short], Run(run.ids[of], run.lengths[short], run.words[of])
        if not self.known.fits(run):
            self.known = _Known.empty(self.bits)
        if self.known.fits(run):
            self.known.add(hashes, run)


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    first, size = 0, 0
    for number, text in enumerate(texts):
        size += len(text)
        if size >= BATCH:
            yield texts[first : number + 1]
            first, size = number + 1, 0
    if first < len(texts):
        yield texts[first:]


def _hashes(codes: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """A hash of each unit: a polynomial of its code points, then mixed; never 0, which marks an empty slot."""
    factors, inverses = powers(max(len(codes) - 1, BATCH - 1).bit_length())
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum((codes + np.uint32(1)) * factors[: len(codes)], out=sums[1:])
    state = (sums[stops] - sums[starts]) * inverses[starts]
    state ^= state >> np.uint64(32)
    state *= np.uint64(0xD6E8FEB86659FD93)
    state ^= state >> np.uint64(32)
    state *= np.uint64(0xD6E8FEB86659FD93)
    state ^= state >> np.uint64(32)
    return state | np.uint64(1)


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Every index of many ranges, end to end."""
    ends = np.cumsum(sizes)
    index = np.repeat(starts - (ends - sizes), sizes)
    index += np.arange(len(index))
    return index
