"""Baselines of tagging: the most frequent tag, a linear model of each word, and two models of hand-made features that
choose the tags of a sentence together.

These are the conditional random field (Lafferty et al. 2001) and the maximum entropy Markov model (McCallum et al.
2000). Both score a path of tags by weights of the features of each word and of the transitions between tags, learned by
L-BFGS with an L2 penalty. They differ in what is normalized: the field normalizes over all paths of a sentence, the
Markov model over the next tag at every step.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.nn.heads.crf import CRF, ChainLayout, CRFConfig
from polyseme.nn.heads.tag_schemes import first_invalid
from polyseme.progress import progress

TaggerType = Literal["crf", "memm"]
Tags = tuple[str, ...]
CHUNK_ROWS = 4096  # rows of a table of transitions that is built at once


def majority_tag(train: Sequence[Any], dev: Sequence[Any]) -> list[Tags]:
    """Always predict the most frequent tag."""
    best = min((-n, tag) for tag, n in Counter(tag for e in train for tag in e.tags).items())[1]
    return [(best,) * len(e.words) for e in dev]


def linear_tags(train: Sequence[Any], dev: Sequence[Any]) -> list[Tags]:
    """Predict by a support vector machine over a window around each word.

    On tagged documentation it is as good as logistic regression and 100 times as fast.
    """
    tags = [tag for e in train for tag in e.tags]
    if len(set(tags)) < 2:
        return majority_tag(train, dev)
    from scipy import sparse
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.svm import LinearSVC

    table = DictVectorizer().fit(f for e in train for f in word_features(e))

    def featurize(examples: Sequence[Any]) -> Any:
        matrix = table.transform(f for e in examples for f in word_features(e))
        return sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr), matrix.shape)  # 32-bit for the solver

    model = LinearSVC(C=0.3, random_state=0).fit(featurize(train), tags)
    predicted = iter(model.predict(featurize(dev)).tolist())
    return [tuple(next(predicted) for _ in e.words) for e in dev]


def predict_chain_tags(tagger_type: TaggerType, train: Sequence[Any], dev: Sequence[Any]) -> list[Tags]:
    """Tag `dev` by a tagger that has learned from `train`; features that occur once are left out."""
    labels = sorted({tag for e in train for tag in e.tags})
    if len(labels) < 2:
        return majority_tag(train, dev)
    from sklearn.feature_extraction import DictVectorizer

    tag_ids = {tag: i for i, tag in enumerate(labels)}
    vectorizer = DictVectorizer()
    train_features = vectorizer.fit_transform(f for e in train for f in word_features(e))
    frequent = np.flatnonzero(train_features.getnnz(axis=0) > 1)
    tags = np.array([tag_ids[tag] for e in train for tag in e.tags], dtype=np.int64)
    is_well_formed = all(first_invalid(e.tags) is None for e in train)
    lengths, dev_lengths = ([len(e.words) for e in examples] for examples in (train, dev))
    tagger = fit_tagger(tagger_type, train_features[:, frequent], tags, lengths, labels, constrained=is_well_formed)
    dev_features = vectorizer.transform(f for e in dev for f in word_features(e))[:, frequent]
    predicted = (labels[i] for i in tagger.viterbi(dev_features, dev_lengths).tolist())
    return [tuple(next(predicted) for _ in e.words) for e in dev]


crf_tags, memm_tags = partial(predict_chain_tags, "crf"), partial(predict_chain_tags, "memm")


@dataclass(frozen=True, eq=False)
class FeatureTagger:
    """Weights of features, [features, tags], and of transitions."""

    tagger_type: TaggerType
    weights: np.ndarray
    crf: CRF

    def viterbi(self, features: Any, lengths: Sequence[int]) -> np.ndarray:
        """Return the tag of each word on the best path of its sentence."""
        scores, chains = torch.from_numpy(features @ self.weights), ChainLayout.from_lengths(lengths)
        if self.tagger_type == "memm" and len(scores):
            scores = scores - self._log_normalizers(scores, chains.is_first)
        return self.crf.decode(scores, chains).numpy()

    @torch.no_grad()
    def _log_normalizers(self, scores: Tensor, is_first: Tensor) -> Tensor:
        """Return, for each word and tag, the log of the sum over the next tags.

        The normalizer of a step depends on the tag it leaves, so it is subtracted there, and the field's search finds
        the best path.
        """
        transitions = self.crf.constrained_transitions(scores)[0]
        log_sums = torch.cat([(chunk[:, None] + transitions).logsumexp(2) for chunk in scores.split(CHUNK_ROWS)])
        return log_sums.masked_fill(is_first[:, None], 0.0).roll(-1, 0)


def negative_log_likelihood(kind: TaggerType, crf: CRF, scores: Tensor, chains: ChainLayout, tags: Tensor) -> Tensor:
    """Return the summed negative log likelihood of the true tags."""
    if kind == "crf":
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
    """Minimize the loss plus `l2_penalty` / 2 · ‖weights‖² over features of each word (a sparse matrix).

    If `constrained`, transitions that no tag scheme allows are barred.
    """
    from scipy.optimize import minimize

    crf = CRFConfig(constrained).build(labels).double()
    parameters = [crf.transitions, crf.start_transitions, crf.end_transitions]
    chains, gold_tags = ChainLayout.from_lengths(lengths), torch.from_numpy(tags)
    transposed_features, num_weights = features.T.tocsr(), features.shape[1] * len(labels)

    def unpack_weights(point: np.ndarray) -> np.ndarray:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(point[num_weights:]), parameters)
        return point[:num_weights].reshape(-1, len(labels))

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        scores = torch.from_numpy(features @ unpack_weights(point)).requires_grad_()
        loss = negative_log_likelihood(tagger_type, crf, scores, chains, gold_tags)
        score_grad, *crf_grads = torch.autograd.grad(loss, [scores, *parameters], materialize_grads=True)
        grads = [transposed_features @ score_grad.numpy(), *(g.numpy() for g in crf_grads)]
        grad = np.concatenate([g.ravel() for g in grads])
        return float(loss.detach()) + l2_penalty / 2 * float(point @ point), grad + l2_penalty * point

    x0 = np.zeros(num_weights + sum(p.numel() for p in parameters))
    options: dict[str, float] = {"maxiter": max_iterations, "maxcor": 6, "maxfun": 10 * max_iterations}
    options |= {"ftol": 1e-12, "gtol": 1e-6 * max(len(tags), 1)}
    with progress(tagger_type, max_iterations, "iterations") as bar:
        fit = minimize(objective, x0, method="L-BFGS-B", jac=True, callback=lambda _: bar.advance(1), options=options)
    return FeatureTagger(tagger_type, unpack_weights(fit.x).copy(), crf)


def word_features(example: Any) -> Iterator[dict[str, Any]]:
    """Yield the features of each word: itself, its shape, prefixes and suffixes, two words on each side; where a word
    is marked, that word and the distance to it."""
    words, predicate = example.words, getattr(example, "predicate", None)
    padded = ["<<", "<", *words, ">", ">>"]
    shapes = [word_shape(word) for word in padded]
    for i, word in enumerate(words, 2):
        features = {f"word {k - i}": padded[k].lower() for k in range(i - 2, i + 3)}
        features |= {f"shape {k - i}": shapes[k] for k in range(i - 1, i + 2)}
        features |= {f"first {n}": word[:n] for n in (1, 2, 3, 4)}
        features |= {f"last {n}": word[-n:] for n in (1, 2, 3, 4)}
        features |= {"before": " ".join(padded[i - 1 : i + 1]), "after": " ".join(padded[i : i + 2]), "exact": word}
        if predicate is not None:
            distance = str(max(-9, min(i - 2 - predicate[0], 9)))
            verb = padded[predicate[0] + 2].lower()
            features |= {"far": distance, "marked": verb, "marked and far": f"{verb} {distance}"}
        yield features


def word_shape(word: str) -> str:
    """Return the character classes of a word with runs cut to two, so that `HTTPServer2` becomes `AAaa0`."""
    char_classes = re.sub(r"\d", "0", re.sub(r"[^\W\d_]", lambda m: "A" if m[0].isupper() else "a", word))
    return re.sub(r"(.)\1+", r"\1\1", char_classes)
