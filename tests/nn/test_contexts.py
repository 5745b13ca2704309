"""Gradients written out against autograd in float64, a tree whose probabilities add up, blocks that join again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.families import FAMILIES
from polyseme.nn.heads.glove import CooccurrenceBatch
from polyseme.nn.heads.word2vec import WindowBatch, build_huffman_paths, overlap_add, overlapping_blocks
from polyseme.nn.model import Model
from polyseme.nn.sparse import SparseRowGrad

VOCAB, DIM, BLOCK, WINDOW = 40, 6, 8, 3
WORDS = [f"word{i}" for i in range(VOCAB)]


def model_of(family: str, head: str) -> Model:
    extra = {"num_buckets": 50} if family == "fasttext" else {}
    spec = FAMILIES[family].model_config(dim=DIM, vocab_size=VOCAB, **extra)
    model = spec.replace(heads={head: spec.heads[head]}).build(seed=0).double()
    model.set_vocabulary(WORDS, (0,), np.arange(VOCAB) ** 2 + 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def stream_of(mean: bool, number: int = 3) -> WindowBatch:
    draw = np.random.default_rng(2)
    size = number * BLOCK - 2  # the last block is not full
    tokens = np.pad(draw.integers(1, VOCAB, size), (WINDOW, WINDOW + 2))
    reach = draw.integers(1, WINDOW + 1, size)
    left, right = np.minimum(np.arange(size), reach), np.minimum(np.arange(size)[::-1], reach)
    away = np.arange(-WINDOW, WINDOW + 1)
    near = (away >= -left[:, None]) & (away <= right[:, None]) & (away != 0)
    negatives = torch.from_numpy(draw.integers(0, VOCAB, (number, 4)))
    return WindowBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(np.pad(near, ((0, 2), (0, 0)))),
        negatives,
        BLOCK,
        WINDOW,
        5 / 4,
        mean,
    )


def reached(stream: WindowBatch) -> list[tuple[int, list[int]]]:
    """Each word's place in the stream, and the places of the words it reaches: the definition, in a loop."""
    found = []
    for i, near in enumerate(stream.context_mask.tolist()):
        found.append((i + WINDOW, [i + k for k, there in enumerate(near) if there]))
    return found


def plain_loss(model: Model, head: str, stream: WindowBatch) -> Tensor:
    """The objective as its paper writes it, pair by pair; of a mean, each part gets the whole gradient."""
    vectors = model.trunk.look_up(stream.tokens)
    total = torch.zeros((), dtype=torch.float64)
    for at, around in reached(stream):
        if not around:
            continue
        if stream.is_cbow:
            moved = vectors[around].sum(0)
            cases = [(vectors[around].mean(0).detach() + moved - moved.detach(), at)]
        else:  # the tree's pairs are read the other way round
            cases = [(vectors[at], j) if head == "negative_sampling" else (vectors[j], at) for j in around]
        for given, target in cases:
            word = int(stream.tokens[target])
            if head == "hierarchical_softmax":
                total = total - model.heads[head](given[None], model.trunk.token_embeddings)[0, word]
                continue
            output_vectors = model.heads[head].output_embeddings
            others = output_vectors[stream.negatives[(at - WINDOW) // BLOCK]]
            total = total + F.softplus(-given @ output_vectors[word])
            total = total + stream.negative_weight * F.softplus(others @ given).sum()
    return total


def dense(model: Model, found: Iterable[SparseRowGrad]) -> dict[int, Tensor]:
    sums = {id(p): torch.zeros_like(p) for p in model.parameters()}
    for table, ids, rows, terms in found:
        assert len(ids) == len(rows) == len(terms)
        sums[id(table)].index_add_(0, ids, rows)
    return sums


@pytest.mark.parametrize("mean", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("head", ["negative_sampling", "hierarchical_softmax"])
def test_gradients_are_those_of_autograd(head: str, mean: bool) -> None:
    model, stream = model_of("word2vec", head), stream_of(mean)
    expected = plain_loss(model, head, stream)
    expected.backward()
    loss, found = model.compute_sparse_grads(head, stream, with_loss=True)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    sums = dense(model, found)
    for p in model.parameters():
        torch.testing.assert_close(sums[id(p)], p.grad, rtol=1e-10, atol=1e-12)
    assert int(stream.count()) == sum((len(a) > 0) if mean else len(a) for _, a in reached(stream))


@pytest.mark.parametrize("mean", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("head", ["negative_sampling", "hierarchical_softmax"])
def test_blocks_apart_give_what_they_give_together(head: str, mean: bool) -> None:
    """Rows, and of how many terms each is the sum."""
    model, stream = model_of("word2vec", head), stream_of(mean)
    whole = model.compute_sparse_grads(head, stream)[1]
    parts = [model.compute_sparse_grads(head, stream.slice_blocks(i, i + 1))[1] for i in range(3)]
    for what in (lambda g: g, lambda g: g._replace(rows=g.counts[:, None].expand(-1, DIM).double())):
        sums = [dense(model, map(what, part)) for part in parts]
        for key, value in dense(model, map(what, whole)).items():
            torch.testing.assert_close(sum(each[key] for each in sums), value, rtol=1e-12, atol=1e-12)


def test_a_word_of_ngrams_moves_as_much_as_a_word_without() -> None:
    """The gradient of the vector is that of autograd; each of its rows gets all of it, as in the authors' code."""
    model, stream = model_of("fasttext", "negative_sampling"), stream_of(False)
    vectors = model.trunk.look_up(stream.tokens).detach().requires_grad_()
    model.trunk.look_up, kept = lambda ids: vectors, model.trunk.look_up  # type: ignore[method-assign]
    plain_loss(model, "negative_sampling", stream).backward()
    model.trunk.look_up = kept  # type: ignore[method-assign]
    by_word = torch.zeros(VOCAB, DIM, dtype=torch.float64).index_add_(0, stream.tokens, vectors.grad)
    sums = dense(model, model.compute_sparse_grads("negative_sampling", stream)[1])
    table = model.trunk.embeddings
    torch.testing.assert_close(sums[id(table.tokens.weight)], by_word, rtol=1e-10, atol=1e-12)
    expected = torch.zeros_like(table.ngrams.weight)
    for word in range(VOCAB):
        for bucket in table.ngram_bucket_ids[table.ngram_offsets[word] : table.ngram_offsets[word + 1]].tolist():
            expected[bucket] += by_word[word]
    torch.testing.assert_close(sums[id(table.ngrams.weight)], expected, rtol=1e-10, atol=1e-12)


def test_counts_have_the_gradients_of_autograd() -> None:
    model = model_of("glove", "count")
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(0, VOCAB, (2, 60), generator=draw)
    logs, weights = torch.rand(2, 60, generator=draw, dtype=torch.float64)
    cells, head = CooccurrenceBatch(ids[0], ids[1], logs, weights), model.heads["count"]
    table = model.trunk.embeddings.tokens.weight
    products = (F.embedding(ids[0], table) * F.embedding(ids[1], head.context_embeddings)).sum(1)
    biases = head.word_bias.index_select(0, ids[0]) + head.bias.index_select(0, ids[1])
    expected = (weights * (products + biases - logs).square()).sum() / 2
    expected.backward()
    loss, found = model.compute_sparse_grads("count", cells, with_loss=True)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    sums = dense(model, found)
    for p in model.parameters():
        torch.testing.assert_close(sums[id(p)], p.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 40, 257])
def test_the_trees_probabilities_sum_to_one(size: int) -> None:
    spec = FAMILIES["word2vec"].model_config(dim=DIM, vocab_size=size)
    model = spec.replace(heads={"hierarchical_softmax": spec.heads["hierarchical_softmax"]}).build(seed=0).double()
    model.set_vocabulary([], (), np.random.default_rng(0).zipf(1.3, size).clip(max=10**6))
    torch.nn.init.normal_(model.heads["hierarchical_softmax"].node_embeddings, 0, 2)
    states = torch.randn(5, DIM, dtype=torch.float64)
    scores = model.heads["hierarchical_softmax"](states, model.trunk.token_embeddings)
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(5, dtype=torch.float64), rtol=1e-12, atol=0)


def test_the_tree_is_as_short_as_any() -> None:
    """The mean way is what a heap gives, and no way is the beginning of another."""
    counts = np.random.default_rng(3).zipf(1.4, 300).clip(max=10**5).astype(float)
    nodes, turns = build_huffman_paths(counts)
    lengths = np.abs(turns).sum(1)
    heap, cost = sorted(counts.tolist()), 0.0
    while len(heap) > 1:
        made = heapq.heappop(heap) + heapq.heappop(heap)
        cost += made
        heapq.heappush(heap, made)
    assert float(lengths @ counts) == cost
    ways = {tuple(zip(n[:k].tolist(), t[:k].tolist())) for n, t, k in zip(nodes, turns, lengths)}
    assert len(ways) == 300 and not any(way[:i] in ways for way in ways for i in range(len(way)))


def test_blocks_join_again() -> None:
    flat = torch.randn(2 + 12 + 2, 5, dtype=torch.float64)
    cut = overlapping_blocks(flat, 4, 2)
    assert cut.shape == (3, 8, 5) and torch.equal(cut[1], flat[4:12])
    times = overlap_add(torch.ones(3, 8), 4, 2)
    assert times.tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]
    torch.testing.assert_close(overlap_add(cut, 4, 2), flat * times[:, None])
