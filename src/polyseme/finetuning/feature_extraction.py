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

from polyseme.config import Spec
from polyseme.errors import UserError, nearest
from polyseme.io.files import sha256, write_whole
from polyseme.nn.layers.char_cnn import BEGIN, END, Characters, spell
from polyseme.nn.layers.frozen_features import Where
from polyseme.nn.model import Model
from polyseme.nn.packing import Layout, bins
from polyseme.nn.trunks.encoder_decoder import EncoderDecoder
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import choose_device
from polyseme.weights.elmo_format import is_published, read_elmo
from polyseme.weights.folder import load_model

# Which layers there are to choose from: those that are kept (from the last, -1; or all), and what becomes of them
# (Devlin et al. 2019, table 7; Peters et al. 2018, §3.2).
LAYERS: dict[str, tuple[tuple[int, ...] | None, str]] = {
    "embeddings": ((0,), "mix"),
    "last": ((-1,), "mix"),
    "second-to-last": ((-2,), "mix"),
    "sum": (None, "sum"),
    "scalar-mix": (None, "mix"),
    "scalar-mix-last-four": ((-4, -3, -2, -1), "mix"),
    "concat-last-four": ((-4, -3, -2, -1), "side"),
}


@dataclass(frozen=True)
class NetworkSpec(Spec):
    """What is laid over features. `auto` is a BiLSTM for tags, ESIM for pairs, BiDAF for answers in a text,
    the biattentive network for the rest.

    `layers` is a choice for all sources of features, or one for each, with commas between. `where` the features enter,
    and the `penalty` λ on the weights of their mix: Peters et al. 2018, §3.2 and 5.2; `between` the first and second
    layer of a BiLSTM: Peters et al. 2017, §2.4. A word that stands twice or more in training has a vector of its own,
    of length `word_dim` (100, or that of the word vectors which are given), and so has one with such a vector, which
    begins there and learns on unless it is to be frozen (`freeze_words`).
    """

    name: Literal["auto", "linear", "bilstm", "biattentive", "esim", "bidaf"] = "auto"
    layers: str = "scalar-mix"
    where: Where = "input"
    penalty: float = 0.001
    size: int = 200
    num_layers: int = 1
    dropout: float = 0.5
    word_dim: int | None = None
    freeze_words: bool = False
    characters: bool = True


PIECE = re.compile(r"\w+|[^\w\s]")
RULES = 2  # in the names of kept features: which version of the rules for the place of a word they follow
BIN_TOKENS = 16384  # at once: the more words, the more often they are the same
Sentence = tuple[str, ...]


@lru_cache(1024)  # many questions of one text
def words_of(text: str) -> Sentence:
    """A text as words: runs of letters and digits, and every other character by itself."""
    return tuple(PIECE.findall(text))


def hash_of(path: Path) -> str:
    """Of a file, or of everything in a model folder that its vectors depend on."""
    if path.is_file():
        return sha256(path)
    endings = (".safetensors", ".hdf5", ".h5", ".json", ".txt", ".model")
    files = [p for p in sorted(path.iterdir()) if p.suffix in endings and p.name != "polyseme.json"]
    return hashlib.sha256("".join(f"{p.name} {sha256(p)}\n" for p in files).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Encoder:
    """A model that gives vectors to words, and how its words become tokens."""

    path: Path
    model: Model
    tokenizer: Tokenizer | None  # none if it spells them

    @classmethod
    def open(cls, path: Path | str) -> Encoder:
        """Any model folder, or ELMo in its published form; of an encoder and a decoder, the encoder (CoVe)."""
        path, device = Path(path), choose_device()
        if is_published(path):
            return cls(path, read_elmo(path).to(device), None)
        folder = load_model(path)
        folder.model.to(device)
        if isinstance(getattr(folder.model.trunk, "embeddings", None), Characters):
            return cls(path, folder.model, None)
        folder.tokenizer.check()
        closed = isinstance(folder.model.trunk, EncoderDecoder)  # the sources it learnt from had an end mark
        return cls(path, folder.model, folder.tokenizer.closed() if closed else folder.tokenizer)

    @property
    def num_layers(self) -> int:
        """How many layers there are, the vectors of tokens counted."""
        return self.model.spec.trunk.num_layers + 1

    @property
    def spelled(self) -> bool:
        """Whether its tokens are characters."""
        return self.tokenizer is not None and self.tokenizer.kind == "characters"

    @property
    def stacks(self) -> tuple[tuple[str, ...], ...]:
        """The ways of reading whose states stand side by side in a vector."""
        trunk: Any = self.model.spec.trunk
        return getattr(trunk, "stacks", (("forward",) if trunk.causal else ("forward", "backward"),))

    @cached_property
    def sizes(self) -> list[int]:
        """How long the vectors of each layer are; those of a recurrent model may differ."""
        device = next(self.model.parameters()).device
        one, layers = torch.zeros(1, dtype=torch.long, device=device), range(self.num_layers)
        with torch.inference_mode():
            found = self.model.trunk(one, Layout.of([1], device=device), keep=layers).layers
        return [found[i].shape[-1] for i in layers]

    @cached_property
    def hash(self) -> str:
        return hash_of(self.path)

    def chosen(self, layers: str) -> list[int]:
        """The numbers of the layers that a choice names."""
        if layers not in LAYERS:
            raise UserError(f"there is no choice of layers {layers!r}; {nearest(layers, LAYERS)}")
        kept, there = LAYERS[layers][0], list(range(self.spelled, self.num_layers))
        if self.spelled and layers == "embeddings":
            raise UserError(f"{self.path} reads characters: it has no vectors of words by themselves, as `last` are")
        if kept is not None and -min(kept) > len(there):
            raise UserError(f"{layers} needs {-min(kept)} layers, but {self.path} has {len(there)}")
        found = there if kept is None else [there[i] for i in kept]
        if len({self.sizes[i] for i in found}) > 1:
            shown = ", ".join(str(self.sizes[i]) for i in found)
            raise UserError(
                f"{layers} needs layers of one size, but those of {self.path} have {shown}: last, embeddings"
            )
        return found

    def read(self, sentences: Sequence[Sentence], layers: Sequence[int]) -> Iterator[tuple[int, int, np.ndarray]]:
        """(sentence, its first word, vectors [words, layers, dim]) for stretches of sentences, in no order.

        A word's vector is that of its first piece (Devlin et al. 2019, §5.3); of a model that reads one way, that of
        the piece at which it has read the word: forward the last, backward the first. Where pieces are characters, it
        is that of the space, or the mark, just behind the word and just before it (Akbik et al. 2018, §2.3). Two
        stacks that each read one way have their own places. A sentence that is longer than the model reads is read in
        stretches.
        """
        stretches = [item for i, words in enumerate(sentences) for item in self._stretches(i, words)]
        device = next(self.model.parameters()).device
        sizes = [len(ids) for *_, ids, _ in stretches]
        with torch.inference_mode(), progress("read features", sum(sizes), "tokens") as bar:
            for index in bins(sizes, BIN_TOKENS):
                items = [stretches[i] for i in index]
                tokens = torch.from_numpy(np.concatenate([ids for *_, ids, _ in items])).to(device)
                layout = Layout.of([len(ids) for *_, ids, _ in items], device=device)
                found = self.model.trunk(tokens, layout, keep=layers).layers
                states = torch.stack([found[i] for i in layers], dim=1).chunk(len(self.stacks), dim=-1)
                begins = np.cumsum([0, *layout.lengths])
                places = np.concatenate([rows + begin for (*_, rows), begin in zip(items, begins)])
                chosen = [s.index_select(0, torch.from_numpy(p).to(device)) for s, p in zip(states, places.T)]
                vectors = torch.cat(chosen, dim=-1).float().cpu()  # of words alone: the fewer leave the device
                for (sentence, first, *_), part in zip(items, vectors.split([len(rows) for *_, rows in items])):
                    yield sentence, first, part.numpy()
                bar.advance(len(tokens))

    def _stretches(self, number: int, words: Sentence) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """(sentence, first word, ids, row of each word in each stack): as many words at a time as the model reads."""
        limit = self.model.spec.trunk.embeddings.max_len
        if self.tokenizer is None:
            room = max(limit - 2, 1)
            for first in range(0, len(words), room):
                some = words[first : first + room]
                rows = np.repeat(1 + np.arange(len(some))[:, None], len(self.stacks), axis=1)
                yield number, first, spell([BEGIN, *some, END]), rows
            return
        room = limit - self.tokenizer.num_added()
        pieces, of = (np.array(a, dtype=np.int64) for a in self.tokenizer.encode_words(words))
        lost = np.setdiff1d(np.arange(len(words)), of)  # words without any piece are unknown
        specials = self.tokenizer.specials
        unknown = next((i for i in (specials.unk, specials.eos) if i is not None), 0)
        places = np.searchsorted(of, lost)
        pieces, of = np.insert(pieces, places, unknown), np.insert(of, places, lost)
        starts = np.searchsorted(of, np.arange(len(words) + 1))
        before = self.tokenizer.wrap([-1])[0].index(-1)
        first = 0
        while first < len(words):
            end = max(int(np.searchsorted(starts, starts[first] + room, side="right")) - 1, first + 1)
            part = pieces[starts[first] : min(starts[end], starts[first] + room)]
            ids = np.array(self.tokenizer.wrap(part.tolist())[0], dtype=np.int64)
            firsts, lasts = (before - starts[first] + s for s in (starts[first:end], starts[first + 1 : end + 1] - 1))
            if self.spelled:  # a space belongs to the word before it; behind the last word is a mark
                lasts[-1] += end == len(words)
                firsts -= ("backward",) in self.stacks
            rows = np.stack([lasts if ways == ("forward",) else firsts for ways in self.stacks], axis=1)
            yield number, first, ids, rows.clip(0, len(ids) - 1)
            first = end


def features(encoder: Encoder, sentences: Sequence[Sentence], layers: str, cache: Path | None) -> np.ndarray:
    """The vectors of all words, sentence after sentence, [words, layers, dim]; from the cache if they are there.

    They are kept under a hash of the model, the choice of layers and the words.
    """
    kept, how = encoder.chosen(layers), LAYERS[layers][1]
    stored, dim = 1 if how == "sum" else len(kept), encoder.sizes[kept[0]]
    sizes = np.array([len(words) for words in sentences], dtype=np.int64)
    for i, size in enumerate(sizes.tolist()):
        if not size:
            raise UserError(f"sentence {i + 1} has no words")
    begins, shape = np.cumsum(sizes) - sizes, (int(sizes.sum()), stored, dim)

    def fill(array: np.ndarray) -> None:
        for sentence, first, vectors in encoder.read(sentences, kept):
            where = begins[sentence] + first
            array[where : where + len(vectors)] = vectors.sum(1, keepdims=True) if how == "sum" else vectors

    if cache is None:
        found = np.empty(shape, dtype=np.float32)
        fill(found)
        return found
    what = [RULES, "sum" if how == "sum" else kept, encoder.hash]
    key = json.dumps([what, [list(words) for words in sentences]])
    path = Path(cache) / f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.npy"
    if not path.exists():

        def write(temporary: Path) -> None:
            array = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            with open(temporary, "r+b") as file:  # a full disk is told now, and does not end the program later
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
            fill(array)
            array.flush()

        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, write)
    try:
        mapped = np.load(path, mmap_mode="r")
        if mapped.shape != shape:
            raise ValueError(f"its shape is {mapped.shape}")
    except (ValueError, OSError, EOFError) as error:
        print(f"{path} is damaged ({error}): its features are read anew", file=sys.stderr)
        os.unlink(path)
        return features(encoder, sentences, layers, cache)
    return mapped
