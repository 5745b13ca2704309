"""Write a folder with an int8 graph, and open it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyseme.compress.exporting.evaluation import graph_network
from polyseme.compress.exporting.graph import HIDDEN_OUTPUT, VECTORS, GraphOutput, PaddedModel, select_outputs
from polyseme.compress.exporting.graph_folder import describe_outputs, graph_length, write_description
from polyseme.compress.exporting.onnx_graph import OnnxFormat
from polyseme.compress.exporting.verification import check_difference, checked_shapes, measure_difference
from polyseme.compress.quantization.calibration import measure_ranges
from polyseme.compress.quantization.fusion import fuse
from polyseme.compress.quantization.graph_editor import GraphEditor
from polyseme.compress.quantization.integer_graph import quantize_graph
from polyseme.errors import ModelError, PolysemeError, UnsupportedError
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.train.loop import count_parameters
from polyseme.weights.onnx_folder import ONNX_FILE, readable_heads, write_onnx_heads


class IntegerFolder:
    """The graph of a model in int8: the outputs of its heads, and always the states of tokens."""

    def __init__(self, network: NeuralLM, graph_format: OnnxFormat, head: str):
        if network.model.config.trunk.has_source:
            raise UnsupportedError(f"{network.path} has an encoder and a decoder: choose the `mode` weights")
        self.network, self.graph_format = network, graph_format
        outputs = select_outputs(network, head)
        if all(output.name != HIDDEN_OUTPUT for output in outputs):
            outputs.append(GraphOutput(HIDDEN_OUTPUT, VECTORS, True))
        self.outputs = outputs
        self.module, self.max_len = PaddedModel(network, outputs), graph_length(network, outputs)

    def write(self, folder: Path, texts: Sequence[str], mode: str) -> None:
        """Export, fuse and quantize the graph, with static scales if there are calibration texts."""
        try:
            self.graph_format.write(folder, self.module, self.max_len)
            counts = self._quantize(folder, texts)
        except (PolysemeError, OSError, MemoryError):
            raise
        except Exception as error:  # of torch's exporter and onnxruntime, which have no common class
            where = f"{self.network.path} ({self.network.model.config.family})"
            raise ModelError(f"{where} has no graph in int8: {type(error).__name__}: {error}") from error
        pooling = asdict(self.network.folder.pooling)
        description = self.graph_format.settings | {"mode": mode, "dtype": "int8", "fused": counts, "pooling": pooling}
        description |= {"min_length": 1, "max_length": self.max_len, "num_parameters": self._count_parameters()}
        write_description(folder, self.network, description | describe_outputs(self.network, self.module))
        write_onnx_heads(folder, self.network.model, self.network.folder.metadata)

    def _quantize(self, folder: Path, texts: Sequence[str]) -> dict[str, int]:
        """Fuse the graph, compare it with the model while it is float32, and quantize it."""
        import onnx

        model: Any = onnx.load(folder / ONNX_FILE)
        editor = GraphEditor(model)
        counts = fuse(editor)
        editor.finish()
        onnx.save(model, folder / ONNX_FILE)
        run, shapes = self.graph_format.open(folder), checked_shapes(self.graph_format.min_length, self.max_len)
        check_difference(self.network, measure_difference(self.network, self.outputs, run, shapes))
        ranges = measure_ranges(model, self.network, texts, self.max_len) if texts else None
        editor = GraphEditor(model)
        quantize_graph(editor, ranges)
        editor.finish()
        for path in folder.glob(f"{ONNX_FILE}*"):
            path.unlink()
        onnx.save(model, folder / ONNX_FILE)
        return counts

    def _count_parameters(self) -> int:
        model = self.network.model
        heads = [model.heads[name] for name in readable_heads(model.config)]
        return count_parameters(model) - sum(map(count_parameters, [model.trunk.pooler, *heads]))

    def open(self, folder: Path, predicts_tokens: bool = False) -> NeuralLM:
        """Open a written folder; with `predicts_tokens`, the outputs of the graph take the place of its heads."""
        if predicts_tokens:
            return graph_network(self.network, self.outputs, self.graph_format.open(folder))
        return load_neural(folder, "cpu")
