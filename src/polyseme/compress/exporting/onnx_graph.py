"""ONNX: a graph with its weights in one file, which onnxruntime and other programs run."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.compress.exporting.graph import PaddedModel
from polyseme.errors import ConfigError, require_packages

ONNX_FILE = "model.onnx"
MIN_OPSET, DEFAULT_OPSET = 18, 18  # torch's exporter writes no older one
MAX_SINGLE_FILE_BYTES = 1_800_000_000  # a protocol buffer ends at 2 GB; larger weights go to a second file


def check_opset(opset: int) -> None:
    """Raise if the packages are missing or if they do not know the operator set."""
    purpose = "the export to ONNX"
    require_packages({"onnx": purpose, "onnxruntime": purpose, "onnxscript": purpose})
    from onnx.defs import onnx_opset_version

    if not MIN_OPSET <= opset <= onnx_opset_version():
        raise ConfigError(f"`opset` is {opset}: torch and onnx write opsets {MIN_OPSET} to {onnx_opset_version()}")


def write_onnx(path: Path, module: PaddedModel, max_len: int, opset: int) -> int:
    """Write the graph with dynamic batch and length; return its number of parameters."""
    dims = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("length", min=1, max=max_len)}
    num_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
    with quiet_exporter():
        program: Any = torch.onnx.export(
            module.eval(),
            module.example_inputs(max_len),
            dynamo=True,
            dynamic_shapes=tuple(dims for _ in module.input_names),
            input_names=module.input_names,
            output_names=[output.name for output in module.outputs],
            opset_version=opset,
            verbose=False,
        )
        written_opset = program.model.opset_imports.get("")
        if written_opset != opset:
            raise ConfigError(f"`opset` is {opset}, but torch could only write {written_opset} for this model")
        program.save(path, external_data=num_bytes > MAX_SINGLE_FILE_BYTES)
    initializers = program.model.graph.initializers.values()
    return sum(int(np.prod(value.shape)) for value in initializers if value.dtype.name.startswith("FLOAT"))


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Hide what torch reports about its own internals during an export."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class OnnxRuntime:
    """A session of onnxruntime on the CPU, with as many threads as torch uses."""

    def __init__(self, path: Path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, feeds: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
        """Return the outputs in the order of the graph."""
        return self._session.run(None, feeds)
