"""The resumable stages of a corpus preparation.

The input is read in blocks (`blocks`), which workers process in parallel (`workers`) and return in order. There are up
to three passes over the input: count repeated lines, clean and compare documents, tokenize what is left. Each pass
writes its files for a group of blocks (about `shard_characters` characters) and then a JSON marker for the group; a
resumed pass starts after the last marker.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.build.blocks import DocumentBlock, WorkerConfig, fingerprint, hash_lines, read_blocks, tokenize
from polyseme.corpus.build.workers import BlockTask, WorkerPool, map_ordered
from polyseme.corpus.clean.clean import MAX_EXAMPLES, find_repeated_lines, merge_cleaning_stats
from polyseme.corpus.dedup.lsh import StackedArray, find_duplicates
from polyseme.corpus.sources.sources import ReadPosition, SkippedInput, SourceReader
from polyseme.corpus.store import WORK_DIR, describe_files, manifest_hash, memmap_array, shard_filename
from polyseme.io.atomic import write_array
from polyseme.io.json import read_json, write_json
from polyseme.progress import progress

_UNITS = ("tokens", "sentences", "documents", "characters")
BlockGroup = list[tuple[DocumentBlock, Any]]  # consecutive blocks without their texts, and the outputs of a task


@dataclass
class DuplicateMap:
    """Documents to remove before tokenization, and what the manifest reports about them.

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
        self.is_duplicate = self.duplicate_of >= 0
        self.keep_mask = self.passed_cleaning & ~self.is_duplicate
        indices = np.flatnonzero(self.is_duplicate)[:MAX_EXAMPLES]
        self.examples = {int(number): int(self.duplicate_of[number]) - self.num_previous for number in indices}
        self.example_documents = sorted({*self.examples, *self.examples.values()})

    def filter_block(self, block: DocumentBlock) -> DocumentBlock:
        """Return a block without its duplicates, with what the manifest needs of them."""
        texts, locations = block.texts, block.locations
        example_texts = {}
        for number in self.example_documents:
            if 0 <= (index := number - block.first_document) < block.num_documents:
                excerpt = " ".join(texts[index][:200].split())
                example_texts[str(number)] = {"location": locations[index], "text": excerpt}
        documents = slice(block.first_document, block.end_document)
        num_removed = sum(len(texts[i]) for i in np.flatnonzero(self.is_duplicate[documents]).tolist())
        indices = np.flatnonzero(self.keep_mask[documents]).tolist()
        block = replace(block, texts=[texts[i] for i in indices], locations=[locations[i] for i in indices])
        return replace(block, duplicate_characters=num_removed, example_texts=example_texts)

    def take_fingerprints(self, blocks: list[DocumentBlock], is_stored: np.ndarray) -> dict[str, list[np.ndarray]]:
        """Return the fingerprints of those remaining documents of blocks that are stored, by part name."""
        first, end = blocks[0].first_document, blocks[-1].end_document
        rows = (first + np.flatnonzero(self.keep_mask[first:end]))[is_stored]
        parts = {"exact_hashes": self.exact_hashes, "signatures": self.signatures}
        return {part: [StackedArray(arrays).take_rows(rows)] for part, arrays in parts.items()}


@dataclass(eq=False)
class Preparation:
    """One run of `prepare`: up to three passes over the same blocks."""

    out: Path
    reader: SourceReader
    plan: dict[str, Any]
    base_manifest: dict[str, Any] | None
    pool: WorkerPool

    @property
    def work_dir(self) -> Path:
        """Folder of intermediate files and markers."""
        return self.out / WORK_DIR

    def find_boilerplate(self, config: WorkerConfig) -> np.ndarray:
        """Run the first pass; return the sorted hashes of lines that occur in many documents."""
        path = self.work_dir / "boilerplate.npy"
        if not path.exists():
            for name, group in self._run_stage("lines", "count lines", hash_lines, config):
                self._finish_group(name, group, {}, ("line_hashes", "num_lines", "exact_hashes"))
            hashes = find_repeated_lines(self._distinct_document_lines(), config.cleaning.boilerplate, self.work_dir)
            write_array(path, [hashes], np.uint64)
        return memmap_array(path)

    def _distinct_document_lines(self) -> Iterator[np.ndarray]:
        """Yield the line hashes of each group without those of exact copies: a repeated document counts once."""
        exact_hashes = self._load_field("lines", "exact_hashes")
        sizes = [len(hashes) for hashes in exact_hashes]
        _, is_exact = find_duplicates(exact_hashes, None, np.ones(sum(sizes), bool), 1.0, self.work_dir)
        line_hashes, num_lines = (self._load_field("lines", name) for name in ("line_hashes", "num_lines"))
        for hashes, counts, is_copy in zip(line_hashes, num_lines, np.split(is_exact, np.cumsum(sizes)[:-1])):
            yield hashes[np.repeat(~is_copy, counts)]

    def find_duplicate_documents(self, config: WorkerConfig, threshold: float) -> DuplicateMap:
        """Run the second pass: clean the documents and find those that repeat an earlier one."""
        for name, group in self._run_stage("scan", "clean and compare", fingerprint, config):
            stats = merge_cleaning_stats(scan.cleaning_stats for _, scan in group)
            array_names = ("passed_cleaning", "exact_hashes", "signatures")
            self._finish_group(name, group, {"cleaning_stats": stats}, array_names)
        passed_cleaning = np.concatenate(self._load_field("scan", "passed_cleaning"))
        exact_hashes, signatures = (self._load_field("scan", name) for name in ("exact_hashes", "signatures"))
        base_hashes, base_signatures = (
            [memmap_array(self.out / shard_filename(i, part)) for i in range(self._num_base_shards)]
            for part in ("exact_hashes", "signatures")
        )
        num_previous = sum(map(len, base_hashes))
        path = self.work_dir / "repeats.npy"
        if not path.exists():
            all_signatures = [*base_signatures, *signatures] if config.needs_signatures else None
            include = np.concatenate([np.ones(num_previous, bool), passed_cleaning])
            all_hashes = [*base_hashes, *exact_hashes]
            with progress("find duplicates", len(include), "documents") as bar:
                duplicate_of, is_exact = find_duplicates(
                    all_hashes, all_signatures, include, threshold, self.work_dir, advance=bar.advance
                )
            write_array(path, [np.stack([duplicate_of[num_previous:], is_exact[num_previous:]])], np.int64)
        duplicate_of, is_exact = memmap_array(path)
        is_exact = is_exact.astype(bool)
        return DuplicateMap(passed_cleaning, duplicate_of, is_exact, num_previous, exact_hashes, signatures)

    def write_shards(self, config: WorkerConfig, duplicate_map: DuplicateMap | None) -> None:
        """Run the last pass: tokenize the remaining documents and write one shard per group of blocks."""
        transform = duplicate_map.filter_block if duplicate_map else None
        for name, group in self._run_stage("shard", "tokenize", tokenize, config, transform):
            blocks, tokenized_blocks = [block for block, _ in group], [tokenized for _, tokenized in group]
            files = {}
            if any(len(tokenized.ids) for tokenized in tokenized_blocks):
                shard_arrays = _shard_arrays(tokenized_blocks)
                if duplicate_map:
                    is_stored = np.concatenate([tokenized.is_stored for tokenized in tokenized_blocks])
                    shard_arrays |= duplicate_map.take_fingerprints(blocks, is_stored)
                number = self._num_base_shards + sum(bool(marker["files"]) for marker in self._read_markers("shard"))
                for part, arrays in shard_arrays.items():
                    write_array(self.out / shard_filename(number, part), arrays, arrays[0].dtype)
                files = describe_files(self.out, [shard_filename(number, part) for part in shard_arrays])
            by_source, by_language = dict[str, Counter[str]](), dict[str, Counter[str]]()
            for block, tokenized in group:
                locations = tokenized.empty_locations
                block.skipped.add(SkippedInput(num_empty=len(locations), empty_locations=locations))
                counts = {"documents": len(tokenized.document_lengths), "characters": tokenized.num_characters}
                counts |= {"tokens": len(tokenized.ids), "sentences": len(tokenized.sentence_lengths)}
                by_source.setdefault(str(block.source_index), Counter()).update(counts)
                by_language.setdefault(block.lang, Counter()).update(counts)
            marker = {
                "counts": _sum_counts(by_source.values()),
                "sources": by_source,
                "languages": by_language,
                "cleaning_stats": merge_cleaning_stats(tokenized.cleaning_stats for tokenized in tokenized_blocks),
                "duplicate_characters": sum(block.duplicate_characters for block in blocks),
                "example_texts": {number: text for block in blocks for number, text in block.example_texts.items()},
                "files": files,
            }
            self._finish_group(name, group, marker)

    def build_manifest(self, duplicate_map: DuplicateMap | None) -> dict[str, Any]:
        """Build the manifest from the plan, the markers and the manifest appended to."""
        markers = self._read_markers("shard")
        skipped, example_texts = SkippedInput(), dict[str, dict[str, str]]()
        for marker in markers:
            skipped.add(SkippedInput(**marker["skipped"]))
            example_texts |= marker["example_texts"]
        cleaning_markers = self._read_markers("scan") if duplicate_map else markers
        cleaning_stats = merge_cleaning_stats(marker["cleaning_stats"] for marker in cleaning_markers)
        removed = asdict(skipped) | {"cleaning": cleaning_stats}
        if duplicate_map:
            examples = [
                example_texts[str(number)]
                | {"duplicate_of": example_texts.get(str(original), {}).get("location", "the existing corpus")}
                for number, original in duplicate_map.examples.items()
            ]
            removed["duplicates"] = {
                "exact": int((duplicate_map.is_duplicate & duplicate_map.is_exact).sum()),
                "near": int((duplicate_map.is_duplicate & ~duplicate_map.is_exact).sum()),
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
        task: BlockTask,
        config: WorkerConfig,
        transform: Callable[[DocumentBlock], DocumentBlock] | None = None,
    ) -> Iterator[tuple[str, BlockGroup]]:
        """Yield the name of each group without a marker, and its blocks with their outputs."""
        markers = self._read_markers(stage)
        start = ReadPosition(*markers[-1]["next_position"]) if markers else ReadPosition()
        num_documents = sum(marker["num_documents"] for marker in markers)
        blocks = read_blocks(self.reader, start, num_documents, self.plan["settings"]["shard_characters"])
        self.reader.check_unchanged()
        names = (f"{stage}-{number:05d}" for number in itertools.count(len(markers)))
        group: BlockGroup = []
        with progress(title, self._num_characters(), "characters") as bar:
            bar.add_completed(sum(marker["num_characters"] for marker in markers))
            for block, output in map_ordered(self.pool, task, config, map(transform, blocks) if transform else blocks):
                group.append((replace(block, texts=[], locations=[]), output))
                bar.advance(block.num_characters)
                if block.ends_shard:
                    yield next(names), group
                    group = []
            self.reader.check_unchanged()
            if group:
                yield next(names), group

    def _num_characters(self) -> int | None:
        """Return the number of characters to read, as an earlier pass counted them or as an estimate."""
        for stage, filename in (("scan", "repeats.npy"), ("lines", "boilerplate.npy")):
            if (self.work_dir / filename).exists():
                return sum(marker["num_characters"] for marker in self._read_markers(stage))
        return self.reader.estimated_characters

    def _load_field(self, stage: str, name: str) -> list[np.ndarray]:
        """Memory-map a field of all finished groups of a stage."""
        num_groups = len(self._read_markers(stage))
        return [memmap_array(self.work_dir / f"{stage}-{i:05d}.{name}.npy") for i in range(num_groups)]

    def _finish_group(
        self, name: str, group: BlockGroup, stage_fields: dict[str, Any], array_names: Sequence[str] = ()
    ) -> None:
        """Write these arrays of the outputs, then a marker that the group is done."""
        for array_name in array_names:
            arrays = [getattr(output, array_name) for _, output in group]
            write_array(self.work_dir / f"{name}.{array_name}.npy", arrays, arrays[0].dtype)
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

    def _read_markers(self, stage: str) -> list[dict[str, Any]]:
        """Return the markers of the finished groups of a stage, in order."""
        markers: list[dict[str, Any]] = []
        while (path := self.work_dir / f"{stage}-{len(markers):05d}.json").is_file():
            marker = read_json(path)
            if marker["plan"] != self.plan_hash:
                break
            markers.append(marker)
        return markers

    @cached_property
    def plan_hash(self) -> str:
        """Hash that identifies this preparation in its markers."""
        return manifest_hash(self.plan | {"base": self.base_manifest["hash"] if self.base_manifest else ""})

    @property
    def _num_base_shards(self) -> int:
        return len(self.base_manifest["shards"]) if self.base_manifest else 0


def _shard_arrays(blocks: list[Any]) -> dict[str, list[np.ndarray]]:
    """Return the arrays of each file of a shard of tokenized blocks, by part name (see `shard_filename`)."""
    return {
        "tokens": [block.ids for block in blocks],
        "sentences": [_starts_from_lengths(np.concatenate([block.sentence_lengths for block in blocks]))],
        "documents": [_starts_from_lengths(np.concatenate([block.document_lengths for block in blocks]))],
        "words": [np.packbits(np.concatenate([block.word_starts for block in blocks]), bitorder="little")],
    }


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for unit_counts in counts:
        total.update(unit_counts)
    return {unit: total[unit] for unit in _UNITS}


def _starts_from_lengths(lengths: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return (ends - lengths).astype(np.uint32 if total < 1 << 32 else np.uint64)


def merge_manifests(base: dict[str, Any], addition: dict[str, Any]) -> dict[str, Any]:
    """Merge the manifest of a corpus with that of documents appended to it."""
    offset = len(base["sources"])
    source_files = [file | {"source_index": file["source_index"] + offset} for file in addition["source_files"]]
    old, new = base["removed"], addition["removed"]
    skipped = SkippedInput()
    for part in (old, new):
        skipped.add(SkippedInput(**{name: part[name] for name in asdict(skipped)}))
    removed = asdict(skipped) | {"cleaning": merge_cleaning_stats([old["cleaning"], new["cleaning"]])}
    if "duplicates" in new:
        removed["duplicates"] = {name: old["duplicates"][name] + value for name, value in new["duplicates"].items()}
        del removed["duplicates"]["examples"][MAX_EXAMPLES:]
    languages = {lang: Counter(counts) for lang, counts in base["languages"].items()}
    for lang, counts in addition["languages"].items():
        languages.setdefault(lang, Counter()).update(counts)
    return base | {
        "languages": {lang: dict(counts) for lang, counts in sorted(languages.items())},
        "sources": base["sources"] + addition["sources"],
        "source_files": base["source_files"] + source_files,
        "shards": base["shards"] + addition["shards"],
        "removed": removed,
        "num_initial_sources": base.get("num_initial_sources", offset),  # before the first append
    }
