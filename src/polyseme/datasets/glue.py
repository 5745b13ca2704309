"""GLUE (Wang et al. 2019, table 1), SNLI and SICK. Quotes in the tab-separated files are plain characters."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import NamedDataset, pair_reader, split_files
from polyseme.errors import DataError
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.metrics.standard import classification_metrics
from polyseme.tasks.readers.rows import Columns, RowReader, read_lines
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


def _read_cola(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read CoLA, of which only unlabeled files have a header."""
    columns = Columns("4", label="2", has_header=False) if needs_labels else Columns("sentence")
    return ClassificationTask.iter_rows(path, columns, needs_labels)


def _read_mrpc(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read GLUE's file if it exists, else Microsoft's."""
    microsoft_name = "msr_paraphrase_test.txt" if path.name == "test.tsv" else "msr_paraphrase_train.txt"
    source_path = path if path.is_file() else path.with_name(microsoft_name)
    return PairClassificationTask.iter_rows(source_path, Columns("#1 String", "#2 String", "Quality"), needs_labels)


def _read_sick(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read the files of SemEval 2014, which have a header, or three columns without one."""
    columns = Columns("1", "2", "3", has_header=False)
    if path.name.startswith("SICK_"):
        columns = Columns("sentence_A", "sentence_B", "entailment_judgment")
    return PairClassificationTask.iter_rows(path, columns, needs_labels)


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
    labeled = list(zip(examples, predictions, strict=True))
    for name in PHENOMENA:
        if pairs := [(e.label or "", label) for e, label in labeled if name in e.id.split("; ")]:
            scores[re.sub(r"\W+", "_", name.lower())] = classification_metrics(*zip(*pairs))["matthews"]
    return scores


_SENTENCES, _SCORED = Columns("sentence1", "sentence2"), Columns("sentence1", "sentence2", "score")
_DUPLICATES, _NLI = Columns("question1", "question2", "is_duplicate"), Columns("sentence1", "sentence2", "gold_label")
_MATCHED = {"train": "train.tsv", "dev": "dev_matched.tsv", "test": "test_matched.tsv"}
_MISMATCHED = {"train": "train.tsv", "dev": "dev_mismatched.tsv", "test": "test_mismatched.tsv"}
_DIAGNOSTIC = {"dev": "diagnostic-full.tsv", "test": "diagnostic.tsv"}
_COLA_NAMES = {split: (f"in_domain_{split}.tsv", f"raw/in_domain_{split}.tsv") for split in ("train", "dev")}
_SICK_NAMES = {"train": ("SICK_train.txt",), "dev": ("SICK_trial.txt",), "test": ("SICK_test_annotated.txt",)}
_SIMILAR = "how similar are the two sentences, from 0 to 5?"
_PARAPHRASES = "are the two sentences paraphrases?"
_FOLLOWS = "does the second sentence follow from the first?"
_text, _pair = partial(NamedDataset, ClassificationTask), partial(NamedDataset, PairClassificationTask)
_similar = partial(_pair, has_symmetric_pairs=True)
_nli = partial(_pair, "accuracy", NLI_DESCRIPTION)
_diagnostic = partial(_pair, "matthews", f"evaluation of MNLI models by phenomenon: {NLI_DESCRIPTION}")
DATASETS: dict[str, NamedDataset] = {
    "glue/cola": _text("matthews", "is the sentence acceptable English?", "CoLA", _read_cola, other_names=_COLA_NAMES),
    "glue/sst-2": _text("accuracy", "is the movie review positive?", "SST-2", Columns("sentence")),
    "glue/mrpc": _similar(
        "f1", "are the two sentences paraphrases?", "MRPC", _read_mrpc, split_filter=_filter_by_dev_ids
    ),
    "glue/sts-b": NamedDataset(RegressionTask, "spearman", _SIMILAR, "STS-B", _SCORED),
    "glue/qqp": _similar("f1", "are the two questions duplicates?", "QQP", _DUPLICATES),
    "glue/mnli": _nli("MNLI", _NLI, _MATCHED),
    "glue/mnli-mm": _pair("accuracy", f"dev and test of other genres: {NLI_DESCRIPTION}", "MNLI", _NLI, _MISMATCHED),
    "glue/qnli": _pair("accuracy", "does the sentence answer the question?", "QNLI", Columns("question", "sentence")),
    "glue/rte": _pair("accuracy", _FOLLOWS, "RTE", _SENTENCES),
    "glue/wnli": _pair("accuracy", _FOLLOWS, "WNLI", _SENTENCES, get_warnings=wnli_warnings),
    "glue/diagnostic": _diagnostic("diagnostic", _read_diagnostic, _DIAGNOSTIC, _matthews_by_phenomenon),
    "snli": _nli("snli_1.0", pair_reader("sentence1", "sentence2", "gold_label"), split_files("snli_1.0_{}.jsonl")),
    "sick": _nli("sick", _read_sick, split_files("{}.txt"), other_names=_SICK_NAMES),
}
