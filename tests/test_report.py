"""The chart of a run, read back from its drawing."""

import math
import re
import sys
from xml.etree import ElementTree

import pytest

from polyseme.report.html import Series, _ticks, line_chart, loss_chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text: str) -> tuple[dict[str, list[tuple[float, float]]], list[str]]:
    """The points of each line by its colour, without its key at the end, and all that is written."""
    root = ElementTree.fromstring(text)
    *paths, _axes = root.iter(f"{SVG}path")
    points = {
        path.get("stroke"): [tuple(map(float, p.split())) for p in path.get("d").rpartition("M")[0][1:].split("L")]
        for path in paths
    }
    return points, [element.text for element in root.iter(f"{SVG}text")]


def test_points_stand_where_their_values_say():
    lines = [Series("a", [(0, 4.0), (5, 2.0), (10, 0.0)], "red"), Series("<b>", [(5, 4.0)], "blue", show_points=True)]
    points, texts = drawn(line_chart(lines, "step", "loss"))
    (x0, top), (middle, half), (x1, bottom) = points["red"]
    assert x0 < middle < x1 and middle == pytest.approx((x0 + x1) / 2)
    assert top < half < bottom and half == pytest.approx((top + bottom) / 2)  # a picture's y grows downwards
    assert points["blue"] == [(middle, top)]
    assert {"a", "<b>", "step", "loss", "0", "2", "4", "10"} <= set(texts)


def test_what_is_not_finite_is_left_out():
    whole, _ = drawn(line_chart([Series("a", [(1, 3.0), (3, 1.0)], "red")], "x", "y"))
    holed = [(1, 3.0), (2, math.nan), (2, math.inf), (3, 1.0)]
    assert drawn(line_chart([Series("a", holed, "red"), Series("b", [], "blue")], "x", "y"))[0] == whole
    assert line_chart([Series("a", [(1, math.nan)], "red")], "x", "y") == ""
    assert "red" in drawn(line_chart([Series("a", [(1, 2.0)], "red")], "x", "y"))[0]  # one point, no height


def test_curves_of_a_log(monkeypatch):
    """A chart for each term; a mean over steps where they are many; nothing that needs a plotting library."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    rows = [{"step": i, "loss": {"next": 5 - i / 100, "pair": 0.7}} for i in range(1, 201)]
    rows += [{"step": i, "valid": {"next": 4.0}} for i in (100, 200)]
    first, second = re.findall("<svg.*?</svg>", loss_chart(rows, {"chance": 6.0}, unit="bits"))
    points, texts = drawn(first)
    assert {"training", "training, mean of 5", "held-out", "chance", "next loss (bits)"} <= set(texts)
    assert len(points["#b9c4d6"]) == 200 and len(points["#2b6cb0"]) == 196 and len(points["#c05621"]) == 2
    assert points["#2b6cb0"][0] == pytest.approx(points["#b9c4d6"][2], abs=4) and first.count("<circle") == 2
    assert "held-out" not in drawn(second)[1]
    few, _ = re.findall("<svg.*?</svg>", loss_chart(rows[:9]))
    assert "training" in drawn(few)[1] and "mean" not in few
    assert loss_chart([]) == loss_chart([{"step": 1, "valid": {"next": 1.0}}])


@pytest.mark.parametrize(
    "low, high, least, expected",
    [
        (1, 9, 1, [2, 4, 6, 8]),
        (1, 2, 1, [1, 2]),
        (0.31, 0.52, 0, [0.35, 0.4, 0.45, 0.5]),
        (-1.0, 1.0, 0, [-1, -0.5, 0, 0.5, 1]),
        (1, 100000, 1, [20000, 40000, 60000, 80000, 100000]),
    ],
)
def test_ticks(low, high, least, expected):
    assert _ticks(low, high, 6, least) == expected
