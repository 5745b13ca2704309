"""The resumable stages of a corpus preparation.

The input is read in blocks (`blocks`), which workers process in parallel (`tasks`, `workers`) and return in order.
There are up to three passes over the input: count repeated lines, clean and compare documents, tokenize what is left.
Each pass writes its files for a group of blocks (about `shard_characters` characters) and then a JSON marker for the
group; a resumed pass starts after the last marker.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.build.blocks import DocumentBlock, SkippedInput, read_blocks
from polyseme.corpus.build.state import MAX_EXAMPLES, merge_cleaning_stats, merge_manifests
from polyseme.corpus.build.tasks import TokenizedBlock, WorkerConfig, hash_block_lines, scan_block, tokenize_block
from polyseme.corpus.build.workers import TaskFn, WorkerPool, map_ordered
from polyseme.corpus.clean.clean import CleaningStats, find_repeated_lines
from polyseme.corpus.dedup.lsh import find_duplicates
from polyseme.corpus.sources.sources import ReadPosition, SourceReader
from polyseme.corpus.store import WORK_DIR, describe_files, manifest_hash, memmap_array, shard_filename
from polyseme.io.atomic import write_array
from polyseme.io.json import read_json, write_json
from polyseme.progress import progress

_UNITS = ("tokens", "sentences", "documents", "characters")


@dataclass
class DuplicateMap:
    """Documents to remove before tokenization.

    Documents are numbered from the first new one, except in `duplicate_of`, which counts from the first of the whole
    corpus.
    """

    passed_cleaning: np.ndarray  # bool [n]: not removed by cleaning
    duplicate_of: np.ndarray  # int64 [n]: the document it repeats, -1 if none
    is_exact: np.ndarray  # bool [n]: an exact copy
    num_previous: int  # documents that were in the corpus already
    exact_hashes: list[np.ndarray]  # one array per group of blocks
    signatures: list[np.ndarray]

    def __post_init__(self) -> None:
        self.keep_mask = self.passed_cleaning & (self.duplicate_of < 0)
        indices = np.flatnonzero(self.duplicate_of >= 0)[:MAX_EXAMPLES]
        self.examples = {int(number): int(self.duplicate_of[number]) - self.num_previous for number in indices}
        self.example_documents = sorted({*self.examples, *self.examples.values()})


@dataclass
class _DuplicateFilter:
    """Removes duplicates from blocks before they are tokenized, and remembers what the manifest reports about them."""

    duplicate_map: DuplicateMap | None
    removed_characters: Counter[int] = field(default_factory=Counter)  # by the block's first document
    examples: dict[int, dict[str, str]] = field(default_factory=dict)  # by document

    def __call__(self, block: DocumentBlock) -> DocumentBlock:
        if self.duplicate_map is None:
            return block
        for number in self.duplicate_map.example_documents:
            if 0 <= (index := number - block.first_document) < block.num_documents:
                excerpt = " ".join(block.texts[index][:200].split())
                self.examples[number] = {"location": block.locations[index], "text": excerpt}
        document_range = slice(block.first_document, block.first_document + block.num_documents)
        duplicate_indices = np.flatnonzero(self.duplicate_map.duplicate_of[document_range] >= 0).tolist()
        if block.num_documents:
            self.removed_characters[block.first_document] = sum(len(block.texts[i]) for i in duplicate_indices)
        return block.filter(self.duplicate_map.keep_mask[document_range])


@dataclass(eq=False)
class Preparation:
    """One run of `prepare`: up to three passes over the same blocks."""

    out: Path
    reader: SourceReader
    plan: dict[str, Any]
    base_manifest: dict[str, Any] | None
    pool: WorkerPool
    on_progress: Callable[[int], None]

    @property
    def work_dir(self) -> Path:
        """Folder of intermediate files and markers."""
        return self.out / WORK_DIR

    def find_boilerplate(self, config: WorkerConfig) -> np.ndarray:
        """Run the first pass; return the sorted hashes of lines that occur in many documents."""
        path = self.work_dir / "boilerplate.npy"
        if not path.exists():
            for name, group in self._run_stage("lines", "count lines", hash_block_lines, config):
                self._write_fields(name, group, ("line_hashes", "num_lines", "exact_hashes"))
                self._write_marker(name, group, {})
            hash_arrays = self._lines_of_distinct_documents([name for name, _ in self._read_markers("lines")])
            write_array(path, [find_repeated_lines(hash_arrays, config.cleaning.boilerplate, self.work_dir)], np.uint64)
        return memmap_array(path)

    def _lines_of_distinct_documents(self, names: list[str]) -> Iterator[np.ndarray]:
        """Yield the line hashes of each group without those of exact copies: a repeated document counts once."""
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

    def find_duplicate_documents(self, config: WorkerConfig, threshold: float) -> DuplicateMap:
        """Run the second pass: clean the documents and find those that repeat an earlier one."""
        for name, group in self._run_stage("scan", "clean and compare", scan_block, config):
            self._write_fields(name, group, ("passed_cleaning", "exact_hashes", "signatures"))
            stats = merge_cleaning_stats(scan.cleaning_stats for _, scan in group)
            self._write_marker(name, group, {"cleaning_stats": stats})
        names = [name for name, _ in self._read_markers("scan")]
        field_parts = {
            field_name: [memmap_array(self.work_dir / f"{name}.{field_name}.npy") for name in names]
            for field_name in ("passed_cleaning", "exact_hashes", "signatures")
        }
        passed_cleaning = np.concatenate(field_parts["passed_cleaning"])
        exact_hashes, signatures = field_parts["exact_hashes"], field_parts["signatures"]
        base_shards = range(len(self.base_manifest["shards"]) if self.base_manifest else 0)
        base_hashes, base_signatures = (
            [memmap_array(self.out / shard_filename(i, field_name)) for i in base_shards]
            for field_name in ("exact_hashes", "signatures")
        )
        num_previous = sum(map(len, base_hashes))
        path = self.work_dir / "repeats.npy"
        if not path.exists():
            all_signatures = [*base_signatures, *signatures] if config.needs_signatures else None
            include = np.concatenate([np.ones(num_previous, bool), passed_cleaning])
            with progress("find duplicates", len(include), "documents") as bar:
                duplicate_of, is_exact = find_duplicates(
                    [*base_hashes, *exact_hashes],
                    all_signatures,
                    include,
                    threshold,
                    self.work_dir,
                    advance=bar.advance,
                )
            write_array(path, [np.stack([duplicate_of[num_previous:], is_exact[num_previous:]])], np.int64)
        duplicate_of, is_exact = memmap_array(path)
        return DuplicateMap(
            passed_cleaning, duplicate_of, is_exact.astype(bool), num_previous, exact_hashes, signatures
        )

    def write_shards(self, config: WorkerConfig, duplicate_map: DuplicateMap | None) -> None:
        """Run the last pass: tokenize the remaining documents and write one shard per group of blocks."""
        duplicate_filter = _DuplicateFilter(duplicate_map)
        for name, group in self._run_stage("shard", "tokenize", tokenize_block, config, duplicate_filter):
            blocks, tokenized_blocks = [block for block, _ in group], [tokenized for _, tokenized in group]
            for block, tokenized in group:
                block.skipped.add(
                    SkippedInput(num_empty=len(tokenized.empty_locations), empty_locations=tokenized.empty_locations)
                )
            first_document = blocks[0].first_document
            end_document = blocks[-1].first_document + blocks[-1].num_documents
            files = {}
            if sum(len(tokenized.ids) for tokenized in tokenized_blocks):
                shard_arrays = _shard_arrays(tokenized_blocks, duplicate_map, first_document, end_document)
                number = self._num_shards()
                for part, arrays in shard_arrays.items():
                    write_array(self.out / shard_filename(number, part), arrays, arrays[0].dtype)
                files = describe_files(self.out, [shard_filename(number, part) for part in shard_arrays])
            by_source, by_language = dict[str, Counter[str]](), dict[str, Counter[str]]()
            for block, tokenized in group:
                counts = {"documents": len(tokenized.document_lengths), "characters": tokenized.num_characters}
                counts |= {"tokens": len(tokenized.ids), "sentences": len(tokenized.sentence_lengths)}
                by_source.setdefault(str(block.source_index), Counter()).update(counts)
                by_language.setdefault(block.lang, Counter()).update(counts)
            examples, removed_characters = duplicate_filter.examples, duplicate_filter.removed_characters
            marker = {
                "counts": _sum_counts(by_source.values()),
                "sources": by_source,
                "languages": by_language,
                "cleaning_stats": merge_cleaning_stats(tokenized.cleaning_stats for tokenized in tokenized_blocks),
                "duplicate_characters": sum(
                    removed_characters.pop(block.first_document, 0) for block in blocks if block.num_documents
                ),
                "example_texts": {
                    str(n): examples.pop(n) for n in sorted(examples) if first_document <= n < end_document
                },
                "files": files,
            }
            self._write_marker(name, group, marker)

    def build_manifest(self, duplicate_map: DuplicateMap | None) -> dict[str, Any]:
        """Build the manifest from the plan, the markers and the manifest appended to."""
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
                | {"duplicate_of": example_texts.get(str(original), {}).get("location", "the existing corpus")}
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
        manifest["tokenizer_files"] = describe_files(self.out, names)
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
        """Yield the name of each group without a marker, and its blocks (without their texts) with their outputs."""
        markers = [marker for _, marker in self._read_markers(stage)]
        start = ReadPosition(*markers[-1]["next_position"]) if markers else ReadPosition()
        num_documents = sum(marker["num_documents"] for marker in markers)
        blocks = read_blocks(self.reader, start, num_documents, self.plan["settings"]["shard_characters"])
        self.reader.check_unchanged()
        report_progress = self.on_progress if stage == "shard" else lambda _: None
        group_numbers = itertools.count(len(markers))
        group: list[tuple[DocumentBlock, Any]] = []
        with progress(title, self._num_characters(), "characters") as bar:
            if num_done := sum(marker["num_characters"] for marker in markers):
                bar.add_completed(num_done)
                report_progress(num_done)
            for block, block_output in map_ordered(self.pool, task, config, map(transform, blocks)):
                group.append((replace(block, texts=[], locations=[]), block_output))
                bar.advance(block.num_characters)
                report_progress(block.num_characters)
                if block.ends_shard:
                    yield f"{stage}-{next(group_numbers):05d}", group
                    group = []
            self.reader.check_unchanged()
            if group:
                yield f"{stage}-{next(group_numbers):05d}", group

    def _num_characters(self) -> int | None:
        """Return the number of characters to read, as an earlier pass counted them or as an estimate."""
        for stage in ("scan", "lines"):
            if (self.work_dir / ("repeats.npy" if stage == "scan" else "boilerplate.npy")).exists():
                return sum(marker["num_characters"] for _, marker in self._read_markers(stage))
        return self.reader.estimated_characters

    def _write_fields(self, name: str, group: list[tuple[DocumentBlock, Any]], field_names: tuple[str, ...]) -> None:
        for field_name in field_names:
            arrays = [getattr(block_output, field_name) for _, block_output in group]
            write_array(self.work_dir / f"{name}.{field_name}.npy", arrays, arrays[0].dtype)

    def _write_marker(self, name: str, group: list[tuple[DocumentBlock, Any]], stage_fields: dict[str, Any]) -> None:
        """Mark a group as done. Its files must have been written before."""
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
        """Return the names and markers of the finished groups of a stage, in order."""
        markers: list[tuple[str, dict[str, Any]]] = []
        while (path := self.work_dir / f"{stage}-{len(markers):05d}.json").is_file():
            marker = read_json(path)
            if marker["plan"] != self.plan_hash:
                break
            markers.append((path.stem, marker))
        return markers

    @cached_property
    def plan_hash(self) -> str:
        """Hash that identifies this preparation in its markers."""
        return manifest_hash(self.plan | {"base": self.base_manifest["hash"] if self.base_manifest else ""})

    def _num_shards(self) -> int:
        num_base_shards = len(self.base_manifest["shards"]) if self.base_manifest else 0
        return num_base_shards + sum(bool(marker["files"]) for _, marker in self._read_markers("shard"))


def _shard_arrays(
    blocks: list[TokenizedBlock], duplicate_map: DuplicateMap | None, first_document: int, end_document: int
) -> dict[str, list[np.ndarray]]:
    """Return the arrays of each file of a shard, by part name (see `shard_filename`)."""
    shard_arrays = {
        "tokens": [block.ids for block in blocks],
        "sentences": [_starts_from_lengths(np.concatenate([block.sentence_lengths for block in blocks]))],
        "documents": [_starts_from_lengths(np.concatenate([block.document_lengths for block in blocks]))],
        "words": [np.packbits(np.concatenate([block.word_starts for block in blocks]), bitorder="little")],
    }
    if duplicate_map is not None:
        rows = first_document + np.flatnonzero(duplicate_map.keep_mask[first_document:end_document])
        rows = rows[np.concatenate([block.is_stored for block in blocks])]
        shard_arrays["exact_hashes"] = [_take_rows(duplicate_map.exact_hashes, rows)]
        shard_arrays["signatures"] = [_take_rows(duplicate_map.signatures, rows)]
    return shard_arrays


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for unit_counts in counts:
        total.update(unit_counts)
    return {unit: total[unit] for unit in _UNITS}


def _take_rows(parts: list[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Take rows of the concatenation of `parts` without building it."""
    ends = np.cumsum([len(part) for part in parts])
    selected_rows = [
        part[rows[(rows >= end - len(part)) & (rows < end)] - (end - len(part))] for part, end in zip(parts, ends)
    ]
    return np.concatenate(selected_rows)


def _starts_from_lengths(lengths: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return (ends - lengths).astype(np.uint32 if total < 1 << 32 else np.uint64)
