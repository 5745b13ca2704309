"""Heads of word vectors with explicit gradients: word2vec (negative sampling, hierarchical softmax) and GloVe.

For word2vec (skip-gram and CBOW), text is processed in blocks of adjacent words, so that the scores of all pairs of
nearby words are one small matrix product per block, and so are their gradients (CBOW uses embedding bags instead, since
half of its matrix would be zeros). The negatives of a block are shared by all its words (Ji et al. 2016, §4, share them
in a window). A step touches few rows of large tables, so `loss_and_row_grads` returns sparse gradients instead of using
autograd.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.nn.heads.base import Head, HeadConfig
from polyseme.nn.index_cache import cached_index
from polyseme.nn.layers.embeddings import SparseRowGrad
from polyseme.nn.packing import tree_map


@dataclass(frozen=True, eq=False)
class WindowBatch:
    """Running text in B blocks of L words, with a margin of words (or padding) before the first and after the last.

    With `is_cbow`, a word is predicted from the mean of its context (CBOW); otherwise the context is predicted from the
    word (skip-gram). Each negative of a block counts as `negative_weight` samples for each pair.
    """

    tokens: Tensor  # int64 [margin + B·L + margin]
    context_mask: Tensor  # bool [B·L, 2 margin + 1]: which surrounding words, left to right, are a word's context
    negatives: Tensor  # int64 [B, N]
    block_size: int
    margin: int
    negative_weight: float = 1.0
    is_cbow: bool = False

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return self.negatives.shape[0]

    @property
    def words(self) -> Tensor:
        """The tokens without the margins, int64 [B·L]."""
        return self.tokens[self.margin : len(self.tokens) - self.margin]

    @property
    def num_products(self) -> int:
        """Number of dot products, including those that are masked."""
        positives_per_word = 1 if self.is_cbow else self.block_size + 2 * self.margin
        return len(self.words) * (positives_per_word + self.negatives.shape[1])

    def slice_blocks(self, first: int, last: int) -> Self:
        """Return the blocks from `first` to `last`, exclusive."""
        start, stop = first * self.block_size, last * self.block_size
        tokens, mask = self.tokens[start : stop + 2 * self.margin], self.context_mask[start:stop]
        return replace(self, tokens=tokens, context_mask=mask, negatives=self.negatives[first:last])

    def dense_context_mask(self, dtype: torch.dtype) -> Tensor:
        """Return the context mask over a block and its margins, 1 or 0, [B, L, L + 2 margin]."""
        num_blocks, block_size, (_, span) = self.num_blocks, self.block_size, self.context_mask.shape
        mask = torch.zeros(num_blocks, block_size, block_size + span - 1, dtype=dtype, device=self.context_mask.device)
        band = mask.as_strided((num_blocks, block_size, span), (mask.stride(0), mask.stride(1) + 1, 1))
        band.copy_(self.context_mask.view(num_blocks, block_size, span))
        return mask

    def count(self) -> Tensor:
        """Return the number of predictions, each one loss term with its negatives."""
        return (self.context_mask.any(1) if self.is_cbow else self.context_mask).sum()


class SparseLossOutput(NamedTuple):
    """Loss and gradients of a batch."""

    loss: Tensor | None  # summed, if requested
    input_grad: Tensor  # [margin + B·L + margin, dim]
    counts: Tensor  # float, number of loss terms summed in each row
    head_grads: list[SparseRowGrad]  # of the head's tables


def overlapping_blocks(flat: Tensor, block_size: int, margin: int) -> Tensor:
    """View rows [margin + B·L + margin, …] as overlapping blocks [B, L + 2 margin, …], without a copy."""
    num_blocks, strides = (flat.shape[0] - 2 * margin) // block_size, flat.stride()
    shape = num_blocks, block_size + 2 * margin, *flat.shape[1:]
    return flat.as_strided(shape, (block_size * strides[0], *strides), flat.storage_offset())


def overlap_add(blocks: Tensor, block_size: int, margin: int) -> Tensor:
    """Add overlapping blocks, the adjoint of `overlapping_blocks`."""
    flat, end = blocks.new_zeros(len(blocks) * block_size + 2 * margin, *blocks.shape[2:]), margin + block_size
    views = overlapping_blocks(flat, block_size, margin)
    views[:, margin:end].copy_(blocks[:, margin:end])
    views[:, :margin].add_(blocks[:, :margin])
    views[:, end:].add_(blocks[:, end:])
    return flat


def windowed_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums [n, dim] of the rows i … i + span − 1 for each i, with weights [n, span]."""
    num_rows, span = weights.shape
    index, offsets = _window_index(num_rows, span, rows.device)
    return F.embedding_bag(index, rows, offsets, mode="sum", per_sample_weights=weights.flatten())


@cached_index(16)
def _window_index(num_rows: int, span: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the concatenated row indices of each window and the offsets of the windows."""
    index = torch.arange(num_rows + span - 1, device=device).as_strided((num_rows, span), (1, 1))
    return index.flatten(), torch.arange(0, num_rows * span, span, device=device)


def transpose_band(band: Tensor) -> Tensor:
    """Transpose a band matrix, [n, span] → [n + span − 1, span]: row j has band[i, j − i] for i = j − span + 1 … j."""
    num_rows, span = band.shape
    padded = F.pad(band, (0, 0, span - 1, span - 1))
    return padded.as_strided((num_rows + span - 1, span), (span, span - 1), span - 1).contiguous()


@dataclass(frozen=True)
class WordVectorHeadConfig(HeadConfig):
    """Base of the configs of heads with a table of vectors; abstract."""

    vocab_size: int

    def matmul_params(self, dim: int) -> int:
        return dim * self.vocab_size


@dataclass(frozen=True)
class NegativeSamplingHeadConfig(WordVectorHeadConfig):
    """Output vectors trained by negative sampling (Mikolov et al. 2013b, §2.2)."""

    def build(self, dim: int) -> Head:
        return NegativeSamplingHead(self, dim)


class NegativeSamplingHead(Head):
    """Table of output vectors, whose products with word vectors are the logits."""

    def __init__(self, config: NegativeSamplingHeadConfig, dim: int):
        super().__init__(config)
        self.output_embeddings = nn.Parameter(torch.zeros(config.vocab_size, dim))

    def forward(self, states: Tensor, token_embeddings: Tensor) -> Tensor:
        """Return the logits of all words, [rows, vocab_size]."""
        return F.linear(states, self.output_embeddings)

    def loss_and_row_grads(self, batch: WindowBatch, inputs: Tensor, with_loss: bool = False) -> SparseLossOutput:
        """Return the loss, if requested, and the gradients; `inputs` are the vectors of `batch.tokens`."""
        return (self._cbow if batch.is_cbow else self._skipgram)(batch, inputs, with_loss)

    def _skipgram(self, batch: WindowBatch, inputs: Tensor, with_loss: bool) -> SparseLossOutput:
        """Skip-gram: each word predicts its context."""
        block_size, margin, dim = batch.block_size, batch.margin, inputs.shape[1]
        context_mask = batch.dense_context_mask(inputs.dtype)
        num_contexts = context_mask.sum(2).view(-1)
        centers = inputs[margin : len(inputs) - margin].view(-1, block_size, dim)
        contexts = overlapping_blocks(F.embedding(batch.tokens, self.output_embeddings), block_size, margin)
        negatives = F.embedding(batch.negatives, self.output_embeddings)
        positive_scores = torch.bmm(centers, contexts.transpose(1, 2))
        negative_scores = torch.bmm(centers, negatives.transpose(1, 2))
        negative_weights = (num_contexts * batch.negative_weight).view(-1, block_size, 1)
        loss = _logistic_loss(positive_scores, context_mask, negative_scores, negative_weights) if with_loss else None
        positive_scores = positive_scores.sigmoid_().sub_(1).mul_(context_mask)
        negative_scores = negative_scores.sigmoid_().mul_(negative_weights)
        center_grad = torch.bmm(positive_scores, contexts).baddbmm_(negative_scores, negatives)
        input_grad = F.pad(center_grad.view(-1, dim), (0, 0, margin, margin))
        counts = F.pad(num_contexts * (1 + batch.negative_weight * batch.negatives.shape[1]), (margin, margin))
        context_grad = overlap_add(torch.bmm(positive_scores.transpose(1, 2), centers), block_size, margin)
        context_counts = overlap_add(context_mask.sum(1), block_size, margin)
        return SparseLossOutput(loss, input_grad, counts, [
            SparseRowGrad(self.output_embeddings, batch.tokens, context_grad, context_counts),
            self._negatives_grad(batch, torch.bmm(negative_scores.transpose(1, 2), centers), negative_weights),
        ])  # fmt: skip

    def _cbow(self, batch: WindowBatch, inputs: Tensor, with_loss: bool) -> SparseLossOutput:
        """CBOW: the mean of its context predicts each word.

        Each context word gets the whole gradient, not its share of the mean, as in the authors' code, so that the mean
        moves equally far for any window size.
        """
        margin, block_size, dim = batch.margin, batch.block_size, inputs.shape[1]
        context_mask = batch.context_mask.to(inputs.dtype)
        num_contexts = context_mask.sum(1, keepdim=True)
        has_context = num_contexts.clamp(max=1).view(-1, block_size, 1)
        context_mean = windowed_sum(inputs, context_mask / num_contexts.clamp(min=1)).view(-1, block_size, dim)
        target_vectors = F.embedding(batch.words, self.output_embeddings).view(-1, block_size, dim)
        negatives = F.embedding(batch.negatives, self.output_embeddings)
        positive_score = (context_mean * target_vectors).sum(-1, keepdim=True)
        negative_scores = torch.bmm(context_mean, negatives.transpose(1, 2))
        negative_weights = has_context * batch.negative_weight
        loss = _logistic_loss(positive_score, has_context, negative_scores, negative_weights) if with_loss else None
        positive_score = positive_score.sigmoid_().sub_(1)  # without a context, the mean and its gradient are 0
        negative_scores = negative_scores.sigmoid_().mul_(batch.negative_weight)
        padded_grad = inputs.new_empty(len(inputs) + 2 * margin, dim)
        padded_grad[: 2 * margin] = 0
        padded_grad[len(inputs) :] = 0
        mean_grad = padded_grad[2 * margin : len(inputs)].view(-1, block_size, dim)
        torch.mul(target_vectors, positive_score, out=mean_grad)
        mean_grad.baddbmm_(negative_scores, negatives)
        transposed_mask = transpose_band(context_mask)
        counts = transposed_mask.sum(1) * (1 + batch.negative_weight * batch.negatives.shape[1])
        input_grad = windowed_sum(padded_grad, transposed_mask)
        negatives_grad = torch.bmm(negative_scores.transpose(1, 2), context_mean)
        target_grad = context_mean.mul_(positive_score).view(-1, dim)  # in place: after the gradient of the negatives
        return SparseLossOutput(loss, input_grad, counts, [
            self._negatives_grad(batch, negatives_grad, negative_weights),
            SparseRowGrad(self.output_embeddings, batch.words, target_grad, has_context.view(-1)),
        ])  # fmt: skip

    def _negatives_grad(self, batch: WindowBatch, grad: Tensor, weights: Tensor) -> SparseRowGrad:
        counts = weights.sum(1).expand(batch.negatives.shape).reshape(-1)
        return SparseRowGrad(self.output_embeddings, batch.negatives.view(-1), grad.flatten(0, 1), counts)


def _logistic_loss(positive_scores: Tensor, mask: Tensor, negative_scores: Tensor, negative_weights: Tensor) -> Tensor:
    positive_loss = (F.softplus(-positive_scores) * mask).sum()
    return positive_loss + (F.softplus(negative_scores) * negative_weights).sum()


@dataclass(frozen=True)
class HierarchicalSoftmaxHeadConfig(WordVectorHeadConfig):
    """Hierarchical softmax: the probability of a word is that of its path through a binary tree.

    It is a Huffman tree, so frequent words have short paths (Mikolov et al. 2013b, §2.1).
    """

    def matmul_params(self, dim: int) -> int:
        return dim * max(self.vocab_size.bit_length(), 1)

    def build(self, dim: int) -> Head:
        return HierarchicalSoftmaxHead(self, dim)


class HierarchicalSoftmaxHead(Head):
    """Hierarchical softmax over the Huffman tree of the word `counts`, which are all 1 before `set_vocabulary`."""

    counts: Tensor

    def __init__(self, config: HierarchicalSoftmaxHeadConfig, dim: int):
        super().__init__(config)
        self.node_embeddings = nn.Parameter(torch.zeros(max(config.vocab_size - 1, 1), dim))
        self.register_buffer("counts", torch.ones(config.vocab_size))
        self._tree: tuple[Tensor, Tensor] | None = None

    def set_vocabulary(self, words: Sequence[str], special_ids: Any = (), counts: np.ndarray | None = None) -> None:
        """Set the word counts that determine the tree."""
        if counts is not None:
            self.counts.copy_(torch.from_numpy(np.maximum(counts, 1)))
        self._tree = None

    @property
    def paths(self) -> tuple[Tensor, Tensor]:
        """Inner nodes on the path of each word, int64 [V, depth], and the direction at each: ±1, 0 after the end."""
        device = self.node_embeddings.device
        if self._tree is None or self._tree[0].device != device:
            nodes, signs = build_huffman_paths(self.counts.cpu().numpy().astype(np.float64))
            self._tree = torch.from_numpy(nodes).to(device), torch.from_numpy(signs).to(device)
        return self._tree

    def forward(self, states: Tensor, token_embeddings: Tensor) -> Tensor:
        """Return the log-probability of every word, [rows, vocab_size]."""
        nodes, signs = self.paths
        scores, signs = F.linear(states, self.node_embeddings), signs.to(self.node_embeddings.dtype)
        pairs = zip(nodes.T, signs.T)
        log_probs = [F.logsigmoid(scores.index_select(1, ids) * sign) * sign.abs() for ids, sign in pairs]
        return torch.stack(log_probs).sum(0)

    def loss_and_row_grads(self, batch: WindowBatch, inputs: Tensor, with_loss: bool = False) -> SparseLossOutput:
        """Return the loss, if requested, and the gradients; each word is predicted from its context words or mean."""
        dim, span, num_words = inputs.shape[1], 2 * batch.margin + 1, len(batch.words)
        nodes, signs = (table.index_select(0, batch.words) for table in self.paths)
        signs, context_mask = signs.to(inputs.dtype), batch.context_mask.to(inputs.dtype)
        context_vectors = inputs.as_strided((num_words, span, dim), (dim, dim, 1), inputs.storage_offset())
        prediction_mask = context_mask
        if batch.is_cbow:
            num_contexts = context_mask.sum(1, keepdim=True)
            context_vectors = windowed_sum(inputs, context_mask / num_contexts.clamp(min=1))[:, None]
            prediction_mask = num_contexts.clamp(max=1)
        node_vectors = F.embedding(nodes, self.node_embeddings)
        scores = torch.bmm(context_vectors, node_vectors.transpose(1, 2))
        node_mask = prediction_mask[:, :, None] * signs.abs()[:, None]
        total_loss = (F.softplus(-scores * signs[:, None]) * node_mask).sum() if with_loss else None
        scores = (scores * signs[:, None]).sigmoid_().sub_(1) * signs[:, None] * prediction_mask[:, :, None]
        context_grad = torch.bmm(scores, node_vectors)
        if batch.is_cbow:  # each context word gets the whole gradient
            context_grad = context_mask[:, :, None] * context_grad
        input_grad, input_counts = torch.zeros_like(inputs), torch.zeros_like(inputs[:, 0])
        path_length = signs.abs().sum(1)
        for offset in range(span):
            input_grad[offset : offset + num_words] += context_grad[:, offset]
            input_counts[offset : offset + num_words] += context_mask[:, offset] * path_length
        node_grad = torch.bmm(scores.transpose(1, 2), context_vectors)
        node_counts = (prediction_mask.sum(1, keepdim=True) * signs.abs()).reshape(-1)
        grad = SparseRowGrad(self.node_embeddings, nodes.reshape(-1), node_grad.view(-1, dim), node_counts)
        return SparseLossOutput(total_loss, input_grad, input_counts, [grad])


def build_huffman_paths(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the inner nodes on the path of each word, int64 [V, depth], and the directions: ±1, 0 after the end.

    Inner node i of the tree is the i-th merge of the two rarest nodes; of equally rare ones, the older.
    """
    num_words, order = len(counts), np.argsort(counts, kind="stable")
    heap = list(zip(counts[order].tolist(), range(num_words)))  # sorted lists are heaps
    parent, sign = np.zeros(2 * num_words, np.int64), np.ones(2 * num_words, np.int8)
    for new_node in range(num_words, 2 * num_words - 1):
        (left_count, left), (right_count, right) = heappop(heap), heappop(heap)
        parent[left], parent[right], sign[right] = new_node, new_node, -1
        heappush(heap, (left_count + right_count, new_node))
    path_nodes: list[np.ndarray] = []
    path_signs: list[np.ndarray] = []
    current, alive = np.arange(num_words), np.full(num_words, num_words > 1)
    while alive.any() or not path_nodes:
        path_signs.append(np.where(alive, sign[current], 0))
        current = np.where(alive, parent[current], current)
        path_nodes.append(np.where(alive, current - num_words, 0))
        alive = alive & (current < 2 * num_words - 2)
    ranks = np.argsort(order)
    return np.stack(path_nodes, 1)[ranks], np.stack(path_signs, 1)[ranks]


@dataclass(frozen=True, eq=False)
class CooccurrenceBatch:
    """Cells of a co-occurrence matrix."""

    tokens: Tensor  # int64 [n], the words
    context_ids: Tensor  # int64 [n], the context words
    log_counts: Tensor  # float [n], logarithms of their counts
    weights: Tensor  # float [n], weights of the cells in the loss

    block_size = 1

    @property
    def num_blocks(self) -> int:
        """Number of blocks, of one cell and one dot product each."""
        return len(self.tokens)

    num_products = num_blocks

    def count(self) -> Tensor:
        """Return the number of loss terms."""
        return torch.full((), len(self.tokens), device=self.tokens.device)

    def slice_blocks(self, first: int, last: int) -> Self:
        """Return the blocks from `first` to `last`, exclusive."""
        return tree_map(self, lambda tensor: tensor[first:last])


@dataclass(frozen=True)
class GloVeHeadConfig(WordVectorHeadConfig):
    """Context vectors and biases of GloVe."""

    def build(self, dim: int) -> Head:
        return GloVeHead(self, dim)


class GloVeHead(Head):
    """Table of context vectors, and a bias for each word and each context word (Pennington et al. 2014, §3)."""

    normal_init: ClassVar = ("context_embeddings",)

    def __init__(self, config: GloVeHeadConfig, dim: int):
        super().__init__(config)
        self.context_embeddings = nn.Parameter(torch.zeros(config.vocab_size, dim))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.word_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, states: Tensor, token_embeddings: Tensor) -> Tensor:
        """Return scores of all context words, [rows, vocab_size]."""
        return F.linear(states, self.context_embeddings, self.bias)

    @torch.no_grad()
    def merge_into(self, token_embeddings: Tensor) -> None:
        """Add the context vectors to the word vectors; the sum is better than either table (§4.2)."""
        token_embeddings += self.context_embeddings.to(token_embeddings)

    def loss_and_row_grads(self, batch: CooccurrenceBatch, inputs: Tensor, with_loss: bool = False) -> SparseLossOutput:
        """Return half of the weighted squared error (eq. 8), if requested, and the gradients."""
        context_vectors = F.embedding(batch.context_ids, self.context_embeddings)
        biases = self.word_bias.index_select(0, batch.tokens) + self.bias.index_select(0, batch.context_ids)
        error = (inputs * context_vectors).sum(1) + biases - batch.log_counts
        weighted_error, ones = error * batch.weights, torch.ones_like(error)
        loss = (weighted_error * error).sum() / 2 if with_loss else None
        return SparseLossOutput(loss, weighted_error[:, None] * context_vectors, ones, [
            SparseRowGrad(self.context_embeddings, batch.context_ids, weighted_error[:, None] * inputs, ones),
            SparseRowGrad(self.word_bias, batch.tokens, weighted_error, ones),
            SparseRowGrad(self.bias, batch.context_ids, weighted_error.clone(), ones),
        ])  # fmt: skip
