"""The pages of the logit lens and of activation patching in a real browser."""

import pytest

import polyseme
from polyseme.explain.logit_lens import explain_logit_lens
from polyseme.explain.patching import explain_patching

browser = pytest.importorskip("tests.support.browser")


def test_cells_show_the_best_tokens_by_mouse_and_keyboard(tiny_folders, tmp_path):
    explanation = explain_logit_lens(polyseme.load(tiny_folders["bert"], "cpu"), "the old cat", top_k=3)
    explanation.save(tmp_path / "lens.html")
    positions = explanation.record["heads"][0]["positions"]

    def expected(row, layer):
        return [f"{each['probability']:.2%}" for each in positions[row]["layers"][layer]["top"]]

    with browser.open_page(tmp_path / "lens.html") as page:
        shares = "document.querySelectorAll('.best li').length"
        texts = "[...document.querySelectorAll('.best li')].map(e => e.lastChild.textContent.trim())"
        assert page.evaluate(shares) == 3 and page.evaluate(texts) == expected(0, 3)
        page.locator(".lens button").nth(4 + 1).hover()
        assert page.evaluate(texts) == expected(1, 1) and page.locator(".best p").inner_text() == "old, layer 1:"
        page.locator(".lens button[tabindex='0']").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(texts) == expected(2, 0) and page.locator(".lens button[tabindex='0']").count() == 1
    with browser.open_page(tmp_path / "lens.html", width=400, script=False) as page:
        assert browser.overflow(page) == 0 and page.locator(".best li").count() == 3


def test_patching_page_renders(tiny_folders, tmp_path):
    model = polyseme.load(tiny_folders["bert"], "cpu")
    explanation = explain_patching(model, "the old [MASK] sees", "the grey [MASK] sees", "cat", "dog")
    explanation.save(tmp_path / "patch.html")
    with browser.open_page(tmp_path / "patch.html", width=400) as page:
        assert browser.overflow(page) == 0 and page.locator("figure svg[role=img]").count() == 4
