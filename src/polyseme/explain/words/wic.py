"""Word in Context by layer: does the cosine of two occurrences tell whether a word has the same meaning in both?

The data set is that of Pilehvar and Camacho-Collados 2019, as distributed: `train/train.data.txt` with
`train.gold.txt`, and `dev/dev.data.txt` with `dev.gold.txt`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from polyseme.errors import ConfigError, DataError
from polyseme.explain.explanation import Explanation
from polyseme.explain.supported import unsupported
from polyseme.explain.words.clusters import unit_rows
from polyseme.explain.words.names import model_names
from polyseme.explain.words.vectors import Span, embed_spans
from polyseme.inference.base import LanguageModel
from polyseme.report.charts import Series, line_chart
from polyseme.report.html import figure, html_page, html_table, key_figures, note
from polyseme.report.svg import Axis
from polyseme.tasks.readers.rows import read_lines

MAX_MODELS = 8
_CHUNK_SIZE = 1024  # examples that are embedded at once
_Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True)
class WicExample:
    """Two texts with the same word, where it is in each, and whether it has the same meaning in both."""

    texts: tuple[str, str]
    spans: tuple[Span, Span]
    is_same: bool


@dataclass(frozen=True)
class WicLayer:
    """Accuracy on the development set in one layer, with its 95 % interval.

    A pair has the same meaning if the cosine of its occurrences is at least the `threshold`, which has the best
    accuracy on the training set.
    """

    layer: int
    threshold: float
    train_accuracy: float
    accuracy: float
    interval: tuple[float, float]


def read_wic(folder: str | Path, split: str) -> list[WicExample]:
    """Read the `train` or `dev` part of the data set."""
    path = Path(folder) / split / f"{split}.data.txt"
    gold_path = path.with_name(f"{split}.gold.txt")
    for each in (path, gold_path):
        if not each.is_file():
            raise DataError(f"there is no {each}: expected the folder of Word in Context, with train/ and dev/")
    lines, labels = list(read_lines(path)), list(read_lines(gold_path))
    if len(lines) != len(labels):
        raise DataError(f"{path} has {len(lines)} lines, but {gold_path} has {len(labels)}")
    return [_parse(f"{path}:{i}", line, label) for i, (line, label) in enumerate(zip(lines, labels), 1)]


def _parse(location: str, line: str, label: str) -> WicExample:
    cells = line.split("\t")
    if len(cells) != 5 or not re.fullmatch(r"\d+-\d+", cells[2]):
        raise DataError(f"{location}: expected word, part of speech, positions such as 2-1, and two sentences")
    if label not in ("T", "F"):
        raise DataError(f"{location}: the label is {label!r}, neither T nor F")
    spans = []
    for position, text in zip(map(int, cells[2].split("-")), cells[3:]):
        words = [match.span() for match in re.finditer(r"\S+", text)]
        if position >= len(words):
            raise DataError(f"{location}: position {position} of {len(words)} words")
        spans.append(words[position])
    return WicExample((cells[3], cells[4]), (spans[0], spans[1]), label == "T")


def wic_by_layer(model: LanguageModel, train: Sequence[WicExample], dev: Sequence[WicExample]) -> list[WicLayer]:
    """Choose a threshold of the cosine on the training set for each layer, and measure accuracy on the other.

    A table of word vectors has the same vector for both occurrences unless they are inflected differently, so it
    hardly differs from the 50 % of chance.
    """
    layers, train_cosines = _cosines(model, train)
    _, dev_cosines = _cosines(model, dev)
    train_labels, dev_labels = (np.array([example.is_same for example in part]) for part in (train, dev))
    results = []
    for layer, train_row, dev_row in zip(layers, train_cosines, dev_cosines):
        threshold, train_accuracy = choose_threshold(train_row, train_labels)
        num_correct = int(((dev_row >= threshold) == dev_labels).sum())
        interval = wilson_interval(num_correct, len(dev))
        results.append(WicLayer(layer, threshold, train_accuracy, num_correct / len(dev), interval))
    return results


def _cosines(model: LanguageModel, examples: Sequence[WicExample]) -> tuple[list[int], np.ndarray]:
    """Return the layers, and the cosine of the two occurrences of each example [layers, examples]."""
    layers: list[int] = []
    parts: list[list[np.ndarray]] = []
    for start in range(0, len(examples), _CHUNK_SIZE):
        chunk = examples[start : start + _CHUNK_SIZE]
        texts = [text for example in chunk for text in example.texts]
        vectors = embed_spans(model, texts, [[span] for example in chunk for span in example.spans])
        layers = vectors.layers
        units = (unit_rows(rows) for rows in vectors.vectors)
        parts.append([(unit[::2] * unit[1::2]).sum(1) for unit in units])
    if not parts:
        raise DataError("there are no examples of Word in Context")
    return layers, np.array([np.concatenate(row) for row in zip(*parts)])


def choose_threshold(cosines: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the threshold with the best accuracy, halfway between two cosines, and that accuracy."""
    values, inverse = np.unique(cosines.round(6), return_inverse=True)
    num_same = np.bincount(inverse, labels, len(values))
    num_other = np.bincount(inverse, ~labels, len(values))
    # correct answers if the threshold is below value i: same from i on, and other before it
    correct = num_same.sum() - np.cumsum(num_same) + num_same + np.cumsum(num_other) - num_other
    best = int(correct.argmax())
    lower = values[best - 1] if best else values[0] - 2e-6
    return float(lower + values[best]) / 2, float(correct[best]) / len(labels)


def wilson_interval(num_correct: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson 1927)."""
    share, spread = num_correct / count, _Z**2 / count
    center = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return center - half, center + half


def explain_wic(models: Sequence[LanguageModel], folder: str | Path) -> Explanation:
    """Chart the accuracy of Word in Context by layer, one line per model."""
    if not 1 <= len(models) <= MAX_MODELS:
        raise ConfigError(f"{len(models)} models, expected 1 to {MAX_MODELS}")
    for model in models:
        if "embed" not in model.capabilities:
            unsupported(model, "word")
    train, dev = (read_wic(folder, split) for split in ("train", "dev"))
    curves = {name: wic_by_layer(model, train, dev) for name, model in zip(model_names(models), models)}
    return report_wic(curves, len(train), len(dev))


def report_wic(curves: dict[str, list[WicLayer]], num_train: int, num_dev: int) -> Explanation:
    """Return the page of accuracies by layer."""
    header = ["model", "layer", "dev accuracy", "95 % interval", "threshold", "train accuracy"]
    rows = [
        (
            name,
            each.layer,
            f"{100 * each.accuracy:.1f} %",
            f"{100 * each.interval[0]:.1f} to {100 * each.interval[1]:.1f} %",
            f"{each.threshold:.3f}",
            f"{100 * each.train_accuracy:.1f} %",
        )
        for name, layers in curves.items()
        for each in layers
    ]
    best = {name: max(layers, key=lambda each: each.train_accuracy) for name, layers in curves.items()}
    cards = [
        (name, f"{100 * each.accuracy:.1f} %", f"layer {each.layer} of {curves[name][-1].layer}, the best in training")
        for name, each in best.items()
    ]
    caption = (
        f"Share of {num_dev:,} development pairs that are classified correctly, with 95 % intervals (Wilson); chance "
        "is 50 %. The figures above are of the layer with the best accuracy on the training pairs."
    )
    sections = [
        ("Accuracy by layer", figure(_chart(curves), caption)),
        ("All layers", html_table(header, rows)),
    ]
    lead = (
        "Word in Context: does a word have the same meaning in two sentences? The answer is yes if the cosine of its "
        f"two vectors exceeds a threshold, chosen for each layer on {num_train:,} training pairs."
    )
    remark = note("A table of word vectors cannot answer: it differs from chance only where the word is inflected.")
    summary = "\n".join(
        f"{name}: {100 * each.accuracy:.1f} % in layer {each.layer}"
        + f", the best in training of {len(curves[name])} layers" * (len(curves[name]) > 1)
        for name, each in best.items()
    )
    record = {
        "num_train": num_train,
        "num_dev": num_dev,
        "models": [{"name": name, "layers": [asdict(each) for each in layers]} for name, layers in curves.items()],
    }
    page = html_page("Word in Context by layer", lead, sections, key_figures(cards) + remark)
    return Explanation(page, record, {"wic": _chart(curves, True)}, summary, [(header, rows)])


def _chart(curves: dict[str, list[WicLayer]], is_standalone: bool = False) -> str:
    series = [
        Series(
            name,
            [(each.layer, each.accuracy) for each in layers],
            show_points=True,
            band=[(each.layer, *each.interval) for each in layers],
        )
        for name, layers in curves.items()
    ]
    last = max(layers[-1].layer for layers in curves.values())
    series.append(Series("chance", [(0, 0.5), (max(last, 1), 0.5)], "var(--s8)", "2 3"))
    axis = Axis("layer (0: embeddings)", integers=True)
    return line_chart(series, axis, Axis("accuracy", percent=True), direct_labels=is_standalone or None)
