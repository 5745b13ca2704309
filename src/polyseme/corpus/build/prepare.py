"""Turn text into a corpus: cleaned, deduplicated, tokenized into hashed shards.

A killed preparation can be resumed at any point, with any number of workers, and produces the same bytes.
The stages and their markers are in `stages`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from polyseme.corpus.build.stages import Preparation
from polyseme.corpus.build.state import (
    exclusive_workdir,
    is_up_to_date,
    remove_temporary,
    rollback,
    write_or_check_plan,
)
from polyseme.corpus.build.tasks import WorkerConfig
from polyseme.corpus.build.workers import num_cores, open_pool
from polyseme.corpus.clean.clean import DEFAULT_STEPS, CleaningConfig, parse_cleaning_steps
from polyseme.corpus.clean.language import LanguageDetector
from polyseme.corpus.sources.sources import CorpusSource, SourceReader, open_sources
from polyseme.corpus.store import FORMAT, check_hashes, read_manifest
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.json import write_json
from polyseme.text.tokenizer import Tokenizer

DEDUP_MODES = ("near", "exact", "none")


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
    """Write a corpus folder, or append to one, and return its manifest.

    A call with the same sources, settings and tokenizer resumes an interrupted preparation; on a finished corpus
    it does nothing. Until it has finished, the folder has no manifest, or still the one from before `append`.
    `on_progress` is called with the number of characters of each block after it was tokenized.
    """
    out = Path(out)
    cleaning = parse_cleaning_steps(clean)
    _check_dedup(dedup, dedup_threshold)
    if append and not (out / "manifest.json").is_file():
        raise DataError(f"{out} holds no finished corpus to append to")
    with exclusive_workdir(out) as work_dir:
        base_manifest = read_manifest(out) if (out / "manifest.json").is_file() else None
        reader = open_sources(
            paths, key, split, skip_bad, lang=lang, format=format, spool_dir=work_dir, exclude_dir=out
        )
        _check_first_document(reader, paths, tokenizer)  # before anything is written: most bad input shows here
        settings = {
            "clean": str(cleaning),
            "dedup": dedup,
            "dedup_threshold": dedup_threshold,
            "shard_characters": shard_characters,
        }
        plan = _build_plan(reader, tokenizer, settings)
        if base_manifest and is_up_to_date(out, base_manifest, plan, append):
            print(f"{out} is already prepared from the same sources", file=sys.stderr)
            rollback(out, False)
            return base_manifest
        write_or_check_plan(out, plan, base_manifest, tokenizer)
        if base_manifest:
            check_hashes(out, base_manifest)
        _warn_about_sources(reader, cleaning)
        with open_pool(num_workers or num_cores(), dask_address) as pool:
            preparation = Preparation(out, reader, plan, base_manifest, pool, on_progress or (lambda _: None))
            manifest = _run_stages(preparation, cleaning, tokenizer)
        if not manifest["shards"]:
            rollback(out, False)
            raise DataError("no text is left: every document was removed by cleaning or has no token")
        write_json(out / "manifest.json", manifest)
        remove_temporary(out, manifest)
    return manifest


def _check_dedup(dedup: str, threshold: float) -> None:
    if dedup not in DEDUP_MODES:
        raise ConfigError(f"dedup is {dedup!r}: {suggest(dedup, DEDUP_MODES)}")
    if not 0 < threshold <= 1:
        raise ConfigError(f"dedup_threshold is {threshold}; it must be greater than 0 and at most 1")


def _run_stages(preparation: Preparation, cleaning: CleaningConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Count lines, find duplicates and write shards, as the settings of the plan require; return the manifest."""
    settings = preparation.plan["settings"]
    dedup = settings["dedup"]
    config = WorkerConfig(cleaning, needs_signatures=dedup == "near")
    if cleaning.needs_line_counts:
        config = replace(config, boilerplate_hashes=preparation.find_boilerplate(config).tobytes())
    duplicate_map = None
    if dedup != "none":
        duplicate_map = preparation.find_duplicate_documents(config, settings["dedup_threshold"])
    config = replace(config, tokenizer=tokenizer.backend.to_str(), is_filtered=duplicate_map is not None)
    preparation.write_shards(config, duplicate_map)
    return preparation.build_manifest(duplicate_map)


def _check_first_document(
    reader: SourceReader, paths: Sequence[str | Path | CorpusSource], tokenizer: Tokenizer
) -> None:
    first_document = next(iter(reader), None)
    if first_document is None:
        raise DataError(f"there is no text in {', '.join(map(str, paths))}")
    if tokenizer.kind == "events" and set(first_document.text[:100].split()[:-1]).isdisjoint(tokenizer.vocabulary):
        raise DataError(f"{first_document.source} is text, but the tokenizer encodes only the events of MIDI files")


def _build_plan(reader: SourceReader, tokenizer: Tokenizer, settings: dict[str, Any]) -> dict[str, Any]:
    """Collect everything that determines the corpus. Two runs with equal plans write the same bytes."""
    sources = []
    for source_index, source in enumerate(reader.sources):
        langs = {source_file.lang for source_file in reader.files if source_file.source_index == source_index}
        sources.append(asdict(source) | {"lang": langs.pop() if len(langs) == 1 else ""})
    return {
        "format": FORMAT,
        "settings": settings,
        "tokenizer_hash": tokenizer.hash,
        "vocab_size": tokenizer.vocab_size,
        "sources": sources,
        "source_files": reader.file_facts,
    }


def _warn_about_sources(reader: SourceReader, cleaning: CleaningConfig) -> None:
    """Report skipped files and languages that the language step does not support."""
    if reader.skipped_files:
        num_skipped, example = len(reader.skipped_files), reader.skipped_files[0]
        print(
            f"note: skipped {num_skipped:,} files that are empty or of unknown format, e.g. {example}", file=sys.stderr
        )
    if cleaning.language:
        langs = {source_file.lang for source_file in reader.files if source_file.lang}
        unsupported = sorted(lang for lang in langs if not LanguageDetector().supports(lang))
        if unsupported:
            print(f"note: the language step does not support {', '.join(unsupported)}", file=sys.stderr)
