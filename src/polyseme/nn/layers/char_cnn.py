"""Words from their characters: convolutions over the bytes of a word, highway layers, a projection.

The character-aware bottom of ELMo (Peters et al. 2018, §3.4; Jozefowicz et al. 2016, §3.3; Kim et al. 2016). A word is
50 ids: a mark where it begins, its bytes in UTF-8, a mark where it ends, and filling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.layers.feedforward import ACTIVATIONS, ActivationName
from polyseme.nn.layers.norms import NoNormSpec

BEGIN, END = 256, 257  # the two words around a sentence, each of one character that no text holds
WORD_BEGIN, WORD_END, FILLING = 258, 259, 260
TOGETHER = 256  # words that are convolved at once
CHARACTERS = 262  # 261, and 0 for nothing: stored ids are one higher


def spell(words: Sequence[str | int], width: int = 50) -> np.ndarray:
    """Words as character ids, int16 [n, width]; what is longer loses its end. A number is that one character."""
    found = np.full((len(words), width), FILLING + 1, dtype=np.int16)
    for row, word in zip(found, words):
        codes = [word] if isinstance(word, int) else list(word.encode("utf-8", "replace")[: width - 2])
        row[: len(codes) + 2] = [WORD_BEGIN + 1, *(code + 1 for code in codes), WORD_END + 1]
    return found


@dataclass(frozen=True)
class CharactersSpec(Spec):
    """`filters` are (characters, how many); their outputs go through `num_highway` layers and down to `dim`.

    `vocab_size` is the number of words whose spelling the model keeps, so that a token can be a word's number; a token
    may also be a word's characters themselves.
    """

    vocab_size: int
    dim: int
    max_len: int
    filters: tuple[tuple[int, ...], ...]
    char_dim: int = 16
    num_highway: int = 1
    width: int = 50
    activation: ActivationName = "relu"
    dropout: float = 0.0
    num_segments: ClassVar[int] = 0
    norm: ClassVar[NoNormSpec] = NoNormSpec()

    def __post_init__(self) -> None:
        self.within(1, math.inf, "vocab_size", "dim", "max_len", "char_dim")
        self.within(0, math.inf, "num_highway")
        self.within(0, 1, "dropout")
        for each in self.filters:
            if len(each) != 2 or not 1 <= each[0] <= self.width or each[1] < 1:
                raise UserError(f"a filter is {list(each)}, expected its width, 1 to {self.width}, and their number")
        if not self.filters or self.width < 3:
            raise UserError(f"{len(self.filters)} filters over {self.width} characters read no word")

    @property
    def inner(self) -> int:
        return sum(number for _, number in self.filters)

    def build(self) -> Characters:
        return Characters(self)


class Characters(nn.Module):
    """Each distinct word of a batch is read once, however often it stands there."""

    asks: ClassVar[bool] = True  # the device how many words are distinct
    spellings: Tensor  # int16 [vocab_size, width]

    def __init__(self, spec: CharactersSpec):
        super().__init__()
        self.spec = spec
        self.characters = nn.Embedding(CHARACTERS, spec.char_dim)
        self.convolutions = nn.ModuleList(nn.Conv1d(spec.char_dim, number, width) for width, number in spec.filters)
        self.highways = nn.ModuleList(Highway(spec.inner) for _ in range(spec.num_highway))
        self.project = nn.Linear(spec.inner, spec.dim)
        self.dropout = nn.Dropout(spec.dropout)
        filled = torch.full((spec.vocab_size, spec.width), FILLING + 1, dtype=torch.int16)
        self.register_buffer("spellings", filled)
        if not filled.is_meta:  # until words are known, each is a number
            numbers = [str(i) for i in range(min(spec.vocab_size, 1 << 16))]
            filled[: len(numbers)] = torch.from_numpy(spell(numbers, spec.width))

    def learn_spellings(self, words: Sequence[str | int]) -> None:
        """The words whose numbers are tokens from now on."""
        found = torch.from_numpy(spell(words, self.spec.width)).to(self.spellings.device)
        self.spellings[: len(found)] = found

    @property
    def table(self) -> None:
        """There is none that a head could share."""

    def forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None, longest: int, table: None = None
    ) -> Tensor:
        """Tokens are numbers of words, [T], or their characters, [T, width]."""
        if longest > self.spec.max_len:
            raise UserError(f"a sequence of {longest} tokens is longer than the model reads ({self.spec.max_len})")
        if tokens.ndim == 1:
            distinct, place = tokens.unique(return_inverse=True)
            distinct = self.spellings.index_select(0, distinct)
        else:
            distinct, place = tokens.unique(dim=0, return_inverse=True)
        return self.dropout(self.read(distinct.long()).index_select(0, place))

    def read(self, characters: Tensor) -> Tensor:
        """The vectors of spelled words, [n, width] to [n, dim].

        Words of like length are convolved together. Behind the longest of them every window is the same: one that is
        all filling is enough of these.
        """
        if not len(characters):
            return self.project.weight.new_zeros(0, self.spec.dim)
        activation, widest = ACTIVATIONS[self.spec.activation], max(width for width, _ in self.spec.filters)
        number, cuda = len(characters), characters.device.type == "cuda"
        together, even = (16 * TOGETHER, 8) if cuda else (TOGETHER, 1)
        if cuda:  # cuDNN plans for milliseconds whenever it meets a new shape: let there be few
            characters = F.pad(characters, (0, 0, 0, -number % (4 * TOGETHER)), value=FILLING + 1)
        sizes, order = (characters != FILLING + 1).sum(1).sort(stable=True)
        parts = []
        longest = [*sizes[together - 1 :: together].tolist(), int(sizes[-1])]  # one wait for a GPU
        for some, size in zip(order.split(together), longest):
            chosen = characters.index_select(0, some)[:, : -(-(size + widest) // even) * even]
            x = F.embedding(chosen, self.characters.weight).transpose(1, 2)
            parts.append(torch.cat([activation(convolve(x).amax(-1)) for convolve in self.convolutions], dim=-1))
        x = torch.cat(parts).index_select(0, order.argsort()[:number])
        for highway in self.highways:
            x = highway(x)
        return self.project(x)


class Highway(nn.Module):
    """Part of what comes in goes on as it is (Srivastava et al. 2015)."""

    def __init__(self, dim: int):
        super().__init__()
        self.transform, self.carry = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        share = self.carry(x).sigmoid()
        return share * F.relu(self.transform(x)) + (1 - share) * x
