"""The attention of every family equals `output_attentions` of `transformers` to 1e-6, of T5 to 5e-6."""

import json

import numpy as np
import pytest
import torch

import polyseme
from polyseme.families import FAMILIES as ALL_FAMILIES
from tests.support.hf_models import ENCODER_DECODERS

transformers = pytest.importorskip("transformers")

TEXT, PAIR = "the old cat sees the dog.", "the bird sings."
FAMILIES = ["albert", "bert", "camembert", "distilbert", "gpt", "gpt2", "modernbert", "roberta", "spanbert"]
FAMILIES += ["gpt-bert", "t5", "xlm_roberta", "xlnet"]


def load_both(folder, cls="AutoModel"):
    model = getattr(transformers, cls).from_pretrained(folder, attn_implementation="eager").eval()
    return polyseme.load(folder, device="cpu"), model


def assert_same(attention_map, expected, atol=1e-6):
    """Compare with one tensor [1, heads, queries, keys] per layer."""
    expected = torch.cat(expected).numpy()
    assert attention_map.weights.dtype == np.float32
    np.testing.assert_allclose(attention_map.weights, expected, atol=atol, rtol=0)
    np.testing.assert_allclose(attention_map.weights.sum(-1), 1, atol=1e-6)


def test_every_family_of_transformers_is_compared(tiny_folders):
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    types = {
        name: json.loads((folder / "config.json").read_text())["model_type"] for name, folder in tiny_folders.items()
    }
    with_attention = {name for name in types if ALL_FAMILIES[name].model_config().trunk.has_attention}
    assert {name for name in with_attention if types[name] in known} == set(FAMILIES)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ENCODER_DECODERS])
@pytest.mark.parametrize("pair", [None, PAIR])
def test_self_attention_matches(family, pair, tiny_folders):
    model, hf_model = load_both(tiny_folders[family])
    encoded = model.encode(TEXT, pair)
    inputs = {"input_ids": torch.tensor([encoded.input_ids])}
    if model.model.config.trunk.num_segments == 2:
        inputs["token_type_ids"] = torch.tensor([encoded.token_type_ids])
    with torch.no_grad():
        expected = hf_model(**inputs, output_attentions=True).attentions
    attention = model.attention(TEXT, pair)
    assert attention.names == ("self",) and len(attention["self"].queries) == len(encoded.tokens)
    assert_same(attention["self"], expected)


@pytest.mark.parametrize("target", [None, "the cat"])
def test_encoder_decoder_attention_matches(target, tiny_folders):
    model, hf_model = load_both(tiny_folders["t5"], "T5ForConditionalGeneration")
    attention, tokenizer = model.attention(TEXT, target=target), model.tokenizer
    target_ids = model.generate(TEXT, max_new_tokens=0)[0].tokens if target is None else tokenizer.encode(target)
    decoder_ids = [hf_model.config.decoder_start_token_id, *target_ids]
    with torch.no_grad():
        outputs = hf_model(
            input_ids=torch.tensor([model.encode(TEXT).input_ids]),
            decoder_input_ids=torch.tensor([decoder_ids]),
            output_attentions=True,
        )
    assert attention.names == ("encoder", "decoder", "cross")
    for name in attention.names:  # scores are large, because T5 does not scale them, and so are their rounding errors
        assert_same(attention[name], getattr(outputs, f"{name}_attentions"), atol=5e-6)
    assert attention["cross"].queries == tokenizer.display_tokens(decoder_ids)
    assert attention["cross"].keys == attention["encoder"].keys
