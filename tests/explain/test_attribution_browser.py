"""The page of an attribution in a real browser."""

import polyseme
from polyseme.explain import explain_attribution
from tests.support.browser import open_page, overflow


def test_words_and_tokens(tiny_folders, tmp_path):
    model = polyseme.load(tiny_folders["bert"], device="cpu")
    path = explain_attribution(model, "the old [MASK] sees the dog", "cat").save(tmp_path / "page.html")[0]
    with open_page(path, width=400) as page:
        assert overflow(page) <= 0
        assert page.locator(".words").count() == 4 and page.locator(".words").first.locator("b").count() == 6
        word = page.locator(".words span").first
        word.hover()
        assert float(word.get_attribute("title"))
        tokens = page.get_by_text("8 tokens, as the model reads them")
        assert not page.get_by_text("[CLS]").is_visible()
        tokens.focus()
        page.keyboard.press("Enter")
        assert page.get_by_text("[CLS]").is_visible()
        assert page.locator("figure svg[role=img]").count() == 2
