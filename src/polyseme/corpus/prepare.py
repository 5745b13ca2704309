"""Text to a corpus: sentences, tokens, hashed shards. Killed at any moment, it goes on to the same bytes."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.sentences import split_sentences
from polyseme.corpus.sources import Document, open_sources
from polyseme.corpus.store import FORMAT, manifest_hash, shard_file, token_type
from polyseme.errors import UserError
from polyseme.files import read_json, sha256, write_json, write_whole
from polyseme.progress import progress
from polyseme.text.tokenizer import Run, Tokenizer

BATCH = 2_000_000  # characters tokenised at once: enough for every core, little enough for memory


def prepare(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    out: Path,
    *,
    key: str = "text",
    split: str = "file",
    skip_bad: bool = False,
    lang: str = "en",
    shard_characters: int = 200_000_000,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write a corpus folder and return its manifest.

    A shard ends with the first document that fills `shard_characters`, so the input alone sets the borders.
    It counts as written once its marker, the last file, is there. A later call with the same sources,
    settings and tokenizer reads past the documents of the shards that are there and goes on; on a finished
    corpus it does nothing. `on_progress` is told the number of characters of each batch.
    """
    out = Path(out)
    sources = open_sources(paths, key, split, skip_bad)
    documents = iter(sources)
    first = next(documents, None)  # before anything is written: most bad input shows here
    if first is None:
        raise UserError(f"there is no text in {', '.join(map(str, paths))}")
    settings = {"key": key, "split": split, "lang": lang, "shard_characters": shard_characters}
    plan = {
        "format": FORMAT,
        "finished": False,
        "sources": sources.fingerprint,
        "settings": settings,
        "tokenizer_hash": tokenizer.hash,
        "vocab_size": tokenizer.vocab_size,
    }
    manifest = _begin(out, plan, tokenizer)
    if not manifest["finished"]:
        markers = _markers(out)
        done = sum(marker["counts"]["read"] for marker in markers)
        with progress("prepare", sources.size, "characters") as bar:

            def advance(characters: int) -> None:
                bar.advance(characters)
                if on_progress:
                    on_progress(characters)

            before = sum(marker["counts"]["characters"] for marker in markers)
            bar.skip(before)
            if on_progress and before:
                on_progress(before)
            rest = itertools.islice(itertools.chain([first], documents), done, None)
            try:
                for shard in _shards(rest, tokenizer, lang, shard_characters, advance):
                    markers.append(_write_shard(out, len(markers), shard, tokenizer.vocab_size))
            except UserError:
                if not markers:  # nothing was finished, so nothing of ours is left
                    _forget(out)
                raise
        if not markers:
            raise UserError(f"no text in {', '.join(map(str, paths))} leaves a token")
        skipped = {"blank": sources.num_blank, "bad": sources.num_bad, "bad_rows": sources.bad}
        names = sorted(f"tokenizer/{path.name}" for path in (out / "tokenizer").glob("[!.]*"))
        counts = ("tokens", "sentences", "documents", "characters")
        manifest = plan | {
            "finished": True,
            "counts": {name: sum(marker["counts"][name] for marker in markers) for name in counts},
            "skipped": skipped,
            "tokenizer_files": _facts(out, names),
            "shards": markers,
        }
        manifest["hash"] = manifest_hash(manifest)
        write_json(out / "manifest.json", manifest)
    else:
        print(f"{out} is already prepared from the same sources", file=sys.stderr)
    for left in (*out.glob("shard-*.json"), *out.rglob(".*.part")):
        left.unlink()
    return manifest


def _begin(out: Path, plan: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The manifest to go on with; a `UserError` if the folder holds something else."""
    path = out / "manifest.json"
    if path.is_file():
        found = read_json(path)
        if other := _difference(found, plan):
            if found.get("finished") or _markers(out):
                raise UserError(f"{out} holds a corpus with {other}: choose another folder, or remove it")
        elif found.get("finished"):
            return dict(found)
    elif out.is_file() or (out.is_dir() and any(out.glob("[!.]*"))):
        raise UserError(f"{out} is not empty and not a corpus: choose another folder")
    write_json(path, plan)
    tokenizer.save(out / "tokenizer")
    return plan


def _forget(out: Path) -> None:
    """Take back what `_begin` made, and the folder if it is empty then."""
    shutil.rmtree(out / "tokenizer")
    (out / "manifest.json").unlink()
    if not any(out.iterdir()):
        out.rmdir()


def _difference(found: dict[str, Any], plan: dict[str, Any]) -> str:
    """What another corpus was made with, in words; empty if it is the same, wherever its files lay."""

    def content(manifest: dict[str, Any]) -> list[dict[str, Any]]:
        return [{k: v for k, v in source.items() if k != "path"} for source in manifest.get("sources", [])]

    if found.get("format") != plan["format"]:
        return f"format {found.get('format')}, not {plan['format']}"
    if found.get("tokenizer_hash") != plan["tokenizer_hash"]:
        return "another tokenizer"
    settings = found.get("settings", {})
    for name, value in plan["settings"].items():
        if settings.get(name) != value:
            return f"{name} {settings.get(name)!r}, not {value!r}"
    return "" if content(found) == content(plan) else "other sources, or they have changed since"


def _markers(out: Path) -> list[dict[str, Any]]:
    """The facts of the shards that are finished and still there in full."""
    found = []
    for number in itertools.count():
        path = out / f"shard-{number:05d}.json"
        if not path.is_file():
            break
        marker = read_json(path)
        files = {out / name: facts["bytes"] for name, facts in marker["files"].items()}
        if any(not file.is_file() or file.stat().st_size != size for file, size in files.items()):
            break
        found.append(marker)
    return found


class _Shard:
    """The tokens of some documents, in the pieces they came in."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.sizes: list[int] = []  # sentences of each document
        self.characters = 0

    def arrays(self) -> dict[str, np.ndarray]:
        """What is stored; a sentence or a document without a token leaves no trace."""
        lengths = np.concatenate([run.lengths for run in self.runs])
        document = np.repeat(np.arange(len(self.sizes)), self.sizes)[lengths > 0]
        sizes = np.bincount(document, minlength=len(self.sizes))
        return {
            "tokens": np.concatenate([run.ids for run in self.runs]),
            "sentences": _starts(lengths[lengths > 0]),
            "documents": _starts(sizes[sizes > 0]),
            "words": np.packbits(np.concatenate([run.words for run in self.runs]), bitorder="little"),
        }


def _shards(
    documents: Iterable[Document], tokenizer: Tokenizer, lang: str, full: int, advance: Callable[[int], None]
) -> Iterator[_Shard]:
    """Tokenise in batches of sentences; close a shard at the first document end past `full` characters."""
    shard, batch, waiting = _Shard(), list[str](), 0

    def flush() -> None:
        nonlocal batch, waiting
        shard.runs.append(tokenizer.encode_run(batch))
        advance(waiting)
        batch, waiting = [], 0

    for document in documents:
        sentences = split_sentences(document.text, lang)
        shard.sizes.append(len(sentences))
        shard.characters += len(document.text)
        for sentence in sentences:
            batch.append(sentence)
            waiting += len(sentence)
            if waiting >= BATCH:
                flush()
        if shard.characters >= full:
            flush()
            if any(len(run.ids) for run in shard.runs):
                yield shard
                shard = _Shard()
    flush()
    if any(len(run.ids) for run in shard.runs):
        yield shard


def _write_shard(out: Path, number: int, shard: _Shard, vocab_size: int) -> dict[str, Any]:
    """Write the files of a shard, then its marker."""
    arrays = shard.arrays()
    counts = {name: len(arrays[name]) for name in ("tokens", "sentences", "documents")}
    counts |= {"characters": shard.characters, "read": len(shard.sizes)}
    arrays["tokens"] = arrays["tokens"].astype(token_type(vocab_size))
    for part, array in arrays.items():
        _write_array(out / shard_file(number, part), array)
    marker = {"counts": counts, "files": _facts(out, [shard_file(number, part) for part in arrays])}
    write_json(out / f"shard-{number:05d}.json", marker)
    return marker


def _write_array(path: Path, array: np.ndarray) -> None:
    """An `.npy` file; unlike `np.save`, a full disk is named as what it is."""

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            file.write(array.data)

    write_whole(path, write)


def _starts(lengths: np.ndarray) -> np.ndarray:
    starts = np.cumsum(lengths) - lengths
    return starts.astype(np.uint32 if int(lengths.sum()) < 1 << 32 else np.uint64)


def _facts(out: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    return {name: {"bytes": (out / name).stat().st_size, "sha256": sha256(out / name)} for name in names}
