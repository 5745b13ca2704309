"""GLUE (Wang et al. 2019, table 1) and its kin: tables with tabs, in which a quote is a character like any other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import DataSet, Row, each, table, two
from polyseme.errors import UserError
from polyseme.io.files import parse_json
from polyseme.tasks.examples import Example, Unit, read_lines, units_of
from polyseme.tasks.metrics.standard import classification

NLI = "does the second sentence follow, not follow, or contradict?"


def _by_dev_ids(folder: Path, name: str, found: list[Example]) -> list[Example]:
    """Of Microsoft's training file, `dev_ids.tsv` names the pairs that are the dev set."""
    if name == "test" or not found[0].where.rpartition(":")[0].endswith("msr_paraphrase_train.txt"):
        return found
    path, ids = folder / "msr_paraphrase_train.txt", folder / "dev_ids.tsv"
    chosen = {tuple(line.split("\t")) for line in read_lines(ids)}
    pairs = [tuple(line.split("\t")[1:3]) for line in read_lines(path)]
    if absent := sorted(chosen - set(pairs)):
        raise UserError(f"{ids} names the pair {' '.join(absent[0])!r}, which is not in {path.name}")
    held = [pairs[int(e.where.rpartition(":")[2]) - 1] in chosen for e in found]
    return [e for e, is_dev in zip(found, held) if is_dev == (name == "dev")]


def _mrpc_file(path: Path, need_labels: bool) -> Iterator[Unit]:
    """GLUE's own file if it is there, else Microsoft's."""
    theirs = "msr_paraphrase_test.txt" if path.name == "test.tsv" else "msr_paraphrase_train.txt"
    given = path if path.is_file() else path.with_name(theirs)
    return units_of(given, "pair", "#1 String", "#2 String", "Quality", need_labels=need_labels)


def _snli_units(path: Path, need_labels: bool) -> Iterator[Unit]:
    """The Stanford files, JSON lines; pairs on which no three annotators agreed (`-`) are left out, as they ask."""
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}:{number}"
        record = parse_json(line, where)
        if isinstance(record, dict) and record.get("gold_label") == "-":
            continue
        yield from each(_snli, Row(where, record, need_labels))


def _snli(row: Row) -> list[Example]:
    return [Example(row.where, row.get("sentence1"), row.get("sentence2"), label=row.label("gold_label"))]


def wnli_trap(train: Sequence[Example], dev: Sequence[Example], accuracy: float) -> list[str]:
    """What must be known of WNLI: dev sentences stand in train too, mostly with the other label, so that a model that
    learns train by heart is worse on dev than always saying one label (Wang et al. 2019's FAQ, 12; why BERT left it
    out)."""
    seen: dict[str, set[str | None]] = {}
    for example in train:
        seen.setdefault(example.text or "", set()).add(example.label)
    shared = [e for e in dev if e.text in seen]
    opposite = sum(e.label not in seen[e.text or ""] for e in shared)
    most = max(sum(e.label == label for e in dev) for label in {e.label for e in dev}) / len(dev)
    found = [
        f"{len(shared)} of {len(dev)} dev examples have their first sentence in train; "
        f"{opposite} of these never with the dev label"
    ]
    if accuracy < most:
        found.append(f"accuracy {accuracy:.3f} is below {most:.3f}, which the more frequent label alone has")
    return found


PHENOMENA = ("Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge")


def _diagnostic(path: Path, need_labels: bool) -> Iterator[Unit]:
    """The labelled file names in four columns what each pair is a case of: their names are the example's id."""
    if not need_labels:
        yield from units_of(path, "pair", "sentence1", "sentence2", need_labels=False)
        return
    rows = [line.split("\t") for line in read_lines(path)]
    places = [(rows[0].index(name), name) for name in PHENOMENA if name in rows[0]]

    def named(unit: Unit, row: list[str]) -> Example:
        example = unit()
        return replace(example, id="; ".join(name for i, name in places if row[i].strip()))

    for unit, row in zip(units_of(path, "pair", "Premise", "Hypothesis", "Label"), rows[1:]):
        yield partial(named, unit, row)


def _by_phenomenon(examples: Sequence[Example], said: Sequence[Any]) -> dict[str, float]:
    """Matthews' correlation over the pairs of each phenomenon (Wang et al. 2019, §4 and table 5)."""
    found = {}
    for name in PHENOMENA:
        pairs = [(e.label or "", label) for e, label in zip(examples, said, strict=True) if name in e.id.split("; ")]
        if pairs:
            found[re.sub(r"\W+", "_", name.lower())] = classification(*zip(*pairs))["matthews"]
    return found


_MNLI = table("pair", "sentence1", "sentence2", "gold_label")


def _mnli(dev: str, about: str) -> DataSet:
    parts = {"train": "train.tsv", "dev": f"dev_{dev}.tsv", "test": f"test_{dev}.tsv"}
    return DataSet("pair", "accuracy", about, "MNLI", _MNLI, parts)


_PAIR = table("pair", "sentence1", "sentence2")
SETS: dict[str, DataSet] = {
    "glue/cola": DataSet(
        "classification",
        "matthews",
        "is the sentence acceptable English?",
        "CoLA",
        table("classification", "4", label="2", header=False, bare=("sentence", "pair")),
        two(),
    ),
    "glue/sst-2": DataSet(
        "classification",
        "accuracy",
        "does the review like the film?",
        "SST-2",
        table("classification", "sentence"),
        two(),
    ),
    "glue/mrpc": DataSet(
        "pair", "f1", "do the two sentences say the same?", "MRPC", _mrpc_file, two(), chosen=_by_dev_ids
    ),
    "glue/sts-b": DataSet(
        "regression",
        "spearman",
        "how alike are the two sentences, from 0 to 5?",
        "STS-B",
        table("regression", "sentence1", "sentence2", "score"),
        two(),
    ),
    "glue/qqp": DataSet(
        "pair",
        "f1",
        "do the two questions ask the same?",
        "QQP",
        table("pair", "question1", "question2", "is_duplicate"),
        two(),
    ),
    "glue/mnli": _mnli("matched", NLI),
    "glue/mnli-mm": _mnli("mismatched", f"the same, dev and test of other genres: {NLI}"),
    "glue/qnli": DataSet(
        "pair",
        "accuracy",
        "does the sentence answer the question?",
        "QNLI",
        table("pair", "question", "sentence"),
        two(),
    ),
    "glue/rte": DataSet("pair", "accuracy", "does the second sentence follow from the first?", "RTE", _PAIR, two()),
    "glue/wnli": DataSet(
        "pair", "accuracy", "does the second sentence follow from the first?", "WNLI", _PAIR, two(), warn=wnli_trap
    ),
    "glue/diagnostic": DataSet(
        "pair",
        "matthews",
        f"by phenomenon, to measure MNLI models on: {NLI}",
        "diagnostic",
        _diagnostic,
        {"dev": "diagnostic-full.tsv", "test": "diagnostic.tsv"},
        _by_phenomenon,
    ),
    "snli": DataSet(
        "pair",
        "accuracy",
        NLI,
        "snli_1.0",
        _snli_units,
        {name: f"snli_1.0_{name}.jsonl" for name in ("train", "dev", "test")},
    ),
    "sick": DataSet(
        "pair",
        "accuracy",
        NLI,
        "sick",
        table("pair", "1", "2", "3", header=False),
        two("txt"),
    ),
}
