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

from polyseme.config import Config
from polyseme.errors import ConfigError, DataError
from polyseme.nn.layers.feedforward import ACTIVATIONS, ActivationName
from polyseme.nn.layers.norms import NoNormConfig

BOS_CHARACTER, EOS_CHARACTER = 256, 257  # the two words around a sentence, each of one character that no text holds
BOW_CHARACTER, EOW_CHARACTER, PAD_CHARACTER = 258, 259, 260
MAX_WORDS_PER_CONV = 256  # words that are convolved at once
NUM_CHARACTERS = 262  # 261, and 0 for nothing: stored ids are one higher


def words_to_char_ids(words: Sequence[str | int], max_chars_per_word: int = 50) -> np.ndarray:
    """Words as character ids, int16 [n, width]; what is longer loses its end. A number is that one character."""
    char_ids = np.full((len(words), max_chars_per_word), PAD_CHARACTER + 1, dtype=np.int16)
    for row, word in zip(char_ids, words):
        byte_values = (
            [word] if isinstance(word, int) else list(word.encode("utf-8", "replace")[: max_chars_per_word - 2])
        )
        row[: len(byte_values) + 2] = [BOW_CHARACTER + 1, *(byte + 1 for byte in byte_values), EOW_CHARACTER + 1]
    return char_ids


@dataclass(frozen=True)
class CharCNNConfig(Config):
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
    max_chars_per_word: int = 50
    activation: ActivationName = "relu"
    dropout: float = 0.0
    num_segments: ClassVar[int] = 0
    norm: ClassVar[NoNormConfig] = NoNormConfig()

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "vocab_size", "dim", "max_len", "char_dim")
        self.check_range(0, math.inf, "num_highway")
        self.check_range(0, 1, "dropout")
        for conv_filter in self.filters:
            if len(conv_filter) != 2 or not 1 <= conv_filter[0] <= self.max_chars_per_word or conv_filter[1] < 1:
                raise ConfigError(
                    f"a filter is {list(conv_filter)}, expected its width, 1 to {self.max_chars_per_word}, "
                    "and their number"
                )
        if not self.filters or self.max_chars_per_word < 3:
            raise ConfigError(f"{len(self.filters)} filters over {self.max_chars_per_word} characters read no word")

    @property
    def embedding_dim(self) -> int:
        return sum(count for _, count in self.filters)

    def build(self) -> CharCNN:
        return CharCNN(self)


class CharCNN(nn.Module):
    """Each distinct word of a batch is read once, however often it stands there."""

    needs_host_sync: ClassVar[bool] = True  # the device how many words are distinct
    spellings: Tensor  # int16 [vocab_size, width]

    def __init__(self, config: CharCNNConfig):
        super().__init__()
        self.config = config
        self.char_embeddings = nn.Embedding(NUM_CHARACTERS, config.char_dim)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.char_dim, out_channels, kernel_size) for kernel_size, out_channels in config.filters
        )
        self.highways = nn.ModuleList(Highway(config.embedding_dim) for _ in range(config.num_highway))
        self.projection = nn.Linear(config.embedding_dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        spellings = torch.full((config.vocab_size, config.max_chars_per_word), PAD_CHARACTER + 1, dtype=torch.int16)
        self.register_buffer("spellings", spellings)
        if not spellings.is_meta:  # until words are known, each is a number
            placeholder_words = [str(i) for i in range(min(config.vocab_size, 1 << 16))]
            spellings[: len(placeholder_words)] = torch.from_numpy(
                words_to_char_ids(placeholder_words, config.max_chars_per_word)
            )

    def set_spellings(self, words: Sequence[str | int]) -> None:
        """The words whose numbers are tokens from now on."""
        char_ids = torch.from_numpy(words_to_char_ids(words, self.config.max_chars_per_word)).to(self.spellings.device)
        self.spellings[: len(char_ids)] = char_ids

    @property
    def token_embeddings(self) -> None:
        """There is none that a head could share."""

    def forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None, max_seqlen: int, token_embeddings: None = None
    ) -> Tensor:
        """Tokens are numbers of words, [T], or their characters, [T, width]."""
        if max_seqlen > self.config.max_len:
            raise DataError(f"a sequence of {max_seqlen} tokens is longer than the model reads ({self.config.max_len})")
        if tokens.ndim == 1:
            unique_words, inverse = tokens.unique(return_inverse=True)
            unique_words = self.spellings.index_select(0, unique_words)
        else:
            unique_words, inverse = tokens.unique(dim=0, return_inverse=True)
        return self.dropout(self.embed_char_ids(unique_words.long()).index_select(0, inverse))

    def embed_char_ids(self, char_ids: Tensor) -> Tensor:
        """The vectors of spelled words, [n, width] to [n, dim].

        Words of like length are convolved together. Behind the longest of them every window is the same: one that is
        all filling is enough of these.
        """
        if not len(char_ids):
            return self.projection.weight.new_zeros(0, self.config.dim)
        activation, max_kernel_size = (
            ACTIVATIONS[self.config.activation],
            max(kernel_size for kernel_size, _ in self.config.filters),
        )
        num_words, is_cuda = len(char_ids), char_ids.device.type == "cuda"
        words_per_conv, length_multiple = (16 * MAX_WORDS_PER_CONV, 8) if is_cuda else (MAX_WORDS_PER_CONV, 1)
        if is_cuda:  # cuDNN plans for milliseconds whenever it meets a new shape: let there be few
            char_ids = F.pad(char_ids, (0, 0, 0, -num_words % (4 * MAX_WORDS_PER_CONV)), value=PAD_CHARACTER + 1)
        lengths, order = (char_ids != PAD_CHARACTER + 1).sum(1).sort(stable=True)
        conv_outputs = []
        max_lengths = [*lengths[words_per_conv - 1 :: words_per_conv].tolist(), int(lengths[-1])]  # one wait for a GPU
        for indices, max_length in zip(order.split(words_per_conv), max_lengths):
            chunk = char_ids.index_select(0, indices)[
                :, : -(-(max_length + max_kernel_size) // length_multiple) * length_multiple
            ]
            x = F.embedding(chunk, self.char_embeddings.weight).transpose(1, 2)
            conv_outputs.append(torch.cat([activation(conv(x).amax(-1)) for conv in self.convolutions], dim=-1))
        x = torch.cat(conv_outputs).index_select(0, order.argsort()[:num_words])
        for highway in self.highways:
            x = highway(x)
        return self.projection(x)


class Highway(nn.Module):
    """Part of what comes in goes on as it is (Srivastava et al. 2015)."""

    def __init__(self, dim: int):
        super().__init__()
        self.transform, self.carry = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.carry(x).sigmoid()
        return gate * F.relu(self.transform(x)) + (1 - gate) * x
