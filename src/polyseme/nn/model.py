"""A model is one trunk and named heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from polyseme.config import Config
from polyseme.errors import UnsupportedError
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.coreference import CoreferenceHeadConfig
from polyseme.nn.heads.crf import CRF, ChainLayout
from polyseme.nn.heads.glove import CooccurrenceBatch, GloVeHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.heads.span_boundary import SpanBoundaryHeadConfig
from polyseme.nn.heads.word2vec import (
    HierarchicalSoftmaxHeadConfig,
    NegativeSamplingHeadConfig,
    SparseLossOutput,
    WindowBatch,
)
from polyseme.nn.layers.adaptive import AdaptiveSoftmaxHeadConfig
from polyseme.nn.packing import PackedLayout
from polyseme.nn.sparse import SparseRowGrad
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.feature_network import FeatureNetworkConfig
from polyseme.nn.trunks.lookup import StaticEmbeddingTrunkConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig
from polyseme.nn.trunks.window import FeedForwardLMConfig

SparseBatch = WindowBatch | CooccurrenceBatch  # what is learnt from by rows: words near each other, or counts of them


@dataclass(frozen=True)
class ModelConfig(Config):
    """A family's trunk and named heads."""

    family: str
    trunk: TrunkConfig
    heads: dict[str, HeadConfig] = field(default_factory=dict)

    config_types: ClassVar[tuple[type[Config], ...]] = (
        *(TransformerConfig, EncoderDecoderConfig, RecurrentTrunkConfig, FeedForwardLMConfig),
        *(StaticEmbeddingTrunkConfig, FeatureNetworkConfig),
        *(LMHeadConfig, ClassificationHeadConfig, SpanBoundaryHeadConfig, AdaptiveSoftmaxHeadConfig),
        *(NegativeSamplingHeadConfig, HierarchicalSoftmaxHeadConfig, GloVeHeadConfig, CoreferenceHeadConfig),
    )

    @property
    def transformer(self) -> TransformerConfig:
        """The trunk of a model whose trunk is a Transformer; of two stacks, the first."""
        trunk = self.trunk.encoder if isinstance(self.trunk, EncoderDecoderConfig) else self.trunk
        if not isinstance(trunk, TransformerConfig):
            raise UnsupportedError(f"{self.family} is no Transformer: it has no blocks and no attention")
        return trunk

    def build(self, seed: int | None = None) -> Model:
        """The module, with weights drawn from `seed` (or torch's own generator)."""
        model = Model(self)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        model.initialize(generator)
        return model


class _SkipInit(TorchFunctionMode):
    """Leaves new tensors as they are: to fill those of the meta device torch calls its compiler, and takes long."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def build_meta(config: ModelConfig) -> Model:
    """The module on the meta device: names and shapes, without memory and values."""
    with torch.device("meta"), _SkipInit():
        return Model(config)


class Model(nn.Module):
    """Parameters are named `trunk.*` and `heads.<name>.*`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.trunk = config.trunk.build()
        self.heads = nn.ModuleDict({name: head.build(config.trunk.dim) for name, head in config.heads.items()})
        for name, head in config.heads.items():
            if tied_head := getattr(head, "tied_to", ""):
                self.heads[name].tie_weights(self.heads[tied_head])  # type: ignore[operator]

    def initialize(self, generator: torch.Generator | None = None) -> None:
        self.trunk.initialize(generator)
        for head in self.heads.values():
            self.config.trunk.init.apply(head, 1, generator)

    def predict(self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor | None = None) -> Tensor:
        """A head's scores from the trunk's last states: of every token or sequence, or of the `rows` asked for."""
        return self.heads[head](self._head_states(head, hidden, layout, rows), self.trunk.token_embeddings)

    def predict_labels(self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of `rows`, whose softmax are probabilities, and the best answers, which a CRF finds together."""
        scores, crf = self.predict(head, hidden, layout, rows).float(), self.heads[head].crf
        if not isinstance(crf, CRF):
            return scores, scores.argmax(-1)
        chains = ChainLayout.from_lengths(layout.count_per_sequence(rows), scores.device)
        return crf.log_marginals(scores, chains), crf.decode(scores, chains)

    def loss(
        self,
        head: str,
        hidden: Tensor,
        layout: PackedLayout,
        rows: Tensor,
        labels: Tensor,
        ignore_index: int,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """The summed loss of a head's predictions of `rows`: which loss that is, the head knows."""
        crf = self.heads[head].crf
        if isinstance(crf, CRF):
            chains = ChainLayout.from_lengths(layout.count_per_sequence(rows), hidden.device)
            return crf.loss(self.predict(head, hidden, layout, rows).float(), chains, labels, ignore_index)
        loss: Tensor = self.heads[head].loss(  # type: ignore[operator]
            self._head_states(head, hidden, layout, rows),
            self.trunk.token_embeddings,
            labels,
            ignore_index,
            label_smoothing,
        )
        return loss

    def set_vocabulary(
        self, words: Sequence[str], special_ids: Iterable[int] = (), counts: np.ndarray | None = None
    ) -> None:
        """Tell the parts that depend on them which word each id is and, before training, how often it occurs."""
        for module in self.modules():
            if hasattr(module, "set_vocabulary") and module is not self:
                module.set_vocabulary(words, special_ids, counts)  # type: ignore[operator]

    @torch.no_grad()
    def compute_sparse_grads(
        self, head: str, batch: SparseBatch, with_loss: bool = False
    ) -> tuple[Tensor | None, list[SparseRowGrad]]:
        """The summed loss of a head that learns by rows, if asked for, and the gradients of all rows it touches."""
        trunk: Any = self.trunk
        output: SparseLossOutput = self.heads[head].loss_and_row_grads(batch, trunk.look_up(batch.tokens), with_loss)  # type: ignore[operator]
        return output.loss, [*trunk.scatter_grad(batch.tokens, output.input_grad, output.counts), *output.head_grads]

    def _head_states(self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor | None) -> Tensor:
        states: Tensor = self.heads[head].select_states(hidden, layout, rows, self.trunk.pool)  # type: ignore[operator]
        return states

    def finalize(self) -> Model:
        """The model as it is kept: a head that says so goes into the table of token vectors and is no more."""
        head_configs = {
            name: head for name, head in self.config.heads.items() if not hasattr(self.heads[name], "merge_into")
        }
        if len(head_configs) == len(self.config.heads):
            return self
        model = self.config.replace(heads=head_configs).build(0)
        model.load_state_dict({n: t.detach().clone() for n, t in self.state_dict().items() if n in model.state_dict()})
        for name in self.config.heads.keys() - head_configs.keys():
            self.heads[name].merge_into(model.trunk.token_embeddings)  # type: ignore[operator]
        return model

    def with_single_head(self, head: str, name: str) -> Model:
        """The same trunk with one of its heads alone, under another name; they share their weights."""
        model = Model.__new__(Model)
        nn.Module.__init__(model)
        model.config = self.config.replace(heads={name: self.config.heads[head]})
        model.trunk, model.heads = self.trunk, nn.ModuleDict({name: self.heads[head]})
        return model.train(self.training)

    def resize_vocab(self, vocab_size: int, seed: int | None = None) -> Model:
        """The same model with room for more tokens, whose vectors are new."""
        config = self.config
        embeddings = config.trunk.embeddings.replace(vocab_size=vocab_size)
        heads = {
            name: head.replace(vocab_size=vocab_size) if hasattr(head, "vocab_size") else head
            for name, head in config.heads.items()
        }
        model = config.replace(trunk=config.trunk.replace(embeddings=embeddings), heads=heads).build(seed)
        state_dict = model.state_dict()
        for name, tensor in self.state_dict().items():
            state_dict[name][tuple(map(slice, tensor.shape))] = tensor
        return model.train(self.training)
