"""Charts: the SVG is parsed and compared with the points."""

import math
import re
import sys

import numpy as np
import pytest

from polyseme.report.charts import (
    Bar,
    ScatterPoint,
    Series,
    bar_chart,
    histogram,
    line_chart,
    loss_chart,
    mean_std_chart,
    reliability_chart,
    scatter_chart,
)
from polyseme.report.heatmap import Labels, attention_grid, heat_map
from polyseme.report.svg import Axis, downsample, format_number, linear_ticks, log_ticks, standalone_svg
from tests.support.pages import SVG, check_svg


def parse_chart(text: str) -> tuple[dict[str, list[tuple[float, float]]], list[str]]:
    """Return the points of each line by color, and all texts."""
    root = check_svg(text[text.index('<svg class="chart"') :])
    points = {}
    for path in root.iter(f"{SVG}path"):
        if path.get("stroke-linejoin"):
            name = re.search(r"stroke:([\w()-]+)", path.get("style"))[1] + (" faint" * ("opacity" in path.get("style")))
            points[name] = [tuple(map(float, p.split())) for p in path.get("d")[1:].split("L")]
    return points, [element.text for element in root.iter(f"{SVG}text")]


def test_points_are_scaled_to_pixels():
    lines = [Series("a", [(0, 4.0), (5, 2.0), (10, 0.0)], "red"), Series("<b>", [(5, 4.0)], "blue", show_points=True)]
    points, texts = parse_chart(line_chart(lines, Axis("step", integers=True), "loss"))
    (x0, top), (middle, half), (x1, bottom) = points["red"]
    assert x0 < middle < x1 and middle == pytest.approx((x0 + x1) / 2)
    assert top < half < bottom and half == pytest.approx((top + bottom) / 2)  # y grows downward in SVG
    assert points["blue"] == [(middle, top)]
    assert {"a", "<b>", "step", "loss", "0", "2", "4", "10"} <= set(texts)


def test_logarithmic_axes():
    chart = line_chart([Series("", [(1, 1.0), (10, 10.0), (0, 5.0), (100, 100.0)])], Axis("x", True), Axis("y", True))
    points, texts = parse_chart(chart)
    (x0, y0), (x1, y1), (x2, y2) = points["var(--s1)"]  # without the one at zero
    assert x1 - x0 == pytest.approx(x2 - x1) and y1 - y0 == pytest.approx(y2 - y1)
    assert {"1", "10", "100"} <= set(texts)


def test_points_that_are_not_finite_are_skipped():
    whole, _ = parse_chart(line_chart([Series("a", [(1, 3.0), (3, 1.0)], "red")], "x", "y"))
    with_gaps = [(1, 3.0), (2, math.nan), (2, math.inf), (3, 1.0)]
    assert parse_chart(line_chart([Series("a", with_gaps, "red"), Series("b", [], "blue")], "x", "y"))[0] == whole
    assert line_chart([Series("a", [(1, math.nan)], "red")], "x", "y") == ""
    assert "red" in parse_chart(line_chart([Series("a", [(1, 2.0)], "red")], "x", "y"))[0]  # a single point


def test_long_labels_are_in_a_legend_with_different_dashes():
    series = [Series(f"runs/a-long-name-{i}", [(0, i), (1, i + 1)]) for i in range(3)]
    chart = line_chart(series, "x", "y")
    legend, _, drawing = chart.partition("</ul>")
    assert legend.count("<li>") == 3 and "a-long-name-2</li>" in legend and "a-long-name-2</text>" not in drawing
    assert len(set(re.findall(r"stroke-dasharray:([\d ]+)", legend))) == 2  # the first line is solid
    short = line_chart([Series("b", [(0, 1), (1, 2)]), Series("c", [(0, 1), (1, 2.01)])], "x", "y")
    heights = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)" style="fill:var\(--s\d\)"', short)]
    assert "<li>" not in short and len(heights) == 2 and abs(heights[0] - heights[1]) >= 18  # labels do not overlap


def test_loss_chart(monkeypatch):
    """One panel per term, a moving mean for many steps, and no matplotlib."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    rows = [{"step": i, "loss": {"next": 5 - i / 100}} for i in range(1, 201)]
    rows += [{"step": i, "valid": {"next": 4.0}} for i in (100, 200)]
    chart = loss_chart(rows, {"chance": 6.0}, unit="bits")
    points, texts = parse_chart(chart)
    assert {"training", "held-out", "chance", "next loss (bits)"} <= set(texts)
    sizes = {name: len(line) for name, line in points.items()}
    assert sizes == {"var(--s1) faint": 200, "var(--s1)": 196, "var(--s2)": 2, "var(--s8)": 2}
    assert points["var(--s1)"][0] == pytest.approx(points["var(--s1) faint"][2], abs=0.2)  # the mean is centered
    assert chart.count("<circle") == 2
    assert "faint" not in str(parse_chart(loss_chart(rows[:9]))[0]) and "opacity" not in loss_chart(rows[:9])
    two = loss_chart([{"step": i, "loss": {"next": 1.0, "pair": 2.0}} for i in (1, 2)])
    assert two.count("<svg") == 1 and {"next loss (nats)", "pair loss (nats)"} <= set(parse_chart(two)[1])
    assert loss_chart([]) == loss_chart([{"step": 1, "valid": {"next": 1.0}}]) == ""


def test_long_curves_are_downsampled():
    points = [(i, math.sin(i / 500) + (i == 70_001) * 9) for i in range(100_000)]
    short = downsample(points)
    assert len(short) <= 602 and (70_001, points[70_001][1]) in short and short[0] == points[0]
    assert short[-1] == points[-1] and short == sorted(short) and set(short) <= set(points)
    assert downsample(points[:600]) == points[:600]
    assert len(line_chart([Series("a", points)], "x", "y")) < 12_000


def test_bars_have_intervals_and_references():
    bars = [Bar("majority <1>", 0.25, is_reference=True), Bar("model", 0.5, (0.4, 0.6)), Bar("failed", math.nan)]
    root = check_svg(bar_chart(bars, "accuracy"))
    reference, model = root.iter(f"{SVG}rect")
    assert float(model.get("width")) == pytest.approx(2 * float(reference.get("width")), abs=0.2)
    assert "s8" in reference.get("style") and "s1" in model.get("style")
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"majority <1>", "model", "0.25", "0.5", "accuracy"} <= set(texts) and "failed" not in texts
    assert bar_chart([], "x") == "" and check_svg(bar_chart([Bar("a", -1.0), Bar("b", 0.0)], "x")) is not None


def test_scatter_connects_the_front():
    points = [ScatterPoint("a", 1e6, 0.8, (0.7, 0.9)), ScatterPoint("b", 1e8, 0.9), ScatterPoint("c", 5e7, 0.7)]
    chart = scatter_chart(points, Axis("parameters", log=True), "accuracy", front=["a", "b"])
    root = check_svg(chart)
    assert [circle.get("style") for circle in root.iter(f"{SVG}circle")].count("fill:var(--s3)") == 2
    assert {"a", "b", "c", "10M", "100M"} <= {element.text for element in root.iter(f"{SVG}text")}
    assert scatter_chart([], "x", "y") == ""


def test_histogram_and_reliability():
    root = check_svg(histogram([1, 2, 4], [3, 6], Axis("tokens", log=True), "documents"))
    first, second = root.iter(f"{SVG}rect")
    assert float(second.get("height")) == pytest.approx(2 * float(first.get("height")))
    assert float(second.get("width")) == pytest.approx(float(first.get("width")), abs=0.2)
    assert histogram([1, 2], [0], "x", "y") == ""
    root = check_svg(reliability_chart([(0.55, 0.5, 1), (0.75, 0.7, 0), (0.95, 0.9, 100)]))
    small, large = (float(circle.get("r")) for circle in root.iter(f"{SVG}circle"))
    assert small < large and reliability_chart([(0.5, 0.5, 0)]) == ""


def test_bands_of_standard_deviations():
    curves = {"scratch": {100: (0.5, 0.1), 1000: (0.3, 0.05)}, "pre-trained": {100: (0.2, 0.0), 1000: (0.1, 0.0)}}
    chart = mean_std_chart(curves, Axis("examples", log=True), "error")
    assert chart.count("opacity:.16") == 1 and check_svg(chart) is not None


def test_heat_map_labels_are_inside():
    labels = Labels(["a", "日本語" * 20], ["שלום", "donaudampfschifffahrtsgesellschaft", "c"], "gold", "predicted")
    values = np.array([[0.0, 0.5, 1.0], [2.0, -1.0, 0.25]])
    root = check_svg(heat_map(values, labels, texts=[["0", "5", "1,000,000"], ["1", "2", "3"]]))
    opacities = [float(rect.get("fill-opacity")) for rect in root.iter(f"{SVG}rect") if rect.get("fill-opacity")]
    assert opacities == [0.0, 0.35, 0.7, 0.7, 0.0, 0.17]
    titles = [element.text for element in root.iter(f"{SVG}title")]
    assert "a → donaudampfschifffahrtsgesellschaft: 0.5" in titles and "日本語" * 20 in titles  # the whole label
    assert heat_map(np.zeros((0, 0)), Labels([], [])) == ""


def test_attention_grid():
    maps = np.zeros((2, 12, 3, 4))
    maps[1, 11, 2, 3], maps[0, 0, 0, 0] = 1.0, 0.01
    root = check_svg(attention_grid(maps, first_layer=5))
    assert sum(text.text.startswith("layer 6") for text in root.iter(f"{SVG}text")) == 12
    (path,) = root.iter(f"{SVG}path")  # the only cell that is not blank
    x, y = map(float, re.match(r"M([\d.]+) ([\d.]+)h10v10h-10$", path.get("d")).groups())
    frame = list(root.iter(f"{SVG}rect"))[-1]
    assert (x, y) == (float(frame.get("x")) + 30, float(frame.get("y")) + 20) and path.get("fill-opacity") == "0.70"
    assert len(attention_grid(np.random.default_rng(0).dirichlet([0.1] * 40, (6, 8, 40)))) < 700_000
    assert attention_grid(np.zeros((0, 0, 3, 3))) == ""
    many = heat_map(np.full((60, 60), 0.5), Labels(["a"] * 60, ["b"] * 60))
    assert "<title>" not in many and many.count("<path") == 1


def test_standalone_svg_has_its_colors():
    chart = standalone_svg(line_chart([Series("a long name of a line", [(0, 1), (1, 2)])] * 2, "x", "y"))
    assert chart.startswith("<svg") and "--s1:#" in chart and "xmlns=" in chart and "<ul" not in chart


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
def test_linear_ticks(low, high, min_step, expected):
    assert linear_ticks(low, high, 6, min_step) == expected


@pytest.mark.parametrize(
    "low, high, expected",
    [
        (1, 1000, [1, 10, 100, 1000]),
        (1, 30, [1, 3, 10, 30]),
        (100, 1e13, [100, 1e4, 1e6, 1e8, 1e10, 1e12]),
        (1.0, 1.3, [1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3]),
    ],
)
def test_log_ticks(low, high, expected):
    assert log_ticks(low, high, 6) == pytest.approx(expected)


def test_number_format():
    values = [0, 0.05, 0.25, 12, 999, 1500, 12_000, 1.5e6, 2e9, 3e12, 3e-5, -2500, 1.25e-4]
    texts = ["0", "0.05", "0.25", "12", "999", "1,500", "12k", "1.5M", "2B", "3T", "3e-5", "-2,500", "1.25e-4"]
    assert [format_number(value) for value in values] == texts
