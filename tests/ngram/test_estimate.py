"""Kneser-Ney estimates equal those of a reference implementation and are distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.ngram import count
from polyseme.ngram.count import count_ngrams
from polyseme.ngram.estimate import FALLBACK_DISCOUNTS, estimate_discounts, estimate_kneser_ney
from tests.ngram.reference import ReferenceKneserNey
from tests.support.toy_ngram import (
    BOS,
    EOS,
    IS_PREDICTED,
    SIZE,
    VOCAB,
    estimate_toy,
    next_token_probs,
    random_sentences,
    to_stream,
)


def sample_histories(sentences: list[list[int]], order: int, seed: int = 0) -> list[list[int]]:
    """Return histories that are seen, unseen, partly seen, at the start of a sentence, and empty."""
    rng = np.random.default_rng(seed)
    histories: list[list[int]] = [[BOS], []]
    for _ in range(30):
        text = [BOS, *sentences[rng.integers(len(sentences))]]
        histories.append(text[: rng.integers(1, len(text) + 1)])
        histories.append(rng.integers(4, SIZE, order).tolist())
        histories.append([*rng.integers(4, SIZE, 2).tolist(), *histories[-2][-2:]])
        histories.append([BOS, int(rng.integers(4, SIZE))])
    return histories


def pad_left(rows: list[list[int]], width: int) -> np.ndarray:
    return np.array([[-1] * (width - len(row[-width:])) + row[-width:] if width else [] for row in rows]).reshape(
        len(rows), width
    )


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_equal_the_reference(order, tmp_path):
    sentences = random_sentences(order)
    reference = ReferenceKneserNey(sentences, order, BOS, EOS, np.flatnonzero(IS_PREDICTED))
    model, discounts = estimate_kneser_ney(
        count_ngrams([to_stream(sentences)], VOCAB, order, tmp_path), VOCAB, tmp_path
    )
    assert np.allclose(discounts, reference.discounts[1:], atol=1e-12)
    rows = sample_histories(sentences, order)
    next_probs = next_token_probs(model, pad_left(rows, max(order - 1, 1)))
    for row, probs in zip(rows, next_probs):
        expected = [reference.prob(word, row) if IS_PREDICTED[word] else 0.0 for word in range(SIZE)]
        assert np.allclose(probs, expected, rtol=2e-6, atol=0), row
    new = random_sentences(99, 50)
    logs = model.log10_probs(to_stream(new))
    position = 0
    for sentence in new:
        text = [BOS, *sentence, EOS]
        assert logs[position] == 0
        for i in range(1, len(text)):
            assert math.isclose(10 ** logs[position + i], reference.prob(text[i], text[:i]), rel_tol=2e-6)
        position += len(text)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cutoffs", [(), (0, 0, 1), (0, 1, 1, 2), (0, 10**6)])
def test_probabilities_sum_to_one(seed, cutoffs, tmp_path):
    sentences = random_sentences(seed, 20 * 4**seed)
    model = estimate_toy(sentences, 5, tmp_path, cutoffs=cutoffs)
    probs = next_token_probs(model, pad_left(sample_histories(sentences, 5, seed), 4))
    assert np.allclose(probs.sum(1), 1, atol=1e-6)
    assert (probs[:, IS_PREDICTED] > 0).all() and not probs[:, ~IS_PREDICTED].any()


def test_score_and_distribution_agree(tmp_path):
    sentences = random_sentences(0)
    model = estimate_toy(sentences, 4, tmp_path, cutoffs=(0, 0, 1))
    stream = to_stream(random_sentences(7, 40))
    windows = pad_left([stream[max(0, i - 3) : i].tolist() for i in range(1, len(stream))], 3)
    for row in windows:  # a history ends at the last BOS
        if (starts := np.flatnonzero(row == BOS)).size:
            row[: starts[-1]] = -1
    probs = next_token_probs(model, windows)
    rows = np.flatnonzero(stream[1:] != BOS)
    assert np.allclose(model.log10_probs(stream)[1:][rows], np.log10(probs[rows, stream[1:][rows]]), atol=1e-6)


def test_cutoffs_drop_rare_ngrams(tmp_path):
    sentences = random_sentences(3)
    counts = count_ngrams([to_stream(sentences)], VOCAB, 3, tmp_path)
    whole, _ = estimate_kneser_ney(counts, VOCAB, tmp_path)
    model, _ = estimate_kneser_ney(counts, VOCAB, tmp_path, (0, 1, 2))
    assert model.sizes == [
        IS_PREDICTED.sum(),
        int((counts[1].raw_counts > 1).sum()),
        int((counts[2].raw_counts > 2).sum()),
    ]
    assert 0 < model.sizes[2] < whole.sizes[2] and 0 < model.sizes[1] < whole.sizes[1]
    new = to_stream(random_sentences(99, 50))
    assert whole.log10_probs(new).sum() != model.log10_probs(new).sum()
    for cutoffs in ((1,), (0, 2, 1), (0, -1)):
        with pytest.raises(PolysemeError, match="must not decrease"):
            estimate_kneser_ney(counts, VOCAB, tmp_path, cutoffs)


def test_counts_do_not_depend_on_block_size_or_memory(tmp_path, monkeypatch):
    sentences = random_sentences(5, 2000)
    usual = estimate_toy(sentences, 5, tmp_path / "usual")
    monkeypatch.setattr(count, "BLOCK_SIZE", 1000)
    streams = [to_stream(sentences[i : i + 37]) for i in range(0, len(sentences), 37)]
    (tmp_path / "small").mkdir()
    counts = count_ngrams(streams, VOCAB, 5, tmp_path / "small", memory_bytes=1 << 14)
    small, _ = estimate_kneser_ney(counts, VOCAB, tmp_path / "small")
    for one, other in zip(usual.levels, small.levels):
        for a, b in zip(one, other):
            assert np.array_equal(a, b)


def test_sentences_shorter_than_the_order(tmp_path):
    model = estimate_toy([[5], [6], [5]], 5, tmp_path)
    assert model.sizes[2:] == [2, 0, 0]
    assert np.allclose(next_token_probs(model, pad_left([[BOS], [BOS, 5], [7, 8, 9, 4]], 4)).sum(1), 1, atol=1e-6)
    assert np.isfinite(model.log10_probs(to_stream([[5, 5, 5, 5, 5, 5]]))).all()


def test_estimate_discounts():
    assert np.allclose(estimate_discounts(np.array([0, 100, 40, 20, 10, 7])), (5 / 9, 2 - 5 / 6, 3 - 10 / 9))
    assert estimate_discounts(np.array([9, 0, 4, 2, 1, 7])) is None
    assert estimate_discounts(np.array([0, 1, 1, 90, 1, 0])) is None
    assert FALLBACK_DISCOUNTS == (0.5, 1.0, 1.5)


def test_empty_corpus_raises(tmp_path):
    with pytest.raises(PolysemeError, match="no sentences"):
        count_ngrams([], VOCAB, 3, tmp_path)
