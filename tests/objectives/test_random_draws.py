"""Random draws are uniform and depend only on what they are a hash of."""

import numpy as np

from polyseme.rng import bernoulli, derive_sample_keys, integers, random_bits


def grid(samples=2000, positions=128, stream=0, seed=1, epoch=0):
    """Return draws of consecutive samples and positions, the least random counters."""
    return random_bits(derive_sample_keys(seed, epoch, np.arange(samples))[:, None], np.arange(positions)[None], stream)


def chi_square(values, n):
    expected = len(values) / n
    return ((np.bincount(values, minlength=n) - expected) ** 2 / expected).sum()


def assert_uniform(values, n):
    """Assert that chi-square is within five standard deviations of its mean."""
    assert abs(chi_square(values.ravel(), n) - (n - 1)) < 5 * np.sqrt(2 * (n - 1))


def correlation(a, b):
    return np.corrcoef(a.ravel() / 2.0**64, b.ravel() / 2.0**64)[0, 1]


def test_uniform():
    bits = grid()
    assert_uniform((bits >> np.uint64(56)).astype(np.int64), 256)
    assert_uniform((bits & np.uint64(255)).astype(np.int64), 256)
    assert_uniform(integers(bits, 1000), 1000)
    ones = np.unpackbits(bits.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(bits.size)


def test_pairs_are_uniform():
    """Pairs of draws of neighboring positions, samples, streams, epochs and seeds are uniform."""
    bits = grid()
    neighbors = {
        "position": (bits[:, :-1], bits[:, 1:]),
        "sample": (bits[:-1], bits[1:]),
        "stream": (bits, grid(stream=1)),
        "epoch": (bits, grid(epoch=1)),
        "seed": (bits, grid(seed=2)),
    }
    for a, b in neighbors.values():
        assert_uniform(integers(a, 16) * 16 + integers(b, 16), 256)
        assert abs(correlation(a, b)) < 5 / np.sqrt(a.size)


def test_a_draw_knows_no_neighbors():
    whole = grid()
    ids = np.array([1999, 3, 17])
    assert np.array_equal(random_bits(derive_sample_keys(1, 0, ids)[:, None], np.arange(128)[None], 0), whole[ids])
    assert random_bits(derive_sample_keys(1, 0, np.array([3])), 5, 0)[0] == whole[3, 5]


def test_no_two_keys_are_alike():
    found = [derive_sample_keys(seed, epoch, np.arange(5000)) for seed in (-1, 0, 1) for epoch in range(4)]
    assert len(np.unique(np.concatenate(found))) == 12 * 5000


def test_below_has_its_rate():
    bits = grid()
    assert not bernoulli(bits, 0.0).any() and bernoulli(bits, 1.0).all()
    for p in (0.01, 0.15, 0.5, 0.9):
        assert abs(bernoulli(bits, p).mean() - p) < 5 * np.sqrt(p * (1 - p) / bits.size)
    assert bernoulli(np.array([0, 2**64 - 1], dtype=np.uint64), 0.5).tolist() == [True, False]


def test_integers_reach_both_ends():
    ends = np.array([0, 2**64 - 1], dtype=np.uint64)
    for n in (1, 2, 7, 30_522, 2**32):
        assert integers(ends, n).tolist() == [0, n - 1]
    each = np.array([1, 2, 50])
    assert (integers(grid(1000, 3), each) < each).all()
