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
Share = tuple[float, float]  # a part and the whole


def coreference(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
    """The mean F1 of the three (`f1`), each with its recall and precision, and how many mentions are found."""
    found: dict[str, float] = {}
    for name, of in (("muc", muc), ("b_cubed", b_cubed), ("ceaf", ceaf), ("mentions", mentions)):
        totals = np.zeros(4)
        for key, response in zip(gold, predicted, strict=True):
            totals += _both(of, once(key), once(response))
        recall, precision = (a / b if b else 0.0 for a, b in (totals[:2].tolist(), totals[2:].tolist()))
        f1 = 2 * recall * precision / (recall + precision) if recall + precision else 0.0
        found |= {f"{name}_recall": recall, f"{name}_precision": precision, f"{name}_f1": f1}
    return {"f1": (found["muc_f1"] + found["b_cubed_f1"] + found["ceaf_f1"]) / 3, **found}


def once(clusters: Clusters) -> list[set[Mention]]:
    """Clusters in which each mention stands once, the first time; those that keep none are no more."""
    seen: set[Mention] = set()
    found = []
    for cluster in clusters:
        new = {(int(a), int(b)) for a, b in cluster} - seen
        seen |= new
        found += [new] if new else []
    return found


def _both(of: Callable[..., Share], key: list[set[Mention]], response: list[set[Mention]]) -> np.ndarray:
    return np.array([*of(key, response), *of(response, key)])


def muc(key: list[set[Mention]], response: list[set[Mention]]) -> Share:
    """Links of the key that the response has too (Vilain et al. 1995): a cluster of n mentions is n − 1 links, and is
    cut into as many pieces as clusters of the response share it, each mention that these lack being one more."""
    where = {m: i for i, cluster in enumerate(response) for m in cluster}
    kept = sum(len(c) - len({where.get(m, (m,)) for m in c}) for c in key)
    return kept, sum(len(c) - 1 for c in key)


def b_cubed(key: list[set[Mention]], response: list[set[Mention]]) -> Share:
    """For each mention of the key, the share of its cluster that its cluster in the response holds (Bagga and Baldwin
    1998)."""
    where = {m: i for i, cluster in enumerate(response) for m in cluster}
    shared = sum(n * n / len(c) for c in key for n in Counter(where[m] for m in c if m in where).values())
    return shared, sum(map(len, key))


def ceaf(key: list[set[Mention]], response: list[set[Mention]]) -> Share:
    """The similarity φ4 of the best one-to-one alignment of clusters (Luo 2005): F1 of the mentions of each two."""
    where = {m: i for i, cluster in enumerate(response) for m in cluster}
    worth = np.zeros((len(key), len(response)))
    for i, cluster in enumerate(key):
        for j, n in Counter(where[m] for m in cluster if m in where).items():
            worth[i, j] = 2 * n / (len(cluster) + len(response[j]))
    return float(sum(worth[i, j] for i, j in aligned(worth))), len(key)


def mentions(key: list[set[Mention]], response: list[set[Mention]]) -> Share:
    """Mentions of the key that the response has."""
    theirs: set[Mention] = set().union(*response)
    return sum(len(cluster & theirs) for cluster in key), sum(map(len, key))


def aligned(worth: np.ndarray) -> list[tuple[int, int]]:
    """The pairs (row, column) of the one-to-one alignment that is worth most, all of the shorter side aligned.

    Kuhn 1955 in the form that adds one row at a time by the cheapest path of exchanges (Jonker and Volgenant 1987).
    """
    if worth.shape[0] > worth.shape[1]:
        return sorted((i, j) for j, i in aligned(worth.T))
    rows, columns = worth.shape
    cost = -worth
    price, owner = np.zeros(columns), np.full(columns, -1)
    duty = np.zeros(rows)
    for row in range(rows):
        best, came = np.full(columns, np.inf), np.full(columns, -1)
        done = np.zeros(columns, dtype=bool)
        at, column, reached = row, -1, 0.0
        while True:
            through = reached + cost[at] - duty[at] - price
            nearer = ~done & (through < best)
            best[nearer], came[nearer] = through[nearer], column
            column = int(np.where(done, np.inf, best).argmin())
            reached = best[column]
            if owner[column] < 0:
                break
            done[column], at = True, owner[column]
        duty[row] += reached
        duty[owner[done]] += reached - best[done]
        price[done] -= reached - best[done]
        while column >= 0:  # exchange along the path
            before = came[column]
            owner[column] = owner[before] if before >= 0 else row
            column = before
    return sorted((int(i), j) for j, i in enumerate(owner) if i >= 0)
