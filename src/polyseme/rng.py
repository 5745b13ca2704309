"""Counter-based randomness: each draw is a hash of (seed, epoch, sample, position, stream).

A draw depends on nothing else: not on the sample's neighbours in a batch, the rank, the worker, or what was
drawn before, so a resumed run and a run on more devices see the same data. Streams keep the questions asked
about one position apart.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from polyseme.corpus.sampling import GOLDEN, fold, mix

CHOOSE, FATE, REPLACE = 0, 1, 2  # per token: is it predicted, how is it damaged, by which id
SPAN, SPAN_PLACE, RANK = 16, 17, 18  # per window: how many tokens are predicted, which; per token: when
SPLIT, NEXT, WHERE, SHORT = 3, 4, 5, 6  # per pair: where A ends, is B random (or swapped), from where, how short
BUDGET, GONE, LENGTH, PLACE = 20, 21, 22, 23  # per run of words: how many, less what; per stretch: how long; where
HALF, VARIED = 26, 27  # per step of lanes: is it a short one, how long
KEPT, REACH, NOISE = 32, 33, 34  # per word: does it stay, how far does it reach; per block: which words are drawn
GAPS, SPANS = 24, 25  # per token: does a stretch that stays, or one that goes, end behind it
OWN = 36  # per token of a target: is it read as the model itself would have written it
CONTINUE = 32  # per token that is written: which one


def keys(seed: int, epoch: int, samples: np.ndarray) -> np.ndarray:
    """One 64-bit key for each sample of an epoch."""
    return fold(_epoch_key(seed, epoch), samples)


@lru_cache(maxsize=16)
def _epoch_key(seed: int, epoch: int) -> np.ndarray:
    return fold(fold(np.zeros(1, np.uint64), seed), epoch)


def draw(keys: np.ndarray, positions: np.ndarray | int, stream: int) -> np.ndarray:
    """64 random bits for each (key, position): an element of the splitmix64 sequence that the key starts."""
    if isinstance(positions, int):
        positions = np.array([positions])
    state = positions.astype(np.uint64)
    state += np.uint64((stream << 32) + 1)
    state *= GOLDEN
    return mix(state + keys)


def below(bits: np.ndarray, p: float) -> np.ndarray:
    """True with probability p, to the precision of a double."""
    return (bits >> np.uint64(11)) < np.uint64(round(p * 2**53))


def uniform(bits: np.ndarray) -> np.ndarray:
    """Uniform in [0, 1), as doubles."""
    return (bits >> np.uint64(11)) * 2.0**-53


def normal(bits: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Standard normal, from two draws (Box and Muller 1958)."""
    return np.sqrt(-2 * np.log1p(-uniform(bits))) * np.cos(2 * np.pi * uniform(other))


def integers(bits: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    """Uniform in range(n), n ≤ 2^32, one for all or one each: the high word of bits × n, off by n / 2^64."""
    size = np.asarray(n).astype(np.uint64)
    high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    return ((high * size + (low * size >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
