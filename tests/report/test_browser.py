"""Pages in a browser at phone and desktop width: nothing is wider than the window, no label of a chart is cut off."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from polyseme.report.charts import (
    Bar,
    Panel,
    ScatterPoint,
    Series,
    bar_chart,
    panel_chart,
    reliability_chart,
    scatter_chart,
)
from polyseme.report.heatmap import Labels, attention_grid, heat_map
from polyseme.report.html import code, collapsed, figure, html_page, html_table, key_figures, next_steps, warning
from polyseme.report.pages.compare_page import ComparedPretraining, pretraining_comparison_page
from polyseme.report.svg import Axis

CHROMIUM = shutil.which("chromium")
LONG_WORD = "donaudampfschifffahrtsgesellschaftskapitän" * 4
MEASURE = """
const frame = document.querySelector("iframe"), results = {};
frame.onload = () => {
  const page = frame.contentDocument;
  results.overflow = page.documentElement.scrollWidth - frame.clientWidth;
  results.scrolled = [...page.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth).length;
  results.clipped = [...page.querySelectorAll("svg text")].filter(text => {
    const inner = text.getBoundingClientRect(), outer = text.closest("svg").getBoundingClientRect();
    return inner.left < outer.left - 2 || inner.right > outer.right + 2 || inner.top < outer.top - 2
      || inner.bottom > outer.bottom + 2;
  }).map(text => text.textContent);
  document.body.textContent = JSON.stringify(results);
};
frame.srcdoc = decodeURIComponent(frame.dataset.page);
"""


def measure(page: str, width: int, folder) -> dict:
    """Return by how much a page is wider than a window, the number of scrolled tables, and the labels cut off."""
    path = folder / f"frame-{width}.html"
    quoted = html.escape("".join(f"%{byte:02x}" for byte in page.encode()))
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><body><iframe width="{width}" height="900" style="border:0" '
        f'data-page="{quoted}"></iframe><script>{MEASURE}</script></body>'
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1300,1000", f"file://{path}"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    return json.loads(html.unescape(re.search(r"<body>(\{.*\})</body>", output, re.DOTALL)[1]))


def gallery() -> str:
    """Return a page with every element, long words and several scripts."""
    words = ["the", LONG_WORD, "שלום עולם", "مرحبا", "日本語の長い単語です", "😀"]
    panels = [
        Panel(
            [Series("training", [(i, 5 - i / 1e5) for i in range(100_000)]), Series("held-out", [(5e4, 4.9)])],
            Axis("loss"),
        ),
        Panel([Series("", [(i, 1e-5 * i) for i in range(1, 1000)])], Axis("gradient norm", log=True), 100),
    ]
    rng = np.random.default_rng(0)
    points = [ScatterPoint(f"model-{i}", 10.0**i, 0.1 * i, (0.05 * i, 0.15 * i)) for i in range(1, 8)]
    charts = [
        panel_chart(panels, Axis("step", integers=True)),
        bar_chart([Bar(word[:60], 0.2 * i, (0.1 * i, 0.25 * i)) for i, word in enumerate(words)], "accuracy"),
        scatter_chart(points, Axis("parameters", log=True), "accuracy", ["model-1", "model-7"]),
        reliability_chart([(0.1 * i, 0.09 * i, i * i) for i in range(1, 11)]),
        heat_map(
            rng.random((6, 6)), Labels(words, words, "target", "source"), texts=[[word[:9] for word in words]] * 6
        ),
        attention_grid(rng.random((2, 8, 6, 6))),
    ]
    sections = [(f"Chart {i}", figure(chart, f"Look at {LONG_WORD}.")) for i, chart in enumerate(charts)]
    table = html_table(words, [[*words], [1, 2, 3, 4, 5, 6]])
    sections += [
        ("Table", table + collapsed(LONG_WORD, code(LONG_WORD * 3))),
        ("Next", next_steps([("x", "polyseme " + LONG_WORD)])),
    ]
    top = warning(LONG_WORD) + key_figures([("a", LONG_WORD, "b"), ("c", 10**12, LONG_WORD)])
    return html_page(LONG_WORD, LONG_WORD, sections, top)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_wider_than_the_window_or_cut_off(width, tmp_path):
    measured = measure(gallery(), width, tmp_path)
    assert measured["overflow"] <= 0 and measured["clipped"] == []


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_results_of_pretraining_runs_fit_their_box(tmp_path):
    figures = {"loss": 2.8831, "perplexity": 117.87, "bits_per_character": 1.9034}
    figures |= {"tokens": 32_768_000, "flops": 3.21e15, "minutes": 112.345, "parameters": 124_508_385}
    names = ("gpt2-small-with-baseline", "gpt2_small_with_rotary_positions_seed_1")
    page = pretraining_comparison_page([ComparedPretraining(name, figures) for name in names])
    assert measure(page, 1200, tmp_path)["scrolled"] == 0
