"""The data of tiny studies: a folder of data sets, and held-out text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.text import ANIMALS, VERBS, write_glue


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
    sentences = [f"The {animal} {verb} the {animal}." for animal in ANIMALS for verb in VERBS]
    (folder / "held-out.txt").write_text("\n".join(" ".join(sentences[i : i + 8]) for i in range(0, 32, 8)))
    return folder
