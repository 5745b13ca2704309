"""`export`: write a model in the format of another program."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from polyseme.compress.exporting.graph import VECTORS, GraphOutput, PaddedModel, compute_outputs, select_outputs
from polyseme.compress.exporting.onnx_graph import DEFAULT_OPSET, ONNX_FILE, OnnxRuntime, check_opset, write_onnx
from polyseme.compress.exporting.verification import Run, check_difference, checked_shapes
from polyseme.compress.result import SAMPLE_TEXTS, CompressionResult, CompressionRow, count_megabytes, median_ms
from polyseme.errors import ConfigError, suggest
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.atomic import ensure_new_directory
from polyseme.io.hashes import hashed_directory
from polyseme.io.json import write_json
from polyseme.nn.heads.crf import CRF
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.train.loop import count_parameters

ExportFormat = Literal["onnx", "torch", "static"]
FORMATS: tuple[ExportFormat, ...] = ("onnx", "torch", "static")
EXPORT_FILE = "export.json"


def export(
    model: str | Path | LanguageModel,
    to: ExportFormat,
    out: str | Path,
    head: str = "",
    opset: int = DEFAULT_OPSET,
) -> CompressionResult:
    """Write a model as an ONNX graph to a new folder, with its tokenizer and a description of inputs and outputs.

    The graph takes padded batches of any size, and its outputs are those of all heads, or of one `head`; "vectors" are
    the states of tokens and the vectors of texts, which a model without heads has. The export is checked against the
    model with onnxruntime at four shapes.

    >>> result = polyseme.compress.export("run/model", to="onnx", out="my/onnx")
    >>> result.record["outputs"]
    ['logits', 'pair_logits']
    """
    if to not in FORMATS:
        raise ConfigError(f"`to` is {to!r}; {suggest(to, FORMATS)}")
    path = Path(out)
    ensure_new_directory(path)
    check_opset(opset)
    network = load_neural(model, device="cpu")
    outputs = select_outputs(network, head)
    module, max_len = PaddedModel(network, outputs), graph_length(network, outputs)
    with hashed_directory(path) as folder:
        num_parameters = write_onnx(folder / ONNX_FILE, module, max_len, opset)
        runtime = OnnxRuntime(folder / ONNX_FILE)
        difference = check_difference(network, outputs, runtime, max_len)
        write_description(folder, network, module, max_len, {"format": to, "opset": opset})
    rows = [
        CompressionRow.compare("megabytes", count_megabytes(network.path), count_megabytes(path)),
        CompressionRow.compare("parameters", count_parameters(network.model), num_parameters),
        CompressionRow.compare("ms per text", *median_ms(timed_readers(network, outputs, runtime), SAMPLE_TEXTS)),
    ]
    record = {
        "format": to,
        "opset": opset,
        "inputs": module.input_names,
        "outputs": [output.name for output in outputs],
        "max_difference": difference,
        "num_shapes": len(checked_shapes(max_len)),
        "num_threads": torch.get_num_threads(),
    }
    return CompressionResult(tuple(rows), path, record)


def graph_length(network: NeuralLM, outputs: Sequence[GraphOutput]) -> int:
    """Return the longest text that the graph reads, in tokens."""
    pooled_len = network.folder.pooling.max_len if any(output.head == VECTORS for output in outputs) else 0
    return min(pooled_len or network.max_len, network.max_len)


def write_description(
    folder: Path, network: NeuralLM, module: PaddedModel, max_len: int, settings: dict[str, Any]
) -> None:
    """Write the tokenizer, the config of the model, and what a program has to know to run the graph."""
    tokenizer, special_ids = network.tokenizer, network.tokenizer.special_token_ids
    tokenizer.save_files(folder)
    if (network.path / "config.json").is_file():
        shutil.copyfile(network.path / "config.json", folder / "config.json")
    outputs = [
        {"name": each.name, "axes": ["batch", "length"] if each.per_token else ["batch"], "labels": list(each.labels)}
        for each in module.outputs
    ]
    crfs = {output.name: network.model.heads[output.head].crf for output in module.outputs if output.head != VECTORS}
    description = settings | {
        "inputs": module.input_names,
        "outputs": outputs,
        "max_length": max_len,
        "pad_id": special_ids.pad or 0,
        "mask_id": special_ids.mask,
        "start_ids": network.bos_ids if network.model.config.trunk.causal else [],
        "lowercase": network.folder.pooling.lowercase,
        "crf": {name: describe_crf(crf) for name, crf in crfs.items() if isinstance(crf, CRF)},
    }
    write_json(folder / EXPORT_FILE, description)


def describe_crf(crf: CRF) -> dict[str, Any]:
    """Return the scores of transitions, with which a program decodes the logits of a CRF."""
    scores = crf.constrained_transitions(torch.zeros(1))
    return {name: values.tolist() for name, values in zip(("transitions", "start", "end"), scores)}


def timed_readers(network: NeuralLM, outputs: Sequence[GraphOutput], run: Run) -> list[Callable[[str], object]]:
    """Return functions that encode a text and compute its outputs: with the model, and with the exported graph."""
    tokenizer, has_segments = network.tokenizer, bool(network.model.config.trunk.num_segments)
    max_tokens = graph_length(network, outputs) - tokenizer.num_special_tokens_to_add()

    def encode(text: str) -> tuple[np.ndarray, np.ndarray]:
        ids, segments = tokenizer.build_inputs_with_special_tokens(tokenizer.encode(text)[:max_tokens])
        return np.array(ids), np.array(segments)

    @torch.inference_mode()
    def read_packed(text: str) -> object:
        ids, segments = map(torch.from_numpy, encode(text))
        inputs = Inputs(ids, PackedLayout.from_lengths([len(ids)]), segments if has_segments else None)
        return compute_outputs(network.model, outputs, inputs, network.folder.pooling)

    def read_graph(text: str) -> object:
        ids, segments = encode(text)
        feeds = {"input_ids": ids[None], "attention_mask": np.ones_like(ids)[None]}
        return run(feeds | ({"token_type_ids": segments[None]} if has_segments else {}))

    return [read_packed, read_graph]
