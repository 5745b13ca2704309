"""The demo on a few sentences: every step runs, and the report compares all methods."""

import json
import re

import polyseme
from polyseme.pipelines import demo
from polyseme.tasks.tagging import TaggingExample
from tests.support.text import documents


def sentences(is_test: bool) -> list[TaggingExample]:
    words = ("the", "array" if is_test else "list", "x.y", "is", "returned")
    return [TaggingExample("m", (*words, str(i)), ("O", "O", "code", "O", "O", "O")) for i in range(6)]


def test_demo_compares_the_bundled_model(tiny_folders, tmp_path, monkeypatch):
    monkeypatch.setattr(
        demo, "read_documents", lambda keep: ((str(i), text) for i, text in enumerate(documents(60, 1)))
    )
    monkeypatch.setattr(demo, "load_examples", sentences)
    monkeypatch.setattr(demo, "BUNDLED_MODEL", str(tiny_folders["modernbert"]))
    for name, value in (("VOCAB_SIZE", 300), ("NUM_TRAIN", 6), ("NUM_TEST", 6)):
        monkeypatch.setattr(demo, name, value)
    page = demo.run_demo(tmp_path / "demo", 0.01, 2).read_text()
    methods = ("majority", demo.LINEAR, demo.SCRATCH, demo.PRETRAINED, demo.BUNDLED)
    assert all(name in page for name in methods)
    assert len(re.findall(r"± \d\.\d{3} \(2 seeds\)", page)) >= len(methods)
    assert polyseme.load(tmp_path / "demo" / "task").model.config.family == "modernbert"
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["seeds"] == 2
