"""Taggers of features made by hand: the conditional random field (Lafferty et al. 2001) and the maximum entropy Markov
model (McCallum et al. 2000).

Both score a path of tags by weights of what is seen of each word and of the steps from tag to tag, learnt by L-BFGS
with an L2 penalty. They differ in what sums to one: with the field all paths of a sentence, with the Markov model the
tags behind each tag. The first normalises once, the second at every step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.nn.heads.crf import Chains, Crf, CrfSpec
from polyseme.nn.heads.tag_schemes import broken
from polyseme.progress import progress
from polyseme.tasks.examples import Example

Which = Literal["crf", "memm"]
ROWS = 4096  # of a table of steps that is made at once


@dataclass(frozen=True, eq=False)
class Tagger:
    """Weights of features, [features, tags], and of steps."""

    which: Which
    weights: np.ndarray
    steps: Crf

    def best(self, seen: Any, lengths: Sequence[int]) -> np.ndarray:
        """The tag of each word on the best path of its sentence."""
        scores, chains = torch.from_numpy(seen @ self.weights), Chains.of(lengths)
        if self.which == "memm" and len(scores):
            scores = scores - self._left(scores, chains.opens)
        return self.steps.best(scores, chains).numpy()

    @torch.no_grad()
    def _left(self, scores: Tensor, opens: Tensor) -> Tensor:
        """Of each word and tag, the log of the sum over the tags behind it: what a step is divided by depends on the
        tag it leaves, so that it can be counted there, and the best path is found as with the field."""
        steps = self.steps.tables(scores)[0]
        sums = torch.cat([(part[:, None] + steps).logsumexp(2) for part in scores.split(ROWS)])
        return sums.masked_fill(opens[:, None], 0.0).roll(-1, 0)


def cost(which: Which, steps: Crf, scores: Tensor, chains: Chains, tags: Tensor) -> Tensor:
    """The summed negative log likelihood of the true tags."""
    if which == "crf":
        return steps.loss(scores, chains, tags, -1)
    moves, first, _ = steps.tables(scores)
    before = torch.where(chains.opens[:, None], first, moves.index_select(0, tags.roll(1)))
    return F.cross_entropy(scores + before, tags, reduction="sum")


def fit(
    which: Which,
    seen: Any,
    tags: np.ndarray,
    lengths: Sequence[int],
    labels: Sequence[str],
    penalty: float = 0.1,
    constrained: bool = True,
    most: int = 100,
) -> Tagger:
    """The weights with the least cost plus penalty / 2 · ‖weights‖², from features of each word (a sparse matrix).

    Steps that no scheme of tags allows are barred, if `constrained`. At most so many iterations are made.
    """
    from scipy.optimize import minimize

    steps = CrfSpec(constrained).build(labels).double()
    parts = [steps.steps, steps.first, steps.last]
    chains, truth, shape = Chains.of(lengths), torch.from_numpy(tags), (seen.shape[1], len(labels))
    turned, size = seen.T.tocsr(), seen.shape[1] * len(labels)

    def put(point: np.ndarray) -> np.ndarray:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(point[size:]), parts)
        return point[:size].reshape(shape)

    def measure(point: np.ndarray) -> tuple[float, np.ndarray]:
        scores = torch.from_numpy(seen @ put(point)).requires_grad_()
        found = cost(which, steps, scores, chains, truth)
        inner, *outer = torch.autograd.grad(found, [scores, *parts], materialize_grads=True)
        slope = np.concatenate([(turned @ inner.numpy()).ravel(), *(g.numpy().ravel() for g in outer)])
        return float(found.detach()) + penalty / 2 * float(point @ point), slope + penalty * point

    start = np.zeros(size + sum(p.numel() for p in parts))
    with progress(which, most, "iterations") as bar:
        options = {"maxiter": most, "maxcor": 6, "maxfun": 10 * most, "ftol": 1e-12, "gtol": 1e-6 * max(len(tags), 1)}
        found = minimize(
            measure, start, jac=True, method="L-BFGS-B", callback=lambda _: bar.advance(1), options=options
        )
    return Tagger(which, put(found.x).copy(), steps)


def chain_tags(which: Which, train: Sequence[Example], dev: Sequence[Example]) -> list[tuple[str, ...]]:
    """What a tagger that has learnt from `train` says of `dev`. What is seen of one word alone is left out."""
    from sklearn.feature_extraction import DictVectorizer

    labels = sorted({tag for e in train for tag in e.tags or ()})
    numbers = {tag: i for i, tag in enumerate(labels)}
    table = DictVectorizer()
    seen = table.fit_transform(f for e in train for f in windows(e))
    often = np.flatnonzero(seen.getnnz(axis=0) > 1)
    tags = np.array([numbers[tag] for e in train for tag in e.tags or ()], dtype=np.int64)
    whole = all(broken(e.tags or ()) is None for e in train)
    tagger = fit(which, seen[:, often], tags, [len(e.words or ()) for e in train], labels, constrained=whole)
    new = table.transform(f for e in dev for f in windows(e))[:, often]
    sizes = [len(e.words or ()) for e in dev]
    found = (labels[i] for i in tagger.best(new, sizes).tolist())
    return [tuple(next(found) for _ in range(size)) for size in sizes]


def windows(example: Example) -> Iterator[dict[str, Any]]:
    """What is seen of a word: itself, its shape, beginnings and ends, two words on each side; where a word is marked,
    which that is and how far."""
    words = example.words or ()
    padded = ["<<", "<", *words, ">", ">>"]
    shapes = [shape(word) for word in padded]
    for i, word in enumerate(words, 2):
        features = {f"word {k - i}": padded[k].lower() for k in range(i - 2, i + 3)}
        features |= {f"shape {k - i}": shapes[k] for k in range(i - 1, i + 2)}
        features |= {f"first {n}": word[:n] for n in (1, 2, 3, 4)}
        features |= {f"last {n}": word[-n:] for n in (1, 2, 3, 4)}
        features |= {
            "before": " ".join(padded[i - 1 : i + 1]),
            "after": " ".join(padded[i : i + 2]),
            "exact": word,
        }
        if example.mark is not None:
            far = str(max(-9, min(i - 2 - example.mark[0], 9)))
            marked = padded[example.mark[0] + 2].lower()
            features |= {"far": far, "marked": marked, "marked and far": f"{marked} {far}"}
        yield features


def shape(word: str) -> str:
    """`HTTPServer2` becomes `AAaa0`-like: runs are cut to two, so that words of a kind look alike."""
    kinds = re.sub(r"\d", "0", re.sub(r"[^\W\d_]", lambda m: "A" if m[0].isupper() else "a", word))
    return re.sub(r"(.)\1+", r"\1\1", kinds)
