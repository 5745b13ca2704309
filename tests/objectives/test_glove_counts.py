"""Co-occurrence counts: equal to those of a plain loop, also with little memory; each cell once per epoch."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sampling import ShuffledSampler, build_samples
from polyseme.corpus.store import Corpus
from polyseme.errors import PolysemeError
from polyseme.objectives import cooccurrence
from polyseme.objectives.cooccurrence import (
    CooccurrenceCounter,
    CooccurrenceTable,
    DenseCells,
    argsort_random,
    scale_weights,
)
from polyseme.objectives.glove import GloVe
from polyseme.objectives.packing import SpecialIds
from polyseme.text.tokenizer import Tokenizer
from tests.support.corpora import NUM_WORDS, WORD_IDS, zipf_corpus


def plain(pages, window: int, max_len: int = 64) -> Counter:
    """Count in both directions, 1/d at distance d, without unknown words."""
    found: Counter = Counter()
    samples = build_samples(pages, max_len)
    for start, length in zip(samples.starts, samples.lengths):
        words = [int(t) for t in pages.tokens[start : start + length] if t >= 4]
        for i, word in enumerate(words):
            for away in range(1, min(window, i) + 1):
                found[word, words[i - away]] += 1 / away
                found[words[i - away], word] += 1 / away
    return found


def test_counts_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrence, "TOKENS_PER_CHUNK", 700)
    pages = zipf_corpus()
    bound = GloVe(window=4).bind(pages, WORD_IDS, 64)
    expected = plain(pages, 4)
    cells = bound.batch(np.arange(len(bound)), 0).examples
    found = {}
    for i, j, log, weight in zip(
        *(t.tolist() for t in (cells.tokens, cells.context_ids, cells.log_counts, cells.weights))
    ):
        if weight:
            found[i, j] = np.exp(log)
            assert weight == pytest.approx(min(found[i, j] / 100, 1) ** 0.75, rel=1e-4)
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(value, rel=1e-4) for key, value in expected.items())


def test_little_memory_gives_the_same(tmp_path) -> None:
    rng = np.random.default_rng(1)
    parts = [rng.integers(0, 5000, 700).astype(np.uint64) for _ in range(40)]
    small, large = CooccurrenceTable(tmp_path, 0), CooccurrenceTable(tmp_path, 1 << 30)
    for i, part in enumerate(parts):
        small.add(part, np.full(700, i % 4 + 1))
        large.add(part, np.full(700, i % 4 + 1))
    one, two = ([np.concatenate(x) for x in zip(*table.sorted_chunks())] for table in (small, large))
    assert small.num_runs > 5 and not large.num_runs
    assert one[0].tolist() == two[0].tolist() == sorted(set(one[0].tolist()))
    assert one[1].tolist() == two[1].tolist()


@pytest.mark.parametrize("max_bytes", [0, 1 << 12, 1 << 30], ids=["rare", "both", "dense"])
def test_sums_are_exact(tmp_path, monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    """Whether pairs are counted in the array or sorted, and whatever the order of the ids."""
    monkeypatch.setattr(cooccurrence, "TOKENS_PER_CHUNK", 700)
    text, window = zipf_corpus(), 7
    ids = np.random.default_rng(4).permutation(np.arange(4, NUM_WORDS))
    text.tokens = np.append(np.arange(4), ids)[text.tokens]
    samples, mask, vocab_size = build_samples(text, 64), WORD_IDS.non_special_mask, len(WORD_IDS.non_special_mask)
    expected: Counter = Counter()
    for start, length in zip(samples.starts, samples.lengths):
        words = [int(token) for token in text.tokens[start : start + length] if mask[token]]
        for i, word in enumerate(words):
            for distance in range(1, min(window, i) + 1):
                first, second = sorted((word, words[i - distance]))
                expected[first * vocab_size + second] += Fraction(1, distance)
    chunks = CooccurrenceCounter(text, samples, mask, window).iter_cells(tmp_path, max_bytes)
    keys, counts = map(np.concatenate, zip(*chunks))
    assert keys.tolist() == sorted(expected)
    assert counts.tolist() == [float(expected[key]) for key in keys.tolist()]


@pytest.mark.parametrize(("max_cells", "num_cells"), [(0, 0), (1, 1), (14, 13), (15, 15), (36, 36), (10**6, 36)])
def test_dense_cells_are_those_of_frequent_words(max_cells: int, num_cells: int) -> None:
    counts = np.array([3, 0, 9, 4, 1, 8, 7, 2])
    dense = DenseCells(counts, max_cells)
    cells = {}
    for row, end in enumerate(dense.row_ends):
        cells |= {int(dense.row_offsets[row]) + column: (row, column) for column in range(row, end)}
    assert sorted(cells) == list(range(len(dense.sums))) and len(cells) == num_cells
    dense.sums[:] = np.arange(len(cells)) % 3
    found = [row for part in dense.iter_nonzero(5) for row in zip(*(values.tolist() for values in part))]
    words = np.argsort(-counts).tolist()
    assert found == [(words[i], words[j], cell % 3) for cell, (i, j) in sorted(cells.items()) if cell % 3]


def test_random_keys_are_sorted() -> None:
    for bits in (0, 10, 16, 33, 64):
        keys = np.random.default_rng(bits).integers(0, 1 << bits, 500, np.uint64)
        assert argsort_random(keys).tolist() == np.argsort(keys, kind="stable").tolist()
    assert not len(argsort_random(keys[:0]))


def test_weights_are_exact_or_do_not_overflow() -> None:
    for window, num_tokens in ((1, 0), (10, 10**12), (22, 10**9), (50, 10**9), (1000, 10**11)):
        scale, weights = scale_weights(window, num_tokens)
        assert len(weights) == window and sum(weights.tolist()) * num_tokens < 1 << 63
        if window <= 22:
            assert all(weight * distance == scale for distance, weight in enumerate(weights.tolist(), start=1))
            assert scale == math.lcm(*range(1, window + 1))
        else:
            assert scale > 1e8 if num_tokens <= 10**9 else scale > 1e6


def test_every_cell_once_an_epoch() -> None:
    bound = GloVe().bind(zipf_corpus(), WORD_IDS, 64)
    order, seen, number = ShuffledSampler(bound, 500, seed=2), [], 0
    for (each,), after in order.steps():
        seen.append(each.sample_ids)
        number += len(each.sample_ids)
        if after.epoch:
            break
    assert sorted(np.concatenate(seen).tolist()) == list(range(len(bound))) and len(bound) < 2 * NUM_WORDS**2


def test_nothing_meets() -> None:
    pages = zipf_corpus()
    pages.tokens[:] = 1
    with pytest.raises(PolysemeError, match="no two known words meet"):
        GloVe().bind(pages, WORD_IDS, 64)


def test_the_same_text_is_counted_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process; another part of the corpus, or another window, is counted."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"the cat {i % 7} sat on the mat {i % 5}" for i in range(60)))
    tokenizer = Tokenizer.train("words", text, 60)
    prepare([text], tokenizer, tmp_path / "corpus", PrepareConfig(split="line", dedup="none", num_workers=1))
    ids, counted = SpecialIds.from_tokenizer(tokenizer), []
    table = cooccurrence.CooccurrenceTable
    monkeypatch.setattr(cooccurrence, "CooccurrenceTable", lambda *args: counted.append(args) or table(*args))
    corpus = Corpus.open(tmp_path / "corpus")
    first, again = (GloVe().bind(Corpus.open(tmp_path / "corpus"), ids, 64) for _ in range(2))
    assert len(counted) == 1 and again.keys is first.keys
    parts = corpus.select(np.arange(30)), corpus.select(np.arange(30, 60))
    others = [GloVe(window=2).bind(corpus, ids, 64), *(GloVe().bind(part, ids, 64) for part in parts)]
    assert len(counted) == 4 and all(float(each.values.sum()) < float(first.values.sum()) for each in others)
