"""Batches of word2vec: subsampling, windows, negatives, and independence of the rest of the batch."""

from __future__ import annotations

import numpy as np
import pytest

from polyseme.corpus.sampling import count_tokens
from polyseme.errors import PolysemeError
from polyseme.objectives.word2vec import Word2Vec
from tests.support.corpora import NUM_WORDS, WORD_IDS, MemoryCorpus, zipf_corpus


def close(observed: np.ndarray, expected: np.ndarray, freedom: int) -> None:
    """Assert that Pearson's statistic is within five standard deviations of its mean."""
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom), statistic


def many(spec: Word2Vec, epochs: int, pages: MemoryCorpus | None = None) -> list:
    bound = spec.bind(pages or zipf_corpus(), WORD_IDS, 64)
    return [bound.batch(np.arange(len(bound)), epoch).examples for epoch in range(epochs)]


def words_of(stream) -> np.ndarray:
    margin = stream.margin
    tokens = stream.tokens.numpy()[margin : len(stream.tokens) - margin]
    return tokens[stream.context_mask.any(1).numpy()]


def sides(stream) -> list[np.ndarray]:
    """Return the number of context words to the left and to the right of each word."""
    halves = stream.context_mask[:, : stream.margin], stream.context_mask[:, stream.margin + 1 :]
    return [half.sum(1).numpy().reshape(-1, 64) for half in halves]


def test_negatives_follow_the_power_of_the_counts() -> None:
    pages = zipf_corpus()
    counts = count_tokens(pages, NUM_WORDS).astype(float)
    counts[:4] = 0
    drawn = np.concatenate([s.negatives.numpy().ravel() for s in many(Word2Vec(negatives_per_block=64), 30, pages)])
    expected = counts**0.75 / (counts**0.75).sum() * len(drawn)
    seen = np.bincount(drawn, minlength=NUM_WORDS)
    assert not seen[counts == 0].any()
    close(seen[counts > 0], expected[counts > 0], int((counts > 0).sum()) - 1)


def test_frequent_words_stay_as_often_as_they_should() -> None:
    pages, epochs, t = zipf_corpus(), 40, 1e-2
    counts = count_tokens(pages, NUM_WORDS).astype(float)
    counts[:4] = 0
    share = np.maximum(counts / counts.sum(), 1e-12)
    kept = np.minimum(np.sqrt(t / share) + t / share, 1)
    streams = many(Word2Vec(subsample_threshold=t), epochs, pages)
    seen = sum(np.bincount(s.tokens.numpy(), minlength=NUM_WORDS) for s in streams)
    some = (counts > 0) & (kept < 1)
    deviation = np.sqrt(epochs * counts * kept * (1 - kept))[some]
    z = (seen - epochs * counts * kept)[some] / deviation
    assert np.abs(z).max() < 4.5 and abs(float((z**2).sum()) - len(z)) < 5 * np.sqrt(2 * len(z))
    assert (seen[(counts > 0) & (kept == 1)] == epochs * counts[(counts > 0) & (kept == 1)]).all() and not seen[1]


def test_windows_reach_evenly_and_stop_at_the_ends() -> None:
    pages = MemoryCorpus([[64]] * 200)
    pages.tokens = np.random.default_rng(0).integers(4, NUM_WORDS, pages.num_tokens)
    streams = many(Word2Vec(subsample_threshold=0, window=5), 5, pages)
    reach = np.concatenate([sides(s)[0][:, 5:-5].ravel() for s in streams])
    seen = np.bincount(reach, minlength=6)[1:]
    close(seen, np.full(5, len(reach) / 5), 4)
    rows = sides(streams[0])
    assert not any(s.context_mask[:, 5].any() for s in streams)  # nobody reaches itself
    assert not rows[0][:, 0].any() and not rows[1][:, -1].any()
    assert (rows[0][:, 10:50] == rows[1][:, 10:50]).all() and rows[0][:, 1].max() == 1
    fixed = many(Word2Vec(subsample_threshold=0, window=5, dynamic_window=False), 1, pages)[0]
    assert (sides(fixed)[0][:, 5:] == 5).all()


def test_a_sample_is_the_same_in_any_batch() -> None:
    bound = Word2Vec(block_size=8, window=3, negatives_per_block=4).bind(zipf_corpus(), WORD_IDS, 64, seed=3)
    whole = bound.batch(np.arange(6), 2).examples
    alone = [bound.batch(np.array([i]), 2).examples for i in range(6)]
    assert np.concatenate([words_of(s) for s in alone]).tolist() == words_of(whole).tolist()
    assert sum(int(s.count()) for s in alone) == int(whole.count())
    again = bound.batch(np.arange(6), 2).examples
    assert all((a == b).all() for a, b in zip((again.tokens, again.negatives), (whole.tokens, whole.negatives)))
    other = bound.batch(np.arange(6), 3).examples
    assert len(other.tokens) != len(whole.tokens) or not (other.tokens == whole.tokens).all()


def test_counts_are_known_before_the_forward_pass() -> None:
    for predict in ("skipgram", "cbow"):
        bound = Word2Vec(architecture=predict).bind(zipf_corpus(), WORD_IDS, 64)
        batch = bound.batch(np.arange(9), 0)
        assert batch.count == int(batch.examples.count()) > 0
        assert batch.num_tokens == int(bound.samples.lengths[:9].sum())


def test_text_without_a_word_left_is_no_error() -> None:
    pages = zipf_corpus()
    pages.tokens[: pages.sentence_offsets[8]] = 1
    batch = Word2Vec().bind(pages, WORD_IDS, 64).batch(np.array([0]), 0)
    assert batch.count == 0 and not batch.examples.tokens.any()
    pages.tokens[:] = 1
    with pytest.raises(PolysemeError, match="no known word"):
        Word2Vec().bind(pages, WORD_IDS, 64)


@pytest.mark.parametrize("given,said", [({"window": 0}, "window is 0"),
                                        ({"subsample_threshold": -1.0}, "subsample_threshold is -1"),
                                        ({"window": 40}, "wider than a block of 16")])  # fmt: skip
def test_settings_that_cannot_be(given: dict, said: str) -> None:
    with pytest.raises(PolysemeError, match=said):
        Word2Vec(**given)
