"""State of a corpus folder during preparation: locking, resuming, rolling back and merging manifests."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyseme.corpus.build.blocks import SkippedInput
from polyseme.corpus.clean.clean import CleaningStats
from polyseme.corpus.store import WORK_DIR
from polyseme.errors import ConfigError, DataError
from polyseme.io.atomic import wrap_os_errors
from polyseme.io.json import read_json, write_json
from polyseme.text.tokenizer import Tokenizer

MAX_EXAMPLES = 5  # removed documents shown per reason
_TRASH_DIR = ".work.gone"


@contextmanager
def exclusive_workdir(out: Path) -> Iterator[Path]:
    """Create and lock the working folder `.work` of a corpus.

    Leftovers that an earlier run was removing are deleted first. If the block fails before any group of blocks is
    done, everything it created is removed, including `out` if it did not exist.
    """
    if out.is_file():
        raise ConfigError(f"{out} is a file, not a folder: choose another folder")
    is_new, work_dir = not out.exists(), out / WORK_DIR
    with wrap_os_errors(out):
        shutil.rmtree(out / _TRASH_DIR, ignore_errors=True)
        if out.is_dir() and not work_dir.exists() and not (out / "manifest.json").is_file() and any(out.glob("[!.]*")):
            raise ConfigError(f"{out} is not empty and holds no corpus: choose another folder")
        work_dir.mkdir(parents=True, exist_ok=True)
        lock = open(work_dir / "lock", "w")  # noqa: SIM115  # held while the block runs
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock.fileno()).st_ino != (work_dir / "lock").stat().st_ino:
            raise OSError  # another run has just finished and moved its lock away
    except OSError:
        lock.close()
        raise DataError(f"{out} is locked: another preparation is running there") from None
    try:
        yield work_dir
    except BaseException:
        if not any(work_dir.glob("*-00000.json")):
            rollback(out, is_new)
        raise
    finally:
        lock.close()


def rollback(out: Path, is_new: bool) -> None:
    """Remove what no manifest lists, and the folder itself if `is_new` and nothing else is in it."""
    if (out / "manifest.json").is_file():
        remove_temporary(out, read_json(out / "manifest.json"))
        return
    remove_temporary(out, {"shards": []})
    shutil.rmtree(out / "tokenizer", ignore_errors=True)
    if is_new and not any(out.iterdir()):
        out.rmdir()


def remove_temporary(out: Path, manifest: dict[str, Any]) -> None:
    """Remove everything the manifest does not list. `.work` is renamed first, so that it is never read half deleted."""
    manifest_files = {name for shard in manifest["shards"] for name in shard["files"]}
    for path in (*out.glob("shard-*.npy"), *out.rglob(".*.part")):
        if path.name not in manifest_files:
            path.unlink(missing_ok=True)
    if (out / WORK_DIR).exists():
        os.replace(out / WORK_DIR, out / _TRASH_DIR)
        shutil.rmtree(out / _TRASH_DIR, ignore_errors=True)


def is_up_to_date(out: Path, base: dict[str, Any], plan: dict[str, Any], append: bool) -> bool:
    """Return whether a finished corpus contains the sources of `plan`.

    Raises a `ConfigError` if it does not and they cannot be added.
    """
    if not append:
        num_entries = len(plan["source_files"]), len(plan["sources"])
        comparable = base | {
            "source_files": base["source_files"][: num_entries[0]],
            "sources": base["sources"][: num_entries[1]],
        }
        if mismatch := describe_difference(comparable, plan):
            raise ConfigError(f"{out} holds a corpus with {mismatch}: choose another folder or remove it")
        return True
    if mismatch := describe_difference(base | {key: plan[key] for key in ("source_files", "sources")}, plan):
        raise ConfigError(f"{out} holds a corpus with {mismatch}: append with the same settings")
    existing_sources = {
        _source_content(base, source): base["sources"][source["source_index"]] for source in base["source_files"]
    }
    already_present = [source for source in plan["source_files"] if _source_content(plan, source) in existing_sources]
    for source in already_present:
        old_weight, new_weight = (
            existing_sources[_source_content(plan, source)]["weight"],
            plan["sources"][source["source_index"]]["weight"],
        )
        if old_weight != new_weight:
            raise ConfigError(f"{source['path']} is already in {out}, with weight {old_weight}, not {new_weight}")
    if already_present and len(already_present) < len(plan["source_files"]):
        raise ConfigError(f"{already_present[0]['path']} is already in {out}: leave it out")
    return bool(already_present)


def _source_content(plan: dict[str, Any], source: dict[str, Any]) -> tuple[str, ...]:
    """Return what identifies the documents of a source, wherever the file is."""
    corpus_source = plan["sources"][source["source_index"]]
    return source.get("sha256") or source["version"], source["format"], corpus_source["key"], corpus_source["split"]


def write_or_check_plan(out: Path, plan: dict[str, Any], base: dict[str, Any] | None, tokenizer: Tokenizer) -> None:
    """Write the plan, or check it against that of an interrupted run.

    Raises a `ConfigError` if the interrupted run had a different plan.
    """
    work_dir = out / WORK_DIR
    full_plan = plan | {"base": base["hash"] if base else ""}
    if (work_dir / "plan.json").is_file():
        earlier_plan = read_json(work_dir / "plan.json")
        mismatch = (
            "other sources"
            if earlier_plan.get("base") != full_plan["base"]
            else describe_difference(earlier_plan, plan)
        )
        if not mismatch:
            return
        is_obsolete = (
            base is not None and earlier_plan.get("base") != base["hash"]
        )  # finished, or can never be finished
        if any(work_dir.glob("*-00000.json")) and not is_obsolete:
            advice = f"remove {work_dir} to discard it" if base else "choose another folder, or remove it"
            raise ConfigError(
                f"{out} holds an unfinished preparation with {mismatch}: finish that one first, or {advice}"
            )
        for path in work_dir.iterdir():
            if path.name not in ("lock", "stdin"):
                path.unlink()
    if not base:
        tokenizer.save(out / "tokenizer")
    write_json(work_dir / "plan.json", full_plan)


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

    def content(manifest: dict[str, Any]) -> list[dict[str, Any]]:
        return [{k: v for k, v in source.items() if k != "path"} for source in manifest["source_files"]]

    return "" if content(existing) == content(plan) else "other sources, or sources that have changed since"


def merge_manifests(base: dict[str, Any], addition: dict[str, Any]) -> dict[str, Any]:
    """Merge the manifest of a corpus with that of documents appended to it."""
    num_base_sources = len(base["sources"])
    source_files = [
        source | {"source_index": source["source_index"] + num_base_sources} for source in addition["source_files"]
    ]
    skipped = SkippedInput()
    for part in (base, addition):
        skipped.add({name: part["removed"][name] for name in asdict(skipped)})
    cleaning_stats = (CleaningStats.from_json(part["removed"]["cleaning"]) for part in (base, addition))
    removed = asdict(skipped) | {"cleaning": merge_cleaning_stats(cleaning_stats)}
    if "duplicates" in addition["removed"]:
        base_duplicates, new_duplicates = base["removed"]["duplicates"], addition["removed"]["duplicates"]
        removed["duplicates"] = {
            name: base_duplicates[name] + new_duplicates[name] for name in ("exact", "near", "characters")
        }
        removed["duplicates"]["examples"] = [*base_duplicates["examples"], *new_duplicates["examples"]][:MAX_EXAMPLES]
    languages = {lang: dict(counts) for lang, counts in base["languages"].items()}
    for lang, counts in addition["languages"].items():
        base_counts = languages.setdefault(lang, dict.fromkeys(counts, 0))
        languages[lang] = {unit: base_counts[unit] + counts[unit] for unit in counts}
    return base | {
        "languages": dict(sorted(languages.items())),
        "sources": base["sources"] + addition["sources"],
        "source_files": base["source_files"] + source_files,
        "shards": base["shards"] + addition["shards"],
        "removed": removed,
    }


def merge_cleaning_stats(cleaning_stats: Iterable[CleaningStats]) -> dict[str, Any]:
    """Sum cleaning statistics, as JSON."""
    merged_stats = CleaningStats()
    for stats in cleaning_stats:
        merged_stats.add(stats)
    return merged_stats.to_json()
