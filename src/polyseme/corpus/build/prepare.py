"""Turn text into a corpus: cleaned, deduplicated, tokenized into hashed shards.

A killed preparation can be resumed at any point, with any number of workers, and produces the same bytes.
The stages and their markers are in `stages`.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from polyseme.config import Config
from polyseme.corpus.build.blocks import WorkerConfig
from polyseme.corpus.build.stages import Preparation
from polyseme.corpus.build.state import ensure_plan, exclusive_workdir, is_up_to_date, remove_temporary, rollback
from polyseme.corpus.build.workers import num_cores, open_pool
from polyseme.corpus.clean.clean import DEFAULT_STEPS, CleaningConfig, LanguageDetector, parse_cleaning_steps
from polyseme.corpus.sources.sources import CorpusSource, SourceReader, open_sources
from polyseme.corpus.store import FORMAT, check_hashes, read_manifest
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.json import write_json
from polyseme.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DEDUP_MODES = ("near", "exact", "none")


@dataclass(frozen=True)
class PrepareConfig(Config):
    """Settings of `prepare`. The first four are defaults for sources that do not set them."""

    key: str = "text"  # column or key of the text; "a+b" joins two
    split: str = "file"  # how to split plain text into documents: "file", "blank" (lines) or "line"
    lang: str = "en"
    format: str = ""  # detected from the file name if empty
    clean: str = DEFAULT_STEPS  # cleaning steps, as `parse_cleaning_steps` reads them
    dedup: str = "near"  # "near" (includes exact), "exact" or "none"
    dedup_threshold: float = 0.8  # minimum Jaccard similarity of near duplicates
    skip_bad: bool = False  # skip and count bad rows
    append: bool = False  # add to a finished corpus
    num_workers: int | None = None  # worker processes; by default one per core
    dask_address: str = ""  # of a dask scheduler whose workers to use
    shard_characters: int = 200_000_000

    def __post_init__(self) -> None:
        parse_cleaning_steps(self.clean)
        if self.dedup not in DEDUP_MODES:
            raise ConfigError(f"dedup is {self.dedup!r}: {suggest(self.dedup, DEDUP_MODES)}")
        if not 0 < self.dedup_threshold <= 1:
            raise ConfigError(f"dedup_threshold is {self.dedup_threshold}; it must be greater than 0 and at most 1")

    @property
    def cleaning(self) -> CleaningConfig:
        """The cleaning steps."""
        return parse_cleaning_steps(self.clean)


def prepare(
    sources: Sequence[str | Path | CorpusSource],
    tokenizer: Tokenizer,
    out: Path,
    config: PrepareConfig | None = None,
    on_progress: Callable[[int], None] = lambda num_characters: None,
) -> dict[str, Any]:
    """Write a corpus folder, or append to one, and return its manifest.

    A call with the same sources, settings and tokenizer resumes an interrupted preparation; on a finished corpus
    it does nothing. Until it has finished, the folder has no manifest, or still the one from before `append`.
    `on_progress` is called with the number of characters of each block after it was tokenized.
    """
    config, out = config or PrepareConfig(), Path(out)
    if config.append and not (out / "manifest.json").is_file():
        raise DataError(f"{out} holds no finished corpus to append to")
    with exclusive_workdir(out) as work_dir:
        base_manifest = read_manifest(out) if (out / "manifest.json").is_file() else None
        reader = open_sources(
            sources, config.key, config.split, config.skip_bad, lang=config.lang, format=config.format,
            spool_dir=work_dir, exclude_dir=out,
        )  # fmt: skip
        _check_first_document(reader, tokenizer)  # before anything is written: most bad input shows here
        plan = _build_plan(reader, tokenizer, config)
        if base_manifest and is_up_to_date(out, base_manifest, plan, config.append):
            logger.info(f"{out} is already prepared from the same sources")
            rollback(out, False)
            return base_manifest
        ensure_plan(out, plan, base_manifest, tokenizer)
        if base_manifest:
            check_hashes(out, base_manifest)
        _warn_about_sources(reader, config.cleaning)
        with open_pool(config.num_workers or num_cores(), config.dask_address) as pool:
            preparation = Preparation(out, reader, plan, base_manifest, pool, on_progress)
            manifest = _run_stages(preparation, config, tokenizer)
        if not manifest["shards"]:
            rollback(out, False)
            raise DataError("no text is left: every document was removed by cleaning or has no token")
        write_json(out / "manifest.json", manifest)
        remove_temporary(out, manifest)
    return manifest


def _run_stages(preparation: Preparation, config: PrepareConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Count lines, find duplicates and write shards, as the config requires; return the manifest."""
    worker_config = WorkerConfig(config.cleaning, needs_signatures=config.dedup == "near")
    if config.cleaning.boilerplate:
        hashes = preparation.find_boilerplate(worker_config)
        worker_config = replace(worker_config, boilerplate_hashes=hashes.tobytes())
    duplicate_map = None
    if config.dedup != "none":
        duplicate_map = preparation.find_duplicate_documents(worker_config, config.dedup_threshold)
    is_filtered = duplicate_map is not None
    worker_config = replace(worker_config, tokenizer_json=tokenizer.backend.to_str(), is_filtered=is_filtered)
    preparation.write_shards(worker_config, duplicate_map)
    return preparation.build_manifest(duplicate_map)


def _check_first_document(reader: SourceReader, tokenizer: Tokenizer) -> None:
    first_document = next(iter(reader), None)
    if first_document is None:
        raise DataError(f"there is no text in {', '.join(source.path for source in reader.sources)}")
    if tokenizer.kind == "events" and set(first_document.text[:100].split()[:-1]).isdisjoint(tokenizer.vocabulary):
        raise DataError(f"{first_document.source} is text, but the tokenizer encodes only the events of MIDI files")


def _build_plan(reader: SourceReader, tokenizer: Tokenizer, config: PrepareConfig) -> dict[str, Any]:
    """Collect everything that determines the corpus. Two runs with equal plans write the same bytes."""
    sources = []
    for source_index, source in enumerate(reader.sources):
        langs = {file.lang for file in reader.files if file.source_index == source_index}
        sources.append(asdict(source) | {"lang": langs.pop() if len(langs) == 1 else ""})
    settings = {name: getattr(config, name) for name in ("dedup", "dedup_threshold", "shard_characters")}
    return {
        "format": FORMAT,
        "settings": {"clean": str(config.cleaning)} | settings,
        "tokenizer_hash": tokenizer.hash,
        "vocab_size": tokenizer.vocab_size,
        "sources": sources,
        "source_files": reader.file_facts,
    }


def _warn_about_sources(reader: SourceReader, cleaning: CleaningConfig) -> None:
    """Report skipped files and languages that the language step does not support."""
    if reader.skipped_files:
        num_skipped, example = len(reader.skipped_files), reader.skipped_files[0]
        logger.warning(f"skipped {num_skipped:,} files that are empty or of unknown format, e.g. {example}")
    if cleaning.language:
        langs = {file.lang for file in reader.files if file.lang}
        if unsupported := sorted(lang for lang in langs if not LanguageDetector().supports(lang)):
            logger.warning(f"the language step does not support {', '.join(unsupported)}")
