"""The structural probe at every layer of models, next to an untrained copy and to chains of neighboring words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyseme.explain.probing.dependencies import DependencyTree, read_trees
from polyseme.explain.probing.estimates import Estimate, GroupScores, Resampler, center_of_gravity, estimate_layers
from polyseme.explain.probing.features import extract_vectors, select_layers, untrained_copy
from polyseme.explain.probing.items import find_probe_files, find_treebank, sample_groups, split_groups
from polyseme.explain.probing.structural import (
    RANK,
    TreeInputs,
    fit_structural_probe,
    score_chains,
    score_trees,
)
from polyseme.inference.feature_extraction import FeatureEncoder
from polyseme.progress import Progress, progress

TREE_VARIANTS = ("trained", "untrained")


@dataclass(frozen=True, eq=False)
class TreeData:
    """Dependency trees; `num_train` is None if no dev file decides what is held out."""

    name: str
    trees: Sequence[DependencyTree]
    num_train: int | None


@dataclass(frozen=True)
class LayerTrees:
    """How well the geometry of a layer fits trees: UUAS by variant, its gain over random weights, and Spearman."""

    layer: int
    depth: float  # relative: 0 the embeddings, 1 the last layer
    scores: dict[str, Estimate]
    gain: Estimate
    over_chain: Estimate  # the difference to the chain of neighbors
    spearman: dict[str, float]


@dataclass(frozen=True)
class ModelTrees:
    """The layers of a model, and the layer at which trees are found on average."""

    model: str
    num_layers: int
    layers: tuple[LayerTrees, ...]
    expected_layer: Estimate
    expected_depth: Estimate

    @property
    def best(self) -> LayerTrees:
        """The layer with the highest UUAS."""
        return max(self.layers, key=lambda layer: layer.scores["trained"].value or 0.0)


@dataclass(frozen=True)
class TreeProbe:
    """The structural probes of models: sizes, and the UUAS of attaching each word to its neighbor."""

    task: str
    metric: str
    rank: int
    num_train: int
    num_dev: int
    chain: Estimate
    seeds: tuple[int, ...]
    models: tuple[ModelTrees, ...]


def read_tree_data(name: str, source: Path | str, dev: Path | str | None, max_examples: int) -> TreeData:
    """Read the trees of a treebank, with at most `max_examples` words, and a quarter as many of the dev file."""
    trees, counts = list[DependencyTree](), list[int]()
    for file, limit in find_probe_files(source, dev, max_examples, find_treebank):
        usable = [tree for tree in read_trees(file) if len(tree.words) > 1]
        trees += sample_groups(usable, [len(tree.words) for tree in usable], limit)
        counts.append(len(trees))
    return TreeData(name, trees, counts[0] if len(counts) > 1 else None)


def probe_trees(
    data: TreeData, encoders: Mapping[str, FeatureEncoder], layers: Sequence[int] | None, seeds: Sequence[int]
) -> TreeProbe:
    """Train structural probes on each layer of models."""
    splits = [split_groups(data.name, len(data.trees), data.num_train, seed) for seed in seeds]
    layers_of = {name: select_layers(encoder, layers) for name, encoder in encoders.items()}
    is_scored = np.zeros(len(data.trees), dtype=bool)
    for *_, dev in splits:
        is_scored[dev] = True
    resampler = Resampler.draw(is_scored, len(seeds))
    chain = _score_chain(data, splits, resampler)
    total = sum(len(each) * len(seeds) * len(TREE_VARIANTS) for each in layers_of.values())
    models = []
    with progress(f"probes of {data.name}", total, "probes") as bar:
        for name, encoder in encoders.items():
            scores = _probe_model(data, encoder, layers_of[name], splits, seeds, bar)
            models.append(_summarize(name, encoder.num_layers - 1, layers_of[name], scores, resampler, chain))
    (train, held_out, dev), estimate = splits[0], Estimate.from_samples(chain)
    sizes = RANK, len(train) + len(held_out), len(dev)
    return TreeProbe(data.name, "uuas", *sizes, estimate, tuple(seeds), tuple(models))


@dataclass(frozen=True, eq=False)
class _VariantScores:
    """Arcs by seed, layer and sentence, and the mean correlation by seed and layer."""

    arcs: GroupScores
    spearman: np.ndarray


def _probe_model(
    data: TreeData,
    encoder: FeatureEncoder,
    layers: Sequence[int],
    splits: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    seeds: Sequence[int],
    bar: Progress,
) -> dict[str, _VariantScores]:
    """Return the scores of the trained and of untrained weights."""
    words = [(s, i, i + 1) for s, tree in enumerate(data.trees) for i in range(len(tree.words))]
    spans, sentences = np.array(words), [tree.words for tree in data.trees]
    distances = [tree.distances() for tree in data.trees]
    shape = len(seeds), len(layers), len(data.trees)
    variants = {
        name: _VariantScores(GroupScores(*(np.zeros(shape, np.float32) for _ in range(2))), np.zeros(shape[:2]))
        for name in TREE_VARIANTS
    }
    trained = extract_vectors(encoder, sentences, spans, layers)
    for number, (seed, (train, held_out, dev)) in enumerate(zip(seeds, splits)):
        random = extract_vectors(untrained_copy(encoder, seed), sentences, spans, layers)
        for name, vectors in (("trained", trained), ("untrained", random)):
            for position, layer in enumerate(layers):
                inputs = TreeInputs.from_vectors(vectors[layer], data.trees, distances)
                matrix = fit_structural_probe(inputs, train.tolist(), held_out.tolist(), seed)
                scores, variant = score_trees(inputs, matrix, dev.tolist()), variants[name]
                variant.arcs.points[number, position, dev] = scores.num_correct
                variant.arcs.totals[number, position, dev] = scores.num_arcs
                is_long = np.isfinite(scores.spearman)
                variant.spearman[number, position] = scores.spearman[is_long].mean() if is_long.any() else 0.0
                bar.advance(1)
    return variants


def _score_chain(
    data: TreeData, splits: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], resampler: Resampler
) -> np.ndarray:
    """Return the UUAS of attaching each word to its neighbor, [1 + resamples]."""
    points, totals = (np.zeros((len(splits), 1, len(data.trees)), np.float32) for _ in range(2))
    num_correct, num_arcs = score_chains(data.trees)
    for number, (*_, dev) in enumerate(splits):
        points[number, 0, dev], totals[number, 0, dev] = num_correct[dev], num_arcs[dev]
    return resampler.scores(GroupScores(points, totals))[:, 0]


def _summarize(
    name: str,
    num_layers: int,
    layers: Sequence[int],
    variants: dict[str, _VariantScores],
    resampler: Resampler,
    chain: np.ndarray,
) -> ModelTrees:
    samples = {key: resampler.scores(variant.arcs) for key, variant in variants.items()}
    estimates = {key: estimate_layers(values) for key, values in samples.items()}
    gain = estimate_layers(samples["trained"] - samples["untrained"])
    over_chain = estimate_layers(samples["trained"] - chain[:, None])
    spearman = {key: variant.spearman.mean(0).tolist() for key, variant in variants.items()}
    depth = max(num_layers, 1)
    layer_trees = tuple(
        LayerTrees(
            layer,
            layer / depth,
            {key: values[i] for key, values in estimates.items()},
            gain[i],
            over_chain[i],
            {key: values[i] for key, values in spearman.items()},
        )
        for i, layer in enumerate(layers)
    )
    centers = center_of_gravity(samples["trained"], np.array(layers, dtype=np.float64))
    expected = Estimate.from_samples(centers), Estimate.from_samples(centers / depth)
    return ModelTrees(name, num_layers, layer_trees, *expected)
