"""The bottom of a task model over frozen features: vectors that lie in a store, mixed, beside what it learns itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.errors import UserError
from polyseme.parts.characters import Characters, CharactersSpec
from polyseme.parts.spec import Spec, in_range

Where = Literal["input", "output", "both"]


@dataclass(eq=False)
class Store:
    """What is known of every word that stands anywhere in some data; a token is the number of its place there.

    Copies of a model look into the same store.
    """

    features: list[np.ndarray]  # float32 [places, layers, dim] each, end to end, in memory or mapped from a file
    words: np.ndarray  # int64 [places], the number of the word that stands there
    spellings: np.ndarray  # int16 [words, width]
    known: np.ndarray  # int64 [words], its number in the model's own vocabulary, 0 if it is not in there

    def vectors(self, places: np.ndarray) -> np.ndarray:
        """The stored vectors of these places, [places, layers, dim]."""
        found = np.empty((len(places), *self.features[0].shape[1:]), dtype=np.float32)
        begin = 0
        for part in self.features:
            inside = (places >= begin) & (places < begin + len(part))
            found[inside] = part[places[inside] - begin]
            begin += len(part)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self


class ScalarMix(nn.Module):
    """γ Σ softmax(s)_j h_j over layers h_j (Peters et al. 2018, §3.2, equation 1)."""

    def __init__(self, num_layers: int):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def zeros(self) -> list[nn.Parameter]:
        return [self.scores]

    def ones(self) -> list[nn.Parameter]:
        return [self.gamma]

    def forward(self, layers: Tensor) -> Tensor:
        """[rows, layers, dim] to [rows, dim]."""
        return self.gamma * torch.einsum("l,tld->td", self.scores.softmax(0), layers)


@dataclass(frozen=True)
class FeaturesSpec(Spec):
    """`num_layers` stored vectors of `dim` a word, mixed with learned weights or set side by side (`join`); 0: none.

    A word also has a vector of its own (`word_dim`, for `vocab_size` words, the first for all others) and one from its
    characters. `where` the features enter: with the words, behind the network (Peters et al. 2018, §5.2), or both, then
    each with its own mix. With `mark_dim`, words that are marked and those that are not have a vector each, as the
    predicate whose arguments are sought (He et al. 2017, §2.1).
    """

    num_layers: int
    dim: int
    join: Literal["mix", "side"] = "mix"
    where: Where = "input"
    vocab_size: int = 1
    word_dim: int = 0
    characters: CharactersSpec | None = None
    dropout: float = 0.0
    mark_dim: int = 0
    max_len: ClassVar[int] = 1 << 20

    def __post_init__(self) -> None:
        in_range("dropout", self.dropout, 0, 1)
        in_range("vocab_size", self.vocab_size, 1, math.inf)
        if not self.entering:
            raise UserError("a task model needs features at its input, vectors of words, or their characters")

    @property
    def stored(self) -> int:
        """How long what is made of a word's stored vectors is."""
        return self.dim * (self.num_layers if self.join == "side" else min(self.num_layers, 1))

    @property
    def entering(self) -> int:
        """How long the vector of a word is at the input."""
        own = self.word_dim + self.mark_dim + (self.characters.dim if self.characters else 0)
        return own + (self.stored if self.where != "output" else 0)

    @property
    def behind(self) -> int:
        """How long what joins behind the network is."""
        return self.stored if self.where != "input" else 0

    def build(self) -> Features:
        return Features(self)


class Features(nn.Module):
    """Looks up its `store`, which whoever has data puts there."""

    def __init__(self, spec: FeaturesSpec):
        super().__init__()
        self.spec = spec
        self.store: Store | None = None
        mixed = spec.join == "mix" and spec.num_layers > 0
        self.mixes = nn.ModuleDict(
            {place: ScalarMix(spec.num_layers) for place in ("input", "output") if spec.where in (place, "both")}
            if mixed
            else {}
        )
        self.words = nn.Embedding(spec.vocab_size, spec.word_dim) if spec.word_dim else None
        self.characters: Characters | None = spec.characters.build() if spec.characters else None
        self.marks = nn.Embedding(2, spec.mark_dim) if spec.mark_dim else None
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, tokens: Tensor, marked: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """What enters the network, and what joins behind it, if anything does."""
        assert self.store is not None, "a task model over features was given none"
        spec, like = self.spec, next(self.parameters(), torch.empty(0))
        places = tokens.cpu().numpy()
        layers = torch.from_numpy(self.store.vectors(places)).to(tokens.device, like.dtype)
        numbers, back = np.unique(self.store.words[places], return_inverse=True)
        found = [self._joined(layers, "input")] if spec.where != "output" and spec.num_layers else []
        place = torch.from_numpy(back.reshape(-1)).to(tokens.device)
        if self.words is not None:
            known = torch.from_numpy(self.store.known[numbers]).to(tokens.device)
            found.append(F.embedding(known, self.words.weight).index_select(0, place))
        if self.characters is not None:
            spelled = torch.from_numpy(self.store.spellings[numbers]).to(tokens.device).long()
            found.append(self.characters.read(spelled).index_select(0, place))
        if self.marks is not None:
            found.append(F.embedding(torch.zeros_like(tokens) if marked is None else marked, self.marks.weight))
        behind = self.dropout(self._joined(layers, "output")) if spec.behind else None
        return self.dropout(torch.cat(found, dim=-1)), behind

    def _joined(self, layers: Tensor, place: str) -> Tensor:
        return self.mixes[place](layers) if self.mixes else layers.flatten(1)

    def penalty(self) -> Tensor:
        """‖s‖² of the mixes: what λ multiplies (Peters et al. 2018, §3.3)."""
        return sum((m.scores.square().sum() for m in self.mixes.values()), torch.zeros(()))  # type: ignore[operator]
