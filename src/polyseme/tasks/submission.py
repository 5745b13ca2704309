"""Files as the GLUE server wants them: an index and a prediction for each test example, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyseme.errors import UserError, nearest
from polyseme.files import write_text
from polyseme.tasks.task import Prediction

GLUE_FILES = {
    "glue/cola": "CoLA",
    "glue/sst-2": "SST-2",
    "glue/mrpc": "MRPC",
    "glue/sts-b": "STS-B",
    "glue/qqp": "QQP",
    "glue/mnli": "MNLI-m",
    "glue/mnli-mm": "MNLI-mm",
    "glue/qnli": "QNLI",
    "glue/rte": "RTE",
    "glue/wnli": "WNLI",
    "glue/diagnostic": "AX",
}


def write_submission(path: Path, name: str, predictions: Sequence[Prediction]) -> None:
    """Labels as they were in training; numbers of STS-B from 0 to 5."""
    if name not in GLUE_FILES:
        raise UserError(f"{name} is not scored by the GLUE server; {nearest(name, GLUE_FILES)}")
    rows = ["index\tprediction"]
    for number, prediction in enumerate(predictions):
        given = prediction.label
        if prediction.number is not None:
            given = f"{min(max(prediction.number, 0.0), 5.0):.3f}"
        rows.append(f"{number}\t{given}")
    write_text(path, "\n".join(rows) + "\n")
