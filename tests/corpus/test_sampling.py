"""The sample table covers the corpus; the sampler yields each sample once per epoch and can start anywhere."""

import importlib
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from polyseme.corpus.sampling import (
    START,
    DataPosition,
    ShuffledSampler,
    build_samples,
)
from polyseme.errors import PolysemeError
from polyseme.rng import feistel_permutation, hash_combine


def build_corpus(documents):
    """A stand-in for a corpus, from the sentence lengths of each document."""
    counts = [len(d) for d in documents]
    sentences = np.cumsum([0] + [n for d in documents for n in d])
    return SimpleNamespace(sentence_offsets=sentences, document_offsets=np.cumsum([0, *counts]))


def random_corpus(seed=0, documents=200, longest=60):
    rng = np.random.default_rng(seed)
    return build_corpus([rng.integers(1, longest, rng.integers(0, 30)).tolist() for _ in range(documents)])


class FixedSamples:
    """Samples with fixed lengths in every epoch."""

    def __init__(self, lengths):
        self.table = np.asarray(lengths)
        self.max_len = int(self.table.max(initial=0))

    def __len__(self):
        return len(self.table)

    def lengths(self, ids, epoch):
        return self.table[ids]


def greedy_samples(documents, max_len):
    """Naive implementation: whole sentences while they fit; longer sentences are split at max_len."""
    samples, offset = [], 0
    for number, document in enumerate(documents):
        run = 0
        for sentence in document:
            pieces = [max_len] * (sentence // max_len) + [sentence % max_len] * (sentence % max_len > 0)
            for piece in pieces:
                if run and run + piece > max_len:
                    samples.append((offset, run, number))
                    offset, run = offset + run, 0
                run += piece
        if run:
            samples.append((offset, run, number))
            offset += run
    return samples


def sentence_lengths(corpus):
    lengths = np.diff(corpus.sentence_offsets).tolist()
    return [lengths[a:b] for a, b in pairwise(corpus.document_offsets)]


@pytest.mark.parametrize("max_len", [7, 40, 100, 5000])
def test_sentence_samples_are_greedy(max_len):
    corpus = random_corpus()
    samples = build_samples(corpus, max_len)
    rows = list(zip(samples.starts.tolist(), samples.lengths.tolist(), samples.document_ids.tolist()))
    assert rows == greedy_samples(sentence_lengths(corpus), max_len)


def test_split_by_length():
    corpus = build_corpus([[5, 5], [], [3], [4, 4]])
    samples = build_samples(corpus, 4, split_by="length")
    assert samples.starts.tolist() == [0, 4, 8, 10, 13, 17]
    assert samples.lengths.tolist() == [4, 4, 2, 3, 4, 4]
    assert samples.document_ids.tolist() == [0, 0, 0, 2, 3, 3]
    closed = build_samples(corpus, 4, split_by="length", num_end_tokens=1)
    assert closed.starts.tolist() == [0, 4, 8, 10, 13, 17, 21]
    assert closed.lengths.tolist() == [4, 4, 3, 4, 4, 4, 1]


def test_min_units_unless_the_document_ends():
    corpus = random_corpus(1, longest=90)
    samples = build_samples(corpus, 60, min_units=2, target_length_fn=lambda units: np.where(units % 3, 60, 2))
    units = np.diff(samples.first_units)
    ends = np.append(samples.starts[1:], corpus.sentence_offsets[-1])
    assert (samples.starts + samples.lengths == ends).all() and samples.lengths.max() <= 60
    last = np.append(samples.document_ids[1:] != samples.document_ids[:-1], True)
    assert (units[~last] >= 2).all()
    assert (samples.lengths[(samples.target_lengths == 60) & ~last] > 30).all()
    assert (units[(samples.target_lengths == 2) & ~last] == 2).all()


def test_one_huge_document_among_others():
    rng = np.random.default_rng(0)
    sentences = np.concatenate(([0], np.cumsum(rng.integers(3, 50, 300_000))))
    documents = np.array([0, 100, 100, 250_000, 300_000])
    samples = build_samples(SimpleNamespace(sentence_offsets=sentences, document_offsets=documents), 128)
    assert samples.lengths.sum() == sentences[-1] and samples.lengths.mean() > 110


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 10, 97, 100, 1000, 8192, 10_007])
def test_permutation_is_a_bijection(n):
    key = hash_combine(np.zeros(1, np.uint64), 5)
    permuted = feistel_permutation(np.arange(n), n, key)
    assert np.array_equal(np.sort(permuted), np.arange(n))
    part = np.arange(n // 3, n // 2 + 1)
    assert np.array_equal(feistel_permutation(part, n, key), permuted[part])
    if n >= 97:
        assert not np.array_equal(permuted, feistel_permutation(np.arange(n), n, hash_combine(key, 1)))
        assert (permuted == np.arange(n)).sum() < 12


def test_permutation_is_uniform():
    n, trials = 12, 3000
    counts = np.zeros((n, n))
    for trial in range(trials):
        counts[np.arange(n), feistel_permutation(np.arange(n), n, hash_combine(np.zeros(1, np.uint64), trial))] += 1
    chi = ((counts - trials / n) ** 2 / (trials / n)).sum()
    assert chi < 121 + 5 * np.sqrt(2 * 121)


def build_sampler(seed=3, n=1000, **options):
    lengths = np.random.default_rng(0).integers(3, 64, n)
    options = {"micro_batch_tokens": 512, "micro_batches_per_step": 4, "window_samples": 256} | options
    return ShuffledSampler(FixedSamples(lengths), seed=seed, **options)


def take_steps(sampler, steps, cursor=START, **options):
    return list(islice(sampler.steps(cursor, **options), steps))


def bin_contents(bins):
    return [(b.epoch, b.sample_ids.tolist()) for b in bins]


def test_every_sample_once_per_epoch():
    sampler = build_sampler()
    bins = [sample_bin for sample_bin, _ in islice(sampler.micro_batches(), 400)]
    for epoch in (0, 1, 2):
        ids = np.concatenate([b.sample_ids for b in bins if b.epoch == epoch])
        assert np.array_equal(np.sort(ids), np.arange(1000))
    first, second = ([b.sample_ids.tolist() for b in bins if b.epoch == e] for e in (0, 1))
    assert first != second


def test_bins_respect_the_token_limit_and_are_sorted_by_length():
    sampler = build_sampler()
    for sample_bin, _ in islice(sampler.micro_batches(), 300):
        lengths = sampler.source.lengths(sample_bin.sample_ids, sample_bin.epoch)
        assert 0 < lengths.sum() <= 512 and (np.diff(lengths) >= 0).all()
    assert sampler.fill_ratio() > 0.9


def test_bins_of_usual_size_are_nearly_full():
    lengths = np.random.default_rng(0).integers(20, 129, 20_000)
    sampler = ShuffledSampler(FixedSamples(lengths), 16_384)
    assert sampler.fill_ratio() > 0.97  # the window's last bin is half empty on average
    sizes = [
        lengths[sample_bin.sample_ids].sum()
        for sample_bin, after in islice(sampler.micro_batches(), 30)
        if after.window == 0
    ]
    assert np.mean(sizes) > 0.99 * 16_384


def test_max_samples_limits_bins():
    sampler = build_sampler(max_samples=5)
    assert max(len(sample_bin.sample_ids) for sample_bin, _ in islice(sampler.micro_batches(), 300)) == 5


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_divide_a_step(world_size):
    whole = take_steps(build_sampler(), 60)
    parts = [take_steps(build_sampler(), 60, rank=r, world_size=world_size) for r in range(world_size)]
    for number, (bins, cursor) in enumerate(whole):
        assert {part[number][1] for part in parts} == {cursor}
        assert all(len(part[number][0]) == 4 // world_size for part in parts)
        shared = [bin_contents(part[number][0]) for part in parts]
        assert [b for group in zip(*shared) for b in group] == bin_contents(bins)


def test_starting_at_a_position_equals_running_through():
    steps = take_steps(build_sampler(), 60)
    for number in (0, 1, 7, 30, 58):
        _, cursor = steps[number]
        (bins, after), *_ = take_steps(build_sampler(), 1, cursor)
        assert bin_contents(bins) == bin_contents(steps[number + 1][0]) and after == steps[number + 1][1]


def test_step_larger_than_an_epoch():
    def sampler():
        return build_sampler(n=5, micro_batch_tokens=64, micro_batches_per_step=32)

    (bins, cursor), (second, _) = take_steps(sampler(), 2)
    assert len(bins) == 32 and cursor.epoch > 1
    assert bin_contents(second) == bin_contents(take_steps(sampler(), 1, cursor)[0][0])


def test_invalid_arguments_are_reported():
    with pytest.raises(PolysemeError, match="3 ranks"):
        take_steps(build_sampler(), 1, world_size=3)
    with pytest.raises(PolysemeError, match="no samples"):
        ShuffledSampler(FixedSamples([]), 512)
    with pytest.raises(PolysemeError, match="does not fit"):
        ShuffledSampler(FixedSamples([3, 600]), 512)
    for cursor in (DataPosition(0, 99, 0), DataPosition(0, 0, 999)):
        with pytest.raises(PolysemeError, match="does not exist"):
            take_steps(build_sampler(), 1, cursor)


@pytest.mark.parametrize("world_size", [1, 2])
def test_batch_warmup(world_size):
    """Steps grow from one bin per rank to all; no bin is read twice, and a resumed run continues the same."""
    sampler = build_sampler(batch_warmup_steps=9)
    sizes = [sampler.num_micro_batches(step, world_size) for step in range(12)]
    assert sizes[0] == world_size and sizes == sorted(sizes) and sizes[9:] == [4, 4, 4]
    assert all(size % world_size == 0 for size in sizes)
    steps = take_steps(sampler, 12, world_size=world_size)
    assert [world_size * len(bins) for bins, _ in steps] == sizes
    if world_size == 1:
        assert [b for bins, _ in steps for b in bin_contents(bins)] == bin_contents(
            b for b, _ in islice(sampler.micro_batches(), sum(sizes))
        )
    resumed = take_steps(sampler, 3, steps[4][1], world_size=world_size, start_step=5)
    assert [bin_contents(bins) for bins, _ in resumed] == [bin_contents(bins) for bins, _ in steps[5:8]]


def test_the_corpus_of_the_loader_benchmark(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    corpus = importlib.import_module("loader").make_corpus(tmp_path, num_shards=1, shard_tokens=7_200)
    assert corpus.num_documents == 10 and corpus.num_tokens > 1_000
