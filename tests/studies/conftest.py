"""The data of tiny studies: a folder of data sets, and held-out text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyseme.studies import transfer
from tests.support.text import documents, write_glue


@pytest.fixture(autouse=True)
def one_finetuning_rate(monkeypatch):
    """Try one learning rate for each task."""
    monkeypatch.setattr(transfer, "FEATURE_LR_FACTORS", (1.0,))


@pytest.fixture(scope="session")
def study_data(tmp_path_factory) -> Path:
    """A folder of small data sets in their layout as distributed."""
    folder = tmp_path_factory.mktemp("data")
    write_glue(folder / "glue")
    (folder / "blimp/data").mkdir(parents=True)
    for paradigm, word in (("agreement", "see"), ("order", "sat")):
        pair = {"sentence_good": f"the cat {word}s the dog", "sentence_bad": f"the cat the dog {word}", "UID": paradigm}
        (folder / f"blimp/data/{paradigm}.jsonl").write_text((json.dumps(pair) + "\n") * 3)
    (folder / "pretrain").mkdir()
    (folder / "held-out.txt").write_text("\n".join(documents(4, seed=9)))
    return folder
