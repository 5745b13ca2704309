"""`polyseme.compress.quantize`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from polyseme.compress.examples import LanguageModelExamples, QualityExamples, VectorExamples, read_examples
from polyseme.compress.exporting.onnx_graph import DEFAULT_OPSET, OnnxFormat
from polyseme.compress.quantization.calibration import read_calibration
from polyseme.compress.quantization.integer_folder import IntegerFolder
from polyseme.compress.quantization.precision_curve import precision_curve
from polyseme.compress.result import (
    SAMPLE_TEXTS,
    CompressionResult,
    CompressionRow,
    count_megabytes,
    describe_devices,
    latency_rows,
    median_ms,
    size_rows,
)
from polyseme.config import Config
from polyseme.errors import ConfigError, ModelError, suggest
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.atomic import ensure_new_directory
from polyseme.io.hashes import hashed_directory
from polyseme.io.lock import locks_folder
from polyseme.train.loop import count_parameters
from polyseme.weights.int8_storage import INT8_FILE

logger = logging.getLogger(__name__)

NumberType = Literal["int8", "bfloat16"]
MODES = ("dynamic", "static", "weights")
MAX_DROP = 0.5  # points, 100 times the metric
CURVE_NOTE = (
    "The point of this model is measured with its folder. The others show where the model breaks: weights rounded to "
    "the nearest of few values, with a scale per row, computed in float32."
)
_DONE = {
    "dynamic": "weights and activations in int8, with a scale of activations for each batch",
    "static": "weights and activations in int8, with scales of activations from calibration texts",
    "weights": "weights stored in int8, computed in float32",
    "bfloat16": "weights in bfloat16",
}


@dataclass(frozen=True)
class QuantizationConfig(Config):
    """How a model is quantized; an option without an effect is an error.

    `mode` is for int8: dynamic (the default), static, or weights. `max_drop` is the largest loss of the metric in
    points (0.5 by default). `head` and `opset` are those of the graph, as for `export`.
    """

    to: str = "int8"
    mode: str = ""
    max_drop: float | None = None
    head: str = ""
    opset: int | None = None

    def resolve(self, has_data: bool, has_calibration: bool) -> QuantizationConfig:
        """Return the config with its mode; raise if an option does not exist or has no effect."""
        if self.to not in ("int8", "bfloat16"):
            raise ConfigError(f"`to` is {self.to!r}; {suggest(self.to, ['int8', 'bfloat16'])}")
        if self.mode and self.to != "int8":
            raise ConfigError(f"`mode` is {self.mode!r}, but it does not apply to {self.to}")
        mode = self.mode or ("dynamic" if self.to == "int8" else "")
        if mode and mode not in MODES:
            raise ConfigError(f"`mode` is {mode!r}; {suggest(mode, MODES)}")
        if self.max_drop is not None and not has_data:
            raise ConfigError("`max_drop` has no effect without `data`")
        if self.max_drop is not None and not self.max_drop >= 0:
            raise ConfigError(f"`max_drop` is {self.max_drop:g}: a number of points from 0 on is expected")
        if has_calibration != (mode == "static"):
            needed = "static quantization needs `calibration`: texts that the model will read"
            unused = f"`calibration` has no effect on {f'the mode {mode}' if mode else self.to}"
            raise ConfigError(unused if has_calibration else needed)
        for each in fields(self)[3:]:
            if getattr(self, each.name) != each.default and mode not in ("dynamic", "static"):
                raise ConfigError(f"`{each.name}` has no effect: only a graph in int8 has one")
        return self.replace(mode=mode)

    @property
    def is_graph(self) -> bool:
        """Whether the result is a graph for onnxruntime."""
        return self.mode in ("dynamic", "static")


@locks_folder("quantize")
def quantize(
    model: str | Path | LanguageModel,
    *,
    out: str | Path,
    data: Any = None,
    task: str = "",
    calibration: Any = None,
    **options: Any,
) -> CompressionResult:
    """Write a model with numbers of 8 or 16 bits to `out`, and compare size, time and, with `data`, quality.

    Options are those of `QuantizationConfig`. To "int8", the default mode "dynamic" writes an ONNX graph that computes
    in int8; it runs with onnxruntime and tokenizers alone, and `polyseme.load` opens it to embed and predict. "static"
    does the same with scales from `calibration` texts. "weights" is a model folder of a quarter of the size, which
    computes in float32. To "bfloat16", it is a folder of half of the size, which `transformers` opens as well.

    `data` are labeled examples of a task model, texts, or with `task` (such as glue/sts-b) scored pairs of an encoder.
    If the metric drops by more than `max_drop` points, nothing is written and `ModelError` is raised.

    >>> result = polyseme.compress.quantize("run/model", to="int8", mode="weights", out="my/int8")
    >>> result.row("megabytes").ratio < 0.5
    True
    """
    path = Path(out)
    config = QuantizationConfig.from_json({name: value for name, value in options.items() if value is not None})
    config = config.resolve(data is not None, calibration is not None)
    if data is None and task:
        raise ConfigError("`task` has no effect without `data`")
    ensure_new_directory(path)
    graph_format = OnnxFormat(DEFAULT_OPSET if config.opset is None else config.opset)
    if config.is_graph:
        graph_format.check()
    texts = [] if calibration is None else read_calibration(calibration)
    network = load_neural(model, None if isinstance(model, LanguageModel) else "cpu")
    if network.device.type != "cpu":
        network = load_neural(network.path, "cpu")
    _check_source(network, config)
    examples = None if data is None else read_examples(network, data, task)
    with hashed_directory(path) as folder:
        if config.is_graph:
            graph = IntegerFolder(network, graph_format, config.head)
            graph.write(folder, texts, config.mode)
            opened = graph.open(folder)
            rows = _graph_rows(network, opened, folder, examples)
            predicts_tokens = isinstance(examples, LanguageModelExamples)
            quantized = graph.open(folder, predicts_tokens=True) if predicts_tokens else opened
        else:
            network.save(folder, "int8" if config.to == "int8" else "bf16")
            quantized = load_neural(folder, "cpu")
            rows = [*size_rows(network, quantized), *latency_rows(network, quantized, _texts(examples))]
        compressed = _evaluate(network, quantized, examples, config, rows, path)
        compressed.save(folder)
    return compressed


def _check_source(network: NeuralLM, config: QuantizationConfig) -> None:
    """Raise if a model is a graph, or is stored in as few bits already."""
    if not network.model.trunk.is_differentiable:
        raise ConfigError(f"{network.path} is {network.description}: quantize the model that it was made of")
    if (network.path / INT8_FILE).exists() and not config.is_graph:
        advice = "choose the `mode` dynamic or static" if config.to == "int8" else "set `to` to int8"
        raise ConfigError(f"{network.path} stores its weights in int8 already: {advice}")


def _texts(examples: QualityExamples | None) -> Sequence[str]:
    return examples.texts if examples is not None else ()


def _graph_rows(
    network: NeuralLM, quantized: NeuralLM, folder: Path, examples: QualityExamples | None
) -> list[CompressionRow]:
    """Compare the folders, and the time for the vector of one text."""
    readers = [lambda text, each=each: each.embed(text, truncate=True) for each in (network, quantized)]
    times = median_ms(readers, _texts(examples) or SAMPLE_TEXTS)
    return [
        CompressionRow.compare("megabytes", count_megabytes(network.path), count_megabytes(folder)),
        CompressionRow.compare("parameters", count_parameters(network.model), count_parameters(quantized.model)),
        CompressionRow.compare("ms per text", *times),
    ]


def _evaluate(
    network: NeuralLM,
    quantized: NeuralLM,
    examples: QualityExamples | None,
    config: QuantizationConfig,
    rows: list[CompressionRow],
    path: Path,
) -> CompressionResult:
    """Compare the metric and draw the curve, if there are examples; raise `ModelError` if the metric drops."""
    record = {name: value for name, value in asdict(config).items() if value not in ("", None)}
    notes: tuple[str, ...] = (f"A copy of {network.name} with {_DONE[config.mode or config.to]}.",)
    record |= {"device": describe_devices()}
    if examples is None:
        return CompressionResult(tuple(rows), path, record, notes=notes)
    row = CompressionRow.compare(examples.metric, examples.evaluate(network), examples.evaluate(quantized))
    drop = count_points(row)
    limit = MAX_DROP if config.max_drop is None else config.max_drop
    is_checked = config.max_drop is not None or not isinstance(examples, VectorExamples)
    if is_checked and not drop <= limit:  # also NaN
        unit = "percent" if is_loss(row.measure) else "points"
        raise ModelError(
            f"{row.measure} of {network.path} is {row.before:.4g} before and {row.after:.4g} after quantization, "
            f"{drop:.2f} {unit} worse; `max_drop` is {limit:g}: nothing was written"
        )
    notes += (CURVE_NOTE,)
    curve = tuple(precision_curve(network, examples, row.before, config.to, row.after))
    record |= {"metric": examples.metric, "examples": examples.num_examples, "points": drop}
    return CompressionResult((*rows, row), path, record, curve, notes, curve_metric=examples.metric)


def is_loss(measure: str) -> bool:
    """Return whether lower is better."""
    return "loss" in measure


def count_points(row: CompressionRow) -> float:
    """Return how much worse a metric is in points, 100 times the metric; a loss in percent of it."""
    if is_loss(row.measure):
        return 100 * (row.after - row.before) / row.before
    return 100 * (row.before - row.after)
