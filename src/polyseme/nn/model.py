"""A model is one trunk and named heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.heads.crf import Chains, Crf
from polyseme.nn.heads.glove import Cells
from polyseme.nn.heads.standard import HeadSpec
from polyseme.nn.heads.word2vec import Found, Stream
from polyseme.nn.packing import Layout
from polyseme.nn.sparse import RowGradient
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderSpec
from polyseme.nn.trunks.feature_network import OverSpec
from polyseme.nn.trunks.lookup import LookupSpec
from polyseme.nn.trunks.recurrent import RecurrentSpec
from polyseme.nn.trunks.transformer import TransformerSpec
from polyseme.nn.trunks.window import WindowSpec

TrunkSpec = TransformerSpec | EncoderDecoderSpec | RecurrentSpec | WindowSpec | LookupSpec | OverSpec

Near = Stream | Cells  # what is learnt from by rows: words near each other, or counts of them


@dataclass(frozen=True)
class ModelSpec(Spec):
    family: str
    trunk: TrunkSpec
    heads: dict[str, HeadSpec] = field(default_factory=dict)

    @property
    def transformer(self) -> TransformerSpec:
        """The trunk of a model whose trunk is a Transformer; of two stacks, the first."""
        trunk = self.trunk.encoder if isinstance(self.trunk, EncoderDecoderSpec) else self.trunk
        if not isinstance(trunk, TransformerSpec):
            raise UserError(f"{self.family} is no Transformer: it has no blocks and no attention")
        return trunk

    def build(self, seed: int | None = None) -> Model:
        """The module, with weights drawn from `seed` (or torch's own generator)."""
        model = Model(self)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        model.initialise(generator)
        return model


class _Unfilled(TorchFunctionMode):
    """Leaves new tensors as they are: to fill those of the meta device torch calls its compiler, and takes long."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def outline(spec: ModelSpec) -> Model:
    """The module on the meta device: names and shapes, without memory and values."""
    with torch.device("meta"), _Unfilled():
        return Model(spec)


class Model(nn.Module):
    """Parameters are named `trunk.*` and `heads.<name>.*`."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.spec = spec
        self.trunk = spec.trunk.build()
        self.heads = nn.ModuleDict({name: head.build(spec.trunk.dim) for name, head in spec.heads.items()})
        for name, head in spec.heads.items():
            if other := getattr(head, "shares", ""):
                self.heads[name].share(self.heads[other])  # type: ignore[operator]

    def initialise(self, generator: torch.Generator | None = None) -> None:
        self.trunk.initialise(generator)
        for head in self.heads.values():
            self.spec.trunk.init.apply(head, 1, generator)

    def predict(self, head: str, last: Tensor, layout: Layout, rows: Tensor | None = None) -> Tensor:
        """A head's scores from the trunk's last states: of every token or sequence, or of the `rows` asked for."""
        return self.heads[head](self._states(head, last, layout, rows), self.trunk.table)

    def answers(self, head: str, last: Tensor, layout: Layout, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of `rows`, whose softmax are probabilities, and the best answers, which a CRF finds together."""
        scores, crf = self.predict(head, last, layout, rows).float(), self.heads[head].crf
        if not isinstance(crf, Crf):
            return scores, scores.argmax(-1)
        chains = Chains.of(layout.counts(rows), scores.device)
        return crf.log_marginals(scores, chains), crf.best(scores, chains)

    def loss(
        self,
        head: str,
        last: Tensor,
        layout: Layout,
        rows: Tensor,
        values: Tensor,
        ignored: int,
        smoothing: float = 0.0,
    ) -> Tensor:
        """The summed loss of a head's predictions of `rows`: which loss that is, the head knows."""
        crf = self.heads[head].crf
        if isinstance(crf, Crf):
            chains = Chains.of(layout.counts(rows), last.device)
            return crf.loss(self.predict(head, last, layout, rows).float(), chains, values, ignored)
        found: Tensor = self.heads[head].loss(  # type: ignore[operator]
            self._states(head, last, layout, rows), self.trunk.table, values, ignored, smoothing
        )
        return found

    def know(self, words: Sequence[str], specials: Iterable[int] = (), counts: np.ndarray | None = None) -> None:
        """Tell the parts that depend on them which word each id is and, before training, how often it occurs."""
        for part in self.modules():
            if hasattr(part, "know") and part is not self:
                part.know(words, specials, counts)  # type: ignore[operator]

    @torch.no_grad()
    def row_gradients(self, head: str, near: Near, loss: bool = False) -> tuple[Tensor | None, list[RowGradient]]:
        """The summed loss of a head that learns by rows, if asked for, and the gradients of all rows it touches."""
        trunk: Any = self.trunk
        found: Found = self.heads[head].learn(near, trunk.look_up(near.tokens), loss)  # type: ignore[operator]
        return found.loss, [*trunk.spread(near.tokens, found.inputs, found.terms), *found.own]

    def _states(self, head: str, last: Tensor, layout: Layout, rows: Tensor | None) -> Tensor:
        found: Tensor = self.heads[head].states(last, layout, rows, self.trunk.pool)  # type: ignore[operator]
        return found

    def settled(self) -> Model:
        """The model as it is kept: a head that says so goes into the table of token vectors and is no more."""
        kept = {name: head for name, head in self.spec.heads.items() if not hasattr(self.heads[name], "settle")}
        if len(kept) == len(self.spec.heads):
            return self
        model = self.spec.replace(heads=kept).build(0)
        model.load_state_dict({n: t.detach().clone() for n, t in self.state_dict().items() if n in model.state_dict()})
        for name in self.spec.heads.keys() - kept.keys():
            self.heads[name].settle(model.trunk.table)  # type: ignore[operator]
        return model

    def only(self, head: str, name: str) -> Model:
        """The same trunk with one of its heads alone, under another name; they share their weights."""
        found = Model.__new__(Model)
        nn.Module.__init__(found)
        found.spec = self.spec.replace(heads={name: self.spec.heads[head]})
        found.trunk, found.heads = self.trunk, nn.ModuleDict({name: self.heads[head]})
        return found.train(self.training)

    def grown(self, vocab_size: int, seed: int | None = None) -> Model:
        """The same model with room for more tokens, whose vectors are new."""
        spec = self.spec
        embeddings = spec.trunk.embeddings.replace(vocab_size=vocab_size)
        heads = {
            name: head.replace(vocab_size=vocab_size) if hasattr(head, "vocab_size") else head
            for name, head in spec.heads.items()
        }
        model = spec.replace(trunk=spec.trunk.replace(embeddings=embeddings), heads=heads).build(seed)
        new = model.state_dict()
        for name, tensor in self.state_dict().items():
            new[name][tuple(map(slice, tensor.shape))] = tensor
        return model.train(self.training)
