"""Coreference metrics as the CoNLL-2012 scorer computes them: MUC, B³ and CEAF-φ4, and their mean.

Each document gives a numerator and a denominator for recall and for precision, which are summed over all documents
before the division (Pradhan et al. 2014, Scoring Coreference Partitions of Predicted Mentions). Mentions that the other
side lacks are neither removed nor added, and a cluster may have one mention.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

Mention = tuple[int, int]  # the first and the last word
Cluster = Collection[Mention]
Clusters = Sequence[Cluster]
Ratio = tuple[float, float]  # numerator and denominator


def coreference_metrics(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
    """Return the mean F1 of the three metrics (`f1`), recall, precision and F1 of each, and those of the mentions."""
    pairs = [(deduplicate_mentions(a), deduplicate_mentions(b)) for a, b in zip(gold, predicted, strict=True)]
    metrics: dict[str, float] = {}
    for name, metric_fn in (("muc", muc), ("b_cubed", b_cubed), ("ceaf", ceaf_phi4), ("mentions", mention_overlap)):
        totals = np.zeros((2, 2))
        for key, response in pairs:
            totals += [metric_fn(key, response), metric_fn(response, key)]
        recall, precision = (a / b if b else 0.0 for a, b in totals.tolist())
        f1 = 2 * recall * precision / (recall + precision) if recall + precision else 0.0
        metrics |= {f"{name}_recall": recall, f"{name}_precision": precision, f"{name}_f1": f1}
    return {"f1": (metrics["muc_f1"] + metrics["b_cubed_f1"] + metrics["ceaf_f1"]) / 3, **metrics}


def deduplicate_mentions(clusters: Clusters) -> list[set[Mention]]:
    """Keep the first occurrence of each mention, and drop clusters without any."""
    seen_mentions: set[Mention] = set()
    unique_clusters = []
    for cluster in clusters:
        new_mentions = {(int(a), int(b)) for a, b in cluster} - seen_mentions
        seen_mentions |= new_mentions
        unique_clusters += [new_mentions] if new_mentions else []
    return unique_clusters


def muc(key: list[set[Mention]], response: list[set[Mention]]) -> Ratio:
    """Count the links of the key that the response has too (Vilain et al. 1995).

    A cluster of n mentions has n − 1 links; the response partitions it, each mention that it lacks being a part.
    """
    response_cluster = {m: i for i, cluster in enumerate(response) for m in cluster}
    num_links = sum(len(c) - len({response_cluster.get(m, (m,)) for m in c}) for c in key)
    return num_links, sum(len(c) - 1 for c in key)


def b_cubed(key: list[set[Mention]], response: list[set[Mention]]) -> Ratio:
    """Sum, over the mentions of the key, the share of its cluster that is also in its response cluster (Bagga and
    Baldwin 1998)."""
    response_cluster = {m: i for i, cluster in enumerate(response) for m in cluster}
    counts = [(c, Counter(response_cluster[m] for m in c if m in response_cluster).values()) for c in key]
    shared = sum(n * n / len(c) for c, shares in counts for n in shares)
    return shared, sum(map(len, key))


def ceaf_phi4(key: list[set[Mention]], response: list[set[Mention]]) -> Ratio:
    """Sum the similarity φ4 (F1 of mentions) over the best one-to-one alignment of clusters (Luo 2005)."""
    response_cluster = {m: i for i, cluster in enumerate(response) for m in cluster}
    similarity = np.zeros((len(key), len(response)))
    for i, cluster in enumerate(key):
        for j, n in Counter(response_cluster[m] for m in cluster if m in response_cluster).items():
            similarity[i, j] = 2 * n / (len(cluster) + len(response[j]))
    from scipy.optimize import linear_sum_assignment

    return float(similarity[linear_sum_assignment(similarity, maximize=True)].sum()), len(key)


def mention_overlap(key: list[set[Mention]], response: list[set[Mention]]) -> Ratio:
    """Count the mentions of the key that the response has."""
    response_mentions: set[Mention] = set().union(*response)
    return sum(len(cluster & response_mentions) for cluster in key), sum(map(len, key))
