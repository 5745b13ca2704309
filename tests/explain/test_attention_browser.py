"""The attention page in a browser: it renders, responds to hover, keys and choices, and stays fast for long texts."""

import time

import numpy as np
import pytest

import polyseme
from polyseme.explain.attention import explain_attention
from polyseme.explain.attention_page.page import (
    AttentionPanel,
    AttentionView,
    PanelMap,
    Start,
    attention_script,
    attention_section,
    panel_figures,
)
from polyseme.report.html import html_page
from tests.support.browser import open_page, overflow


def build_panel(weights: np.ndarray, title: str, start: Start, num_specials: int = 1) -> AttentionPanel:
    """Return a panel whose words are pairs of tokens, after some special tokens."""
    size = weights.shape[-1]
    tokens = [f"[S{i}]" if i < num_specials else f"t{i}" for i in range(size)]
    starts = [*range(num_specials), *range(num_specials, size, 2)]
    words = ["".join(tokens[i:j]) for i, j in zip(starts, [*starts[1:], size])]
    members = (np.searchsorted(starts, np.arange(size), side="right") - 1) == np.arange(len(starts))[:, None]
    merged = np.einsum("lhij,qi,kj->lhqk", weights, members / members.sum(1, keepdims=True), members, optimize=True)
    specials = list(range(num_specials))
    views = (
        AttentionView(labels, labels, values, first, specials, specials)
        for labels, values, first in ((tokens, weights, range(size)), (words, merged, starts))
    )
    return AttentionPanel(title, [PanelMap("self", *views)], start)


def write_page(path, panels):
    figures = [panel_figures(panel) for panel in panels]
    section = attention_section(panels, figures)
    path.write_text(html_page("Attention", "", [("Attention", section)], "", attention_script(panels)), "utf-8")
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two panels of different shapes; the first head attends to a special token, head 2 of layer 2 to the next one."""
    weights = np.random.default_rng(0).dirichlet([0.3] * 9, (3, 2, 9)).astype(np.float32)
    weights[0, 0] = 0.1 / 8
    weights[0, 0, :, 0] = 0.9
    weights[1, 1] = 0.05 / 8
    weights[1, 1, range(9), np.minimum(np.arange(9) + 1, 8)] = 0.95
    panels = [
        build_panel(weights, "first <b>", Start("self", 0, 0, 1)),
        build_panel(
            weights[:2, :, :7, :7] / weights[:2, :, :7, :7].sum(-1, keepdims=True), "second", Start("self", 0, 0, 1)
        ),
    ]
    folder = tmp_path_factory.mktemp("attention")
    return write_page(folder / "one.html", panels[:1]), write_page(folder / "two.html", panels)


def test_views_respond_to_pointer_and_keys(pages):
    with open_page(pages[0]) as page:
        heads = page.locator("table.heads button")
        assert heads.count() == 6 and page.locator(".static:visible").count() == 0
        description = page.locator("[data-view=lines] p.note").first
        page.get_by_role("combobox", name="Unit").select_option("tokens")
        page.get_by_role("button", name="Layer 2, head 2: next token 0.9").first.click()
        queries = page.locator(".queries button")
        queries.nth(3).hover()
        assert "“t3” (4) attends to t4 0.95, " in description.text_content()
        assert page.locator(".lines path").count() == 9
        queries.nth(3).click()
        page.mouse.move(0, 0)
        assert queries.nth(3).get_attribute("aria-pressed") == "true" and "Pinned" in description.text_content()
        assert page.locator("[data-view=word] h4").text_content().startswith("What “t3”")
        cell = page.locator("table.word tr:nth-child(2) td:nth-child(3)")
        assert cell.text_content() == "t40.95" and "chosen" in cell.get_attribute("class")
        queries.nth(3).press("ArrowDown")
        page.keyboard.press("Enter")
        assert "“t4” (5) attends to t5 0.95" in description.text_content()
        page.keyboard.press("Escape")
        assert page.locator(".queries [aria-pressed=true]").count() == 0
        heads.nth(3).press("ArrowDown")
        chosen = page.locator("table.heads [aria-pressed=true]")
        assert chosen.count() == 1 and chosen.get_attribute("aria-label").startswith("Layer 3, head 2")
        page.locator(".keys button").nth(2).hover()
        assert "“t2” (3) is attended to by" in description.text_content()
        page.locator(".keys button").nth(2).click()
        assert page.locator("[aria-pressed=true] span").all_text_contents() == ["t2"]
        assert "[S0]" in page.locator("table.word tbody").text_content()
        page.get_by_role("checkbox", name="Hide special tokens").check()
        assert "[S0]" not in page.locator("table.word tbody").text_content()
        page.keyboard.press("Escape")
        check_units_and_threshold(page)


def check_units_and_threshold(page):
    """Check that the chosen word stays chosen when pieces are merged, and that the slider removes weak lines."""
    unit, word = page.get_by_role("combobox", name="Unit"), page.get_by_role("combobox", name="Word")
    unit.select_option("words")
    word.select_option(label="3 t3t4")
    unit.select_option("tokens")
    assert word.locator("option:checked").text_content() == "4 t3"
    unit.select_option("words")
    assert word.locator("option:checked").text_content() == "3 t3t4"
    page.locator(".queries [aria-pressed=true]").click()
    page.mouse.move(0, 0)
    page.get_by_role("checkbox", name="Hide special tokens").uncheck()
    threshold = page.get_by_role("slider", name="Lines from weight")
    threshold.press("Home")
    num_lines = page.locator(".lines path").count()
    threshold.press("End")
    assert 0 < page.locator(".lines path").count() < num_lines == 25


def test_two_panels_move_together_and_fit_a_phone(pages):
    with open_page(pages[1], width=400, dark=True) as page:
        assert overflow(page) <= 0
        chosen = page.locator("table.heads [aria-pressed=true]")
        page.locator("[data-view=grid] [data-panel='0'] button").nth(3).click()
        assert [label[:15] for label in chosen.evaluate_all("all => all.map(b => b.ariaLabel)")] == [
            "Layer 2, head 2"
        ] * 2
        page.locator("[data-view=grid] [data-panel='0'] button").nth(4).click()  # the second panel has no layer 3
        assert [label[:7] for label in chosen.evaluate_all("all => all.map(b => b.ariaLabel)")] == [
            "Layer 3",
            "Layer 2",
        ]
        page.locator("[data-panel='0'] .queries button").nth(2).click()
        assert page.locator(".queries [aria-pressed=true] span").all_text_contents() == ["t3t4", "t3t4"]
        page.emulate_media(media="print")
        assert page.locator("#controls").is_hidden() and page.locator("canvas").first.is_visible()


def test_first_state_needs_no_script(pages):
    with open_page(pages[1], script=False) as page:
        assert page.locator(".static svg:visible").count() == 4 and page.locator("#controls").is_hidden()


def test_kinds_of_attention_of_an_encoder_decoder(tiny_folders, tmp_path):
    model = polyseme.load(tiny_folders["t5"], device="cpu")
    explanation = explain_attention([model], ["the old cat sees the dog."], target="the cat", token="old")
    explanation.save(tmp_path / "page.html")
    with open_page(tmp_path / "page.html") as page:
        kind = page.get_by_role("combobox", name="Attention")
        assert kind.input_value() == "encoder" and kind.locator("option").count() == 3
        kind.select_option("cross")
        assert "the" in page.locator(".queries").text_content() and "sees" in page.locator(".keys").text_content()


@pytest.mark.slow
def test_512_tokens_12_layers_12_heads(tmp_path):
    weights = np.random.default_rng(0).dirichlet([0.05] * 512, (12, 12, 512)).astype(np.float32)
    path = write_page(tmp_path / "long.html", [build_panel(weights, "", Start("self", 0, 0, 3))])
    assert path.stat().st_size < 20e6
    with open_page(path) as page:
        opened = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000
        assert page.locator(".lines path").count() > 0
        start = time.perf_counter()
        page.get_by_role("combobox", name="Unit").select_option("tokens")
        switched = time.perf_counter() - start
        page.locator(".queries button").nth(500).click()
        assert page.locator(".lines path").count() == 16
    print(f"{path.stat().st_size / 1e6:.1f} MB, opened in {opened:.2f} s, switched to tokens in {switched:.2f} s")
    assert opened < 3 and switched < 3
