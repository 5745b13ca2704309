"""Counter-based random numbers: each draw is a hash of (seed, epoch, sample, position, stream).

A draw depends on nothing else: not on the other samples of a batch, the rank, the worker, or earlier draws, so a
resumed run and a run on more devices see the same data. Each `RandomStream` is independent of the others at the same
position.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from math import isqrt

import numpy as np

FEISTEL_ROUNDS = 4
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: splitmix64's step


class RandomStream(IntEnum):
    """What a draw decides. Results depend on the numbers: never change one, and give every new stream a new one."""

    # masked LM, per token
    MASK_CHOICE = 0  # is it predicted
    MASK_ACTION = 1  # is it masked, replaced or left as it is
    REPLACEMENT_ID = 2
    # sentence pairs, per pair
    PAIR_SPLIT = 3  # where the first text ends
    PAIR_IS_NEGATIVE = 4  # is the second text a random one, or are the two swapped
    RANDOM_SENTENCE = 5  # where the random text starts
    SHORT_SEQUENCE = 6  # is the pair shortened, and to which length
    # permutation LM
    SPAN_LENGTH = 16  # per window
    SPAN_POSITION = 17  # per window
    PERMUTATION_RANK = 18  # per token
    # masked spans
    MASK_BUDGET = 20  # per run of words: how many are predicted
    MASK_SPAN_RESIDUAL = 21  # per run of words: how much of the first span lies before it
    MASK_SPAN_LENGTH = 22  # per span
    MASK_SPAN_POSITION = 23  # per span
    # span corruption, per token
    CORRUPTION_GAPS = 24  # does a kept segment end after it
    CORRUPTION_SPANS = 25  # does a noise span end after it
    # streaming LM, per step
    BPTT_IS_SHORT = 26
    BPTT_LENGTH = 27
    # word2vec
    SUBSAMPLING = 32  # per word
    WINDOW_SIZE = 33  # per word
    NEGATIVE_SAMPLES = 34  # per block
    # sequence to sequence
    SCHEDULED_SAMPLING = 36  # per target token: is the model's own prediction read instead of it
    # decoding
    GENERATION = 40  # per generated token


def splitmix64(state: np.ndarray) -> np.ndarray:
    """The output function of splitmix64 (Steele, Lea, Flood 2014): all input bits move all output bits."""
    state = state ^ (state >> np.uint64(30))
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def hash_combine(state: np.ndarray, value: int | np.ndarray) -> np.ndarray:
    """A hash of what `state` is a hash of, and one number more."""
    if isinstance(value, int):
        value = np.array([value % 2**64], dtype=np.uint64)
    return splitmix64(state + (value.astype(np.uint64) + np.uint64(1)) * GOLDEN_GAMMA)


def feistel_permutation(indices: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
    """Where a keyed permutation of range(n) sends `indices`: a bijection for every n, computed for any part
    alone.

    A Feistel network over two digits of radix about √n; its domain is less than n + √n numbers, and those
    that land outside range(n) are sent on until they are inside (cycle walking; Black and Rogaway 2002, §3).
    """
    high = isqrt(n - 1) + 1 if n > 1 else 1
    low = -(-n // high)
    keys = [hash_combine(key, round_index) for round_index in range(2 * FEISTEL_ROUNDS)]

    def once(values: np.ndarray) -> np.ndarray:
        left, right = np.divmod(values, np.uint64(low))
        for even, odd in zip(keys[::2], keys[1::2]):
            left = (left + splitmix64(right + even) % np.uint64(high)) % np.uint64(high)
            right = (right + splitmix64(left + odd) % np.uint64(low)) % np.uint64(low)
        return left * np.uint64(low) + right

    values = once(indices.astype(np.uint64))
    while (outside := np.flatnonzero(values >= np.uint64(n))).size:
        values[outside] = once(values[outside])
    return values.astype(np.int64)


def derive_sample_keys(seed: int, epoch: int, samples: np.ndarray) -> np.ndarray:
    """One 64-bit key for each sample of an epoch."""
    return hash_combine(_epoch_key(seed, epoch), samples)


@lru_cache(maxsize=16)
def _epoch_key(seed: int, epoch: int) -> np.ndarray:
    return hash_combine(hash_combine(np.zeros(1, np.uint64), seed), epoch)


def random_bits(keys: np.ndarray, positions: np.ndarray | int, stream: RandomStream) -> np.ndarray:
    """64 random bits for each (key, position): an element of the splitmix64 sequence that the key starts."""
    if isinstance(positions, int):
        positions = np.array([positions])
    state = positions.astype(np.uint64)
    state += np.uint64((stream << 32) + 1)
    state *= GOLDEN_GAMMA
    return splitmix64(state + keys)


def bernoulli(bits: np.ndarray, prob: float) -> np.ndarray:
    """True with probability p, to the precision of a double."""
    return (bits >> np.uint64(11)) < np.uint64(round(prob * 2**53))


def uniform(bits: np.ndarray) -> np.ndarray:
    """Uniform in [0, 1), as doubles."""
    return (bits >> np.uint64(11)) * 2.0**-53


def normal(bits: np.ndarray, other_bits: np.ndarray) -> np.ndarray:
    """Standard normal, from two draws (Box and Muller 1958)."""
    return np.sqrt(-2 * np.log1p(-uniform(bits))) * np.cos(2 * np.pi * uniform(other_bits))


def integers(bits: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    """Uniform in range(n), n ≤ 2^32, one for all or one each: the high word of bits × n, off by n / 2^64."""
    size = np.asarray(n).astype(np.uint64)
    high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    return ((high * size + (low * size >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
