"""The playground in a browser: every tab, the keyboard, tokens, errors, and nothing from elsewhere."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import polyseme.report.style
import polyseme.serve
from tests.serve.models import TEXTS, running_server, send
from tests.support.browser import CHROMIUM, overflow

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
FOLDER = Path(polyseme.serve.__file__).parent / "playground"
QUOTED = "It's \"<b>old</b>\" & 'new'; naïve 😀 $HOME `x` \\n"  # what shells, Python and HTML may get wrong


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])


@pytest.fixture
def open_playground(browser, url):
    """A function that opens a tab of the playground; at the end nothing may have gone wrong or come from elsewhere."""
    problems, contexts = [], []

    def open_tab(model="", verb="", address=url, allowed=(), **options):
        def on_console(message):
            if not any(status in message.text for status in allowed):
                problems.append(f"console {message.type}: {message.text}")

        def on_request(request):
            if not request.url.startswith((address, "blob:", "data:")):
                problems.append(f"request: {request.url}")

        context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", on_request)
        page.goto(f"{address}/#model={model}&verb={verb}")
        if not allowed:
            page.wait_for_selector("[role=tabpanel]")
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert not problems, "\n".join(problems)


def run(page, number=0):
    """Run the request on screen with the keyboard and return the card of its result."""
    page.locator("[role=tabpanel]:visible").wait_for()
    page.keyboard.press("Control+Enter")
    card = page.locator("[role=tabpanel]:visible .card").nth(number)
    card.and_(page.locator("[aria-busy=false]")).wait_for()
    return card


def labels(card):
    return card.locator(".bar-label").all_text_contents()


def check_fill(card, model, values):
    expected = model.fill(values["Text with masks"])
    chips = card.locator(".chips")
    assert chips.count() == len(expected)
    for i, candidates in enumerate(expected):
        assert chips.nth(i).locator("span").all_text_contents() == [each.token for each in candidates]


def check_embed(card, model, values):
    vectors = model.embed(values["Texts"].split("\n"))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cells = [float(text) for text in card.locator("td.heat").all_text_contents()]
    np.testing.assert_allclose(cells, (unit @ unit.T).ravel(), atol=0.0051)
    assert card.locator(".plot circle").count() == len(vectors)
    with card.page.expect_download() as download:
        card.get_by_role("button", name="Download").click()
    saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    np.testing.assert_allclose(saved["vectors"], vectors, atol=1e-5)


def check_words(card, model, values):
    assert card.locator("td.heat").count() == 9 and card.locator("mark").all_text_contents() == ["cat"] * 3


def check_score(card, model, values):
    expected = [f"{each.bits_per_character:.3f}".rstrip("0") for each in model.score(values["Texts"].split("\n"))]
    assert card.locator("td.meter").all_text_contents() == expected


def check_classify(card, model, values):
    expected = model.predict(values["Texts"])
    ranked = sorted(expected.probabilities, key=lambda label: -expected.probabilities[label])
    assert labels(card) == ranked and card.locator(".best .bar-label").text_content() == expected.label


def check_tag(card, model, values):
    tags = model.predict([values["Texts"].split()])[0].tags
    marks = card.locator(".tagged mark")
    assert marks.count() == sum(tag.startswith("B") for tag in tags) > 0
    assert card.locator(".tagged").evaluate("node => node.innerText").split()[-1] in values["Texts"] + "X"
    assert "X (" in card.locator(".legend").text_content()


def check_answer(card, model, values):
    expected = model.answer(values["Text"], values["Question"]).text
    assert card.locator("mark").text_content() == card.locator(".figure").text_content() == expected
    assert card.locator(".tagged").text_content() == values["Text"]


def check_choose(card, model, values):
    choices = values["Choices"].split("\n")
    scores = model.rank_choices(values["Text"], choices).normalized_scores
    assert labels(card) == [choices[i] for i in np.argsort(scores)[::-1]]


def check_rerank(card, model, values):
    assert sorted(labels(card)) == sorted(values["Texts"].split("\n"))
    scores = [float(text) for text in card.locator(".bar-value").all_text_contents()]
    assert scores == sorted(scores, reverse=True)


def check_generate(card, model, values):
    (expected,) = model.generate(values["Prompt"], max_new_tokens=8)
    assert card.locator(".token").count() == len(expected.tokens)
    assert card.locator(".prompt").text_content() == values["Prompt"]
    assert "tokens/s" in card.locator(".status").text_content()


def check_translate(card, model, values):
    assert (
        card.locator(".output").text_content() == model.translate(values["Texts"], max_new_tokens=5, num_beams=2).text
    )


def check_neighbors(card, model, values):
    assert labels(card) == [word for word, _ in model.neighbors(values["Word"])]


def check_attention(card, model, values):
    attention = model.attention(values["Text"]).merge_words()["self"]
    assert card.locator(".column.from span").all_text_contents() == attention.queries
    card.locator(".column.from button").nth(1).hover()
    row = attention.weights[-1, 0, 1]
    shown = card.locator(".column.to i").all_text_contents()
    assert [float(text or 0) for text in shown] == pytest.approx(row.tolist(), abs=0.0051)


def check_encode(card, model, values):
    assert card.locator(".piece b").all_text_contents() == model.encode(values["Text"]).tokens


def check_next_sentence(card, model, values):
    shown = card.locator(".bar-value").first.text_content()
    assert float(shown.rstrip("%")) == pytest.approx(100 * model.next_sentence(*values.values()), abs=0.51)


def check_predict(card, model, values):
    assert labels(card) and all('"label"' in text for text in card.locator("pre").all_text_contents())


CASES = {
    "fill": ("bert", {"Text with masks": "The [MASK] cat sees the [MASK]."}, check_fill),
    "embed": ("bert", {"Texts": "\n".join(TEXTS[:3])}, check_embed),
    "words": ("bert", {"Word": "cat", "Sentences with the word": "The cat\nA cat sees it.\nThat old cat"}, check_words),
    "score": ("gpt2", {"Texts": "\n".join([*TEXTS[:2], QUOTED])}, check_score),
    "classify": ("classify", {"Texts": TEXTS[0]}, check_classify),
    "tag": ("tag", {"Texts": "😀 Anna lives in <b>Paris</b>"}, check_tag),
    "answer": ("answer", {"Text": "😀 Anna lives in Paris.", "Question": "Where?"}, check_answer),
    "choose": ("gpt2", {"Text": "The", "Choices": f"the cat\n{QUOTED}\nof"}, check_choose),
    "rerank": ("bert", {"Query": "an old cat", "Texts": "\n".join(TEXTS[:4])}, check_rerank),
    "generate": ("gpt2", {"Prompt": "The old", "Most new tokens": "8"}, check_generate),
    "translate": ("t5", {"Texts": TEXTS[0], "Most new tokens": "5", "Beams": "2"}, check_translate),
    "neighbors": ("vectors", {"Word": "dog"}, check_neighbors),
    "attention": ("bert", {"Text": "The old cat sees."}, check_attention),
    "encode": ("bert", {"Text": "The old cat sees."}, check_encode),
    "next_sentence": ("bert", {"First text": TEXTS[0], "Second text": TEXTS[1]}, check_next_sentence),
    "predict": ("classify", {"Examples (a list in JSON)": json.dumps(TEXTS[:2])}, check_predict),
}


def type_values(page, values):
    panel = page.locator("[role=tabpanel]:visible")
    for settings in panel.locator(".form details:not([open]) summary").all():
        settings.click()
    for label, value in values.items():
        panel.get_by_label(label, exact=True).fill(value)


def run_snippet(page):
    """Run the Python of the page; return what it prints."""
    page.locator("[role=tabpanel]:visible").get_by_label("Python").check()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(page.locator("[role=tabpanel]:visible .code pre").text_content(), {})
    return printed.getvalue()


@pytest.mark.parametrize("verb", CASES)
def test_a_tab_answers_what_is_typed(verb, open_playground, url, models):
    name, values, check = CASES[verb]
    page = open_playground(name, verb)
    assert page.locator("[role=tab][aria-selected=true]").get_attribute("id") == f"tab-{verb}"
    type_values(page, values)
    command = page.locator("[role=tabpanel]:visible .code pre").text_content()
    card = run(page)
    check(card, models[name], values)
    assert re.match(r"[\d.]+ m?s · ", card.locator(".status").text_content())
    body = json.loads(shlex.split(command.replace("\\\n", " "))[-1])
    assert body["model"] == name
    assert send(url, "/v1/" + ("embed" if verb == "words" else verb), body).status == 200
    assert run_snippet(page).strip()
    page.set_viewport_size({"width": 400, "height": 800})
    assert overflow(page) <= 0


def test_every_verb_has_a_tab(open_playground, url):
    page = open_playground()
    for info in send(url, "/models").json["models"]:
        page.get_by_label("Model", exact=True).select_option(info["name"])
        tabs = page.locator("[role=tab]").evaluate_all("nodes => nodes.map(node => node.id.slice(4))")
        assert [tab for tab in tabs if tab != "words"] == info["verbs"]
        assert {*tabs} <= {*CASES}


def test_the_keyboard_reaches_everything(open_playground):
    page = open_playground("bert", "fill")
    page.locator("#tab-fill").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-embed"
    assert page.locator("[role=tabpanel]:visible").get_attribute("id") == "panel-embed"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.id") == "tab-next_sentence"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-fill"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "fill-text"
    card = run(page)
    chip = card.locator(".chip").first
    chip.focus()
    page.keyboard.press("Enter")
    assert chip.get_attribute("aria-pressed") == "true"
    page.goto(page.url.replace("fill", "attention"))
    page.locator("#panel-attention").wait_for()
    card = run(page)
    card.locator(".column.from button").first.focus()
    page.keyboard.press("ArrowDown")
    assert "attends to" in card.locator("[role=status]").last.text_content()
    unnamed = """[...document.querySelectorAll("input, select, textarea, button")].filter((node) =>
      !node.labels?.length && !node.ariaLabel && !node.textContent.trim()).map((node) => node.outerHTML)"""
    assert page.evaluate(unnamed) == []
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("[role=tabpanel]:visible").get_by_role("button", name="Copy").press("Enter")
    page.get_by_role("button", name="Copied").wait_for()
    code = page.locator("[role=tabpanel]:visible .code pre").text_content()
    assert page.evaluate("navigator.clipboard.readText()") == code


def test_a_candidate_is_put_into_the_text(open_playground, models):
    page = open_playground("bert", "fill")
    type_values(page, {"Text with masks": "The [MASK] cat sees the [MASK]."})
    card = run(page)
    box = page.get_by_label("Text with masks")
    tokens = [mask[0].token for mask in models["bert"].fill("The [MASK] cat sees the [MASK].")]
    expected = "The [MASK] cat sees the" + (tokens[1][2:] if tokens[1].startswith("##") else f" {tokens[1]}") + "."
    card.locator(".chips").nth(1).locator(".chip").first.click()
    assert box.input_value() == expected
    card.locator(".chips").nth(1).locator(".chip").first.click()
    assert box.input_value() == "The [MASK] cat sees the [MASK]."
    box.fill("Something else")
    card.locator(".chip").first.click()
    assert box.input_value() == "Something else" and "changed" in card.text_content()


def test_tokens_of_a_stream_show_their_alternatives(open_playground, models):
    page = open_playground("gpt2", "generate")
    type_values(page, {"Prompt": "The old", "Most new tokens": "4"})
    card = run(page)
    card.locator(".token").first.hover()
    detail = card.locator(".detail")
    assert detail.locator(".bar").count() == 5
    shown = float(re.search(r"Log-probability (-[\d.]+)", detail.text_content())[1])
    with_scores = models["gpt2"].generate("The old", max_new_tokens=1)[0]
    assert shown == pytest.approx(with_scores.score, abs=0.0051)
    card.locator(".token").first.focus()
    first = detail.text_content()
    page.keyboard.press("ArrowRight")
    assert page.locator(".token.shown").count() == 1 and detail.text_content() != first
    type_values(page, {"Texts": "3", "Temperature": "1", "Seed": "5"})
    card = run(page)
    assert card.locator(".output").count() == 3
    type_values(page, {"Texts": "", "Temperature": "", "Seed": "", "Beams": "2"})
    assert run(page).locator(".output").count() >= 1


def test_stop(open_playground):
    page = open_playground("gpt2", "generate")
    held = []
    page.route("**/v1/generate", lambda route: held.append(route))
    button = page.get_by_role("button", name="Run")
    button.click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped").wait_for()
    assert button.is_visible()
    held[0].abort()


def test_two_models_are_compared(open_playground):
    page = open_playground("bert", "score")
    page.get_by_label("Compare with").select_option("gpt2")
    type_values(page, {"Texts": TEXTS[0]})
    second = run(page, 1)
    first = page.locator(".card").first
    assert first.locator("h2").text_content() == "bert" and second.locator("h2").text_content() == "gpt2"
    assert first.locator("td.meter").text_content() != second.locator("td.meter").text_content()
    assert "compare=gpt2" in page.url
    page.locator("#tab-fill").click()
    assert "does not support" in run(page, 1).text_content()
    page.set_viewport_size({"width": 400, "height": 800})
    assert overflow(page) <= 0


def test_errors_are_one_line_and_keep_what_was_typed(open_playground):
    page = open_playground("bert", "embed", allowed=("422", "413", "ERR_"))
    page.locator("#tab-fill").click()
    for text, part in (("no mask here", "There is no [MASK]"), ("[MASK] " + "cat " * 100, "tokens")):
        type_values(page, {"Text with masks": text})
        error = run(page).locator("[role=alert]")
        assert part in error.text_content() and "\n" not in error.text_content()
        assert page.get_by_label("Text with masks").input_value() == text
    page.route("**/v1/fill", lambda route: route.abort())
    assert "cannot be reached" in run(page).locator("[role=alert]").text_content()
    page.locator("#tab-embed").click()
    page.locator("#tab-fill").click()
    page.reload()
    assert page.get_by_label("Text with masks").input_value().startswith("[MASK] cat")
    assert "cat" not in page.url and "verb=fill" in page.url
    page.get_by_label("Model", exact=True).select_option("gpt2")
    assert page.locator("[role=tabpanel]:visible").get_attribute("id") == "panel-embed"
    page.get_by_label("Model", exact=True).select_option("bert")
    page.locator("#tab-fill").click()
    assert page.get_by_label("Text with masks").input_value().startswith("[MASK] cat")
    page.get_by_role("button", name="Reset").click()
    assert page.get_by_label("Text with masks").input_value() == "The capital of France is [MASK]."


def test_a_token_is_asked_for(open_playground, models):
    token = "a-token-of-this-test"
    with running_server({"vectors": models["vectors"]}, token=token) as address:
        page = open_playground("vectors", "neighbors", address, allowed=("401",))
        page.get_by_label("Token", exact=True).wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("The server needs a token.").wait_for()
        page.get_by_role("button", name="Try again").click()
        page.get_by_label("Token", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("refused").wait_for()
        page.get_by_label("Token", exact=True).fill(token)
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=tabpanel]")
        assert labels(run(page))
        page.reload()
        assert labels(run(page))
        command = page.locator(".code pre").text_content()
        assert token not in command and "Authorization: Bearer $POLYSEME_TOKEN" in command and token not in page.url


def test_what_a_model_returns_is_text(open_playground):
    markup = '<img src="/x" onerror="alert(1)">'
    response = {
        "results": [[{"word": markup, "similarity": 0.5}]],
        "usage": {"num_tokens": 1, "num_generated_tokens": 0},
    }
    page = open_playground("vectors", "neighbors")
    page.route("**/v1/neighbors", lambda route: route.fulfill(json=response))
    card = run(page)
    assert labels(card) == [markup] and page.locator("img").count() == 0
    source = "".join(path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", source)


def test_themes(open_playground):
    page = open_playground("bert", "fill", color_scheme="dark")
    color = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(color) == "rgb(20, 24, 31)"
    button = page.get_by_role("button", name="Dark mode")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert page.evaluate(color) == "rgb(255, 255, 255)" and button.get_attribute("aria-pressed") == "false"
    page.reload()
    assert page.evaluate(color) == "rgb(255, 255, 255)"


def test_the_colors_are_those_of_reports():
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    here = {name: (light, dark) for name, light, dark in re.findall(r"(--[\w-]+): light-dark\((\S+), (\S+)\);", style)}
    light, dark = (
        dict(re.findall(r"(--[\w-]+):(#\w+)", each)) for each in polyseme.report.style.STYLE.split("@media")[:2]
    )
    assert here == {name: (light[name], dark[name]) for name in light}


def test_principal_components_equal_numpy(open_playground):
    rows = np.random.default_rng(0).normal(size=(7, 5)) * [5, 3, 1, 1, 0.1]
    page = open_playground("vectors", "embed")
    script = "rows => import('/playground/vectors.js').then(({ project }) => project(rows))"
    result = page.evaluate(script, rows.tolist())
    u, s, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(result["points"]), np.abs(u[:, :2] * s[:2]), atol=1e-9)
    np.testing.assert_allclose(result["shares"], (s**2 / (s**2).sum())[:2], atol=1e-9)
    assert page.evaluate(script, [[1, 2], [1, 2]])["points"] == [[0, 0], [0, 0]]
