"""The bottom of a task model over frozen features: vectors that lie in a store, mixed, beside what it learns itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.layers.char_cnn import Characters, CharactersSpec

Where = Literal["input", "output", "both", "between"]
PLACES: dict[str, tuple[str, ...]] = {"both": ("input", "output")}  # where there is more than one
SHARE = 0.25  # of the free memory of a GPU, that vectors may take: several runs may share it
AT_ONCE = 65536  # places that are copied there together


@dataclass(eq=False)
class Store:
    """What is known of every word that stands anywhere in some data; a token is the number of its place there.

    Copies of a model look into the same store.
    """

    features: list[list[np.ndarray]]  # of each source, float32 [places, layers, dim] end to end, some mapped from files
    words: np.ndarray  # int64 [places], the number of the word that stands there
    spellings: np.ndarray  # int16 [words, width]
    known: (
        np.ndarray
    )  # int64 [words], its number in the model's own vocabulary, 0 if it has none; then those of `given`
    given: np.ndarray = field(
        default_factory=lambda: np.empty((0, 0), np.float32)
    )  # word vectors that stay as they are
    moved: dict[tuple[int, torch.device], Tensor | None] = field(default_factory=dict, repr=False)

    def vectors(self, source: int, tokens: Tensor, places: np.ndarray) -> Tensor:
        """The stored vectors of these tokens, [tokens, layers, dim]: from the GPU if all of the source fit there.

        Looked up on the host they cross the bus at every step, 12 KB a word for ELMo, behind a gather by one core.
        """
        key = source, tokens.device
        if key not in self.moved:
            self.moved[key] = self._move(*key)
        if (whole := self.moved[key]) is not None:
            return whole.index_select(0, tokens)
        parts = self.features[source]
        found = np.empty((len(places), *parts[0].shape[1:]), dtype=np.float32)
        begin = 0
        for part in parts:
            inside = (places >= begin) & (places < begin + len(part))
            found[inside] = part[places[inside] - begin]
            begin += len(part)
        return torch.from_numpy(found).to(tokens.device)

    def _move(self, source: int, device: torch.device) -> Tensor | None:
        parts = self.features[source]
        if not fits(device, sum(part.size for part in parts) * 4):
            return None
        found = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), device=device)
        begin = 0
        for part in parts:
            for low in range(0, len(part), AT_ONCE):
                some = torch.from_numpy(np.array(part[low : low + AT_ONCE]))
                found[begin + low : begin + low + len(some)].copy_(some)
            begin += len(part)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self


def fits(device: torch.device, size: int) -> bool:
    """Whether so many bytes may move to a device; on a CPU they are where they should be."""
    return device.type == "cuda" and size < SHARE * torch.cuda.mem_get_info(device)[0]


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
class SourceSpec(Spec):
    """`num_layers` stored vectors of `dim` a word, mixed with learned weights or set side by side (`join`)."""

    num_layers: int
    dim: int
    join: Literal["mix", "side"] = "mix"

    @property
    def size(self) -> int:
        """How long what is made of them is."""
        return self.dim * (self.num_layers if self.join == "side" else 1)


@dataclass(frozen=True)
class FeaturesSpec(Spec):
    """The stored vectors of each source, side by side, each source with its own mix.

    A word also has a vector of its own (`word_dim`, for `vocab_size` words, the first for all others) and one from its
    characters. `where` the features enter: with the words, behind the network (Peters et al. 2018, §5.2), both, then
    each with its own mix, or between its first two layers (Peters et al. 2017, §2.4). With `mark_dim`, words that are
    marked and those that are not have a vector each, as the predicate whose arguments are sought (He et al. 2017,
    §2.1).
    """

    sources: tuple[SourceSpec, ...] = ()
    where: Where = "input"
    vocab_size: int = 1
    word_dim: int = 0
    characters: CharactersSpec | None = None
    dropout: float = 0.0
    mark_dim: int = 0
    max_len: ClassVar[int] = 1 << 20

    def __post_init__(self) -> None:
        self.within(0, 1, "dropout")
        self.within(1, math.inf, "vocab_size")
        self.within(0, math.inf, "word_dim")
        if not self.entering:
            raise UserError("a task model needs features at its input, vectors of words, or their characters")

    @property
    def places(self) -> tuple[str, ...]:
        """Where features enter, one by one."""
        return PLACES.get(self.where, (self.where,)) if self.sources else ()

    @property
    def stored(self) -> int:
        """How long what is made of a word's stored vectors is."""
        return sum(source.size for source in self.sources)

    @property
    def entering(self) -> int:
        """How long the vector of a word is at the input."""
        own = self.word_dim + self.mark_dim + (self.characters.dim if self.characters else 0)
        return own + self.stored * ("input" in self.places)

    @property
    def between(self) -> int:
        """How long what joins between two layers of the network is."""
        return self.stored * ("between" in self.places)

    @property
    def behind(self) -> int:
        """How long what joins behind the network is."""
        return self.stored * ("output" in self.places)

    def build(self) -> Features:
        return Features(self)


class Features(nn.Module):
    """Looks up its `store`, which whoever has data puts there."""

    def __init__(self, spec: FeaturesSpec):
        super().__init__()
        self.spec = spec
        self.store: Store | None = None
        self.mixes = nn.ModuleDict(
            {
                _name(place, number): ScalarMix(source.num_layers)
                for place in spec.places
                for number, source in enumerate(spec.sources)
                if source.join == "mix"
            }
        )
        self.words = nn.Embedding(spec.vocab_size, spec.word_dim) if spec.word_dim else None
        self.characters: Characters | None = spec.characters.build() if spec.characters else None
        self.marks = nn.Embedding(2, spec.mark_dim) if spec.mark_dim else None
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, tokens: Tensor, marked: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """What enters the network, and what joins later, between its layers or behind it, if anything does."""
        assert self.store is not None, "a task model over features was given none"
        spec, like = self.spec, next(self.parameters(), torch.empty(0))
        places = tokens.cpu().numpy()
        layers = [self.store.vectors(i, tokens, places).to(like.dtype) for i in range(len(spec.sources))]
        numbers, back = np.unique(self.store.words[places], return_inverse=True)
        found = [self._joined(layers, "input")] if "input" in spec.places else []
        place = torch.from_numpy(back.reshape(-1)).to(tokens.device)
        if self.words is not None:
            found.append(self._own(self.store, numbers).index_select(0, place))
        if self.characters is not None:
            spelled = torch.from_numpy(self.store.spellings[numbers]).to(tokens.device).long()
            found.append(self.characters.read(spelled).index_select(0, place))
        if self.marks is not None:
            found.append(F.embedding(torch.zeros_like(tokens) if marked is None else marked, self.marks.weight))
        later = [self.dropout(self._joined(layers, p)) for p in spec.places if p != "input"]
        return self.dropout(torch.cat(found, dim=-1)), later[0] if later else None

    def _own(self, store: Store, numbers: np.ndarray) -> Tensor:
        """The vectors of distinct words: learned here, or as they were given."""
        assert self.words is not None
        table, known = self.words.weight, store.known[numbers]
        rows = F.embedding(torch.from_numpy(np.minimum(known, len(table) - 1)).to(table.device), table)
        if not len(store.given):
            return rows
        given = torch.from_numpy(store.given[np.maximum(known - len(table), 0)]).to(rows)
        return torch.where(torch.from_numpy(known >= len(table)).to(table.device)[:, None], given, rows)

    def _joined(self, layers: list[Tensor], place: str) -> Tensor:
        names = [_name(place, number) for number in range(len(layers))]
        found = [self.mixes[n](x) if n in self.mixes else x.flatten(1) for n, x in zip(names, layers)]
        return torch.cat(found, dim=-1)

    def penalty(self) -> Tensor:
        """‖s‖² of the mixes: what λ multiplies (Peters et al. 2018, §3.3)."""
        return sum((m.scores.square().sum() for m in self.mixes.values()), torch.zeros(()))  # type: ignore[operator]


def _name(place: str, number: int) -> str:
    """Of the mix of a source."""
    return f"{place}-{number + 1}" if number else place
