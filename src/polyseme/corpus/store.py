"""A corpus on disk: hashed, memory-mapped shards of tokens with document, sentence and word starts."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import UserError
from polyseme.io.files import read_json, sha256
from polyseme.text.cached_encoder import ranges
from polyseme.text.tokenizer import Tokenizer

FORMAT = 2
PARTS = ("tokens", "sentences", "documents", "words")
UNFINISHED_WORK = ".work"  # the folder inside a corpus in which prepare keeps what it needs to go on
_UNFINISHED = "preparation has not finished; run prepare again, it goes on where it stopped"


def shard_file(number: int, part: str) -> str:
    """A shard is a few plain numpy files.

    tokens: uint16 or uint32 · sentences: the token each starts at · documents: the sentence each starts at ·
    words: one bit a token, set where a word starts, lowest bit first · exact and signatures: the fingerprints of
    its documents, if duplicates were looked for, so that what is appended can be compared with them.
    """
    return f"shard-{number:05d}.{part}.npy"


def token_type(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def manifest_hash(manifest: dict[str, Any]) -> str:
    """The hash of everything a manifest says but this hash itself."""
    said = {key: value for key, value in manifest.items() if key != "hash"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents of sentences of tokens, addressed by one global token offset.

    A token range that is asked for lies within one document; documents never cross a shard.
    """

    path: Path
    manifest: dict[str, Any]
    sentences: np.ndarray  # int64 [num_sentences + 1]: the token each sentence starts at, and the end
    documents: np.ndarray  # int64 [num_documents + 1]: the sentence each document starts at, and the end
    _tokens: list[np.ndarray]
    _words: list[np.ndarray]
    _borders: np.ndarray  # int64 [num_shards]: the token each shard starts at
    _moved: tuple[np.ndarray, np.ndarray] | None = None  # of a subset: where each document starts here, and how
    # far away it lies in the whole corpus
    _numbers: np.ndarray | None = None  # of a subset: the number of each document in the whole corpus

    @classmethod
    def open(cls, folder: Path | str, verify: bool = False) -> Corpus:
        """Map a corpus folder. Sizes are always checked; `verify` hashes every file too."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        if verify:
            check_hashes(folder, manifest)
        shards = [[map_array(folder / shard_file(i, part)) for part in PARTS] for i in range(len(manifest["shards"]))]
        tokens, sentences, documents, words = zip(*shards)
        token_starts = np.cumsum([0, *map(len, tokens)])
        sentence_starts = np.cumsum([0, *map(len, sentences)])
        return cls(
            folder,
            manifest,
            _joined(sentences, token_starts),
            _joined(documents, sentence_starts),
            list(tokens),
            list(words),
            token_starts[:-1],
        )

    @property
    def num_tokens(self) -> int:
        return int(self.sentences[-1] - self.sentences[0])

    @property
    def num_sentences(self) -> int:
        return len(self.sentences) - 1

    @property
    def num_documents(self) -> int:
        return len(self.documents) - 1

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocab_size"])

    @property
    def tokenizer_hash(self) -> str:
        return str(self.manifest["tokenizer_hash"])

    @property
    def manifest_hash(self) -> str:
        """Names the whole content, as the manifest holds the hash of every file."""
        return str(self.manifest["hash"])

    def gather(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The token ids, int64, of many ranges end to end; each range within one document."""

        def read(shard: int, index: np.ndarray) -> np.ndarray:
            return self._tokens[shard].take(index)

        return self._gather(starts, lengths, read).astype(np.int64)

    def gather_words(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """True for each token of the ranges that starts a word."""

        def read(shard: int, index: np.ndarray) -> np.ndarray:
            bits = (index & 7).astype(np.uint8)
            index >>= 3
            return self._words[shard].take(index) >> bits & 1

        return self._gather(starts, lengths, read).astype(bool)

    def _gather(
        self, starts: np.ndarray, lengths: np.ndarray, read: Callable[[int, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        starts, lengths = np.asarray(starts, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
        if not len(starts):
            return np.empty(0, dtype=np.int64)
        if self._moved is not None:
            at, by = self._moved
            starts = starts + by[np.searchsorted(at, starts, side="right") - 1]
        shards = np.searchsorted(self._borders, starts, side="right") - 1
        local = starts - self._borders[shards]
        if (shards == shards[0]).all():
            return read(int(shards[0]), ranges(local, lengths))
        # Read in the order of the shards, each shard once, then bring the ranges into the order asked for.
        order = np.argsort(shards, kind="stable")
        touched, firsts = np.unique(shards[order], return_index=True)
        borders = [*firsts.tolist(), len(order)]
        parts = [order[a:b] for a, b in itertools.pairwise(borders)]
        found = [read(s, ranges(local[part], lengths[part])) for s, part in zip(touched.tolist(), parts)]
        places = np.empty_like(starts)
        places[order] = np.cumsum(lengths[order]) - lengths[order]
        return np.concatenate(found).take(ranges(places, lengths))

    def take(self, documents: np.ndarray) -> Corpus:
        """A corpus of some of the documents, in the order given: a view with offsets of its own."""
        sizes = np.diff(self.documents)[documents]
        sentences = ranges(self.documents[documents], sizes)
        ends = np.cumsum(np.diff(self.sentences)[sentences])
        new_sentences = np.concatenate([[0], ends])
        new_documents = np.concatenate([[0], np.cumsum(sizes)])
        begins = new_sentences[new_documents[:-1]]
        lies = self.sentences[self.documents[documents]]
        if self._moved is not None:
            at, by = self._moved
            lies = lies + by[np.searchsorted(at, lies, side="right") - 1]
        numbers = documents if self._numbers is None else self._numbers[documents]
        view = replace(self, sentences=new_sentences, documents=new_documents, _numbers=numbers)
        return replace(view, _moved=(begins, lies - begins))

    def weighted(self) -> Corpus:
        """Documents as often as the weight of their origin says: twice at 2, every other one at 0.5."""
        origins = self.manifest["origins"]
        if all(origin["weight"] == 1 for origin in origins):
            return self
        counts = [origin["counts"]["documents"] for origin in origins]
        number = self._numbers if self._numbers is not None else np.arange(self.num_documents)
        of = np.searchsorted(np.cumsum(counts), number, side="right")
        chosen = []
        for i, origin in enumerate(origins):
            mine = np.flatnonzero(of == i)
            whole = max(round(len(mine) * origin["weight"]), min(len(mine), 1))
            chosen.append(mine[np.arange(whole) * max(len(mine), 1) // max(whole, 1)])
        return self.take(np.concatenate(chosen))

    def split(self, share: float) -> tuple[Corpus, Corpus | None]:
        """Hold out a share of the documents, spread evenly; the second is None if there are too few."""
        count = self.num_documents
        held = max(1, round(count * share))
        if share <= 0 or held >= count:
            return self, None
        chosen = np.zeros(count, dtype=bool)
        chosen[((np.arange(held) + 0.5) * count / held).astype(np.int64)] = True
        return self.take(np.flatnonzero(~chosen)), self.take(np.flatnonzero(chosen))


def verify(folder: Path | str) -> None:
    """Hash every file of a corpus; a `UserError` names the first that is not what prepare wrote."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    check_hashes(folder, manifest)
    if Tokenizer.load(folder / "tokenizer").hash != manifest["tokenizer_hash"]:
        raise UserError(f"{folder}/tokenizer is not the tokenizer that this corpus was made with")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a finished corpus, whose files are all there at their full size."""
    if not folder.is_dir():
        raise UserError(f"there is no corpus folder {folder}")
    if not (folder / "manifest.json").is_file():
        if (folder / UNFINISHED_WORK).is_dir():
            raise UserError(f"{folder}: {_UNFINISHED}")
        raise UserError(f"{folder} is not a corpus: it has no manifest.json")
    manifest = read_json(folder / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{folder}/manifest.json is not of a corpus in format {FORMAT}")
    if manifest.get("hash") != manifest_hash(manifest):
        raise UserError(f"{folder}/manifest.json is damaged: its own hash does not hold")
    for name, facts in _files(manifest).items():
        if not (folder / name).is_file():
            raise UserError(f"{folder}/{name} is missing; prepare the corpus again")
        size = (folder / name).stat().st_size
        if size != facts["bytes"]:
            raise UserError(f"{folder}/{name} has {size} bytes where {facts['bytes']} were written")
    return manifest


def _files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    groups = [manifest["tokenizer_files"], *(shard["files"] for shard in manifest["shards"])]
    return {name: facts for group in groups for name, facts in group.items()}


def check_hashes(folder: Path, manifest: dict[str, Any]) -> None:
    for name, facts in _files(manifest).items():
        if sha256(folder / name) != facts["sha256"]:
            raise UserError(f"{folder}/{name} is damaged: its hash is not the one in the manifest")


def map_array(path: Path) -> np.ndarray:
    """An `.npy` file in memory when it is touched."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _joined(parts: tuple[np.ndarray, ...], starts: np.ndarray) -> np.ndarray:
    """Starts inside shards to global ones, with the end behind."""
    whole = [part.astype(np.int64) + start for part, start in zip(parts, starts)]
    return np.concatenate([*whole, starts[-1:]])
