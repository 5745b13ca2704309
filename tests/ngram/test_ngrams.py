"""N-grams against the equations of the paper; what they give is a distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.ngram import count as counting
from polyseme.ngram.count import count_ngrams
from polyseme.ngram.estimate import FALLBACK_DISCOUNTS, estimate_discounts, estimate_kneser_ney
from tests.ngram.made import CAN, END, SIZE, START, WORDS, learnt, made_sentences, stream_of
from tests.ngram.plain import PlainKneserNey


def histories(sentences: list[list[int]], order: int, seed: int = 0) -> list[list[int]]:
    """Seen, unseen, half seen, at the start of a sentence, and none."""
    rng = np.random.default_rng(seed)
    found: list[list[int]] = [[START], []]
    for _ in range(30):
        text = [START, *sentences[rng.integers(len(sentences))]]
        found.append(text[: rng.integers(1, len(text) + 1)])
        found.append(rng.integers(4, SIZE, order).tolist())
        found.append([*rng.integers(4, SIZE, 2).tolist(), *found[-2][-2:]])
        found.append([START, int(rng.integers(4, SIZE))])
    return found


def padded(rows: list[list[int]], width: int) -> np.ndarray:
    return np.array([[-1] * (width - len(row[-width:])) + row[-width:] if width else [] for row in rows]).reshape(
        len(rows), width
    )


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_equals_the_equations_of_the_paper(order, tmp_path):
    sentences = made_sentences(order)
    plain = PlainKneserNey(sentences, order, START, END, np.flatnonzero(CAN))
    model, used = estimate_kneser_ney(count_ngrams([stream_of(sentences)], WORDS, order, tmp_path), WORDS, tmp_path)
    assert np.allclose(used, plain.discounts[1:], atol=1e-12)
    rows = histories(sentences, order)
    found = model.next_token_probs(padded(rows, max(order - 1, 1)))
    for row, chances in zip(rows, found):
        expected = [plain.chance(word, row) if CAN[word] else 0.0 for word in range(SIZE)]
        assert np.allclose(chances, expected, rtol=2e-6, atol=0), row
    new = made_sentences(99, 50)
    logs = model.log10_probs(stream_of(new))
    place = 0
    for sentence in new:
        text = [START, *sentence, END]
        assert logs[place] == 0
        for i in range(1, len(text)):
            assert math.isclose(10 ** logs[place + i], plain.chance(text[i], text[:i]), rel_tol=2e-6)
        place += len(text)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cutoffs", [(), (0, 0, 1), (0, 1, 1, 2), (0, 10**6)])
def test_probabilities_sum_to_one(seed, cutoffs, tmp_path):
    sentences = made_sentences(seed, 20 * 4**seed)
    model = learnt(sentences, 5, tmp_path, cutoffs=cutoffs)
    chances = model.next_token_probs(padded(histories(sentences, 5, seed), 4))
    assert np.allclose(chances.sum(1), 1, atol=1e-6)
    assert (chances[:, CAN] > 0).all() and not chances[:, ~CAN].any()


def test_score_and_distribution_agree(tmp_path):
    sentences = made_sentences(0)
    model = learnt(sentences, 4, tmp_path, cutoffs=(0, 0, 1))
    stream = stream_of(made_sentences(7, 40))
    windows = padded([stream[max(0, i - 3) : i].tolist() for i in range(1, len(stream))], 3)
    for row in windows:  # nothing before the last start is seen
        if (starts := np.flatnonzero(row == START)).size:
            row[: starts[-1]] = -1
    chances = model.next_token_probs(windows)
    rows = np.flatnonzero(stream[1:] != START)
    assert np.allclose(model.log10_probs(stream)[1:][rows], np.log10(chances[rows, stream[1:][rows]]), atol=1e-6)


def test_cutoffs_leave_out_what_is_rare_and_give_its_count_back(tmp_path):
    sentences = made_sentences(3)
    counts = count_ngrams([stream_of(sentences)], WORDS, 3, tmp_path)
    whole, _ = estimate_kneser_ney(counts, WORDS, tmp_path)
    model, _ = estimate_kneser_ney(counts, WORDS, tmp_path, (0, 1, 2))
    assert model.sizes == [CAN.sum(), int((counts[1].raw_counts > 1).sum()), int((counts[2].raw_counts > 2).sum())]
    assert 0 < model.sizes[2] < whole.sizes[2] and 0 < model.sizes[1] < whole.sizes[1]
    new = stream_of(made_sentences(99, 50))
    assert whole.log10_probs(new).sum() != model.log10_probs(new).sum()
    for cutoffs in ((1,), (0, 2, 1), (0, -1)):
        with pytest.raises(PolysemeError, match="do not fall"):
            estimate_kneser_ney(counts, WORDS, tmp_path, cutoffs)


def test_small_blocks_and_little_memory_change_nothing(tmp_path, monkeypatch):
    sentences = made_sentences(5, 2000)
    usual = learnt(sentences, 5, tmp_path / "usual")
    monkeypatch.setattr(counting, "BLOCK_SIZE", 1000)
    streams = [stream_of(sentences[i : i + 37]) for i in range(0, len(sentences), 37)]
    (tmp_path / "small").mkdir()
    counts = count_ngrams(streams, WORDS, 5, tmp_path / "small", memory_bytes=1 << 14)
    small, _ = estimate_kneser_ney(counts, WORDS, tmp_path / "small")
    for one, other in zip(usual.levels, small.levels):
        for a, b in zip(one, other):
            assert np.array_equal(a, b)


def test_sentences_that_are_shorter_than_the_order(tmp_path):
    model = learnt([[5], [6], [5]], 5, tmp_path)
    assert model.sizes[2:] == [2, 0, 0]
    assert np.allclose(model.next_token_probs(padded([[START], [START, 5], [7, 8, 9, 4]], 4)).sum(1), 1, atol=1e-6)
    assert np.isfinite(model.log10_probs(stream_of([[5, 5, 5, 5, 5, 5]]))).all()


def test_discounts_by_hand():
    assert np.allclose(estimate_discounts(np.array([0, 100, 40, 20, 10, 7])), (5 / 9, 2 - 5 / 6, 3 - 10 / 9))
    assert estimate_discounts(np.array([9, 0, 4, 2, 1, 7])) is None
    assert estimate_discounts(np.array([0, 1, 1, 90, 1, 0])) is None
    assert FALLBACK_DISCOUNTS == (0.5, 1.0, 1.5)


def test_nothing_to_count(tmp_path):
    with pytest.raises(PolysemeError, match="no sentence"):
        count_ngrams([], WORDS, 3, tmp_path)
