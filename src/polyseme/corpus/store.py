"""Corpora on disk: hashed, memory-mapped shards of tokens with document, sentence and word starts."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import Any, Self

import numpy as np

from polyseme.errors import DataError
from polyseme.io.atomic import sha256
from polyseme.io.hashes import TOKENIZER_FILES
from polyseme.io.json import format_json, has_shape, read_json
from polyseme.text.cached_encoder import concat_ranges
from polyseme.text.tokenizer import Tokenizer

FORMAT = 3
SHARD_PARTS = ("tokens", "sentences", "documents", "words")
_FILES_SHAPE = {str: {"bytes": int, "sha256": str}}
MANIFEST_SHAPE = {
    "vocab_size": int,
    "tokenizer_hash": str,
    "tokenizer_files": _FILES_SHAPE,
    "shards": [{"files": _FILES_SHAPE}],
    "sources": [{"weight": float, "counts": {str: int}}],
    "counts": {str: int},
    "settings": dict,
    "removed": dict,
    "languages": {str: dict},
}
_DEFAULTS: dict[str, Any] = {"counts": {}, "sources": [], "settings": {}, "removed": {}, "languages": {}}
WORK_DIR = ".work"  # subfolder with the state of an unfinished preparation


def shard_filename(number: int, part: str) -> str:
    """Return the name of one of the `.npy` files of a shard.

    The parts are:
    - tokens: token ids, uint16 or uint32
    - sentences: the token each sentence starts at
    - documents: the sentence each document starts at
    - words: one bit per token, set where a word starts, lowest bit first
    - exact_hashes, signatures: fingerprints of the documents, to compare appended documents with; only in
      deduplicated corpora
    """
    return f"shard-{number:05d}.{part}.npy"


def token_dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest of uint16 and uint32 that holds all token ids."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def manifest_hash(manifest: dict[str, Any]) -> str:
    """Hash all entries of a manifest except the hash itself."""
    content = {key: value for key, value in manifest.items() if key != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents of sentences of tokens, addressed by ranges of global token offsets, each within one document."""

    path: Path
    manifest: dict[str, Any]
    sentence_offsets: np.ndarray  # int64 [num_sentences + 1]: first token of each sentence, then the end
    document_offsets: np.ndarray  # int64 [num_documents + 1]: first sentence of each document, then the end
    _tokens: list[np.ndarray]
    _word_start_bits: list[np.ndarray]
    _shard_starts: np.ndarray  # int64 [num_shards]: first token of each shard
    # Only in a subset: where each document starts in it, and the distance to its start in the whole corpus
    _view_shifts: tuple[np.ndarray, np.ndarray] | None = None
    _document_ids: np.ndarray | None = None  # only in a subset: the index of each document in the whole corpus

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Memory-map a corpus folder and check its file sizes; `verify_corpus` checks hashes."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        tokens, sentences, documents, words = (
            [memmap_array(folder / shard_filename(i, part)) for i in range(len(manifest["shards"]))]
            for part in SHARD_PARTS
        )
        token_starts = np.cumsum([0, *map(len, tokens)])
        sentence_offsets = _global_offsets(sentences, token_starts)
        document_offsets = _global_offsets(documents, np.cumsum([0, *map(len, sentences)]))
        return cls(folder, manifest, sentence_offsets, document_offsets, tokens, words, token_starts[:-1])

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return int(self.sentence_offsets[-1] - self.sentence_offsets[0])

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return len(self.sentence_offsets) - 1

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.document_offsets) - 1

    @property
    def document_ids(self) -> np.ndarray:
        """The index of each document in the whole corpus, of which this one may be a subset."""
        return np.arange(self.num_documents) if self._document_ids is None else self._document_ids

    @property
    def vocab_size(self) -> int:
        """Size of the tokenizer's vocabulary."""
        return int(self.manifest["vocab_size"])

    @property
    def tokenizer_hash(self) -> str:
        """Hash of the tokenizer the corpus was encoded with."""
        return str(self.manifest["tokenizer_hash"])

    @property
    def manifest_hash(self) -> str:
        """Hash that identifies the whole content, since the manifest lists the hash of every file."""
        return str(self.manifest["hash"])

    @property
    def content_hash(self) -> str:
        """Hash of the tokens and their tokenizer, the same wherever the sources were read from."""
        shards = [shard["files"] for shard in self.manifest["shards"]]
        return manifest_hash({"tokenizer_hash": self.manifest["tokenizer_hash"], "shards": shards})

    def gather_tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the token ids (int64) of many ranges, concatenated. Each range lies within one document."""
        return self._gather(starts, lengths, lambda shard, index: self._tokens[shard].take(index)).astype(np.int64)

    def gather_word_starts(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return, for each token of the ranges, whether it starts a word."""

        def read(shard: int, index: np.ndarray) -> np.ndarray:
            bits = (index & 7).astype(np.uint8)
            index >>= 3
            return self._word_start_bits[shard].take(index) >> bits & 1

        return self._gather(starts, lengths, read).astype(bool)

    def _gather(
        self, starts: np.ndarray, lengths: np.ndarray, read_shard: Callable[[int, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        starts, lengths = self._shift(np.asarray(starts, dtype=np.int64)), np.asarray(lengths, dtype=np.int64)
        if not len(starts):
            return np.empty(0, dtype=np.int64)
        shards = np.searchsorted(self._shard_starts, starts, side="right") - 1
        local_starts = starts - self._shard_starts[shards]
        if (shards == shards[0]).all():
            return read_shard(int(shards[0]), concat_ranges(local_starts, lengths))
        # Read each shard once, in order, then restore the order of the ranges.
        order = np.argsort(shards, kind="stable")
        used_shards, firsts = np.unique(shards[order], return_index=True)
        shard_values = [
            read_shard(shard, concat_ranges(local_starts[part], lengths[part]))
            for shard, part in zip(used_shards.tolist(), np.split(order, firsts[1:]))
        ]
        output_starts = np.empty_like(starts)
        output_starts[order] = np.cumsum(lengths[order]) - lengths[order]
        return np.concatenate(shard_values).take(concat_ranges(output_starts, lengths))

    def _shift(self, starts: np.ndarray) -> np.ndarray:
        """Convert token offsets of a subset to those of the whole corpus."""
        if self._view_shifts is None:
            return starts
        view_starts, shifts = self._view_shifts
        return starts + shifts[np.searchsorted(view_starts, starts, side="right") - 1]

    def select(self, document_ids: np.ndarray) -> Self:
        """Return a view of some of the documents, in that order, with offsets that start at 0."""
        sizes = np.diff(self.document_offsets)[document_ids]
        sentences = concat_ranges(self.document_offsets[document_ids], sizes)
        new_sentences = np.concatenate([[0], np.cumsum(np.diff(self.sentence_offsets)[sentences])])
        new_documents = np.concatenate([[0], np.cumsum(sizes)])
        view_starts = new_sentences[new_documents[:-1]]
        corpus_starts = self._shift(self.sentence_offsets[self.document_offsets[document_ids]])
        original_ids = self.document_ids[document_ids]
        view = replace(self, sentence_offsets=new_sentences, document_offsets=new_documents, _document_ids=original_ids)
        return replace(view, _view_shifts=(view_starts, corpus_starts - view_starts))

    def resample_by_weight(self) -> Self:
        """Repeat or drop documents by the weight of their source: each twice at 2, every other one at 0.5."""
        sources = self.manifest["sources"]
        if all(source["weight"] == 1 for source in sources):
            return self
        counts = [source["counts"]["documents"] for source in sources]
        source_ids = np.searchsorted(np.cumsum(counts), self.document_ids, side="right")
        selected_documents = []
        for i, source in enumerate(sources):
            documents = np.flatnonzero(source_ids == i)
            num_selected = max(round(len(documents) * source["weight"]), min(len(documents), 1))
            indices = np.arange(num_selected) * max(len(documents), 1) // max(num_selected, 1)
            selected_documents.append(documents[indices])
        return self.select(np.concatenate(selected_documents))

    def split(self, holdout: float) -> tuple[Self, Self | None]:
        """Hold out a share of the documents, evenly spaced. Return the rest and them (None if too few)."""
        num_documents = self.num_documents
        num_heldout = max(1, round(num_documents * holdout))
        if holdout <= 0 or num_heldout >= num_documents:
            return self, None
        is_heldout = np.zeros(num_documents, dtype=bool)
        is_heldout[((np.arange(num_heldout) + 0.5) * num_documents / num_heldout).astype(np.int64)] = True
        return self.select(np.flatnonzero(~is_heldout)), self.select(np.flatnonzero(is_heldout))


def verify_corpus(folder: Path | str) -> None:
    """Hash every file of a corpus. Raises a `DataError` that names the first damaged file."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    check_hashes(folder, manifest)
    for side in {Path(name).parent for name in manifest["tokenizer_files"]}:
        names = {path.relative_to(folder).as_posix() for name in TOKENIZER_FILES for path in (folder / side).glob(name)}
        if added := sorted(names - manifest["tokenizer_files"].keys()):
            raise DataError(f"{folder / added[0]} was added: it is not in the manifest; remove it")
    if Tokenizer.load(folder / "tokenizer").hash != manifest["tokenizer_hash"]:
        raise DataError(f"{folder}/tokenizer is not the tokenizer that this corpus was encoded with")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a finished corpus, and check that its files exist and have the listed sizes."""
    if folder.is_file():
        raise DataError(f"{folder} is a file, not a corpus folder: prepare a corpus from it first")
    if not folder.is_dir():
        raise DataError(f"corpus folder {folder} does not exist")
    if not (folder / "manifest.json").is_file():
        if (folder / WORK_DIR).is_dir():
            raise DataError(f"{folder}: the preparation has not finished; run it again to resume")
        raise DataError(f"{folder} is not a corpus: it has no manifest.json")
    manifest = read_json(folder / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{folder}/manifest.json is not the manifest of a corpus in format {FORMAT}")
    text = (folder / "manifest.json").read_text(encoding="utf-8")
    if manifest.get("hash") != manifest_hash(manifest) or text != format_json(manifest):
        raise DataError(f"{folder}/manifest.json is damaged: its hash does not match its content")
    if not has_shape(_DEFAULTS | manifest, MANIFEST_SHAPE):
        raise DataError(f"{folder}/manifest.json is not the manifest of a corpus: it lacks values or has wrong types")
    for name, facts in _listed_files(manifest).items():
        if not (folder / name).is_file():
            raise DataError(f"{folder}/{name} is missing; prepare the corpus again")
        size = (folder / name).stat().st_size
        if size != facts["bytes"]:
            raise DataError(f"{folder}/{name} has {size} bytes, but {facts['bytes']} were written")
    return manifest


def describe_files(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files, as a manifest lists them."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}


def _listed_files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    groups = [manifest["tokenizer_files"], *(shard["files"] for shard in manifest["shards"])]
    return {name: facts for group in groups for name, facts in group.items()}


def check_hashes(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise a `DataError` for the first file whose hash is not the one in the manifest."""
    for name, facts in _listed_files(manifest).items():
        if sha256(folder / name) != facts["sha256"]:
            raise DataError(f"{folder}/{name} is damaged: its hash is not the one in the manifest")


def memmap_array(path: Path) -> np.ndarray:
    """Memory-map an `.npy` file read-only."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, TypeError, OverflowError, SyntaxError, TokenError) as error:  # numpy parses Python
        raise DataError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def _global_offsets(parts: list[np.ndarray], starts: np.ndarray) -> np.ndarray:
    """Convert starts within shards to global offsets, followed by the end."""
    offsets = [part.astype(np.int64) + start for part, start in zip(parts, starts)]
    return np.concatenate([*offsets, starts[-1:]])
