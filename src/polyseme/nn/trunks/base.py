"""The interface of all trunks: what their configs state, what they take and what they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import UnsupportedError
from polyseme.nn.init import InitConfig
from polyseme.nn.inputs import Inputs
from polyseme.nn.layers.feedforward import ACTIVATIONS
from polyseme.nn.packing import PackedLayout


@dataclass(frozen=True)
class PoolerConfig(Config):
    """Pooling of a sequence into one vector, optionally followed by a dense layer with tanh.

    "final_states" is for two directions side by side: the last state of the forward half and the first one of the
    backward half.
    """

    pooling: Literal["first", "last", "mean", "final_states"] = "first"
    dense: bool = False

    def build(self, dim: int) -> Pooler:
        return Pooler(self, dim)


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
            half = hidden.shape[-1] // 2
            forward = hidden.index_select(0, layout.last_indices)[:, :half]
            backward = hidden.index_select(0, layout.first_indices)[:, half:]
            x = torch.cat([forward, backward], dim=-1)
        else:
            x = hidden.index_select(0, layout.first_indices if pooling == "first" else layout.last_indices)
        return x if self.dense is None else ACTIVATIONS["tanh"](self.dense(x))


@dataclass(frozen=True, eq=False)
class TrunkOutput:
    """Hidden states of a batch; with them the requested layers (0 is the embeddings) and the memory, if requested."""

    hidden: Tensor  # [T, dim]
    layers: dict[int, Tensor]
    memory: Any = None


class TrunkConfig(Config, ABC):
    """Base of the configs of all trunks: sizes, supported inputs, cost.

    A subclass is a frozen dataclass with the fields or properties `embeddings`, `pooler` and `init`.
    """

    if TYPE_CHECKING:  # declared by subclasses; a property here would become the default value of their fields

        @property
        def embeddings(self) -> Any: ...

        @property
        def pooler(self) -> PoolerConfig: ...

        @property
        def init(self) -> InitConfig: ...

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

    @property
    def num_blocks(self) -> int:
        """Number of blocks with their own weights."""
        return 0

    @property
    def num_heads(self) -> int:
        """Number of attention heads."""
        return 0

    @property
    def num_segments(self) -> int:
        """Number of segment ids; 0 if the trunk takes no segments."""
        return 0

    @property
    def has_source(self) -> bool:
        """Whether it encodes a source and decodes a target."""
        return False

    @property
    def has_query_stream(self) -> bool:
        """Whether it has a second stream whose queries do not see their own token (XLNet)."""
        return False

    @property
    def has_features(self) -> bool:
        """Whether its tokens index a store of precomputed vectors."""
        return False

    @property
    def has_memory(self) -> bool:
        """Whether a sequence can be processed in chunks, each with the memory of those before it."""
        return False

    @property
    def has_bounded_memory(self) -> bool:
        """Whether its memory has a fixed size."""
        return False

    @property
    def supports_static_shape(self) -> bool:
        """Whether batches filled up to one shape compile to one graph."""
        return False

    @property
    def supports_static_cache(self) -> bool:
        """Whether its memory is the keys and values of all tokens, which fit preallocated buffers."""
        return False

    @property
    def depends_on_lengths(self) -> bool:
        """Whether its kernels depend on the sequence lengths, so that a CUDA graph is valid for these lengths only."""
        return True

    @property
    def shares_token_embeddings(self) -> bool:
        """Whether its token embeddings are passed at each call."""
        return False

    @property
    def matmul_params(self) -> int:
        """Number of matrix weights that a token is multiplied with."""
        return 0

    def count_flops(self, lengths: Sequence[int], source_lengths: Sequence[int] = ()) -> int:
        """Floating-point operations of a forward and backward pass over sequences of these lengths."""
        return 6 * self.matmul_params * sum(lengths)

    @abstractmethod
    def build(self) -> Trunk:
        """Create the module."""

    def omit_unsupported(self, inputs: Inputs) -> Inputs:
        """Drop segments if the trunk has none: for collation, which makes them for every trunk."""
        if inputs.segments is None or self.num_segments:
            return inputs
        return Inputs(inputs.tokens, inputs.layout, None, inputs.source, inputs.query_stream, inputs.features)


class Trunk(nn.Module, ABC):
    """A network from packed tokens to hidden states: embeddings, layers, and a pooler for one vector per sequence."""

    config: TrunkConfig
    embeddings: Any
    pooler: Pooler
    gradient_checkpointing = False

    def forward(
        self, inputs: Inputs, *, memory: Any = None, layers: Iterable[int] = (), return_memory: bool = False
    ) -> TrunkOutput:
        """Compute the hidden states of a batch, or of its next chunk after `memory`.

        With `return_memory`, the output holds the memory for the next chunk. `layers` are the layers to return, 0 for
        the embeddings. An input that the trunk does not use is an error, raised outside compiled code.
        """
        layers = frozenset(layers)
        if not torch.compiler.is_compiling():
            self.check(inputs, memory=memory, layers=layers, return_memory=return_memory)
        return self._forward(inputs, memory, layers, return_memory)

    @abstractmethod
    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput: ...

    def check(
        self, inputs: Inputs, *, memory: Any = None, layers: Iterable[int] = (), return_memory: bool = False
    ) -> None:
        """Raise if the trunk does not support one of these arguments; no tensor is read."""
        config = self.config
        unsupported = {
            "segments": inputs.segments is not None and not config.num_segments,
            "a source": inputs.source is not None and not config.has_source,
            "a query stream": inputs.query_stream is not None and not config.has_query_stream,
            "a feature store": inputs.features is not None and not config.has_features,
            "token embeddings": inputs.token_embeddings is not None and not config.shares_token_embeddings,
            "memory": (memory is not None or return_memory) and not config.has_memory,
        }
        if names := [name for name, is_unsupported in unsupported.items() if is_unsupported]:
            raise UnsupportedError(f"{type(self).__name__} with this config does not support {names[0]}")
        if config.shares_token_embeddings and inputs.token_embeddings is None:
            raise UnsupportedError(f"{type(self).__name__} has no token embeddings of its own: pass those to share")
        if invalid := [layer for layer in layers if not 0 <= layer <= config.num_layers]:
            raise UnsupportedError(f"layer {invalid[0]} does not exist: the trunk has layers 0 to {config.num_layers}")

    def pool(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        """Pool the states of each sequence into one vector, [slots, dim]."""
        return self.pooler(hidden, layout)

    @property
    def token_embeddings(self) -> Any:
        """The token embeddings [vocab, dim] that tied heads share; None if there are none."""
        return self.embeddings.token_embeddings

    @abstractmethod
    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output, one group per layer: for freezing and layer-wise learning rates."""

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        """Weight matrices of the hidden layers and the number of matrices fused in each: what Muon orthogonalizes."""
        return []

    @abstractmethod
    def initialize(self, generator: torch.Generator | None = None) -> None:
        """Draw the initial weights."""
