"""Loss charts: the SVG is parsed and compared with the points."""

import math
import re
import sys
from xml.etree import ElementTree

import pytest

from polyseme.report.charts import Series, _ticks, line_chart, loss_chart

SVG = "{http://www.w3.org/2000/svg}"


def parse_chart(text: str) -> tuple[dict[str, list[tuple[float, float]]], list[str]]:
    """Return the points of each line by color, without its legend, and all texts."""
    root = ElementTree.fromstring(text)
    *paths, _axes = root.iter(f"{SVG}path")
    points = {
        path.get("stroke"): [tuple(map(float, p.split())) for p in path.get("d").rpartition("M")[0][1:].split("L")]
        for path in paths
    }
    return points, [element.text for element in root.iter(f"{SVG}text")]


def test_points_are_scaled_to_pixels():
    lines = [Series("a", [(0, 4.0), (5, 2.0), (10, 0.0)], "red"), Series("<b>", [(5, 4.0)], "blue", show_points=True)]
    points, texts = parse_chart(line_chart(lines, "step", "loss"))
    (x0, top), (middle, half), (x1, bottom) = points["red"]
    assert x0 < middle < x1 and middle == pytest.approx((x0 + x1) / 2)
    assert top < half < bottom and half == pytest.approx((top + bottom) / 2)  # y grows downward in SVG
    assert points["blue"] == [(middle, top)]
    assert {"a", "<b>", "step", "loss", "0", "2", "4", "10"} <= set(texts)


def test_points_that_are_not_finite_are_skipped():
    whole, _ = parse_chart(line_chart([Series("a", [(1, 3.0), (3, 1.0)], "red")], "x", "y"))
    with_gaps = [(1, 3.0), (2, math.nan), (2, math.inf), (3, 1.0)]
    assert parse_chart(line_chart([Series("a", with_gaps, "red"), Series("b", [], "blue")], "x", "y"))[0] == whole
    assert line_chart([Series("a", [(1, math.nan)], "red")], "x", "y") == ""
    assert "red" in parse_chart(line_chart([Series("a", [(1, 2.0)], "red")], "x", "y"))[0]  # a single point


def test_loss_chart(monkeypatch):
    """One chart per term, a moving mean for many steps, and no matplotlib."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    rows = [{"step": i, "loss": {"next": 5 - i / 100, "pair": 0.7}} for i in range(1, 201)]
    rows += [{"step": i, "valid": {"next": 4.0}} for i in (100, 200)]
    first, second = re.findall("<svg.*?</svg>", loss_chart(rows, {"chance": 6.0}, unit="bits"))
    points, texts = parse_chart(first)
    assert {"training", "training, mean of 5", "held-out", "chance", "next loss (bits)"} <= set(texts)
    assert len(points["#b9c4d6"]) == 200 and len(points["#2b6cb0"]) == 196 and len(points["#c05621"]) == 2
    assert points["#2b6cb0"][0] == pytest.approx(points["#b9c4d6"][2], abs=4) and first.count("<circle") == 2
    assert "held-out" not in parse_chart(second)[1]
    few, _ = re.findall("<svg.*?</svg>", loss_chart(rows[:9]))
    assert "training" in parse_chart(few)[1] and "mean" not in few
    assert loss_chart([]) == loss_chart([{"step": 1, "valid": {"next": 1.0}}])


@pytest.mark.parametrize(
    "low, high, min_step, expected",
    [
        (1, 9, 1, [2, 4, 6, 8]),
        (1, 2, 1, [1, 2]),
        (0.31, 0.52, 0, [0.35, 0.4, 0.45, 0.5]),
        (-1.0, 1.0, 0, [-1, -0.5, 0, 0.5, 1]),
        (1, 100000, 1, [20000, 40000, 60000, 80000, 100000]),
    ],
)
def test_ticks(low, high, min_step, expected):
    assert _ticks(low, high, 6, min_step) == expected
