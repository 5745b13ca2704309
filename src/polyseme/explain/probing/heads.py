"""Attention heads that follow dependency relations, next to the best fixed offset (Clark et al. 2019, §4.2).

For each relation, the head of a model is chosen whose most attended word is most often the syntactic head of the
dependent, or the dependent of the syntactic head. It is chosen on train and scored on dev.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyseme.errors import ConfigError, DataError
from polyseme.explain.probing.dependencies import DependencyTree
from polyseme.explain.probing.estimates import Estimate, GroupScores, Resampler, estimate_layers
from polyseme.explain.probing.items import split_groups
from polyseme.explain.probing.trees import TreeData
from polyseme.inference.base import LanguageModel
from polyseme.progress import progress
from polyseme.tasks.encoded import encode_words

logger = logging.getLogger(__name__)
MIN_ARCS = 10  # of a relation in train, to choose a head for it
MAX_OFFSET = 5
ALL_RELATIONS = "all"
DIRECTIONS = ("dependent → head", "head → dependent")


@dataclass(frozen=True)
class RelationHead:
    """The best attention head for a relation (layer and head from 1), and the best offset, scored on dev."""

    relation: str
    num_dev: int
    layer: int
    head: int
    direction: str
    accuracy: Estimate
    offset: int
    offset_direction: str
    offset_accuracy: Estimate
    difference: Estimate


@dataclass(frozen=True)
class ModelHeads:
    """The best head of a model for each relation."""

    model: str
    num_layers: int
    num_heads: int
    relations: tuple[RelationHead, ...]


@dataclass(frozen=True)
class HeadProbe:
    """The heads of models that follow dependency relations."""

    task: str
    num_train: int
    num_dev: int
    models: tuple[ModelHeads, ...]


def probe_heads(
    data: TreeData, models: Mapping[str, LanguageModel], layers: Sequence[int] | None, seeds: Sequence[int]
) -> HeadProbe:
    """Find the best head of each model for each relation; the first seed splits data that has no dev file."""
    train, held_out, dev = split_groups(data.name, len(data.trees), data.num_train, seeds[0])
    fitted = np.concatenate([train, held_out])
    choices = {name: _attended_words(model, data.trees, layers) for name, model in models.items()}
    return HeadProbe(
        data.name,
        len(fitted),
        len(dev),
        tuple(_choose_heads(name, data.trees, *choice, fitted, dev) for name, choice in choices.items()),
    )


def _attended_words(
    model: LanguageModel, trees: Sequence[DependencyTree], layers: Sequence[int] | None
) -> tuple[list[np.ndarray | None], list[int]]:
    """Return the word that each head attends to most from each word, [layers, heads, words], and the layers.

    A sentence that the model does not read in one piece is None. Special tokens and the word itself do not count.
    """
    attended: list[np.ndarray | None] = []
    chosen: list[int] = []
    with progress(f"attention of {model.path}", len(trees), "sentences") as bar:
        for tree in trees:
            weights = word_attention(model, tree.words)
            if weights is not None and not chosen:
                chosen = list(range(1, len(weights) + 1)) if layers is None else sorted(set(layers))
                if not set(chosen) <= set(range(1, len(weights) + 1)):
                    raise ConfigError(f"{model.path} has attention in layers 1 to {len(weights)}: `layers` is {chosen}")
            if weights is not None:
                size = len(tree.words)
                weights = weights[[layer - 1 for layer in chosen]]
                weights[..., np.arange(size), np.arange(size)] = -1
                attended.append(weights.argmax(-1).astype(np.int16))
            else:
                attended.append(None)
            bar.advance(1)
    num_skipped = sum(each is None for each in attended)
    if num_skipped == len(trees):
        raise DataError(f"{model.path} reads none of the sentences as their words: its tokenizer joins words")
    if num_skipped:
        logger.warning(f"{model.path}: left out {num_skipped} of {len(trees)} sentences: too long, or words are joined")
    return attended, chosen


def word_attention(model: LanguageModel, words: Sequence[str]) -> np.ndarray | None:
    """Return attention between the words of a treebank, [layers, heads, words, words]; None if tokens do not fit.

    Attention to a word is the sum over its tokens, attention from it the mean.
    """
    tokenizer = model.tokenizer
    pieces, word_of = encode_words(tokenizer, words)
    num_special = tokenizer.num_special_tokens_to_add()
    if len(pieces) + num_special > getattr(model, "max_len", len(pieces) + num_special):
        return None
    weights = model.attention(" ".join(words)).maps[0].weights
    template = tokenizer.build_inputs_with_special_tokens([-1])[0]
    first = template.index(-1) if -1 in template else 0
    if weights.shape[-1] - len(pieces) not in range(0, num_special + 2) or first + len(pieces) > weights.shape[-1]:
        return None
    weights = weights[..., first : first + len(pieces), first : first + len(pieces)]
    members = (word_of[None, :] == np.arange(len(words))[:, None]).astype(np.float32)
    means = members / members.sum(1, keepdims=True)
    merged: np.ndarray = np.einsum("lhij,qi,kj->lhqk", weights, means, members, optimize=True)
    return merged


def _choose_heads(
    name: str,
    trees: Sequence[DependencyTree],
    attended: Sequence[np.ndarray | None],
    layers: Sequence[int],
    train: np.ndarray,
    dev: np.ndarray,
) -> ModelHeads:
    """Choose the head and the offset of each relation on train, and score them on dev."""
    num_layers, num_heads = next(each for each in attended if each is not None).shape[:2]
    fitted, scored = ([i for i in part.tolist() if attended[i] is not None] for part in (train, dev))
    counts = Counter(relation for i in fitted for relation, *_ in _arcs(trees[i]))
    relations = [ALL_RELATIONS, *sorted(r for r, count in counts.items() if count >= MIN_ARCS and r != ALL_RELATIONS)]
    index = {relation: i for i, relation in enumerate(relations)}
    totals = np.zeros(len(relations))
    head_counts = np.zeros((len(relations), 2, num_layers, num_heads))
    offset_counts = np.zeros((len(relations), 2, 2 * MAX_OFFSET + 1))
    for i in fitted:
        for relation, word, head in _arcs(trees[i]):
            if relation in index:
                row = index[relation]
                totals[row] += 1
                head_counts[row] += _hits(attended[i], word, head)
                offset_counts[row] += _offset_hits(word, head)
    best_heads = [np.unravel_index(each.argmax(), each.shape) for each in head_counts]
    best_offsets = [np.unravel_index(each.argmax(), each.shape) for each in offset_counts]
    points, sizes = np.zeros((2, 1, len(relations), len(trees)), np.float32), np.zeros((1, len(relations), len(trees)))
    for i in scored:
        for relation, word, head in _arcs(trees[i]):
            if relation in index:
                row = index[relation]
                sizes[0, row, i] += 1
                points[0, 0, row, i] += _hits(attended[i], word, head)[best_heads[row]]
                points[1, 0, row, i] += _offset_hits(word, head)[best_offsets[row]]
    is_scored = np.zeros(len(trees), dtype=bool)
    is_scored[scored] = True
    resampler = Resampler.draw(is_scored, 1)
    samples = [resampler.scores(GroupScores(each, sizes.astype(np.float32))) for each in points]
    accuracy, offset_accuracy, difference = map(estimate_layers, (*samples, samples[0] - samples[1]))
    rows = []
    for row, relation in enumerate(relations):
        if not sizes[0, row].sum():
            continue
        direction, layer, number = map(int, best_heads[row])
        offset_direction, offset = map(int, best_offsets[row])
        choice = layers[layer], number + 1, DIRECTIONS[direction], accuracy[row]
        baseline = offset - MAX_OFFSET, DIRECTIONS[offset_direction], offset_accuracy[row], difference[row]
        rows.append(RelationHead(relation, int(sizes[0, row].sum()), *choice, *baseline))
    return ModelHeads(name, num_layers, num_heads, tuple(rows))


def _arcs(tree: DependencyTree) -> list[tuple[str, int, int]]:
    """Return relation, word and head of each arc, and all arcs but punctuation again as one relation."""
    arcs = [(tree.relations[i], i, int(head)) for i, head in enumerate(tree.heads) if head >= 0]
    return arcs + [(ALL_RELATIONS, word, head) for relation, word, head in arcs if relation != "punct"]


def _hits(attended: np.ndarray | None, word: int, head: int) -> np.ndarray:
    """Return which heads attend from the word to its head, and from the head to the word, [2, layers, heads]."""
    assert attended is not None
    return np.stack([attended[..., word] == head, attended[..., head] == word])


def _offset_hits(word: int, head: int) -> np.ndarray:
    """Return which offsets lead from the word to its head, and from the head to the word, [2, offsets]."""
    offsets = np.arange(-MAX_OFFSET, MAX_OFFSET + 1)
    return np.stack([offsets == head - word, offsets == word - head])
