"""Sequences across documents (RoBERTa's full sentences): each token once, with separators between documents."""

import numpy as np
import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from tests.support.corpora import (
    BERT,
    CLS,
    SEP,
    SIZE,
    MemoryCorpus,
    all_ids,
    numbered_corpus,
    random_corpus,
    split_sequences,
)

SHORT = [[int(n) for n in np.random.default_rng(seed).integers(1, 9, 1 + seed % 5)] for seed in range(200)]
SHAPES = {
    "short": SHORT,
    "long": [[50, 3, 70, 2], [200], [1], [61, 62, 63], [1, 1, 1]],
    "empty ones": [[], [5, 4], [], [], [7], [6, 6], []],
    "one": [[4, 4, 4]],
}


def bound_of(documents, max_len=64):
    corpus, vocabulary = numbered_corpus(documents)
    return MaskedLM(cross_documents=True, mask_prob=0.3).bind(corpus, vocabulary, max_len, 3), corpus


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("max_len", [8, 20, 64])
def test_every_token_once_and_documents_parted(name, max_len):
    bound, corpus = bound_of(SHAPES[name], max_len)
    seen = []
    for sequence in split_sequences(bound.batch(all_ids(bound), epoch=2)):
        assert sequence[0] == CLS and sequence[-1] == SEP and len(sequence) <= max_len
        parts = np.split(sequence[1:-1], np.flatnonzero(sequence[1:-1] == SEP))
        runs = [part[part != SEP] - 5 for part in parts]
        documents = [set(corpus.document_of[run]) for run in runs]
        assert all(len(run) and (np.diff(run) == 1).all() for run in runs)
        assert all(len(found) == 1 for found in documents), "a part is of one document"
        assert len(set.union(*documents)) == len(runs), "and each of another"
        seen.append(np.concatenate(runs))
    assert np.array_equal(np.concatenate(seen), np.arange(corpus.num_tokens))


@pytest.mark.parametrize("name", SHAPES)
def test_runs_are_whole_sentences_and_as_long_as_can_be(name):
    bound, corpus = bound_of(SHAPES[name])
    table, sentences = bound.samples, set(corpus.sentence_offsets.tolist())
    units = np.diff(table.unit_offsets)
    opens = np.diff(corpus.document_of[table.unit_offsets[:-1]], prepend=corpus.document_of[:1]) > 0
    sizes = bound.lengths(all_ids(bound), 0)
    for i in range(len(bound) - 1):
        follows = table.first_units[i + 1]
        assert sizes[i] + units[follows] + opens[follows] > 64, "the next sentence would have fitted"
        if units.max() < 62:
            assert table.starts[i] in sentences


def test_fewer_and_fuller_than_inside_documents():
    corpus = MemoryCorpus(SHORT)
    inside, across = (MaskedLM(cross_documents=a).bind(corpus, BERT, 64, 0) for a in (False, True))
    assert len(across) < len(inside) / 2
    assert across.lengths(all_ids(across), 0).mean() > 55 > inside.lengths(all_ids(inside), 0).mean()


def test_one_document_reads_the_same_either_way():
    corpus = MemoryCorpus([random_corpus(1, 40, seed=3).sentence_offsets[1:].tolist()[:1] * 30])
    inside, across = (MaskedLM(cross_documents=a).bind(corpus, BERT, 64, 0) for a in (False, True))
    first, second = (bound.batch(all_ids(bound), 1) for bound in (inside, across))
    assert (
        torch.equal(first.inputs.tokens, second.inputs.tokens)
        and first.inputs.layout.lengths == second.inputs.layout.lengths
    )


@pytest.mark.parametrize("epoch", [0, 4])
def test_a_sample_does_not_depend_on_its_neighbors(epoch):
    bound, _ = bound_of(SHORT)
    rng = np.random.default_rng(0)
    alone = [bound.batch(np.array([i]), epoch) for i in range(len(bound))]
    for _ in range(5):
        ids = rng.permutation(len(bound))[:9]
        batch = bound.batch(ids, epoch)
        found = batch.inputs.tokens.split(list(batch.inputs.layout.lengths))
        assert all(torch.equal(part, alone[i].inputs.tokens) for i, part in zip(ids, found))
        assert batch.targets["masked"].count == sum(alone[i].targets["masked"].count for i in ids)


def test_marks_between_documents_are_never_masked():
    bound, corpus = bound_of(SHORT)
    batch = bound.batch(all_ids(bound), 0)
    assert (batch.targets["masked"].labels >= 5).all()
    assert int((batch.inputs.tokens == SEP).sum()) == len(SHORT) - 1 + len(bound) - sum(
        corpus.document_of[s] != corpus.document_of[s - 1] for s in bound.samples.starts[1:]
    )


@pytest.mark.parametrize("family", ["roberta", pytest.param("distilbert", marks=pytest.mark.slow)])
def test_one_batch_is_learned_by_heart(family):
    bound = MaskedLM(cross_documents=True).bind(MemoryCorpus(SHORT[:40]), BERT, 32, 0)
    batch = bound.batch(np.arange(4), 0)
    model = (
        FAMILIES[family]
        .model_config(num_layers=2, dim=32, num_heads=2, vocab_size=SIZE, max_len=32, dropout=0.0)
        .build(0)
    )
    optimizer_config = OptimizerConfig(lr=1e-2, beta2=0.98)
    optimizer = optimizer_config.build(model, model.trunk.layer_groups())
    run = TrainState(model, optimizer, optimizer_config, ScheduleConfig(), 120, torch.device("cpu"))
    reports = list(train(run, [([batch], None)] * 120))
    assert reports[0].loss["masked"] > 7 and reports[-1].loss["masked"] < 0.2
