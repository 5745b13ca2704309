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

from polyseme.corpus.build.blocks import DocumentBlock, SkippedInput, read_blocks
from polyseme.corpus.build.state import (
    MAX_EXAMPLES,
    exclusive_workdir,
    is_up_to_date,
    merge_cleaning_stats,
    merge_manifests,
    remove_temporary,
    rollback,
    write_or_check_plan,
)
from polyseme.corpus.build.tasks import WorkerConfig, hash_block_lines, scan_block, tokenize_block
from polyseme.corpus.build.workers import TaskFn, WorkerPool, map_ordered, num_cores, open_pool
from polyseme.corpus.clean.clean import (
    DEFAULT_STEPS,
    CleaningConfig,
    CleaningStats,
    find_repeated_lines,
    parse_cleaning_steps,
)
from polyseme.corpus.clean.language import LanguageDetector
from polyseme.corpus.dedup.lsh import find_duplicates
from polyseme.corpus.sources.sources import CorpusSource, ReadPosition, SourceReader, open_sources
from polyseme.corpus.store import (
    FORMAT,
    WORK_DIR,
    check_hashes,
    manifest_hash,
    memmap_array,
    read_manifest,
    shard_filename,
)
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.atomic import sha256, write_array
from polyseme.io.json import read_json, write_json
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer

DEDUP_MODES = ("near", "exact", "none")
_UNITS = ("tokens", "sentences", "documents", "characters")


def prepare(
    paths: Sequence[str | Path | CorpusSource],
    tokenizer: Tokenizer,
    out: Path,
    *,
    key: str = "text",
    split: str = "file",
    lang: str = "en",
    format: str = "",
    clean: str = DEFAULT_STEPS,
    dedup: str = "near",
    dedup_threshold: float = 0.8,
    skip_bad: bool = False,
    append: bool = False,
    num_workers: int | None = None,
    dask_address: str = "",
    shard_characters: int = 200_000_000,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write a corpus folder, or add to one, and return its manifest.

    A call with the same sources, settings and tokenizer goes on with what an earlier one left; on a finished corpus
    it does nothing. Until it has finished there is no manifest, or the one from before `append`. `on_progress` is
    told the number of characters of each block that became tokens.
    """
    out = Path(out)
    cleaning = parse_cleaning_steps(clean)
    if dedup not in DEDUP_MODES:
        raise ConfigError(f"dedup is {dedup!r}: {suggest(dedup, DEDUP_MODES)}")
    if not 0 < dedup_threshold <= 1:
        raise ConfigError(f"dedup_threshold is {dedup_threshold}: it has to be above 0 and at most 1")
    if append and not (out / "manifest.json").is_file():
        raise DataError(f"there is no finished corpus in {out} to append to")
    with exclusive_workdir(out) as work_dir:
        base_manifest = read_manifest(out) if (out / "manifest.json").is_file() else None
        reader = open_sources(
            paths, key, split, skip_bad, lang=lang, format=format, spool_dir=work_dir, exclude_dir=out
        )
        first_document = next(iter(reader), None)
        if first_document is None:  # before anything is written: most bad input shows here
            raise DataError(f"there is no text in {', '.join(map(str, paths))}")
        if tokenizer.kind == "events" and set(first_document.text[:100].split()[:-1]).isdisjoint(tokenizer.vocabulary):
            raise DataError(f"{first_document.source} is text, and the tokenizer knows the events of MIDI files alone")
        plan = {
            "format": FORMAT,
            "settings": {
                "clean": str(cleaning),
                "dedup": dedup,
                "dedup_threshold": dedup_threshold,
                "shard_characters": shard_characters,
            },
            "tokenizer_hash": tokenizer.hash,
            "vocab_size": tokenizer.vocab_size,
            "sources": _describe_sources(reader),
            "source_files": reader.file_facts,
        }
        if base_manifest and is_up_to_date(out, base_manifest, plan, append):
            print(f"{out} is already prepared from the same sources", file=sys.stderr)
            rollback(out, False)
            return base_manifest
        write_or_check_plan(out, plan, base_manifest, tokenizer)
        if base_manifest:
            check_hashes(out, base_manifest)
        _warn_about_sources(reader, cleaning)
        config = WorkerConfig(cleaning, needs_signatures=dedup == "near")
        with open_pool(num_workers or num_cores(), dask_address) as pool:
            run = _PreparationRun(out, reader, plan, base_manifest, pool, on_progress or (lambda _: None))
            if cleaning.needs_line_counts:
                config = replace(config, boilerplate_hashes=run.find_boilerplate(config).tobytes())
            duplicate_map = run.find_duplicate_documents(config, dedup_threshold) if dedup != "none" else None
            run.write_shards(
                replace(config, tokenizer=tokenizer.backend.to_str(), is_filtered=duplicate_map is not None),
                duplicate_map,
            )
        manifest = run.build_manifest(duplicate_map)
        if not manifest["shards"]:
            rollback(out, False)
            raise DataError("nothing is left of this text: every document was removed, or leaves no token")
        write_json(out / "manifest.json", manifest)
        remove_temporary(out, manifest)
    return manifest


def _warn_about_sources(reader: SourceReader, cleaning: CleaningConfig) -> None:
    """What the user may not expect, on standard error."""
    if reader.skipped_files:
        message = (
            f"{len(reader.skipped_files):,} files of other kinds were passed over, such as {reader.skipped_files[0]}"
        )
        print(f"note: {message}", file=sys.stderr)
    if cleaning.language:
        unsupported = sorted(
            {
                source_file.lang
                for source_file in reader.files
                if source_file.lang and not LanguageDetector().supports(source_file.lang)
            }
        )
        if unsupported:
            print(f"note: the language step cannot judge {', '.join(unsupported)}", file=sys.stderr)


@dataclass
class _DuplicateMap:
    """Which of the documents are removed before they become tokens."""

    passed_cleaning: np.ndarray  # bool: not removed by cleaning
    duplicate_of: (
        np.ndarray
    )  # int64: the document that it repeats, -1 if none; counted from the first of the whole corpus
    is_exact: np.ndarray  # bool: an exact copy
    num_previous: int  # documents that were in the corpus already
    exact_hashes: list[np.ndarray]  # of each stretch
    signatures: list[np.ndarray]

    def __post_init__(self) -> None:
        self.keep_mask = self.passed_cleaning & (self.duplicate_of < 0)
        indices = np.flatnonzero(self.duplicate_of >= 0)[:MAX_EXAMPLES]
        self.examples = {int(number): int(self.duplicate_of[number]) - self.num_previous for number in indices}
        self.example_documents = sorted({*self.examples, *self.examples.values()})


@dataclass(eq=False)
class _PreparationRun:
    """One preparation: three readings over the same blocks."""

    out: Path
    reader: SourceReader
    plan: dict[str, Any]
    base_manifest: dict[str, Any] | None
    pool: WorkerPool
    on_progress: Callable[[int], None]

    @property
    def work_dir(self) -> Path:
        return self.out / WORK_DIR

    def find_boilerplate(self, config: WorkerConfig) -> np.ndarray:
        """First reading: the hashes of the lines that occur in many documents."""
        path = self.work_dir / "boilerplate.npy"
        if not path.exists():
            for name, group in self._run_stage("lines", "count lines", hash_block_lines, config):
                for field_name in ("line_hashes", "num_lines", "exact_hashes"):
                    arrays = [getattr(result, field_name) for _, result in group]
                    write_array(self.work_dir / f"{name}.{field_name}.npy", arrays, arrays[0].dtype)
                self._write_marker(name, group, {})
            hash_arrays = self._lines_of_distinct_documents([name for name, _ in self._read_markers("lines")])
            write_array(path, [find_repeated_lines(hash_arrays, config.cleaning.boilerplate, self.work_dir)], np.uint64)
        return memmap_array(path)

    def _lines_of_distinct_documents(self, names: list[str]) -> Iterator[np.ndarray]:
        """The lines of each stretch, without those of exact copies: a document that is repeated counts once."""
        exact_hashes = [memmap_array(self.work_dir / f"{name}.exact_hashes.npy") for name in names]
        include = np.ones(sum(map(len, exact_hashes)), bool)
        _, is_exact = find_duplicates(exact_hashes, None, include, 1.0, self.work_dir)
        first_document = 0
        for name, hashes in zip(names, exact_hashes):
            num_lines = memmap_array(self.work_dir / f"{name}.num_lines.npy")
            yield memmap_array(self.work_dir / f"{name}.line_hashes.npy")[
                np.repeat(~is_exact[first_document : first_document + len(hashes)], num_lines)
            ]
            first_document += len(hashes)

    def find_duplicate_documents(self, config: WorkerConfig, threshold: float) -> _DuplicateMap:
        """Second reading: clean, and find what repeats an earlier document."""
        for name, group in self._run_stage("scan", "clean and compare", scan_block, config):
            for field_name in ("passed_cleaning", "exact_hashes", "signatures"):
                arrays = [getattr(result, field_name) for _, result in group]
                write_array(self.work_dir / f"{name}.{field_name}.npy", arrays, arrays[0].dtype)
            self._write_marker(
                name, group, {"cleaning_stats": merge_cleaning_stats(result.cleaning_stats for _, result in group)}
            )
        names = [name for name, _ in self._read_markers("scan")]

        def parts(field_name: str) -> list[np.ndarray]:
            return [memmap_array(self.work_dir / f"{name}.{field_name}.npy") for name in names]

        passed_cleaning, exact_hashes, signatures = (
            np.concatenate(parts("passed_cleaning")),
            parts("exact_hashes"),
            parts("signatures"),
        )
        shards = range(len(self.base_manifest["shards"]) if self.base_manifest else 0)
        previous = [
            [memmap_array(self.out / shard_filename(i, field_name)) for i in shards]
            for field_name in ("exact_hashes", "signatures")
        ]
        num_previous = sum(map(len, previous[0]))
        path = self.work_dir / "repeats.npy"
        if not path.exists():
            all_parts = [*previous[0], *exact_hashes], [*previous[1], *signatures] if config.needs_signatures else None
            include = np.concatenate([np.ones(num_previous, bool), passed_cleaning])
            with progress("find duplicates", len(include), "documents") as bar:
                duplicate_of, is_exact = find_duplicates(
                    *all_parts, include, threshold, self.work_dir, advance=bar.advance
                )
            write_array(path, [np.stack([duplicate_of[num_previous:], is_exact[num_previous:]])], np.int64)
        duplicate_of, is_exact = memmap_array(path)
        return _DuplicateMap(
            passed_cleaning, duplicate_of, is_exact.astype(bool), num_previous, exact_hashes, signatures
        )

    def write_shards(self, config: WorkerConfig, duplicate_map: _DuplicateMap | None) -> None:
        """Last reading: what is left becomes shards."""
        removed_characters, examples = Counter[int](), dict[int, dict[str, str]]()

        def choose(block: DocumentBlock) -> DocumentBlock:
            if duplicate_map is None:
                return block
            for number in duplicate_map.example_documents:
                if 0 <= (index := number - block.first_document) < block.num_documents:
                    examples[number] = {
                        "location": block.locations[index],
                        "text": " ".join(block.texts[index][:200].split()),
                    }
            document_range = slice(block.first_document, block.first_document + block.num_documents)
            duplicate_indices = np.flatnonzero(duplicate_map.duplicate_of[document_range] >= 0).tolist()
            if block.num_documents:
                removed_characters[block.first_document] = sum(len(block.texts[i]) for i in duplicate_indices)
            return block.filter(duplicate_map.keep_mask[document_range])

        for name, group in self._run_stage("shard", "tokenize", tokenize_block, config, choose):
            results = [result for _, result in group]
            for block, result in group:
                block.skipped.add(
                    SkippedInput(num_empty=len(result.empty_locations), empty_locations=result.empty_locations)
                )
            files = {}
            first_document, end_document = (
                group[0][0].first_document,
                group[-1][0].first_document + group[-1][0].num_documents,
            )
            if sum(len(result.ids) for result in results):
                number = self._num_shards()
                shard_arrays = {
                    "tokens": [result.ids for result in results],
                    "sentences": [
                        _starts_from_lengths(np.concatenate([result.sentence_lengths for result in results]))
                    ],
                    "documents": [
                        _starts_from_lengths(np.concatenate([result.document_lengths for result in results]))
                    ],
                    "words": [
                        np.packbits(np.concatenate([result.word_starts for result in results]), bitorder="little")
                    ],
                }
                if duplicate_map is not None:
                    rows = first_document + np.flatnonzero(duplicate_map.keep_mask[first_document:end_document])
                    rows = rows[np.concatenate([result.is_stored for result in results])]
                    shard_arrays["exact_hashes"] = [_take_rows(duplicate_map.exact_hashes, rows)]
                    shard_arrays["signatures"] = [_take_rows(duplicate_map.signatures, rows)]
                for part, arrays in shard_arrays.items():
                    write_array(self.out / shard_filename(number, part), arrays, arrays[0].dtype)
                files = _file_facts(self.out, [shard_filename(number, part) for part in shard_arrays])
            by_source, by_language = dict[str, Counter[str]](), dict[str, Counter[str]]()
            for block, result in group:
                counts = {"documents": len(result.document_lengths), "characters": result.num_characters}
                counts |= {"tokens": len(result.ids), "sentences": len(result.sentence_lengths)}
                by_source.setdefault(str(block.source_index), Counter()).update(counts)
                by_language.setdefault(block.lang, Counter()).update(counts)
            self._write_marker(
                name,
                group,
                {
                    "counts": _sum_counts(by_source.values()),
                    "sources": by_source,
                    "languages": by_language,
                    "cleaning_stats": merge_cleaning_stats(result.cleaning_stats for result in results),
                    "duplicate_characters": sum(
                        removed_characters.pop(block.first_document, 0) for block, _ in group if block.num_documents
                    ),
                    "example_texts": {
                        str(n): examples.pop(n) for n in sorted(examples) if first_document <= n < end_document
                    },
                    "files": files,
                },
            )

    def build_manifest(self, duplicate_map: _DuplicateMap | None) -> dict[str, Any]:
        """All of it, in one page."""
        markers = [marker for _, marker in self._read_markers("shard")]
        skipped, example_texts = SkippedInput(), dict[str, dict[str, str]]()
        for marker in markers:
            skipped.add(marker["skipped"])
            example_texts |= marker["example_texts"]
        cleaning_markers = [marker for _, marker in self._read_markers("scan")] if duplicate_map else markers
        removed = asdict(skipped) | {
            "cleaning": merge_cleaning_stats(
                CleaningStats.from_json(marker["cleaning_stats"]) for marker in cleaning_markers
            )
        }
        if duplicate_map:
            examples = [
                example_texts[str(number)]
                | {
                    "duplicate_of": example_texts.get(str(original), {}).get(
                        "location", "what was in the corpus before"
                    )
                }
                for number, original in duplicate_map.examples.items()
            ]
            removed["duplicates"] = {
                "exact": int((duplicate_map.is_exact & (duplicate_map.duplicate_of >= 0)).sum()),
                "near": int((~duplicate_map.is_exact & (duplicate_map.duplicate_of >= 0)).sum()),
                "characters": sum(marker["duplicate_characters"] for marker in markers),
                "examples": examples,
            }
        sources = [
            source | {"counts": _sum_counts(marker["sources"].get(str(i), {}) for marker in markers)}
            for i, source in enumerate(self.plan["sources"])
        ]
        langs = sorted({lang for marker in markers for lang in marker["languages"]})
        languages = {lang: _sum_counts(marker["languages"].get(lang, {}) for marker in markers) for lang in langs}
        shards = [{"counts": m["counts"], "files": m["files"]} for m in markers if m["files"]]
        manifest = self.plan | {"sources": sources, "languages": languages, "removed": removed, "shards": shards}
        if self.base_manifest:
            manifest = merge_manifests(self.base_manifest, manifest)
        manifest["counts"] = _sum_counts(shard["counts"] for shard in manifest["shards"])
        names = sorted(f"tokenizer/{path.name}" for path in (self.out / "tokenizer").glob("[!.]*"))
        manifest["tokenizer_files"] = _file_facts(self.out, names)
        manifest["hash"] = manifest_hash(manifest)
        return manifest

    def _run_stage(
        self,
        stage: str,
        title: str,
        task: TaskFn[DocumentBlock, Any],
        config: WorkerConfig,
        transform: Callable[[DocumentBlock], DocumentBlock] = lambda b: b,
    ) -> Iterator[tuple[str, list[tuple[DocumentBlock, Any]]]]:
        """The name and the answers of each stretch that has no marker yet; the blocks come without their text."""
        markers = [marker for _, marker in self._read_markers(stage)]
        start = ReadPosition(*markers[-1]["next_position"]) if markers else ReadPosition()
        num_documents = sum(marker["num_documents"] for marker in markers)
        blocks = read_blocks(self.reader, start, num_documents, self.plan["settings"]["shard_characters"])
        self.reader.check_unchanged()
        report_progress = self.on_progress if stage == "shard" else lambda _: None
        stage_numbers = itertools.count(len(markers))
        group: list[tuple[DocumentBlock, Any]] = []
        with progress(title, self._num_characters(), "characters") as bar:
            if num_done := sum(marker["num_characters"] for marker in markers):
                bar.add_completed(num_done)
                report_progress(num_done)
            for block, result in map_ordered(self.pool, task, config, map(transform, blocks)):
                group.append((replace(block, texts=[], locations=[]), result))
                bar.advance(block.num_characters)
                report_progress(block.num_characters)
                if block.ends_shard:
                    yield f"{stage}-{next(stage_numbers):05d}", group
                    group = []
            self.reader.check_unchanged()
            if group:
                yield f"{stage}-{next(stage_numbers):05d}", group

    def _num_characters(self) -> int | None:
        """Characters to read: as an earlier reading counted them, or an estimate."""
        for stage in ("scan", "lines"):
            if (self.work_dir / ("repeats.npy" if stage == "scan" else "boilerplate.npy")).exists():
                return sum(marker["num_characters"] for _, marker in self._read_markers(stage))
        return self.reader.estimated_characters

    def _write_marker(self, name: str, group: list[tuple[DocumentBlock, Any]], stage_fields: dict[str, Any]) -> None:
        """A stretch is done: this comes after its files."""
        blocks = [block for block, _ in group]
        skipped = SkippedInput()
        for block in blocks:
            skipped.add(block.skipped)
        marker_fields = {
            "next_position": [blocks[-1].next_position.file_index, blocks[-1].next_position.item_index],
            "num_documents": sum(block.num_documents for block in blocks),
            "num_characters": sum(block.num_characters for block in blocks),
            "skipped": asdict(skipped),
        }
        write_json(self.work_dir / f"{name}.json", {"plan": self.plan_hash} | marker_fields | stage_fields)

    def _read_markers(self, stage: str) -> list[tuple[str, dict[str, Any]]]:
        """The stretches of a reading that are done, in order."""
        markers: list[tuple[str, dict[str, Any]]] = []
        while (path := self.work_dir / f"{stage}-{len(markers):05d}.json").is_file():
            marker = read_json(path)
            if marker["plan"] != self.plan_hash:
                break
            markers.append((path.stem, marker))
        return markers

    @cached_property
    def plan_hash(self) -> str:
        """Names this run in its markers."""
        return manifest_hash(self.plan | {"base": self.base_manifest["hash"] if self.base_manifest else ""})

    def _num_shards(self) -> int:
        num_base_shards = len(self.base_manifest["shards"]) if self.base_manifest else 0
        return num_base_shards + sum(bool(marker["files"]) for _, marker in self._read_markers("shard"))


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for unit_counts in counts:
        total.update(unit_counts)
    return {unit: total[unit] for unit in _UNITS}


def _describe_sources(reader: SourceReader) -> list[dict[str, Any]]:
    """The sources as they were given, each with its language, if it has one."""
    rows = []
    for source_index, source in enumerate(reader.sources):
        langs = {source_file.lang for source_file in reader.files if source_file.source_index == source_index}
        rows.append(asdict(source) | {"lang": langs.pop() if len(langs) == 1 else ""})
    return rows


def _take_rows(parts: list[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Some rows of arrays that stand one behind the other."""
    ends = np.cumsum([len(part) for part in parts])
    selected_rows = [
        part[rows[(rows >= end - len(part)) & (rows < end)] - (end - len(part))] for part, end in zip(parts, ends)
    ]
    return np.concatenate(selected_rows)


def _starts_from_lengths(lengths: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return (ends - lengths).astype(np.uint32 if total < 1 << 32 else np.uint64)


def _file_facts(out: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    return {name: {"bytes": (out / name).stat().st_size, "sha256": sha256(out / name)} for name in names}
