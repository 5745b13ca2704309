"""Pages of pre-training runs, from a synthetic run folder: structure, contents, size."""

import json
import math

import pytest

from polyseme.recipes import find_named_recipe
from polyseme.report.charts import Series, line_chart
from polyseme.report.html import Cell, Html, collapsed, figure, html_page, html_table, key_figures, next_steps, warning
from polyseme.report.notebook import NotebookResult
from polyseme.report.pages.pretraining_page import flatten, format_seconds
from polyseme.report.results import ValidationResult
from polyseme.report.run_page import write_report
from polyseme.report.svg import Axis
from tests.support.pages import parse_page

LONG_WORD = "donaudampfschifffahrtsgesellschaftskapitän" * 3


@pytest.fixture
def run(tmp_path):
    """A run folder as `pretrain` writes it, with a long log and awkward texts."""
    recipe = find_named_recipe("bert-tiny").replace(seed=7).to_json()
    (tmp_path / "recipe.json").write_text(
        json.dumps({"recipe": recipe, "corpus": "my/corpus", "corpus_hash": "0f" * 32})
    )
    rows = [
        {"step": i, "loss": {"masked": 9 * math.exp(-i / 900)}, "lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 1e5}
        for i in range(1, 5001)
    ]
    rows += [{"step": i, "valid": {"masked": 3.0}} for i in range(500, 5001, 500)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    guesses = [["<b>", 0.5], ["שלום", 0.1], [LONG_WORD, 0.01]]
    sample = {"prompt": "a [MASK] & b", "answer": "c", "answer_probability": 0.25, "guesses": guesses}
    samples = [{"step": i, "samples": [sample] * 4} for i in range(500, 5001, 500)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
    (tmp_path / "neighbors.json").write_text(json.dumps([{"token": "cat", "count": 5, "neighbors": [["dog", 0.9]]}]))
    environment = {"torch": "2.13", "device": "cpu"}
    results = {"valid": {"masked": 3.0, "perplexity": 20.1}, "steps": 5000, "parameters": 10**6, "tokens": 10**7}
    results |= {"flops": 10**12, "device_hours": 0.5, "environment": environment, "warnings": ["the loss <diverged>"]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    return tmp_path


def test_pretraining_page(run):
    page = write_report(run, named_recipe=find_named_recipe("bert-tiny")).read_text()
    parsed = parse_page(page)
    for text in ("Warning: the loss <diverged>", "Held-out perplexity", "20.1", "30 min", "5,556 tokens per second"):
        assert text in parsed.text, text
    for text in (
        "gradient norm",
        "learning rate",
        "a [MASK] & b",
        "probability of “c”",
        "25%",
        "dog",
        "polyseme fill",
    ):
        assert text in parsed.text, text
    assert parsed.text.index("diverged") < parsed.text.index("Held-out perplexity")  # warnings come first
    changes = page[page.index("Settings that differ") : page.index("<details", page.index("Settings that differ"))]
    assert changes.count("<tr>") == 2 and "<td>" not in changes.replace("dir=auto", "") and ">seed<" in changes
    assert len(page) < 120_000


def test_page_of_the_unchanged_recipe_and_of_no_recipe(run):
    record = json.loads((run / "recipe.json").read_text())
    record["recipe"]["seed"] = 0
    (run / "recipe.json").write_text(json.dumps(record))
    text = parse_page(write_report(run, named_recipe=find_named_recipe("bert-tiny")).read_text()).text
    assert "All settings are those of the recipe bert-tiny." in text
    assert "Settings that differ" not in parse_page(write_report(run).read_text()).text
    record["recipe"] = {"name": "ngram-3", "family": "ngram", "order": 3, "valid_fraction": 0.01}
    (run / "recipe.json").write_text(json.dumps(record))
    results = json.loads((run / "results.json").read_text()) | {
        "valid": {},
        "ngrams": [5, 10],
        "discounts": [[0.5], [0.7]],
    }
    for name in ("log.jsonl", "samples.jsonl", "neighbors.json"):
        (run / name).unlink()
    text = parse_page(write_report(run, results).read_text()).text
    assert "no text was held out" in text and "0.700" in text and "Training curves" not in text


def test_command_to_fill_a_mask_has_the_mask_token_of_the_model(run):
    (run / "model").mkdir()
    (run / "model/special_tokens_map.json").write_text(json.dumps({"mask_token": "<mask>"}))
    assert '"The <mask> is here."' in parse_page(write_report(run).read_text()).text


def test_continuations(run):
    samples = [{"step": 1, "samples": [{"prompt": "once <i>", "continuation": "upon a"}]}]
    (run / "samples.jsonl").write_text(json.dumps(samples[0]) + "\n")
    text = parse_page(write_report(run).read_text()).text
    assert "once <i>" in text and "upon a" in text and "more sentences" not in text


def test_ten_runs_fit_into_two_megabytes():
    points = [(i, math.sin(i) + 1e5 / (i + 1)) for i in range(50_000)]
    series = [Series(f"runs/experiment-{i}", points) for i in range(10)]
    charts = [
        figure(line_chart(series, Axis(x, log=True), "loss"), "Lower is better.") for x in ("tokens", "flops", "min")
    ]
    page = html_page("Ten runs", "", [("Curves", "".join(charts))])
    assert len(page.encode()) < 2e6 and parse_page(page)


def test_elements_escape_text():
    page = html_page(
        "<t>", "lead",
        [
            ("<h>", next_steps([("do <x>", "polyseme '<y>'"), ("read", "")])),
            ("empty", ""),
            ("table", html_table(["a", "b"], [[Cell("<c>", 0.5), Html("<i>d</i>")], [Cell(2, 1.0, "heat"), ""]])),
        ],
        warning("<w>") + key_figures([("<k>", 12345, "<d>")]) + collapsed("<s>", "x") + figure("", "no chart"),
    )  # fmt: skip
    parsed = parse_page(page)
    for text in ("<t>", "<h>", "do <x>", "polyseme '<y>'", "<c>", "<w>", "<k>", "12,345", "<d>", "<s>"):
        assert text in parsed.text, text
    assert "no chart" not in parsed.text and "empty" not in parsed.text and "<nav" not in page
    assert 'class="bar" dir=auto style="--share:50%"' in page and 'class="heat" dir=auto style="--share:100%"' in page
    assert collapsed("a", "") == key_figures([]) == next_steps([]) == ""
    long_page = html_page("t", "", [(f"part {i}", "x") for i in range(5)])
    assert long_page.count('<a href="#s') == 5 and 'id="s4-part-4"' in long_page


def test_numbers_are_right_aligned():
    table = html_table(
        ["name", "n", "text"], [["a", 1, "2 apples and very many more words than fit a number"], ["b", "-3.5", "c"]]
    )
    assert table.count('<td class="n">') == 2 and '<td class="w" dir=auto>2 apples' in table


def test_notebook_style_stays_inside_of_its_element():
    html = ValidationResult({"masked": 1.5})._repr_html_()
    style = html[html.index("<style>") + 7 : html.index("</style>")]
    selectors = [name for rule in style.split("}")[:-1] for name in rule.split("{")[0].split(",")]
    assert selectors and all(name.startswith(".polyseme-result ") for name in selectors)
    assert "masked: 1.5" in html and issubclass(ValidationResult, NotebookResult)


def test_formats():
    assert [format_seconds(s) for s in (0.5, 59, 90, 7200, 2e6)] == ["0.5 s", "59 s", "1.5 min", "2 h", "23.1 d"]
    assert flatten({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "d": [2]}
