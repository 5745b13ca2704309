"""Files as the servers of GLUE and SuperGLUE want them: an index and a prediction for each test example, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.atomic import write_text
from polyseme.tasks.examples import Example
from polyseme.tasks.task import Prediction

SUBMISSION_FILES = {
    "glue/cola": "CoLA.tsv",
    "glue/sst-2": "SST-2.tsv",
    "glue/mrpc": "MRPC.tsv",
    "glue/sts-b": "STS-B.tsv",
    "glue/qqp": "QQP.tsv",
    "glue/mnli": "MNLI-m.tsv",
    "glue/mnli-mm": "MNLI-mm.tsv",
    "glue/qnli": "QNLI.tsv",
    "glue/rte": "RTE.tsv",
    "glue/wnli": "WNLI.tsv",
    "glue/diagnostic": "AX.tsv",
    "superglue/boolq": "BoolQ.jsonl",
    "superglue/cb": "CB.jsonl",
    "superglue/copa": "COPA.jsonl",
    "superglue/multirc": "MultiRC.jsonl",
    "superglue/record": "ReCoRD.jsonl",
    "superglue/rte": "RTE.jsonl",
    "superglue/wic": "WiC.jsonl",
    "superglue/wsc": "WSC.jsonl",
}


def write_submission(
    path: Path, name: str, predictions: Sequence[Prediction], examples: Sequence[Example] = ()
) -> None:
    """Labels as they were in training; numbers of STS-B from 0 to 5; for SuperGLUE an object a line, by the ids that
    its files have."""
    if name not in SUBMISSION_FILES:
        raise ConfigError(
            f"{name} is not scored by the servers of GLUE and SuperGLUE; {suggest(name, SUBMISSION_FILES)}"
        )
    if name.startswith("superglue/"):
        rows = [json.dumps(row, ensure_ascii=False) for row in _superglue_objects(name, predictions, examples)]
        write_text(path, "\n".join(rows) + "\n")
        return
    rows = ["index\tprediction"]
    for index, prediction in enumerate(predictions):
        value = prediction.label
        if prediction.number is not None:
            value = f"{min(max(prediction.number, 0.0), 5.0):.3f}"
        rows.append(f"{index}\t{value}")
    write_text(path, "\n".join(rows) + "\n")


def _superglue_objects(
    name: str, predictions: Sequence[Prediction], examples: Sequence[Example]
) -> Iterator[dict[str, Any]]:
    """MultiRC's are nested as its files are; COPA's and MultiRC's labels are numbers, ReCoRD's the entity's text."""
    pairs = list(zip(examples, predictions, strict=True))
    for example, _ in pairs:
        if not example.id or "" in example.id.split("-"):
            raise DataError(f"{example.location}: there is no idx, by which the server knows an example")
    if name == "superglue/multirc":
        indexed_predictions = [
            ([int(number) for number in example.id.split("-")], prediction) for example, prediction in pairs
        ]
        for passage, group in groupby(indexed_predictions, key=lambda part: part[0][0]):
            questions = [
                {
                    "idx": question,
                    "answers": [{"idx": ids[2], "label": int(prediction.label or 0)} for ids, prediction in answers],
                }
                for question, answers in groupby(group, key=lambda part: part[0][1])
            ]
            yield {"idx": passage, "passage": {"questions": questions}}
        return
    for example, prediction in pairs:
        label: Any = prediction.label
        if name == "superglue/record":
            label = (example.choices or ())[int(prediction.label or 0)]
        elif name == "superglue/copa":
            label = int(prediction.label or 0)
        elif name == "superglue/wsc":
            label = str(prediction.label).capitalize()
        yield {"idx": int(example.id), "label": label}
