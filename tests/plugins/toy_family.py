"""A family with its own trunk, as a user would write it: a bag of the tokens so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from polyseme.families import hf
from polyseme.families.family import Family
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.packing import Inputs
from polyseme.nn.trunks.base import PoolerConfig, Trunk, TrunkConfig, TrunkOutput


@dataclass(frozen=True)
class BagTrunkConfig(TrunkConfig):
    """A state is the sum of the embeddings of its sequence up to its token, through a linear layer."""

    embeddings: EmbeddingsConfig
    pooler: PoolerConfig = field(default_factory=lambda: PoolerConfig("last"))
    init: InitConfig = field(default_factory=InitConfig)
    causal: ClassVar[bool] = True
    num_layers: ClassVar[int] = 1

    @property
    def dim(self) -> int:
        return self.embeddings.dim

    def build(self) -> BagTrunk:
        return BagTrunk(self)


class BagTrunk(Trunk):
    def __init__(self, config: BagTrunkConfig):
        super().__init__(config)
        self.embeddings = config.embeddings.build()
        self.linear = nn.Linear(config.dim, config.dim)
        self.pooler = config.pooler.build(config.dim)

    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput:
        layout, x = inputs.layout, self.embeddings(inputs)
        sums = torch.cat([sequence.cumsum(0) for sequence in x.split(list(layout.lengths))])
        hidden = torch.tanh(self.linear(sums))
        return TrunkOutput(hidden, {depth: each for depth, each in enumerate((x, hidden)) if depth in layers})

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return [list(self.embeddings.parameters()), list(self.linear.parameters())]

    def initialize(self, generator: torch.Generator | None = None) -> None:
        self.config.init.apply(self, 1, generator)


def trunk_config(dim: int = 16, vocab_size: int = 100, max_len: int = 64) -> BagTrunkConfig:
    return BagTrunkConfig(EmbeddingsConfig(vocab_size, dim, max_len, position_embedding_type="none"))


def pretraining_heads(trunk: BagTrunkConfig) -> dict[str, HeadConfig]:
    return {"next": LMHeadConfig(trunk.embeddings.vocab_size)}


HF_CONFIG = hf.ConfigTable("bag", trunk_config, hf.required("dim", "vocab_size"))

BAG = Family(
    name="bag",
    paper="none",
    tokenizer="wordpiece",
    objective="causal LM",
    trunk_config=trunk_config,
    sizes={},
    pretraining_heads=pretraining_heads,
    hf_config=HF_CONFIG,
    architectures=hf.architectures("Bag", LMHeadModel=("next",)),
    base_model_prefix="",
    head_weight_maps={"next": ()},
    config_types=(BagTrunkConfig,),
)
