"""The folder of ModernBERT: what its config can say, old and new, and vocabularies of its own kind."""

import json
import shutil

import pytest

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.model import ModelConfig
from polyseme.text.pipelines import BERT_SPECIALS, build_bpe, set_pair_template
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import load_model
from tests.weights.test_folder import assert_same, make, opened, round_trip, save

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("changes", [
    {"hidden_activation": "relu", "classifier_activation": "relu"}, {"norm_eps": 1e-3}, {"local_attention": 6},
    {"classifier_pooling": "cls"}, {"intermediate_size": 40}, {"num_attention_heads": 4}, {"pad_token_id": None},
    {"layer_types": ["full_attention"] * 3}, {"layer_types": ["full_attention", *["sliding_attention"] * 2]},
    {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 300.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}},
], ids=str)  # fmt: skip
def test_other_settings_of_modern(changes, tiny_folders, tmp_path):
    theirs = make("modernbert", "ModernBertForSequenceClassification", tiny_folders, **changes)
    save(theirs, "modernbert", tiny_folders, tmp_path)
    assert_same(load_model(tmp_path).model, theirs)


def test_a_config_of_modern_as_it_was_published(tiny_folders, tmp_path):
    """Before `layer_types` and `rope_parameters` there was a number, and a name for each base."""
    theirs = make("modernbert", "ModernBertForMaskedLM", tiny_folders)
    save(theirs, "modernbert", tiny_folders, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("layer_types") == ["full_attention", "sliding_attention", "full_attention"]
    bases = config.pop("rope_parameters")
    assert [bases[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")] == [160_000, 10_000]
    (tmp_path / "config.json").write_text(json.dumps(config | {"global_attn_every_n_layers": 2}))
    assert_same(load_model(tmp_path).model, theirs)
    (tmp_path / "config.json").write_text(json.dumps(config | {"global_rope_theta": 5.0, "local_rope_theta": 6.0}))
    blocks = load_model(tmp_path).model.config.trunk.block_configs
    assert [(b.attention.window, b.attention.rope_theta) for b in blocks] == [(0, 5.0), (2, 6.0), (2, 6.0)]


@pytest.mark.parametrize("changes,says", [
    ({"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, "every n-th layer"),
    ({"layer_types": "odd"}, "layer_types"), ({"attention_bias": True}, "attention_bias"),
    ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type is 'yarn'"),
    ({"rope_parameters": ["odd"]}, "rope_parameters"), ({"local_attention": "odd"}, "local_attention"),
    ({"classifier_activation": "relu"}, "classifier_activation"), ({"model_type": "modern"}, "modernbert"),
], ids=str)  # fmt: skip
def test_settings_that_modern_has_not(changes, says, tiny_folders, tmp_path):
    folder = shutil.copytree(tiny_folders["modernbert"], tmp_path / "modernbert")
    (folder / "polyseme.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(PolysemeError, match=says):
        load_model(folder)


def test_modern_with_a_byte_level_vocabulary(tiny_folders, tmp_path):
    """The paper's kind: BPE over bytes, with BERT's special tokens and template."""
    bytes_ = Tokenizer.train("bpe", iter(["the unseen cat sees the swan"] * 9), 300)
    learnt = json.loads(bytes_.backend.to_str())["model"]
    vocab = {piece: i for piece, i in learnt["vocab"].items() if piece != "<|endoftext|>"}
    vocab = {piece: i for i, piece in enumerate([*BERT_SPECIALS, *vocab])}
    backend = build_bpe(vocab, [tuple(m) for m in learnt["merges"]], False, BERT_SPECIALS)
    set_pair_template(backend)
    tokenizer = Tokenizer(backend)
    trunk = load_model(tiny_folders["modernbert"]).model.config.trunk
    trunk = trunk.replace(embeddings=trunk.embeddings.replace(vocab_size=tokenizer.vocab_size))
    model = ModelConfig("modernbert", trunk, FAMILIES["modernbert"].pretraining_heads(trunk)).build(seed=1)
    round_trip(model, tokenizer, tmp_path / "model")
    theirs, trouble = opened(transformers.ModernBertForMaskedLM, tmp_path / "model")
    assert not trouble and (theirs.config.pad_token_id, theirs.config.cls_token_id, theirs.config.sep_token_id) == (
        0,
        2,
        3,
    )
    assert_same(model, theirs)
    text = "The unseen [MASK]"
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")(text)["input_ids"]
    assert (
        found == tokenizer.build_inputs_with_special_tokens(tokenizer.encode(text))[0]
        and found[0] == 2
        and tokenizer.special_token_ids.mask in found
    )
