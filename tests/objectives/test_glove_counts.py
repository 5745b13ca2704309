"""Co-occurrence counts: equal to those of a plain loop, also with little memory; each cell once per epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sampling import ShuffledSampler, build_samples
from polyseme.corpus.store import Corpus
from polyseme.errors import PolysemeError
from polyseme.objectives import glove as cooccurrence
from polyseme.objectives.glove import CooccurrenceTable, GloVe
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
        small.add(part, 1 / (i % 4 + 1))
        large.add(part, 1 / (i % 4 + 1))
    one, two = ([np.concatenate(x) for x in zip(*table.sorted_chunks())] for table in (small, large))
    assert small.num_runs > 5 and not large.num_runs
    assert one[0].tolist() == two[0].tolist() == sorted(set(one[0].tolist()))
    np.testing.assert_allclose(one[1], two[1], rtol=1e-12)


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
