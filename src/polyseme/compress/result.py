"""`CompressionResult`: what a smaller model costs and saves, and the measurements that all compress commands share."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.report.notebook import NotebookResult
from polyseme.train.loop import count_parameters

NUM_TIMED_TEXTS = 16
NUM_REPEATS = 5
# read if there is no data to time a model on; 9 to 20 words each
SAMPLE_TEXTS = (
    "The committee will meet again next week to discuss the results.",
    "She put the letter back into the drawer and closed it without a word.",
    "Most of the houses along the river were built before the bridge was finished in the last century.",
    "It is not clear yet whether the new rules apply to companies that have their seat in another country.",
)


class CompressionRow(NamedTuple):
    """One measure of a model before and after compression; `ratio` is after / before (None if before is 0)."""

    measure: str
    before: float
    after: float
    ratio: float | None

    @classmethod
    def compare(cls, measure: str, before: float, after: float) -> "CompressionRow":
        """Return a row with its ratio."""
        return cls(measure, before, after, after / before if before else None)


@dataclass(frozen=True)
class CompressionResult(NotebookResult):
    """A compressed model in the folder `out`: a row per measure, and the settings and choices as plain values."""

    rows: tuple[CompressionRow, ...]
    out: Path
    record: dict[str, Any] = field(repr=False)

    def row(self, measure: str) -> CompressionRow:
        """Return the row of a measure, such as `parameters`."""
        return next(row for row in self.rows if row.measure == measure)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"out": str(self.out), "rows": [row._asdict() for row in self.rows], **self.record}

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """The header and the rows to print."""
        rows = [
            [row.measure, format_value(row.before), format_value(row.after), f"{row.ratio:.3f}" if row.ratio else "–"]
            for row in self.rows
        ]
        return ["measure", "before", "after", "ratio"], rows


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


def latency_row(before: NeuralLM, after: NeuralLM, texts: Sequence[str]) -> CompressionRow:
    """Compare the time that the trunks of two models take to read one text, in turns."""
    readers = [lambda text, network=network: read_text(network, text) for network in (before, after)]
    return CompressionRow.compare("ms per text", *median_ms(readers, texts or SAMPLE_TEXTS))


def describe_device(device: torch.device) -> str:
    """Name the device that a latency was measured on, and the number of threads on a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    num_threads = torch.get_num_threads()
    return f"CPU, {num_threads} thread{'s' * (num_threads > 1)}"


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
