"""The inputs of a trunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.nn.tree import tree_map

if TYPE_CHECKING:
    from polyseme.nn.attention.relative import QueryStream
    from polyseme.nn.layers.frozen_features import FeatureStore


@dataclass(frozen=True, eq=False)
class Inputs:
    """A packed batch of token ids, and what some trunks take with it.

    `Trunk.forward` raises for a field that the trunk does not use.
    """

    tokens: Tensor  # int64 [T]
    layout: PackedLayout
    segments: Tensor | None = None  # int64 [T]
    source: EncoderInput | None = None  # one source for each sequence: token ids, or encoder states for a decoder
    query_stream: QueryStream | None = None  # its states follow those of the tokens (XLNet)
    features: FeatureStore | None = None  # vectors that the tokens index
    token_embeddings: Tensor | None = None  # [vocab, dim], where the table belongs to another trunk

    def to(self, device: str | torch.device) -> Self:
        """Copy all tensors to a device."""
        return tree_map(self, lambda tensor: tensor.to(device, non_blocking=True))
