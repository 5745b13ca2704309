"""Heads of word2vec and GloVe: explicit gradients compared with autograd in float64, Huffman tree, blocks."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.families import FAMILIES
from polyseme.nn.heads.word_vectors import (
    CooccurrenceBatch,
    WindowBatch,
    build_huffman_paths,
    overlap_add,
    overlapping_blocks,
)
from polyseme.nn.layers.embeddings import SparseRowGrad
from polyseme.nn.model import Model

VOCAB, DIM, BLOCK, WINDOW = 40, 6, 8, 3
WORDS = [f"word{i}" for i in range(VOCAB)]


def build_model(family: str, head: str) -> Model:
    overrides = {"num_buckets": 50} if family == "fasttext" else {}
    config = FAMILIES[family].model_config(dim=DIM, vocab_size=VOCAB, **overrides)
    model = config.replace(heads={head: config.heads[head]}).build(seed=0).double()
    model.set_vocabulary(WORDS, (0,), np.arange(VOCAB) ** 2 + 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def make_batch(is_cbow: bool, num_blocks: int = 3) -> WindowBatch:
    rng = np.random.default_rng(2)
    num_words = num_blocks * BLOCK - 2  # the last block is not full
    tokens = np.pad(rng.integers(1, VOCAB, num_words), (WINDOW, WINDOW + 2))
    window_sizes = rng.integers(1, WINDOW + 1, num_words)
    left, right = np.minimum(np.arange(num_words), window_sizes), np.minimum(np.arange(num_words)[::-1], window_sizes)
    offsets = np.arange(-WINDOW, WINDOW + 1)
    context_mask = (offsets >= -left[:, None]) & (offsets <= right[:, None]) & (offsets != 0)
    negatives = torch.from_numpy(rng.integers(0, VOCAB, (num_blocks, 4)))
    return WindowBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(np.pad(context_mask, ((0, 2), (0, 0)))),
        negatives,
        BLOCK,
        WINDOW,
        5 / 4,
        is_cbow,
    )


def list_contexts(batch: WindowBatch) -> list[tuple[int, list[int]]]:
    """Return the position of each word and the positions of its context, in a plain loop."""
    contexts = []
    for i, row in enumerate(batch.context_mask.tolist()):
        contexts.append((i + WINDOW, [i + k for k, is_context in enumerate(row) if is_context]))
    return contexts


def reference_loss(model: Model, head: str, batch: WindowBatch) -> Tensor:
    """Compute the loss pair by pair, as in the paper; each word of a mean gets the whole gradient."""
    vectors = model.trunk.embeddings.look_up(batch.tokens)
    total_loss = torch.zeros((), dtype=torch.float64)
    for center, context in list_contexts(batch):
        if not context:
            continue
        if batch.is_cbow:
            summed = vectors[context].sum(0)
            predictions = [(vectors[context].mean(0).detach() + summed - summed.detach(), center)]
        else:  # hierarchical softmax predicts the center from the context
            predictions = [
                (vectors[center], j) if head == "negative_sampling" else (vectors[j], center) for j in context
            ]
        for vector, target in predictions:
            word = int(batch.tokens[target])
            if head == "hierarchical_softmax":
                total_loss = total_loss - model.heads[head](vector[None], model.trunk.token_embeddings)[0, word]
                continue
            output_vectors = model.heads[head].output_embeddings
            negatives = output_vectors[batch.negatives[(center - WINDOW) // BLOCK]]
            total_loss = total_loss + F.softplus(-vector @ output_vectors[word])
            total_loss = total_loss + batch.negative_weight * F.softplus(negatives @ vector).sum()
    return total_loss


def sum_sparse_grads(model: Model, row_grads: Iterable[SparseRowGrad]) -> dict[int, Tensor]:
    sums = {id(p): torch.zeros_like(p) for p in model.parameters()}
    for table, ids, rows, counts in row_grads:
        assert len(ids) == len(rows) == len(counts)
        sums[id(table)].index_add_(0, ids, rows)
    return sums


@pytest.mark.parametrize("is_cbow", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("head", ["negative_sampling", "hierarchical_softmax"])
def test_gradients_match_autograd(head: str, is_cbow: bool) -> None:
    model, batch = build_model("word2vec", head), make_batch(is_cbow)
    expected = reference_loss(model, head, batch)
    expected.backward()
    loss, row_grads = model.compute_sparse_grads(head, batch, with_loss=True)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    sums = sum_sparse_grads(model, row_grads)
    for p in model.parameters():
        torch.testing.assert_close(sums[id(p)], p.grad, rtol=1e-10, atol=1e-12)
    assert int(batch.count()) == sum((len(a) > 0) if is_cbow else len(a) for _, a in list_contexts(batch))


@pytest.mark.parametrize("is_cbow", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("head", ["negative_sampling", "hierarchical_softmax"])
def test_separate_blocks_sum_to_the_whole_batch(head: str, is_cbow: bool) -> None:
    """Gradient rows and counts of loss terms."""
    model, batch = build_model("word2vec", head), make_batch(is_cbow)
    whole = model.compute_sparse_grads(head, batch)[1]
    per_block = [model.compute_sparse_grads(head, batch.slice_blocks(i, i + 1))[1] for i in range(3)]
    for select in (lambda g: g, lambda g: g._replace(rows=g.counts[:, None].expand(-1, DIM).double())):
        sums = [sum_sparse_grads(model, map(select, part)) for part in per_block]
        for key, value in sum_sparse_grads(model, map(select, whole)).items():
            torch.testing.assert_close(sum(each[key] for each in sums), value, rtol=1e-12, atol=1e-12)


def test_each_ngram_row_gets_the_whole_gradient() -> None:
    """The gradient of a word vector matches autograd; each of its rows gets all of it, as in the authors' code."""
    model, batch = build_model("fasttext", "negative_sampling"), make_batch(False)
    vectors = model.trunk.embeddings.look_up(batch.tokens).detach().requires_grad_()
    model.trunk.embeddings.look_up, look_up = lambda ids: vectors, model.trunk.embeddings.look_up  # type: ignore[method-assign]
    reference_loss(model, "negative_sampling", batch).backward()
    model.trunk.embeddings.look_up = look_up  # type: ignore[method-assign]
    by_word = torch.zeros(VOCAB, DIM, dtype=torch.float64).index_add_(0, batch.tokens, vectors.grad)
    sums = sum_sparse_grads(model, model.compute_sparse_grads("negative_sampling", batch)[1])
    table = model.trunk.embeddings
    torch.testing.assert_close(sums[id(table.tokens.weight)], by_word, rtol=1e-10, atol=1e-12)
    expected = torch.zeros_like(table.ngrams.weight)
    for word in range(VOCAB):
        for bucket in table.ngram_bucket_ids[table.ngram_offsets[word] : table.ngram_offsets[word + 1]].tolist():
            expected[bucket] += by_word[word]
    torch.testing.assert_close(sums[id(table.ngrams.weight)], expected, rtol=1e-10, atol=1e-12)


def test_glove_gradients_match_autograd() -> None:
    model = build_model("glove", "count")
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, VOCAB, (2, 60), generator=generator)
    logs, weights = torch.rand(2, 60, generator=generator, dtype=torch.float64)
    batch, head = CooccurrenceBatch(ids[0], ids[1], logs, weights), model.heads["count"]
    table = model.trunk.embeddings.tokens.weight
    products = (F.embedding(ids[0], table) * F.embedding(ids[1], head.context_embeddings)).sum(1)
    biases = head.word_bias.index_select(0, ids[0]) + head.bias.index_select(0, ids[1])
    expected = (weights * (products + biases - logs).square()).sum() / 2
    expected.backward()
    loss, row_grads = model.compute_sparse_grads("count", batch, with_loss=True)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    sums = sum_sparse_grads(model, row_grads)
    for p in model.parameters():
        torch.testing.assert_close(sums[id(p)], p.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("vocab_size", [2, 3, 40, 257])
def test_hierarchical_softmax_probabilities_sum_to_one(vocab_size: int) -> None:
    config = FAMILIES["word2vec"].model_config(dim=DIM, vocab_size=vocab_size)
    model = config.replace(heads={"hierarchical_softmax": config.heads["hierarchical_softmax"]}).build(seed=0).double()
    model.set_vocabulary([], (), np.random.default_rng(0).zipf(1.3, vocab_size).clip(max=10**6))
    torch.nn.init.normal_(model.heads["hierarchical_softmax"].node_embeddings, 0, 2)
    states = torch.randn(5, DIM, dtype=torch.float64)
    scores = model.heads["hierarchical_softmax"](states, model.trunk.token_embeddings)
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(5, dtype=torch.float64), rtol=1e-12, atol=0)


def test_huffman_tree_is_optimal_and_prefix_free() -> None:
    """The mean path length is that of a heap-based construction, and no path is a prefix of another."""
    counts = np.random.default_rng(3).zipf(1.4, 300).clip(max=10**5).astype(float)
    nodes, signs = build_huffman_paths(counts)
    lengths = np.abs(signs).sum(1)
    heap, cost = sorted(counts.tolist()), 0.0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        cost += merged
        heapq.heappush(heap, merged)
    assert float(lengths @ counts) == cost
    paths = {tuple(zip(n[:k].tolist(), t[:k].tolist())) for n, t, k in zip(nodes, signs, lengths)}
    assert len(paths) == 300 and not any(path[:i] in paths for path in paths for i in range(len(path)))


def test_overlap_add_inverts_overlapping_blocks() -> None:
    flat = torch.randn(2 + 12 + 2, 5, dtype=torch.float64)
    blocks = overlapping_blocks(flat, 4, 2)
    assert blocks.shape == (3, 8, 5) and torch.equal(blocks[1], flat[4:12])
    overlap_counts = overlap_add(torch.ones(3, 8), 4, 2)
    assert overlap_counts.tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]
    torch.testing.assert_close(overlap_add(blocks, 4, 2), flat * overlap_counts[:, None])
