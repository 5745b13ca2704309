"""The result of every compress command: its table, its JSON, and its page."""

import json
import math

import pytest

from polyseme.compress import CompressionResult, CompressionRow, CurvePoint
from polyseme.errors import ModelError
from polyseme.io.hashes import check_hashes, write_hashes

ROWS = (
    CompressionRow.compare("megabytes", 8.0, 2.0),
    CompressionRow.compare("parameters", 2_000_000, 1_000_000),
    CompressionRow.compare_seeds("accuracy", [0.9], [0.8, 0.9]),
    CompressionRow.compare("removed", 0, 3),
)


def make_result(path, **fields):
    return CompressionResult(ROWS, path / "my model", {"format": "int8", "inputs": ["ids"]}, **fields)


def test_the_table_has_ratios_and_deviations_over_seeds(tmp_path):
    header, rows = make_result(tmp_path).table
    assert header == ["measure", "before", "after", "ratio"]
    assert rows[0] == ["megabytes", "8", "2", "0.250"]
    assert rows[1] == ["parameters", "2,000,000", "1,000,000", "0.500"]
    assert rows[2] == ["accuracy", "0.9", "0.85 ± 0.071", "0.944"]
    assert rows[3][-1] == "–"


def test_a_result_without_a_curve_has_a_page(tmp_path):
    make_result(tmp_path).save(tmp_path)
    page = (tmp_path / "compression.html").read_text()
    assert "0.85 ± 0.071" in page and "Quality against" not in page and "<script" not in page
    assert "curve" not in json.loads((tmp_path / "compression.json").read_text())


def test_the_page_draws_the_curve_and_marks_the_model(tmp_path):
    curve = (
        CurvePoint("float32", 8, 0.9),
        CurvePoint("int8", 2, 0.88, chosen=True),
        CurvePoint("2 bits", 0.5, math.nan),
        CurvePoint("int8", 2, 0.7, series="random <b>", std=0.02),
    )
    result = make_result(tmp_path, curve=curve, notes=("Rounded & written.", "It breaks."), curve_metric="F1")
    result.save(tmp_path)
    page = (tmp_path / "compression.html").read_text()
    assert "Rounded &amp; written." in page and "It breaks." in page
    assert "<b>int8</b>" in page and "0.7 ± 0.02" in page and "random &lt;b&gt;" in page
    assert "F1 by megabytes" in page and "2 bits" not in page
    points = json.loads((tmp_path / "compression.json").read_text().replace("NaN", "null"))["curve"]["points"]
    assert [point["chosen"] for point in points] == [False, True, False, False]


def test_saving_updates_the_hashes_of_a_folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    write_hashes(tmp_path)
    make_result(tmp_path).save(tmp_path)
    assert check_hashes(tmp_path)
    (tmp_path / "compression.html").write_text("")
    with pytest.raises(ModelError, match=r"compression.html was changed"):
        check_hashes(tmp_path)
