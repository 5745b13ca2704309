"""`export`: write a model in the format of another program."""

from pathlib import Path
from typing import Literal

from polyseme.compress.exporting.graph_folder import write_graph_folder
from polyseme.compress.exporting.onnx_graph import DEFAULT_OPSET, OnnxFormat
from polyseme.compress.exporting.static_vectors import write_static_vectors
from polyseme.compress.exporting.torch_program import TorchFormat
from polyseme.compress.result import CompressionResult
from polyseme.errors import ConfigError, suggest
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.io.atomic import ensure_new_directory

ExportFormat = Literal["onnx", "torch", "static"]
_OPTIONS: dict[str, tuple[str, ...]] = {"onnx": ("head", "opset"), "torch": ("head",), "static": ("dim",)}


def export(
    model: str | Path | LanguageModel,
    to: ExportFormat,
    out: str | Path,
    head: str = "",
    opset: int | None = None,
    dim: int | None = None,
) -> CompressionResult:
    """Write a model to a new folder in a format that runs without Polyseme, with its tokenizer.

    "onnx" is a graph for onnxruntime, of the operator set `opset` (18), and "torch" a program for `torch.export.load`.
    Both take padded batches of any size. Their outputs are those of all heads, or of one `head`; "vectors" are the
    states of tokens and the vectors of texts, which a model without heads has. They are compared with the model's at
    four shapes. "static" is a model folder of word vectors: one vector of `dim` numbers (256 at most; 0 for those of
    the model) for each token of the vocabulary, whose mean is the vector of a text.

    >>> polyseme.compress.export("run/model", to="onnx", out="my/onnx").record["outputs"]
    ['logits', 'pair_logits']
    """
    if to not in _OPTIONS:
        raise ConfigError(f"`to` is {to!r}; {suggest(str(to), _OPTIONS)}")
    for name, value in {"head": head or None, "opset": opset, "dim": dim}.items():
        if value is not None and name not in _OPTIONS[to]:
            raise ConfigError(f"`{name}` is {value!r}, but it does not apply to {to}")
    path = Path(out)
    ensure_new_directory(path)
    graph_format = OnnxFormat(DEFAULT_OPSET if opset is None else opset) if to == "onnx" else TorchFormat()
    graph_format.check()
    network = load_neural(model, device="cpu" if not isinstance(model, LanguageModel) else None)
    if to == "static":
        return write_static_vectors(network, path, dim)
    return write_graph_folder(network, path, graph_format, head)
