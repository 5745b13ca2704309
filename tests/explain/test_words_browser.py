"""The page of a word in a browser."""

import re

import numpy as np
import pytest

from polyseme.explain.words.analysis import WordModel, analyze_layers
from polyseme.explain.words.occurrences import find_occurrences
from polyseme.explain.words.page import WordPage, word_page
from polyseme.explain.words.vectors import LayerVectors
from tests.support.browser import open_page, overflow


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    texts = [f"text {i} with a cat in it" for i in range(12)]
    used, _ = find_occurrences("cat", texts, ["wild" if i % 2 else "tame" for i in range(12)])
    rng = np.random.default_rng(0)
    layers = [rng.normal(size=(12, 40)) + 1 for _ in range(3)]
    layers[2][1::2, 0] += 20
    models = [
        WordModel("first", "", False, analyze_layers(used, LayerVectors([0, 1, 2], layers)), 1),
        WordModel("table", "", True, analyze_layers(used, LayerVectors([0], [np.ones((12, 4))])), 0),
    ]
    page = tmp_path_factory.mktemp("words") / "cat.html"
    page.write_text(word_page(WordPage("cat", used, models), 12), encoding="utf-8")
    return page


def test_layers_groups_and_occurrences_respond(path):
    with open_page(path) as page:
        panel = page.locator(".word-panel").first
        marks = panel.locator(".marks path")
        assert "Layer 1" in panel.locator("output").text_content()
        before = marks.nth(3).get_attribute("transform")
        page.get_by_role("slider", name="Layer of first").press("End")
        assert "Layer 2: 2 clusters" in panel.locator("output").text_content()
        assert marks.nth(3).get_attribute("transform") != before
        assert "Layer 2" in page.locator("[data-clusters='0']:visible").text_content()
        assert page.locator("[data-clusters='0']:visible").count() == 1
        assert panel.locator(".legend li").all_text_contents() == ["tame", "wild"]
        page.get_by_label("clusters", exact=True).check()
        assert "cluster 1 (6)" in panel.locator(".legend").text_content()
        marks.nth(3).hover()
        assert page.text_content("#context").startswith("4 of 12: text 3 with a cat in it")
        neighbors = panel.locator("ol li").all_text_contents()
        assert len(neighbors) == 5 and all(re.match(r"\d\.\d{3} text \d+ with", each) for each in neighbors)
        page.get_by_role("spinbutton", name="Occurrence").fill("2")
        assert page.text_content("#context").startswith("2 of 12: text 1") and panel.locator(".selected").count() == 1
        page.set_viewport_size({"width": 400, "height": 800})
        assert overflow(page) <= 0


def test_page_makes_sense_without_script(path):
    with open_page(path, script=False) as page:
        assert page.locator("#context").text_content().startswith("1 of 12: text 0 with a cat in it")
        assert page.locator(".word-panel").first.locator(".marks path").count() == 12
        assert page.locator("[data-clusters='0']:visible").count() == 1
