"""Parallel corpora: pairs of a text and its translation, stored as a corpus.

A pair is stored as a document of two sentences, source and target, so hashes, memory-mapped shards and held-out
documents work as in any corpus. If the two sides have separate vocabularies, the tokenizer of the target side is
stored in `target/`.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.sources.pairs import TextPair, read_pairs
from polyseme.corpus.store import FORMAT, describe_files, manifest_hash, shard_filename, token_dtype
from polyseme.errors import ConfigError, DataError
from polyseme.io.atomic import atomic_directory, ensure_new_directory, sha256, write_array
from polyseme.io.json import write_json
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer

TARGET_TOKENIZER_DIR = "target"
SHARD_PAIRS = 1 << 20


def prepare_parallel(
    sources: Sequence[str],
    tokenizer: Tokenizer,
    out: Path,
    target_tokenizer: Tokenizer | None = None,
    keys: tuple[str, str] | None = None,
    max_tokens: int = 250,
    max_length_ratio: float = 0.0,
) -> dict[str, Any]:
    """Write a corpus of pairs atomically and return its manifest.

    Skips and counts pairs with an empty side, duplicates, pairs with more than `max_tokens` tokens on one side, and,
    if `max_length_ratio` is not 0, pairs whose sides differ in length by more than that factor. `target_tokenizer`
    encodes the target side; by default `tokenizer` encodes both.
    """
    out = Path(out)
    ensure_new_directory(out)
    if max_tokens < 1 or (max_length_ratio and max_length_ratio < 1):
        raise ConfigError(
            f"max_tokens is {max_tokens} and max_length_ratio is {max_length_ratio:g}: both must be at least 1, "
            "or the ratio 0 for no limit"
        )
    effective_target = target_tokenizer or tokenizer
    vocab_size = max(tokenizer.vocab_size, effective_target.vocab_size)
    pair_filter = _PairFilter(max_tokens, max_length_ratio)
    shards: list[dict[str, Any]] = []
    with atomic_directory(out) as folder, progress("pairs", None, "pairs") as bar:
        for pairs in _batch_pairs(read_pairs(sources, keys), SHARD_PAIRS):
            bar.advance(len(pairs))
            encoded_sides = (
                tokenizer.encode_corpus([pair.source for pair in pairs]),
                effective_target.encode_corpus([pair.target for pair in pairs]),
            )
            indices = pair_filter.select(pairs, encoded_sides[0].lengths, encoded_sides[1].lengths)
            if len(indices):
                shards.append(_write_shard(folder, len(shards), encoded_sides, indices, vocab_size))
        counts, examples = pair_filter.num_skipped, pair_filter.examples
        if not shards:
            skipped = f": {counts.total()} were skipped, e.g. {next(iter(examples.values()))}" if examples else ""
            raise DataError(f"there are no pairs in {', '.join(map(str, sources))}{skipped}")
        tokenizers = {"tokenizer": tokenizer} | ({TARGET_TOKENIZER_DIR: target_tokenizer} if target_tokenizer else {})
        total_counts = dict(sum((Counter(shard["counts"]) for shard in shards), Counter()))
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "pairs": {"keys": list(keys or ()), "has_target_tokenizer": target_tokenizer is not None},
            "settings": {"max_tokens": max_tokens, "max_length_ratio": max_length_ratio},
            "tokenizer_hash": tokenizer.hash,
            "vocab_size": tokenizer.vocab_size,
            "sources": [{"path": ", ".join(map(str, sources)), "weight": 1.0, "lang": "", "counts": total_counts}],
            "source_files": [{"path": str(s), "sha256": sha256(Path(s))} for s in sources if Path(s).is_file()],
            "languages": {},
            "removed": {"pairs": dict(counts), "examples": examples},
            "shards": shards,
            "counts": total_counts,
            "tokenizer_files": _save_tokenizers(folder, tokenizers),
        }
        manifest["hash"] = manifest_hash(manifest)
        write_json(folder / "manifest.json", manifest)
    return manifest


def _save_tokenizers(folder: Path, tokenizers: dict[str, Tokenizer]) -> dict[str, dict[str, Any]]:
    names = []
    for name, side_tokenizer in tokenizers.items():
        (folder / name).mkdir()
        side_tokenizer.save(folder / name)
        names += sorted(f"{name}/{path.name}" for path in (folder / name).glob("[!.]*"))
    return describe_files(folder, names)


def _batch_pairs(pairs: Iterable[TextPair], size: int) -> Iterator[list[TextPair]]:
    normalized_pairs = (
        TextPair(normalize_text(pair.source), normalize_text(pair.target), pair.location) for pair in pairs
    )
    while batch := list(itertools.islice(normalized_pairs, size)):
        yield batch


def normalize_text(text: str) -> str:
    """Normalize to NFC and collapse white space."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


@dataclass
class _PairFilter:
    """Skips unusable pairs, and counts them by reason with the location of the first."""

    max_tokens: int
    max_length_ratio: float
    num_skipped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    _seen_hashes: set[bytes] = field(default_factory=set)

    def select(self, pairs: list[TextPair], source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Return the indices of the usable pairs; lengths are in tokens."""
        indices = []
        for i, (pair, a, b) in enumerate(zip(pairs, source_lengths.tolist(), target_lengths.tolist())):
            digest = blake2b(f"{pair.source}\0{pair.target}".encode("utf-8", "replace"), digest_size=8).digest()
            reason = ""
            if not a or not b:
                reason = "empty"
            elif max(a, b) > self.max_tokens:
                reason = "too_long"
            elif self.max_length_ratio and max(a, b) > self.max_length_ratio * min(a, b):
                reason = "length_ratio"
            elif digest in self._seen_hashes:
                reason = "duplicate"
            if reason:
                self.num_skipped[reason] += 1
                self.examples.setdefault(reason, pair.location)
            else:
                self._seen_hashes.add(digest)
                indices.append(i)
        return np.array(indices, dtype=np.int64)


def _write_shard(
    folder: Path, number: int, sides: tuple[Any, Any], indices: np.ndarray, vocab_size: int
) -> dict[str, Any]:
    """Write a shard in which the source of each pair is followed by its target."""
    lengths = np.stack([side.lengths[indices] for side in sides], axis=1).astype(np.int64)
    total = int(lengths.sum())
    tokens, word_starts = np.empty(total, dtype=token_dtype(vocab_size)), np.empty(total, dtype=bool)
    side_starts = (np.cumsum(lengths.ravel()) - lengths.ravel()).reshape(lengths.shape)
    for encoded, destination_starts, size in zip(sides, side_starts.T, lengths.T):
        encoded_starts = (np.cumsum(encoded.lengths) - encoded.lengths)[indices]
        positions = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        destination = np.repeat(destination_starts, size) + positions
        origin = np.repeat(encoded_starts, size) + positions
        tokens[destination] = np.asarray(encoded.ids)[origin]
        word_starts[destination] = np.asarray(encoded.word_starts)[origin]
    parts: dict[str, tuple[np.ndarray, type]] = {
        "tokens": (tokens, tokens.dtype.type),
        "sentences": (side_starts.ravel(), np.uint64),
        "documents": (np.arange(len(indices)) * 2, np.uint64),
        "words": (np.packbits(word_starts, bitorder="little"), np.uint8),
    }
    names = []
    for part_name, (array, dtype) in parts.items():
        names.append(shard_filename(number, part_name))
        write_array(folder / names[-1], [array], dtype)
    counts = {"tokens": total, "sentences": 2 * len(indices), "documents": len(indices), "characters": 0}
    return {"counts": counts, "files": describe_files(folder, names)}
