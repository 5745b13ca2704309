"""`export`: write a model in the format of another program."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from polyseme.compress.examples import read_examples
from polyseme.compress.exporting.graph import VECTORS
from polyseme.compress.exporting.graph_folder import write_graph_folder
from polyseme.compress.exporting.onnx_graph import DEFAULT_OPSET, OnnxFormat
from polyseme.compress.exporting.static_vectors import write_static_vectors
from polyseme.compress.exporting.torch_program import TorchFormat
from polyseme.compress.result import CompressionResult
from polyseme.config import Config
from polyseme.errors import ConfigError, UnsupportedError, suggest
from polyseme.generation.session import generation_head
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.io.atomic import ensure_new_directory

ExportFormat = Literal["onnx", "torch", "static"]
_OPTIONS: dict[str, tuple[str, ...]] = {"onnx": ("head", "opset", "cache"), "torch": ("head",), "static": ("dim",)}


@dataclass(frozen=True)
class ExportConfig(Config):
    """What is exported; an option that does not apply to the format is an error."""

    head: str = ""
    opset: int | None = None  # None means 18
    cache: bool = False
    dim: int | None = None  # None means 256, or those of a smaller model

    def check(self, to: str) -> None:
        """Raise if the format does not exist or has no such option."""
        if to not in _OPTIONS:
            raise ConfigError(f"`to` is {to!r}; {suggest(str(to), _OPTIONS)}")
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default and each.name not in _OPTIONS[to]:
                raise ConfigError(f"`{each.name}` is {value!r}, but it does not apply to {to}")


def export(
    model: str | Path | LanguageModel,
    to: ExportFormat,
    out: str | Path,
    *,
    data: Any = None,
    task: str = "",
    **options: Any,
) -> CompressionResult:
    """Write a model to a new folder in a format that runs without Polyseme, with its tokenizer.

    Options are those of `ExportConfig`. "onnx" is a graph for onnxruntime, of the operator set `opset` (18), and
    "torch" a program for `torch.export.load`. Both take padded batches of any size. Their outputs are those of all
    heads, or of one `head`; "vectors" are the states of tokens and the vectors of texts, which a model without heads
    has. They are compared with the model's at four shapes. With `cache`, the ONNX graph of a causal model continues
    texts: it takes and returns keys and values, or recurrent states. An encoder-decoder is always two such graphs.
    "static" is a model folder of word vectors: one vector of `dim` numbers (256 at most; 0 for those of the model) for
    each token of the vocabulary, whose mean is the vector of a text.

    With `data`, the table has the metric before and after: of labeled examples of a task model, of texts of a language
    model, or of scored pairs with the `task` regression or a data set such as glue/sts-b.

    >>> polyseme.compress.export("run/model", to="onnx", out="my/onnx").record["outputs"]
    ['logits', 'pair_logits']
    """
    config = ExportConfig.from_json({name: value for name, value in options.items() if value is not None})
    config.check(to)
    if data is None and task:
        raise ConfigError("`task` has no effect without `data`")
    path = Path(out)
    ensure_new_directory(path)
    graph_format = (
        OnnxFormat(DEFAULT_OPSET if config.opset is None else config.opset) if to == "onnx" else TorchFormat()
    )
    graph_format.check()
    network = load_neural(model, device="cpu" if not isinstance(model, LanguageModel) else None)
    network = network if network.device.type == "cpu" else load_neural(network.path, "cpu")
    if data is not None and network.is_seq2seq and config.head != VECTORS and generation_head(network.model):
        raise UnsupportedError(
            f"{network.path} has an encoder and a decoder, whose metric is not measured: omit `data`"
        )
    examples = None if data is None else read_examples(network, data, task)
    if to == "static":
        return write_static_vectors(network, path, config.dim, examples)
    return write_graph_folder(network, path, graph_format, config.head, config.cache, examples)
