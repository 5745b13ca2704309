"""The graph that is exported: a model over padded batches, and its named outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.errors import ConfigError, UnsupportedError, suggest
from polyseme.families.family import FIXED_LABELS
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.embedding import EmbeddingHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig, ShiftedLMHeadConfig, SpanBoundaryHeadConfig
from polyseme.nn.layers.adaptive import AdaptiveSoftmaxHeadConfig
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs
from polyseme.nn.padding import PaddedLayout
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.nn.trunks.shallow import FeedForwardLMConfig, StaticEmbeddingTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig
from polyseme.weights.pooling import TextPooling

EXPORTED_TRUNKS = TransformerConfig | RecurrentTrunkConfig | FeedForwardLMConfig | StaticEmbeddingTrunkConfig
VECTORS = "vectors"  # in place of a head: states of tokens and vectors of texts
HIDDEN_OUTPUT, VECTOR_OUTPUT = "last_hidden_state", "sentence_embedding"
_MAIN_HEADS = ("masked", "next")  # whose output is called `logits` if there are several heads


@dataclass(frozen=True)
class GraphOutput:
    """A named output of the graph: of one row per token [batch, length, …] or per text [batch, …]."""

    name: str
    head: str  # VECTORS if no head computes it
    per_token: bool
    column: int | None = None  # of the head's scores, for one of several outputs; None means all
    labels: tuple[str, ...] = ()


def select_outputs(network: NeuralLM, head: str = "") -> list[GraphOutput]:
    """Return the outputs of one head, or by default of all; without heads, states and text vectors.

    Raise `UnsupportedError` if the trunk or a head has no graph over padded batches.
    """
    config = network.model.config
    where = f"{network.path} ({config.family})"
    _check_trunk(config.trunk.encoder if isinstance(config.trunk, EncoderDecoderConfig) else config.trunk, where)
    exportable = {name: each for name, each in config.heads.items() if not isinstance(each, SpanBoundaryHeadConfig)}
    if head and head not in (VECTORS, *exportable):
        raise ConfigError(f"head {head!r} cannot be exported; {suggest(head, [VECTORS, *exportable])}")
    names = [head] if head else [name for name in _MAIN_HEADS if name in exportable]
    names += [] if head else [name for name in exportable if name not in names]
    outputs: list[GraphOutput] = []
    for name in names or [VECTORS]:
        prefix = f"{name}_" if outputs else ""
        if name != VECTORS:
            if config.trunk.has_query_stream and isinstance(exportable[name], LMHeadConfig):
                reason = f"it reads a second stream of states, which the graph lacks; use `head` {VECTORS!r}"
                raise UnsupportedError(f"head {name!r} of {where} cannot be exported: {reason}")
            outputs += _head_outputs(name, exportable[name], prefix, where)
            continue
        network.folder.pooling.check()
        outputs += [GraphOutput(HIDDEN_OUTPUT, VECTORS, True), GraphOutput(VECTOR_OUTPUT, VECTORS, False)]
    return outputs


def _check_trunk(trunk: TrunkConfig, where: str) -> None:
    if not isinstance(trunk, EXPORTED_TRUNKS):
        reason = f"its trunk, a {type(trunk).__name__.removesuffix('Config')}, has no graph"
        raise UnsupportedError(f"{where} cannot be exported: {reason}")


def _head_outputs(name: str, head: HeadConfig, prefix: str, where: str) -> list[GraphOutput]:
    per_token = head.pooling == "tokens"
    if isinstance(head, EmbeddingHeadConfig):
        return [GraphOutput(prefix + VECTOR_OUTPUT, name, False)]
    if isinstance(head, LMHeadConfig | ShiftedLMHeadConfig | AdaptiveSoftmaxHeadConfig):
        return [GraphOutput(f"{prefix}logits", name, True)]
    if not isinstance(head, ClassificationHeadConfig):
        reason = f"a {type(head).__name__.removesuffix('Config')} is not one graph"
        raise UnsupportedError(f"head {name!r} of {where} cannot be exported: {reason}")
    if per_token and head.labels == FIXED_LABELS.get(name):  # the start and the end of an answer
        return [GraphOutput(f"{prefix}{label}_logits", name, True, i) for i, label in enumerate(head.labels)]
    return [GraphOutput(f"{prefix}logits", name, per_token, labels=head.labels)]


def compute_outputs(
    model: Model, outputs: Sequence[GraphOutput], inputs: Inputs, pooling: TextPooling
) -> tuple[Tensor, ...]:
    """Return the outputs for a packed batch, or for a padded one in the form of a packed one.

    A hybrid trunk reads the batch a second time, left to right, if the next token is predicted.
    """
    causal = inputs.layout.as_causal()
    states: dict[bool, Tensor] = {}
    values: list[Tensor] = []
    for output in outputs:
        is_causal = output.head == "next" and model.config.trunk.is_hybrid
        if is_causal not in states:
            states[is_causal] = model.trunk(replace(inputs, layout=causal) if is_causal else inputs).hidden
        hidden, layout = states[is_causal], inputs.layout
        if output.head != VECTORS:
            scores = model.predict(output.head, hidden, layout)
            values.append(scores if output.column is None else scores[:, output.column])
        else:
            values.append(hidden if output.per_token else _pool(hidden, layout, pooling))
    return tuple(values)


def _pool(hidden: Tensor, layout: Any, pooling: TextPooling) -> Tensor:
    """Return the vector of each text."""
    if pooling.mode == "mean":
        vectors = layout.mean_pool(hidden)
    elif pooling.mode == "cls":
        vectors = hidden.index_select(0, layout.first_indices)
    else:
        vectors = layout.max_pool(hidden)
    return F.normalize(vectors, dim=-1) if pooling.normalize else vectors


def used_part(model: Model, heads: Collection[str]) -> Model:
    """Return the encoder or the whole trunk of a model and some of its heads, with the same weights."""
    part = Model.__new__(Model)
    nn.Module.__init__(part)
    trunk: Any = model.trunk
    part.trunk = trunk.encoder if isinstance(model.config.trunk, EncoderDecoderConfig) else trunk
    part.heads = nn.ModuleDict({name: head for name, head in model.heads.items() if name in heads})
    part.config = model.config.replace(
        trunk=part.trunk.config, heads={name: head for name, head in model.config.heads.items() if name in heads}
    )
    return part.eval()


class GraphModule(nn.Module, ABC):
    """A module that an exporter traces: its inputs and outputs are tensors with names."""

    model: Model
    input_names: list[str]
    output_names: list[str]

    @abstractmethod
    def example_inputs(self, max_len: int) -> tuple[Any, ...]:
        """Return a small batch to trace."""

    @abstractmethod
    def dynamic_shapes(self, min_len: int, max_len: int) -> tuple[Any, ...]:
        """Return the dynamic dimensions of each input, for torch's exporters."""


class PaddedModel(GraphModule):
    """A model that takes padded batches, as other programs expect; its outputs are those of `compute_outputs`."""

    def __init__(self, network: NeuralLM, outputs: Sequence[GraphOutput]):
        super().__init__()
        self.outputs, self.pooling = tuple(outputs), network.folder.pooling
        self.model = used_part(network.model, {output.head for output in outputs})
        self.input_names = ["input_ids", "attention_mask"]
        self.input_names += ["token_type_ids"] if network.model.config.trunk.num_segments else []
        self.output_names = [output.name for output in outputs]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the outputs of ids [batch, length]; the mask is 1 at tokens and 0 at the padding after them."""
        for i in range(2):
            torch._check(input_ids.shape[i] == attention_mask.shape[i])
        layout = PaddedLayout.from_mask(attention_mask.bool())
        segments = None if token_type_ids is None else token_type_ids.reshape(-1)
        inputs = Inputs(input_ids.reshape(-1), layout, segments)
        values = compute_outputs(self.model, self.outputs, inputs, self.pooling)
        return tuple(layout.unflatten(v) if o.per_token else v for o, v in zip(self.outputs, values))

    def example_inputs(self, max_len: int) -> tuple[Tensor, ...]:
        """Return a small batch to trace, with two texts of different lengths where the model reads more than one."""
        length = min(max_len, 5)
        ids = torch.zeros(2, length, dtype=torch.long)
        mask = torch.ones_like(ids)
        mask[1, 3:] = 0
        return (ids, mask, torch.zeros_like(ids))[: len(self.input_names)]

    def dynamic_shapes(self, min_len: int, max_len: int) -> tuple[dict[int, Any], ...]:
        """Return the dynamic dimensions of each input, batch and length, for torch's exporters."""
        dims = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("length", min=min_len, max=max_len)}
        return tuple(dims for _ in self.input_names)
