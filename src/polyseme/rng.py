"""Counter-based random numbers: each draw is a hash of (seed, epoch, sample, position, stream).

A draw depends on nothing else: not on the other samples of a batch, the rank, the worker, or earlier draws, so a
resumed run and a run on more devices see the same data. Each `RandomStream` is independent of the others at the same
position.
"""

from enum import IntEnum
from functools import lru_cache
from math import isqrt

import numpy as np

FEISTEL_ROUNDS = 4
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: splitmix64's step


class RandomStream(IntEnum):
    """Purpose of a draw. Results depend on the numbers: never change one, and give each new stream a new number."""

    # masked LM, per token
    MASK_CHOICE = 0  # whether it is predicted
    MASK_ACTION = 1  # whether it is masked, replaced or unchanged
    REPLACEMENT_ID = 2
    # sentence pairs, per pair
    PAIR_SPLIT = 3  # where the first text ends
    PAIR_IS_NEGATIVE = 4  # whether the second text is random, or the two are swapped
    RANDOM_SENTENCE = 5  # where the random text starts
    SHORT_SEQUENCE = 6  # whether the pair is shortened, and its length
    # permutation LM
    SPAN_LENGTH = 16  # per window
    SPAN_POSITION = 17  # per window
    PERMUTATION_RANK = 18  # per token
    # masked spans
    MASK_BUDGET = 20  # per run of words: number of predicted words
    MASK_SPAN_RESIDUAL = 21  # per run of words: part of the first span that lies before it
    MASK_SPAN_LENGTH = 22  # per span
    MASK_SPAN_POSITION = 23  # per span
    # span corruption, per token
    CORRUPTION_GAPS = 24  # whether a kept segment ends after it
    CORRUPTION_SPANS = 25  # whether a noise span ends after it
    # streaming LM, per step
    BPTT_IS_SHORT = 26
    BPTT_LENGTH = 27
    # word2vec
    SUBSAMPLING = 32  # per word
    WINDOW_SIZE = 33  # per word
    NEGATIVE_SAMPLES = 34  # per block
    # sequence to sequence
    SCHEDULED_SAMPLING = 36  # per target token: whether the model's prediction is the input instead
    WORD_DROPOUT = 37  # per target token: whether the decoder reads it as unknown
    # decoding
    GENERATION = 40  # per generated token
    # generated images
    SHAPE_IMAGES = 44  # per draw of an image


def splitmix64(state: np.ndarray) -> np.ndarray:
    """Mix 64-bit states with the output function of splitmix64 (Steele, Lea, Flood 2014)."""
    state = state ^ (state >> np.uint64(30))
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def hash_combine(state: np.ndarray, value: int | np.ndarray) -> np.ndarray:
    """Extend a hash by one number."""
    if isinstance(value, int):
        value = np.array([value % 2**64], dtype=np.uint64)
    return splitmix64(state + (value.astype(np.uint64) + np.uint64(1)) * GOLDEN_GAMMA)


def feistel_permutation(indices: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
    """Map `indices` by a keyed permutation of range(n), without computing the rest of the permutation.

    The permutation is a Feistel network over two digits of radix about √n. Its domain has at most n + √n numbers; those
    mapped outside range(n) are mapped again until they are inside (cycle walking; Black and Rogaway 2002, §3).
    """
    high = isqrt(n - 1) + 1 if n > 1 else 1
    low = -(-n // high)
    keys = [hash_combine(key, round_index) for round_index in range(2 * FEISTEL_ROUNDS)]

    def permute(values: np.ndarray) -> np.ndarray:
        left, right = np.divmod(values, np.uint64(low))
        for even, odd in zip(keys[::2], keys[1::2]):
            left = (left + splitmix64(right + even) % np.uint64(high)) % np.uint64(high)
            right = (right + splitmix64(left + odd) % np.uint64(low)) % np.uint64(low)
        return left * np.uint64(low) + right

    values = permute(indices.astype(np.uint64))
    while (outside := np.flatnonzero(values >= np.uint64(n))).size:
        values[outside] = permute(values[outside])
    return values.astype(np.int64)


def derive_sample_keys(seed: int, epoch: int, samples: np.ndarray) -> np.ndarray:
    """Return a 64-bit key for each sample of an epoch."""
    return hash_combine(_epoch_key(seed, epoch), samples)


@lru_cache(maxsize=16)
def _epoch_key(seed: int, epoch: int) -> np.ndarray:
    return hash_combine(hash_combine(np.zeros(1, np.uint64), seed), epoch)


def random_bits(keys: np.ndarray, positions: np.ndarray | int, stream: RandomStream) -> np.ndarray:
    """Return 64 random bits for each (key, position): an element of the splitmix64 sequence of the key."""
    if isinstance(positions, int):
        positions = np.array([positions])
    state = positions.astype(np.uint64)
    state += np.uint64((stream << 32) + 1)
    state *= GOLDEN_GAMMA
    return splitmix64(state + keys)


def bernoulli(bits: np.ndarray, prob: float | np.ndarray) -> np.ndarray:
    """Return True with probability `prob`, one for all draws or one for each, to the precision of a double."""
    return (bits >> np.uint64(11)) < np.rint(np.multiply(prob, 2.0**53)).astype(np.uint64)


def uniform(bits: np.ndarray) -> np.ndarray:
    """Convert bits to doubles uniform in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


def normal(bits: np.ndarray, other_bits: np.ndarray) -> np.ndarray:
    """Convert two draws to standard normal doubles (Box and Muller 1958)."""
    return np.sqrt(-2 * np.log1p(-uniform(bits))) * np.cos(2 * np.pi * uniform(other_bits))


def integers(bits: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    """Convert bits to integers uniform in range(n), n ≤ 2^32: the high word of bits × n, with bias n / 2^64."""
    size = np.asarray(n).astype(np.uint64)
    high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    return ((high * size + (low * size >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
