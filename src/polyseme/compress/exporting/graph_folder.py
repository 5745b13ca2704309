"""A folder with exported graphs, the tokenizer, and what a program has to know to run them."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from polyseme.compress.examples import QualityExamples
from polyseme.compress.exporting.decoding import MODEL, DecodingGraphs, generates_text
from polyseme.compress.exporting.evaluation import graph_metric_row, graph_network
from polyseme.compress.exporting.graph import (
    HIDDEN_OUTPUT,
    VECTORS,
    GraphModule,
    GraphOutput,
    PaddedModel,
    compute_outputs,
    select_outputs,
)
from polyseme.compress.exporting.verification import GraphRunner, check_difference, checked_shapes, measure_difference
from polyseme.compress.result import (
    SAMPLE_TEXTS,
    CompressionResult,
    CompressionRow,
    count_megabytes,
    describe_cpu,
    median_ms,
)
from polyseme.errors import ModelError, PolysemeError
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.hashes import hashed_directory
from polyseme.io.json import write_json
from polyseme.nn.heads.crf import CRF
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.tasks import task_from_json
from polyseme.train.loop import count_parameters
from polyseme.weights.folder import TARGET_TOKENIZER_DIR
from polyseme.weights.onnx_folder import write_onnx_heads

DESCRIPTION_FILE = "export.json"


class GraphFormat(ABC):
    """A format of graphs: how one is written and run."""

    min_length = 1  # of a batch that the graph reads; shorter texts are padded
    suffix = ""  # of its files
    supports_cache = False  # whether a graph may have a memory of earlier tokens

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What is recorded about the format."""

    def check(self) -> None:  # noqa: B027
        """Raise if a package is missing or a setting is invalid."""

    @abstractmethod
    def write(self, folder: Path, module: GraphModule, max_len: int, name: str = MODEL) -> int:
        """Write the graph with dynamic batch and length; return its number of parameters."""

    @abstractmethod
    def open(self, folder: Path, name: str = MODEL) -> GraphRunner:
        """Return a function that runs the written graph."""


class ExportedGraphs(Protocol):
    """The graphs of a folder by file name, and how they are checked, described and timed."""

    modules: dict[str, Any]
    max_len: int
    time_measure: str

    def measure_difference(self, runners: Mapping[str, GraphRunner], shapes: Sequence[tuple[int, int]]) -> float:
        """Return the largest difference from the outputs of the model."""

    def describe(self) -> dict[str, Any]:
        """Return what a program has to know to run the graphs."""

    def write_heads(self, folder: Path, graph_format: GraphFormat) -> None:
        """Write what `load` needs to open the folder, if the graph returns the states of tokens."""

    def timed_readers(self, runners: Mapping[str, GraphRunner]) -> list[Callable[[str], object]]:
        """Return functions of a text to time: with the model, and with the graphs."""

    def as_network(self, runners: Mapping[str, GraphRunner], min_len: int) -> NeuralLM:
        """Return a model that predicts with the graphs."""


class PaddedGraph(ExportedGraphs):
    """One graph that reads whole texts: the outputs of heads, or states and text vectors."""

    time_measure = "ms per text"

    def __init__(self, network: NeuralLM, head: str):
        self.network, self.outputs = network, select_outputs(network, head)
        self.modules = {MODEL: PaddedModel(network, self.outputs)}
        self.max_len = graph_length(network, self.outputs)

    def measure_difference(self, runners: Mapping[str, GraphRunner], shapes: Sequence[tuple[int, int]]) -> float:
        return measure_difference(self.network, self.outputs, runners[MODEL], shapes)

    def describe(self) -> dict[str, Any]:
        pooling, num_parameters = asdict(self.network.folder.pooling), count_parameters(self.network.model)
        description = describe_outputs(self.network, self.modules[MODEL])
        return description | {"pooling": pooling, "num_parameters": num_parameters}

    def write_heads(self, folder: Path, graph_format: GraphFormat) -> None:
        has_states = any(output.name == HIDDEN_OUTPUT for output in self.outputs)
        if has_states and graph_format.settings["format"] == "onnx" and not self.network.model.config.trunk.has_source:
            write_onnx_heads(folder, self.network.model, self.network.folder.metadata)

    def timed_readers(self, runners: Mapping[str, GraphRunner]) -> list[Callable[[str], object]]:
        return timed_readers(self.network, self.outputs, runners[MODEL])

    def as_network(self, runners: Mapping[str, GraphRunner], min_len: int) -> NeuralLM:
        return graph_network(self.network, self.outputs, runners[MODEL], min_len)


def write_graph_folder(
    network: NeuralLM,
    path: Path,
    graph_format: GraphFormat,
    head: str,
    cache: bool = False,
    examples: QualityExamples | None = None,
) -> CompressionResult:
    """Export a model to a new folder, check its outputs, and compare sizes, times and, with examples, the metric.

    With `cache`, or if the model has an encoder and a decoder, the graphs generate text.
    """
    is_decoding = generates_text(network, head, cache, graph_format.supports_cache)
    graphs: ExportedGraphs = DecodingGraphs(network) if is_decoding else PaddedGraph(network, head)
    shapes, modules = checked_shapes(graph_format.min_length, graphs.max_len), graphs.modules
    with hashed_directory(path) as folder:
        try:
            sizes = [graph_format.write(folder, m, graphs.max_len, name) for name, m in modules.items()]
            runners = {name: graph_format.open(folder, name) for name in modules}
            difference = check_difference(network, graphs.measure_difference(runners, shapes))
        except (PolysemeError, OSError, MemoryError):
            raise
        except Exception as error:  # of torch's exporters and onnxruntime, which have no common class
            kind, family = graph_format.settings["format"], network.model.config.family
            raise ModelError(f"{network.path} ({family}) has no {kind} graph: {root_cause(error)}") from error
        lengths = {"min_length": graph_format.min_length, "max_length": graphs.max_len}
        write_description(folder, network, graph_format.settings | lengths | graphs.describe())
        graphs.write_heads(folder, graph_format)
        times = median_ms(graphs.timed_readers(runners), SAMPLE_TEXTS)
        rows = [
            CompressionRow.compare("megabytes", count_megabytes(network.path), count_megabytes(folder)),
            CompressionRow.compare("parameters", count_parameters(network.model), sum(sizes)),
            CompressionRow.compare(graphs.time_measure, *times),
        ]
        if examples is not None:
            exported_network = graphs.as_network(runners, graph_format.min_length)
            rows.append(graph_metric_row(examples, network, exported_network))
        record = graph_format.settings | {
            "graphs": {f"{name}.{graph_format.suffix}": [m.input_names, m.output_names] for name, m in modules.items()},
            "inputs": [name for module in modules.values() for name in module.input_names],
            "outputs": [name for module in modules.values() for name in module.output_names],
            "max_difference": difference,
            "num_shapes": len(shapes),
            "device": describe_cpu(),
        }
        files = " and ".join(record["graphs"])
        notes = (
            f"Exported {network.name} to {graph_format.settings['format']}: {files}.",
            f"The outputs differ from those of the model by at most {difference:.1e}, at {len(shapes)} shapes.",
        )
        exported = CompressionResult(tuple(rows), path, record, notes=notes)
        exported.save(folder)
    return exported


def root_cause(error: BaseException) -> str:
    """Return the type and the first line of the exception that an exporter's long report goes back to."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300] if str(error).strip() else 'no message'}"


def graph_length(network: NeuralLM, outputs: Sequence[GraphOutput]) -> int:
    """Return the longest text that the graph reads, in tokens."""
    pooled_len = network.folder.pooling.max_len if any(output.head == VECTORS for output in outputs) else 0
    return min(pooled_len or network.max_len, network.max_len)


def write_description(folder: Path, network: NeuralLM, description: dict[str, Any]) -> None:
    """Write the tokenizer, the config of the model, and what a program has to know to run the graphs."""
    special_ids = network.tokenizer.special_token_ids
    network.tokenizer.save_files(folder)
    if network.folder.target_tokenizer is not None:
        (folder / TARGET_TOKENIZER_DIR).mkdir()
        network.folder.target_tokenizer.save_files(folder / TARGET_TOKENIZER_DIR)
    if (network.path / "config.json").is_file():
        shutil.copyfile(network.path / "config.json", folder / "config.json")
    tokens = {"pad_id": special_ids.pad or 0, "mask_id": special_ids.mask}
    write_json(folder / DESCRIPTION_FILE, tokens | description)


def describe_outputs(network: NeuralLM, module: PaddedModel) -> dict[str, Any]:
    """Return the inputs and outputs of a graph that reads whole texts, and how texts are prepared for it."""
    outputs = [
        {"name": each.name, "axes": ["batch", "length"] if each.per_token else ["batch"], "labels": list(each.labels)}
        for each in module.outputs
    ]
    heads: dict[str, Any] = dict(network.model.heads.items())
    crfs = {output.name: heads[output.head].crf for output in module.outputs if output.head in heads}
    pieces = predicted_pieces(network)
    return {
        "inputs": module.input_names,
        "outputs": outputs,
        "start_ids": network.bos_ids if network.model.config.trunk.causal else [],
        "lowercase": network.folder.pooling.lowercase,
        "crf": {name: describe_crf(crf) for name, crf in crfs.items() if isinstance(crf, CRF)},
        "predicted_piece": {each.name: pieces[each.head] for each in module.outputs if each.head in pieces},
    }


def predicted_pieces(network: NeuralLM) -> dict[str, str]:
    """Return for each head that tags words whether a word is tagged at its first or last piece."""
    records = network.folder.metadata.get("tasks") or {"": network.folder.metadata.get("task")}
    tasks = [task_from_json(record, network.tasks) for record in records.values() if record]
    return {task.head_name: task.predicted_piece for task in tasks if hasattr(task, "predicted_piece")}


def describe_crf(crf: CRF) -> dict[str, Any]:
    """Return the scores of transitions, with which a program decodes the logits of a CRF."""
    scores = crf.constrained_transitions(torch.zeros(1))
    return {name: values.tolist() for name, values in zip(("transitions", "start", "end"), scores)}


def timed_readers(network: NeuralLM, outputs: Sequence[GraphOutput], run: GraphRunner) -> list[Callable[[str], object]]:
    """Return functions that encode a text and compute its outputs: with the model, and with the exported graph."""
    tokenizer, has_segments = network.tokenizer, bool(network.model.config.trunk.num_segments)
    max_tokens = graph_length(network, outputs) - tokenizer.num_special_tokens_to_add()

    def encode(text: str) -> tuple[np.ndarray, np.ndarray]:
        ids, segments = tokenizer.build_inputs_with_special_tokens(tokenizer.encode(text)[:max_tokens])
        return np.array(ids), np.array(segments)

    @torch.inference_mode()
    def read_packed(text: str) -> object:
        ids, segments = (torch.from_numpy(values).to(network.device) for values in encode(text))
        layout = PackedLayout.from_lengths([len(ids)], device=network.device)
        inputs = Inputs(ids, layout, segments if has_segments else None)
        return [values.cpu() for values in compute_outputs(network.model, outputs, inputs, network.folder.pooling)]

    def read_graph(text: str) -> object:
        ids, segments = encode(text)
        feeds = {"input_ids": ids[None], "attention_mask": np.ones_like(ids)[None]}
        return run(feeds | ({"token_type_ids": segments[None]} if has_segments else {}))

    return [read_packed, read_graph]
