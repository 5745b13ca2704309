"""The folder of a corpus while it is being made: what is there, whether to go on with it, and how it is left."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyseme.corpus.build.blocks import Passed
from polyseme.corpus.clean.clean import Tally
from polyseme.corpus.store import UNFINISHED_WORK
from polyseme.errors import UserError
from polyseme.io.files import read_json, told, write_json
from polyseme.text.tokenizer import Tokenizer

EXAMPLES = 5  # of what was removed, for each reason
_GONE = ".work.gone"


@contextmanager
def at_work(out: Path) -> Iterator[Path]:
    """The folder's `.work`, which is there from now on, and nobody else's while this lasts.

    What an earlier run was about to throw away goes first. If the block fails before anything of worth is in it, all
    that was made goes again, the folder too if it was not there.
    """
    if out.is_file():
        raise UserError(f"{out} is a file: choose another folder")
    new, work = not out.exists(), out / UNFINISHED_WORK
    with told(out):
        shutil.rmtree(out / _GONE, ignore_errors=True)
        if out.is_dir() and not work.exists() and not (out / "manifest.json").is_file() and any(out.glob("[!.]*")):
            raise UserError(f"{out} is not empty and not a corpus: choose another folder")
        work.mkdir(parents=True, exist_ok=True)
        lock = open(work / "lock", "w")  # noqa: SIM115  # held as long as the block runs
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock.fileno()).st_ino != (work / "lock").stat().st_ino:  # moved away by one who has just finished
            raise OSError
    except OSError:
        lock.close()
        raise UserError(f"another prepare is at work in {out}") from None
    try:
        yield work
    except BaseException:
        if not any(work.glob("*-00000.json")):
            forget(out, new)
        raise
    finally:
        lock.close()


def forget(out: Path, new: bool) -> None:
    """Take back what was made and is in no manifest, and the folder if it was not there before."""
    if (out / "manifest.json").is_file():
        tidy(out, read_json(out / "manifest.json"))
        return
    tidy(out, {"shards": []})
    shutil.rmtree(out / "tokenizer", ignore_errors=True)
    if new and not any(out.iterdir()):
        out.rmdir()


def tidy(out: Path, manifest: dict[str, Any]) -> None:
    """Leave nothing but what the manifest names. `.work` goes in one move, so that no half of it is ever read."""
    named = {name for shard in manifest["shards"] for name in shard["files"]}
    for path in (*out.glob("shard-*.npy"), *out.rglob(".*.part")):
        if path.name not in named:
            path.unlink(missing_ok=True)
    if (out / UNFINISHED_WORK).exists():
        os.replace(out / UNFINISHED_WORK, out / _GONE)
        shutil.rmtree(out / _GONE, ignore_errors=True)


def already(out: Path, base: dict[str, Any], plan: dict[str, Any], append: bool) -> bool:
    """Whether a finished corpus holds these sources; a `UserError` if it does not and cannot take them."""
    if not append:
        count = len(plan["sources"]), len(plan["origins"])
        begun = base | {"sources": base["sources"][: count[0]], "origins": base["origins"][: count[1]]}
        if other := difference(begun, plan):
            raise UserError(f"{out} holds a corpus with {other}: choose another folder, or remove it")
        return True
    if other := difference(base | {key: plan[key] for key in ("sources", "origins")}, plan):
        raise UserError(f"{out} holds a corpus with {other}: what is appended has to be made in the same way")
    there = {_content(base, source): base["origins"][source["origin"]] for source in base["sources"]}
    known = [source for source in plan["sources"] if _content(plan, source) in there]
    for source in known:
        old, new = there[_content(plan, source)]["weight"], plan["origins"][source["origin"]]["weight"]
        if old != new:
            raise UserError(f"{source['path']} is in {out} already, with weight {old}, not {new}")
    if known and len(known) < len(plan["sources"]):
        raise UserError(f"{known[0]['path']} is in {out} already: leave it out")
    return bool(known)


def _content(plan: dict[str, Any], source: dict[str, Any]) -> tuple[str, ...]:
    """What is read from a source, wherever it lies."""
    origin = plan["origins"][source["origin"]]
    return source.get("sha256") or source["version"], source["format"], origin["key"], origin["split"]


def begin(out: Path, plan: dict[str, Any], base: dict[str, Any] | None, tokenizer: Tokenizer) -> None:
    """Write down what is to be done, or find it written; a `UserError` if something else was begun here."""
    work = out / UNFINISHED_WORK
    said = plan | {"base": base["hash"] if base else ""}
    if (work / "plan.json").is_file():
        found = read_json(work / "plan.json")
        other = "other sources" if found.get("base") != said["base"] else difference(found, plan)
        if not other:
            return
        over = base is not None and found.get("base") != base["hash"]  # it was finished, or can never be
        if any(work.glob("*-00000.json")) and not over:
            way = f"remove {work} to drop it" if base else "choose another folder, or remove it"
            raise UserError(f"{out} holds an unfinished run with {other}: run that again to finish it, or {way}")
        for path in work.iterdir():
            if path.name not in ("lock", "stdin"):
                path.unlink()
    if not base:
        tokenizer.save(out / "tokenizer")
    write_json(work / "plan.json", said)


def difference(found: dict[str, Any], plan: dict[str, Any]) -> str:
    """What another corpus was made with, in words; empty if it is the same, wherever its files lay."""
    if found.get("format") != plan["format"]:
        return f"format {found.get('format')}, not {plan['format']}"
    if found["tokenizer_hash"] != plan["tokenizer_hash"]:
        return "another tokenizer"
    pairs = [(found["settings"], plan["settings"])]
    if len(found["origins"]) == len(plan["origins"]):
        pairs += zip(found["origins"], plan["origins"])
    for there, here in pairs:
        for name, value in here.items():
            if name != "path" and there.get(name) != value:
                return f"{name} {there.get(name)!r}, not {value!r}"

    def content(manifest: dict[str, Any]) -> list[dict[str, Any]]:
        return [{k: v for k, v in source.items() if k != "path"} for source in manifest["sources"]]

    return "" if content(found) == content(plan) else "other sources, or they have changed since"


def joined(base: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a corpus and of what is appended to it."""
    count = len(base["origins"])
    sources = [source | {"origin": source["origin"] + count} for source in new["sources"]]
    passed = Passed()
    for part in (base, new):
        passed.add({name: part["removed"][name] for name in asdict(passed)})
    tallies = (Tally.from_json(part["removed"]["cleaning"]) for part in (base, new))
    removed = asdict(passed) | {"cleaning": total(tallies)}
    if "duplicates" in new["removed"]:
        old, more = base["removed"]["duplicates"], new["removed"]["duplicates"]
        removed["duplicates"] = {name: old[name] + more[name] for name in ("exact", "near", "characters")}
        removed["duplicates"]["examples"] = [*old["examples"], *more["examples"]][:EXAMPLES]
    languages = {lang: dict(counts) for lang, counts in base["languages"].items()}
    for lang, counts in new["languages"].items():
        there = languages.setdefault(lang, dict.fromkeys(counts, 0))
        languages[lang] = {kind: there[kind] + counts[kind] for kind in counts}
    return base | {
        "languages": dict(sorted(languages.items())),
        "origins": base["origins"] + new["origins"],
        "sources": base["sources"] + sources,
        "shards": base["shards"] + new["shards"],
        "removed": removed,
    }


def total(parts: Iterable[Tally]) -> dict[str, Any]:
    """All that cleaning did."""
    whole = Tally()
    for part in parts:
        whole.add(part)
    return whole.to_json()
