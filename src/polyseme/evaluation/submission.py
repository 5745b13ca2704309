"""Submission files for the servers of GLUE and SuperGLUE: an index and a prediction for each test example, in order."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.atomic import write_text
from polyseme.tasks.formats import PredictionFormat

_GLUE_FILES = (
    *("cola CoLA", "sst-2 SST-2", "mrpc MRPC", "sts-b STS-B", "qqp QQP", "mnli MNLI-m", "mnli-mm MNLI-mm"),
    *("qnli QNLI", "rte RTE", "wnli WNLI", "diagnostic AX"),
)
_SUPERGLUE_FILES = ("BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "RTE", "WiC", "WSC")
SUBMISSION_FILES = {
    **{f"glue/{name}": f"{file}.tsv" for name, file in map(str.split, _GLUE_FILES)},
    **{f"superglue/{file.lower()}": f"{file}.jsonl" for file in _SUPERGLUE_FILES},
}


def write_submission(path: Path, name: str, predictions: Sequence[Any], examples: Sequence[Any] = ()) -> None:
    """Write all predictions in the format of `submission_format`."""
    write_text(path, submission_format(name).format_file(examples, predictions))


def submission_format(name: str) -> PredictionFormat:
    """Return the format of a data set's submission.

    Labels are written as they were in training, and numbers of STS-B from 0 to 5; for SuperGLUE, JSON lines with ids.
    """
    if name not in SUBMISSION_FILES:
        known = suggest(name, SUBMISSION_FILES)
        raise ConfigError(f"{name} is not scored by the servers of GLUE and SuperGLUE; {known}")
    if name.startswith("superglue/"):

        def format_objects(examples: Sequence[Any], predictions: Sequence[Any], start: int) -> Iterator[str]:
            objects = _superglue_objects(name, predictions, examples)
            return (json.dumps(row, ensure_ascii=False) + "\n" for row in objects)

        is_nested = name == "superglue/multirc"
        return PredictionFormat(format_objects, group_key=_passage_id if is_nested else None)
    return PredictionFormat(_format_glue_rows, "index\tprediction\n")


def _format_glue_rows(examples: Sequence[Any], predictions: Sequence[Any], start: int) -> Iterator[str]:
    for index, value in enumerate((p.value for p in predictions), start):
        cell = f"{min(max(value, 0.0), 5.0):.3f}" if isinstance(value, float) else value
        yield f"{index}\t{cell}\n"


def _passage_id(example: Any) -> str:
    return str(example.id).partition("-")[0]


def _superglue_objects(name: str, predictions: Sequence[Any], examples: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of all lines; MultiRC's are nested as in its files."""
    pairs = list(zip(examples, predictions, strict=True))
    for example, _ in pairs:
        if not example.id or "" in example.id.split("-"):
            raise DataError(f"{example.location}: there is no idx, which the server needs")
    if name == "superglue/multirc":
        rows = [(*map(int, example.id.split("-")), int(prediction.label)) for example, prediction in pairs]
        for passage, group in groupby(rows, key=itemgetter(0)):
            questions = [
                {"idx": question, "answers": [{"idx": answer, "label": label} for *_, answer, label in answers]}
                for question, answers in groupby(group, key=itemgetter(1))
            ]
            yield {"idx": passage, "passage": {"questions": questions}}
        return
    for example, prediction in pairs:
        label: Any = prediction.label
        if name == "superglue/record":
            label = example.choices[int(label)]
        elif name == "superglue/copa":
            label = int(label)
        elif name == "superglue/wsc":
            label = label.capitalize()
        yield {"idx": int(example.id), "label": label}
