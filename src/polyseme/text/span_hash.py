"""Keyed hash of spans of text, computed for many overlapping or adjacent spans at once.

The hash of a span is Σ value · base^position modulo 2^64. Both the value of each character and the base are drawn from
a key, so without the key nobody can write a word whose hash is that of another one: for two words of up to 47
characters the probability over all keys is below 2^-40. The hash must be mixed before its bits are used.
"""

import hashlib
from functools import cached_property, lru_cache

import numpy as np

NUM_CODE_POINTS = 0x110000
_MIN_POWERS_BITS = 18


class SpanHasher:
    """Hash function of spans; equal keys give equal hashes."""

    def __init__(self, key: bytes):
        self.key = key

    @cached_property
    def char_values(self) -> np.ndarray:
        """Random value of each code point, uint64 [NUM_CODE_POINTS]."""
        return np.frombuffer(hashlib.shake_128(b"values" + self.key).digest(8 * NUM_CODE_POINTS), "<u8")

    @cached_property
    def base(self) -> int:
        """Random base. As 3 modulo 8, it makes differences of its powers divisible by few powers of two."""
        return int.from_bytes(hashlib.shake_128(b"base" + self.key).digest(8)) & ~7 | 3

    def hash_spans(self, values: np.ndarray, starts: np.ndarray | slice, stops: np.ndarray | slice) -> np.ndarray:
        """Return the hash of each span of values (uint64), not mixed."""
        factors, inverses = _powers(self.base, max((len(values) - 1).bit_length(), _MIN_POWERS_BITS))
        prefix_sums = np.zeros(len(values) + 1, np.uint64)
        np.cumsum(values * factors[: len(values)], out=prefix_sums[1:])
        return np.asarray((prefix_sums[stops] - prefix_sums[starts]) * inverses[starts])


@lru_cache(maxsize=8)
def _powers(base: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first 2^bits powers of the base and of its inverse modulo 2^64."""

    def powers_of(number: int) -> np.ndarray:
        factors = np.full(1 << bits, number, np.uint64)
        factors[0] = 1
        return np.multiply.accumulate(factors)

    return powers_of(base), powers_of(pow(base, -1, 1 << 64))
