"""The logit lens: its last layer is the model's own prediction, for every family with a language-model head."""

import json

import numpy as np
import pytest
import torch

import polyseme
from polyseme.explain.lm_input import lm_heads, read_text
from polyseme.explain.logit_lens import explain_logit_lens
from polyseme.explain.logit_lens.lens import decode_layers
from polyseme.families import FAMILIES

TEXT = "the old cat sees the dog"
WITHOUT_LM_HEAD = {"word2vec", "fasttext", "glove"}
LM_FAMILIES = sorted(set(FAMILIES) - WITHOUT_LM_HEAD)


def final_log_probs(lm_input) -> torch.Tensor:
    """What the model predicts, in one ordinary forward pass per batch."""
    model, parts = lm_input.network.model, []
    with torch.inference_mode():
        for inputs, rows in lm_input.batches():
            hidden = model.trunk(inputs).hidden
            parts.append(model.predict(lm_input.head, hidden, inputs.layout, rows).double().log_softmax(-1))
    return torch.cat(parts)


@pytest.mark.parametrize("family", LM_FAMILIES)
def test_last_layer_is_the_prediction_of_the_model(family, tiny_folders):
    network = polyseme.load(tiny_folders[family], "cpu")
    for head in lm_heads(network, TEXT):
        lm_input = read_text(network, TEXT, head)
        view = decode_layers(lm_input, top_k=4)
        expected = final_log_probs(lm_input).exp().topk(4)
        np.testing.assert_allclose(view.top_probs[-1], expected.values, atol=1e-6)
        assert (view.top_ids[-1] == expected.indices.numpy()).all()
        assert np.abs(view.kl[-1]).max() < 1e-9 and (view.kl >= -1e-9).all() and (view.final_ranks[-1] == 1).all()
        assert len(view.layers) + len(view.skipped) >= network.model.config.trunk.num_layers + 1


def test_last_layer_is_what_fill_and_score_say(tiny_folders):
    bert, gpt2 = (polyseme.load(tiny_folders[name], "cpu") for name in ("bert", "gpt2"))
    (mask,) = bert.fill("the old [MASK] sees the dog", top_k=3)
    view = decode_layers(read_text(bert, "the old [MASK] sees the dog", "masked"), 3)
    assert bert.tokenizer.convert_ids_to_tokens(view.top_ids[-1, 0]) == [each.token for each in mask]
    np.testing.assert_allclose(view.top_probs[-1, 0], [each.probability for each in mask], atol=1e-6)
    for model, head in ((bert, "masked"), (gpt2, "next")):  # masked in turn: the pseudo-log-likelihood
        probs = decode_layers(read_text(model, TEXT, head), 1).target_probs[-1]
        assert np.log(probs[~np.isnan(probs)]).sum() == pytest.approx(model.score(TEXT).log_prob, abs=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "modernbert", "t5"])
def test_lower_layers_go_through_the_final_norm(family, tiny_folders):
    """A pre-norm trunk cut after a layer, with its final norm, predicts what the lens shows at that layer."""
    network = polyseme.load(tiny_folders[family], "cpu")
    lm_input = read_text(network, TEXT, lm_heads(network, TEXT)[0])
    view = decode_layers(lm_input, 2)
    stack = network.model.trunk.decoder if family == "t5" else network.model.trunk
    stack.config = stack.config.replace(
        layer_to_block=stack.config.layer_to_block[:2], variant_per_block=stack.config.variant_per_block[:2]
    )
    np.testing.assert_allclose(view.top_probs[2], final_log_probs(lm_input).exp().topk(2).values, atol=1e-6)


def test_layers_of_another_size_are_named(tiny_folders):
    explanation = explain_logit_lens(polyseme.load(tiny_folders["ulmfit"], "cpu"), TEXT)
    (head,) = explanation.record["heads"]
    assert head["layers"] == ["0", "3"] and head["not_decoded"] == {"1": 40, "2": 40}
    assert "the head reads 24 features: layer 1 (40), layer 2 (40)" in explanation.summary


def test_a_hybrid_predicts_masks_only_where_there_are_some(tiny_folders):
    network = polyseme.load(tiny_folders["gpt-bert"], "cpu")
    assert lm_heads(network, TEXT) == ["next"] and lm_heads(network, f"the {network.tokenizer.mask_token}") == [
        "masked"
    ]


def test_prediction_is_settled_where_it_no_longer_changes(tiny_folders):
    view = decode_layers(read_text(polyseme.load(tiny_folders["bert"], "cpu"), TEXT, "masked"), 1)
    best = view.top_ids[:, :, 0]
    for column, settled in zip(best.T, view.settled_layers):
        assert (column[settled:] == column[-1]).all() and (settled == 0 or column[settled - 1] != column[-1])


def test_command_writes_page_numbers_and_figures(tiny_folders, run_cli, rejects, tmp_path):
    model = tiny_folders["elmo"]
    printed = run_cli("explain", model, "--lens", "--text", TEXT, "--top-k", 2, "--out", tmp_path / "lens.html")
    assert "next token no longer changes" in printed and "previous token no longer changes" in printed
    record = json.loads((tmp_path / "lens.json").read_text())
    forward, backward = record["heads"]
    assert [head["head"] for head in record["heads"]] == ["next", "previous"]
    assert forward["positions"][0]["true_token"] == forward["positions"][1]["token"]
    assert backward["positions"][1]["true_token"] == backward["positions"][0]["token"]
    assert all(len(layer["top"]) == 2 for layer in forward["positions"][0]["layers"])
    page = (tmp_path / "lens.html").read_text()
    num_cells = sum(len(head["positions"]) * len(head["layers"]) for head in record["heads"])
    assert page.count("<button") == num_cells and page.count('tabindex="0"') == 2
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [
        *(f"lens-{kind}-{head}.svg" for kind in ("curves", "grid") for head in ("next", "previous"))
    ]
    assert "best tokens" in run_cli("explain", tiny_folders["bert"], "--lens", "--text", "the [MASK]")
    rejects("explain", model, "--lens", "--text", "", match="no tokens")
    rejects("explain", model, "--lens", "--text", TEXT * 99, match="longer than the model reads")
    rejects(
        "explain",
        tiny_folders["glove"],
        "--lens",
        "--text",
        TEXT,
        match="cannot show the logit lens; it can show words in context",
    )


def test_tokens_cannot_escape_into_the_page(tiny_folders):
    page = explain_logit_lens(polyseme.load(tiny_folders["gpt2"], "cpu"), "</script><i>").page
    assert "<i>" not in page and page.count("</script>") == 2
