"""Word embeddings from characters: convolutions over the bytes of a word, highway layers, a projection.

The input layer of ELMo (Peters et al. 2018, §3.4; Jozefowicz et al. 2016, §3.3; Kim et al. 2016). A word is 50 ids:
begin-of-word, its UTF-8 bytes, end-of-word, and padding.
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

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.layers.block import ACTIVATIONS, ActivationName
from polyseme.nn.layers.embeddings import check_max_seqlen
from polyseme.nn.packing import Inputs

BOS_CHARACTER, EOS_CHARACTER = 256, 257  # the boundary words of a sentence consist of one of these
BOW_CHARACTER, EOW_CHARACTER, PAD_CHARACTER = 258, 259, 260
MAX_WORDS_PER_CONV = 256
NUM_CHARACTERS = 262  # the 261 above and the unused id 0: stored ids are character + 1


def words_to_char_ids(words: Sequence[str | int], max_chars_per_word: int = 50) -> np.ndarray:
    """Return the character ids of words, int16 [n, max_chars_per_word], truncated at the end.

    A word given as a number consists of that single character.
    """
    char_ids = np.full((len(words), max_chars_per_word), PAD_CHARACTER + 1, dtype=np.int16)
    for row, word in zip(char_ids, words):
        byte_values = [word] if isinstance(word, int) else word.encode("utf-8", "replace")[: max_chars_per_word - 2]
        row[: len(byte_values) + 2] = [BOW_CHARACTER + 1, *(byte + 1 for byte in byte_values), EOW_CHARACTER + 1]
    return char_ids


@dataclass(frozen=True)
class CharCNNConfig(Config):
    """Character CNN. `filters` are (width, count); their outputs pass `num_highway` layers and a projection to `dim`.

    `vocab_size` is the number of words whose spelling the model stores, so that a token can be a word id; a token may
    also be the characters of a word.
    """

    vocab_size: int
    dim: int
    max_len: int
    filters: tuple[tuple[int, ...], ...]
    char_dim: int = 16
    num_highway: int = 1
    max_chars_per_word: int = 50
    activation: ActivationName = "relu"
    dropout: float = 0.0
    num_segments: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "vocab_size", "dim", "max_len", "char_dim")
        self.check_range(0, math.inf, "num_highway")
        self.check_range(0, 1, "dropout")
        for conv_filter in self.filters:
            if len(conv_filter) != 2 or not 1 <= conv_filter[0] <= self.max_chars_per_word or conv_filter[1] < 1:
                expected = f"a width, 1 to {self.max_chars_per_word}, and a count, at least 1"
                raise ConfigError(f"filters contains {list(conv_filter)}; expected {expected}")
        if not self.filters or self.max_chars_per_word < 3:
            actual = f"{len(self.filters)} filters over max_chars_per_word = {self.max_chars_per_word}"
            raise ConfigError(f"got {actual}; expected at least 1 filter and 3 characters")

    @property
    def embedding_dim(self) -> int:
        """Size of the concatenated filter outputs."""
        return sum(count for _, count in self.filters)

    def build(self) -> CharCNN:
        return CharCNN(self)


class CharCNN(nn.Module):
    """Character CNN that computes each distinct word of a batch once."""

    needs_host_sync: ClassVar[bool] = True  # for the number of distinct words
    token_embeddings: ClassVar[None] = None  # there is no table that a head could share
    spellings: Tensor  # int16 [vocab_size, max_chars_per_word]

    def __init__(self, config: CharCNNConfig):
        super().__init__()
        self.config = config
        self.char_embeddings = nn.Embedding(NUM_CHARACTERS, config.char_dim)
        self.convolutions = nn.ModuleList(nn.Conv1d(config.char_dim, count, width) for width, count in config.filters)
        self.highways = nn.ModuleList(Highway(config.embedding_dim) for _ in range(config.num_highway))
        self.projection = nn.Linear(config.embedding_dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        spellings = torch.full((config.vocab_size, config.max_chars_per_word), PAD_CHARACTER + 1, dtype=torch.int16)
        self.register_buffer("spellings", spellings)
        if not spellings.is_meta:  # placeholders until `set_spellings`
            self.set_spellings([str(i) for i in range(min(config.vocab_size, 1 << 16))])

    def set_spellings(self, words: Sequence[str | int]) -> None:
        """Set the words that ids stand for."""
        char_ids = torch.from_numpy(words_to_char_ids(words, self.config.max_chars_per_word)).to(self.spellings.device)
        self.spellings[: len(char_ids)] = char_ids

    def forward(self, inputs: Inputs, positions: Tensor | None = None, max_seqlen: int | None = None) -> Tensor:
        """Return the embeddings [T, dim] of word ids [T] or of character ids [T, max_chars_per_word]."""
        check_max_seqlen(inputs, max_seqlen, self.config.max_len)
        tokens = inputs.tokens
        if inputs.layout.is_padded:  # no shape may depend on the tokens
            return self.dropout(self._project(self._convolve(self.spellings.index_select(0, tokens).long())))
        if tokens.ndim == 1:
            unique_words, inverse = tokens.unique(return_inverse=True)
            unique_words = self.spellings.index_select(0, unique_words)
        else:
            unique_words, inverse = tokens.unique(dim=0, return_inverse=True)
        return self.dropout(self.embed_char_ids(unique_words.long()).index_select(0, inverse))

    def embed_char_ids(self, char_ids: Tensor) -> Tensor:
        """Embed words given as character ids, [n, width] to [n, dim].

        Words of similar length are convolved together. All windows past the longest of them contain only padding; one
        such window is enough.
        """
        if not len(char_ids):
            return self.projection.weight.new_zeros(0, self.config.dim)
        max_kernel_size = max(kernel_size for kernel_size, _ in self.config.filters)
        num_words, is_cuda = len(char_ids), char_ids.device.type == "cuda"
        words_per_conv, length_multiple = (16 * MAX_WORDS_PER_CONV, 8) if is_cuda else (MAX_WORDS_PER_CONV, 1)
        if is_cuda:  # cuDNN spends milliseconds on each new shape, so keep their number small
            char_ids = F.pad(char_ids, (0, 0, 0, -num_words % (4 * MAX_WORDS_PER_CONV)), value=PAD_CHARACTER + 1)
        lengths, order = (char_ids != PAD_CHARACTER + 1).sum(1).sort(stable=True)
        conv_outputs = []
        max_lengths = [*lengths[words_per_conv - 1 :: words_per_conv].tolist(), int(lengths[-1])]
        for indices, max_length in zip(order.split(words_per_conv), max_lengths):
            width = -(-(max_length + max_kernel_size) // length_multiple) * length_multiple
            conv_outputs.append(self._convolve(char_ids.index_select(0, indices)[:, :width]))
        return self._project(torch.cat(conv_outputs).index_select(0, order.argsort()[:num_words]))

    def _convolve(self, char_ids: Tensor) -> Tensor:
        """Return the largest value of each filter over a word, [n, embedding_dim]."""
        activation = ACTIVATIONS[self.config.activation]
        x = F.embedding(char_ids, self.char_embeddings.weight).transpose(1, 2)
        return torch.cat([activation(conv(x).amax(-1)) for conv in self.convolutions], dim=-1)

    def hidden_matrices(self) -> list[Tensor]:
        """Return the weights of the convolutions and of the layers after them."""
        return [part.weight for part in self.modules() if isinstance(part, nn.Linear | nn.Conv1d)]

    def _project(self, x: Tensor) -> Tensor:
        for highway in self.highways:
            x = highway(x)
        return self.projection(x)


class Highway(nn.Module):
    """Highway layer: a gated sum of a ReLU layer and its input, at first mostly the latter (Srivastava et al. 2015)."""

    initial_bias: ClassVar[float] = -2.0  # of the gate

    def __init__(self, dim: int):
        super().__init__()
        self.transform, self.carry = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.carry(x).sigmoid()
        return gate * F.relu(self.transform(x)) + (1 - gate) * x
