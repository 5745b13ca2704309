"""The page of an attribution: words, deletion curves, numbers, figures, and errors in one line."""

import json
import re

import numpy as np
import pytest
import torch
from torch import nn

import polyseme
from polyseme.errors import PolysemeError
from polyseme.explain import explain_attribution
from polyseme.explain.attribution import shaded_words
from polyseme.explain.deletion import delete_words, interval_95
from polyseme.inference.inspection.attribution import METHODS, AttributionInput, attribute_input

TEXT = "the old [MASK] sees the dog"


@pytest.fixture(scope="module")
def bert(tiny_folders):
    return polyseme.load(tiny_folders["bert"], device="cpu")


def additive_input(weights):
    """An input whose score is the sum of the weights of its words."""
    ids, values = np.arange(len(weights)), torch.tensor(weights, dtype=torch.float64)

    def score_batch(variants):
        vectors = layer(torch.from_numpy(np.concatenate([variant.ids for variant in variants])))
        return torch.stack([part.sum() for part in vectors.split([len(variant.ids) for variant in variants])])

    layer = nn.Embedding.from_pretrained(values[:, None])
    words, everything = tuple("abcdefgh"[: len(ids)]), np.ones(len(ids), dtype=bool)
    return AttributionInput(
        ids, words, words, ids, everything, ~everything, "x", None, None, -1, "zero", score_batch, layer, 100
    )


def test_every_method_finds_the_weights_of_an_additive_score():
    for method in METHODS:
        attribution = attribute_input(additive_input([4.0, -1.0, 2.0]), method)
        assert attribution.word_scores == pytest.approx([4, -1, 2]) and attribution.score == 5
        assert attribution.baseline_score == 0 and attribution.completeness_error < 1e-9


def test_deletion_of_an_additive_score():
    problem = additive_input([4.0, -1.0, 2.0, 0.0])
    deletion = delete_words([problem], [[attribute_input(problem, "erasure")]])
    most, least = deletion.most_first["erasure"], deletion.least_first["erasure"]
    assert most.mean.tolist() == [0, 4, 6, 6, 5] and least.mean.tolist() == [0, -1, -1, 1, 5]
    assert most.shares.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert most.aopc == pytest.approx(21 / 5) and deletion.area("erasure") == pytest.approx((5 + 7 + 5) / 4)
    assert least.aopc < deletion.random.aopc < most.aopc and deletion.random.mean[-1] == pytest.approx(5)


def test_several_texts_are_averaged_with_intervals():
    problems = [additive_input([4.0, 0.0]), additive_input([2.0, 0.0, 0.0, 0.0])]
    deletion = delete_words(problems, [[attribute_input(problem, "erasure")] for problem in problems])
    curve = deletion.most_first["erasure"]
    assert curve.drops.shape == (2, 21) and curve.mean[-1] == 3 and curve.mean[10] == 3
    assert interval_95(np.arange(5.0)) == pytest.approx(2.776 * np.std(np.arange(5), ddof=1) / np.sqrt(5), rel=0.01)
    assert "interval_95" in curve.describe() and curve.aopc_margin > 0


def test_page_numbers_and_figures(bert, tmp_path):
    explanation = explain_attribution(bert, TEXT, "cat", contrast="dog")
    paths = explanation.save(tmp_path / "page.html")
    assert [path.name for path in paths] == ["page.html", "page.json", "page-words.svg", "page-deletion.svg"]
    record = json.loads((tmp_path / "page.json").read_text())
    (text,) = record["texts"]
    expected = bert.attribute(TEXT, "cat", contrast="dog")
    assert text["words"] == TEXT.split() and text["methods"].keys() == METHODS.keys()
    assert text["methods"]["integrated_gradients"]["word_scores"] == pytest.approx(expected.word_scores)
    curve = record["deletion"]["methods"]["erasure"]["most_important_first"]
    assert (
        curve["drops"][0] == 0 and len(curve["drops"]) == 6 and curve["aopc"] == pytest.approx(np.mean(curve["drops"]))
    )
    page = (tmp_path / "page.html").read_text()
    assert "Why “cat” and not “dog”?" in page and "methods disagree" in page
    assert page.count('<div class="words">') == 4 and not re.search(r"(src|href)=.?https?:", page)
    assert "Why “cat” and not “dog”? log p(cat) − log p(dog) is" in explanation.summary


def test_one_method_and_models_without_a_mask(bert, tiny_folders):
    explanation = explain_attribution(bert, TEXT, method="erasure")
    assert [*explanation.record["texts"][0]["methods"]] == ["erasure"]
    gpt2 = polyseme.load(tiny_folders["gpt2"], device="cpu")
    methods = explain_attribution(gpt2, "the old cat", "dog").record["texts"][0]["methods"]
    assert [*methods] == ["integrated_gradients", "gradient_x_input", "leave_one_out"]


def test_small_scores_are_shown():
    problem = additive_input([4e-3, -1e-3, 1e-9])
    page = shaded_words(attribute_input(problem, "erasure"))
    assert [*re.findall("<small>(.*?)</small>", page)] == ["+0.004", "−0.001", "0"]


def test_words_cannot_escape_into_the_page(bert):
    explanation = explain_attribution(bert, "the <b onclick=1> [MASK] </script>", method="erasure")
    assert "<b onclick" not in explanation.page and "</script>" not in explanation.page


def test_command(tiny_folders, tmp_path, run_cli, rejects):
    bert = tiny_folders["bert"]
    printed = run_cli("explain", bert, "--text", TEXT, "--attribute", "cat", "--method", "erasure")
    assert re.search(r"word +erasure\nthe +[-+]\d", printed) and "AOPC" in printed and "Why “cat”?" in printed
    texts = tmp_path / "texts.txt"
    texts.write_text(f"{TEXT}\nthe [MASK] hears\n")
    arguments = ("explain", bert, "--data", texts, "--attribute", "predicted", "--method", "erasure")
    record = json.loads(run_cli(*arguments, "--out", tmp_path / "texts.html", "--json"))
    assert len(record["texts"]) == 2 and "interval_95" in record["deletion"]["random_order"]
    assert "2 texts" in (tmp_path / "texts.html").read_text()
    ask = ("explain", bert, "--text", TEXT, "--attribute")
    rejects(*ask, "catdogs", "--out", tmp_path / "x.html", match="tokens of the model")
    rejects(*ask, "cat", "--method", "gradients", match="--method.*valid|did you mean")
    rejects("explain", bert, "--attribute", "cat", match="--attribute needs --text")
    rejects("explain", bert, "--text", "the cat", "--attribute", "cat", match=r"there is no \[MASK\]")


def test_unsupported_models_list_their_figures(tiny_folders):
    model = polyseme.load(tiny_folders["word2vec"])
    with pytest.raises(PolysemeError, match="cannot show attribution; it can show words in context"):
        explain_attribution(model, "the cat", "dog")
