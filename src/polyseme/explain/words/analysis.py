"""Measure the occurrences of a word in every layer of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyseme.explain.words.clusters import (
    Clustering,
    agreement,
    choose_clusters,
    cluster,
    distinctive_words,
    mean_similarity,
    nearest_neighbors,
    principal_components,
    unit_rows,
)
from polyseme.explain.words.occurrences import Occurrence
from polyseme.explain.words.vectors import LayerVectors

NUM_TYPICAL = 3  # occurrences that stand for a cluster


@dataclass(frozen=True)
class SenseAgreement:
    """How well the vectors of a layer tell known senses apart.

    `ari` is the adjusted Rand index of clusters and senses, `ari_known_number` that of as many clusters as there are
    senses, and `neighbor` the share of occurrences whose nearest neighbor has the same sense.
    """

    ari: float
    ari_known_number: float
    neighbor: float


@dataclass(frozen=True)
class WordCluster:
    """The occurrences of a cluster, the most typical ones first, and the words that distinguish their contexts."""

    members: list[int]
    words: list[str]


@dataclass(frozen=True, eq=False)
class WordLayer:
    """The occurrences of a word in one layer.

    `points` are the first two principal components [occurrences, 2] of the normalized vectors, `shares` their shares of
    the variance, `neighbors` and `cosines` the nearest occurrences [occurrences, 5] of each.
    """

    layer: int
    points: np.ndarray
    shares: tuple[float, float]
    clustering: Clustering
    clusters: list[WordCluster]
    neighbors: np.ndarray
    cosines: np.ndarray
    self_similarity: float
    senses: SenseAgreement | None

    @property
    def coincides(self) -> bool:
        """Whether all occurrences have the same vector."""
        return not self.points.any()

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain values."""
        scores = self.senses
        return {
            "layer": self.layer,
            "num_clusters": len(self.clusters),
            "silhouette": self.clustering.silhouette,
            "self_similarity": self.self_similarity,
            "variance_shares": list(self.shares),
            "adjusted_rand_index": None if scores is None else scores.ari,
            "adjusted_rand_index_known_number": None if scores is None else scores.ari_known_number,
            "neighbor_agreement": None if scores is None else scores.neighbor,
            "clusters": [
                {"size": len(group.members), "words": group.words, "typical": group.members[:NUM_TYPICAL]}
                for group in self.clusters
            ],
            "cluster": self.clustering.labels.tolist(),
            "points": self.points.tolist(),
            "neighbors": self.neighbors.tolist(),
            "cosines": self.cosines.tolist(),
        }


@dataclass(frozen=True, eq=False)
class WordModel:
    """The occurrences of a word in all layers of a model; `start` is the index of the layer that is shown first."""

    name: str
    description: str
    is_static: bool
    layers: list[WordLayer]
    start: int

    @property
    def first_shown(self) -> WordLayer:
        """The layer that is shown first."""
        return self.layers[self.start]


def analyze_layers(occurrences: Sequence[Occurrence], vectors: LayerVectors) -> list[WordLayer]:
    """Project and cluster the occurrences in each layer."""
    senses = [occurrence.sense for occurrence in occurrences]
    contexts = [occurrence.context_words() for occurrence in occurrences]
    layers: list[WordLayer] = []
    previous = None
    for layer, rows in zip(vectors.layers, vectors.vectors):
        unit = unit_rows(rows)
        scores, shares = principal_components(unit, previous)
        previous = scores if scores.size else previous
        clustering = choose_clusters(scores)
        neighbors, cosines = nearest_neighbors(unit)
        layers.append(
            WordLayer(
                layer,
                np.pad(scores[:, :2], ((0, 0), (0, max(2 - scores.shape[1], 0)))),
                (float(shares[:1].sum()), float(shares[1:2].sum())),
                clustering,
                _describe_clusters(scores, clustering, contexts),
                neighbors,
                cosines,
                mean_similarity(unit),
                _compare_senses(scores, clustering, neighbors, senses) if any(senses) else None,
            )
        )
    return layers


def _describe_clusters(
    scores: np.ndarray, clustering: Clustering, contexts: Sequence[Sequence[str]]
) -> list[WordCluster]:
    """Return the clusters with the occurrences closest to the center first."""
    words = distinctive_words(contexts, clustering.labels, clustering.num_clusters)
    clusters = []
    for label in range(clustering.num_clusters):
        members = np.flatnonzero(clustering.labels == label)
        distances = np.linalg.norm(scores[members] - scores[members].mean(0), axis=1)
        clusters.append(WordCluster(members[np.argsort(distances, kind="stable")].tolist(), words[label]))
    return clusters


def _compare_senses(
    scores: np.ndarray, clustering: Clustering, neighbors: np.ndarray, senses: Sequence[str]
) -> SenseAgreement:
    num_senses = min(len(set(senses)), len(np.unique(scores.round(6), axis=0)) if scores.size else 1)
    pairs = zip(senses, (senses[i] for i in neighbors[:, 0]))
    return SenseAgreement(
        agreement(clustering.labels, senses),
        agreement(cluster(scores, num_senses).labels, senses),
        float(np.mean([one == two for one, two in pairs])),
    )
