"""The attention page, its record and its command: exact weights, what is shown first, errors."""

import doctest
import json

import numpy as np
import pytest

import polyseme
from polyseme.explain.attention import explain_attention, round_significant
from polyseme.explain.attention_page.figures import heads_svg, lines_svg
from polyseme.explain.attention_page.packing import pack_weights, unpack_weights
from polyseme.explain.attention_page.page import AttentionView, PanelMap
from polyseme.explain.attention_page.panels import choose_start
from polyseme.explain.attention_page.patterns import head_patterns, name_heads, pattern_rows
from polyseme.explain.attribution import explain_attribution
from tests.support.pages import check_svg, parse_page

TEXT = "the old cat sees the dog."


@pytest.fixture(scope="module")
def models(tiny_folders):
    return {name: polyseme.load(tiny_folders[name], device="cpu") for name in ("bert", "gpt2", "t5")}


def random_weights(*shape):
    return np.random.default_rng(0).dirichlet([0.3] * shape[-1], shape[:-1]).astype(np.float32)


@pytest.mark.parametrize("num_keys", [1, 5, 16, 40])
def test_stored_weights_are_the_largest_of_each_row(num_keys):
    weights = random_weights(2, 3, 4, num_keys)
    text, k = pack_weights(weights)
    stored, rest = unpack_weights(text, k, weights.shape)
    assert k == min(num_keys, 16)
    largest = weights >= np.sort(weights, -1)[..., [-k]]
    np.testing.assert_allclose(stored, np.where(largest, weights, 0), atol=1e-5)
    np.testing.assert_allclose(rest, np.where(largest, 0, weights).sum(-1), atol=1e-5)


def test_patterns_are_mean_weights():
    weights = np.full((1, 4, 5, 5), 0.01)
    positions = np.arange(5)
    weights[0, 0, positions[1:], positions[:-1]] = 0.96
    weights[0, 1, positions[:-1], positions[1:]] = 0.96
    weights[0, 2, :, [0]] = 0.96
    weights[0, 3, :, [4]] = 0.26
    patterns = head_patterns(weights, special_keys=[0, 4], is_self=True)
    assert list(patterns) == ["previous", "same", "next", "first", "special"]
    assert patterns["previous"][0, 0] == pytest.approx(0.96) and patterns["special"][0, 3] == pytest.approx(0.26)
    assert name_heads(patterns) == [["previous token 0.96", "next token 0.96", "first token 0.96", "no fixed pattern"]]
    assert pattern_rows(patterns)[0][:2] == ["1", "0.96 (head 1)"]
    assert list(head_patterns(weights, [], is_self=False)) == ["first"]
    causal = np.tril(weights[..., :3, :3])
    assert "next" not in head_patterns(causal, [], is_self=True)


def test_page_starts_where_the_word_finds_a_distant_one():
    tokens = ["[CLS]", "the", "cat", "is", "its", "own"]
    weights = np.full((2, 2, 6, 6), 0.1)
    weights[0, 0, 4, 3] = weights[0, 1, 4, 4] = weights[0, 1, 4, 0] = 0.9  # a neighbor, itself, a special token
    weights[1, 0, 4, 2] = 0.5
    panel_map = PanelMap("self", AttentionView(tokens, tokens, weights, range(6), [0], [0]), None)
    start = choose_start([panel_map], "Its", None, None)
    assert (start.layer, start.head, start.token, start.is_pinned) == (1, 0, 4, True)
    assert choose_start([panel_map], None, 1, 2).token == 1
    assert choose_start([panel_map], None, 1, 2).head == 1


def test_figures_are_drawn_with_labels_inside():
    check_svg(heads_svg(random_weights(3, 12, 90, 90)))
    check_svg(heads_svg(random_weights(1, 1, 40, 2)))
    lines = check_svg(lines_svg(np.eye(3), ["a" * 60, "b", "<c>"], ["אב", "漢字漢字漢字", "c"], 0.05))
    assert len(lines.findall(".//{*}path")) == 3
    assert len(heads_svg(random_weights(12, 12, 200, 200))) < 2_500_000


def test_record_has_the_exact_weights(models, tmp_path):
    explanation = explain_attention([models["bert"]], [TEXT], pair="a dog", token="cat", layer=2, head=3)
    paths = explanation.save(tmp_path / "page.html")
    names = ["page.html", "page.json", "page-heads.svg", "page-lines.svg", "page-word.svg"]
    assert [path.name for path in paths] == names
    (reading,) = json.loads((tmp_path / "page.json").read_text())["readings"]
    attention = models["bert"].attention(TEXT, "a dog")["self"]
    np.testing.assert_allclose(reading["maps"][0]["weights"], attention.weights, rtol=1e-6)
    assert reading["maps"][0]["queries"] == attention.queries
    steps = reading["steps"]
    assert (steps["layer"], steps["head"], steps["token"]) == (2, 3, "cat")
    np.testing.assert_allclose(steps["weights"], attention.weights[1, 2, steps["index"]], atol=1e-6)
    page = parse_page(explanation.page, has_script=True)
    assert "Attention is not explanation" in page.text and "layer 2, head 3" in page.text
    for path in paths[2:]:
        check_svg(path.read_text().replace(path.read_text().partition("<style>")[2].partition("</style>")[0], ""))


def test_any_text_is_written(models, tmp_path):
    text = 'the </script><b>cat \udc80 שלום 日本 "'
    explain_attention([models["gpt2"]], [text]).save(tmp_path / "page.html")
    parse_page((tmp_path / "page.html").read_text("utf-8"), has_script=True)
    assert json.loads((tmp_path / "page.json").read_text("utf-8"))["readings"][0]["text"] == text.replace("\udc80", "?")


def test_significant_digits():
    values = np.array([[0.123456789, 1.0], [0.0, 1.23456789e-12]])
    assert round_significant(values) == [[0.1234568, 1.0], [0.0, 1.234568e-12]]


def test_texts_and_models_side_by_side(models):
    texts = explain_attention([models["gpt2"]], [TEXT, "a <b>dog</b> sees the old cat"], token="sees")
    assert list(texts.figures) == ["heads", "lines", "word", "heads2", "lines2", "word2"]
    assert [reading["steps"]["token"] for reading in texts.record["readings"]] == ["_s", "_s"]  # the first piece
    page = parse_page(texts.page, has_script=True)
    assert page.text.count("a <b>dog</b> sees the old cat") >= 4
    both = explain_attention([models["bert"], models["t5"]], [TEXT])
    assert [len(reading["maps"]) for reading in both.record["readings"]] == [1, 3]
    assert len(both.tables) == 5  # translations, and the patterns of four kinds of attention
    with pytest.raises(polyseme.ConfigError, match="2 models and 2 texts, expected one model"):
        explain_attention([models["bert"], models["gpt2"]], [TEXT, TEXT])


def test_docstring_example(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"explain_attention": explain_attention, "model": models["bert"]}
    (test,) = doctest.DocTestFinder(recurse=False).find(explain_attention, "explain_attention", globs=names)
    assert not doctest.DocTestRunner().run(test).failed and (tmp_path / "attention.html").exists()


def test_command_prints_patterns(run_cli, tiny_folders):
    printed = run_cli("explain", tiny_folders["bert"], "--text", TEXT)
    assert "self-attention: layer  previous" in printed and "bert reads 'the old cat sees the dog.'" in printed
    assert len(json.loads(run_cli("explain", tiny_folders["bert"], "--text", TEXT, "--json"))["readings"]) == 1


@pytest.mark.parametrize(
    "family,options,message",
    [
        ("rnn_lm", (), r"cannot show attention; it can show .*--lens"),
        ("word2vec", (), r"cannot show attention; it can show .*--word"),
        ("bert", ("--num-beams", 2), "--num-beams has no effect: .* does not translate"),
        ("bert", ("--target", "a"), "--target has no effect"),
        ("bert", ("--layer", 4), "--layer is 4, expected 1 to 3, the layers of the self-attention"),
        ("bert", ("--head", 4), "--head is 4, expected 1 to 3"),
        ("bert", ("--token", "horse"), "--token 'horse' is no word of the text; its words are the, old, cat"),
        ("t5", ("--target", "a", "--num-beams", 2), "--num-beams has no effect: the target is set by --target"),
        ("t5", ("--pair", "a"), "--pair has no effect"),
    ],
)
def test_bad_input_is_one_line(rejects, tiny_folders, family, options, message):
    rejects("explain", tiny_folders[family], "--text", TEXT, *options, match=message)


def test_long_text_is_not_truncated(rejects, tiny_folders):
    rejects("explain", tiny_folders["bert"], "--text", TEXT * 20, match=r"tokens.*48")


def test_the_current_folder_is_named(tiny_folders, monkeypatch):
    monkeypatch.chdir(tiny_folders["bert"])
    model, name = polyseme.load(".", device="cpu"), tiny_folders["bert"].name
    attention = explain_attention([model], [TEXT])
    assert f"<title>Attention of {name}</title>" in attention.page and attention.summary.startswith(f"{name} reads")
    text = f"the {model.tokenizer.mask_token} cat sees the dog."
    assert explain_attribution(model, text, method="gradient_x_input").record["model"] == name
