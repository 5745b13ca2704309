"""A folder with an exported graph, the tokenizer, and what a program has to know to run it."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.compress.exporting.graph import VECTORS, GraphOutput, PaddedModel, compute_outputs, select_outputs
from polyseme.compress.exporting.verification import GraphRunner, check_difference, checked_shapes
from polyseme.compress.result import SAMPLE_TEXTS, CompressionResult, CompressionRow, count_megabytes, median_ms
from polyseme.errors import ModelError, PolysemeError
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.hashes import hashed_directory
from polyseme.io.json import write_json
from polyseme.nn.heads.crf import CRF
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.train.loop import count_parameters

DESCRIPTION_FILE = "export.json"


class GraphFormat(ABC):
    """A format of graphs: how one is written and run."""

    min_length = 1  # of a batch that the graph reads; shorter texts are padded

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What is recorded about the format."""

    def check(self) -> None:  # noqa: B027
        """Raise if a package is missing or a setting is invalid."""

    @abstractmethod
    def write(self, folder: Path, module: PaddedModel, max_len: int) -> int:
        """Write the graph with dynamic batch and length; return its number of parameters."""

    @abstractmethod
    def open(self, folder: Path) -> GraphRunner:
        """Return a function that runs the written graph."""


def write_graph_folder(network: NeuralLM, path: Path, graph_format: GraphFormat, head: str) -> CompressionResult:
    """Export a model to a new folder, check its outputs, and compare sizes and times."""
    outputs = select_outputs(network, head)
    module, max_len = PaddedModel(network, outputs), graph_length(network, outputs)
    with hashed_directory(path) as folder:
        shapes = checked_shapes(graph_format.min_length, max_len)
        try:
            num_parameters = graph_format.write(folder, module, max_len)
            run = graph_format.open(folder)
            difference = check_difference(network, outputs, run, shapes)
        except (PolysemeError, OSError, MemoryError):
            raise
        except Exception as error:  # of torch's exporters and onnxruntime, which have no common class
            kind, family = graph_format.settings["format"], network.model.config.family
            raise ModelError(
                f"{network.path} ({family}) has no {kind} graph: {type(error).__name__}: {error}"
            ) from error
        lengths = {"min_length": graph_format.min_length, "max_length": max_len}
        write_description(folder, network, module, graph_format.settings | lengths)
        times = median_ms(timed_readers(network, outputs, run), SAMPLE_TEXTS)
        rows = (
            CompressionRow.compare("megabytes", count_megabytes(network.path), count_megabytes(folder)),
            CompressionRow.compare("parameters", count_parameters(network.model), num_parameters),
            CompressionRow.compare("ms per text", *times),
        )
        record = graph_format.settings | {
            "inputs": module.input_names,
            "outputs": [output.name for output in outputs],
            "max_difference": difference,
            "num_shapes": len(shapes),
            "num_threads": torch.get_num_threads(),
        }
        notes = (f"Exported {network.path.name} as a graph: {graph_format.settings['format']}.",)
        exported = CompressionResult(rows, path, record, notes=notes)
        exported.save(folder)
    return exported


def graph_length(network: NeuralLM, outputs: Sequence[GraphOutput]) -> int:
    """Return the longest text that the graph reads, in tokens."""
    pooled_len = network.folder.pooling.max_len if any(output.head == VECTORS for output in outputs) else 0
    return min(pooled_len or network.max_len, network.max_len)


def write_description(folder: Path, network: NeuralLM, module: PaddedModel, settings: dict[str, Any]) -> None:
    """Write the tokenizer, the config of the model, and what a program has to know to run the graph."""
    special_ids = network.tokenizer.special_token_ids
    network.tokenizer.save_files(folder)
    if (network.path / "config.json").is_file():
        shutil.copyfile(network.path / "config.json", folder / "config.json")
    outputs = [
        {"name": each.name, "axes": ["batch", "length"] if each.per_token else ["batch"], "labels": list(each.labels)}
        for each in module.outputs
    ]
    heads: dict[str, Any] = dict(network.model.heads.items())
    crfs = {output.name: heads[output.head].crf for output in module.outputs if output.head in heads}
    description = settings | {
        "inputs": module.input_names,
        "outputs": outputs,
        "pad_id": special_ids.pad or 0,
        "mask_id": special_ids.mask,
        "start_ids": network.bos_ids if network.model.config.trunk.causal else [],
        "lowercase": network.folder.pooling.lowercase,
        "crf": {name: describe_crf(crf) for name, crf in crfs.items() if isinstance(crf, CRF)},
    }
    write_json(folder / DESCRIPTION_FILE, description)


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
