"""What clusters of mentions are worth: MUC, B³ and CEAF-φ4, as the scorer of CoNLL-2012 counts them, and their mean.

A mention is where it begins and ends. Each document gives a part and a whole for recall and for precision; these are
summed over all documents before anything is divided (Pradhan et al. 2014, Scoring Coreference Partitions of Predicted
Mentions). A mention that the other side does not have is neither removed nor added; a cluster may be of one mention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np

Mention = tuple[int, int]  # the first and the last word
Cluster = Collection[Mention]
Clusters = Sequence[Cluster]
Ratio = tuple[float, float]  # a part and the whole


def coreference_metrics(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
    """The mean F1 of the three (`f1`), each with its recall and precision, and how many mentions are found."""
    metrics: dict[str, float] = {}
    for name, metric_fn in (("muc", muc), ("b_cubed", b_cubed), ("ceaf", ceaf_phi4), ("mentions", mention_overlap)):
        totals = np.zeros(4)
        for key, response in zip(gold, predicted, strict=True):
            totals += _recall_and_precision_terms(metric_fn, deduplicate_mentions(key), deduplicate_mentions(response))
        recall, precision = (a / b if b else 0.0 for a, b in (totals[:2].tolist(), totals[2:].tolist()))
        f1 = 2 * recall * precision / (recall + precision) if recall + precision else 0.0
        metrics |= {f"{name}_recall": recall, f"{name}_precision": precision, f"{name}_f1": f1}
    return {"f1": (metrics["muc_f1"] + metrics["b_cubed_f1"] + metrics["ceaf_f1"]) / 3, **metrics}


def deduplicate_mentions(clusters: Clusters) -> list[set[Mention]]:
    """Clusters in which each mention stands once, the first time; those that keep none are no more."""
    seen_mentions: set[Mention] = set()
    unique_clusters = []
    for cluster in clusters:
        new_mentions = {(int(a), int(b)) for a, b in cluster} - seen_mentions
        seen_mentions |= new_mentions
        unique_clusters += [new_mentions] if new_mentions else []
    return unique_clusters


def _recall_and_precision_terms(
    metric_fn: Callable[..., Ratio], key: list[set[Mention]], response: list[set[Mention]]
) -> np.ndarray:
    return np.array([*metric_fn(key, response), *metric_fn(response, key)])


def muc(key: list[set[Mention]], response: list[set[Mention]]) -> Ratio:
    """Links of the key that the response has too (Vilain et al. 1995): a cluster of n mentions is n − 1 links, and is
    cut into as many pieces as clusters of the response share it, each mention that these lack being one more."""
    response_cluster = {m: i for i, cluster in enumerate(response) for m in cluster}
    num_links = sum(len(c) - len({response_cluster.get(m, (m,)) for m in c}) for c in key)
    return num_links, sum(len(c) - 1 for c in key)


def b_cubed(key: list[set[Mention]], response: list[set[Mention]]) -> Ratio:
    """For each mention of the key, the share of its cluster that its cluster in the response holds (Bagga and Baldwin
    1998)."""
    response_cluster = {m: i for i, cluster in enumerate(response) for m in cluster}
    shared = sum(
        n * n / len(c) for c in key for n in Counter(response_cluster[m] for m in c if m in response_cluster).values()
    )
    return shared, sum(map(len, key))


def ceaf_phi4(key: list[set[Mention]], response: list[set[Mention]]) -> Ratio:
    """The similarity φ4 of the best one-to-one alignment of clusters (Luo 2005): F1 of the mentions of each two."""
    response_cluster = {m: i for i, cluster in enumerate(response) for m in cluster}
    similarity = np.zeros((len(key), len(response)))
    for i, cluster in enumerate(key):
        for j, n in Counter(response_cluster[m] for m in cluster if m in response_cluster).items():
            similarity[i, j] = 2 * n / (len(cluster) + len(response[j]))
    from scipy.optimize import linear_sum_assignment

    pairs = zip(*linear_sum_assignment(similarity, maximize=True))
    return float(sum(similarity[i, j] for i, j in pairs)), len(key)


def mention_overlap(key: list[set[Mention]], response: list[set[Mention]]) -> Ratio:
    """Mentions of the key that the response has."""
    response_mentions: set[Mention] = set().union(*response)
    return sum(len(cluster & response_mentions) for cluster in key), sum(map(len, key))
