"""The worked example: a task model is distilled, pruned, quantized and exported."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/smaller_model.py"
STEPS = ["teacher", "distill", "prune", "quantize", "export"]


@pytest.mark.slow
def test_every_step_is_measured_and_none_is_repeated(project, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    files = ["--train", project / "classification-train.tsv", "--dev", project / "classification-dev.tsv"]
    options = ["--out", tmp_path, "--heads", "1", "--epochs", "1", "--max-drop", "100"]
    monkeypatch.setattr(
        sys, "argv", ["smaller_model.py", *map(str, [project / "run-classification", *files, *options])]
    )
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == STEPS and all(float(row[1]) > 0 for row in rows)
    assert all("accuracy" in " ".join(row) and float(row[2]) > 0 for row in rows)
    pages = [tmp_path / name / "compression.html" for name in ("distilled", "pruned", "int8", "onnx")]
    times = [page.stat().st_mtime_ns for page in pages]
    assert float(rows[0][1]) > float(rows[1][1]) > float(rows[2][1])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert [page.stat().st_mtime_ns for page in pages] == times
