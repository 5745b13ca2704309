"""Text to a corpus: cleaned, without duplicates, in hashed shards of tokens. Killed at any moment, it goes on to the
same bytes, with any number of workers.

The input is read in blocks (`blocks`), which workers take (`work`, `pool`) and answer in order. Up to three readings:
lines that repeat are counted, documents are cleaned and compared, then what is left becomes tokens. Each reading
leaves a marker behind every stretch of `shard_characters`, after the files of that stretch, and starts behind the last
marker that is there.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.build.blocks import Block, Passed, read_blocks
from polyseme.corpus.build.state import EXAMPLES, already, at_work, begin, forget, joined, tidy, total
from polyseme.corpus.build.tasks import Work, count_lines, scan, tokenise
from polyseme.corpus.build.workers import Pool, Task, in_order, num_cores, open_pool
from polyseme.corpus.clean.clean import DEFAULT, Steps, Tally, parse_steps, repeated_lines
from polyseme.corpus.clean.language import Identifier
from polyseme.corpus.dedup.lsh import find_duplicates
from polyseme.corpus.sources.sources import Origin, Place, Sources, open_sources
from polyseme.corpus.store import (
    FORMAT,
    UNFINISHED_WORK,
    check_hashes,
    manifest_hash,
    map_array,
    read_manifest,
    shard_file,
)
from polyseme.errors import UserError, nearest
from polyseme.io.files import read_json, sha256, write_array, write_json
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer

DUPLICATES = ("near", "exact", "none")
_COUNTS = ("tokens", "sentences", "documents", "characters")


def prepare(
    paths: Sequence[str | Path | Origin],
    tokenizer: Tokenizer,
    out: Path,
    *,
    key: str = "text",
    split: str = "file",
    lang: str = "en",
    format: str = "",
    clean: str = DEFAULT,
    duplicates: str = "near",
    threshold: float = 0.8,
    skip_bad: bool = False,
    append: bool = False,
    workers: int | None = None,
    cluster: str = "",
    shard_characters: int = 200_000_000,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write a corpus folder, or add to one, and return its manifest.

    A call with the same sources, settings and tokenizer goes on with what an earlier one left; on a finished corpus
    it does nothing. Until it has finished there is no manifest, or the one from before `append`. `on_progress` is
    told the number of characters of each block that became tokens.
    """
    out = Path(out)
    steps = parse_steps(clean)
    if duplicates not in DUPLICATES:
        raise UserError(f"duplicates is {duplicates!r}: {nearest(duplicates, DUPLICATES)}")
    if not 0 < threshold <= 1:
        raise UserError(f"threshold is {threshold}: it has to be above 0 and at most 1")
    if append and not (out / "manifest.json").is_file():
        raise UserError(f"there is no finished corpus in {out} to append to")
    with at_work(out) as work:
        base = read_manifest(out) if (out / "manifest.json").is_file() else None
        sources = open_sources(paths, key, split, skip_bad, lang=lang, format=format, spool=work, leave_out=out)
        first = next(iter(sources), None)
        if first is None:  # before anything is written: most bad input shows here
            raise UserError(f"there is no text in {', '.join(map(str, paths))}")
        if tokenizer.kind == "events" and set(first.text[:100].split()[:-1]).isdisjoint(tokenizer.vocabulary):
            raise UserError(f"{first.source} is text, and the tokenizer knows the events of MIDI files alone")
        plan = {
            "format": FORMAT,
            "settings": {
                "clean": str(steps),
                "duplicates": duplicates,
                "threshold": threshold,
                "shard_characters": shard_characters,
            },
            "tokenizer_hash": tokenizer.hash,
            "vocab_size": tokenizer.vocab_size,
            "origins": _origins(sources),
            "sources": sources.fingerprint,
        }
        if base and already(out, base, plan, append):
            print(f"{out} is already prepared from the same sources", file=sys.stderr)
            forget(out, False)
            return base
        begin(out, plan, base, tokenizer)
        if base:
            check_hashes(out, base)
        _note(sources, steps)
        whole = Work(steps, near=duplicates == "near")
        with open_pool(workers or num_cores(), cluster) as pool:
            run = _Run(out, sources, plan, base, pool, on_progress or (lambda _: None))
            if steps.counts_lines:
                whole = replace(whole, boilerplate=run.boilerplate(whole).tobytes())
            repeats = run.duplicates(whole, threshold) if duplicates != "none" else None
            run.tokens(replace(whole, tokenizer=tokenizer.backend.to_str(), cleaned=repeats is not None), repeats)
        manifest = run.manifest(repeats)
        if not manifest["shards"]:
            forget(out, False)
            raise UserError("nothing is left of this text: every document was removed, or leaves no token")
        write_json(out / "manifest.json", manifest)
        tidy(out, manifest)
    return manifest


def _note(sources: Sources, steps: Steps) -> None:
    """What the user may not expect, on standard error."""
    if sources.passed_over:
        shown = f"{len(sources.passed_over):,} files of other kinds were passed over, such as {sources.passed_over[0]}"
        print(f"note: {shown}", file=sys.stderr)
    if steps.language:
        lost = sorted({each.lang for each in sources.inputs if each.lang and not Identifier().knows(each.lang)})
        if lost:
            print(f"note: the language step cannot judge {', '.join(lost)}", file=sys.stderr)


@dataclass
class _Repeats:
    """Which of the documents are removed before they become tokens."""

    alive: np.ndarray  # bool: not removed by cleaning
    of: np.ndarray  # int64: the document that it repeats, -1 if none; counted from the first of the whole corpus
    copies: np.ndarray  # bool: an exact copy
    before: int  # documents that were in the corpus already
    exact: list[np.ndarray]  # of each stretch
    signatures: list[np.ndarray]

    def __post_init__(self) -> None:
        self.kept = self.alive & (self.of < 0)
        shown = np.flatnonzero(self.of >= 0)[:EXAMPLES]
        self.shown = {int(number): int(self.of[number]) - self.before for number in shown}
        self.wanted = sorted({*self.shown, *self.shown.values()})


@dataclass(eq=False)
class _Run:
    """One preparation: three readings over the same blocks."""

    out: Path
    sources: Sources
    plan: dict[str, Any]
    base: dict[str, Any] | None
    pool: Pool
    on_progress: Callable[[int], None]

    @property
    def work(self) -> Path:
        return self.out / UNFINISHED_WORK

    def boilerplate(self, work: Work) -> np.ndarray:
        """First reading: the hashes of the lines that occur in many documents."""
        path = self.work / "boilerplate.npy"
        if not path.exists():
            for name, group in self._read("lines", "count lines", count_lines, work):
                for part in ("lines", "sizes", "exact"):
                    arrays = [getattr(answer, part) for _, answer in group]
                    write_array(self.work / f"{name}.{part}.npy", arrays, arrays[0].dtype)
                self._mark(name, group, {})
            parts = self._first_lines([name for name, _ in self._markers("lines")])
            write_array(path, [repeated_lines(parts, work.steps.boilerplate, self.work)], np.uint64)
        return map_array(path)

    def _first_lines(self, names: list[str]) -> Iterator[np.ndarray]:
        """The lines of each stretch, without those of exact copies: a document that is repeated counts once."""
        exact = [map_array(self.work / f"{name}.exact.npy") for name in names]
        alive = np.ones(sum(map(len, exact)), bool)
        _, copies = find_duplicates(exact, None, alive, 1.0, self.work)
        first = 0
        for name, part in zip(names, exact):
            sizes = map_array(self.work / f"{name}.sizes.npy")
            yield map_array(self.work / f"{name}.lines.npy")[np.repeat(~copies[first : first + len(part)], sizes)]
            first += len(part)

    def duplicates(self, work: Work, threshold: float) -> _Repeats:
        """Second reading: clean, and find what repeats an earlier document."""
        for name, group in self._read("scan", "clean and compare", scan, work):
            for part in ("alive", "exact", "signatures"):
                arrays = [getattr(answer, part) for _, answer in group]
                write_array(self.work / f"{name}.{part}.npy", arrays, arrays[0].dtype)
            self._mark(name, group, {"tally": total(answer.tally for _, answer in group)})
        names = [name for name, _ in self._markers("scan")]

        def parts(part: str) -> list[np.ndarray]:
            return [map_array(self.work / f"{name}.{part}.npy") for name in names]

        alive, exact, signatures = np.concatenate(parts("alive")), parts("exact"), parts("signatures")
        shards = range(len(self.base["shards"]) if self.base else 0)
        before = [[map_array(self.out / shard_file(i, part)) for i in shards] for part in ("exact", "signatures")]
        count = sum(map(len, before[0]))
        found = self.work / "repeats.npy"
        if not found.exists():
            everything = [*before[0], *exact], [*before[1], *signatures] if work.near else None
            alive_all = np.concatenate([np.ones(count, bool), alive])
            with progress("find duplicates", len(alive_all), "documents") as bar:
                of, copies = find_duplicates(*everything, alive_all, threshold, self.work, advance=bar.advance)
            write_array(found, [np.stack([of[count:], copies[count:]])], np.int64)
        of, copies = map_array(found)
        return _Repeats(alive, of, copies.astype(bool), count, exact, signatures)

    def tokens(self, work: Work, repeats: _Repeats | None) -> None:
        """Last reading: what is left becomes shards."""
        removed, seen = Counter[int](), dict[int, dict[str, str]]()

        def choose(block: Block) -> Block:
            if repeats is None:
                return block
            for number in repeats.wanted:
                if 0 <= (at := number - block.first) < block.count:
                    seen[number] = {"where": block.places[at], "text": " ".join(block.texts[at][:200].split())}
            here = slice(block.first, block.first + block.count)
            repeated = np.flatnonzero(repeats.of[here] >= 0).tolist()
            if block.count:
                removed[block.first] = sum(len(block.texts[i]) for i in repeated)
            return block.only(repeats.kept[here])

        for name, group in self._read("shard", "tokenise", tokenise, work, choose):
            answers = [answer for _, answer in group]
            for block, answer in group:
                block.passed.add(Passed(empty=len(answer.empty), empty_places=answer.empty))
            files = {}
            first, last = group[0][0].first, group[-1][0].first + group[-1][0].count
            if sum(len(answer.ids) for answer in answers):
                number = self._num_shards()
                pieces = {
                    "tokens": [answer.ids for answer in answers],
                    "sentences": [_starts(np.concatenate([answer.sentences for answer in answers]))],
                    "documents": [_starts(np.concatenate([answer.documents for answer in answers]))],
                    "words": [np.packbits(np.concatenate([answer.words for answer in answers]), bitorder="little")],
                }
                if repeats is not None:
                    chosen = first + np.flatnonzero(repeats.kept[first:last])
                    chosen = chosen[np.concatenate([answer.stored for answer in answers])]
                    pieces["exact"] = [_rows(repeats.exact, chosen)]
                    pieces["signatures"] = [_rows(repeats.signatures, chosen)]
                for part, arrays in pieces.items():
                    write_array(self.out / shard_file(number, part), arrays, arrays[0].dtype)
                files = _facts(self.out, [shard_file(number, part) for part in pieces])
            by_origin, by_language = dict[str, Counter[str]](), dict[str, Counter[str]]()
            for block, answer in group:
                counts = {"documents": len(answer.documents), "characters": answer.characters}
                counts |= {"tokens": len(answer.ids), "sentences": len(answer.sentences)}
                by_origin.setdefault(str(block.origin), Counter()).update(counts)
                by_language.setdefault(block.lang, Counter()).update(counts)
            self._mark(
                name,
                group,
                {
                    "counts": _sums(by_origin.values()),
                    "origins": by_origin,
                    "languages": by_language,
                    "tally": total(answer.tally for answer in answers),
                    "repeated": sum(removed.pop(block.first, 0) for block, _ in group if block.count),
                    "seen": {str(n): seen.pop(n) for n in sorted(seen) if first <= n < last},
                    "files": files,
                },
            )

    def manifest(self, repeats: _Repeats | None) -> dict[str, Any]:
        """All of it, in one page."""
        markers = [marker for _, marker in self._markers("shard")]
        passed, seen = Passed(), dict[str, dict[str, str]]()
        for marker in markers:
            passed.add(marker["passed"])
            seen |= marker["seen"]
        scanned = [marker for _, marker in self._markers("scan")] if repeats else markers
        removed = asdict(passed) | {"cleaning": total(Tally.from_json(marker["tally"]) for marker in scanned)}
        if repeats:
            examples = [
                seen[str(number)] | {"of": seen.get(str(of), {}).get("where", "what was in the corpus before")}
                for number, of in repeats.shown.items()
            ]
            removed["duplicates"] = {
                "exact": int((repeats.copies & (repeats.of >= 0)).sum()),
                "near": int((~repeats.copies & (repeats.of >= 0)).sum()),
                "characters": sum(marker["repeated"] for marker in markers),
                "examples": examples,
            }
        origins = [
            origin | {"counts": _sums(marker["origins"].get(str(i), {}) for marker in markers)}
            for i, origin in enumerate(self.plan["origins"])
        ]
        langs = sorted({lang for marker in markers for lang in marker["languages"]})
        languages = {lang: _sums(marker["languages"].get(lang, {}) for marker in markers) for lang in langs}
        shards = [{"counts": m["counts"], "files": m["files"]} for m in markers if m["files"]]
        manifest = self.plan | {"origins": origins, "languages": languages, "removed": removed, "shards": shards}
        if self.base:
            manifest = joined(self.base, manifest)
        manifest["counts"] = _sums(shard["counts"] for shard in manifest["shards"])
        names = sorted(f"tokenizer/{path.name}" for path in (self.out / "tokenizer").glob("[!.]*"))
        manifest["tokenizer_files"] = _facts(self.out, names)
        manifest["hash"] = manifest_hash(manifest)
        return manifest

    def _read(
        self, stage: str, title: str, task: Task[Block, Any], work: Work, choose: Callable[[Block], Block] = lambda b: b
    ) -> Iterator[tuple[str, list[tuple[Block, Any]]]]:
        """The name and the answers of each stretch that has no marker yet; the blocks come without their text."""
        markers = [marker for _, marker in self._markers(stage)]
        start = Place(*markers[-1]["after"]) if markers else Place()
        done = sum(marker["read"] for marker in markers)
        blocks = read_blocks(self.sources, start, done, self.plan["settings"]["shard_characters"])
        self.sources.check_unchanged()
        tell = self.on_progress if stage == "shard" else lambda _: None
        numbers = itertools.count(len(markers))
        group: list[tuple[Block, Any]] = []
        with progress(title, self._size(), "characters") as bar:
            if before := sum(marker["characters"] for marker in markers):
                bar.skip(before)
                tell(before)
            for block, answer in in_order(self.pool, task, work, map(choose, blocks)):
                group.append((replace(block, texts=[], places=[]), answer))
                bar.advance(block.characters)
                tell(block.characters)
                if block.closes:
                    yield f"{stage}-{next(numbers):05d}", group
                    group = []
            self.sources.check_unchanged()
            if group:
                yield f"{stage}-{next(numbers):05d}", group

    def _size(self) -> int | None:
        """Characters to read: as an earlier reading counted them, or an estimate."""
        for stage in ("scan", "lines"):
            if (self.work / ("repeats.npy" if stage == "scan" else "boilerplate.npy")).exists():
                return sum(marker["characters"] for _, marker in self._markers(stage))
        return self.sources.size

    def _mark(self, name: str, group: list[tuple[Block, Any]], facts: dict[str, Any]) -> None:
        """A stretch is done: this comes after its files."""
        blocks = [block for block, _ in group]
        passed = Passed()
        for block in blocks:
            passed.add(block.passed)
        said = {
            "after": [blocks[-1].after.input, blocks[-1].after.item],
            "read": sum(block.count for block in blocks),
            "characters": sum(block.characters for block in blocks),
            "passed": asdict(passed),
        }
        write_json(self.work / f"{name}.json", {"plan": self.key} | said | facts)

    def _markers(self, stage: str) -> list[tuple[str, dict[str, Any]]]:
        """The stretches of a reading that are done, in order."""
        found: list[tuple[str, dict[str, Any]]] = []
        while (path := self.work / f"{stage}-{len(found):05d}.json").is_file():
            marker = read_json(path)
            if marker["plan"] != self.key:
                break
            found.append((path.stem, marker))
        return found

    @cached_property
    def key(self) -> str:
        """Names this run in its markers."""
        return manifest_hash(self.plan | {"base": self.base["hash"] if self.base else ""})

    def _num_shards(self) -> int:
        before = len(self.base["shards"]) if self.base else 0
        return before + sum(bool(marker["files"]) for _, marker in self._markers("shard"))


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return {kind: total[kind] for kind in _COUNTS}


def _origins(sources: Sources) -> list[dict[str, Any]]:
    """The sources as they were given, each with its language, if it has one."""
    found = []
    for number, origin in enumerate(sources.origins):
        langs = {each.lang for each in sources.inputs if each.origin == number}
        found.append(asdict(origin) | {"lang": langs.pop() if len(langs) == 1 else ""})
    return found


def _rows(parts: list[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Some rows of arrays that stand one behind the other."""
    ends = np.cumsum([len(part) for part in parts])
    found = [part[rows[(rows >= end - len(part)) & (rows < end)] - (end - len(part))] for part, end in zip(parts, ends)]
    return np.concatenate(found)


def _starts(lengths: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return (ends - lengths).astype(np.uint32 if total < 1 << 32 else np.uint64)


def _facts(out: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    return {name: {"bytes": (out / name).stat().st_size, "sha256": sha256(out / name)} for name in names}
