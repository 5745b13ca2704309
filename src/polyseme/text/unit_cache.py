"""Table of short units of text (usually words) and their token ids, looked up for many units at once.

A unit is stored as 64-bit words of its UTF-8 bytes and matches only if all of its words are equal. The hash decides
where to look, never what matches, so no unit can be mistaken for another one. It is keyed with random bits drawn when
the process starts, so that nobody can write units that share a slot and slow the lookup down.
"""

import secrets
from typing import NamedTuple

import numpy as np

MAX_UNIT_BYTES = 47  # longer units are rare and not cached
_WORD_BYTES = 8
_MAX_LATER_WORDS = MAX_UNIT_BYTES // _WORD_BYTES
_EMPTY = np.uint64(2**64 - 1)  # a word of padding only; UTF-8 has no byte 0xFF
_PADDING = np.array([2**64 - 2 ** (8 * size) for size in range(_WORD_BYTES + 1)], np.uint64)  # after `size` bytes
_KEY, _FACTOR = (np.uint64(secrets.randbits(64) | 1) for _ in range(2))


class EncodedTexts(NamedTuple):
    """Ids of many texts, concatenated, without special tokens."""

    ids: np.ndarray  # int32 [T]
    lengths: np.ndarray  # int64 [number of texts]
    word_starts: np.ndarray  # bool [T]; True for the first token of each word and of each text

    @property
    def offsets(self) -> np.ndarray:
        """Index of the first id of each text."""
        return np.cumsum(self.lengths) - self.lengths


class Units(NamedTuple):
    """Units as words of eight bytes. The last word of a unit, and no other, ends in padding.

    So of two different units neither has the words of the other at its beginning.
    """

    first_words: np.ndarray  # uint64 [n]; only padding for a unit that is too long
    later_words: list[tuple[np.ndarray, np.ndarray]]  # per further word: indices of the units that have it, the words

    @property
    def is_short(self) -> np.ndarray:
        """Whether each unit is short enough to be cached."""
        return self.first_words != _EMPTY

    def hash(self) -> np.ndarray:
        """Return a keyed hash of each unit."""
        hashes = _mix(self.first_words)
        for indices, words in self.later_words:
            hashes[indices] = _mix(hashes[indices] ^ words)
        return hashes

    def take(self, indices: np.ndarray) -> "Units":
        """Return the units with these indices, which must be sorted."""
        later_words = []
        for unit_indices, words in self.later_words:
            positions = np.searchsorted(unit_indices, indices)
            has_word = unit_indices.take(positions, mode="clip") == indices
            if not has_word.any():
                break
            later_words.append((np.flatnonzero(has_word), words[positions[has_word]]))
        return Units(self.first_words[indices], later_words)


def load_units(raw: bytes, starts: np.ndarray, sizes: np.ndarray) -> Units:
    """Read the units at the bytes `starts` of UTF-8 text, which is followed by eight more bytes."""
    windows = np.ndarray(len(raw) - _WORD_BYTES + 1, f"V{_WORD_BYTES}", raw, strides=(1,))
    sizes = np.where(sizes <= MAX_UNIT_BYTES, sizes, 0)
    first_words = windows[starts].view("<u8") | _PADDING.take(sizes, mode="clip")
    later_words = []
    indices, offset = np.flatnonzero(sizes >= _WORD_BYTES), _WORD_BYTES
    while indices.size:
        remaining = sizes[indices] - offset
        words = windows[starts[indices] + offset].view("<u8") | _PADDING.take(remaining, mode="clip")
        later_words.append((indices, words))
        indices, offset = indices[remaining >= _WORD_BYTES], offset + _WORD_BYTES
    return Units(first_words, later_words)


def _mix(words: np.ndarray) -> np.ndarray:
    state = (words ^ _KEY) * _FACTOR
    state ^= state >> np.uint64(32)
    state *= _FACTOR
    return state


class UnitCache:
    """Open-addressing hash table of 2^bits slots from units to their ids, which are stored concatenated.

    Units are numbered from 1; 0 stands for a unit that is not in the table, and its number of ids is 0.
    """

    def __init__(self, bits: int):
        self.bits, self.num_units, self.num_ids = bits, 0, 0
        self.slots = np.zeros(1 << bits, np.int32)  # the unit in each slot
        self.first_words = np.zeros((1 << bits - 1) + 1, np.uint64)
        self.first_words[0] = _EMPTY
        self.later_words = np.zeros((_MAX_LATER_WORDS, (1 << bits - 1) + 1), np.uint64)
        self.offsets = np.zeros((1 << bits - 1) + 1, np.int64)  # start of each unit in `ids`
        self.lengths = np.zeros((1 << bits - 1) + 1, np.int64)
        self.ids = np.zeros(1 << bits, np.int32)
        self.word_starts = np.zeros(1 << bits, bool)

    def find(self, units: Units) -> np.ndarray:
        """Return the number of each unit, 0 if it is not in the table."""
        slots = self._first_slots(units)
        unit_numbers, is_other = self._probe(units, slots)
        unresolved = np.flatnonzero(is_other)
        indices = unresolved
        while indices.size:
            units, slots = units.take(unresolved), slots[unresolved] + 1 & self.slots.size - 1
            unit_numbers[indices], is_other = self._probe(units, slots)
            unresolved = np.flatnonzero(is_other)
            indices = indices[unresolved]
        return unit_numbers

    def _first_slots(self, units: Units) -> np.ndarray:
        return (units.hash() >> np.uint64(64 - self.bits)).astype(np.int64)

    def _probe(self, units: Units, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each unit if it is in its slot, else 0, and whether another unit is there."""
        unit_numbers = self.slots[slots]
        is_match = self.first_words[unit_numbers] == units.first_words
        for (indices, words), stored_words in zip(units.later_words, self.later_words):
            is_match[indices] &= stored_words[unit_numbers[indices]] == words
        return unit_numbers * is_match, (unit_numbers > 0) & ~is_match

    def fits(self, encoded: EncodedTexts) -> bool:
        """Return whether there is room for these units."""
        num_units, num_ids = self.num_units + len(encoded.lengths), self.num_ids + len(encoded.ids)
        return num_units < len(self.offsets) and num_ids <= len(self.ids)

    def add(self, units: Units, encoded: EncodedTexts) -> None:
        """Add units, which must be distinct, not in the table, and not too long."""
        unit_numbers = 1 + np.arange(self.num_units, self.num_units + len(units.first_words))
        new_ids = slice(self.num_ids, self.num_ids + len(encoded.ids))
        self.first_words[unit_numbers] = units.first_words
        for (indices, words), stored_words in zip(units.later_words, self.later_words):
            stored_words[unit_numbers[indices]] = words
        self.offsets[unit_numbers] = self.num_ids + encoded.offsets
        self.lengths[unit_numbers] = encoded.lengths
        self.ids[new_ids], self.word_starts[new_ids] = encoded.ids, encoded.word_starts
        self.num_units, self.num_ids = self.num_units + len(unit_numbers), new_ids.stop
        slots = self._first_slots(units)
        unplaced = np.arange(len(unit_numbers))
        while unplaced.size:
            free = unplaced[self.slots[slots[unplaced]] == 0]
            self.slots[slots[free]] = unit_numbers[free]  # if several want one slot, the last one gets it
            unplaced = unplaced[self.slots[slots[unplaced]] != unit_numbers[unplaced]]
            slots[unplaced] = slots[unplaced] + 1 & self.slots.size - 1
