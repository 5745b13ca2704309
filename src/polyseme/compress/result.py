"""`CompressionResult`: what a smaller model costs and saves, and the measurements that all compress commands share."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from polyseme.compress.page import compression_page
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.atomic import write_text
from polyseme.io.hashes import HASHES_FILE, write_hashes
from polyseme.io.json import write_json
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.report.notebook import NotebookResult
from polyseme.train.loop import count_parameters

RESULT_FILE, PAGE_FILE = "compression.json", "compression.html"
NUM_TIMED_TEXTS = 16
NUM_REPEATS = 5
LATENCY_MEASURES = {"cpu": "ms per text", "cuda": "ms per text on the GPU"}
# read if there is no data to time a model on; 9 to 20 words each
SAMPLE_TEXTS = (
    "The committee will meet again next week to discuss the results.",
    "She put the letter back into the drawer and closed it without a word.",
    "Most of the houses along the river were built before the bridge was finished in the last century.",
    "It is not clear yet whether the new rules apply to companies that have their seat in another country.",
)


class CompressionRow(NamedTuple):
    """One measure of a model before and after compression; `ratio` is after / before (None if before is 0).

    Values over several seeds are means, with their standard deviations.
    """

    measure: str
    before: float
    after: float
    ratio: float | None
    before_std: float | None = None
    after_std: float | None = None

    @classmethod
    def compare(cls, measure: str, before: float, after: float) -> "CompressionRow":
        """Return a row with its ratio."""
        return cls(measure, before, after, after / before if before else None)

    @classmethod
    def compare_seeds(cls, measure: str, before: Sequence[float], after: Sequence[float]) -> "CompressionRow":
        """Return a row of the means over seeds, with standard deviations where there are several."""
        row = cls.compare(measure, statistics.fmean(before), statistics.fmean(after))
        stds = [statistics.stdev(scores) if len(scores) > 1 else None for scores in (before, after)]
        return row._replace(before_std=stds[0], after_std=stds[1])

    @property
    def cells(self) -> list[str]:
        """The row as texts: measure, before, after, ratio."""
        values = ((self.before, self.before_std), (self.after, self.after_std))
        texts = [format_value(value) + ("" if std is None else f" ± {std:.2g}") for value, std in values]
        return [self.measure, *texts, "–" if self.ratio is None else f"{self.ratio:.3f}"]


class CurvePoint(NamedTuple):
    """A model of some size and its score; points of one `series` are connected.

    `std` is the standard deviation of a mean over seeds, `chosen` marks the model that was written.
    """

    label: str
    size: float
    score: float
    chosen: bool = False
    series: str = ""
    std: float | None = None


@dataclass(frozen=True)
class CompressionResult(NotebookResult):
    """A compressed model in the folder `out`: a row per measure, and the settings and choices as plain values.

    `curve` shows where the model breaks: the score (`curve_metric`) at several sizes (`curve_unit`), the original
    first. `notes` are sentences for the reader of the page; the first says what was done.
    """

    rows: tuple[CompressionRow, ...]
    out: Path
    record: dict[str, Any] = field(repr=False)
    curve: tuple[CurvePoint, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)
    curve_unit: str = field(default="megabytes", repr=False)
    curve_metric: str = field(default="score", repr=False)

    def row(self, measure: str) -> CompressionRow:
        """Return the row of a measure, such as `parameters`."""
        return next(row for row in self.rows if row.measure == measure)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        values = {"out": str(self.out), "rows": [row._asdict() for row in self.rows], **self.record}
        if self.curve:
            points = [point._asdict() for point in self.curve]
            values["curve"] = {"unit": self.curve_unit, "metric": self.curve_metric, "points": points}
        return values | ({"notes": list(self.notes)} if self.notes else {})

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """The header and the rows to print."""
        return ["measure", "before", "after", "ratio"], [row.cells for row in self.rows]

    def save(self, folder: Path) -> None:
        """Write `compression.json` and the page `compression.html` to a folder, and update its hashes if it has any.

        Call this before the folder is moved to its place, so that none is ever without its page.
        """
        write_json(folder / RESULT_FILE, self.to_json())
        write_text(folder / PAGE_FILE, compression_page(self))
        if (folder / HASHES_FILE).is_file():
            write_hashes(folder)


def format_value(value: float) -> str:
    """Format a count with separators, and another number with four significant digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" if abs(value) >= 10 else f"{value:.4g}"


def count_megabytes(folder: Path) -> float:
    """Return the size of all files of a folder in megabytes (10⁶ bytes)."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def size_rows(before: NeuralLM, after: NeuralLM) -> list[CompressionRow]:
    """Compare the sizes of two models: megabytes on disk and parameters."""
    return [
        CompressionRow.compare("megabytes", count_megabytes(before.path), count_megabytes(after.path)),
        CompressionRow.compare("parameters", count_parameters(before.model), count_parameters(after.model)),
    ]


def latency_rows(before: NeuralLM, after: NeuralLM, texts: Sequence[str]) -> list[CompressionRow]:
    """Compare the time that the trunks of two models take to read one text: on the CPU and, if there is one, on a GPU.

    The models read the texts in turns; a few sentences if there are no `texts`.
    """
    rows: list[CompressionRow] = []
    for device, measure in LATENCY_MEASURES.items():
        if device == "cpu" or torch.cuda.is_available():
            networks = [_on_device(network, device) for network in (before, after)]
            readers = [lambda text, network=network: read_text(network, text) for network in networks]
            rows.append(CompressionRow.compare(measure, *median_ms(readers, texts or SAMPLE_TEXTS)))
    return rows


def _on_device(network: NeuralLM, device: str) -> NeuralLM:
    """Return a network, or a copy of it on another device."""
    if network.device.type == device:
        return network
    return NeuralLM(replace(network.folder, model=copy.deepcopy(network.model)), device, tasks=network.tasks)


def describe_cpu() -> str:
    """Say how many threads of the CPU a latency was measured with."""
    num_threads = torch.get_num_threads()
    return f"CPU, {num_threads} thread{'s' * (num_threads > 1)}"


def describe_devices() -> str:
    """Name the devices that `latency_rows` measures on."""
    return describe_cpu() + (f"; {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "")


def median_ms(readers: Sequence[Callable[[str], object]], texts: Sequence[str]) -> Iterator[float]:
    """Yield the median time per text of each reader in milliseconds.

    Up to 16 evenly spaced texts are read one at a time, five times, by all readers in turns, so that a change of the
    machine's speed affects all; a first round is not counted.
    """
    size = min(NUM_TIMED_TEXTS, len(texts))
    chosen = [texts[i * len(texts) // size] for i in range(size)]
    times: list[list[float]] = [[] for _ in readers]
    for repeat in range(NUM_REPEATS + 1):
        for text in chosen:
            for reader, reader_times in zip(readers, times):
                started = time.perf_counter()
                reader(text)
                if repeat:
                    reader_times.append(time.perf_counter() - started)
    return (1000 * statistics.median(reader_times) for reader_times in times)


@torch.inference_mode()
def read_text(network: NeuralLM, text: str) -> None:
    """Run the trunk of a model on a text, truncated to what it reads; a decoder reads the same text again."""
    trunk, tokenizer = network.model.config.trunk, network.tokenizer
    num_special = tokenizer.num_special_tokens_to_add()
    ids = tokenizer.encode(text)[: network.max_len - num_special]
    ids, segments = tokenizer.build_inputs_with_special_tokens(ids)
    tokens = torch.from_numpy(np.array(ids)).to(network.device)
    layout = PackedLayout.from_lengths([len(ids)], device=network.device)
    inputs = Inputs(tokens, layout)
    if isinstance(trunk, EncoderDecoderConfig) and trunk.has_source:
        inputs = Inputs(tokens, layout, source=EncoderInput(tokens, layout))
    elif trunk.num_segments:
        inputs = Inputs(tokens, layout, torch.from_numpy(np.array(segments)).to(network.device))
    network.model.trunk(inputs)
    if network.device.type == "cuda":
        torch.cuda.synchronize(network.device)
