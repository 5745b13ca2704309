"""A program of `torch.export`, which torch runs without Polyseme, also after compilation ahead of time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.compress.exporting.graph import GraphModule
from polyseme.compress.exporting.graph_folder import GraphFormat
from polyseme.compress.exporting.onnx_graph import quiet_exporter
from polyseme.compress.exporting.verification import GraphRunner


class TorchFormat(GraphFormat):
    """A graph of torch operators."""

    suffix = "pt2"
    min_length = 2  # torch assumes that the length and the number of all tokens differ

    @property
    def settings(self) -> dict[str, Any]:
        return {"format": "torch", "torch": torch.__version__}

    def write(self, folder: Path, module: GraphModule, max_len: int, name: str = "model") -> int:
        arguments, shapes = module.example_inputs(max_len), module.dynamic_shapes(self.min_length, max_len)
        with quiet_exporter():
            program = torch.export.export(module.eval(), arguments, dynamic_shapes=shapes, strict=False)
            torch.export.save(program, folder / f"{name}.pt2")
        weights = {id(tensor): tensor for tensor in program.state_dict.values() if tensor.is_floating_point()}
        return sum(tensor.numel() for tensor in weights.values())

    def open(self, folder: Path, name: str = "model") -> GraphRunner:
        with quiet_exporter():
            module: Any = torch.export.load(folder / f"{name}.pt2").module()

        @torch.inference_mode()
        def run(feeds: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
            return [tensor.numpy() for tensor in module(*map(torch.from_numpy, feeds.values()))]

        return run
