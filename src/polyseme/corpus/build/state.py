"""State of a corpus folder during preparation: locking, resuming, rolling back and merging manifests."""

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.corpus.clean.clean import MAX_EXAMPLES, merge_cleaning_stats
from polyseme.corpus.sources.sources import SkippedInput
from polyseme.corpus.store import WORK_DIR
from polyseme.errors import ConfigError, DataError
from polyseme.io.atomic import wrap_os_errors
from polyseme.io.json import read_json, write_json
from polyseme.text.tokenizer import Tokenizer

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
        comparable = base | {key: base[key][: len(plan[key])] for key in ("source_files", "sources")}
        if mismatch := describe_difference(comparable, plan):
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


def _content_and_weight(plan: dict[str, Any], file: dict[str, Any]) -> tuple[tuple[str, ...], float]:
    """Return what identifies the documents of a file, wherever it is, and the weight of its source."""
    source = plan["sources"][file["source_index"]]
    return (file.get("sha256") or file["version"], file["format"], source["key"], source["split"]), source["weight"]


def ensure_plan(out: Path, plan: dict[str, Any], base: dict[str, Any] | None, tokenizer: Tokenizer) -> None:
    """Write the plan, or check it against that of an interrupted run.

    Raises a `ConfigError` if the interrupted run had a different plan.
    """
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
            if path.name not in ("lock", "stdin"):
                path.unlink()
    if not base:
        tokenizer.save(out / "tokenizer")
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
    return "" if contents[0] == contents[1] else "other sources, or sources that have changed since"


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
    }
