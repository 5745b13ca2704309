"""Frozen features: the vectors that any model gives to words, read once and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from polyseme.config import Config
from polyseme.errors import ConfigError, DataError, UnsupportedError, suggest
from polyseme.io.atomic import atomic_write, sha256
from polyseme.nn.inputs import Inputs
from polyseme.nn.layers.char_cnn import BOS_CHARACTER, EOS_CHARACTER, CharCNN, words_to_char_ids
from polyseme.nn.layers.frozen_features import JoinPosition
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout, token_budget_batches
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import setup_device
from polyseme.weights.elmo_format import is_elmo_folder, read_elmo
from polyseme.weights.folder import load_model

# Which layers there are to choose from: those that are kept (from the last, -1; or all), and what becomes of them
# (Devlin et al. 2019, table 7; Peters et al. 2018, §3.2).
LAYER_SELECTIONS: dict[str, tuple[tuple[int, ...] | None, str]] = {
    "embeddings": ((0,), "mix"),
    "last": ((-1,), "mix"),
    "second_to_last": ((-2,), "mix"),
    "sum_all": (None, "sum"),
    "scalar_mix": (None, "mix"),
    "scalar_mix_last_4": ((-4, -3, -2, -1), "mix"),
    "concat_last_4": ((-4, -3, -2, -1), "side"),
}


@dataclass(frozen=True)
class FeatureNetworkSettings(Config):
    """What is laid over features. `auto` is a BiLSTM for tags, ESIM for pairs, BiDAF for answers in a text,
    the biattentive network for the rest.

    `layers` is a choice for all sources of features, or one for each, with commas between. `join_at` the features
    enter, and the `mix_penalty` λ on the weights of their mix: Peters et al. 2018, §3.2 and 5.2; `between` the first
    and second layer of a BiLSTM: Peters et al. 2017, §2.4. A word that stands twice or more in training has a vector of
    its own, of length `resolve_word_dim` (100, or that of the word vectors which are given), and so has one with such a
    vector, which begins there and learns on unless it is to be frozen (`freeze_word_embeddings`).
    """

    name: Literal["auto", "linear", "bilstm", "biattentive", "esim", "bidaf"] = "auto"
    layers: str = "scalar_mix"
    join_at: JoinPosition = "input"
    mix_penalty: float = 0.001
    lstm_dim: int = 200
    num_layers: int = 1
    dropout: float = 0.5
    word_dim: int | None = None
    freeze_word_embeddings: bool = False
    use_char_cnn: bool = True


WORD_PATTERN = re.compile(r"\w+|[^\w\s]")
CACHE_VERSION = 2  # in the names of kept features: which version of the rules for the place of a word they follow
MAX_BATCH_TOKENS = 16384  # at once: the more words, the more often they are the same
Sentence = tuple[str, ...]


@lru_cache(1024)  # many questions of one text
def split_words(text: str) -> Sentence:
    """A text as words: runs of letters and digits, and every other character by itself."""
    return tuple(WORD_PATTERN.findall(text))


def hash_model_files(path: Path) -> str:
    """Of a file, or of everything in a model folder that its vectors depend on."""
    if path.is_file():
        return sha256(path)
    endings = (".safetensors", ".hdf5", ".h5", ".json", ".txt", ".model")
    files = [p for p in sorted(path.iterdir()) if p.suffix in endings and p.name != "polyseme.json"]
    return hashlib.sha256("".join(f"{p.name} {sha256(p)}\n" for p in files).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class FeatureEncoder:
    """A model that gives vectors to words, and how its words become tokens."""

    path: Path
    model: Model
    tokenizer: Tokenizer | None  # none if it spells them

    @classmethod
    def load(cls, path: Path | str) -> FeatureEncoder:
        """Any model folder, or ELMo in its published form; of an encoder and a decoder, the encoder (CoVe)."""
        path, device = Path(path), setup_device()
        if is_elmo_folder(path):
            return cls(path, read_elmo(path).to(device), None)
        folder = load_model(path)
        folder.model.to(device)
        if isinstance(getattr(folder.model.trunk, "embeddings", None), CharCNN):
            return cls(path, folder.model, None)
        folder.tokenizer.validate()
        needs_eos = isinstance(folder.model.trunk, EncoderDecoder)  # the sources it learnt from had an end mark
        return cls(path, folder.model, folder.tokenizer.with_eos() if needs_eos else folder.tokenizer)

    @property
    def num_layers(self) -> int:
        """How many layers there are, the vectors of tokens counted."""
        return self.model.config.trunk.num_layers + 1

    @property
    def is_character_level(self) -> bool:
        """Whether its tokens are characters."""
        return self.tokenizer is not None and self.tokenizer.kind == "characters"

    @property
    def stacks(self) -> tuple[tuple[str, ...], ...]:
        """The ways of reading whose states stand side by side in a vector."""
        trunk: Any = self.model.config.trunk
        return getattr(trunk, "stack_directions", (("forward",) if trunk.causal else ("forward", "backward"),))

    @cached_property
    def layer_dims(self) -> list[int]:
        """How long the vectors of each layer are; those of a recurrent model may differ."""
        device = next(self.model.parameters()).device
        token, layers = torch.zeros(1, dtype=torch.long, device=device), range(self.num_layers)
        with torch.inference_mode():
            layer_states = self.model.trunk(
                Inputs(token, PackedLayout.from_lengths([1], device=device)), layers=layers
            ).layers
        return [layer_states[i].shape[-1] for i in layers]

    @cached_property
    def hash(self) -> str:
        return hash_model_files(self.path)

    def resolve_layers(self, selection: str) -> list[int]:
        """The numbers of the layers that a choice names."""
        if selection not in LAYER_SELECTIONS:
            raise ConfigError(f"there is no choice of layers {selection!r}; {suggest(selection, LAYER_SELECTIONS)}")
        offsets, available = LAYER_SELECTIONS[selection][0], list(range(self.is_character_level, self.num_layers))
        if self.is_character_level and selection == "embeddings":
            raise UnsupportedError(
                f"{self.path} reads characters: it has no vectors of words by themselves, as `last` are"
            )
        if offsets is not None and -min(offsets) > len(available):
            raise ConfigError(f"{selection} needs {-min(offsets)} layers, but {self.path} has {len(available)}")
        selected = available if offsets is None else [available[i] for i in offsets]
        if len({self.layer_dims[i] for i in selected}) > 1:
            dims_text = ", ".join(str(self.layer_dims[i]) for i in selected)
            raise ConfigError(
                f"{selection} needs layers of one size, but those of {self.path} have {dims_text}: last, embeddings"
            )
        return selected

    def extract(self, sentences: Sequence[Sentence], layers: Sequence[int]) -> Iterator[tuple[int, int, np.ndarray]]:
        """(sentence, its first word, vectors [words, layers, dim]) for stretches of sentences, in no order.

        A word's vector is that of its first piece (Devlin et al. 2019, §5.3); of a model that reads one way, that of
        the piece at which it has read the word: forward the last, backward the first. Where pieces are characters, it
        is that of the space, or the mark, just behind the word and just before it (Akbik et al. 2018, §2.3). Two
        stacks that each read one way have their own places. A sentence that is longer than the model reads is read in
        stretches.
        """
        chunks = [chunk for i, words in enumerate(sentences) for chunk in self._split_into_chunks(i, words)]
        device = next(self.model.parameters()).device
        sizes = [len(ids) for *_, ids, _ in chunks]
        with torch.inference_mode(), progress("read features", sum(sizes), "tokens") as bar:
            for index in token_budget_batches(sizes, MAX_BATCH_TOKENS):
                items = [chunks[i] for i in index]
                tokens = torch.from_numpy(np.concatenate([ids for *_, ids, _ in items])).to(device)
                layout = PackedLayout.from_lengths([len(ids) for *_, ids, _ in items], device=device)
                layer_states = self.model.trunk(Inputs(tokens, layout), layers=layers).layers
                states = torch.stack([layer_states[i] for i in layers], dim=1).chunk(len(self.stacks), dim=-1)
                starts = np.cumsum([0, *layout.lengths])
                positions = np.concatenate([rows + begin for (*_, rows), begin in zip(items, starts)])
                word_states = [s.index_select(0, torch.from_numpy(p).to(device)) for s, p in zip(states, positions.T)]
                vectors = torch.cat(word_states, dim=-1).float().cpu()  # of words alone: the fewer leave the device
                for (sentence, first, *_), chunk_vectors in zip(
                    items, vectors.split([len(rows) for *_, rows in items])
                ):
                    yield sentence, first, chunk_vectors.numpy()
                bar.advance(len(tokens))

    def _split_into_chunks(
        self, sentence_index: int, words: Sentence
    ) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """(sentence, first word, ids, row of each word in each stack): as many words at a time as the model reads."""
        limit = self.model.config.trunk.embeddings.max_len
        if self.tokenizer is None:
            room = max(limit - 2, 1)
            for first in range(0, len(words), room):
                chunk_words = words[first : first + room]
                rows = np.repeat(1 + np.arange(len(chunk_words))[:, None], len(self.stacks), axis=1)
                yield sentence_index, first, words_to_char_ids([BOS_CHARACTER, *chunk_words, EOS_CHARACTER]), rows
            return
        room = limit - self.tokenizer.num_special_tokens_to_add()
        pieces, word_index = (np.array(a, dtype=np.int64) for a in self.tokenizer.encode_words(words))
        missing_words = np.setdiff1d(np.arange(len(words)), word_index)  # words without any piece are unknown
        specials = self.tokenizer.special_token_ids
        unknown = next((i for i in (specials.unk, specials.eos) if i is not None), 0)
        places = np.searchsorted(word_index, missing_words)
        pieces, word_index = np.insert(pieces, places, unknown), np.insert(word_index, places, missing_words)
        starts = np.searchsorted(word_index, np.arange(len(words) + 1))
        before = self.tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
        first = 0
        while first < len(words):
            end = max(int(np.searchsorted(starts, starts[first] + room, side="right")) - 1, first + 1)
            part = pieces[starts[first] : min(starts[end], starts[first] + room)]
            ids = np.array(self.tokenizer.build_inputs_with_special_tokens(part.tolist())[0], dtype=np.int64)
            firsts, lasts = (before - starts[first] + s for s in (starts[first:end], starts[first + 1 : end + 1] - 1))
            if self.is_character_level:  # a space belongs to the word before it; behind the last word is a mark
                lasts[-1] += end == len(words)
                firsts -= ("backward",) in self.stacks
            rows = np.stack([lasts if ways == ("forward",) else firsts for ways in self.stacks], axis=1)
            yield sentence_index, first, ids, rows.clip(0, len(ids) - 1)
            first = end


def extract_features(
    encoder: FeatureEncoder, sentences: Sequence[Sentence], selection: str, cache_dir: Path | None
) -> np.ndarray:
    """The vectors of all words, sentence after sentence, [words, layers, dim]; from the cache if they are there.

    They are kept under a hash of the model, the choice of layers and the words.
    """
    layer_indices, combination = encoder.resolve_layers(selection), LAYER_SELECTIONS[selection][1]
    num_layers, dim = 1 if combination == "sum" else len(layer_indices), encoder.layer_dims[layer_indices[0]]
    sizes = np.array([len(words) for words in sentences], dtype=np.int64)
    for i, size in enumerate(sizes.tolist()):
        if not size:
            raise DataError(f"sentence {i + 1} has no words")
    sentence_starts, shape = np.cumsum(sizes) - sizes, (int(sizes.sum()), num_layers, dim)

    def fill(array: np.ndarray) -> None:
        for sentence, first, vectors in encoder.extract(sentences, layer_indices):
            row = sentence_starts[sentence] + first
            array[row : row + len(vectors)] = vectors.sum(1, keepdims=True) if combination == "sum" else vectors

    if cache_dir is None:
        word_features = np.empty(shape, dtype=np.float32)
        fill(word_features)
        return word_features
    key_parts = [CACHE_VERSION, "sum" if combination == "sum" else layer_indices, encoder.hash]
    key = json.dumps([key_parts, [list(words) for words in sentences]])
    path = Path(cache_dir) / f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.npy"
    if not path.exists():

        def write(temporary: Path) -> None:
            array = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            with open(temporary, "r+b") as file:  # a full disk is told now, and does not end the program later
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
            fill(array)
            array.flush()

        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, write)
    try:
        cached = np.load(path, mmap_mode="r")
        if cached.shape != shape:
            raise ValueError(f"its shape is {cached.shape}")
    except (ValueError, OSError, EOFError) as error:
        print(f"{path} is damaged ({error}): its features are read anew", file=sys.stderr)
        os.unlink(path)
        return extract_features(encoder, sentences, selection, cache_dir)
    return cached
