"""Input layer of a task model over frozen features: stored vectors, mixed, next to learned embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.layers.char_cnn import CharCNN, CharCNNConfig

JoinPosition = Literal["input", "output", "both", "between"]
MAX_GPU_FRACTION = 0.25  # fraction of free GPU memory that vectors may use: several runs may share a GPU
ROWS_PER_COPY = 65536


class FeatureStore:
    """Stored vectors and words of a data set; a token is a position in it. Models share stores.

    `features` are, for each source, consecutive float32 arrays [positions, layers, dim], which may be memory-mapped;
    `word_ids`, int64 [positions], is the word at each position; `spellings`, int16 [words, width], its characters;
    `vocab_ids`, int64 [words], its index in the model's vocabulary, 0 for none, followed by the indices of
    `pretrained`, word vectors that are not trained.
    """

    def __init__(
        self,
        features: list[list[np.ndarray]],
        word_ids: np.ndarray,
        spellings: np.ndarray,
        vocab_ids: np.ndarray,
        pretrained: np.ndarray | None = None,
    ):
        self.features, self.word_ids, self.spellings, self.vocab_ids = features, word_ids, spellings, vocab_ids
        self.pretrained = np.empty((0, 0), np.float32) if pretrained is None else pretrained
        self.device_copies: dict[tuple[int, torch.device], Tensor | None] = {}

    def gather_vectors(self, source: int, tokens: Tensor, token_ids: np.ndarray) -> Tensor:
        """Return the stored vectors of tokens, [tokens, layers, dim], from the GPU if those of the source fit there.

        Vectors on the host are gathered by one core and copied at every step, 12 KB per word for ELMo.
        """
        key = source, tokens.device
        if key not in self.device_copies:
            self.device_copies[key] = self._copy_to_device(*key)
        if (device_copy := self.device_copies[key]) is not None:
            return device_copy.index_select(0, tokens)
        arrays, start = self.features[source], 0
        vectors = np.empty((len(token_ids), *arrays[0].shape[1:]), dtype=np.float32)
        for array in arrays:
            in_array = (token_ids >= start) & (token_ids < start + len(array))
            vectors[in_array] = array[token_ids[in_array] - start]
            start += len(array)
        return torch.from_numpy(vectors).to(tokens.device)

    def _copy_to_device(self, source: int, device: torch.device) -> Tensor | None:
        arrays = self.features[source]
        if not fits_on_device(device, sum(array.size for array in arrays) * 4):
            return None
        vectors = torch.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), device=device)
        for array, part in zip(arrays, vectors.split([len(array) for array in arrays])):
            for start in range(0, len(array), ROWS_PER_COPY):
                rows = slice(start, start + ROWS_PER_COPY)
                part[rows].copy_(torch.from_numpy(np.array(array[rows])))
        return vectors


def fits_on_device(device: torch.device, num_bytes: int) -> bool:
    """Whether to copy this many bytes to a device: always false for a CPU, where the arrays already are."""
    return device.type == "cuda" and num_bytes < MAX_GPU_FRACTION * torch.cuda.mem_get_info(device)[0]


class ScalarMix(nn.Module):
    """γ Σ softmax(s)_j h_j over layers h_j (Peters et al. 2018, §3.2, equation 1)."""

    constant_init: ClassVar = {"scores": 0.0, "gamma": 1.0}

    def __init__(self, num_layers: int):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """Mix [rows, layers, dim] to [rows, dim]."""
        return self.gamma * torch.einsum("l,tld->td", self.scores.softmax(0), layers)


@dataclass(frozen=True)
class FeatureSourceConfig(Config):
    """`num_layers` stored vectors of size `dim` per word, mixed with learned weights or concatenated (`join`)."""

    num_layers: int
    dim: int
    join: Literal["mix", "side"] = "mix"

    @property
    def output_dim(self) -> int:
        """Size of the joined vector."""
        return self.dim * (self.num_layers if self.join == "side" else 1)


@dataclass(frozen=True)
class FrozenFeaturesConfig(Config):
    """Concatenation of the stored vectors of all sources, each with its own mix.

    A word also has a learned vector (`word_dim`, for `vocab_size` words; the first is for unknown words) and one from
    its characters. `where` features are joined: at the input, at the output of the network (Peters et al. 2018, §5.2),
    both, each with its own mix, or between its first two layers (Peters et al. 2017, §2.4). With `indicator_dim`,
    marked and unmarked words have an embedding, as for the predicate in semantic role labeling (He et al. 2017, §2.1).
    `layer_norm` normalizes each stored layer first.
    """

    sources: tuple[FeatureSourceConfig, ...] = ()
    where: JoinPosition = "input"
    vocab_size: int = 1
    word_dim: int = 0
    char_cnn: CharCNNConfig | None = None
    dropout: float = 0.0
    indicator_dim: int = 0
    layer_norm: bool = False
    max_len: ClassVar[int] = 1 << 20

    def __post_init__(self) -> None:
        self.check_range(0, 1, "dropout")
        self.check_range(1, math.inf, "vocab_size")
        self.check_range(0, math.inf, "word_dim")
        if not self.input_dim:
            raise ConfigError("the network has no input: set sources joined at the input, word_dim, or char_cnn")

    @property
    def join_positions(self) -> tuple[str, ...]:
        """Positions at which features are joined."""
        return () if not self.sources else ("input", "output") if self.where == "both" else (self.where,)

    def join_dim(self, position: str) -> int:
        """Return the size of the features joined at the input, at the output, or between the first two layers."""
        return sum(source.output_dim for source in self.sources) * (position in self.join_positions)

    @property
    def input_dim(self) -> int:
        """Size of a word's vector at the input."""
        char_dim = self.char_cnn.dim if self.char_cnn else 0
        return self.word_dim + self.indicator_dim + char_dim + self.join_dim("input")

    def build(self) -> FrozenFeatures:
        return FrozenFeatures(self)


class FrozenFeatures(nn.Module):
    """Looks up the vectors of tokens in a feature store."""

    def __init__(self, config: FrozenFeaturesConfig):
        super().__init__()
        self.config = config
        self.scalar_mixes = nn.ModuleDict()
        for position, (index, source) in product(config.join_positions, enumerate(config.sources)):
            if source.join == "mix":
                self.scalar_mixes[_mix_name(position, index)] = ScalarMix(source.num_layers)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.word_dim) if config.word_dim else None
        self.char_cnn: CharCNN | None = config.char_cnn.build() if config.char_cnn else None
        self.indicator_embeddings = nn.Embedding(2, config.indicator_dim) if config.indicator_dim else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, store: FeatureStore, indicators: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the input of the network, and the features that join between its layers or after them, if any."""
        config, reference = self.config, next(self.parameters(), torch.empty(0))
        token_ids = tokens.cpu().numpy()
        layers = [store.gather_vectors(i, tokens, token_ids).to(reference.dtype) for i in range(len(config.sources))]
        if config.layer_norm:
            layers = [F.layer_norm(x, x.shape[-1:]) for x in layers]
        unique_words, inverse = np.unique(store.word_ids[token_ids], return_inverse=True)
        inputs = [self._combine_sources(layers, "input")] if "input" in config.join_positions else []
        inverse_index = torch.from_numpy(inverse.reshape(-1)).to(tokens.device)
        if self.word_embeddings is not None:
            inputs.append(self._word_vectors(store, unique_words).index_select(0, inverse_index))
        if self.char_cnn is not None:
            char_ids = torch.from_numpy(store.spellings[unique_words]).to(tokens.device).long()
            inputs.append(self.char_cnn.embed_char_ids(char_ids).index_select(0, inverse_index))
        if self.indicator_embeddings is not None:
            indicators = torch.zeros_like(tokens) if indicators is None else indicators
            inputs.append(F.embedding(indicators, self.indicator_embeddings.weight))
        late_positions = [position for position in config.join_positions if position != "input"]  # at most one
        late_features = self.dropout(self._combine_sources(layers, late_positions[0])) if late_positions else None
        return self.dropout(torch.cat(inputs, dim=-1)), late_features

    def _word_vectors(self, store: FeatureStore, word_ids: np.ndarray) -> Tensor:
        """Return the vectors of distinct words, learned or pre-trained."""
        assert self.word_embeddings is not None
        table, vocab_ids = self.word_embeddings.weight, store.vocab_ids[word_ids]
        learned_vectors = F.embedding(torch.from_numpy(np.minimum(vocab_ids, len(table) - 1)).to(table.device), table)
        if not len(store.pretrained):
            return learned_vectors
        pretrained_vectors = torch.from_numpy(store.pretrained[np.maximum(vocab_ids - len(table), 0)])
        is_pretrained = torch.from_numpy(vocab_ids >= len(table)).to(table.device)[:, None]
        return torch.where(is_pretrained, pretrained_vectors.to(learned_vectors), learned_vectors)

    def _combine_sources(self, layers: list[Tensor], position: str) -> Tensor:
        vectors = []
        for index, x in enumerate(layers):  # [tokens, layers, dim] each
            name = _mix_name(position, index)
            vectors.append(self.scalar_mixes[name](x) if name in self.scalar_mixes else x.flatten(1))
        return torch.cat(vectors, dim=-1)

    def mix_penalty(self) -> Tensor:
        """Return ‖s‖² of the mixes, the term weighted by λ (Peters et al. 2018, §3.3)."""
        return sum((m.scores.square().sum() for m in self.scalar_mixes.values()), torch.zeros(()))  # type: ignore[operator]


def _mix_name(position: str, index: int) -> str:
    """Return the name of a source's mix."""
    return f"{position}-{index + 1}" if index else position
