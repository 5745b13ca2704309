"""The interface of all trunks: what their configs state, what they take and what they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import UnsupportedError
from polyseme.nn.attention.terms import AttentionTerms
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ACTIVATIONS
from polyseme.nn.packing import Inputs, PackedLayout


@dataclass(frozen=True)
class PoolerConfig(Config):
    """Pooling of a sequence into one vector, optionally followed by a dense layer with tanh.

    "final_states" is for two directions side by side: the last state of the forward half and the first one of the
    backward half.
    """

    pooling: Literal["first", "last", "mean", "final_states"] = "first"
    dense: bool = False

    def build(self, dim: int) -> Pooler:
        """Create the module."""
        return Pooler(self, dim)


def pool_final_states(hidden: Tensor, layout: PackedLayout) -> Tensor:
    """Return the last state of the forward half and the first one of the backward half, [slots, dim]."""
    half = hidden.shape[-1] // 2
    last, first = (hidden.index_select(0, index) for index in (layout.last_indices, layout.first_indices))
    return torch.cat([last[:, :half], first[:, half:]], dim=-1)


class Pooler(nn.Module):
    """Pools hidden states [T, dim] into one vector per sequence [slots, dim]."""

    def __init__(self, config: PoolerConfig, dim: int):
        super().__init__()
        self.config = config
        self.dense = nn.Linear(dim, dim) if config.dense else None

    def forward(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        pooling = self.config.pooling
        if pooling == "mean":
            x = layout.mean_pool(hidden)
        elif pooling == "final_states":
            x = pool_final_states(hidden, layout)
        else:
            x = hidden.index_select(0, layout.first_indices if pooling == "first" else layout.last_indices)
        return x if self.dense is None else ACTIVATIONS["tanh"](self.dense(x))


@dataclass(frozen=True, eq=False)
class TrunkOutput:
    """Hidden states of a batch; with them the requested layers (0 is the embeddings) and the memory, if requested.

    A recurrent decoder adds the weights of its attention to the source.
    """

    hidden: Tensor  # [T, dim], or [n, dim] for the rows of the inputs
    layers: dict[int, Tensor]
    memory: Any = None
    source_attention: Tensor | None = None  # [T, longest source]


derived: Any = property  # for one-line properties: `dim = derived(lambda self: self.embeddings.dim)`


class TrunkConfig(Config, ABC):
    """Base of the configs of all trunks: sizes, supported inputs, cost; a subclass is a frozen dataclass."""

    # fields or properties of every subclass
    embeddings: Any
    pooler: PoolerConfig
    init: InitConfig

    @property
    @abstractmethod
    def dim(self) -> int:
        """Size of the hidden states."""

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """Number of layers above the embeddings."""

    @property
    @abstractmethod
    def causal(self) -> bool:
        """Whether a state depends only on its own token and those before it."""

    # what most trunks lack; a subclass overrides some
    num_blocks: int = 0  # blocks with their own weights
    num_heads: int = 0  # attention heads
    num_segments: int = 0  # segment ids; 0 if the trunk takes no segments
    has_attention: bool = False  # whether `attention_terms` yields anything
    has_source: bool = False  # whether it encodes a source and decodes a target
    has_query_stream: bool = False  # whether it has a second stream, whose queries do not see their own token
    is_hybrid: bool = False  # whether the layout of a batch says if it is read left to right
    has_features: bool = False  # whether its tokens index a store of precomputed vectors
    has_directions: bool = False  # whether a layer has a forward and a backward half, which saw one side of the text
    has_memory: bool = False  # whether it can process a sequence in chunks, each with memory of the last
    has_bounded_memory: bool = False  # whether its memory has a fixed size
    supports_static_shape: bool = False  # whether batches filled up to one shape compile to one graph
    supports_static_cache: bool = False  # whether its memory is the keys and values of all tokens
    depends_on_lengths: bool = True  # whether kernels on batches without a static shape depend on their lengths
    matmul_params: int = 0  # number of matrix weights that a token is multiplied with

    @property
    def shares_token_embeddings(self) -> bool:
        """Whether its token embeddings are passed at each call."""
        return getattr(self.embeddings, "tied_to_encoder", False)

    def count_flops(self, lengths: Sequence[int], source_lengths: Sequence[int] = ()) -> int:
        """Floating-point operations of a forward and backward pass over sequences of these lengths."""
        return 6 * self.matmul_params * sum(lengths)

    @abstractmethod
    def build(self) -> Trunk:
        """Create the module."""

    def omit_unsupported(self, inputs: Inputs) -> Inputs:
        """Drop segments if the trunk has none: for collation, which makes them for every trunk."""
        return inputs if inputs.segments is None or self.num_segments else replace(inputs, segments=None)


class Trunk(nn.Module, ABC):
    """A network from packed tokens to hidden states: embeddings, layers, and a pooler for one vector per sequence."""

    embeddings: Any
    pooler: Pooler
    is_differentiable = True  # whether gradients and attention weights can be computed
    supports_rows = False  # whether its last layer can be computed for some tokens only
    num_graph_parameters = 0  # of a graph that another program runs
    gradient_checkpointing = False  # whether training stores only the inputs of layers and recomputes the rest

    def __init__(self, config: Any):
        super().__init__()
        self.config = config

    def set_gradient_checkpointing(self, value: bool) -> None:
        """Set `gradient_checkpointing` of this trunk and of the trunks in it."""
        for module in self.modules():
            if isinstance(module, Trunk):
                module.gradient_checkpointing = value

    def forward(
        self, inputs: Inputs, *, memory: Any = None, layers: Iterable[int] = (), return_memory: bool = False
    ) -> TrunkOutput:
        """Compute the hidden states of a batch, or of its next chunk after `memory`.

        With `return_memory`, the output holds the memory for the next chunk. `layers` are the layers to return, 0 for
        the embeddings. An input that the trunk does not use is an error, raised outside compiled code.
        """
        layers = frozenset(layers)
        if not torch.compiler.is_compiling():
            self.check(inputs, memory, layers, return_memory)
        return self._forward(inputs, memory, layers, return_memory)

    @abstractmethod
    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput: ...

    def check(self, inputs: Inputs, memory: Any = None, layers: Any = (), return_memory: bool = False) -> None:
        """Raise if the trunk does not support one of these arguments; no tensor is read."""
        config = self.config
        unsupported = {
            "layers": bool(layers) and config.has_features and not config.has_directions,
            "segments": inputs.segments is not None and not config.num_segments,
            "a source": inputs.source is not None and not config.has_source,
            "a query stream": inputs.query_stream is not None and not config.has_query_stream,
            "reading left to right": inputs.layout.causal and not (config.is_hybrid or config.causal),
            "a feature store": inputs.features is not None and not config.has_features,
            "token embeddings": inputs.token_embeddings is not None and not config.shares_token_embeddings,
            "rows": inputs.rows is not None and not self.supports_rows,
            "rows and all states of the last layer": inputs.rows is not None and config.num_layers in layers,
            "memory": (memory is not None or return_memory) and not config.has_memory,
        }
        if names := [name for name, is_unsupported in unsupported.items() if is_unsupported]:
            raise UnsupportedError(f"{type(self).__name__} with this config does not support {names[0]}")
        if config.shares_token_embeddings and inputs.token_embeddings is None:
            raise UnsupportedError(f"{type(self).__name__} has no token embeddings of its own: pass those to share")
        if invalid := sorted(set(layers) - set(range(config.num_layers + 1))):
            raise UnsupportedError(f"layer {invalid[0]} does not exist: the trunk has layers 0 to {config.num_layers}")

    def attention_terms(self, inputs: Inputs, memory: Any = None) -> Iterator[tuple[str, AttentionTerms]]:
        """Yield what each attention layer computes for a single sequence, in the order of computation.

        The name of a layer is `self` or `cross`; in an encoder-decoder `encoder`, `decoder` or `cross`. Keys in memory
        come before those of the sequence.
        """
        return iter(())

    def pool(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        """Pool the states of each sequence into one vector, [slots, dim]."""
        return self.pooler(hidden, layout)

    @property
    def token_embeddings(self) -> Any:
        """The token embeddings [vocab, dim] that tied heads share; None if there are none."""
        return None if self.embeddings is None else self.embeddings.token_embeddings

    def layer_modules(self) -> Iterable[nn.Module]:
        """Modules from input to output, one per layer."""
        return self.children()

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Parameters of `layer_modules`, for freezing and layer-wise learning rates; shared ones are in the first."""
        groups: list[list[nn.Parameter]] = []
        assigned_ids: set[int] = set()
        for module in self.layer_modules():
            groups.append([p for p in module.parameters() if id(p) not in assigned_ids])
            assigned_ids.update(map(id, groups[-1]))
        return [group for group in groups if group]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        """Weight matrices of the hidden layers and the number of matrices fused in each: what Muon orthogonalizes."""
        return []

    def initialize(self, generator: torch.Generator | None = None) -> None:
        """Draw the initial weights."""
        self.config.init.apply(self, 2 * self.config.num_layers, generator)


def forward_chunked(trunk: Trunk, inputs: Inputs, chunk_size: int, grad_tokens: int = 0) -> Tensor:
    """Compute the hidden states [T, dim] by processing `chunk_size` tokens of each sequence at a time.

    A backward trunk starts at the end. Gradients stop at chunk borders, and only chunks that contain one of the last
    `grad_tokens` tokens of a sequence, in the order of processing, have gradients (0: all chunks). So texts of any
    length can be trained on in bounded memory, while a head may pool over all of them (Howard and Ruder 2018, §3.3,
    BPT3C). Without gradients the result equals that of one forward pass.
    """
    tokens, segments, device = inputs.tokens, inputs.segments, inputs.tokens.device
    is_backward = getattr(trunk.config, "direction", "") == "backward"
    lengths = np.array(inputs.layout.lengths)
    starts, grad_tokens = np.cumsum(lengths) - lengths, grad_tokens or inputs.layout.num_tokens
    hidden_chunks, order, memory = [], [], None
    previous_alive = np.arange(len(lengths))  # the sequences in memory
    for offset in range(0, int(lengths.max(initial=0)), chunk_size):
        alive = np.flatnonzero(lengths > offset)
        if memory is not None and len(alive) < len(previous_alive):
            memory = memory.select(np.searchsorted(previous_alive, alive).tolist())
        previous_alive, ends = alive, np.minimum(lengths[alive], offset + chunk_size)
        chunk_lengths, needs_grad = ends - offset, ends > lengths[alive] - grad_tokens
        first_rows = starts[alive] + (lengths[alive] - ends if is_backward else offset)
        order += [np.arange(first, first + length) for first, length in zip(first_rows, chunk_lengths)]
        index = torch.from_numpy(np.concatenate(order[-len(alive) :])).to(device)
        chunk_layout = PackedLayout.from_lengths(chunk_lengths, device=device)
        chunk_segments = None if segments is None else segments.index_select(0, index)
        chunk = Inputs(tokens.index_select(0, index), chunk_layout, chunk_segments)
        with torch.set_grad_enabled(torch.is_grad_enabled() and bool(needs_grad.any())):
            output = trunk(chunk, memory=memory, return_memory=True)
        memory, hidden = output.memory.detach(), output.hidden
        if not needs_grad.all():
            mask = torch.from_numpy(np.repeat(needs_grad, chunk_lengths)).to(device)
            hidden = torch.where(mask[:, None], hidden, hidden.detach())
        hidden_chunks.append(hidden)
    inverse_order = torch.from_numpy(np.argsort(np.concatenate(order))).to(device)
    return torch.cat(hidden_chunks).index_select(0, inverse_order)
