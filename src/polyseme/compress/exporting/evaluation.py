"""The metric of an exported model: the graph takes the place of the trunk and the heads of a loaded model."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.compress.examples import QualityExamples, ScoredPairExamples
from polyseme.compress.exporting.graph import HIDDEN_OUTPUT, GraphOutput
from polyseme.compress.exporting.verification import GraphRunner
from polyseme.compress.result import CompressionRow
from polyseme.errors import ConfigError, ModelError, UnsupportedError
from polyseme.inference.base import LanguageModel
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.base import TrunkConfig, TrunkOutput
from polyseme.tasks.metrics.standard import regression_metrics

METRIC_TOLERANCE = 1e-3  # of a metric, relative to its value if that is over 1


class GraphTrunk(nn.Module):
    """Runs a graph on packed batches; its states are the outputs of the graph, side by side.

    An output of a text is repeated at each of its tokens, so that any pooling returns it.
    """

    is_differentiable = False
    supports_rows = False

    def __init__(self, config: TrunkConfig, outputs: Sequence[GraphOutput], run: GraphRunner, min_len: int):
        super().__init__()
        self.config, self.outputs, self.run, self.min_len = config, outputs, run, min_len
        self.placement = nn.Parameter(torch.empty(0), requires_grad=False)  # callers read the device of a parameter
        self.widths: list[int] = []  # number of columns of each output, known after the first batch

    def forward(self, inputs: Inputs, layers: Iterable[int] = ()) -> TrunkOutput:
        """Return the outputs of the graph, [T, columns], also for each requested layer."""
        layout, columns = inputs.layout, {"input_ids": inputs.tokens, "attention_mask": torch.ones_like(inputs.tokens)}
        if self.config.num_segments:
            columns["token_type_ids"] = torch.zeros_like(inputs.tokens) if inputs.segments is None else inputs.segments
        num_columns = max(layout.longest, self.min_len)
        feeds = {
            name: F.pad(layout.pad(values), (0, num_columns - layout.longest)).numpy()
            for name, values in columns.items()
        }
        parts = []
        for output, values in zip(self.outputs, self.run(feeds), strict=True):
            if output.name == HIDDEN_OUTPUT:
                continue
            tensor = torch.from_numpy(values)
            if output.per_token:
                tensor = layout.unpad(tensor[:, : layout.longest])
            else:
                tensor = tensor.index_select(0, layout.sequence_ids)
            parts.append(tensor if output.column is None else tensor[:, None])
        self.widths = [part.shape[-1] for part in parts]
        hidden = torch.cat(parts, dim=-1)
        return TrunkOutput(hidden, dict.fromkeys(layers, hidden))


class GraphModel(Model):
    """A model whose predictions are those of an exported graph, which reads whole texts."""

    def __init__(self, model: Model, outputs: Sequence[GraphOutput], run: GraphRunner, min_len: int):
        nn.Module.__init__(self)
        self.config, self.heads = model.config, model.heads
        self.trunk: Any = GraphTrunk(model.config.trunk, outputs, run, min_len)
        self.outputs = [output for output in outputs if output.name != HIDDEN_OUTPUT]

    def predict(self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor | None = None) -> Tensor:
        """Return the outputs of a head, for every token or sequence or for `rows`."""
        selected = [output for output in self.outputs if output.head == head]
        if not selected or (rows is not None and rows.ndim > 1):
            raise UnsupportedError(f"the graph has no output for what the task reads of head {head!r}")
        parts = hidden.split(self.trunk.widths, dim=-1)
        scores = torch.cat([part for output, part in zip(self.outputs, parts) if output.head == head], dim=-1)
        scores = scores if selected[0].per_token else scores.index_select(0, layout.first_indices)
        return scores if rows is None else scores.index_select(0, rows)

    def loss(
        self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor, labels: Tensor, label_smoothing: float = 0
    ) -> Tensor:
        """Return the summed cross entropy of a language-model head."""
        logits = self.predict(head, hidden, layout, rows)
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)


def graph_network(network: NeuralLM, outputs: Sequence[GraphOutput], run: GraphRunner, min_len: int = 1) -> NeuralLM:
    """Return a model that predicts with a graph in place of its weights."""
    model = GraphModel(network.model, outputs, run, min_len).eval()
    return NeuralLM(replace(network.folder, model=model), "cpu", network.max_batch_tokens, network.tasks)


def graph_metric_row(examples: QualityExamples, network: NeuralLM, exported: NeuralLM) -> CompressionRow:
    """Compare the metric of a model with that of its graph; raise `ModelError` if it differs by more than rounding."""
    row = CompressionRow.compare(examples.metric, examples.evaluate(network), examples.evaluate(exported))
    if not abs(row.after - row.before) <= METRIC_TOLERANCE * max(1.0, abs(row.before)):
        raise ModelError(
            f"{row.measure} of the exported graph of {network.path} is {row.after:.6g}, that of the model "
            f"{row.before:.6g}: nothing was written; please report this"
        )
    return row


def check_static_examples(examples: QualityExamples | None) -> None:
    """Raise if static vectors have no metric on these examples."""
    if examples is not None and not isinstance(examples, ScoredPairExamples):
        remedy = "pass `task` 'regression', or one such as glue/sts-b"
        raise ConfigError(f"`data` of static vectors are scored pairs: {remedy}")


def static_spearman(examples: QualityExamples, static: LanguageModel) -> float:
    """Return Spearman's correlation of the scores of pairs and the cosines of their static vectors."""
    assert isinstance(examples, ScoredPairExamples), "`check_static_examples` comes first"
    sides = [np.asarray(static.embed(texts, truncate=True)) for texts in (examples.texts, examples.pairs)]
    first, second = (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) for vectors in sides)
    return regression_metrics(examples.gold, (first * second).sum(1).tolist())["spearman"]
