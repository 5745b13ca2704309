"""Folders of ModernBERT: current and legacy configs, unsupported settings, byte-level vocabularies."""

import json

import pytest

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.model import ModelConfig
from polyseme.text.pipelines import BERT_SPECIALS, build_bpe, set_pair_template
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import load_model
from tests.support.folders import copy_unhashed
from tests.support.hf_models import assert_same_outputs, build_hf_model, load_hf_model, round_trip, save_hf_model

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("changes", [
    {"hidden_activation": "relu", "classifier_activation": "relu"}, {"norm_eps": 1e-3}, {"local_attention": 6},
    {"classifier_pooling": "cls"}, {"intermediate_size": 40}, {"num_attention_heads": 4}, {"pad_token_id": None},
    {"layer_types": ["full_attention"] * 3}, {"layer_types": ["full_attention", *["sliding_attention"] * 2]},
    {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 300.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}},
], ids=str)  # fmt: skip
def test_other_settings_match(changes, tiny_folders, tmp_path):
    hf_model = build_hf_model("modernbert", "ModernBertForSequenceClassification", tiny_folders, **changes)
    save_hf_model(hf_model, "modernbert", tiny_folders, tmp_path)
    assert_same_outputs(load_model(tmp_path).model, hf_model)


def test_legacy_config_keys_are_read(tiny_folders, tmp_path):
    """Before `layer_types` and `rope_parameters`, a config had a period and one key per base."""
    hf_model = build_hf_model("modernbert", "ModernBertForMaskedLM", tiny_folders)
    save_hf_model(hf_model, "modernbert", tiny_folders, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("layer_types") == ["full_attention", "sliding_attention", "full_attention"]
    rope_parameters = config.pop("rope_parameters")
    assert [rope_parameters[layer_type]["rope_theta"] for layer_type in ("full_attention", "sliding_attention")] == [
        160_000,
        10_000,
    ]
    (tmp_path / "config.json").write_text(json.dumps(config | {"global_attn_every_n_layers": 2}))
    assert_same_outputs(load_model(tmp_path).model, hf_model)
    (tmp_path / "config.json").write_text(json.dumps(config | {"global_rope_theta": 5.0, "local_rope_theta": 6.0}))
    blocks = load_model(tmp_path).model.config.trunk.block_configs
    assert [(b.attention.window, b.attention.rope_theta) for b in blocks] == [(0, 5.0), (2, 6.0), (2, 6.0)]


@pytest.mark.parametrize("changes,message", [
    ({"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, "every n-th layer"),
    ({"layer_types": "odd"}, "layer_types"), ({"attention_bias": True}, "attention_bias"),
    ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type is 'yarn'"),
    ({"rope_parameters": ["odd"]}, "rope_parameters"), ({"local_attention": "odd"}, "local_attention"),
    ({"classifier_activation": "relu"}, "classifier_activation"), ({"model_type": "modern"}, "modernbert"),
], ids=str)  # fmt: skip
def test_unsupported_settings_are_rejected(changes, message, tiny_folders, tmp_path):
    folder = copy_unhashed(tiny_folders["modernbert"], tmp_path / "modernbert")
    (folder / "polyseme.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(PolysemeError, match=message):
        load_model(folder)


def test_byte_level_vocabulary_round_trip(tiny_folders, tmp_path):
    """As in the paper: byte-level BPE with BERT's special tokens and template."""
    bpe_tokenizer = Tokenizer.train("bpe", iter(["the unseen cat sees the swan"] * 9), 300)
    bpe_model = json.loads(bpe_tokenizer.backend.to_str())["model"]
    vocab = {token: i for token, i in bpe_model["vocab"].items() if token != "<|endoftext|>"}
    vocab = {token: i for i, token in enumerate([*BERT_SPECIALS, *vocab])}
    backend = build_bpe(vocab, [tuple(m) for m in bpe_model["merges"]], False, BERT_SPECIALS)
    set_pair_template(backend)
    tokenizer = Tokenizer(backend)
    trunk = load_model(tiny_folders["modernbert"]).model.config.trunk
    trunk = trunk.replace(embeddings=trunk.embeddings.replace(vocab_size=tokenizer.vocab_size))
    model = ModelConfig("modernbert", trunk, FAMILIES["modernbert"].pretraining_heads(trunk)).build(seed=1)
    round_trip(model, tokenizer, tmp_path / "model")
    hf_model, problems = load_hf_model(transformers.ModernBertForMaskedLM, tmp_path / "model")
    assert not problems and (
        hf_model.config.pad_token_id,
        hf_model.config.cls_token_id,
        hf_model.config.sep_token_id,
    ) == (
        0,
        2,
        3,
    )
    assert_same_outputs(model, hf_model)
    text = "The unseen [MASK]"
    input_ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")(text)["input_ids"]
    assert (
        input_ids == tokenizer.build_inputs_with_special_tokens(tokenizer.encode(text))[0]
        and input_ids[0] == 2
        and tokenizer.special_token_ids.mask in input_ids
    )
