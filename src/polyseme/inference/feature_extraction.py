"""Frozen features: the vectors that a model computes for words, computed once and cached on disk."""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from polyseme.corpus.store import memmap_array
from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.inference.base import Granularity, LanguageModel
from polyseme.inference.embedding import check_granularity
from polyseme.inference.packed_model import packed_batches, select_device
from polyseme.io.atomic import atomic_write, sha256
from polyseme.io.model_path import resolve_model
from polyseme.nn.layer_selection import LayerSelection
from polyseme.nn.layers.char_cnn import BOS_CHARACTER, EOS_CHARACTER, CharCNN, words_to_char_ids
from polyseme.nn.layers.frozen_features import FeatureSourceConfig
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder
from polyseme.tasks.encoded import encode_words
from polyseme.tasks.readers.rows import split_words
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.elmo_format import find_elmo_files, read_elmo
from polyseme.weights.folder import load_model

logger = logging.getLogger(__name__)

CACHE_VERSION = 2  # of the rules that select a word's vector; part of the names of cached files
MAX_BATCH_TOKENS = 16384  # large: identical words of a batch are spelled out once
Sentence = tuple[str, ...]


def hash_model_files(path: Path) -> str:
    """Hash a file, or all files of a model that its vectors depend on."""
    path = resolve_model(path)
    if path.is_file():
        elmo_files = find_elmo_files(path)
        if elmo_files is None:
            return sha256(path)
        files = list(elmo_files)
    else:
        endings = (".safetensors", ".hdf5", ".h5", ".json", ".txt", ".model")
        files = [p for p in sorted(path.iterdir()) if p.suffix in endings and p.name != "polyseme.json"]
    return hashlib.sha256("".join(f"{p.name} {sha256(p)}\n" for p in files).encode()).hexdigest()


class WordChunk(NamedTuple):
    """As many words of a sentence as the model reads at once; `rows` has the row of each word in each stack."""

    sentence: int
    first_word: int
    ids: np.ndarray
    rows: np.ndarray  # int64 [words, stacks]


@dataclass(frozen=True, eq=False)
class FeatureEncoder:
    """A model that computes vectors of words, and the tokenizer that it reads them with."""

    path: Path
    model: Model
    tokenizer: Tokenizer | None  # None if it reads the characters of words

    @classmethod
    def load(cls, path: Path | str, device: str | None = None, verify: bool = False) -> Self:
        """Load any model folder, or ELMo's published files; of an encoder-decoder, the encoder (CoVe)."""
        path, model_device = resolve_model(path), select_device(device)
        if model_device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # float32 is exact, as in training
        if find_elmo_files(path):
            return cls(path, read_elmo(path, verify).to(model_device), None)
        folder = load_model(path, verify=verify)
        folder.model.to(model_device)
        if isinstance(getattr(folder.model.trunk, "embeddings", None), CharCNN):
            return cls(path, folder.model, None)
        folder.tokenizer.validate()
        needs_eos = isinstance(folder.model.trunk, EncoderDecoder)  # as the sources of its training had
        return cls(path, folder.model, folder.tokenizer.with_eos() if needs_eos else folder.tokenizer)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def num_layers(self) -> int:
        """The number of layers, with the embeddings."""
        return self.model.config.trunk.num_layers + 1

    @property
    def is_character_level(self) -> bool:
        """Whether its tokens are characters."""
        return self.tokenizer is not None and self.tokenizer.kind == "characters"

    @property
    def stacks(self) -> tuple[tuple[str, ...], ...]:
        """The directions of each stack of layers; the states of all stacks are concatenated."""
        trunk: Any = self.model.config.trunk
        return getattr(trunk, "stack_directions", (("forward",) if trunk.causal else ("forward", "backward"),))

    @cached_property
    def layer_dims(self) -> list[int]:
        """The size of each layer's vectors, which may differ in a recurrent model."""
        token, layers = torch.zeros(1, dtype=torch.long, device=self.device), range(self.num_layers)
        with torch.inference_mode():
            inputs = Inputs(token, PackedLayout.from_lengths([1], device=self.device))
            layer_states = self.model.trunk(inputs, layers=layers).layers
        return [layer_states[i].shape[-1] for i in layers]

    @cached_property
    def hash(self) -> str:
        """The hash of the model's files."""
        return hash_model_files(self.path)

    def resolve_layers(self, layers: str | int) -> tuple[LayerSelection, list[int]]:
        """Return the selection that a name or number stands for, and the indices of its layers in this encoder."""
        selection = LayerSelection.parse(layers)
        if selection.combination == "stack":
            raise ConfigError(f"layers {selection.name!r} cannot be features: use 'scalar_mix', or 'sum_all'")
        indices = selection.indices(self.num_layers - 1, has_embeddings=not self.is_character_level)
        selection.check_dims([self.layer_dims[i] for i in indices])
        return selection, indices

    def source_config(self, layers: str | int) -> FeatureSourceConfig:
        """Describe what is stored of a selection of layers."""
        selection, indices = self.resolve_layers(layers)
        num_layers = 1 if selection.combination == "sum" else len(indices)
        join: Any = "side" if selection.combination == "concat" else "mix"
        return FeatureSourceConfig(num_layers, self.layer_dims[indices[0]], join)

    def extract(
        self, sentences: Sequence[Sentence], layers: Sequence[int], max_batch_tokens: int = MAX_BATCH_TOKENS
    ) -> Iterator[tuple[WordChunk, np.ndarray]]:
        """Yield chunks of sentences with their vectors [words, layers, dim], in any order.

        A word's vector is that of its first token (Devlin et al. 2019, §5.3) or, in a model that reads one way, of the
        token at which it has read the word: forward the last, backward the first. If tokens are characters, it is that
        of the space or special token right after the word, or before it (Akbik et al. 2018, §2.3). Two stacks that
        each read one way have their own rows.
        """
        chunks = [chunk for i, words in enumerate(sentences) for chunk in self._split_into_chunks(i, words)]
        with torch.inference_mode():
            for index, inputs in packed_batches([chunk.ids for chunk in chunks], None, max_batch_tokens, self.device):
                members = [chunks[i] for i in index]
                layer_states = self.model.trunk(inputs, layers=layers).layers
                states = torch.stack([layer_states[i] for i in layers], dim=1).chunk(len(self.stacks), dim=-1)
                starts = np.cumsum([0, *inputs.layout.lengths])
                rows = torch.from_numpy(np.concatenate([chunk.rows + start for chunk, start in zip(members, starts)]))
                word_states = [s.index_select(0, r) for s, r in zip(states, rows.to(self.device).unbind(1))]
                vectors = torch.cat(word_states, dim=-1).float().cpu()
                parts = vectors.split([len(chunk.rows) for chunk in members])
                yield from zip(members, (part.numpy() for part in parts))

    def _split_into_chunks(self, sentence: int, words: Sentence) -> Iterator[WordChunk]:
        max_len = self.model.config.trunk.embeddings.max_len
        if self.tokenizer is None:
            room = max(max_len - 2, 1)
            for first in range(0, len(words), room):
                part = words[first : first + room]
                rows = np.repeat(1 + np.arange(len(part))[:, None], len(self.stacks), axis=1)
                yield WordChunk(sentence, first, words_to_char_ids([BOS_CHARACTER, *part, EOS_CHARACTER]), rows)
            return
        room = max_len - self.tokenizer.num_special_tokens_to_add()
        pieces, word_index = encode_words(self.tokenizer, words)
        starts = np.searchsorted(word_index, np.arange(len(words) + 1))
        num_prefix = self.tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
        first = 0
        while first < len(words):
            end = max(int(np.searchsorted(starts, starts[first] + room, side="right")) - 1, first + 1)
            chunk_pieces = pieces[starts[first] : min(starts[end], starts[first] + room)]
            ids = np.array(self.tokenizer.build_inputs_with_special_tokens(chunk_pieces.tolist())[0], dtype=np.int64)
            offset = num_prefix - starts[first]
            firsts, lasts = offset + starts[first:end], offset + starts[first + 1 : end + 1] - 1
            if self.is_character_level:  # a space belongs to the word before it, a special token follows the last word
                lasts[-1] += end == len(words)
                firsts -= ("backward",) in self.stacks
            rows = np.stack([lasts if stack == ("forward",) else firsts for stack in self.stacks], axis=1)
            yield WordChunk(sentence, first, ids, rows.clip(0, len(ids) - 1))
            first = end


class ElmoModel(LanguageModel):
    """ELMo in its published format, which has neither a vocabulary nor heads: it embeds words by their characters."""

    capabilities = ("embed",)

    def __init__(self, encoder: FeatureEncoder):
        super().__init__(encoder.path)
        self.encoder = encoder

    @classmethod
    def load(cls, path: Path | str, device: str | None = None, verify: bool = False) -> Self:
        """Load the model that a folder or one of its two files names."""
        return cls(FeatureEncoder.load(path, device, verify))

    @property
    def tokenizer(self) -> Tokenizer:
        raise UnsupportedError(f"{self.path} has no tokenizer: it reads the characters of words")

    @property
    def description(self) -> str:
        return "an elmo model in its published format, without a head"

    def _embed(
        self, texts: Sequence[str], layers: str | int, granularity: Granularity, truncate: bool
    ) -> np.ndarray | list[np.ndarray]:
        check_granularity(granularity)
        selection = LayerSelection.parse(layers)
        indices = selection.indices(self.encoder.num_layers - 1)
        sentences = [split_words(text) for text in texts]
        if empty := [text for text, words in zip(texts, sentences) if not words]:
            raise DataError(f"the text has no words: {empty[0]!r}")
        parts: list[dict[int, np.ndarray]] = [{} for _ in texts]
        for chunk, vectors in self.encoder.extract(sentences, indices):
            combined = selection.combine(list(torch.from_numpy(vectors).unbind(1)))
            parts[chunk.sentence][chunk.first_word] = combined.numpy()
        rows = [np.concatenate([part[first] for first in sorted(part)]) for part in parts]
        if granularity != "text":
            return rows
        no_vectors = selection.combine([torch.empty(0, self.encoder.layer_dims[i]) for i in indices]).numpy()
        return np.stack([row.mean(0) for row in rows]) if rows else no_vectors


def extract_features(
    encoder: FeatureEncoder, sentences: Sequence[Sentence], layers: str, cache_dir: Path | None
) -> np.ndarray:
    """Return the vectors of all words, sentence after sentence, [words, layers, dim], from the cache if possible.

    The key of the cache is a hash of the model, the selection of layers and the words.
    """
    selection, indices = encoder.resolve_layers(layers)
    source, is_sum = encoder.source_config(layers), selection.combination == "sum"
    sizes = np.array([len(words) for words in sentences], dtype=np.int64)
    if not sizes.all():
        raise DataError(f"sentence {int(np.argmin(sizes)) + 1} has no words")
    sentence_starts, shape = np.cumsum(sizes) - sizes, (int(sizes.sum()), source.num_layers, source.dim)

    def fill(array: np.ndarray) -> None:
        for chunk, vectors in encoder.extract(sentences, indices):
            row = sentence_starts[chunk.sentence] + chunk.first_word
            array[row : row + len(vectors)] = vectors.sum(1, keepdims=True) if is_sum else vectors

    if cache_dir is None:
        features = np.empty(shape, dtype=np.float32)
        fill(features)
        return features
    key_layers = ["sum", *indices] if is_sum and len(indices) > 1 else indices
    key = json.dumps([[CACHE_VERSION, key_layers, encoder.hash], [list(words) for words in sentences]])
    path = Path(cache_dir) / f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.npy"
    if not path.exists():

        def write(temporary: Path) -> None:
            array = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            with open(temporary, "r+b") as file:  # a full disk raises here instead of ending the process later
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
            fill(array)
            array.flush()

        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, write)
    try:
        cached = memmap_array(path)
        if cached.shape != shape:
            raise ValueError(f"its shape is {cached.shape}")
    except ValueError as error:
        logger.warning(f"{path} is damaged ({error}): its features are computed again")
        os.unlink(path)
        return extract_features(encoder, sentences, layers, cache_dir)
    return cached
