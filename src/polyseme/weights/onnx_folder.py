"""A folder whose trunk is an ONNX graph: what `quantize` writes, and `load` opens for inference on the CPU.

`model.onnx` computes the states of tokens, and the heads for programs that have only onnxruntime. `polyseme.json` is
that of a model folder, and `polyseme.safetensors` holds the weights of the pooler and the heads in float32, so that
every task reads the states as it does those of any other trunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from polyseme.errors import ModelError, UnsupportedError, require_packages
from polyseme.io.atomic import write_tensors
from polyseme.io.hashes import check_hashes
from polyseme.io.json import read_json_object, write_json
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.embedding import EmbeddingHeadConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import Inputs
from polyseme.nn.trunks.base import Trunk, TrunkConfig, TrunkOutput
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import FORMAT_VERSION, ModelFolder, read_model_config
from polyseme.weights.pooling import TextPooling

ONNX_FILE, HEADS_FILE = "model.onnx", "polyseme.safetensors"
HIDDEN_OUTPUT = "last_hidden_state"
MAX_GRAPH_TOKENS = 256  # of one call, padding included: its states stay in the cache of a core
MIN_FILLED = 0.8  # of the longest text of a call; shorter texts go to another one
GRAPH_BATCH_TOKENS = 16_384  # that are distributed over threads at once


def is_onnx_folder(path: Path) -> bool:
    """Return whether a folder holds an ONNX graph that Polyseme opens."""
    return (path / ONNX_FILE).is_file() and (path / "polyseme.json").is_file()


class OnnxTrunk(Trunk):
    """A trunk that onnxruntime runs: packed batches in, the states of the last layer out.

    Texts of similar length are read together, each call by one thread, so that little is padded and no thread waits
    for another. A single text is read by all threads.
    """

    is_differentiable = False
    embeddings = None

    def __init__(self, config: TrunkConfig, path: Path, num_parameters: int = 0, num_threads: int = 0):
        super().__init__(config)
        self.path, self.num_threads = path, num_threads or torch.get_num_threads()
        self.num_graph_parameters = num_parameters
        self.pooler = config.pooler.build(config.dim)
        self.session = cache(self._start_session)

    def _start_session(self, num_threads: int) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.log_severity_level = 3
        try:
            return onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has no common class of errors
            raise ModelError(f"{self.path} is not a graph that onnxruntime opens: {error}") from error

    @cached_property
    def _executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.num_threads, "onnx")

    def check(self, inputs: Inputs, memory: Any = None, layers: Any = (), return_memory: bool = False) -> None:
        super().check(inputs, None, layers, False)
        if set(layers) - {self.config.num_layers}:
            raise UnsupportedError(f"{self.path} returns the states of the last layer only, {self.config.num_layers}")
        if memory is not None or return_memory or inputs.layout.causal:
            raise UnsupportedError(f"{self.path} reads whole texts: it has no memory")

    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput:
        lengths = np.array(inputs.layout.lengths, dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        columns = {"input_ids": inputs.tokens.numpy()}
        if self.config.num_segments:
            segments = inputs.segments
            columns["token_type_ids"] = np.zeros_like(columns["input_ids"]) if segments is None else segments.numpy()
        hidden = np.empty((len(columns["input_ids"]), self.config.dim), dtype=np.float32)
        groups = list(group_by_length(lengths))
        session = self.session(self.num_threads if len(groups) == 1 else 1)

        def run(group: np.ndarray) -> None:
            rows, mask = padded_rows(starts[group], lengths[group])
            feeds = {name: values[rows] for name, values in columns.items()}
            (states,) = session.run([HIDDEN_OUTPUT], feeds | {"attention_mask": mask.astype(np.int64)})
            hidden[rows[mask]] = states[mask]

        if len(groups) == 1 or self.num_threads == 1:
            list(map(run, groups))
        else:
            list(self._executor.map(run, groups))
        states = torch.from_numpy(hidden)
        return TrunkOutput(states, dict.fromkeys(layers, states))


def group_by_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Group the indices of texts, longest first, into calls of at most `MAX_GRAPH_TOKENS` with little padding."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        candidates = order[start : start + max(MAX_GRAPH_TOKENS // longest, 1)]
        group = candidates[lengths[candidates] >= MIN_FILLED * longest]
        yield group
        start += len(group)


def padded_rows(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each token in the packed batch, [texts, longest], and which are tokens; the rest is row 0."""
    positions = np.arange(lengths.max())
    mask = positions < lengths[:, None]
    return np.where(mask, starts[:, None] + positions, 0), mask


def readable_heads(config: ModelConfig) -> dict[str, Any]:
    """Return the heads that read the states of a graph; those that predict tokens need the embeddings as well."""
    heads = {n: h for n, h in config.heads.items() if isinstance(h, ClassificationHeadConfig | EmbeddingHeadConfig)}
    return heads if len(heads) == len(config.heads) else {}


def build_onnx_model(config: ModelConfig, path: Path, num_parameters: int) -> Model:
    """Create a model of a graph with a number of parameters, and heads, whose weights are not set yet."""
    model = Model.__new__(Model)
    nn.Module.__init__(model)
    model.config = config.replace(heads=readable_heads(config))
    model.trunk = OnnxTrunk(config.trunk, path, num_parameters)
    model.heads = nn.ModuleDict({n: head.build(config.trunk.dim) for n, head in model.config.heads.items()})
    return model.eval()


def write_onnx_heads(folder: Path, model: Model, metadata: dict[str, Any]) -> None:
    """Write what Polyseme needs besides the graph: config, metadata, and the weights of the pooler and the heads."""
    config = model.config.replace(heads=readable_heads(model.config))
    prefixes = ("trunk.pooler.", *(f"heads.{name}." for name in config.heads))
    tensors = {name: tensor.float() for name, tensor in model.state_dict().items() if name.startswith(prefixes)}
    write_json(folder / "polyseme.json", {"format": FORMAT_VERSION, "config": config.to_json(), "metadata": metadata})
    if tensors:
        write_tensors(folder / HEADS_FILE, tensors)


def load_onnx_model(path: Path, verify: bool = False) -> ModelFolder:
    """Load a folder with a graph, for inference on the CPU."""
    require_packages({"onnxruntime": f"the graph {path / ONNX_FILE}"})
    check_hashes(path, with_large_weights=verify)
    config, metadata = read_model_config(path)
    about = read_json_object(path / "export.json")
    model = build_onnx_model(config, path / ONNX_FILE, about.get("num_parameters", 0))
    try:
        model.load_state_dict(load_file(path / HEADS_FILE) if (path / HEADS_FILE).is_file() else {})
    except (RuntimeError, SafetensorError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise ModelError(f"{path / HEADS_FILE} does not match polyseme.json: {reason}") from None
    pooling = TextPooling(**about["pooling"]) if "pooling" in about else TextPooling()
    return ModelFolder(path, model, Tokenizer.load(path), metadata, pooling=pooling)
