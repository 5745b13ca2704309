"""Turn text into a corpus: cleaned, deduplicated, tokenized into hashed shards.

A killed preparation can be resumed at any point, with any number of workers, and produces the same bytes.
The stages and their markers are in `stages`.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.config import Config
from polyseme.corpus.build.blocks import WorkerConfig
from polyseme.corpus.build.stages import Preparation
from polyseme.corpus.build.workers import num_cores, open_pool
from polyseme.corpus.card import write_corpus_card
from polyseme.corpus.clean.clean import DEFAULT_STEPS, CleaningConfig, LanguageDetector, parse_cleaning_steps
from polyseme.corpus.sources.sources import CorpusSource, SourceReader, open_sources
from polyseme.corpus.store import FORMAT, WORK_DIR, check_hashes, read_manifest
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.atomic import wrap_os_errors
from polyseme.io.binary_files import describe_skipped
from polyseme.io.json import read_json, write_json
from polyseme.io.lock import lock_folder
from polyseme.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DEDUP_MODES = ("near", "exact", "none")
DEFAULT_THRESHOLD = 0.8
_TRASH_DIR = ".work.gone"


@dataclass(frozen=True)
class PrepareConfig(Config):
    """Settings of `prepare`. The first four are defaults for sources that do not set them."""

    text_column: str = ""  # column or key of the text; "a+b" joins two; by default `text`
    split: str = "file"  # how to split plain text into documents: "file", "blank" (lines) or "line"
    lang: str = "en"
    format: str = ""  # detected from the file name if empty
    clean: str = DEFAULT_STEPS  # cleaning steps, as `parse_cleaning_steps` reads them
    dedup: str = "near"  # "near" (includes exact), "exact" or "none"
    dedup_threshold: float = DEFAULT_THRESHOLD  # minimum Jaccard similarity of near duplicates
    skip_bad: bool = False  # skip and count bad rows
    allow_large: bool = False  # read compressed files that expand more than a thousandfold
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
        if self.dedup != "near" and self.dedup_threshold != DEFAULT_THRESHOLD:
            value = f"`dedup_threshold` is {self.dedup_threshold}"
            raise ConfigError(f"{value}, which has no effect when `dedup` is {self.dedup!r}: leave out one")
        if self.dask_address and self.num_workers is not None:
            raise ConfigError("`num_workers` has no effect with `dask_address`: leave out one")

    @property
    def cleaning(self) -> CleaningConfig:
        """The cleaning steps."""
        return parse_cleaning_steps(self.clean)


def prepare(
    sources: Sequence[str | Path | CorpusSource], tokenizer: Tokenizer, out: Path, config: PrepareConfig | None = None
) -> dict[str, Any]:
    """Write a corpus folder, or append to one, and return its manifest.

    A call with the same sources, settings and tokenizer resumes an interrupted preparation; on a finished corpus
    it does nothing. Until it has finished, the folder has no manifest, or still the one from before `append`.
    """
    config, out = config or PrepareConfig(), Path(out)
    if config.append and not (out / "manifest.json").is_file():
        raise DataError(f"{out} holds no finished corpus to append to")
    with exclusive_workdir(out) as work_dir:
        base_manifest = read_manifest(out) if (out / "manifest.json").is_file() else None
        if kind := next((name for name in ("pairs", "images") if name in (base_manifest or ())), ""):
            raise ConfigError(f"{out} is a corpus of {kind}, not of text: choose another folder")
        reader = open_sources(
            sources, config.text_column, config.split, config.skip_bad, lang=config.lang, format=config.format,
            allow_large=config.allow_large, spool_dir=work_dir, exclude_dir=out,
        )  # fmt: skip
        _check_first_document(reader, tokenizer)  # before anything is written: most bad input shows here
        plan = _build_plan(reader, tokenizer, config, _hash_key(out, reader, base_manifest if config.append else None))
        if base_manifest and is_up_to_date(out, base_manifest, plan, config.append):
            logger.info(f"{out} is already prepared from the same sources")
            remove_unlisted(out)
            return base_manifest
        ensure_plan(out, plan, base_manifest, tokenizer)
        if base_manifest:
            check_hashes(out, base_manifest)
        _warn_about_sources(reader, config.cleaning)
        with open_pool(config.num_workers or num_cores(), config.dask_address) as pool:
            preparation = Preparation(out, reader, plan, base_manifest, pool)
            manifest = _run_stages(preparation, config, tokenizer)
        if not manifest["shards"]:
            remove_unlisted(out)
            raise DataError("no text is left: every document was removed by cleaning or has no token")
        write_corpus_card(out, manifest)  # before the manifest, which says that the corpus is finished
        write_json(out / "manifest.json", manifest)
        remove_unlisted(out)
    return manifest


def _run_stages(preparation: Preparation, config: PrepareConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Count lines, find duplicates and write shards, as the config requires; return the manifest."""
    hash_key = bytes.fromhex(preparation.plan["hash_key"])
    worker_config = WorkerConfig(config.cleaning, needs_signatures=config.dedup == "near", hash_key=hash_key)
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


def _hash_key(out: Path, reader: SourceReader, base_manifest: dict[str, Any] | None) -> str:
    """Return the key of line hashes and signatures: 16 bytes of a hash of all input, or the key of `base_manifest`.

    So the same input gives the same corpus, but an author of a part of the input cannot know the key.
    """
    if base_manifest is None:
        contents = [file.get("sha256") or file["version"] for file in reader.file_facts]
        return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:32]
    if "hash_key" not in base_manifest:
        raise DataError(f"{out} holds a corpus of an earlier version without a hash key: prepare it again")
    return str(base_manifest["hash_key"])


def _build_plan(reader: SourceReader, tokenizer: Tokenizer, config: PrepareConfig, hash_key: str) -> dict[str, Any]:
    """Collect everything that determines the corpus. Two runs with equal plans write the same bytes."""
    sources = []
    for source_index, source in enumerate(reader.sources):
        langs = {file.lang for file in reader.files if file.source_index == source_index}
        sources.append(asdict(source) | {"lang": langs.pop() if len(langs) == 1 else ""})
    settings = {name: getattr(config, name) for name in ("dedup", "dedup_threshold", "shard_characters")}
    return {
        "format": FORMAT,
        "settings": {"clean": str(config.cleaning)} | settings,
        "hash_key": hash_key,
        "tokenizer_hash": tokenizer.hash,
        "vocab_size": tokenizer.vocab_size,
        "sources": sources,
        "source_files": reader.file_facts,
    }


def _warn_about_sources(reader: SourceReader, cleaning: CleaningConfig) -> None:
    """Report skipped files and languages that the language step does not support."""
    if reader.skipped_files:
        logger.warning(describe_skipped(reader.skipped_files))
    if cleaning.language:
        langs = {file.lang for file in reader.files if file.lang}
        if unsupported := sorted(lang for lang in langs if not LanguageDetector().supports(lang)):
            logger.warning(f"the language step does not support {', '.join(unsupported)}")


@contextmanager
def exclusive_workdir(out: Path) -> Iterator[Path]:
    """Lock a corpus folder and create its working folder `.work`.

    Leftovers that an earlier run was removing are deleted first. If the block fails before any group of blocks is
    done, everything it created is removed, including `out` if it did not exist.
    """
    if out.is_file():
        raise ConfigError(f"{out} is a file, not a folder: choose another folder")
    with lock_folder(out, "prepare"):
        is_new, work_dir = not out.exists(), out / WORK_DIR
        with wrap_os_errors(out):
            shutil.rmtree(out / _TRASH_DIR, ignore_errors=True)
            is_corpus = work_dir.exists() or (out / "manifest.json").is_file()
            if out.is_dir() and not is_corpus and any(out.glob("[!.]*")):
                raise ConfigError(f"{out} is not empty and holds no corpus: choose another folder")
            work_dir.mkdir(parents=True, exist_ok=True)
        try:
            yield work_dir
        except BaseException:
            if not any(work_dir.glob("*-00000.json")):
                remove_unlisted(out, is_new)
            raise


def remove_unlisted(out: Path, is_new: bool = False) -> None:
    """Remove what no manifest lists, and the folder itself if `is_new` and nothing else is in it."""
    manifest = read_json(out / "manifest.json") if (out / "manifest.json").is_file() else {"shards": []}
    manifest_files = {name for shard in manifest["shards"] for name in shard["files"]}
    for path in (*out.glob("shard-*.npy"), *out.rglob(".*.part")):
        if path.name not in manifest_files:
            path.unlink(missing_ok=True)
    if (out / WORK_DIR).exists():
        os.replace(out / WORK_DIR, out / _TRASH_DIR)  # so that it is never read half deleted
        shutil.rmtree(out / _TRASH_DIR, ignore_errors=True)
    if not manifest["shards"]:
        shutil.rmtree(out / "tokenizer", ignore_errors=True)
        if is_new and not any(out.iterdir()):
            out.rmdir()


def is_up_to_date(out: Path, base: dict[str, Any], plan: dict[str, Any], append: bool) -> bool:
    """Return whether a corpus contains the sources of `plan`; raise `ConfigError` if they cannot be added either."""
    if not append:
        if (mismatch := describe_difference(base, plan)) and describe_difference(_initial_part(base), plan):
            raise ConfigError(f"{out} holds a corpus with {mismatch}: choose another folder or remove it")
        return True
    if mismatch := describe_difference(base | {key: plan[key] for key in ("source_files", "sources")}, plan):
        raise ConfigError(f"{out} holds a corpus with {mismatch}: append with the same settings")
    base_weights = dict(map(partial(_content_and_weight, base), base["source_files"]))
    present = []
    for file in plan["source_files"]:
        content, weight = _content_and_weight(plan, file)
        if content in base_weights:
            present.append(file["path"])
            if weight != base_weights[content]:
                advice = f"with weight {base_weights[content]}, not {weight}"
                raise ConfigError(f"{file['path']} is already in {out}, {advice}")
    if 0 < len(present) < len(plan["source_files"]):
        raise ConfigError(f"{present[0]} is already in {out}: leave it out")
    return bool(present)


def _initial_part(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest without the sources that were appended, so that a script of both calls can be run again."""
    num_sources = manifest.get("num_initial_sources", len(manifest["sources"]))
    files = [file for file in manifest["source_files"] if file["source_index"] < num_sources]
    return manifest | {"sources": manifest["sources"][:num_sources], "source_files": files}


def _content_and_weight(plan: dict[str, Any], file: dict[str, Any]) -> tuple[tuple[str, ...], float]:
    """Return what identifies the documents of a file, wherever it is, and the weight of its source."""
    source = plan["sources"][file["source_index"]]
    return (file.get("sha256") or file["version"], file["format"], source["text"], source["split"]), source["weight"]


def ensure_plan(out: Path, plan: dict[str, Any], base: dict[str, Any] | None, tokenizer: Tokenizer) -> None:
    """Write the plan; raise `ConfigError` if that of an interrupted run differs."""
    work_dir, base_hash = out / WORK_DIR, base["hash"] if base else ""
    if (work_dir / "plan.json").is_file():
        earlier_plan = read_json(work_dir / "plan.json")
        has_same_base = earlier_plan.get("base") == base_hash
        mismatch = describe_difference(earlier_plan, plan) if has_same_base else "other sources"
        if not mismatch:
            return
        is_obsolete = base is not None and not has_same_base  # finished, or can never be finished
        if any(work_dir.glob("*-00000.json")) and not is_obsolete:
            advice = f"remove {work_dir} to discard it" if base else "choose another folder, or remove it"
            problem = f"{out} holds an unfinished preparation with {mismatch}"
            raise ConfigError(f"{problem}: finish that one first, or {advice}")
        for path in work_dir.iterdir():
            if path.name != "stdin":
                path.unlink()
    if not base:
        tokenizer.save_files(out / "tokenizer")
    write_json(work_dir / "plan.json", plan | {"base": base_hash})


def describe_difference(existing: dict[str, Any], plan: dict[str, Any]) -> str:
    """Describe the first difference between an existing corpus and a plan; empty if only file locations differ."""
    if existing.get("format") != plan["format"]:
        return f"format {existing.get('format')}, not {plan['format']}"
    if existing["tokenizer_hash"] != plan["tokenizer_hash"]:
        return "another tokenizer"
    pairs = [(existing["settings"], plan["settings"])]
    if len(existing["sources"]) == len(plan["sources"]):
        pairs += zip(existing["sources"], plan["sources"])
    for existing_settings, plan_settings in pairs:
        for name, value in plan_settings.items():
            if name != "path" and existing_settings.get(name) != value:
                return f"{name} {existing_settings.get(name)!r}, not {value!r}"
    contents = [[file | {"path": ""} for file in manifest["source_files"]] for manifest in (existing, plan)]
    return "" if contents[0] == contents[1] else _describe_other_files(existing["source_files"], plan["source_files"])


def _describe_other_files(existing: Sequence[dict[str, Any]], planned: Sequence[dict[str, Any]]) -> str:
    """Describe the files that only a corpus has, those that it lacks, and those that have changed."""
    contents = [
        {file["path"]: file.get("sha256") or file["version"] for file in files} for files in (existing, planned)
    ]
    only_existing, only_planned = (
        [path for path, content in files.items() if content not in other.values()]
        for files, other in (contents, reversed(contents))
    )
    paths_by_problem = {
        "changed since": [path for path in only_planned if path in contents[0]],
        "not among the sources now": [path for path in only_existing if path not in contents[1]],
        "not in the corpus": [path for path in only_planned if path not in contents[0]],
    }
    parts = [
        f"{problem}: {paths[0]}{f' and {len(paths) - 1:,} more' if len(paths) > 1 else ''}"
        for problem, paths in paths_by_problem.items()
        if paths
    ]
    return f"other sources ({'; '.join(parts) or 'the same files in another order or number'})"
