"""Taggers of features made by hand: the conditional random field (Lafferty et al. 2001) and the maximum entropy Markov
model (McCallum et al. 2000).

Both score a path of tags by weights of what is seen of each word and of the steps from tag to tag, learnt by L-BFGS
with an L2 penalty. They differ in what sums to one: with the field all paths of a sentence, with the Markov model the
tags behind each tag. The first normalises once, the second at every step.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.errors import UnsupportedError
from polyseme.nn.heads.crf import CRF, ChainLayout, CRFConfig
from polyseme.nn.heads.tag_schemes import first_invalid
from polyseme.progress import progress

TaggerType = Literal["crf", "memm"]
CHUNK_ROWS = 4096  # of a table of steps that is made at once


@dataclass(frozen=True, eq=False)
class FeatureTagger:
    """Weights of features, [features, tags], and of steps."""

    tagger_type: TaggerType
    weights: np.ndarray
    crf: CRF

    def viterbi(self, features: Any, lengths: Sequence[int]) -> np.ndarray:
        """The tag of each word on the best path of its sentence."""
        scores, chains = torch.from_numpy(features @ self.weights), ChainLayout.from_lengths(lengths)
        if self.tagger_type == "memm" and len(scores):
            scores = scores - self._log_normalizers(scores, chains.is_first)
        return self.crf.decode(scores, chains).numpy()

    @torch.no_grad()
    def _log_normalizers(self, scores: Tensor, is_first: Tensor) -> Tensor:
        """Of each word and tag, the log of the sum over the tags behind it: what a step is divided by depends on the
        tag it leaves, so that it can be counted there, and the best path is found as with the field."""
        transitions = self.crf.constrained_transitions(scores)[0]
        log_sums = torch.cat([(chunk[:, None] + transitions).logsumexp(2) for chunk in scores.split(CHUNK_ROWS)])
        return log_sums.masked_fill(is_first[:, None], 0.0).roll(-1, 0)


def negative_log_likelihood(
    tagger_type: TaggerType, crf: CRF, scores: Tensor, chains: ChainLayout, tags: Tensor
) -> Tensor:
    """The summed negative log likelihood of the true tags."""
    if tagger_type == "crf":
        return crf.loss(scores, chains, tags, -1)
    transitions, initial, _ = crf.constrained_transitions(scores)
    incoming = torch.where(chains.is_first[:, None], initial, transitions.index_select(0, tags.roll(1)))
    return F.cross_entropy(scores + incoming, tags, reduction="sum")


def fit_tagger(
    tagger_type: TaggerType,
    features: Any,
    tags: np.ndarray,
    lengths: Sequence[int],
    labels: Sequence[str],
    l2_penalty: float = 0.1,
    constrained: bool = True,
    max_iterations: int = 100,
) -> FeatureTagger:
    """The weights with the least cost plus penalty / 2 · ‖weights‖², from features of each word (a sparse matrix).

    Steps that no scheme of tags allows are barred, if `constrained`. At most so many iterations are made.
    """
    from scipy.optimize import minimize

    crf = CRFConfig(constrained).build(labels).double()
    parameters = [crf.transitions, crf.start_transitions, crf.end_transitions]
    chains, gold_tags, weight_shape = (
        ChainLayout.from_lengths(lengths),
        torch.from_numpy(tags),
        (features.shape[1], len(labels)),
    )
    transposed_features, num_weights = features.T.tocsr(), features.shape[1] * len(labels)

    def unpack_weights(point: np.ndarray) -> np.ndarray:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(point[num_weights:]), parameters)
        return point[:num_weights].reshape(weight_shape)

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        scores = torch.from_numpy(features @ unpack_weights(point)).requires_grad_()
        loss = negative_log_likelihood(tagger_type, crf, scores, chains, gold_tags)
        score_grad, *crf_grads = torch.autograd.grad(loss, [scores, *parameters], materialize_grads=True)
        grad = np.concatenate(
            [(transposed_features @ score_grad.numpy()).ravel(), *(g.numpy().ravel() for g in crf_grads)]
        )
        return float(loss.detach()) + l2_penalty / 2 * float(point @ point), grad + l2_penalty * point

    initial_point = np.zeros(num_weights + sum(p.numel() for p in parameters))
    with progress(tagger_type, max_iterations, "iterations") as bar:
        options = {
            "maxiter": max_iterations,
            "maxcor": 6,
            "maxfun": 10 * max_iterations,
            "ftol": 1e-12,
            "gtol": 1e-6 * max(len(tags), 1),
        }
        solution = minimize(
            objective, initial_point, jac=True, method="L-BFGS-B", callback=lambda _: bar.advance(1), options=options
        )
    return FeatureTagger(tagger_type, unpack_weights(solution.x).copy(), crf)


def predict_chain_tags(tagger_type: TaggerType, train: Sequence[Any], dev: Sequence[Any]) -> list[tuple[str, ...]]:
    """What a tagger that has learnt from `train` says of `dev`. What is seen of one word alone is left out."""
    from sklearn.feature_extraction import DictVectorizer

    labels = sorted({tag for e in train for tag in e.tags})
    tag_ids = {tag: i for i, tag in enumerate(labels)}
    vectorizer = DictVectorizer()
    train_features = vectorizer.fit_transform(f for e in train for f in word_features(e))
    frequent = np.flatnonzero(train_features.getnnz(axis=0) > 1)
    tags = np.array([tag_ids[tag] for e in train for tag in e.tags], dtype=np.int64)
    is_well_formed = all(first_invalid(e.tags) is None for e in train)
    tagger = fit_tagger(
        tagger_type,
        train_features[:, frequent],
        tags,
        [len(e.words) for e in train],
        labels,
        constrained=is_well_formed,
    )
    dev_features = vectorizer.transform(f for e in dev for f in word_features(e))[:, frequent]
    lengths = [len(e.words) for e in dev]
    predicted_tags = (labels[i] for i in tagger.viterbi(dev_features, lengths).tolist())
    return [tuple(next(predicted_tags) for _ in range(length)) for length in lengths]


def word_features(example: Any) -> Iterator[dict[str, Any]]:
    """What is seen of a word: itself, its shape, beginnings and ends, two words on each side; where a word is marked,
    which that is and how far."""
    words, predicate = example.words, getattr(example, "predicate", None)
    padded = ["<<", "<", *words, ">", ">>"]
    shapes = [word_shape(word) for word in padded]
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
        if predicate is not None:
            distance = str(max(-9, min(i - 2 - predicate[0], 9)))
            verb = padded[predicate[0] + 2].lower()
            features |= {"far": distance, "marked": verb, "marked and far": f"{verb} {distance}"}
        yield features


def word_shape(word: str) -> str:
    """`HTTPServer2` becomes `AAaa0`-like: runs are cut to two, so that words of a kind look alike."""
    char_classes = re.sub(r"\d", "0", re.sub(r"[^\W\d_]", lambda m: "A" if m[0].isupper() else "a", word))
    return re.sub(r"(.)\1+", r"\1\1", char_classes)


def require_sklearn() -> None:
    """Raise an error if scikit-learn is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise UnsupportedError("scikit-learn is needed for this: pip install 'polyseme[tasks]'")
