"""Heads that learn word vectors from the words around, with gradients written out.

Text goes through in blocks of neighbouring words, so that the scores of all pairs of words near each other are one
product of small matrices a block, and so are the gradients (a mean of neighbours is a bag of rows: half of such a
matrix would be zeros); the negatives of a block are drawn once for all its words
(Ji et al. 2016, §4, share them in a window). A step touches few rows of large tables: each function here returns what
is to be added to which rows, and whoever trains decides how. Heads of another kind than these have no such gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.nn.heads.base import Head
from polyseme.nn.index_cache import known
from polyseme.nn.sparse import RowGradient


@dataclass(frozen=True, eq=False)
class Stream:
    """Running text in B blocks of L words, with a margin of words (or of nothing) before the first and behind the last.

    With `mean`, a word is predicted from the mean of the words it reaches (CBOW); else they are predicted from it
    (skip-gram). Each negative of a block stands for `weight` draws of each of its words, once for each pair.
    """

    tokens: Tensor  # int64 [margin + B·L + margin]
    reach: Tensor  # bool [B·L, 2 margin + 1]: which of the words around it, from the left to the right, a word reaches
    negatives: Tensor  # int64 [B, N]
    block: int
    margin: int
    weight: float = 1.0
    mean: bool = False

    @property
    def num_blocks(self) -> int:
        return self.negatives.shape[0]

    @property
    def products(self) -> int:
        """How many pairs of vectors are multiplied, those whose product is not asked for too."""
        words = self.num_blocks * self.block
        return words * (1 if self.mean else self.block + 2 * self.margin) + words * self.negatives.shape[1]

    def part(self, first: int, last: int) -> Stream:
        """Some of the blocks."""
        size, low, high = self.block, first * self.block, last * self.block
        tokens = self.tokens[low : high + 2 * self.margin]
        negatives = self.negatives[first:last]
        return Stream(tokens, self.reach[low:high], negatives, size, self.margin, self.weight, self.mean)

    def near(self, dtype: torch.dtype) -> Tensor:
        """[B, L, L + 2 margin], 1 or 0: which words of a block and its margins each word of the block reaches."""
        number, size, (_, span) = self.num_blocks, self.block, self.reach.shape
        near = torch.zeros(number, size, size + span - 1, dtype=dtype, device=self.reach.device)
        band = near.as_strided((number, size, span), (near.stride(0), near.stride(1) + 1, 1))
        band.copy_(self.reach.view(number, size, span))
        return near

    def count(self) -> Tensor:
        """How many words are predicted: a term of the loss each, and its negatives."""
        return (self.reach.any(1) if self.mean else self.reach).sum()


class Found(NamedTuple):
    """What a head makes of a stream: the summed loss if it was asked for, and the gradient of the input vectors."""

    loss: Tensor | None
    inputs: Tensor  # [margin + B·L + margin, dim]
    terms: Tensor  # float, of each row: how many terms it is the sum of
    own: list[RowGradient]  # of the head's own tables


def blocks(flat: Tensor, size: int, margin: int) -> Tensor:
    """Rows [margin + B·L + margin, …] as overlapping blocks [B, L + 2 margin, …], without a copy."""
    number = (flat.shape[0] - 2 * margin) // size
    strides = flat.stride()
    return flat.as_strided(
        (number, size + 2 * margin, *flat.shape[1:]), (size * strides[0], *strides), flat.storage_offset()
    )


def joined(parts: Tensor, size: int, margin: int) -> Tensor:
    """The inverse of `blocks` for gradients: what overlaps is added."""
    number = parts.shape[0]
    flat = parts.new_zeros(number * size + 2 * margin, *parts.shape[2:])
    flat[margin : margin + number * size].view(number, size, *parts.shape[2:]).copy_(parts[:, margin : margin + size])
    flat[: number * size].view(number, size, *parts.shape[2:])[:, :margin] += parts[:, :margin]
    inner = flat[margin + size : margin + number * size].view(number - 1, size, *parts.shape[2:])
    inner[:, :margin] += parts[:-1, margin + size :]
    flat[margin + number * size :] += parts[-1, margin + size :]
    return flat


def weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """Sums of neighbours, [n, dim]: of the rows from i on, as many as there are weights [n, span], for each i."""
    number, span = weights.shape
    places, starts = _places(number, span, rows.device)
    return F.embedding_bag(places, rows, starts, mode="sum", per_sample_weights=weights.flatten())


@known(16)
def _places(number: int, span: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which rows `weighted` sums up, end to end, and where those of each sum start."""
    places = torch.arange(number + span - 1, device=device).as_strided((number, span), (1, 1))
    return places.flatten(), torch.arange(0, number * span, span, device=device)


def turned(reach: Tensor) -> Tensor:
    """Who reaches: [n, span] → [n + span − 1, span]. Row j has reach[i, j − i] for all i from j − span + 1 to j."""
    number, span = reach.shape
    padded = F.pad(reach, (0, 0, span - 1, span - 1))
    return padded.as_strided((number + span - 1, span), (span, span - 1), span - 1).contiguous()


@dataclass(frozen=True)
class NegativeHeadSpec(Spec):
    """A second table: a word and a word near it have vectors, one of each table, whose product is large.

    Trained by negative sampling (Mikolov et al. 2013b, §2.2); as scores, its products go through a softmax.
    """

    vocab_size: int

    def weights(self, dim: int) -> int:
        return dim * self.vocab_size

    def build(self, dim: int) -> NegativeHead:
        return NegativeHead(self, dim)


class NegativeHead(Head):
    def __init__(self, spec: NegativeHeadSpec, dim: int):
        super().__init__()
        self.own = nn.Parameter(torch.zeros(spec.vocab_size, dim))

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        return F.linear(states, self.own)

    def learn(self, stream: Stream, inputs: Tensor, loss: bool = False) -> Found:
        """`inputs` are the vectors of the stream's words, margins too."""
        return (self._mean if stream.mean else self._pairs)(stream, inputs, loss)

    def _pairs(self, stream: Stream, inputs: Tensor, loss: bool) -> Found:
        """Skip-gram: each word predicts the words it reaches."""
        size, margin, dim = stream.block, stream.margin, inputs.shape[1]
        inner = slice(margin, margin + stream.num_blocks * size)
        near = stream.near(inputs.dtype)
        counts = near.sum(2).view(-1)
        words = inputs[inner].view(-1, size, dim)
        around = blocks(F.embedding(stream.tokens, self.own), size, margin)
        others = F.embedding(stream.negatives, self.own)
        scores = torch.bmm(words, around.transpose(1, 2))
        against = torch.bmm(words, others.transpose(1, 2))
        weights = (counts * stream.weight).view(-1, size, 1)
        total = None
        if loss:
            total = (F.softplus(-scores) * near).sum() + (F.softplus(against) * weights).sum()
        scores = scores.sigmoid_().sub_(1).mul_(near)
        against = against.sigmoid_().mul_(weights)
        gradient = torch.zeros_like(inputs)
        gradient[inner] = torch.bmm(scores, around).baddbmm_(against, others).view(-1, dim)
        terms = torch.zeros_like(inputs[:, 0])
        terms[inner] = counts * (1 + stream.weight * stream.negatives.shape[1])
        seen = joined(torch.bmm(scores.transpose(1, 2), words), size, margin)
        times = joined(near.sum(1), size, margin)
        return Found(total, gradient, terms, [
            RowGradient(self.own, stream.tokens, seen, times),
            self._others(stream, torch.bmm(against.transpose(1, 2), words), weights),
        ])  # fmt: skip

    def _mean(self, stream: Stream, inputs: Tensor, loss: bool) -> Found:
        """CBOW: the mean of the words that each word reaches predicts it.

        Each of those takes the whole step, not its share of the mean, as in the authors' code: a mean that has to move
        moves as far whatever the window.
        """
        margin, size, dim = stream.margin, stream.block, inputs.shape[1]
        number = stream.num_blocks * size
        reach = stream.reach.to(inputs.dtype)
        counts = reach.sum(1, keepdim=True)
        asked = counts.clamp(max=1).view(-1, size, 1)
        mean = weighted(inputs, reach / counts.clamp(min=1)).view(-1, size, dim)
        ids = stream.tokens[margin : margin + number]
        truth = F.embedding(ids, self.own).view(-1, size, dim)
        others = F.embedding(stream.negatives, self.own)
        score = (mean * truth).sum(-1, keepdim=True)
        against = torch.bmm(mean, others.transpose(1, 2))
        weights = asked * stream.weight
        total = None
        if loss:
            total = (F.softplus(-score) * asked).sum() + (F.softplus(against) * weights).sum()
        score = score.sigmoid_().sub_(1)  # of a word that reaches none too: its mean is nothing, and so is its step
        against = against.sigmoid_().mul_(stream.weight)
        back = inputs.new_empty(number + 4 * margin, dim)
        before, inner, behind = back.split([2 * margin, number, 2 * margin])
        for end in (before, behind):  # nothing comes from beyond them
            end.zero_()
        torch.mul(truth, score, out=inner.view(-1, size, dim)).baddbmm_(against, others)
        reached = turned(reach)
        terms = reached.sum(1) * (1 + stream.weight * stream.negatives.shape[1])
        return Found(total, weighted(back, reached), terms, [
            self._others(stream, torch.bmm(against.transpose(1, 2), mean), weights),
            RowGradient(self.own, ids, mean.mul_(score).view(-1, dim), asked.view(-1)),
        ])  # fmt: skip

    def _others(self, stream: Stream, gradient: Tensor, weights: Tensor) -> RowGradient:
        times = weights.sum(1).expand(stream.negatives.shape).reshape(-1)
        return RowGradient(self.own, stream.negatives.view(-1), gradient.flatten(0, 1), times)


@dataclass(frozen=True)
class TreeHeadSpec(Spec):
    """A word is a way through a binary tree, and its probability that of all turns on it (hierarchical softmax).

    The tree is Huffman's, so frequent words have short ways (Mikolov et al. 2013b, §2.1).
    """

    vocab_size: int

    def weights(self, dim: int) -> int:
        return dim * max(self.vocab_size.bit_length(), 1)

    def build(self, dim: int) -> TreeHead:
        return TreeHead(self, dim)


class TreeHead(Head):
    """`counts` are those of the words, from which the tree follows; before it is told any, all are alike."""

    counts: Tensor

    def __init__(self, spec: TreeHeadSpec, dim: int):
        super().__init__()
        self.own = nn.Parameter(torch.zeros(max(spec.vocab_size - 1, 1), dim))
        self.register_buffer("counts", torch.ones(spec.vocab_size))
        self._tree: tuple[Tensor, Tensor] | None = None

    def know(self, words: Sequence[str], specials: Iterable[int] = (), counts: np.ndarray | None = None) -> None:
        if counts is not None:
            self.counts.copy_(torch.from_numpy(np.maximum(counts, 1)))
        self._tree = None

    @property
    def ways(self) -> tuple[Tensor, Tensor]:
        """For each word the inner nodes on its way, int64 [V, depth], and the turns: 1 or −1, 0 behind the end."""
        if self._tree is None or self._tree[0].device != self.own.device:
            nodes, turns = huffman(self.counts.cpu().numpy().astype(np.float64))
            self._tree = torch.from_numpy(nodes).to(self.own.device), torch.from_numpy(turns).to(self.own.device)
        return self._tree

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """The log-probability of every word."""
        nodes, turns = self.ways
        scores, turns = F.linear(states, self.own), turns.to(self.own.dtype)
        found = [F.logsigmoid(scores.index_select(1, way) * turn) * turn.abs() for way, turn in zip(nodes.T, turns.T)]
        return torch.stack(found).sum(0)

    def learn(self, stream: Stream, inputs: Tensor, loss: bool = False) -> Found:
        """Each word is predicted, from each word it reaches alone or from their mean."""
        margin, dim, span = stream.margin, inputs.shape[1], 2 * stream.margin + 1
        number = stream.num_blocks * stream.block
        ids = stream.tokens[margin : margin + number]
        nodes, turns = (part.index_select(0, ids) for part in self.ways)
        turns = turns.to(inputs.dtype)
        reach = stream.reach.to(inputs.dtype)
        given, asked = inputs.as_strided((number, span, dim), (dim, dim, 1), inputs.storage_offset()), reach
        if stream.mean:
            counts = reach.sum(1, keepdim=True)
            given, asked = weighted(inputs, reach / counts.clamp(min=1))[:, None], counts.clamp(max=1)
        truth = F.embedding(nodes, self.own)
        scores = torch.bmm(given, truth.transpose(1, 2))
        chosen = asked[:, :, None] * turns.abs()[:, None]
        total = (F.softplus(-scores * turns[:, None]) * chosen).sum() if loss else None
        scores = (scores * turns[:, None]).sigmoid_().sub_(1) * turns[:, None] * asked[:, :, None]
        back = torch.bmm(scores, truth)
        if stream.mean:  # each takes the whole step
            back = reach[:, :, None] * back
        gradient, terms = torch.zeros_like(inputs), torch.zeros_like(inputs[:, 0])
        depth = turns.abs().sum(1)
        for place in range(span):
            gradient[place : place + number] += back[:, place]
            terms[place : place + number] += reach[:, place] * depth
        steps = torch.bmm(scores.transpose(1, 2), given)
        times = (asked.sum(1, keepdim=True) * turns.abs()).reshape(-1)
        return Found(total, gradient, terms, [RowGradient(self.own, nodes.reshape(-1), steps.view(-1, dim), times)])


def huffman(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inner nodes from the root to each word, int64 [V, depth], and the turn at each: ±1, and 0 behind the end.

    Two queues: words from rare to frequent, and the nodes made of them, which come in rising order by themselves.
    """
    size = len(counts)
    order = np.argsort(counts, kind="stable")
    weights = [*counts[order].tolist(), *[float("inf")] * size]
    parent, turn = np.zeros(2 * size, np.int64), np.ones(2 * size, np.int8)
    word, node = 0, size
    for made in range(size, 2 * size - 1):
        both = []
        for _ in range(2):
            if word < size and (node >= made or weights[word] <= weights[node]):
                both.append(word)
                word += 1
            else:
                both.append(node)
                node += 1
        weights[made] = weights[both[0]] + weights[both[1]]
        parent[both] = made
        turn[both[1]] = -1
    ways: list[np.ndarray] = []
    turns: list[np.ndarray] = []
    at, alive = np.arange(size), np.full(size, size > 1)
    while alive.any():
        turns.append(np.where(alive, turn[at], 0))
        at = np.where(alive, parent[at], at)
        ways.append(np.where(alive, at - size, 0))
        alive = alive & (at < 2 * size - 2)
    nodes, signs = np.zeros((size, max(len(ways), 1)), np.int64), np.zeros((size, max(len(ways), 1)), np.int8)
    if ways:
        nodes[order], signs[order] = np.stack(ways, 1), np.stack(turns, 1)
    return nodes, signs
