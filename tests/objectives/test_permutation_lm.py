"""Permutation LM: which tokens are predicted, in which order, and that no position sees its own token."""

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.nn.packing import Inputs
from polyseme.objectives.permutation_lm import PermutationLM
from tests.support import cases
from tests.support.corpora import BERT, CLS, SEP, all_ids, random_corpus


def bind(spec=None, corpus=None, max_len=64, seed=1):
    return (spec or PermutationLM()).bind(corpus or random_corpus(), BERT, max_len, seed)


@pytest.mark.parametrize("predict_one_in,max_span_length", [(6, 5), (7, 5), (2, 1), (3, 8)])
def test_the_set_predicted_is_one_in_so_many(predict_one_in, max_span_length):
    bound = bind(PermutationLM(predict_one_in, max_span_length))
    batch = bound.batch(all_ids(bound), 0)
    queries, sizes = batch.inputs.query_stream, np.array(batch.inputs.layout.lengths) - 2
    assert queries.layout.lengths == tuple((sizes // predict_one_in).tolist())
    rows = queries.target_positions.numpy()
    assert len(set(rows)) == len(rows) == batch.targets["masked"].count
    assert (batch.targets["masked"].rows == len(batch.inputs.tokens) + torch.arange(len(rows))).all()
    assert torch.equal(batch.inputs.tokens[queries.target_positions], batch.targets["masked"].labels)
    assert not {CLS, SEP} & set(batch.inputs.tokens[queries.target_positions].tolist())
    assert batch.inputs.tokens[batch.inputs.layout.last_indices].tolist() == [CLS] * len(bound)
    assert batch.inputs.tokens[batch.inputs.layout.last_indices - 1].tolist() == [SEP] * len(bound)


def test_spans_stand_in_windows_of_their_own():
    bound = bind(max_len=512, corpus=random_corpus(20, 300))
    starts, lengths = bound.sample_spans(np.array([510] * 400), np.arange(400).astype(np.uint64) << np.uint64(32))
    drawn = lengths[:, :10]
    assert drawn.min() == 1 and drawn.max() == 5
    assert all(abs((drawn == n).mean() - 0.2) < 0.03 for n in range(1, 6))
    assert (lengths.sum(axis=1) == 85).all()
    windows = np.cumsum(6 * lengths, axis=1)  # of a row whose last window is whole too
    inside = lengths > 0
    assert ((starts + lengths <= windows) & (starts >= windows - 6 * lengths))[inside].mean() > 0.99
    shares = ((starts - (windows - 6 * lengths)) / np.maximum(5 * lengths, 1))[:, :10]
    assert abs(shares.mean() - 0.5) < 0.02, "a span lies anywhere in its window"


def test_ranks():
    """Tokens that are not predicted come first, with one rank; the others are in a random order, new in every epoch."""
    bound = bind()
    ids = np.arange(40)
    orders = []
    for epoch in (0, 1):
        batch = bound.batch(ids, epoch)
        predicted = np.zeros(len(batch.inputs.tokens), dtype=bool)
        predicted[batch.inputs.query_stream.target_positions] = True
        marks = np.isin(batch.inputs.tokens.numpy(), [CLS, SEP])
        order = batch.inputs.query_stream.rank.numpy()
        assert (order[~predicted & ~marks] == -1).all()
        for part, chosen in zip(
            np.split(order, np.cumsum(batch.inputs.layout.lengths)[:-1]),
            np.split(predicted | marks, np.cumsum(batch.inputs.layout.lengths)[:-1]),
        ):
            assert sorted(part[chosen]) == list(range(chosen.sum()))
        orders.append(order.tolist())
    assert orders[0] != orders[1]
    again = bind().batch(ids, 1)
    assert again.inputs.query_stream.rank.tolist() == orders[1]


def test_alone_equals_packed():
    bound = bind()
    ids = np.random.default_rng(0).permutation(len(bound))[:30]
    batch = bound.batch(ids, epoch=3)
    tokens, orders = (
        t.split(list(batch.inputs.layout.lengths)) for t in (batch.inputs.tokens, batch.inputs.query_stream.rank)
    )
    rows = batch.inputs.query_stream.target_positions.split(list(batch.inputs.query_stream.layout.lengths))
    for place in range(0, 30, 7):
        alone = bound.batch(ids[[place]], epoch=3)
        assert torch.equal(alone.inputs.tokens, tokens[place]) and torch.equal(
            alone.inputs.query_stream.rank, orders[place]
        )
        assert torch.equal(
            alone.inputs.query_stream.target_positions, rows[place] - batch.inputs.layout.cu_seqlens[place]
        )


def test_no_place_sees_its_own_token_or_a_later_one():
    model = cases.tiny_model("xlnet")
    bound = bind(PermutationLM(3), random_corpus(4, 4, 12), max_len=24)
    batch = bound.batch(np.arange(3), 0)
    queries, total = batch.inputs.query_stream, len(batch.inputs.tokens)
    tokens = batch.inputs.tokens % cases.VOCAB
    sequence = torch.arange(3).repeat_interleave(torch.tensor(batch.inputs.layout.lengths))

    def states(ids):
        with torch.no_grad():
            return model.trunk(Inputs(ids, batch.inputs.layout, query_stream=queries)).hidden

    before = states(tokens)
    seen = 0
    for place in range(total):
        other = tokens.clone()
        other[place] = (tokens[place] + 1) % cases.VOCAB
        moved = (states(other) - before).abs().amax(-1) > 1e-12
        mine = queries.rank[queries.target_positions] > queries.rank[place]
        mine &= sequence[queries.target_positions] == sequence[place]
        assert torch.equal(moved[total:], mine), "the query stream moves where a later place is predicted, only there"
        content = (queries.rank >= queries.rank[place]) & (sequence == sequence[place])
        assert torch.equal(moved[:total], content)
        seen += int(mine.sum())
    assert seen


def test_overfits_one_batch():
    model = cases.tiny_spec("xlnet").build(seed=0)
    batch = bind(corpus=random_corpus(6, 4, 12), max_len=24).batch(np.arange(6), 0)
    values = batch.targets["masked"].labels % cases.VOCAB
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    rows = batch.targets["masked"].rows
    for _ in range(60):
        last = model.trunk(
            Inputs(batch.inputs.tokens % cases.VOCAB, batch.inputs.layout, query_stream=batch.inputs.query_stream)
        ).hidden
        loss = model.loss("masked", last, batch.inputs.layout, rows, values) / len(values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_mistakes_are_told():
    assert PermutationLM.from_json(PermutationLM(7, 3).to_json()) == PermutationLM(7, 3)
    with pytest.raises(PolysemeError, match="predict_one_in is 1"):
        PermutationLM(1)
    with pytest.raises(PolysemeError, match="max_len is 7"):
        bind(max_len=7)
