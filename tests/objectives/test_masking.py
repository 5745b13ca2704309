"""Masking: rates, special tokens, whole words, and labels."""

import numpy as np
import pytest

from polyseme.errors import ConfigError
from polyseme.objectives.masked_lm import MaskedLM, mask_tokens, smoothed_mask_probs
from polyseme.objectives.packing import SpecialIds
from polyseme.rng import derive_sample_keys

VOCAB, SPECIALS, MASK = 1000, 5, 4
IDS = np.arange(SPECIALS, VOCAB)


def packed(samples=1500, length=100, seed=0):
    """Return sequences between special tokens, with words of 1 to 4 pieces, and their word starts."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(SPECIALS, VOCAB, (samples, length))
    tokens[:, 0], tokens[:, -1] = 2, 3
    words = rng.random((samples, length)) < 0.5
    words[:, :2] = words[:, -1] = True
    return tokens, words


def run(tokens, words, ids=None, epoch=0, **options):
    count, length = tokens.shape
    ids = np.arange(count) if ids is None else ids
    positions = np.tile(np.arange(length), count)
    flat, sample_keys = tokens.ravel(), np.repeat(derive_sample_keys(7, epoch, ids), length)
    special_ids = SpecialIds(VOCAB, frozenset(range(SPECIALS)), mask=MASK)
    return mask_tokens(MaskedLM(**options), flat, sample_keys, positions, words.ravel(), special_ids)


def close(share, p, n, clumps=1.0):
    return abs(share - p) < 5 * np.sqrt(clumps * p * (1 - p) / n)


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_rates(unit, rate):
    tokens, words = packed()
    damaged, rows, values = run(tokens, words, mask_unit=unit, mask_prob=rate)
    flat = tokens.ravel()
    ordinary = (flat >= SPECIALS).sum()
    assert close(len(rows) / ordinary, rate, ordinary, 1 if unit == "token" else 4)
    new = damaged[rows]
    assert close((new == MASK).mean(), 0.8, len(rows))
    assert close(((new != MASK) & (new != values)).mean(), 0.1 * (1 - 1 / len(IDS)), len(rows))
    assert close((new == values).mean(), 0.1 + 0.1 / len(IDS), len(rows))


def test_labels_only_where_predicted_and_true():
    tokens, words = packed()
    damaged, rows, values = run(tokens, words)
    flat = tokens.ravel()
    assert np.array_equal(flat[rows], values) and (np.diff(rows) > 0).all()
    untouched = np.ones(len(flat), dtype=bool)
    untouched[rows] = False
    assert np.array_equal(damaged[untouched], flat[untouched])
    assert np.array_equal(flat, tokens.ravel()), "the input is not written to"


def test_specials_are_neither_masked_nor_drawn():
    tokens, words = packed()
    tokens[:, 10] = 1  # an unknown word inside the text
    damaged, rows, values = run(tokens, words, mask_prob=0.9)
    assert (values >= SPECIALS).all()
    new = damaged[rows]
    assert ((new >= SPECIALS) | (new == MASK)).all()
    assert (damaged.reshape(tokens.shape)[:, [0, 10, -1]] == tokens[:, [0, 10, -1]]).all()


def test_replacements_are_uniform():
    tokens, words = packed(3000)
    damaged, rows, _ = run(tokens, words, mask_prob=0.9, random_token_prob=1.0, keep_token_prob=0.0)
    counts = np.bincount(damaged[rows], minlength=VOCAB)[SPECIALS:]
    expected = len(rows) / len(IDS)
    chi = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi - len(IDS)) < 5 * np.sqrt(2 * len(IDS))


def test_replacements_may_be_any_token_of_the_vocabulary():
    """BERT's code draws them from all tokens, the mask token included; which tokens are chosen stays the same."""
    tokens, words = packed(3000)
    settings = {"mask_prob": 0.9, "random_token_prob": 1.0, "keep_token_prob": 0.0}
    damaged, rows, labels = run(tokens, words, **settings, random_tokens="all")
    counts, expected = np.bincount(damaged[rows], minlength=VOCAB), len(rows) / VOCAB
    assert len(counts) == VOCAB and (labels >= SPECIALS).all()
    assert abs(((counts - expected) ** 2 / expected).sum() - VOCAB) < 5 * np.sqrt(2 * VOCAB)
    assert np.array_equal(rows, run(tokens, words, **settings)[1])


def test_words_are_whole():
    tokens, words = packed()
    _, rows, _ = run(tokens, words, mask_unit="word")
    chosen = np.zeros(tokens.size, dtype=bool)
    chosen[rows] = True
    word = np.cumsum(words.ravel()) - 1
    sizes, hits = np.bincount(word), np.bincount(word, weights=chosen)
    assert ((hits == 0) | (hits == sizes)).all()
    assert sizes[hits > 0].max() >= 4, "words of several pieces were among them"


def test_pieces_of_a_word_have_their_own_fate():
    tokens, words = packed()
    damaged, rows, _ = run(tokens, words, mask_unit="word")
    masked = damaged[rows] == MASK
    together = np.diff(rows) == 1
    pairs = together & ~words.ravel()[rows[1:]]
    assert close((masked[1:] & masked[:-1])[pairs].mean(), 0.64, pairs.sum(), 2)


@pytest.mark.parametrize("unit", ["token", "word", "ngram", "span"])
def test_alone_equals_packed(unit):
    tokens, words = packed(50)
    damaged, rows, _ = run(tokens, words, mask_unit=unit)
    for sample in (0, 7, 49):
        part = np.array([sample])
        alone, own, _ = run(tokens[part], words[part], part, mask_unit=unit)
        assert np.array_equal(alone, damaged[sample * 100 : sample * 100 + 100])
        assert np.array_equal(own + sample * 100, rows[rows // 100 == sample])


def test_masks_change_with_the_epoch():
    tokens, words = packed(500)
    first, second = (set(run(tokens, words, epoch=e)[1].tolist()) for e in (0, 1))
    assert close(len(first & second) / tokens.size, 0.0225 * 0.98, tokens.size)


@pytest.mark.parametrize("unit", ["token", "word", "ngram", "span"])
def test_nothing_to_mask(unit):
    tokens = np.full((3, 4), 2)
    damaged, rows, values = run(tokens, np.ones((3, 4), dtype=bool), mask_prob=1.0, mask_unit=unit)
    assert np.array_equal(damaged, tokens.ravel()) and not len(rows) and not len(values)


def test_smoothing_masks_rare_tokens_like_a_draw_without_replacement():
    """XLM and DistilBERT draw 15 % of the tokens of a batch without replacement, with weights count^-0.7."""
    counts = np.array([0, 8000, 1500, 400, 80, 15, 5])
    is_text = np.arange(len(counts)) > 0
    probs = smoothed_mask_probs(counts, is_text, MaskedLM(mask_smoothing=0.7))
    assert probs[0] == 0 and np.isclose((counts * probs).sum(), 0.15 * counts.sum(), rtol=1e-12)
    tokens, rng = np.repeat(np.arange(len(counts)), counts), np.random.default_rng(0)
    weights = np.maximum(counts, 1)[tokens] ** -0.7
    chosen = np.zeros(len(counts))
    for _ in range(40):
        sample = rng.choice(len(tokens), round(0.15 * len(tokens)), replace=False, p=weights / weights.sum())
        chosen += np.bincount(tokens[sample], minlength=len(counts)) / 40
    assert np.allclose(chosen[1:] / counts[1:], probs[1:], atol=0.02) and (np.diff(probs) > 0).all()
    text = np.arange(len(counts))[tokens] + SPECIALS
    special_ids = SpecialIds(VOCAB, frozenset(range(SPECIALS)), mask=MASK)
    table = np.zeros(VOCAB)
    table[SPECIALS : SPECIALS + len(counts)] = probs
    keys, positions = np.zeros(len(text), np.uint64), np.arange(len(text))
    _, _, labels = mask_tokens(MaskedLM(mask_smoothing=0.7), text, keys, positions, None, special_ids, table)
    shares = np.bincount(labels - SPECIALS, minlength=len(counts))[1:] / counts[1:]
    assert all(close(share, p, n) for share, p, n in zip(shares, probs[1:], counts[1:]))


def test_smoothing_is_for_single_tokens():
    with pytest.raises(ConfigError, match="mask_smoothing is for single tokens, but mask_unit is 'word'"):
        MaskedLM(mask_unit="word", mask_smoothing=0.7)
