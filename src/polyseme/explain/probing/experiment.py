"""Linear probes at every layer of models, next to a control task, an untrained copy, and baselines without vectors."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from polyseme.explain.probing.estimates import (
    Estimate,
    GroupScores,
    Resampler,
    center_of_gravity,
    estimate_layers,
)
from polyseme.explain.probing.features import (
    collect_spans,
    combine_vectors,
    extract_vectors,
    select_layers,
    untrained_copy,
)
from polyseme.explain.probing.items import ProbeData, ProbeSplit, split_items
from polyseme.explain.probing.linear import ProbeInputs, choose_l2, fit_probe, online_codelength
from polyseme.inference.feature_extraction import FeatureEncoder
from polyseme.progress import Progress, progress

VARIANTS = ("trained", "control", "untrained")


@dataclass(frozen=True)
class LayerProbe:
    """What is decodable from a layer: the score with trained weights, of the control task, and with random weights.

    `selectivity` is the difference to the control task (Hewitt and Liang 2019), `gain` that to random weights. Bits are
    the codelengths of the labels of train by online coding, in thousands, by variant, means over seeds.
    """

    layer: int
    depth: float  # relative: 0 the embeddings, 1 the last layer
    scores: dict[str, Estimate]  # by variant
    selectivity: Estimate
    gain: Estimate
    kbits: dict[str, float]
    compression: dict[str, float]  # how much shorter than the uniform code
    l2: dict[str, float]


@dataclass(frozen=True)
class ModelProbe:
    """The layers of a model, and the layer at which a task is solved on average (in layers, and relative)."""

    model: str
    num_layers: int
    layers: tuple[LayerProbe, ...]
    expected_layer: Estimate
    expected_depth: Estimate

    @property
    def best(self) -> LayerProbe:
        """The layer with the highest score."""
        return max(self.layers, key=lambda layer: layer.scores["trained"].value or 0.0)


@dataclass(frozen=True)
class TaskProbe:
    """The probes of one task: sizes, baselines that read no vectors, and the models."""

    task: str
    description: str
    metric: str
    unit: str
    num_train: int
    num_dev: int
    num_labels: int
    uniform_kbits: float
    majority: float
    lookup: float  # the most frequent label of each word type
    seeds: tuple[int, ...]
    models: tuple[ModelProbe, ...]


def probe_task(
    data: ProbeData,
    encoders: dict[str, FeatureEncoder],
    layers: Sequence[int] | None,
    seeds: Sequence[int],
) -> TaskProbe:
    """Probe the layers of each model for one task."""
    splits = [split_items(data, seed) for seed in seeds]
    label_ids, controls = data.label_ids(), [control_labels(data, seed) for seed in seeds]
    scorer = DevScorer.from_data(data)
    layers_of = {name: select_layers(encoder, layers) for name, encoder in encoders.items()}
    total = sum(len(each) * len(seeds) * len(VARIANTS) for each in layers_of.values())
    models = []
    with progress(f"probes of {data.name}", total, "probes") as bar:
        for name, encoder in encoders.items():
            runner = _ModelRunner(data, encoder, layers_of[name], splits, scorer, bar)
            variants = runner.run(label_ids, controls, seeds)
            models.append(_summarize(name, encoder, runner.layers, variants, scorer, splits, len(data.labels)))
    baselines = [_score_baselines(data, label_ids, split, scorer) for split in splits]
    majority, lookup = np.mean(baselines, axis=0).tolist()
    num_train = len(splits[0].fitted)
    uniform_kbits = num_train * math.log2(len(data.labels)) / 1000
    sizes = num_train, len(splits[0].dev), len(data.labels)
    facts = data.name, data.description, data.metric, data.unit
    return TaskProbe(*facts, *sizes, uniform_kbits, majority, lookup, tuple(seeds), tuple(models))


def control_labels(data: ProbeData, seed: int) -> np.ndarray:
    """Return random labels of the control task: one per word type or text, drawn like the labels of the task."""
    counts = np.bincount(data.label_ids())
    types = list(dict.fromkeys(example.type for example in data.items))
    draws = np.random.default_rng([seed, 1]).choice(len(counts), size=len(types), p=counts / counts.sum())
    label_of = dict(zip(types, draws.tolist()))
    return np.array([label_of[example.type] for example in data.items])


@dataclass(frozen=True, eq=False)
class DevScorer:
    """Turn predictions into points and totals by group: accuracy, or F1 over all labels but O."""

    groups: np.ndarray
    num_groups: int
    outside_id: int | None

    @classmethod
    def from_data(cls, data: ProbeData) -> "DevScorer":
        """Score the items of a task."""
        groups = data.groups()
        return cls(groups, int(groups.max()) + 1, data.labels.index("O") if data.has_outside else None)

    def score(self, dev: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the points and totals of each group, [groups] each."""
        points, totals = (predicted == gold).astype(np.float64), np.ones(len(dev))
        if self.outside_id is not None:
            is_inside = gold != self.outside_id
            points, totals = 2 * points * is_inside, is_inside + (predicted != self.outside_id).astype(np.float64)
        groups = self.groups[dev]
        return (
            np.bincount(groups, points, minlength=self.num_groups),
            np.bincount(groups, totals, minlength=self.num_groups),
        )


@dataclass(frozen=True, eq=False)
class _Variant:
    """Scores and codelengths of one variant of a model."""

    scores: GroupScores
    bits: np.ndarray  # float64 [seeds, layers]
    l2: np.ndarray  # float64 [layers]

    @classmethod
    def empty(cls, num_seeds: int, num_layers: int, num_groups: int) -> "_Variant":
        points, totals = (np.zeros((num_seeds, num_layers, num_groups), dtype=np.float32) for _ in range(2))
        return cls(GroupScores(points, totals), np.zeros((num_seeds, num_layers)), np.zeros(num_layers))


@dataclass(frozen=True, eq=False)
class _ModelRunner:
    """Train and score the probes of one model."""

    data: ProbeData
    encoder: FeatureEncoder
    layers: Sequence[int]
    splits: Sequence[ProbeSplit]
    scorer: DevScorer
    progress: Progress

    def run(self, labels: np.ndarray, controls: Sequence[np.ndarray], seeds: Sequence[int]) -> dict[str, _Variant]:
        """Return the scores of all variants: trained weights and control task share vectors, random weights do not."""
        spans, item_spans = collect_spans(self.data)
        size = len(seeds), len(self.layers), self.scorer.num_groups
        variants = {name: _Variant.empty(*size) for name in VARIANTS}
        vectors = extract_vectors(self.encoder, self.data.sentences, spans, self.layers)
        for position, layer in enumerate(self.layers):
            features = combine_vectors(vectors[layer], item_spans, self.data.combination)
            inputs = self._prepare(features, 0)
            for number in range(len(seeds)):
                inputs = self._prepare(features, number) if number and self._splits_differ else inputs
                for name, ids in (("trained", labels), ("control", controls[number])):
                    self._probe(variants[name], inputs, ids, number, position)
        for number, seed in enumerate(seeds):
            copy = untrained_copy(self.encoder, seed)
            vectors = extract_vectors(copy, self.data.sentences, spans, self.layers)
            for position, layer in enumerate(self.layers):
                features = combine_vectors(vectors[layer], item_spans, self.data.combination)
                self._probe(variants["untrained"], self._prepare(features, number), labels, number, position)
        return variants

    @property
    def _splits_differ(self) -> bool:
        """Whether each seed has a dev part of its own; otherwise all are fitted on the same items."""
        return self.data.num_train_groups is None

    def _prepare(self, features: np.ndarray, number: int) -> ProbeInputs:
        return ProbeInputs.from_features(features, self.splits[number].fitted)

    def _probe(self, variant: _Variant, inputs: ProbeInputs, ids: np.ndarray, number: int, position: int) -> None:
        """Train and score a probe; the strength of L2 is that of the first seed."""
        split, num_labels, labels = self.splits[number], len(self.data.labels), torch.from_numpy(ids)
        train, held_out = torch.from_numpy(split.train), torch.from_numpy(split.held_out)
        if number == 0:
            variant.l2[position] = choose_l2(inputs, labels, num_labels, train, held_out)
        l2, order = float(variant.l2[position]), torch.from_numpy(split.fitted)
        bits, start = online_codelength(inputs, labels, num_labels, order, l2)
        probe = fit_probe(inputs.features[train], labels[train], num_labels, inputs.variances, l2, start)
        predicted = probe.log_probs(inputs.features[torch.from_numpy(split.dev)]).argmax(1).numpy()
        points, totals = self.scorer.score(split.dev, predicted, ids[split.dev])
        variant.scores.points[number, position], variant.scores.totals[number, position] = points, totals
        variant.bits[number, position] = bits
        self.progress.advance(1)


def _summarize(
    name: str,
    encoder: FeatureEncoder,
    layers: Sequence[int],
    variants: dict[str, _Variant],
    scorer: DevScorer,
    splits: Sequence[ProbeSplit],
    num_labels: int,
) -> ModelProbe:
    """Compute estimates and their intervals from the scores by group."""
    is_scored = np.zeros(scorer.num_groups, dtype=bool)
    for split in splits:
        is_scored[scorer.groups[split.dev]] = True
    resampler = Resampler.draw(is_scored, len(splits))
    samples = {key: resampler.scores(variant.scores) for key, variant in variants.items()}
    estimates = {key: estimate_layers(values) for key, values in samples.items()}
    selectivity = estimate_layers(samples["trained"] - samples["control"])
    gain = estimate_layers(samples["trained"] - samples["untrained"])
    depth = max(encoder.num_layers - 1, 1)
    uniform = np.array([len(split.fitted) for split in splits]) * math.log2(num_labels)
    kbits = {key: (variant.bits / 1000).mean(0).tolist() for key, variant in variants.items()}
    compression = {key: (uniform[:, None] / v.bits).mean(0).tolist() for key, v in variants.items()}
    probes = tuple(
        LayerProbe(
            layer,
            layer / depth,
            {key: estimates[key][i] for key in variants},
            selectivity[i],
            gain[i],
            {key: kbits[key][i] for key in variants},
            {key: compression[key][i] for key in variants},
            {key: float(variants[key].l2[i]) for key in variants},
        )
        for i, layer in enumerate(layers)
    )
    centers = center_of_gravity(samples["trained"], np.array(layers, dtype=np.float64))
    expected = Estimate.from_samples(centers), Estimate.from_samples(centers / depth)
    return ModelProbe(name, encoder.num_layers - 1, probes, *expected)


def _score_baselines(data: ProbeData, labels: np.ndarray, split: ProbeSplit, scorer: DevScorer) -> tuple[float, float]:
    """Return the scores of the most frequent label, and of the most frequent label of each word type."""
    majority = int(np.bincount(labels[split.fitted]).argmax())
    counts: defaultdict[object, Counter[int]] = defaultdict(Counter)
    for i in split.fitted:
        counts[data.items[i].type][int(labels[i])] += 1
    lookup = [
        counts[data.items[i].type].most_common(1)[0][0] if data.items[i].type in counts else majority for i in split.dev
    ]
    gold, scores = labels[split.dev], []
    for predicted in (np.full(len(split.dev), majority), np.array(lookup)):
        points, totals = scorer.score(split.dev, predicted, gold)
        scores.append(float(points.sum() / max(totals.sum(), 1)))
    return scores[0], scores[1]
