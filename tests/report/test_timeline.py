"""The chart of sizes by date."""

import itertools
import json
import re
from datetime import date

import pytest

from polyseme.families import FAMILIES
from polyseme.families.releases import RELEASES, list_releases
from polyseme.report.timeline import TimelinePoint, timeline_chart
from tests.support.pages import check_svg


def test_releases_are_sizes_of_families_in_the_years_of_their_papers():
    for family, months in RELEASES.items():
        assert months.keys() <= FAMILIES[family].sizes.keys()
        year = int(re.search(r"\b(20\d\d)\b", FAMILIES[family].paper)[1])
        for size, month in months.items():
            assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", month)
            # a paper may be public before its conference, and GPT-3 is a size of GPT-2
            assert 0 <= year - int(month[:4]) <= 1 or size.startswith("gpt3"), (family, size)


def test_releases_of_the_lecture():
    names = {release.name: release for release in list_releases()}
    assert names["gpt2-xl"].num_params == 1_557_611_200 and names["bert-large"].month == date(2018, 10, 1)
    assert all(each.is_published for each in names.values() if each.name.split("-")[0] in ("bert", "albert", "elmo"))
    assert "gpt3-175b" in {release.name for release in list_releases(2020, 2020)}


def test_no_label_covers_another():
    points = [TimelinePoint(f"model-{i}", date(2018, 1 + i % 3, 1), 1e8 * (1 + i / 50)) for i in range(12)]
    chart = timeline_chart(points, "parameters")
    check_svg(chart)
    labels = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"(?: text-anchor="(\w+)")?>model-', chart)
    assert len(labels) == 12
    rows = sorted((anchor, float(x), float(y)) for x, y, anchor in labels)
    assert all(b[2] - a[2] > 11 for a, b in itertools.pairwise(rows) if a[:2] == b[:2])


def test_command(run_cli, rejects, tmp_path):
    printed = run_cli("families", "--chart", tmp_path / "sizes.svg")
    assert "2018-10  bert-large" in printed
    check_svg(re.sub(r"<style>.*?</style>", "", (tmp_path / "sizes.svg").read_text(), flags=re.DOTALL))
    rows = json.loads(run_cli("families", "--chart", tmp_path / "all.svg", "--years", "2017-2020", "--json"))
    assert rows[0]["month"] == "2017-06" and rows[-1]["name"] == "gpt3-175b"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--years", "2018"], "--years has no effect without --chart"),
        (["--chart", "sizes.png"], r"does not end in \.svg"),
        (["--chart", "sizes.svg", "--years", "18"], "such as 2018-2019"),
        (["--chart", "sizes.svg", "--years", "2019-2018"], "not in order"),
        (["--chart", "sizes.svg", "--years", "1999"], "no family"),
    ],
)
def test_bad_options(arguments, match, rejects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rejects("families", *arguments, match=match)
