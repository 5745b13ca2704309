"""Parallel text: pairs of a text and its translation, from files to a corpus whose documents are pairs.

A pair is a document of two sentences, the source and its target, so all that is known of corpora holds: hashes,
memory-mapped shards, held-out documents. Where the two sides have vocabularies of their own, the target's tokenizer
lies beside the other, in `target/`.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.sources.gettext_catalogs import find_catalogs, read_messages
from polyseme.corpus.sources.lines import read_lines
from polyseme.corpus.sources.po import read_po
from polyseme.corpus.store import FORMAT, manifest_hash, shard_filename, token_dtype
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.atomic import atomic_directory, ensure_new_directory, sha256, write_array
from polyseme.io.json import parse_json, write_json
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer

TARGET_TOKENIZER_DIR = "target"  # the folder of the target's own tokenizer
SHARD_PAIRS = 1 << 20  # pairs
_SUFFIX_FORMATS = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".po": "po", ".mo": "mo"}
_COMPRESSED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")


@dataclass(frozen=True)
class TextPair:
    source: str
    target: str
    location: str


def read_pairs(sources: Sequence[str], keys: tuple[str, str] | None = None) -> Iterator[TextPair]:
    """The pairs of all sources. Files of lines come in twos, the n-th line of one with the n-th of the other.

    `keys` are the columns of a TSV file whose first line names them, or the keys of JSON lines; without them a TSV file
    has two columns and no names, and JSON lines have `source` and `target`. `gettext::lang=de` is every catalogue of
    messages on this machine in that language; the messages themselves are the source.
    """
    unpaired_path: Path | None = None
    for source in sources:
        if source.partition("::")[0] == "gettext":
            lang = source.partition("lang=")[2]
            if not lang:
                raise ConfigError(f"{source!r} does not say which language: gettext::lang=de")
            for _, path in find_catalogs(lang):
                yield from (TextPair(a, b, str(path)) for a, b in read_messages(path))
            continue
        path = Path(source)
        if not path.is_file():
            raise DataError(f"there is no file {path}")
        format = _detect_format(path)
        if unpaired_path is not None and format != "lines":
            raise DataError(f"{unpaired_path} is a file of lines, and {path} is not its other side")
        if format == "lines":
            if unpaired_path is None:
                unpaired_path = path
                continue
            yield from _read_aligned_lines(unpaired_path, path)
            unpaired_path = None
        elif format == "tsv":
            yield from _read_tsv_pairs(path, keys)
        elif format == "jsonl":
            yield from _read_json_pairs(path, keys or ("source", "target"))
        else:
            translations = read_messages(path) if format == "mo" else read_po(path)
            yield from (TextPair(a, b, str(path)) for a, b in translations)
    if unpaired_path is not None:
        raise DataError(f"{unpaired_path} has lines of one side, and no file of the other follows it")


def _detect_format(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _COMPRESSED_SUFFIXES]
    return _SUFFIX_FORMATS.get(suffixes[-1] if suffixes else "", "lines")


def _read_lines_strict(path: Path) -> Iterator[tuple[int, str]]:
    for numbered_line in read_lines(path, str(path)):
        if isinstance(numbered_line, DataError):
            raise numbered_line
        yield numbered_line


def _read_aligned_lines(source_path: Path, target_path: Path) -> Iterator[TextPair]:
    for number, (a, b) in enumerate(
        itertools.zip_longest(_read_lines_strict(source_path), _read_lines_strict(target_path)), 1
    ):
        if a is None or b is None:
            shorter_path, longer_path = (source_path, target_path) if a is None else (target_path, source_path)
            if (a or b or (0, ""))[1] == "":  # an empty line at the end
                continue
            raise DataError(
                f"{shorter_path} ends before line {number}, but {longer_path} goes on: their lines are no pairs"
            )
        yield TextPair(a[1], b[1], f"{source_path} line {number}")


def _read_tsv_pairs(path: Path, keys: tuple[str, str] | None) -> Iterator[TextPair]:
    columns, width = (0, 1), 0
    for number, line in _read_lines_strict(path):
        if not line:
            continue
        cells = line.split("\t")
        if not width:
            width = len(cells)
            if keys is not None:
                for key in keys:
                    if key not in cells:
                        raise DataError(f"{path} line 1: no column {key!r}; {suggest(key, cells)}")
                columns = cells.index(keys[0]), cells.index(keys[1])
                continue
            if width != 2:
                raise DataError(f"{path} line {number}: {width} columns, expected 2: or name them with keys")
        if len(cells) != width:
            raise DataError(f"{path} line {number}: {len(cells)} columns, but the first line has {width}")
        yield TextPair(cells[columns[0]], cells[columns[1]], f"{path} line {number}")


def _read_json_pairs(path: Path, keys: tuple[str, str]) -> Iterator[TextPair]:
    for number, line in _read_lines_strict(path):
        if not line.strip():
            continue
        location = f"{path} line {number}"
        row = parse_json(line, location)
        row = row.get("translation", row) if isinstance(row, dict) else row
        if not isinstance(row, dict):
            raise DataError(f"{location}: {type(row).__name__} where an object must be")
        for key in keys:
            if key not in row:
                raise DataError(f"{location}: no key {key!r}; {suggest(key, row)}")
            if not isinstance(row[key], str):
                raise DataError(f"{location}: {key!r} is no text")
        yield TextPair(row[keys[0]], row[keys[1]], location)


def prepare_parallel(
    sources: Sequence[str],
    tokenizer: Tokenizer,
    out: Path,
    target_tokenizer: Tokenizer | None = None,
    keys: tuple[str, str] | None = None,
    max_tokens: int = 250,
    max_length_ratio: float = 0.0,
) -> dict[str, Any]:
    """Write a corpus of pairs, whole or not at all, and return its manifest.

    Left out and counted are pairs with an empty side, pairs that were there already, with a side of more than
    `max_tokens` tokens, and, if there is a `max_length_ratio`, with sides of which one has so many times the tokens of
    the other. `target_tokenizer` is the tokenizer of the target side, if that is another.
    """
    out = Path(out)
    ensure_new_directory(out)
    if max_tokens < 1 or (max_length_ratio and max_length_ratio < 1):
        raise ConfigError(
            f"max_tokens is {max_tokens} and max_length_ratio is {max_length_ratio:g}: both have to be 1 or more, "
            "or the ratio 0 for none"
        )
    effective_target = target_tokenizer or tokenizer
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    shards: list[dict[str, Any]] = []
    with atomic_directory(out) as folder, progress("pairs", None, "pairs") as bar:
        seen_hashes: set[bytes] = set()
        for pairs in _batch_pairs(read_pairs(sources, keys), SHARD_PAIRS):
            bar.advance(len(pairs))
            encoded_sides = (
                tokenizer.encode_corpus([p.source for p in pairs]),
                effective_target.encode_corpus([p.target for p in pairs]),
            )
            kept_indices = _filter_pairs(
                pairs,
                encoded_sides[0].lengths,
                encoded_sides[1].lengths,
                max_tokens,
                max_length_ratio,
                seen_hashes,
                counts,
                examples,
            )
            if len(kept_indices):
                vocab_size = max(tokenizer.vocab_size, effective_target.vocab_size)
                shards.append(_write_shard(folder, len(shards), encoded_sides, kept_indices, vocab_size))
        if not shards:
            raise DataError(f"there are no pairs in {', '.join(map(str, sources))}" + (
                f": {sum(counts.values())} were left out, such as {next(iter(examples.values()))}" if examples else ""
            ))  # fmt: skip
        tokenizers = {"tokenizer": tokenizer} | ({TARGET_TOKENIZER_DIR: target_tokenizer} if target_tokenizer else {})
        names = []
        for name, side_tokenizer in tokenizers.items():
            (folder / name).mkdir()
            side_tokenizer.save(folder / name)
            names += sorted(f"{name}/{path.name}" for path in (folder / name).glob("[!.]*"))
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
            "tokenizer_files": _file_facts(folder, names),
        }
        manifest["hash"] = manifest_hash(manifest)
        write_json(folder / "manifest.json", manifest)
    return manifest


def _batch_pairs(pairs: Iterable[TextPair], size: int) -> Iterator[list[TextPair]]:
    clean_pairs = iter(_clean_pairs(pairs))
    while batch := list(itertools.islice(clean_pairs, size)):
        yield batch


def _clean_pairs(pairs: Iterable[TextPair]) -> Iterator[TextPair]:
    for pair in pairs:
        yield TextPair(normalize_text(pair.source), normalize_text(pair.target), pair.location)


def normalize_text(text: str) -> str:
    """Composed characters, and one space wherever there is space."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _filter_pairs(
    pairs: list[TextPair],
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_tokens: int,
    max_length_ratio: float,
    seen_hashes: set[bytes],
    counts: Counter[str],
    examples: dict[str, str],
) -> np.ndarray:
    kept_indices = []
    for i, (pair, a, b) in enumerate(zip(pairs, source_lengths.tolist(), target_lengths.tolist())):
        digest = blake2b(f"{pair.source}\0{pair.target}".encode("utf-8", "replace"), digest_size=8).digest()
        reason = ""
        if not a or not b:
            reason = "empty"
        elif max(a, b) > max_tokens:
            reason = "too_long"
        elif max_length_ratio and max(a, b) > max_length_ratio * min(a, b):
            reason = "length_ratio"
        elif digest in seen_hashes:
            reason = "duplicate"
        if reason:
            counts[reason] += 1
            examples.setdefault(reason, pair.location)
        else:
            seen_hashes.add(digest)
            kept_indices.append(i)
    return np.array(kept_indices, dtype=np.int64)


def _write_shard(
    folder: Path, number: int, sides: tuple[Any, Any], kept_indices: np.ndarray, vocab_size: int
) -> dict[str, Any]:
    """One shard: of each pair that is kept the source, then the target."""
    lengths = np.stack([side.lengths[kept_indices] for side in sides], axis=1).astype(np.int64)
    total = int(lengths.sum())
    tokens, word_starts = np.empty(total, dtype=token_dtype(vocab_size)), np.empty(total, dtype=bool)
    side_starts = (np.cumsum(lengths.ravel()) - lengths.ravel()).reshape(lengths.shape)
    for encoded, destination_starts, size in zip(sides, side_starts.T, lengths.T):
        encoded_starts = (np.cumsum(encoded.lengths) - encoded.lengths)[kept_indices]
        positions = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        destination, origin = (
            np.repeat(destination_starts, size) + positions,
            np.repeat(encoded_starts, size) + positions,
        )
        tokens[destination], word_starts[destination] = (
            np.asarray(encoded.ids)[origin],
            np.asarray(encoded.word_starts)[origin],
        )
    parts: dict[str, tuple[np.ndarray, type]] = {
        "tokens": (tokens, tokens.dtype.type),
        "sentences": (side_starts.ravel(), np.uint64),
        "documents": (np.arange(len(kept_indices)) * 2, np.uint64),
        "words": (np.packbits(word_starts, bitorder="little"), np.uint8),
    }
    names = []
    for part_name, (array, dtype) in parts.items():
        names.append(shard_filename(number, part_name))
        write_array(folder / names[-1], [array], dtype)
    counts = {"tokens": total, "sentences": 2 * len(kept_indices), "documents": len(kept_indices), "characters": 0}
    return {"counts": counts, "files": _file_facts(folder, names)}


def _file_facts(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}
