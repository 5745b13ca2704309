"""Masking of n-grams and spans, span boundaries, and sentence order."""

import numpy as np
import pytest
import torch

from polyseme.errors import ConfigError
from polyseme.families import FAMILIES
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.masked_lm import MaskedLM, SpanMaskedLM, mask_tokens, span_boundaries
from polyseme.objectives.packing import SpecialIds
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.recipes import get_recipe
from polyseme.rng import derive_sample_keys
from tests.support.corpora import (
    BERT,
    MASK,
    SIZE,
    all_ids,
    bind,
    halves,
    numbered_corpus,
    random_corpus,
    unmasked_tokens,
)

LAWS = {"ngram": {n: (1 / n) / (11 / 6) for n in (1, 2, 3)}, "span": {n: 0.8 ** (n - 1) for n in range(1, 11)}}
LAWS["span"] = {n: p / sum(LAWS["span"].values()) for n, p in LAWS["span"].items()}


def text(samples, length, seed=0, unknown=0.0):
    """Return sequences of ids ≥ 5 between special tokens, with words of 1 to 4 pieces, some unknown (id 1)."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, SIZE, (samples, length))
    words = rng.random((samples, length)) < 0.6
    words[:, :2] = words[:, -1] = True
    lone = (rng.random((samples, length)) < unknown) & words & np.roll(words, -1, axis=1)
    tokens[lone] = 1
    tokens[:, 0], tokens[:, -1] = 2, 3
    return tokens.ravel(), words.ravel(), np.tile(np.arange(length), samples), np.arange(samples).repeat(length)


def run(unit, samples=3000, length=120, epoch=0, rate=0.15, **options):
    tokens, words, positions, sample = text(samples, length, **options)
    sample_keys = derive_sample_keys(3, epoch, np.arange(samples))[sample]
    config = MaskedLM(mask_prob=rate, mask_unit=unit)
    damaged, rows, values = mask_tokens(config, tokens, sample_keys, positions, words, BERT)
    return tokens, words, damaged, rows, values


def found_lengths(words, rows):
    """Return the number of words of each masked span."""
    chosen = np.zeros(len(words), dtype=bool)
    chosen[rows] = True
    edges = np.flatnonzero(np.diff(chosen[words].astype(int), prepend=0, append=0))
    return edges[1::2] - edges[::2]


@pytest.mark.parametrize("unit", ["ngram", "span"])
@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_lengths_follow_the_law(unit, rate):
    _, words, _, rows, _ = run(unit, rate=rate)
    lengths = found_lengths(words, rows)
    law = LAWS[unit]
    assert lengths.min() == 1 and lengths.max() == max(law)
    for n, p in law.items():
        assert abs((lengths == n).mean() - p) < 5 * np.sqrt(p / len(lengths)), n
    mean = sum(n * p for n, p in law.items())
    assert mean == pytest.approx({"ngram": 1.636, "span": 3.797}[unit], abs=1e-3)
    assert abs(lengths.mean() / mean - 1) < 0.02


@pytest.mark.parametrize("unit", ["ngram", "span"])
@pytest.mark.parametrize("length", [40, 120, 500])
def test_the_rate_is_kept(unit, length):
    tokens, _, _, rows, _ = run(unit, 300_000 // length, length)
    assert abs(len(rows) / (tokens >= 5).sum() - 0.15) < 0.003


@pytest.mark.parametrize("unit", ["ngram", "span"])
def test_no_side_of_a_text_is_preferred(unit):
    """Words at the ends of a text are masked less often, since a span has to fit, but all are masked sometimes."""
    _, _, _, rows, _ = run(unit, 8000, 60)
    shares = np.bincount(rows % 60, minlength=60)[1:-1] / 8000
    inner = shares[10:-10]
    assert abs(inner[:19].mean() - inner[19:].mean()) < 0.01, "as often at the beginning as at the end"
    assert inner.std() < 0.012 and abs(inner.mean() - 0.15) < 0.02 and shares.min() > 0.03


@pytest.mark.parametrize("unit", ["ngram", "span"])
def test_whole_words_and_the_truth(unit):
    tokens, words, damaged, rows, values = run(unit, unknown=0.1)
    assert np.array_equal(tokens[rows], values) and (values >= 5).all() and (np.diff(rows) > 0).all()
    chosen = np.zeros(len(tokens), dtype=bool)
    chosen[rows] = True
    assert np.array_equal(damaged[~chosen], tokens[~chosen])
    word = np.cumsum(words) - 1
    hits = np.bincount(word, weights=chosen)
    assert ((hits == 0) | (hits == np.bincount(word))).all()
    assert found_lengths(words, rows).max() <= max(LAWS[unit]), "no stretch runs over a mark or an unknown word"


def test_a_span_has_one_fate_and_an_ngram_has_several():
    for unit, one in (("span", True), ("ngram", False)):
        _, _, damaged, rows, values = run(unit)
        span = span_boundaries(rows)[:, 0]
        masked, same = damaged[rows] == MASK, damaged[rows] == values
        for fate in (masked, same):
            number = np.unique(span, return_inverse=True)[1]
            share = np.bincount(number, weights=fate) / np.bincount(number)
            whole = ((share == 0) | (share == 1))[np.bincount(number) > 2].mean()
            assert (whole > 0.99) == one  # a random id is the true one now and then
        assert abs(masked.mean() - 0.8) < 0.02 and abs(same.mean() - 0.1) < 0.02


@pytest.mark.parametrize("unit", ["ngram", "span"])
def test_masks_change_with_the_epoch(unit):
    first, second = (set(run(unit, 500, epoch=e)[3].tolist()) for e in (0, 1))
    assert abs(len(first & second) / len(first) - 0.15) < 0.03


def test_boundaries_by_hand():
    rows = np.array([3, 4, 5, 9, 12, 13])
    expected = [[2, 6, 0], [2, 6, 1], [2, 6, 2], [8, 10, 0], [11, 14, 0], [11, 14, 1]]
    assert span_boundaries(rows).tolist() == expected
    assert span_boundaries(rows[:0]).shape == (0, 3)


def test_the_boundary_is_not_masked_and_in_the_same_sequence():
    bound = bind(SpanMaskedLM())
    batch = bound.batch(all_ids(bound), 2)
    masked, boundary = batch.targets["masked"], batch.targets["boundary"]
    before = unmasked_tokens(batch)
    left, right, place = boundary.rows.numpy().T
    sequence = np.repeat(np.arange(len(bound)), batch.inputs.layout.lengths)
    chosen = np.zeros(batch.num_tokens, dtype=bool)
    chosen[masked.rows] = True
    assert not chosen[left].any() and not chosen[right].any()
    assert np.array_equal(batch.inputs.tokens.numpy()[left], before[left])
    inside = left + 1 + place
    assert np.array_equal(before[inside], boundary.labels) and chosen[inside].all() and (inside < right).all()
    assert (sequence[left] == sequence[right]).all() and (sequence[left] == sequence[inside]).all()
    assert place.max() < 20 and boundary.count == int((span_boundaries(masked.rows.numpy())[:, 2] < 20).sum())


def test_deep_places_are_not_asked_for():
    bound = bind(SpanMaskedLM(max_span_offset=3))
    batch = bound.batch(all_ids(bound), 0)
    assert batch.targets["boundary"].rows[:, 2].max() == 2
    assert batch.targets["boundary"].count < batch.targets["masked"].count


def test_offsets_that_the_head_does_not_have_are_rejected():
    recipe = get_recipe("spanbert-tiny")
    with pytest.raises(ConfigError, match="max_span_offset is 21, expected 20 or less"):
        recipe.with_override("objective.max_span_offset", "21").model_config(100)
    with pytest.raises(ConfigError, match="max_span_offset is 0, expected 1 or more"):
        recipe.with_override("objective.max_span_offset", "0")


@pytest.mark.parametrize("max_len", [24, 64])
def test_order_swaps_and_never_changes_tokens(max_len):
    rng = np.random.default_rng(2)
    corpus, vocabulary = numbered_corpus([rng.integers(3, 45, rng.integers(1, 30)).tolist() for _ in range(150)])
    bound = MaskedLMWithSentencePairs(pair_task="sop", mask_unit="ngram").bind(corpus, vocabulary, max_len, 5)
    ids = all_ids(bound)
    batch = bound.batch(ids, 1)
    asked = batch.targets["pair"]
    several = np.diff(bound.samples.first_units) > 1
    assert np.array_equal(asked.rows.numpy(), np.flatnonzero(several)) and asked.count == several.sum()
    answer = dict(zip(asked.rows.tolist(), asked.labels.tolist()))
    before = np.split(unmasked_tokens(batch), np.cumsum(batch.inputs.layout.lengths)[:-1])
    borders = set(bound.samples.unit_offsets.tolist())
    for i, sequence in enumerate(before):
        inner = sequence[1:-1]
        (cut,) = np.flatnonzero(inner == 3)
        a, b = inner[:cut] - 5, inner[cut + 1 :] - 5
        start, length = bound.samples.starts[i], bound.samples.lengths[i]
        assert np.array_equal(np.sort(np.concatenate([a, b])), np.arange(start, start + length)), "the same tokens"
        swapped = answer.get(i, 0)
        first, second = (b, a) if swapped else (a, b)
        assert np.array_equal(np.concatenate([first, second]), np.arange(start, start + length)), (
            "in order but for that"
        )
        if i in answer:
            assert len(a) and len(b) and int(second[0]) in borders
    assert abs(asked.labels.float().mean() - 0.5) < 5 * 0.5 / np.sqrt(asked.count)
    segments = np.split(batch.inputs.segments.numpy(), np.cumsum(batch.inputs.layout.lengths)[:-1])
    for sequence, segment in zip(before, segments):
        cut = int(np.flatnonzero(sequence == 3)[0])
        assert segment.tolist() == [0] * (cut + 1) + [1] * (len(sequence) - cut - 1)


def test_order_is_drawn_anew_each_epoch_and_needs_one_document_only():
    corpus, vocabulary = numbered_corpus([[5] * 400])
    bound = MaskedLMWithSentencePairs(pair_task="sop").bind(corpus, vocabulary, 43, 0)
    labels = np.stack([bound.batch(all_ids(bound), e).targets["pair"].labels for e in range(8)])
    assert 0.3 < labels.mean() < 0.7
    assert (labels.std(axis=0) > 0).mean() > 0.9, "almost every pair has both labels in eight epochs"
    cuts = {len(a) for e in range(8) for a, _, _ in halves(bound.batch(all_ids(bound), e))}
    assert cuts == set(range(5, 40, 5))


def test_pairs_without_a_label_are_those_of_sentence_order_before_swapping():
    corpus, vocabulary = numbered_corpus([[5] * 30] * 20)
    ordered, plain = (
        MaskedLMWithSentencePairs(pair_task=task).bind(corpus, vocabulary, 43, 0) for task in ("sop", "none")
    )
    ids = all_ids(plain)
    assert set(plain.batch(ids, 2).targets) == set(plain.config.terms) == {"masked"}
    starts, lengths, is_negative = plain.plan_pairs(ids, 2)
    assert (starts[:, 0] + lengths[:, 0] == starts[:, 1]).all() and not is_negative.any(), "B follows A"
    swapped_starts, _, is_swapped = ordered.plan_pairs(ids, 2)
    assert 0.3 < is_swapped.mean() < 0.7
    assert np.array_equal(np.where(is_swapped[:, None], swapped_starts[:, ::-1], swapped_starts), starts)


@pytest.mark.parametrize("family,spec", [
    ("albert", MaskedLMWithSentencePairs(mask_unit="ngram", pair_task="sop")),
    ("spanbert", SpanMaskedLM(mask_prob=0.3)),
])  # fmt: skip
def test_overfits_one_batch(family, spec):
    small = SpecialIds(60, BERT.all_ids, BERT.cls, BERT.sep, BERT.mask)
    corpus = random_corpus(12, 6, 12)
    corpus.tokens = 5 + corpus.tokens % 55
    bound = spec.bind(corpus, small, 32, 0)
    batch = bound.batch(all_ids(bound), 0)
    model = (
        FAMILIES[family]
        .model_config(
            num_layers=2,
            dim=32,
            num_heads=2,
            vocab_size=60,
            max_len=32,
            dropout=0.0,
            attention_dropout=0.0,
            init_std=0.1,
        )
        .build(seed=0)
    )
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(100):
        optimizer.zero_grad()
        means = {name: value / batch.targets[name].count for name, value in compute_losses(model, batch).items()}
        sum(means.values()).backward()
        optimizer.step()
    assert set(means) == set(spec.terms) and all(batch.targets[name].count > 8 for name in means)
    assert all(value < 0.05 for value in means.values()), means
