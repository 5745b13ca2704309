"""Pages of comparisons: Pareto fronts, paired tests, LaTeX and CSV, size."""

import csv
import io
import re
from html.parser import HTMLParser

import pytest

from polyseme.report.pages.benchmark_page import write_benchmark_page
from polyseme.report.pages.compare_page import (
    ComparedPretraining,
    comparison_page,
    figure_table,
    pareto_front,
    pretraining_comparison_page,
    write_comparison,
    write_pretraining_comparison,
)
from polyseme.report.pages.compare_tables import (
    ComparedRun,
    PairedTest,
    TaskScores,
    csv_scores,
    escape_latex,
    latex_table,
    score_table,
)

VOID = {"meta", "br", "path", "rect", "circle", "link", "line"}


class Balance(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def assert_balanced(page):
    parser = Balance()
    parser.feed(page)
    assert not parser.open


def run(name, *values, **cost):
    return ComparedRun(name, (TaskScores("trec", "accuracy", values),), **cost)


RUNS = [
    run("small_100%", 0.80, 0.82, num_parameters=10**6, train_flops=1e12, train_seconds=5.0, ms_per_text=1.0),
    run("large & slow", 0.90, 0.92, num_parameters=10**8, train_flops=1e14, train_seconds=50.0, ms_per_text=9.0),
    run("bad", 0.70, num_parameters=10**8, train_flops=1e15, train_seconds=60.0, ms_per_text=12.0),
]


def test_pareto_front_keeps_what_nothing_beats():
    points = [("a", 1.0, 0.5), ("b", 2.0, 0.7), ("c", 3.0, 0.6), ("d", 2.0, 0.7)]
    assert pareto_front(points) == ["a", "b", "d"]
    assert pareto_front(points, lower_is_better=True) == ["a"]


def test_latex_is_escaped_and_the_best_is_bold():
    latex = latex_table(score_table(RUNS))
    assert r"small\_100\% & 81.0 $\pm$ 1.4 & 2 & 1,000,000" in latex
    assert r"\textbf{91.0 $\pm$ 1.4}" in latex and latex.count(r"\textbf") == 1
    assert r"large \& slow" in latex and r"\toprule" in latex and r"\bottomrule" in latex
    assert escape_latex(r"a\b~^{}") == r"a\textbackslash{}b\textasciitilde{}\textasciicircum{}\{\}"
    widths = {len(re.findall(r"(?<!\\)&", line)) for line in latex.splitlines() if line.endswith(r"\\")}
    assert len(widths) == 1


def test_csv_has_a_row_for_each_seed():
    rows = list(csv.DictReader(io.StringIO(csv_scores(RUNS))))
    assert [row["run"] for row in rows] == ["small_100%"] * 2 + ["large & slow"] * 2 + ["bad"]
    assert float(rows[0]["score"]) == 0.80 and rows[4]["std"] == "" and rows[4]["ms_per_text"] == "12.0"


def test_lower_is_better_for_errors():
    runs = [ComparedRun(n, (TaskScores("sts", "mse", (v,)),)) for n, v in (("a", 2.5), ("b", 1.5))]
    table = score_table(runs)
    assert table.best == {(1, 1)} and table.rows[1][1] == "1.500"
    assert "b" in comparison_page(runs).split("best sts")[1][:120]


def test_page_shows_tests_and_the_front(tmp_path):
    tests = [
        PairedTest("large & slow", "small_100%", "trec", 0.10, 0.05, 0.15, 0.0),
        PairedTest("small_100%", "bad", "trec", 0.01, -0.02, 0.04, 0.6),
    ]
    page = write_comparison(tmp_path, RUNS, tests, ["careful"]).read_text()
    assert_balanced(page)
    assert "large &amp; slow is better" in page and "not distinguishable" in page and "&lt; 0.001" in page
    assert "+5.00 to +15.00" in page and "careful" in page
    assert "small_100% are on the Pareto front" in page and "https://" not in page.replace("http://www.w3.org", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "scores.csv", "table.tex"]


def test_pretraining_page_overlays_curves_and_stays_small(tmp_path):
    size = 5000
    axis = [float(i) for i in range(1, size + 1)]
    curve = {"steps": axis, "tokens": [512 * x for x in axis], "flops": [1e9 * x for x in axis], "minutes": axis}
    curve |= {"loss": [10 / x + (i * 7919 % 13) / 100 for i, x in enumerate(axis)]}
    figures = {"loss": 3.0, "perplexity": 20.1, "bits_per_character": 1.9, "tokens": 512 * size, "flops": 5e12}
    runs = [ComparedPretraining(f"run {i}", figures | {"loss": 3.0 + i}, curve) for i in range(10)]
    page = write_pretraining_comparison(tmp_path, runs).read_text()
    assert_balanced(page)
    assert len(page) < 2_000_000
    for label in ("training tokens", "training FLOPs", "minutes", "steps"):
        assert f"Loss against {label}" in page and f"loss (nats per token) by {label}" in page
    assert r"\textbf{3}" in (tmp_path / "table.tex").read_text()
    assert (tmp_path / "scores.csv").read_text().splitlines()[1].startswith("run 0,3.0,20.1")


def test_results_of_pretraining_are_short_right_aligned_numbers():
    figures = {"loss": 2.8831, "bits_per_character": 1.9, "tokens": 32_768_000, "flops": 3.2e15, "parameters": 4508385}
    runs = [ComparedPretraining("2026-11-16", figures), ComparedPretraining("2026-11-17", figures | {"loss": 3.0})]
    table = figure_table(runs)
    assert table.header == ("run", "loss", "bits/char", "tokens", "FLOPs", "params")
    assert table.rows[0] == ("2026-11-16", "2.883", "1.9", "32.8M", "3.20e15", "4.51M")
    page = pretraining_comparison_page(runs)
    assert '<td class="n"><b>2.883</b></td>' in page and '<td class="n">3</td>' in page
    assert '<td dir=auto><span style="white-space:nowrap">2026-11-16</span></td>' in page  # a name, not a number


@pytest.mark.parametrize("missing", [{}, {"tokens": []}])
def test_a_run_without_a_curve_has_no_chart(missing):
    page = pretraining_comparison_page([ComparedPretraining("a", {"loss": 1.0}, missing)])
    assert "Loss against" not in page and "<svg" not in page


def test_benchmark_page(tmp_path):
    header = ["", "cola", "rte", "avg", "#"]
    rows = [
        ["BERT", "52.1", "66.4", "59.3", "1"],
        ["GPT", "45.4", "56.0", "50.7", "1"],
        ["this run (dev)", "40.0", "62.0", "51.0", ""],
    ]
    summary = {
        "config": {"model": "my/<model>"}, "scores": {"cola": [39.0, 41.0], "rte": [61.0, 63.0]},
        "mean": {"cola": 40.0, "rte": 62.0}, "std": {"cola": 1.4, "rte": None}, "average": 51.0, "missing": [],
        "failed_seeds": {"cola": [1]}, "chosen_on_dev": ["the epoch"], "parameters": 1_500_000, "ms_per_text": 4.0,
        "done": ["cola", "rte"], "diagnostic_scores": {"ax": {"matthews": 0.1}},
    }  # fmt: skip
    page = write_benchmark_page(tmp_path, "glue", (header, rows), ["1: Devlin et al. 2019"], summary).read_text()
    assert_balanced(page)
    assert "this run is number 2 of 3" in page and "<b>this run (dev)</b>" in page and "Devlin et al. 2019" in page
    assert "trivial baseline: cola: 1." in page and 'href="cola/report.html"' in page and "&lt;model&gt;" in page
    write_benchmark_page(tmp_path, "glue", (header, rows), [], summary | {"average": None, "missing": ["mnli"]})
    assert "these data sets are missing: mnli" in (tmp_path / "report.html").read_text()


def test_commands_write_pages_of_runs(project, run_cli, tmp_path):
    said = run_cli("compare", project / "run-bert", project / "run-gpt2", "--out", tmp_path / "p")
    page = (tmp_path / "p/report.html").read_text()
    assert str(tmp_path / "p/report.html") in said
    assert "Losses of masked models are of masked tokens" in page and "Loss against training tokens" in page
    run_cli("compare", project / "run-classification", project / "run-regression", "--out", tmp_path / "t")
    page = (tmp_path / "t/report.html").read_text()
    assert_balanced(page)
    assert "run-classification" in page and "Scores with intervals: regression" in page
    assert (tmp_path / "t/scores.csv").read_text().count("\n") == 3
