"""One token through one head, step by step, against what the model computes."""

import json

import numpy as np
import pytest
import torch

import polyseme
from polyseme.explain.self_attention import attention_steps, steps_section
from polyseme.explain.supported import supported_figures, unsupported
from polyseme.nn.attention.multihead import BaseAttention
from tests.support.pages import parse_page

TEXT = "the old cat sees the dog."


def head_outputs(model, inputs):
    """Return what each attention layer passes to its output projection, [queries, heads, head_dim]."""
    outputs = []
    layers = [module for module in model.model.trunk.modules() if isinstance(module, BaseAttention)]
    hooks = [
        layer.out.register_forward_pre_hook(
            lambda _, args, heads=layer.config.num_heads: outputs.append(args[0].unflatten(-1, (heads, -1)))
        )
        for layer in layers
    ]
    with torch.no_grad():
        model.model.trunk(inputs)
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert", "xlnet", "transformer_xl", "t5"])
def test_steps_are_those_of_the_model(family, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    outputs = head_outputs(model, model.attention_inspector.read(TEXT).inputs)
    steps = attention_steps(model, TEXT, layer=2, head=3, token="cat")
    attention = model.attention(TEXT).maps[0]
    assert (steps.layer, steps.head) == (2, 3)
    assert attention.query_word_ids.index(attention.query_words.index("cat")) == steps.index
    np.testing.assert_allclose(steps.output, outputs[1][steps.index, 2], atol=1e-6)
    np.testing.assert_allclose(steps.products, steps.key_vectors @ steps.query, atol=1e-5)
    scores = steps.products * steps.scale + sum(steps.biases.values())
    np.testing.assert_allclose(steps.scores[steps.mask], scores[steps.mask], atol=1e-5)
    assert (steps.weights[~steps.mask] == 0).all() and (steps.scores[~steps.mask] == -np.inf).all()
    np.testing.assert_allclose(steps.weights @ steps.value_vectors, steps.output, atol=1e-6)
    np.testing.assert_allclose(steps.weights, attention.weights[1, 2, steps.index], atol=1e-6)
    biases = {"xlnet": ["content bias", "relative position", "relative segment"], "t5": ["relative position"]}
    biases["transformer_xl"] = biases["xlnet"][:2]
    assert list(steps.biases) == biases.get(family, [])
    assert steps.mask.all() != (family in ("gpt2", "modernbert", "transformer_xl"))
    assert ("rotated by the position" in steps_section(steps)) == (family == "modernbert")


@pytest.mark.parametrize("name", ["decoder", "cross"])
def test_steps_of_a_decoder(name, tiny_folders):
    model = polyseme.load(tiny_folders["transformer"], device="cpu")
    steps = attention_steps(model, TEXT, token="dog", name=name, target="the dog")
    attention = model.attention(TEXT, target="the dog")[name]
    assert steps.layer == 3 and steps.keys == attention.keys
    np.testing.assert_allclose(steps.weights, attention.weights[2, 0, steps.index], atol=1e-6)


def test_steps_of_a_recurrent_decoder(tiny_folders):
    steps = attention_steps(polyseme.load(tiny_folders["seq2seq"], device="cpu"), TEXT, token=0)
    assert (steps.name, steps.layer, steps.scale, steps.score_function) == ("cross", 1, 1, "multiplicative")
    assert "function of the state and the key (multiplicative)" in steps_section(steps)


def test_record_and_section(tiny_folders):
    steps = attention_steps(polyseme.load(tiny_folders["gpt2"], device="cpu"), TEXT, 1, 1, "sees")
    record = json.loads(json.dumps(steps.record(), allow_nan=False))
    assert record["scores"][-1] is None and record["weights"][-1] == 0 and len(record["query"]) == 8
    np.testing.assert_allclose(record["key_vectors"], steps.key_vectors, rtol=1e-6)
    section = steps_section(steps)
    parse_page(f"<!doctype html><html><head><title>t</title></head><body>{section}</body></html>")
    assert section.count("−∞</td>") == len(steps.keys) - 1 - steps.index and "inner product" in section


def test_a_long_text_shows_the_largest_weights(tiny_folders):
    steps = attention_steps(polyseme.load(tiny_folders["bert"], device="cpu"), "cat dog " * 20, 1, 1, 5)
    section = steps_section(steps)
    assert "Of 42 keys, the 24 with the largest weights are shown" in section and "The other 18 keys" in section
    smallest = np.sort(steps.weights)[:18].sum()
    assert f"have the weight {smallest:.3f} together" in section


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 4}, "`layer` is 4, but the model has layers 1 to 3"),
        ({"layer": 0}, "`layer` is 0"),
        ({"head": 4}, "`head` is 4, but the model has heads 1 to 3"),
        ({"token": "bird"}, "'bird' is not a word of the text; its words are .*old"),
        ({"token": 99}, "`token` is 99"),
        ({"token": -1}, "`token` is -1"),
        ({"name": "cross"}, "no attention 'cross'; the model has self"),
    ],
)
def test_errors(options, message, tiny_folders):
    with pytest.raises(polyseme.PolysemeError, match=message):
        attention_steps(polyseme.load(tiny_folders["bert"], device="cpu"), TEXT, **options)


def test_the_first_word_is_the_default_and_case_matters_only_if_it_has_to(tiny_folders):
    model = polyseme.load(tiny_folders["bert"], device="cpu")
    assert attention_steps(model, TEXT).index == 1
    assert [attention_steps(model, "The dog sees the cat", token=token).index for token in ("the", "The")] == [4, 1]
    assert attention_steps(model, "the dog", token="DOG").token == "dog"


def test_a_figure_that_is_not_supported_lists_those_that_are(tiny_folders):
    lstm = polyseme.load(tiny_folders["rnn_lm"], device="cpu")
    with pytest.raises(polyseme.UnsupportedError, match=r"cannot show attention; it can show .*words in context"):
        attention_steps(lstm, TEXT)
    bert, seq2seq, vectors = (polyseme.load(tiny_folders[name]) for name in ("bert", "seq2seq", "word2vec"))
    assert {"attention", "logit_lens", "patching", "word", "geometry"} <= set(supported_figures(bert))
    assert {"attention", "translation"} <= set(supported_figures(seq2seq))
    assert "logit_lens" in supported_figures(seq2seq) and "patching" not in supported_figures(seq2seq)
    assert supported_figures(vectors) == ["word", "geometry"]
    with pytest.raises(polyseme.UnsupportedError, match=r"cannot show the logit lens; it can show words in context \("):
        unsupported(vectors, "logit_lens")
