"""A model: one trunk and named heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from polyseme.config import Config
from polyseme.errors import ConfigError, PolysemeError, UnsupportedError
from polyseme.nn.heads.base import IGNORE_INDEX, Head, HeadConfig, RowSelection
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.coreference import CoreferenceHeadConfig
from polyseme.nn.heads.crf import CRF, ChainLayout
from polyseme.nn.heads.cross_view import CrossViewHeadConfig
from polyseme.nn.heads.embedding import EmbeddingHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig, ShiftedLMHeadConfig, SpanBoundaryHeadConfig, VocabHead
from polyseme.nn.heads.word_vectors import (
    CooccurrenceBatch,
    GloVeHeadConfig,
    HierarchicalSoftmaxHeadConfig,
    NegativeSamplingHeadConfig,
    SparseLossOutput,
    WindowBatch,
)
from polyseme.nn.layers.adaptive import AdaptiveSoftmaxHeadConfig
from polyseme.nn.layers.embeddings import SparseRowGrad
from polyseme.nn.losses import LinearInputs
from polyseme.nn.packing import PackedLayout
from polyseme.nn.sizes import check_memory, check_sizes
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.feature_network import FeatureNetworkConfig
from polyseme.nn.trunks.image_text import ImageTextConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.nn.trunks.shallow import FeedForwardLMConfig, StaticEmbeddingTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig

MAX_ROW_SHARE = 0.5  # of the tokens, up to which the last layer is computed only for the rows that heads read
SparseBatch = WindowBatch | CooccurrenceBatch  # batches of heads with sparse gradients


@dataclass(frozen=True)
class ModelConfig(Config):
    """A family's trunk and named heads."""

    family: str
    trunk: TrunkConfig
    heads: dict[str, HeadConfig] = field(default_factory=dict)

    config_types: ClassVar[tuple[type[Config], ...]] = (
        *(TransformerConfig, EncoderDecoderConfig, RecurrentTrunkConfig, FeedForwardLMConfig),
        *(StaticEmbeddingTrunkConfig, FeatureNetworkConfig, ImageTextConfig),
        *(LMHeadConfig, ClassificationHeadConfig, SpanBoundaryHeadConfig, AdaptiveSoftmaxHeadConfig),
        *(NegativeSamplingHeadConfig, HierarchicalSoftmaxHeadConfig, GloVeHeadConfig, CoreferenceHeadConfig),
        *(EmbeddingHeadConfig, ShiftedLMHeadConfig, CrossViewHeadConfig),
    )

    @property
    def transformer(self) -> TransformerConfig:
        """The Transformer trunk; the encoder if there are two stacks."""
        trunk = self.trunk.encoder if isinstance(self.trunk, EncoderDecoderConfig) else self.trunk
        if not isinstance(trunk, TransformerConfig):
            raise UnsupportedError(f"{self.family} is not a Transformer: it has no blocks and no attention")
        return trunk

    def build(self, seed: int | None = None) -> Model:
        """Create the module, with weights drawn from `seed` (or torch's default generator)."""
        check_memory(sum(parameter.numel() for parameter in build_meta(self).parameters()))
        model = Model(self)
        model.initialize(None if seed is None else torch.Generator().manual_seed(seed))
        return model


class _SkipInit(TorchFunctionMode):
    """Skip the initialization of new tensors: on the meta device, torch would import its compiler for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def build_meta(config: ModelConfig) -> Model:
    """Create the module on the meta device: names and shapes without values. Raise `ConfigError` if there is none."""
    check_sizes(config.to_json())
    try:
        with torch.device("meta"), _SkipInit():
            return Model(config)
    except PolysemeError:
        raise
    except Exception as error:  # nothing but the config matters here
        raise ConfigError(f"no {config.family} model can be built from its config ({error})") from error


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
        """Draw the initial weights."""
        self.trunk.initialize(generator)
        for head in self.heads.values():
            self.config.trunk.init.apply(head, 1, generator)

    def select_rows(self, targets: Mapping[str, Tensor], layout: PackedLayout) -> dict[str, RowSelection] | None:
        """Return the rows of the last layer that heads read to predict their targets, by the name of the head.

        None if one of them may read any, if the trunk computes all, or if most are read.
        """
        if not self.trunk.supports_rows or not all(name in self.heads for name in targets):
            return None
        pooling, selections = self.config.trunk.pooler.pooling, {}
        for name, rows in targets.items():
            selection = cast(Head, self.heads[name]).select_rows(layout, rows, pooling)
            if selection is None:
                return None
            selections[name] = selection
        num_rows = sum(len(each.state_rows) for each in selections.values())
        return selections if 0 < num_rows <= MAX_ROW_SHARE * layout.num_tokens else None

    def predict(self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor | None = None) -> Tensor:
        """Return a head's scores from the trunk's hidden states, for every token or sequence or for `rows`."""
        return self.heads[head](*self._head_inputs(head, hidden, layout, rows))

    def linear_inputs(self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor) -> LinearInputs | None:
        """Return the states, the output matrix and the bias of a head over the vocabulary; None for other heads."""
        module = self.heads[head]
        if not isinstance(module, VocabHead):
            return None
        return module.linear_inputs(*self._head_inputs(head, hidden, layout, rows))

    def predict_labels(self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of `rows` and the best labels, which a CRF decodes together."""
        scores, crf = self.predict(head, hidden, layout, rows).float(), self.heads[head].crf
        if not isinstance(crf, CRF):
            return scores, scores.argmax(-1)
        chains = ChainLayout.from_lengths(layout.count_per_sequence(rows), scores.device)
        return crf.log_marginals(scores, chains), crf.decode(scores, chains)

    def label_log_probs(
        self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Return the log-probability of each label at a temperature, [n, labels].

        With a CRF they are those of each word given its sentence (Wang et al. 2020, §3.3).
        """
        scores, crf = self.predict(head, hidden, layout, rows), self.heads[head].crf
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if not isinstance(crf, CRF):
            return (scores / temperature).log_softmax(-1)
        chains = ChainLayout.from_lengths(layout.count_per_sequence(rows), scores.device)
        return crf.log_marginals(scores, chains, temperature)

    def without_heads(self, names: Iterable[str]) -> Model:
        """Return a model with the same trunk and heads, except some; weights are shared."""
        model, dropped = Model.__new__(Model), set(names)
        nn.Module.__init__(model)
        heads = {name: config for name, config in self.config.heads.items() if name not in dropped}
        model.config = self.config.replace(heads=heads)
        model.trunk, model.heads = self.trunk, nn.ModuleDict({name: self.heads[name] for name in heads})
        return model.train(self.training)

    def loss(
        self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor, labels: Tensor, label_smoothing: float = 0
    ) -> Tensor:
        """Return the summed loss of a head's predictions of `rows`."""
        module: Any = self.heads[head]
        if isinstance(module.crf, CRF):
            chains = ChainLayout.from_lengths(layout.count_per_sequence(rows), hidden.device)
            return module.crf.loss(self.predict(head, hidden, layout, rows).float(), chains, labels, IGNORE_INDEX)
        return module.loss(*self._head_inputs(head, hidden, layout, rows), labels, label_smoothing)

    def set_vocabulary(
        self, words: Sequence[str], special_ids: Iterable[int] = (), counts: np.ndarray | None = None
    ) -> None:
        """Pass the word of each id and, before training, its count to the modules that depend on them."""
        for module in self.modules():
            if hasattr(module, "set_vocabulary") and module is not self:
                module.set_vocabulary(words, special_ids, counts)  # type: ignore[operator]

    @torch.no_grad()
    def compute_sparse_grads(
        self, head: str, batch: SparseBatch, with_loss: bool = False
    ) -> tuple[Tensor | None, list[SparseRowGrad]]:
        """Return the summed loss of a head with sparse gradients, if requested, and the gradients of all rows."""
        module, embeddings = cast(Any, self.heads[head]), self.trunk.embeddings
        output: SparseLossOutput = module.loss_and_row_grads(batch, embeddings.look_up(batch.tokens), with_loss)
        input_grads = embeddings.scatter_grad(batch.tokens, output.input_grad, output.counts)
        return output.loss, [*input_grads, *output.head_grads]

    def _head_inputs(self, head: str, hidden: Tensor, layout: PackedLayout, rows: Tensor | None) -> tuple[Any, Any]:
        """Return the states that a head reads, and the token embeddings that it may share."""
        module: Any = self.heads[head]
        return module.select_states(hidden, layout, rows, self.trunk.pool), self.trunk.token_embeddings

    def finalize(self) -> Model:
        """Return the model to save: heads with `merge_into` are merged into the token embeddings and removed."""
        merged_heads: dict[str, Any] = {name: head for name, head in self.heads.items() if hasattr(head, "merge_into")}
        if not merged_heads:
            return self
        heads = {name: head for name, head in self.config.heads.items() if name not in merged_heads}
        model = self.config.replace(heads=heads).build(0)
        model.load_state_dict({n: t.detach().clone() for n, t in self.state_dict().items() if n in model.state_dict()})
        for head in merged_heads.values():
            head.merge_into(model.trunk.token_embeddings)
        return model

    def with_single_head(self, head: str, name: str) -> Model:
        """Return a model with the same trunk and one of its heads under another name; weights are shared."""
        model = Model.__new__(Model)
        nn.Module.__init__(model)
        model.config = self.config.replace(heads={name: self.config.heads[head]})
        model.trunk, model.heads = self.trunk, nn.ModuleDict({name: self.heads[head]})
        return model.train(self.training)

    def resize_vocab(self, vocab_size: int, seed: int | None = None) -> Model:
        """Return a copy with a larger vocabulary; the vectors of new tokens are drawn from `seed`."""
        trunk, heads = self.config.trunk, dict(self.config.heads)
        trunk = trunk.replace(embeddings=trunk.embeddings.replace(vocab_size=vocab_size))
        heads |= {n: head.replace(vocab_size=vocab_size) for n, head in heads.items() if hasattr(head, "vocab_size")}
        model = self.config.replace(trunk=trunk, heads=heads).build(seed)
        state_dict = model.state_dict()
        for name, tensor in self.state_dict().items():
            state_dict[name][tuple(map(slice, tensor.shape))] = tensor
        return model.train(self.training)
