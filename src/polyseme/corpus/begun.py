"""The folder of a corpus while it is being made: what is there, whether to go on with it, and how it is left."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyseme.corpus.blocks import Passed
from polyseme.corpus.clean import Tally
from polyseme.corpus.store import UNFINISHED_WORK, read_manifest
from polyseme.errors import UserError
from polyseme.files import read_json, write_json
from polyseme.text.tokenizer import Tokenizer

EXAMPLES = 5  # of what was removed, for each reason


def look(out: Path, append: bool) -> dict[str, Any] | None:
    """The manifest of a finished corpus that is there; a `UserError` if the folder holds something else."""
    if (out / "manifest.json").is_file():
        return read_manifest(out)
    if append:
        raise UserError(f"there is no finished corpus in {out} to append to")
    if out.is_file() or (out.is_dir() and not (out / UNFINISHED_WORK).exists() and any(out.glob("[!.]*"))):
        raise UserError(f"{out} is not empty and not a corpus: choose another folder")
    return None


def already(out: Path, base: dict[str, Any], plan: dict[str, Any], append: bool) -> dict[str, Any] | None:
    """The corpus as it is, if it holds these sources already; None if they are to be appended."""
    if append:
        if other := difference(base | {key: plan[key] for key in ("sources", "origins")}, plan):
            raise UserError(f"{out} holds a corpus with {other}: what is appended has to be made in the same way")
        there = {source.get("sha256") or source.get("version") for source in base["sources"]}
        again = [s for s in plan["sources"] if (s.get("sha256") or s.get("version")) in there]
        if again and len(again) < len(plan["sources"]):
            raise UserError(f"{again[0]['path']} is in {out} already: leave it out")
        if not again:
            return None
        for there, here in zip(base["origins"][-len(plan["origins"]) :], plan["origins"]):
            for name, value in here.items():
                if name != "path" and there.get(name) != value:
                    raise UserError(
                        f"{here['path']} is in {out} already, with {name} {there.get(name)!r}, not {value!r}"
                    )
    elif other := difference(base, plan):
        raise UserError(f"{out} holds a corpus with {other}: choose another folder, or remove it")
    print(f"{out} is already prepared from the same sources", file=sys.stderr)
    path = out / UNFINISHED_WORK / "plan.json"
    if not path.is_file() or not difference(read_json(path), plan):
        tidy(out, base)
    return base


def begin(out: Path, plan: dict[str, Any], base: dict[str, Any] | None, tokenizer: Tokenizer) -> None:
    """Write down what is to be done, or find it written; a `UserError` if something else was begun here."""
    path = out / UNFINISHED_WORK / "plan.json"
    said = plan | {"base": base["hash"] if base else ""}
    if path.is_file():
        found = read_json(path)
        other = "another start" if found.get("base") != said["base"] else difference(found, plan)
        if not other:
            return
        if any(path.parent.glob("*-00000.json")):
            raise UserError(f"{out} holds an unfinished corpus with {other}: choose another folder, or remove it")
    if not base:
        tokenizer.save(out / "tokenizer")
    write_json(path, said)


def forget(out: Path, base: dict[str, Any] | None) -> None:
    """Take back what was made, and the folder if it is empty then."""
    shutil.rmtree(out / UNFINISHED_WORK, ignore_errors=True)
    if not base and out.is_dir() and not (out / "manifest.json").exists():
        shutil.rmtree(out / "tokenizer", ignore_errors=True)
        if not any(out.iterdir()):
            out.rmdir()


def tidy(out: Path, manifest: dict[str, Any]) -> None:
    """Leave nothing but what the manifest names."""
    shutil.rmtree(out / UNFINISHED_WORK, ignore_errors=True)
    named = {name for shard in manifest["shards"] for name in shard["files"]}
    for path in (*out.glob("shard-*.npy"), *out.rglob(".*.part")):
        if path.name not in named:
            path.unlink()


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
