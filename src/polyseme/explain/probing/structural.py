"""The structural probe: a linear map under which squared distances between words approximate those in their tree.

Hewitt and Manning 2019. The probe is a matrix of low rank, trained to minimize the absolute difference between the
distances of all pairs of words of a sentence and their number of arcs; predicted trees are minimum spanning trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.stats import rankdata
from torch import Tensor

from polyseme.explain.probing.dependencies import DependencyTree

RANK = 64
MAX_EPOCHS = 12
BATCH_WORDS = 512
LR = 1e-2
MIN_SPEARMAN_WORDS, MAX_SPEARMAN_WORDS = 5, 50  # lengths that Spearman's correlation is averaged over


@dataclass(frozen=True, eq=False)
class TreeInputs:
    """The vectors of the words of sentences, all in one matrix, and the distances in their trees."""

    vectors: Tensor  # float32 [words, dim]
    trees: Sequence[DependencyTree]
    distances: Sequence[np.ndarray]
    starts: np.ndarray  # the first row of each sentence

    @classmethod
    def from_vectors(
        cls, vectors: np.ndarray, trees: Sequence[DependencyTree], distances: Sequence[np.ndarray]
    ) -> Self:
        """Center and scale the vectors to a mean square of one, so that one learning rate fits all layers."""
        sizes = np.array([len(tree.words) for tree in trees])
        matrix = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))
        matrix = matrix - matrix.mean(0)
        matrix = matrix / matrix.square().mean().sqrt().clamp_min(1e-12)
        return cls(matrix, trees, distances, np.cumsum(sizes) - sizes)

    def sentence(self, index: int) -> Tensor:
        """Return the vectors of a sentence."""
        start = int(self.starts[index])
        return self.vectors[start : start + len(self.trees[index].words)]


def fit_structural_probe(inputs: TreeInputs, train: Sequence[int], held_out: Sequence[int], seed: int) -> Tensor:
    """Return the matrix [dim, rank] with the lowest loss on held-out sentences, trained by Adam."""
    dim, generator = inputs.vectors.shape[1], torch.Generator().manual_seed(seed)
    matrix = (torch.randn(dim, min(RANK, dim), generator=generator) / dim).requires_grad_()
    optimizer = torch.optim.Adam([matrix], lr=LR / np.sqrt(dim))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, MAX_EPOCHS)
    batches, held_out_batches = _make_batches(inputs, train), _make_batches(inputs, held_out)
    best, best_loss = matrix.detach().clone(), np.inf
    for _ in range(MAX_EPOCHS):
        for index in torch.randperm(len(batches), generator=generator).tolist():
            optimizer.zero_grad()
            _distance_loss(matrix, *batches[index]).backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            loss = float(torch.stack([_distance_loss(matrix, *batch) for batch in held_out_batches]).mean())
        if loss < best_loss:
            best, best_loss = matrix.detach().clone(), loss
    return best


def _make_batches(inputs: TreeInputs, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Return vectors [sentences, words, dim] and distances [sentences, words, words] of sentences of one length."""
    by_length: dict[int, list[int]] = {}
    for index in indices:
        by_length.setdefault(len(inputs.trees[index].words), []).append(index)
    batches = []
    for length, members in sorted(by_length.items()):
        size = max(BATCH_WORDS // length, 1)
        for start in range(0, len(members) if length > 1 else 0, size):
            part = members[start : start + size]
            distances = torch.from_numpy(np.stack([inputs.distances[i] for i in part])).float()
            batches.append((torch.stack([inputs.sentence(i) for i in part]), distances))
    return batches


def _squared_distances(projected: Tensor) -> Tensor:
    """Return the squared distances between all words of each sentence, [..., words, words]."""
    norms = projected.square().sum(-1)
    products = projected @ projected.transpose(-1, -2)
    return (norms[..., :, None] + norms[..., None, :] - 2 * products).clamp_min(0)


def _distance_loss(matrix: Tensor, vectors: Tensor, distances: Tensor) -> Tensor:
    """Return the mean over pairs of words of the absolute error, the loss of Hewitt and Manning 2019, §2.2."""
    return (_squared_distances(vectors @ matrix) - distances).abs().mean()


@dataclass(frozen=True, eq=False)
class TreeScores:
    """For each sentence: arcs of the predicted tree that are right, arcs of the tree, and Spearman's correlation.

    Punctuation has no arcs, and the correlation is NaN outside 5 to 50 words.
    """

    num_correct: np.ndarray
    num_arcs: np.ndarray
    spearman: np.ndarray


def score_trees(inputs: TreeInputs, matrix: Tensor, indices: Sequence[int]) -> TreeScores:
    """Predict the tree of each sentence and compare it with the treebank's, without directions (UUAS)."""
    rows = []
    for index in indices:
        tree = inputs.trees[index]
        predicted = _squared_distances(inputs.sentence(index) @ matrix).double().numpy()
        gold = undirected_arcs(tree)
        rows.append(
            (len(gold & spanning_arcs(tree, predicted)), len(gold), _spearman(inputs.distances[index], predicted))
        )
    return TreeScores(*np.array(rows, dtype=np.float64).T)


def score_chains(trees: Sequence[DependencyTree]) -> tuple[np.ndarray, np.ndarray]:
    """Return the right and all arcs by sentence if each word is attached to the next one, the baseline to beat."""
    rows = []
    for tree in trees:
        words, gold = content_words(tree), undirected_arcs(tree)
        rows.append((len(gold & set(pairwise(words))), len(gold)))
    num_correct, num_arcs = np.array(rows, dtype=np.float64).T
    return num_correct, num_arcs


def content_words(tree: DependencyTree) -> list[int]:
    """Return the words that are not punctuation."""
    return [i for i, tag in enumerate(tree.tags) if tag not in ("PUNCT", "SYM")]


def undirected_arcs(tree: DependencyTree) -> set[tuple[int, int]]:
    """Return the arcs of the tree between words that are not punctuation, the first word first."""
    words = set(content_words(tree))
    pairs = ((i, int(head)) for i, head in enumerate(tree.heads) if int(head) in words and i in words)
    return {(min(pair), max(pair)) for pair in pairs}


def spanning_arcs(tree: DependencyTree, distances: np.ndarray) -> set[tuple[int, int]]:
    """Return the arcs of the minimum spanning tree over the words that are not punctuation."""
    words = np.array(content_words(tree))
    if len(words) < 2:
        return set()
    weights = distances[np.ix_(words, words)] + 1e-9  # a weight of 0 would be no arc
    rows, columns = minimum_spanning_tree(np.triu(weights, 1)).nonzero()
    return {(int(words[i]), int(words[j])) for i, j in zip(rows, columns)}


def _spearman(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean over words of the correlation of their distances to all others (Hewitt and Manning's DSpr)."""
    size = len(gold)
    if not MIN_SPEARMAN_WORDS <= size <= MAX_SPEARMAN_WORDS:
        return np.nan
    others = ~np.eye(size, dtype=bool)
    ranks = [rankdata(each[others].reshape(size, size - 1), axis=1) for each in (gold, predicted)]
    first, second = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    norms = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    return float(np.mean(np.divide((first * second).sum(1), norms, out=np.zeros(size), where=norms > 0)))
