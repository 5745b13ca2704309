"""Parallel corpora: pairs of a text and its translation, stored as a corpus.

A pair is stored as a document of two sentences, source and target, so hashes, memory-mapped shards and held-out
documents work as in any corpus. If the two sides have separate vocabularies, the tokenizer of the target side is
stored in `target/`.
"""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.card import write_corpus_card
from polyseme.corpus.sources.gettext_catalogs import find_catalogs, read_messages, read_po
from polyseme.corpus.store import FORMAT, describe_files, manifest_hash, shard_filename, token_dtype
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.atomic import atomic_directory, ensure_new_directory, sha256, write_array
from polyseme.io.compression import data_suffix
from polyseme.io.json import parse_json, write_json
from polyseme.io.lines import raise_errors, read_lines
from polyseme.io.lock import locks_folder
from polyseme.io.specs import split_spec
from polyseme.io.tables import open_parquet_rows, read_csv_rows, read_tsv_rows
from polyseme.progress import progress
from polyseme.text.cached_encoder import concat_ranges
from polyseme.text.tokenizer import Tokenizer

TARGET_TOKENIZER_DIR = "target"
SHARD_PAIRS = 1 << 20
_SUFFIX_FORMATS = {
    **dict.fromkeys((".ndjson", ".json"), "jsonl"),
    **{f".{name}": name for name in ("tsv", "csv", "jsonl", "parquet", "po", "mo")},
}
_SPEC_OPTIONS = ("text", "pair", "format", "lang")


@dataclass(frozen=True)
class TextPair:
    """A text, its translation, and where they were read."""

    source: str
    target: str
    location: str


@locks_folder("pairs")
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
        limits = "both must be at least 1, or the ratio 0 for no limit"
        raise ConfigError(f"max_tokens is {max_tokens} and max_length_ratio is {max_length_ratio:g}: {limits}")
    specs = [split_spec(str(source), _SPEC_OPTIONS) for source in sources]
    _check_keys(keys, specs)
    tokenizers = (tokenizer, target_tokenizer or tokenizer)
    dtype = token_dtype(max(side.vocab_size for side in tokenizers))
    pair_filter = _PairFilter(max_tokens, max_length_ratio)
    shards: list[dict[str, Any]] = []
    with atomic_directory(out) as folder, progress("pairs", None, "pairs") as bar:
        pairs = map(_normalize_pair, read_pairs(sources, keys))
        while batch := list(itertools.islice(pairs, SHARD_PAIRS)):
            bar.advance(len(batch))
            texts = [pair.source for pair in batch], [pair.target for pair in batch]
            sides = [side.encode_corpus(side_texts) for side, side_texts in zip(tokenizers, texts)]
            indices = pair_filter.select(batch, sides[0].lengths, sides[1].lengths)
            if len(indices):
                shards.append(write_shard(folder, len(shards), sides, indices, dtype))
        counts, examples = pair_filter.num_skipped, pair_filter.examples
        if not shards:
            skipped = f": {counts.total()} were skipped, e.g. {next(iter(examples.values()))}" if examples else ""
            raise DataError(f"there are no pairs in {', '.join(map(str, sources))}{skipped}")
        names = save_tokenizer(folder, "tokenizer", tokenizer)
        if target_tokenizer:
            names += save_tokenizer(folder, TARGET_TOKENIZER_DIR, target_tokenizer)
        total_counts = dict(sum((Counter(shard["counts"]) for shard in shards), Counter()))
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "pairs": {"keys": list(keys or ()), "has_target_tokenizer": target_tokenizer is not None},
            "settings": {"max_tokens": max_tokens, "max_length_ratio": max_length_ratio},
            "tokenizer_hash": tokenizer.hash,
            "vocab_size": tokenizer.vocab_size,
            "sources": [{"path": ", ".join(map(str, sources)), "weight": 1.0, "lang": "", "counts": total_counts}],
            "source_files": [{"path": s, "sha256": sha256(Path(s))} for s, _ in specs if Path(s).is_file()],
            "languages": {},
            "removed": {"pairs": dict(counts), "examples": examples},
            "shards": shards,
            "counts": total_counts,
            "tokenizer_files": describe_files(folder, names),
        }
        manifest["hash"] = manifest_hash(manifest)
        write_json(folder / "manifest.json", manifest)
        write_corpus_card(folder, manifest)
    return manifest


def _check_keys(keys: tuple[str, str] | None, specs: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Raise `ConfigError` if `keys` apply to no source."""
    if keys is not None and not any(_detect_format(*spec) in _KEY_FORMATS for spec in specs):
        raise ConfigError(f"`keys` is {'+'.join(keys)}, but no source has columns: leave it out")


def save_tokenizer(folder: Path, name: str, tokenizer: Tokenizer) -> list[str]:
    """Save the files of a tokenizer to a subfolder of a corpus, and return their names."""
    tokenizer.save_files(folder / name)
    return sorted(f"{name}/{path.name}" for path in (folder / name).glob("[!.]*"))


def _normalize_pair(pair: TextPair) -> TextPair:
    """Normalize both texts to NFC and collapse their white space."""
    source, target = (unicodedata.normalize("NFC", " ".join(t.split())) for t in (pair.source, pair.target))
    return replace(pair, source=source, target=target)


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
            digest = blake2b(f"{pair.source}\0{pair.target}".encode("utf-8", "replace"), digest_size=16).digest()
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


def write_shard(folder: Path, number: int, sides: list[Any], indices: np.ndarray, dtype: Any) -> dict[str, Any]:
    """Write a shard of documents with a sentence on each side: the source of each pair is followed by its target."""
    lengths = np.stack([side.lengths[indices] for side in sides], axis=1).astype(np.int64)
    total = int(lengths.sum())
    tokens, word_starts = np.empty(total, dtype), np.empty(total, bool)
    side_starts = (np.cumsum(lengths.ravel()) - lengths.ravel()).reshape(lengths.shape)
    for encoded, destination_starts, sizes in zip(sides, side_starts.T, lengths.T):
        destination, origin = concat_ranges(destination_starts, sizes), concat_ranges(encoded.offsets[indices], sizes)
        tokens[destination], word_starts[destination] = encoded.ids[origin], encoded.word_starts[origin]
    parts = {
        "tokens": tokens,
        "sentences": side_starts.ravel().astype(np.uint64),
        "documents": np.arange(len(indices), dtype=np.uint64) * len(sides),
        "words": np.packbits(word_starts, bitorder="little"),
    }
    for part, array in parts.items():
        write_array(folder / shard_filename(number, part), [array], array.dtype)
    counts = {"tokens": total, "sentences": len(sides) * len(indices), "documents": len(indices), "characters": 0}
    return {"counts": counts, "files": describe_files(folder, [shard_filename(number, part) for part in parts])}


def read_pairs(sources: Sequence[str], keys: tuple[str, str] | None = None) -> Iterator[TextPair]:
    """Yield the pairs of all sources. Plain text files come in pairs: line n of one is the translation of line n.

    `keys` are the columns of the two sides, for files that do not choose their own, `PATH::text=en,pair=de`. Without
    them, a TSV file has two columns and no header, and other rows have `source` and `target`.
    `gettext::lang=de` reads all message catalogs of that language on this machine, with the original messages as the
    source.
    """
    unpaired_path: Path | None = None
    for source in sources:
        name, options = split_spec(str(source), _SPEC_OPTIONS)
        if name == "gettext":
            if list(options) != ["lang"]:
                problem = "has options other than a language" if "lang" in options else "does not name a language"
                raise ConfigError(f"{source!r} {problem}, as in gettext::lang=de")
            for _, path in find_catalogs(options["lang"]):
                yield from (TextPair(a, b, str(path)) for a, b in read_messages(path))
            continue
        path = Path(name)
        if not path.is_file():
            raise DataError(f"file {path} does not exist")
        format = _detect_format(name, options)
        sides = _choose_sides(source, options, keys, format)
        if unpaired_path is not None and format != "lines":
            advice = "give both sides as plain text"
            raise DataError(f"{unpaired_path} is plain text, but the next source, {path}, is not: {advice}")
        if format == "lines":
            if unpaired_path is None:
                unpaired_path = path
                continue
            yield from _read_aligned_lines(unpaired_path, path)
            unpaired_path = None
        elif format == "tsv":
            yield from _read_tsv_pairs(path, sides)
        elif format in _ROW_READERS:
            for location, row in _ROW_READERS[format](path):
                yield _row_to_pair(row, location, sides or ("source", "target"))
        else:
            translations = read_messages(path) if format == "mo" else read_po(path)
            yield from (TextPair(a, b, str(path)) for a, b in translations)
    if unpaired_path is not None:
        raise DataError(f"{unpaired_path} is a plain text file without a second file that holds its translations")


def _detect_format(name: str, options: Mapping[str, str]) -> str:
    if name == "gettext":
        return "mo"
    return options.get("format") or _SUFFIX_FORMATS.get(data_suffix(Path(name)), "lines")


def _read_aligned_lines(source_path: Path, target_path: Path) -> Iterator[TextPair]:
    sides = (raise_errors(read_lines(path, str(path))) for path in (source_path, target_path))
    for number, (a, b) in enumerate(itertools.zip_longest(*sides), 1):
        if a is None or b is None:
            shorter_path, longer_path = (source_path, target_path) if a is None else (target_path, source_path)
            if (a or b or (0, ""))[1] == "":  # an empty line at the end
                continue
            problem = f"{shorter_path} ends before line {number}, but {longer_path} does not"
            raise DataError(f"{problem}: their lines must be aligned")
        yield TextPair(a[1], b[1], f"{source_path} line {number}")


def _read_tsv_pairs(path: Path, keys: tuple[str, str] | None) -> Iterator[TextPair]:
    columns, width = (0, 1), 0
    for number, cells in raise_errors(read_tsv_rows(read_lines(path, str(path)))):
        if cells == [""]:
            continue
        if not width:
            width = len(cells)
            if keys is not None:
                for key in keys:
                    if key not in cells:
                        raise DataError(f"{path} line 1: no column {key!r}; {suggest(key, cells)}")
                columns = cells.index(keys[0]), cells.index(keys[1])
                continue
            if width != 2:
                problem = f"{path} line {number}: {width} columns, expected 2"
                raise DataError(f"{problem}; set keys to choose two columns by name")
        if len(cells) != width:
            raise DataError(f"{path} line {number}: {len(cells)} columns, but the first line has {width}")
        yield TextPair(cells[columns[0]], cells[columns[1]], f"{path} line {number}")


def _choose_sides(
    source: str, options: Mapping[str, str], keys: tuple[str, str] | None, format: str
) -> tuple[str, str] | None:
    """Return the columns of the two sides: those of the spec, or `keys` for all files."""
    if format not in _FORMATS:
        raise ConfigError(f"{source}: format is {format!r}; {suggest(format, _FORMATS)}")
    chosen = [options[role] for role in ("text", "pair") if role in options]
    if "lang" in options or (chosen and format in ("lines", "po", "mo")):
        raise ConfigError(f"{source}: its options have no effect on {format}: leave them out")
    if len(chosen) == 1:
        raise ConfigError(f"{source} names one side: choose both, as in ::text=en,pair=de")
    if chosen and keys is not None and tuple(chosen) != keys:
        raise ConfigError(f"{source}: the sides are {'+'.join(chosen)}, but `keys` is {'+'.join(keys)}: leave out one")
    return (chosen[0], chosen[1]) if chosen else keys


def _read_json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in raise_errors(read_lines(path, str(path))):
        if line.strip():
            location = f"{path} line {number}"
            yield location, parse_json(line, location)


def _read_csv_rows(path: Path) -> Iterator[tuple[str, Any]]:
    names: list[str] = []
    for number, cells in raise_errors(read_csv_rows(read_lines(path, str(path)), f"{path} line ")):
        if cells == [""]:
            continue
        if not names:
            names = cells
            continue
        if len(cells) != len(names):
            raise DataError(f"{path} line {number}: {len(cells)} columns, but the first line has {len(names)}")
        yield f"{path} line {number}", dict(zip(names, cells))


def _read_parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    return ((f"{path} row {number}", row) for number, row in enumerate(open_parquet_rows(path, str(path))[1], 1))


def _row_to_pair(row: Any, location: str, keys: tuple[str, str]) -> TextPair:
    row = row.get("translation", row) if isinstance(row, dict) else row
    if not isinstance(row, dict):
        raise DataError(f"{location}: expected a JSON object, not {type(row).__name__}")
    for key in keys:
        if key not in row:
            raise DataError(f"{location}: no key {key!r}; {suggest(key, row)} (choose with ::text=KEY,pair=KEY)")
        if not isinstance(row[key], str):
            raise DataError(f"{location}: {key!r} is {type(row[key]).__name__}, not a string")
    return TextPair(row[keys[0]], row[keys[1]], location)


_ROW_READERS = {"jsonl": _read_json_rows, "csv": _read_csv_rows, "parquet": _read_parquet_rows}
_KEY_FORMATS = ("tsv", *_ROW_READERS)
_FORMATS = ("lines", "po", "mo", *_KEY_FORMATS)
