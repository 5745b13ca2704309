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

from polyseme.corpus.sources.gettext_catalogs import catalogues, messages
from polyseme.corpus.sources.lines import lines
from polyseme.corpus.sources.po import read_po
from polyseme.corpus.store import FORMAT, manifest_hash, shard_file, token_type
from polyseme.errors import UserError, nearest
from polyseme.io.files import new_folder, parse_json, sha256, whole_folder, write_array, write_json
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer

TARGET = "target"  # the folder of the target's own tokenizer
SHARD = 1 << 20  # pairs
_ENDINGS = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".po": "po", ".mo": "mo"}
_PACKED = (".gz", ".xz", ".bz2", ".zst")


@dataclass(frozen=True)
class Pair:
    source: str
    target: str
    where: str


def read_pairs(sources: Sequence[str], keys: tuple[str, str] | None = None) -> Iterator[Pair]:
    """The pairs of all sources. Files of lines come in twos, the n-th line of one with the n-th of the other.

    `keys` are the columns of a TSV file whose first line names them, or the keys of JSON lines; without them a TSV file
    has two columns and no names, and JSON lines have `source` and `target`. `gettext::lang=de` is every catalogue of
    messages on this machine in that language; the messages themselves are the source.
    """
    waiting: Path | None = None
    for given in sources:
        if given.partition("::")[0] == "gettext":
            lang = given.partition("lang=")[2]
            if not lang:
                raise UserError(f"{given!r} does not say which language: gettext::lang=de")
            for _, path in catalogues(lang):
                yield from (Pair(a, b, str(path)) for a, b in messages(path))
            continue
        path = Path(given)
        if not path.is_file():
            raise UserError(f"there is no file {path}")
        kind = _kind(path)
        if waiting is not None and kind != "lines":
            raise UserError(f"{waiting} is a file of lines, and {path} is not its other side")
        if kind == "lines":
            if waiting is None:
                waiting = path
                continue
            yield from _side_by_side(waiting, path)
            waiting = None
        elif kind == "tsv":
            yield from _tsv(path, keys)
        elif kind == "jsonl":
            yield from _json(path, keys or ("source", "target"))
        else:
            found = messages(path) if kind == "mo" else read_po(path)
            yield from (Pair(a, b, str(path)) for a, b in found)
    if waiting is not None:
        raise UserError(f"{waiting} has lines of one side, and no file of the other follows it")


def _kind(path: Path) -> str:
    endings = [ending.lower() for ending in path.suffixes if ending.lower() not in _PACKED]
    return _ENDINGS.get(endings[-1] if endings else "", "lines")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for found in lines(path, str(path)):
        if isinstance(found, UserError):
            raise found
        yield found


def _side_by_side(first: Path, second: Path) -> Iterator[Pair]:
    for number, (a, b) in enumerate(itertools.zip_longest(_lines(first), _lines(second)), 1):
        if a is None or b is None:
            short, long = (first, second) if a is None else (second, first)
            if (a or b or (0, ""))[1] == "":  # an empty line at the end
                continue
            raise UserError(f"{short} ends before line {number}, but {long} goes on: their lines are no pairs")
        yield Pair(a[1], b[1], f"{first} line {number}")


def _tsv(path: Path, keys: tuple[str, str] | None) -> Iterator[Pair]:
    places, width = (0, 1), 0
    for number, line in _lines(path):
        if not line:
            continue
        cells = line.split("\t")
        if not width:
            width = len(cells)
            if keys is not None:
                for key in keys:
                    if key not in cells:
                        raise UserError(f"{path} line 1: no column {key!r}; {nearest(key, cells)}")
                places = cells.index(keys[0]), cells.index(keys[1])
                continue
            if width != 2:
                raise UserError(f"{path} line {number}: {width} columns, expected 2: or name them with --keys")
        if len(cells) != width:
            raise UserError(f"{path} line {number}: {len(cells)} columns, but the first line has {width}")
        yield Pair(cells[places[0]], cells[places[1]], f"{path} line {number}")


def _json(path: Path, keys: tuple[str, str]) -> Iterator[Pair]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        row = parse_json(line, where)
        row = row.get("translation", row) if isinstance(row, dict) else row
        if not isinstance(row, dict):
            raise UserError(f"{where}: {type(row).__name__} where an object must be")
        for key in keys:
            if key not in row:
                raise UserError(f"{where}: no key {key!r}; {nearest(key, row)}")
            if not isinstance(row[key], str):
                raise UserError(f"{where}: {key!r} is no text")
        yield Pair(row[keys[0]], row[keys[1]], where)


def prepare_pairs(
    sources: Sequence[str],
    tokenizer: Tokenizer,
    out: Path,
    target: Tokenizer | None = None,
    keys: tuple[str, str] | None = None,
    longest: int = 250,
    ratio: float = 0.0,
) -> dict[str, Any]:
    """Write a corpus of pairs, whole or not at all, and return its manifest.

    Left out and counted are pairs with an empty side, pairs that were there already, with a side of more than `longest`
    tokens, and, if there is a `ratio`, with sides of which one has so many times the tokens of the other. `target` is
    the tokenizer of the target side, if that is another.
    """
    out = Path(out)
    new_folder(out)
    if longest < 1 or (ratio and ratio < 1):
        raise UserError(f"longest is {longest} and ratio {ratio:g}: both have to be 1 or more, or the ratio 0 for none")
    other = target or tokenizer
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    shards: list[dict[str, Any]] = []
    with whole_folder(out) as folder, progress("pairs", None, "pairs") as bar:
        seen: set[bytes] = set()
        for some in _groups(read_pairs(sources, keys), SHARD):
            bar.advance(len(some))
            sides = tokenizer.encode_run([p.source for p in some]), other.encode_run([p.target for p in some])
            kept = _kept(some, sides[0].lengths, sides[1].lengths, longest, ratio, seen, counts, examples)
            if len(kept):
                size = max(tokenizer.vocab_size, other.vocab_size)
                shards.append(_write_shard(folder, len(shards), sides, kept, size))
        if not shards:
            raise UserError(f"there are no pairs in {', '.join(map(str, sources))}" + (
                f": {sum(counts.values())} were left out, such as {next(iter(examples.values()))}" if examples else ""
            ))  # fmt: skip
        tokenizers = {"tokenizer": tokenizer} | ({TARGET: target} if target else {})
        names = []
        for name, each in tokenizers.items():
            (folder / name).mkdir()
            each.save(folder / name)
            names += sorted(f"{name}/{path.name}" for path in (folder / name).glob("[!.]*"))
        total = dict(sum((Counter(shard["counts"]) for shard in shards), Counter()))
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "pairs": {"keys": list(keys or ()), "separate": target is not None},
            "settings": {"longest": longest, "ratio": ratio},
            "tokenizer_hash": tokenizer.hash,
            "vocab_size": tokenizer.vocab_size,
            "origins": [{"path": ", ".join(map(str, sources)), "weight": 1.0, "lang": "", "counts": total}],
            "sources": [{"path": str(s), "sha256": sha256(Path(s))} for s in sources if Path(s).is_file()],
            "languages": {},
            "removed": {"pairs": dict(counts), "examples": examples},
            "shards": shards,
            "counts": total,
            "tokenizer_files": _facts(folder, names),
        }
        manifest["hash"] = manifest_hash(manifest)
        write_json(folder / "manifest.json", manifest)
    return manifest


def _groups(pairs: Iterable[Pair], size: int) -> Iterator[list[Pair]]:
    each = iter(_cleaned(pairs))
    while some := list(itertools.islice(each, size)):
        yield some


def _cleaned(pairs: Iterable[Pair]) -> Iterator[Pair]:
    for pair in pairs:
        yield Pair(clean(pair.source), clean(pair.target), pair.where)


def clean(text: str) -> str:
    """Composed characters, and one space wherever there is space."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _kept(
    some: list[Pair],
    sources: np.ndarray,
    targets: np.ndarray,
    longest: int,
    ratio: float,
    seen: set[bytes],
    counts: Counter[str],
    examples: dict[str, str],
) -> np.ndarray:
    kept = []
    for i, (pair, a, b) in enumerate(zip(some, sources.tolist(), targets.tolist())):
        content = blake2b(f"{pair.source}\0{pair.target}".encode("utf-8", "replace"), digest_size=8).digest()
        reason = ""
        if not a or not b:
            reason = "empty"
        elif max(a, b) > longest:
            reason = "long"
        elif ratio and max(a, b) > ratio * min(a, b):
            reason = "uneven"
        elif content in seen:
            reason = "repeated"
        if reason:
            counts[reason] += 1
            examples.setdefault(reason, pair.where)
        else:
            seen.add(content)
            kept.append(i)
    return np.array(kept, dtype=np.int64)


def _write_shard(
    folder: Path, number: int, sides: tuple[Any, Any], kept: np.ndarray, vocab_size: int
) -> dict[str, Any]:
    """One shard: of each pair that is kept the source, then the target."""
    lengths = np.stack([side.lengths[kept] for side in sides], axis=1).astype(np.int64)
    total = int(lengths.sum())
    tokens, words = np.empty(total, dtype=token_type(vocab_size)), np.empty(total, dtype=bool)
    begins = (np.cumsum(lengths.ravel()) - lengths.ravel()).reshape(lengths.shape)
    for run, at, size in zip(sides, begins.T, lengths.T):
        starts = (np.cumsum(run.lengths) - run.lengths)[kept]
        steps = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        here, there = np.repeat(at, size) + steps, np.repeat(starts, size) + steps
        tokens[here], words[here] = np.asarray(run.ids)[there], np.asarray(run.words)[there]
    parts: dict[str, tuple[np.ndarray, type]] = {
        "tokens": (tokens, tokens.dtype.type),
        "sentences": (begins.ravel(), np.uint64),
        "documents": (np.arange(len(kept)) * 2, np.uint64),
        "words": (np.packbits(words, bitorder="little"), np.uint8),
    }
    names = []
    for part, (array, dtype) in parts.items():
        names.append(shard_file(number, part))
        write_array(folder / names[-1], [array], dtype)
    counts = {"tokens": total, "sentences": 2 * len(kept), "documents": len(kept), "characters": 0}
    return {"counts": counts, "files": _facts(folder, names)}


def _facts(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}
