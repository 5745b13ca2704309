"""ONNX: a graph with its weights in one file, which onnxruntime and other programs run."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.compress.exporting.graph import GraphModule
from polyseme.compress.exporting.graph_folder import GraphFormat
from polyseme.compress.exporting.verification import GraphRunner
from polyseme.errors import ConfigError, require_packages

ONNX_FILE = "model.onnx"
MIN_OPSET, DEFAULT_OPSET = 18, 18  # torch's exporter writes no older one
MAX_SINGLE_FILE_BYTES = 1_800_000_000  # a protocol buffer ends at 2 GB; larger weights go to a second file


@dataclass(frozen=True)
class OnnxFormat(GraphFormat):
    """A graph of ONNX operators."""

    opset: int = DEFAULT_OPSET
    supports_cache = True
    suffix = "onnx"

    @property
    def settings(self) -> dict[str, Any]:
        return {"format": "onnx", "opset": self.opset}

    def check(self) -> None:
        require_packages(dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "the export to ONNX"))
        from onnx.defs import onnx_opset_version

        if not MIN_OPSET <= self.opset <= onnx_opset_version():
            supported = f"{MIN_OPSET} to {onnx_opset_version()}"
            raise ConfigError(f"`opset` is {self.opset}, but torch and onnx write opsets {supported}")

    def write(self, folder: Path, module: GraphModule, max_len: int, name: str = "model") -> int:
        num_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
        with quiet_exporter():
            program: Any = torch.onnx.export(
                module.eval(),
                module.example_inputs(max_len),
                dynamo=True,
                dynamic_shapes=module.dynamic_shapes(self.min_length, max_len),
                input_names=module.input_names,
                output_names=module.output_names,
                opset_version=self.opset,
                verbose=False,
            )
            if (written := program.model.opset_imports.get("")) != self.opset:
                raise ConfigError(f"`opset` is {self.opset}, but torch can only write {written} for this model")
            program.save(folder / f"{name}.onnx", external_data=num_bytes > MAX_SINGLE_FILE_BYTES)
        weights = [value for value in program.model.graph.initializers.values() if value.dtype.is_floating_point()]
        return sum(size for value in weights if (size := int(np.prod(value.shape))) > 1)

    def open(self, folder: Path, name: str = "model") -> GraphRunner:
        """Start a session of onnxruntime on the CPU, with as many threads as torch uses."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])

        def run(feeds: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
            return session.run(None, feeds)

        return run


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Trace without gradients, and hide what torch reports about its own internals during an export."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
