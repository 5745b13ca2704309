"""Pages of studies from made-up rows: tables, bold values, figures, incomplete studies, the index of a folder."""

import json
import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest

from polyseme.errors import ConfigError, DataError
from polyseme.families import get_family
from polyseme.report.dots import Dot, DotPanel, dot_chart, dot_figure
from polyseme.studies.analysis.results import read_results
from polyseme.studies.base import Arm
from polyseme.studies.page import export_page, write_pages
from polyseme.train.monitoring.diagnostics import describe_tokenizer_mismatch
from tests.support.study_rows import make_row, make_study, random_rows, write_study

METRICS = ["bits_per_character", "pseudo_bits_per_character", "blimp", "sst-2"]
QUESTIONS = [("c", "a", "blimp", "higher"), ("b", "a", "sst-2", "higher"), ("c", "a", "bits_per_character", "higher")]


@pytest.fixture
def study(tmp_path):
    """Three arms of three seeds: c is the best in BLiMP, b and c are close in SST-2."""
    arms = [Arm("a", "bert-tiny"), Arm("b", "bert-tiny", note="Half the <layers>."), Arm("c", "bert-tiny")]
    rows = []
    for number, arm in enumerate(arms):
        for seed in range(3):
            values = {"bits_per_character": 2 - 0.1 * number, "pseudo_bits_per_character": 1 - 0.1 * number}
            values |= {"blimp": 0.6 + 0.05 * number, "sst-2": 0.7 + 0.1 * (number > 0)}
            rows.append(make_row(arm.name, seed, {name: v + 0.003 * seed for name, v in values.items()}))
    return write_study(tmp_path / "study", make_study(arms, METRICS, QUESTIONS), rows)


def markdown_rows(text, heading):
    """The cells of the first table below a heading."""
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]


def test_tables_are_the_same_in_markdown_and_html(study):
    page = write_pages(study).read_text()
    text = (study / "report.md").read_text()
    header, _, *rows = markdown_rows(text, "Scores")
    assert header[:2] == ["arm", "bits per character ↓"] and header[-1] == "pseudo bits per character ↓"
    assert rows[2] == ["c", "**1.803 ± 0.003**", "**70.3 ± 0.3**", "80.3 ± 0.3", "0.803 ± 0.003"]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert [cell.replace("**", "") for cell in rows[2]] in [[re.sub("<.*?>", "", c) for c in row] for row in cells]
    assert "<b>70.3 ± 0.3</b>" in page and "<b>80.3" not in page and "<b>0.8" not in page  # close, or not ranked
    for expected in ("polyseme study made-up", "0123456789ab", "2026-01-01", "a GPU", "Half the &lt;layers&gt;."):
        assert expected in page
    assert "Half the \\<layers\\>." in text and "**Text:** corpus, data data" in text
    assert str(study.resolve()) not in text
    assert ["a", "90", "900", "14.7M", "11.2M", "3.2M", "12"] in markdown_rows(text, "Cost")


def test_simple_models_are_in_the_last_rows(study):
    write_pages(study)
    assert len(markdown_rows((study / "report.md").read_text(), "Scores")) == 2 + 3
    assert "linear model" not in (study / "report.md").read_text()
    baselines = {"sst-2": {"trivial": 0.509, "linear": 0.8}, "blimp": {}}
    (study / "baselines.json").write_text(json.dumps(baselines))
    write_pages(study)
    text = (study / "report.md").read_text()
    assert markdown_rows(text, "Scores")[-2:] == [
        ["(majority class or mean)", "", "", "50.9"],
        ["(linear model of words)", "", "", "80.0"],
    ]
    assert "- **Worse than a linear model of words:** SST-2: a. Differences" in text
    assert "simple models without pre-training" in text and "**70.3 ± 0.3**" in text
    assert json.loads((study / "results.json").read_text())["baselines"] == baselines


def test_answers_name_what_does_not_agree(study):
    write_pages(study)
    text, results = (study / "report.md").read_text(), json.loads((study / "results.json").read_text())
    assert [row[1] for row in markdown_rows(text, "Answers")[2:]] == ["agrees", "agrees", "disagrees"]
    assert "- **Disagrees: Is c higher than a?** −0.200 bits per character (interval" in text
    assert [verdict["answer"] for verdict in results["verdicts"]] == ["agrees", "agrees", "disagrees"]
    (best,) = [cell for cell in results["table"] if cell["metric"] == "blimp" and cell["is_best"]]
    assert best["arm"] == "c" and best["values"] == pytest.approx([0.7, 0.703, 0.706])
    assert results["runs"] == {"done": 9, "planned": 9}


def test_undecided_void_and_missing_say_why(tmp_path):
    study = make_study(["a", "b", "c", "d"], ["sst-2", "blimp"], [("b", "a", "sst-2", "higher"),
                       ("c", "a", "sst-2", "higher"), ("d", "a", "blimp", "higher")])  # fmt: skip
    rows = [row for row in random_rows(study, 3, spread=0.03) if row["arm"] != "d"]
    for row in rows:
        row["is_void"] = row["arm"] == "c"
    rows[0]["warnings"], rows[1]["warnings"] = ["blimp: 12 are too long"], ["blimp: 13 are too long"]
    out = write_study(tmp_path / "s", study, rows)
    page, text = write_pages(out).read_text(), (out / "report.md").read_text()
    assert re.search(r"would have found a true difference of \d+\.\d points or more in 80 % of cases", text)
    assert "The published difference of +1.5 is smaller." in text
    assert "c never left the word-frequency plateau (all seeds)" in text
    assert "0 of 3 seeds of d were measured by BLiMP." in text
    assert "c (3 of 3 void)" in page and "9 of 12 runs are done" in page
    assert "- **a (2 of 3 runs):** blimp: 12 are too long" in text and "**c is void (3 of 3 seeds):**" in text
    assert "4 arms with 3 seeds, 90 s of training each on a GPU." in text


def test_arms_with_the_tokenizer_of_another_family_share_a_line(tmp_path):
    study = make_study(["a", "b", "c"], ["blimp"], [])
    rows = random_rows(study, 2, spread=0.01)
    for row, family in ((rows[0], "gpt"), (rows[1], "gpt"), (rows[3], "t5")):
        row["warnings"] = [describe_tokenizer_mismatch(get_family(family), SimpleNamespace(kind="wordpiece"))]
    text = (write_pages(write_study(tmp_path / "s", study, rows)).parent / "report.md").read_text()
    assert "**Tokenizer:** wordpiece instead of the kind that the family expects: a (bpe), b (unigram)." in text
    assert text.count("expects") == 1


def test_a_study_without_rows_and_with_errors(tmp_path):
    study = make_study(["a", "b"], ["sst-2"], [("b", "a", "sst-2", "higher")])
    out = write_study(tmp_path / "s", study, [], seeds=[0, 1])
    assert "0 of 4 runs are done" in write_pages(out).read_text()
    ElementTree.parse(out / "figure.svg")
    write_study(out, study, [{"arm": "a", "seed": 0, "error": "out of <memory>"}], seeds=[0, 1])
    assert "out of &lt;memory&gt;" in write_pages(out).read_text()
    with pytest.raises(DataError, match=r"is not a study: there is no study\.json"):
        write_pages(tmp_path)
    (out / "arms/a/seed-1.json").write_text('{"arm": "a", "seed": 1}')
    with pytest.raises(DataError, match=r"seed-1.json is damaged"):
        read_results(out)


def test_validation_losses_are_ranked_only_for_one_objective(tmp_path):
    study = make_study(["a", "b"], ["valid_loss"], [])
    rows = random_rows(study, 3, spread=0.001)
    out = write_study(tmp_path / "same", study, rows)
    write_pages(out)
    assert "**2.1" in (out / "report.md").read_text()
    for row in rows[:3]:
        row["recipe"] = {"objective": {"kind": "CausalLM"}}
    out = write_study(tmp_path / "other", study, rows)
    write_pages(out)
    assert "**2.1" not in (out / "report.md").read_text()


def test_validation_losses_of_other_tokenizers_and_void_arms_are_not_ranked(tmp_path):
    arms = [Arm("a", "bert-tiny"), Arm("b", "bert-tiny", tokenizer="words")]
    rows = random_rows(make_study(arms, ["valid_loss"], []), 3, spread=0.001)
    write_pages(write_study(tmp_path / "tokenizers", make_study(arms, ["valid_loss"], []), rows))
    assert "**2." not in (tmp_path / "tokenizers/report.md").read_text()
    study = make_study(["a", "b", "c"], ["sst-2"], [])
    rows = random_rows(study, 3, spread=0.0001)
    for row in rows[-3:]:
        row["is_void"] = True
    write_pages(write_study(tmp_path / "void", study, rows))
    text = (tmp_path / "void/report.md").read_text()
    assert "| b | **61.2" in text and "c (3 of 3 void) | 62.4" in text


def test_rates_at_the_edge_of_the_search_are_named(study):
    rates = {"a": [0.001, 0.002], "b": [0.001, 0.002, 0.004], "c": [0.002]}
    searches = {name: {"lr": 0.002, "rates": [{"lr": lr} for lr in tried]} for name, tried in rates.items()}
    (study / "lr.json").write_text(json.dumps(searches))
    write_pages(study)
    assert "**Edge of the search (a):** the best learning rate is the largest" in (study / "report.md").read_text()


def test_export_and_index(study, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text("# Results\n\n<!-- studies -->\n<!-- end of studies -->\n\nThe end.\n")
    (docs / "other.md").write_text("# Other\n")
    assert export_page(study, docs / "mine.md") == docs / "mine.md"
    export_page(study, docs / "mine.md")  # again
    assert "![Scores of all arms](mine.svg)" in (docs / "mine.md").read_text()
    ElementTree.parse(docs / "mine.svg")
    assert json.loads((docs / "mine.json").read_text())["kind"] == "study-results"
    index = (docs / "README.md").read_text()
    assert index.count("[mine.md](mine.md) | A made-up study (made-up)") == 1 and index.endswith("The end.\n")
    assert "other.md" not in index
    with pytest.raises(ConfigError, match=r"other.md exists and is no page of a study"):
        export_page(study, docs / "other.md")
    (docs / "figures.svg").write_text("<svg/>")
    with pytest.raises(ConfigError, match=r"figures.svg exists and belongs to no page"):
        export_page(study, docs / "figures.md")
    assert (docs / "figures.svg").read_text() == "<svg/>" and not (docs / "figures.json").exists()
    with pytest.raises(ConfigError, match=r"ends in \.md"):
        export_page(study, docs / "mine.html")


def test_dots_are_at_their_values():
    dots = [Dot("low", (1.0, 2.0), (0.5, 2.5)), Dot("high", (3.0,), is_marked=True), Dot("none", ())]
    chart = ElementTree.fromstring(dot_chart(DotPanel("score", dots)))
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in chart.iter() if c.tag.endswith("circle")]
    (first, second, mean, high) = circles
    assert first[0] < mean[0] < second[0] < high[0] and mean[0] == pytest.approx((first[0] + second[0]) / 2, abs=0.1)
    assert high[1] > mean[1]
    labels = [t.text for t in chart.iter() if t.tag.endswith("text")]
    assert {"low", "high", "none"} <= set(labels)
    assert dot_chart(DotPanel("score", [Dot("none", ())])) == ""
    figure = dot_figure([DotPanel("x", dots), DotPanel("empty", []), DotPanel("y", dots)], "two panels")
    assert len(re.findall("<g ", figure)) == 2


def test_a_wide_interval_does_not_hide_the_differences():
    """It is cut at the edges of the panel."""
    dots = [Dot("a", (1.0, 1.1), (-50.0, 50.0)), Dot("b", (2.0, 2.1), (1.9, 2.2))]
    chart = ElementTree.fromstring(dot_chart(DotPanel("score", dots)))
    xs = [float(c.get("cx")) for c in chart.iter() if c.tag.endswith("circle")]
    assert max(xs) - min(xs) > 100
    lines = [c.get("d") for c in chart.iter() if c.tag.endswith("path")][1:]
    ends = np.array([[float(x) for x in re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", line)[0]] for line in lines])
    assert (ends >= 0).all() and (ends <= 440).all()
