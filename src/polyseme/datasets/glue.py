"""GLUE (Wang et al. 2019, table 1), SNLI and SICK. Quotes in the tab-separated files are plain characters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import JsonRow, NamedDataset, standard_files, table_reader
from polyseme.errors import DataError
from polyseme.io.json import parse_json
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.metrics.standard import classification_metrics
from polyseme.tasks.readers.rows import Columns, RowReader, lazy_rows, read_lines
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.sequence import TextExample

NLI_DESCRIPTION = "entailment, neutral or contradiction?"


def _filter_by_dev_ids(folder: Path, split: str, examples: list[TextExample]) -> list[TextExample]:
    """Split Microsoft's training file: `dev_ids.tsv` lists the pairs of the dev set."""
    if split == "test" or not examples[0].location.rpartition(":")[0].endswith("msr_paraphrase_train.txt"):
        return examples
    path, ids_path = folder / "msr_paraphrase_train.txt", folder / "dev_ids.tsv"
    dev_id_pairs = {tuple(line.split("\t")) for line in read_lines(ids_path)}
    id_pairs = [tuple(line.split("\t")[1:3]) for line in read_lines(path)]
    if missing := sorted(dev_id_pairs - set(id_pairs)):
        raise DataError(f"{ids_path} names the pair {' '.join(missing[0])!r}, which is not in {path.name}")
    dev_flags = [id_pairs[int(e.location.rpartition(":")[2]) - 1] in dev_id_pairs for e in examples]
    return [e for e, is_dev in zip(examples, dev_flags) if is_dev == (split == "dev")]


def _read_mrpc(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read GLUE's file if it exists, else Microsoft's."""
    microsoft_name = "msr_paraphrase_test.txt" if path.name == "test.tsv" else "msr_paraphrase_train.txt"
    source_path = path if path.is_file() else path.with_name(microsoft_name)
    return PairClassificationTask.iter_rows(source_path, Columns("#1 String", "#2 String", "Quality"), needs_labels)


def _read_snli(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read Stanford's JSON lines, without pairs that lack a majority label (`-`), as its authors recommend."""
    for line_number, line in enumerate(read_lines(path), 1):
        location = f"{path}:{line_number}"
        record = parse_json(line, location)
        if isinstance(record, dict) and record.get("gold_label") == "-":
            continue
        yield from lazy_rows(_snli_examples, JsonRow(location, record, needs_labels))


def _snli_examples(row: JsonRow) -> list[TextExample]:
    return [TextExample(row.location, row.get("sentence1"), row.get("sentence2"), row.label("gold_label"))]


def wnli_warnings(train: Sequence[TextExample], dev: Sequence[TextExample], accuracy: float) -> list[str]:
    """Warn that dev sentences of WNLI also occur in train, mostly with the opposite label.

    A model that memorizes train is therefore worse on dev than a constant prediction (GLUE FAQ, 12), which is why BERT
    excludes WNLI.
    """
    train_labels: dict[str, set[str | None]] = {}
    for example in train:
        train_labels.setdefault(example.text, set()).add(example.label)
    shared = [e for e in dev if e.text in train_labels]
    num_opposite = sum(e.label not in train_labels[e.text] for e in shared)
    majority_accuracy = max(sum(e.label == label for e in dev) for label in {e.label for e in dev}) / len(dev)
    messages = [
        f"{len(shared)} of {len(dev)} dev examples have their first sentence in train; "
        f"{num_opposite} of these never with the dev label"
    ]
    if accuracy < majority_accuracy:
        messages.append(f"accuracy {accuracy:.3f} is below {majority_accuracy:.3f}, that of the majority label")
    return messages


PHENOMENA = ("Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge")


def _read_diagnostic(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read the diagnostic set; the id of an example lists its phenomena, from four columns of the labeled file."""
    if not needs_labels:
        yield from PairClassificationTask.iter_rows(path, Columns("sentence1", "sentence2"), needs_labels=False)
        return
    rows = [line.split("\t") for line in read_lines(path)]
    phenomenon_columns = [(rows[0].index(name), name) for name in PHENOMENA if name in rows[0]]

    def with_phenomena(read_example: RowReader, row: list[str]) -> TextExample:
        example: TextExample = read_example()
        return replace(example, id="; ".join(name for i, name in phenomenon_columns if row[i].strip()))

    examples = PairClassificationTask.iter_rows(path, Columns("Premise", "Hypothesis", "Label"), needs_labels=True)
    for read_example, row in zip(examples, rows[1:]):
        yield partial(with_phenomena, read_example, row)


def _matthews_by_phenomenon(examples: Sequence[TextExample], predictions: Sequence[Any]) -> dict[str, float]:
    """Return Matthews correlation over the pairs of each phenomenon (Wang et al. 2019, §4 and table 5)."""
    scores = {}
    for name in PHENOMENA:
        pairs = [
            (e.label or "", label) for e, label in zip(examples, predictions, strict=True) if name in e.id.split("; ")
        ]
        if pairs:
            scores[re.sub(r"\W+", "_", name.lower())] = classification_metrics(*zip(*pairs))["matthews"]
    return scores


_MNLI_READER = table_reader(PairClassificationTask, Columns("sentence1", "sentence2", "gold_label"))


def _mnli_dataset(genres: str, description: str) -> NamedDataset:
    splits = {"train": "train.tsv", "dev": f"dev_{genres}.tsv", "test": f"test_{genres}.tsv"}
    return NamedDataset(PairClassificationTask, "accuracy", description, "MNLI", _MNLI_READER, splits)


_SENTENCE_PAIR_READER = table_reader(PairClassificationTask, Columns("sentence1", "sentence2"))
DATASETS: dict[str, NamedDataset] = {
    "glue/cola": NamedDataset(
        ClassificationTask,
        "matthews",
        "is the sentence acceptable English?",
        "CoLA",
        table_reader(
            ClassificationTask, Columns("4", label="2", has_header=False), unlabeled_columns=Columns("sentence")
        ),
        standard_files(),
    ),
    "glue/sst-2": NamedDataset(
        ClassificationTask,
        "accuracy",
        "is the movie review positive?",
        "SST-2",
        table_reader(ClassificationTask, Columns("sentence")),
        standard_files(),
    ),
    "glue/mrpc": NamedDataset(
        PairClassificationTask,
        "f1",
        "are the two sentences paraphrases?",
        "MRPC",
        _read_mrpc,
        standard_files(),
        split_filter=_filter_by_dev_ids,
    ),
    "glue/sts-b": NamedDataset(
        RegressionTask,
        "spearman",
        "how similar are the two sentences, from 0 to 5?",
        "STS-B",
        table_reader(RegressionTask, Columns("sentence1", "sentence2", "score")),
        standard_files(),
    ),
    "glue/qqp": NamedDataset(
        PairClassificationTask,
        "f1",
        "are the two questions duplicates?",
        "QQP",
        table_reader(PairClassificationTask, Columns("question1", "question2", "is_duplicate")),
        standard_files(),
    ),
    "glue/mnli": _mnli_dataset("matched", NLI_DESCRIPTION),
    "glue/mnli-mm": _mnli_dataset("mismatched", f"dev and test of other genres: {NLI_DESCRIPTION}"),
    "glue/qnli": NamedDataset(
        PairClassificationTask,
        "accuracy",
        "does the sentence answer the question?",
        "QNLI",
        table_reader(PairClassificationTask, Columns("question", "sentence")),
        standard_files(),
    ),
    "glue/rte": NamedDataset(
        PairClassificationTask,
        "accuracy",
        "does the second sentence follow from the first?",
        "RTE",
        _SENTENCE_PAIR_READER,
        standard_files(),
    ),
    "glue/wnli": NamedDataset(
        PairClassificationTask,
        "accuracy",
        "does the second sentence follow from the first?",
        "WNLI",
        _SENTENCE_PAIR_READER,
        standard_files(),
        get_warnings=wnli_warnings,
    ),
    "glue/diagnostic": NamedDataset(
        PairClassificationTask,
        "matthews",
        f"evaluation of MNLI models by phenomenon: {NLI_DESCRIPTION}",
        "diagnostic",
        _read_diagnostic,
        {"dev": "diagnostic-full.tsv", "test": "diagnostic.tsv"},
        _matthews_by_phenomenon,
    ),
    "snli": NamedDataset(
        PairClassificationTask,
        "accuracy",
        NLI_DESCRIPTION,
        "snli_1.0",
        _read_snli,
        {name: f"snli_1.0_{name}.jsonl" for name in ("train", "dev", "test")},
    ),
    "sick": NamedDataset(
        PairClassificationTask,
        "accuracy",
        NLI_DESCRIPTION,
        "sick",
        table_reader(PairClassificationTask, Columns("1", "2", "3", has_header=False)),
        standard_files("txt"),
    ),
}
