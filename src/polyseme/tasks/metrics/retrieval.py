"""Metrics of text vectors: retrieval of pairs, alignment and uniformity."""

from collections.abc import Sequence

import numpy as np

BLOCK_SIZE = 1024  # queries compared with all texts at once
MAX_UNIFORMITY_TEXTS = 4096


def rank_positives(queries: np.ndarray, texts: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return the rank, from 1, of the i-th text for the i-th query by cosine among all different texts.

    `names` are the texts themselves: equal ones count once. A tie counts against the positive.
    """
    _, first_rows, inverse = np.unique(np.array(names, dtype=object), return_index=True, return_inverse=True)
    distinct, ranks = texts[first_rows], np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), BLOCK_SIZE):
        scores = queries[start : start + BLOCK_SIZE] @ distinct.T
        positive = np.take_along_axis(scores, inverse[start : start + BLOCK_SIZE, None], axis=1)
        ranks[start : start + BLOCK_SIZE] = (scores >= positive).sum(axis=1)
    return ranks


def retrieval_metrics(ranks: np.ndarray) -> dict[str, float]:
    """Return the mean reciprocal rank and the share of queries whose text is the first, or among the first ten."""
    return {
        "mrr": float((1 / ranks).mean()),
        "recall@1": float((ranks == 1).mean()),
        "recall@10": float((ranks <= 10).mean()),
    }


def alignment(vectors: np.ndarray) -> float:
    """Return the mean squared distance of pairs, [2, n, dim] (Wang and Isola 2020, §4.1): lower is better."""
    return float(np.square(vectors[0] - vectors[1]).sum(-1).mean())


def uniformity(vectors: np.ndarray) -> float:
    """Return how evenly vectors of length one are spread (Wang and Isola 2020, §4.1, t = 2): lower is better.

    It is the logarithm of the mean of exp(−2 · squared distance) over different vectors, at most 4,096 of them.
    """
    distinct = np.unique(vectors.reshape(-1, vectors.shape[-1]), axis=0)
    distinct = distinct[:: -(-len(distinct) // MAX_UNIFORMITY_TEXTS)].astype(np.float64)
    if len(distinct) < 2:
        return 0.0
    distances = 2 - 2 * (distinct @ distinct.T)
    upper = distances[np.triu_indices(len(distinct), 1)]
    return float(np.log(np.exp(-2 * upper).mean()))
