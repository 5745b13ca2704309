"""The geometry of word vectors by layer: anisotropy, similarity of contexts, and how far each layer moves a vector.

The measures are those of Ethayarajh 2019 ("How contextual are contextualized word representations?", §3.2 to 3.4) and
of figure 1 of ALBERT (Lan et al. 2020). They are computed from the vectors of words, the means of their pieces.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from polyseme.errors import ConfigError, DataError
from polyseme.explain.explanation import Explanation
from polyseme.explain.supported import unsupported
from polyseme.explain.words.clusters import mean_similarity, unit_rows
from polyseme.explain.words.names import model_names
from polyseme.explain.words.vectors import LayerVectors, Span, embed_spans
from polyseme.inference.base import LanguageModel
from polyseme.inference.word_vectors import WordVectors
from polyseme.report.charts import Panel, Series, panel_chart
from polyseme.report.html import escape, figure, html_page, html_table, key_figures, note, paragraph
from polyseme.report.svg import Axis
from polyseme.tasks.readers.rows import WORD_PATTERN
from polyseme.text.arguments import check_texts

logger = logging.getLogger(__name__)

MAX_MODELS = 4
MAX_WORDS = 10_000  # of the texts that are read
MIN_TEXTS = 5  # with a word whose contexts are compared, as in the paper
MAX_OCCURRENCES = 100  # of such a word
NUM_RANDOM = 1000  # words that stand for all others, as in the paper


@dataclass(frozen=True)
class LayerGeometry:
    """The measures of one layer; those with a baseline are also adjusted by it (minus the baseline).

    `anisotropy` is the mean cosine of two random words, the baseline of both similarities. `max_explained_variance` is
    the share of the first singular direction in the vectors of a word, and `random_explained_variance` that of as many
    random words. `input_distance` and `input_cosine` compare the layer with the one below.
    """

    layer: int
    anisotropy: float
    self_similarity: float
    intra_sentence_similarity: float
    max_explained_variance: float
    random_explained_variance: float
    input_distance: float | None = None
    input_cosine: float | None = None
    input_degrees: float | None = None

    @property
    def adjusted_self_similarity(self) -> float:
        """Self-similarity minus anisotropy."""
        return self.self_similarity - self.anisotropy

    @property
    def adjusted_intra_sentence_similarity(self) -> float:
        """Intra-sentence similarity minus anisotropy."""
        return self.intra_sentence_similarity - self.anisotropy

    @property
    def adjusted_max_explained_variance(self) -> float:
        """Maximum explainable variance minus that of random words."""
        return self.max_explained_variance - self.random_explained_variance

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain values."""
        names = ("self_similarity", "intra_sentence_similarity", "max_explained_variance")
        return asdict(self) | {f"adjusted_{name}": getattr(self, f"adjusted_{name}") for name in names}


@dataclass(frozen=True, eq=False)
class WordSample:
    """The words of some texts, and which of them are compared; rows are those of the vectors.

    `contexts` has the rows of each word that occurs in at least five texts, `sentences` those of each text, `random`
    those of random words, and `random_contexts` as many random rows as each of `contexts`.
    """

    texts: list[str]
    spans: list[list[Span]]
    contexts: list[np.ndarray]
    sentences: list[np.ndarray]
    random: np.ndarray
    random_contexts: list[np.ndarray]

    @property
    def num_words(self) -> int:
        """The number of words."""
        return sum(map(len, self.spans))


def sample_words(texts: Sequence[str], is_known: Callable[[str], bool] = lambda word: True) -> WordSample:
    """Choose the words to compare among the first 10,000 words of texts; the same texts give the same choice."""
    chosen: list[str] = []
    spans: list[list[Span]] = []
    forms: list[str] = []
    rows: dict[str, list[int]] = {}
    texts_with: dict[str, set[str]] = {}
    for text in check_texts(texts):
        matches = [match for match in WORD_PATTERN.finditer(text) if match[0].isalnum() and is_known(match[0])]
        matches = matches[: MAX_WORDS - len(forms)]
        if not matches:
            continue
        for i, match in enumerate(matches, len(forms)):
            rows.setdefault(match[0], []).append(i)
            texts_with.setdefault(match[0], set()).add(text)
        forms += [match[0] for match in matches]
        chosen.append(text)
        spans.append([match.span() for match in matches])
    if len(forms) == MAX_WORDS:
        logger.warning(f"the first {MAX_WORDS:,} words of {len(texts):,} texts are compared")
    frequent = [np.array(indices) for form, indices in rows.items() if len(texts_with[form]) >= MIN_TEXTS]
    if not frequent:
        raise DataError(f"no word occurs in {MIN_TEXTS} of {len(texts):,} texts: more text is needed")
    spaced = [np.linspace(0, len(each) - 1, min(len(each), MAX_OCCURRENCES)).astype(int) for each in frequent]
    contexts = [each[index] for each, index in zip(frequent, spaced)]
    ends = np.cumsum([0, *map(len, spans)])
    sentences = [np.arange(start, end) for start, end in pairwise(ends) if end - start > 1]
    rng = np.random.default_rng(0)
    random = rng.choice(len(forms), min(NUM_RANDOM, len(forms)), replace=False)
    random_contexts = [rng.choice(len(forms), len(each), replace=False) for each in contexts]
    return WordSample(chosen, spans, contexts, sentences, random, random_contexts)


def measure_layers(sample: WordSample, vectors: LayerVectors) -> list[LayerGeometry]:
    """Compute the measures of every layer."""
    layers = []
    below = None
    for layer, rows in zip(vectors.layers, vectors.vectors):
        rows = rows.astype(np.float64)
        unit = unit_rows(rows)
        steps: tuple[float, ...] = ()
        if below is not None and below.shape == rows.shape:
            cosines = (unit * unit_rows(below)).sum(1).clip(-1, 1)
            distance = np.linalg.norm(rows - below, axis=1).mean()
            steps = float(distance), float(cosines.mean()), float(np.degrees(np.arccos(cosines)).mean())
        layers.append(
            LayerGeometry(
                layer,
                mean_similarity(unit[sample.random]),
                float(np.mean([mean_similarity(unit[index]) for index in sample.contexts])),
                intra_sentence_similarity(rows, sample.sentences),
                float(np.mean([explained_variance(rows[index]) for index in sample.contexts])),
                float(np.mean([explained_variance(rows[index]) for index in sample.random_contexts])),
                *steps,
            )
        )
        below = rows
    return layers


def intra_sentence_similarity(rows: np.ndarray, sentences: Sequence[np.ndarray]) -> float:
    """Return the mean over sentences of the mean cosine of their words with the mean vector of the sentence."""
    unit = unit_rows(rows)
    centers = (unit_rows(rows[index].mean(0)) for index in sentences)
    return float(np.mean([(unit[index] @ center).mean() for index, center in zip(sentences, centers)]))


def explained_variance(rows: np.ndarray) -> float:
    """Return the share of the largest squared singular value: 1 if all vectors have one direction."""
    eigenvalues = np.linalg.eigvalsh(rows @ rows.T)
    return float(eigenvalues[-1] / eigenvalues.sum())


def explain_geometry(models: Sequence[LanguageModel], texts: Sequence[str]) -> Explanation:
    """Measure the vectors of words in each layer of up to four models: anisotropy, similarities, and distances."""
    if not 1 <= len(models) <= MAX_MODELS:
        raise ConfigError(f"{len(models)} models, expected 1 to {MAX_MODELS}")
    for model in models:
        if "embed" not in model.capabilities:
            unsupported(model, "geometry")
    tables = [model for model in models if isinstance(model, WordVectors)]
    sample = sample_words(texts, lambda word: all(table.get_vector(word) is not None for table in tables))
    curves = {
        name: measure_layers(sample, embed_spans(model, sample.texts, sample.spans, "geometry"))
        for name, model in zip(model_names(models), models)
    }
    return report_geometry(curves, sample)


# name, title, measures with their labels, caption
_CHARTS: tuple[tuple[str, str, tuple[tuple[str, str], ...], str], ...] = (
    (
        "anisotropy",
        "Anisotropy",
        (("anisotropy", "mean cosine of two random words"),),
        "0 if vectors point in all directions; near 1 they fill a narrow cone, and a high cosine means little.",
    ),
    (
        "self-similarity",
        "Self-similarity",
        (
            ("self_similarity", "mean cosine of two occurrences of a word"),
            ("adjusted_self_similarity", "minus anisotropy"),
        ),
        "1 in a table of word vectors, where context changes nothing. The lower the adjusted value, the more a layer "
        "depends on the context.",
    ),
    (
        "intra-sentence-similarity",
        "Intra-sentence similarity",
        (
            ("intra_sentence_similarity", "mean cosine of a word and its sentence"),
            ("adjusted_intra_sentence_similarity", "minus anisotropy"),
        ),
        "How much the words of a sentence resemble their mean: context may make them more alike, or not.",
    ),
    (
        "explained-variance",
        "Maximum explainable variance",
        (
            ("max_explained_variance", "share of the first direction"),
            ("adjusted_max_explained_variance", "minus that of random words"),
        ),
        "How well one vector could replace all occurrences of a word: the first singular direction's share. The "
        "baseline has as many random words as the word has occurrences (the paper: one large sample).",
    ),
    (
        "steps",
        "From the input to the output of each layer",
        (("input_distance", "L2 distance"), ("input_cosine", "cosine")),
        "How far each layer moves a vector (ALBERT, figure 1, for the vectors of words). Layers that share parameters "
        "are expected to move it more smoothly. Layers of another size than their input have no value.",
    ),
)


def report_geometry(curves: dict[str, list[LayerGeometry]], sample: WordSample) -> Explanation:
    """Return the page of measures by layer."""
    charts = {name: _chart(curves, measures) for name, _, measures, _ in _CHARTS}
    sections = [(title, figure(charts[name], caption)) for name, title, _, caption in _CHARTS]
    header = ["model", "layer", "anisotropy", "self-sim.", "adjusted", "intra-sent.", "adjusted"]
    header += ["explained var.", "adjusted", "L2", "cosine"]
    rows = [(name, layer.layer, *_format_row(layer)) for name, layers in curves.items() for layer in layers]
    sections.append(("All numbers", f'<div class="wide">{html_table(header, rows)}</div>'))
    counts = (
        f"{sample.num_words:,} words of {len(sample.texts):,} texts; {len(sample.contexts):,} words in five or more"
    )
    sections.append(
        (
            "How it is computed",
            paragraph(
                f"From {counts} (at most {MAX_OCCURRENCES} occurrences each), and {len(sample.random):,} random words, "
                "drawn with a fixed seed. The vector of a word is the mean over its pieces. Two occurrences are of the "
                "same word if they are spelled the same. Ethayarajh 2019 defines the similarities and the variance."
            ),
        )
    )
    cards = [
        (name, f"{layers[-1].anisotropy:.2f}", f"anisotropy of layer {layers[-1].layer}")
        for name, layers in curves.items()
    ]
    static = [name for name, layers in curves.items() if len(layers) == 1]
    top = key_figures(cards)
    top += note(f"{', '.join(static)}: one vector per word, so the self-similarity is 1.") if static else ""
    summary = counts + "".join(
        f"\n{name}, layer {layers[-1].layer}: anisotropy {layers[-1].anisotropy:.3f}, "
        f"self-similarity {layers[-1].self_similarity:.3f} (adjusted {layers[-1].adjusted_self_similarity:.3f})"
        for name, layers in curves.items()
    )
    record = {
        "num_texts": len(sample.texts),
        "num_words": sample.num_words,
        "num_compared_words": len(sample.contexts),
        "models": [{"name": name, "layers": [each.to_json() for each in layers]} for name, layers in curves.items()],
    }
    figures = {name: chart for name, _, measures, _ in _CHARTS if (chart := _chart(curves, measures, True))}
    lead = f"How the vectors of words lie in space, by layer: {escape(', '.join(curves))}"
    return Explanation(html_page("Geometry by layer", lead, sections, top), record, figures, summary, [(header, rows)])


def _format_row(layer: LayerGeometry) -> list[str]:
    values = (
        layer.anisotropy,
        layer.self_similarity,
        layer.adjusted_self_similarity,
        layer.intra_sentence_similarity,
        layer.adjusted_intra_sentence_similarity,
        layer.max_explained_variance,
        layer.adjusted_max_explained_variance,
        layer.input_distance,
        layer.input_cosine,
    )
    return ["" if value is None else f"{value:.3f}" for value in values]


def _chart(
    curves: dict[str, list[LayerGeometry]], measures: Sequence[tuple[str, str]], is_standalone: bool = False
) -> str:
    """Draw a panel for each measure, with one line per model."""
    panels = []
    for attribute, label in measures:
        series = [
            Series(
                name,
                [(each.layer, y) for each in layers if (y := getattr(each, attribute)) is not None],
                show_points=True,
            )
            for name, layers in curves.items()
        ]
        panels.append(Panel(series, Axis(label), 230))
    return panel_chart(panels, Axis("layer (0: embeddings)", integers=True), is_standalone or None)
