"""Project and cluster the occurrences of a word: principal components, k-means, neighbors, distinctive words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyseme.errors import require_package

MAX_CLUSTERS = 8
NUM_NEIGHBORS = 5
MIN_SILHOUETTE = 0.2  # of clusters; below it, there is one
_SILHOUETTE_MARGIN = 0.02  # fewer clusters are preferred to a silhouette that is larger by this much
_MAX_DIMS = 50  # principal components that k-means reads


@dataclass(frozen=True, eq=False)
class Clustering:
    """The cluster of each occurrence, from 0, and how well they are separated; one cluster has no silhouette."""

    labels: np.ndarray
    silhouette: float | None = None

    @property
    def num_clusters(self) -> int:
        """The number of clusters."""
        return int(self.labels.max()) + 1


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Scale each row to length one, in double precision; a row of zeros stays as it is."""
    vectors = vectors.astype(np.float64)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: np.ndarray = vectors / np.where(norms > 0, norms, 1.0)
    return unit


def principal_components(vectors: np.ndarray, previous: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates [rows, components] and the share of variance of each component.

    Vectors that coincide have no component. The sign of a component is the one closer to the `previous` coordinates, so
    that layers can be compared; without these, the coordinate of the largest size is positive.
    """
    centered = vectors - vectors.mean(0)
    if np.abs(centered).max() <= 1e-6 * max(np.abs(vectors).max(), 1e-30):
        return np.zeros((len(vectors), 0)), np.zeros(0)
    left, singular_values, _ = np.linalg.svd(centered, full_matrices=False)
    is_used = singular_values > 1e-6 * singular_values[0]
    scores = left[:, is_used] * singular_values[is_used]
    signs = np.sign(scores[np.abs(scores).argmax(0), np.arange(scores.shape[1])])
    for i in range(min(scores.shape[1], 0 if previous is None else previous.shape[1])):
        overlap = float(scores[:, i] @ previous[:, i])  # type: ignore[index]
        signs[i] = np.sign(overlap) or signs[i]
    return scores * signs, singular_values[is_used] ** 2 / (singular_values**2).sum()


def choose_clusters(scores: np.ndarray, seed: int = 0) -> Clustering:
    """Cluster principal components by k-means, with the smallest number of clusters close to the largest silhouette.

    A silhouette below 0.2 is no evidence of clusters, because any cloud can be cut into parts: then there is one
    cluster. This is a rule of thumb, chosen on the bundled sentences and some words of WikiText-2.
    """
    num_distinct = len(np.unique(scores.round(6), axis=0)) if scores.size else 1
    candidates = [cluster(scores, k, seed) for k in range(2, min(MAX_CLUSTERS, num_distinct - 1) + 1)]
    best = max((candidate.silhouette or 0.0 for candidate in candidates), default=0.0)
    if best < MIN_SILHOUETTE:
        return cluster(scores, 1)
    return next(candidate for candidate in candidates if (candidate.silhouette or 0.0) >= best - _SILHOUETTE_MARGIN)


def cluster(scores: np.ndarray, num_clusters: int, seed: int = 0) -> Clustering:
    """Cluster principal components by k-means; clusters are numbered along the first component."""
    require_package("sklearn", "the clusters of a word", "'polyseme[tasks]'")
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    if num_clusters < 2 or not scores.size:
        return Clustering(np.zeros(len(scores), np.int64))
    scores = scores[:, :_MAX_DIMS]
    labels = KMeans(num_clusters, n_init=10, random_state=seed).fit_predict(scores)
    order = np.argsort([scores[labels == label, 0].mean() for label in range(num_clusters)])
    labels = np.argsort(order)[labels]
    return Clustering(labels, float(silhouette_score(scores, labels)) if num_clusters < len(scores) else None)


def nearest_neighbors(vectors: np.ndarray, top_k: int = NUM_NEIGHBORS) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest other rows of each row by cosine similarity, and their similarities, [rows, top_k] each."""
    unit = unit_rows(vectors)
    similarities = unit @ unit.T
    np.fill_diagonal(similarities, -np.inf)
    nearest = np.argsort(-similarities, axis=1, kind="stable")[:, : min(top_k, len(vectors) - 1)]
    return nearest, np.take_along_axis(similarities, nearest, axis=1)


def mean_similarity(vectors: np.ndarray) -> float:
    """Return the mean cosine similarity of all pairs of different rows: the self-similarity of a word."""
    unit, count = unit_rows(vectors), len(vectors)
    return float(((unit.sum(0) ** 2).sum() - (unit**2).sum()) / (count * (count - 1)))


def agreement(labels: np.ndarray, senses: Sequence[str]) -> float:
    """Return the adjusted Rand index of clusters and senses: 1 if they are the same partition, 0 by chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(list(senses), labels))


def distinctive_words(
    contexts: Sequence[Sequence[str]], labels: np.ndarray, num_clusters: int, top_k: int = 6
) -> list[list[str]]:
    """Return the words that are more frequent in the contexts of each cluster than in the others.

    By the z-score of the log-odds ratio with a Dirichlet prior of all contexts (Monroe et al. 2008, eq. 22). A word
    counts once per context. Words of one to three letters, which are mostly function words, come last.
    """
    counts = [Counter[str]() for _ in range(num_clusters)]
    for words, label in zip(contexts, labels, strict=True):
        counts[label].update(set(words))
    total = sum(counts, Counter[str]())
    prior_size = total.total()
    results: list[list[str]] = []
    for count in counts:
        rest = total - count
        scored = []
        for word in count:
            prior = total[word]
            here, there = count[word] + prior, rest[word] + prior
            odds = here / (count.total() + prior_size - here), there / (rest.total() + prior_size - there)
            z_score = (np.log(odds[0]) - np.log(odds[1])) / np.sqrt(1 / here + 1 / there)
            if rest and z_score > 0:
                scored.append((len(word) < 4, -float(z_score), word))
        results.append([word for *_, word in sorted(scored)[:top_k]])
    return results
