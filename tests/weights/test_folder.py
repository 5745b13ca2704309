"""Model folders in both directions: `transformers` loads ours, and we load those of `transformers`."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.families.family import FIXED_LABELS
from polyseme.inference.verify import verify
from polyseme.nn.model import ModelConfig
from polyseme.weights.folder import load_model, read_model_config, save_model
from tests.support.cases import RENAMED
from tests.support.folders import copy_unhashed
from tests.support.hf_models import (
    ENCODER_DECODERS,
    assert_same_outputs,
    build_hf_model,
    load_hf_model,
    randomize,
    save_hf_model,
)

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

# encoder-decoders are tested in tests/parity/test_t5.py and test_transformer_folder.py
ARCHITECTURES = [
    (family.name, name)
    for family in FAMILIES.values()
    for name in family.architectures_for(family.model_config().trunk)
    if name in dir(transformers) and family.name not in ENCODER_DECODERS  # it no longer has Transformer-XL
]
FIRST_ARCHITECTURES = list(dict(reversed(ARCHITECTURES)).items())  # one of each family
# XLM-RoBERTa and CamemBERT have RoBERTa's weights under another name (tests/parity/test_xlm_roberta.py)
DISTINCT_ARCHITECTURES = [
    pytest.param(*case, marks=[pytest.mark.slow] * (case[0] in RENAMED and case not in FIRST_ARCHITECTURES))
    for case in ARCHITECTURES
]


# --- folders that we save --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family,class_name", [
    ("bert", "AutoModelForPreTraining"), ("bert", "BertForPreTraining"), ("bert", "AutoModelForMaskedLM"),
    ("bert", "BertForMaskedLM"), ("bert", "BertForNextSentencePrediction"), ("bert", "AutoModel"),
    ("gpt2", "GPT2LMHeadModel"), ("gpt2", "AutoModelForCausalLM"), ("gpt2", "AutoModel"),
    ("modernbert", "AutoModelForMaskedLM"), ("modernbert", "AutoModel"), ("xlnet", "XLNetLMHeadModel"),
    ("xlnet", "AutoModel"),
    ("roberta", "AutoModelForMaskedLM"), ("roberta", "AutoModel"), ("distilbert", "AutoModelForMaskedLM"),
    ("distilbert", "AutoModel"),
    ("albert", "AutoModelForPreTraining"), ("albert", "AutoModelForMaskedLM"), ("albert", "AutoModel"),
    ("spanbert", "AutoModelForMaskedLM"), ("spanbert", "AutoModel"),
    ("gpt", "OpenAIGPTLMHeadModel"), ("gpt", "AutoModelForCausalLM"), ("gpt", "AutoModel"),
])  # fmt: skip
def test_transformers_loads_our_folders(family, class_name, tiny_folders):
    folder = tiny_folders[family]
    hf_model, problems = load_hf_model(getattr(transformers, class_name), folder)
    assert not problems.get("missing_keys") and not problems.get("mismatched_keys")
    assert problems.keys() <= {"unexpected_keys"}  # a head that this class lacks
    heads = {
        "AutoModel": [], "AutoModelForMaskedLM": ["masked"], "BertForMaskedLM": ["masked"],
        "BertForNextSentencePrediction": ["pair"],
    }  # fmt: skip
    model = load_model(folder).model
    if "PreTraining" in class_name or family in ("gpt", "gpt2"):
        assert not problems
    assert_same_outputs(model, hf_model, heads.get(class_name))


def test_config_names_the_architecture(tiny_folders):
    names = {f: json.loads((p / "config.json").read_text())["architectures"] for f, p in tiny_folders.items()}
    expected = {
        "bert": ["BertForPreTraining"], "gpt": ["OpenAIGPTLMHeadModel"], "gpt2": ["GPT2LMHeadModel"],
        "roberta": ["RobertaForMaskedLM"],
        "albert": ["AlbertForPreTraining"], "spanbert": ["BertForMaskedLM"],
        "distilbert": ["DistilBertForMaskedLM"], "modernbert": ["ModernBertForMaskedLM"],
        "transformer_xl": ["TransformerXLForCausalLM"], "xlnet": ["XLNetLMHeadModel"],
        "t5": ["T5ForConditionalGeneration"], "transformer": ["Translation"], "seq2seq": ["RecurrentTranslation"],
        "music": ["MusicForCausalLM"],
    }  # fmt: skip
    assert {name: names[name] for name in expected} == expected


@pytest.mark.parametrize("family", list(FAMILIES))
def test_auto_tokenizer_matches(family, tiny_folders):
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folders[family])
    tokenizer = load_model(tiny_folders[family]).tokenizer
    text = f"The unseen cat, it's 12 swans! {tokenizer.mask_token or ''}"
    assert hf_tokenizer(text)["input_ids"] == tokenizer.build_inputs_with_special_tokens(tokenizer.encode(text))[0]
    assert hf_tokenizer.model_max_length > 0 and len(hf_tokenizer) == tokenizer.vocab_size
    for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        if (tokenizer.mask_token and getattr(tokenizer.special_token_ids, role) is not None) or role in ("bos", "eos"):
            assert getattr(hf_tokenizer, f"{role}_token_id", None) == getattr(tokenizer.special_token_ids, role), role


@pytest.mark.parametrize("family,name", DISTINCT_ARCHITECTURES)
def test_each_architecture_is_saved_and_loaded(family, name, tiny_folders, tmp_path):
    """The heads of a published class are saved as that class, which loads without warnings."""
    family_spec, folder = FAMILIES[family], load_model(tiny_folders[family])
    trunk, pretraining_heads = folder.model.config.trunk, folder.model.config.heads
    labels = ("a", "b", "c")
    heads = {
        h: pretraining_heads.get(h) or family_spec.task_head(h, FIXED_LABELS.get(h, labels), trunk)
        for h in family_spec.architectures[name]
    }
    model = ModelConfig(family, trunk, heads).build(seed=3)
    randomize(model)
    save_model(tmp_path / "model", model, folder.tokenizer)
    assert json.loads((tmp_path / "model/config.json").read_text())["architectures"] == [name]
    assert not (tmp_path / "model/polyseme.safetensors").exists()
    hf_model, problems = load_hf_model(getattr(transformers, name), tmp_path / "model")
    # some classes of BERT lack the pooler, which our trunk has
    unexpected_keys = problems.pop("unexpected_keys", ())
    assert not problems and all("pooler" in key for key in unexpected_keys)
    assert_same_outputs(model, hf_model)
    if "classify" in heads or "tag" in heads:
        assert [hf_model.config.id2label[i] for i in range(3)] == list(labels)
    reloaded = load_model(tmp_path / "model")
    assert reloaded.model.config == model.config and not reloaded.newly_initialized
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in reloaded.model.state_dict().items())


# --- folders that transformers saves ---------------------------------------------------------------------------------


def edit_tensors(folder, change):
    tensors = change(load_file(folder / "model.safetensors"))
    save_file({k: t.clone().contiguous() for k, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("family,name", FIRST_ARCHITECTURES)
def test_sharded_folders_of_transformers_load(family, name, tiny_folders, tmp_path):
    hf_model = build_hf_model(family, name, tiny_folders)
    save_hf_model(hf_model, family, tiny_folders, tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_outputs(load_model(tmp_path).model, hf_model)
    verify(tmp_path)


@pytest.mark.parametrize("family,name", DISTINCT_ARCHITECTURES)
def test_folders_of_transformers_load(family, name, tiny_folders, tmp_path):
    """Load the folder, save it again for `transformers`, and load it without or with the base prefix."""
    hf_model = build_hf_model(family, name, tiny_folders)
    save_hf_model(hf_model, family, tiny_folders, tmp_path)
    folder = load_model(tmp_path)
    assert tuple(folder.model.heads) == FAMILIES[family].architectures[name]
    # classes without a pooler: it is newly initialized
    assert all(n.startswith("trunk.pooler.") for n in folder.newly_initialized)
    has_pooler = any(n.startswith("trunk.pooler.") for n in folder.model.state_dict())
    assert bool(folder.newly_initialized) == (has_pooler and not any("pooler" in n for n in hf_model.state_dict()))
    assert_same_outputs(folder.model, hf_model)
    verify(tmp_path)
    save_model(tmp_path / "ours", folder.model, folder.tokenizer)
    reloaded, problems = load_hf_model(getattr(transformers, name), tmp_path / "ours")
    assert not problems.get("missing_keys") and not problems.get("mismatched_keys")
    assert_same_outputs(folder.model, reloaded)

    prefix = FAMILIES[family].base_model_prefix

    def toggle_prefix(tensors):
        if not FAMILIES[family].architectures[name]:
            return {prefix + k: t for k, t in tensors.items()}
        return {k.removeprefix(prefix): t for k, t in tensors.items()}

    edit_tensors(tmp_path, toggle_prefix)
    assert_same_outputs(load_model(tmp_path).model, hf_model)


REGRESSIONS = [
    (family, name, settings)
    for family, name in ARCHITECTURES
    if "classify" in FAMILIES[family].architectures[name] and family not in RENAMED
    for settings in ({"problem_type": "regression"}, {})
    if settings or family in ("bert", "gpt2")
]


@pytest.mark.parametrize("family,name,settings", REGRESSIONS)
def test_regression_round_trip(family, name, settings, tiny_folders, tmp_path):
    """Sequence classification with one output is a regression, with or without `problem_type`."""
    hf_model = build_hf_model(family, name, tiny_folders, num_labels=1, **settings)
    save_hf_model(hf_model, family, tiny_folders, tmp_path)
    folder = load_model(tmp_path)
    assert folder.model.config.heads["classify"].labels == ()
    assert all(n.startswith("trunk.pooler.") for n in folder.newly_initialized)  # this class lacks the pooler
    assert_same_outputs(folder.model, hf_model)
    save_model(tmp_path / "ours", folder.model, folder.tokenizer)
    reloaded, problems = load_hf_model(getattr(transformers, name), tmp_path / "ours")
    assert not problems.keys() - {"unexpected_keys"}
    assert (reloaded.config.num_labels, reloaded.config.problem_type) == (1, "regression")
    assert_same_outputs(folder.model, reloaded)
    assert load_model(tmp_path / "ours").model.config == folder.model.config


def test_regression_with_several_outputs_is_rejected(tiny_folders, tmp_path):
    save_hf_model(
        build_hf_model("bert", "BertForSequenceClassification", tiny_folders, problem_type="regression"),
        "bert",
        tiny_folders,
        tmp_path,
    )
    with pytest.raises(PolysemeError, match="a regression with 3 outputs"):
        load_model(tmp_path)


def test_legacy_norm_names_are_read(tiny_folders, tmp_path):
    hf_model = build_hf_model("bert", "BertForPreTraining", tiny_folders)
    save_hf_model(hf_model, "bert", tiny_folders, tmp_path)

    def rename_norms(tensors):
        legacy_suffixes = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        renamed = {}
        for key, tensor in tensors.items():
            for suffix, legacy in legacy_suffixes.items():
                key = key.removesuffix(suffix) + legacy if key.endswith(suffix) else key
            renamed[key] = tensor
        assert any(k.endswith("gamma") for k in renamed)
        return renamed

    edit_tensors(tmp_path, rename_norms)
    assert_same_outputs(load_model(tmp_path).model, hf_model)


TIED = [
    *(("bert", "BertForPreTraining"), ("bert", "BertForMaskedLM"), ("gpt2", "GPT2LMHeadModel")),
    *(
        ("roberta", "RobertaForMaskedLM"),
        ("distilbert", "DistilBertForMaskedLM"),
        ("modernbert", "ModernBertForMaskedLM"),
    ),
    *(("albert", "AlbertForPreTraining"), ("gpt", "OpenAIGPTLMHeadModel")),
]


@pytest.mark.parametrize("family,name", TIED)
@pytest.mark.parametrize("is_present", [True, False], ids=["present", "absent"])
def test_tied_weights_may_be_absent(family, name, is_present, tiny_folders, tmp_path):
    hf_model = build_hf_model(family, name, tiny_folders)
    save_hf_model(hf_model, family, tiny_folders, tmp_path)
    tied = FAMILIES[family].tied_weights

    def change_tensors(tensors):
        untied = {k: t for k, t in tensors.items() if k not in tied}
        return untied | {k: untied[source].clone() for k, source in tied.items()} if is_present else untied

    edit_tensors(tmp_path, change_tensors)
    assert_same_outputs(load_model(tmp_path).model, hf_model)


@pytest.mark.parametrize("family,name", TIED)
def test_different_tied_weights_are_rejected(family, name, tiny_folders, tmp_path):
    save_hf_model(build_hf_model(family, name, tiny_folders), family, tiny_folders, tmp_path)
    tied, source = next(iter(FAMILIES[family].tied_weights.items()))
    edit_tensors(tmp_path, lambda t: t | {tied: t[source] + 1})
    with pytest.raises(PolysemeError, match=tied):
        load_model(tmp_path)


def test_heads_not_named_by_the_config_are_loaded(tiny_folders, tmp_path):
    """The config of bert-base-uncased has BertForMaskedLM, but its file also has the next-sentence head."""
    hf_model = build_hf_model("bert", "BertForPreTraining", tiny_folders)
    save_hf_model(hf_model, "bert", tiny_folders, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    folder = load_model(tmp_path)
    assert sorted(folder.model.heads) == ["masked", "pair"] and not folder.newly_initialized
    assert_same_outputs(folder.model, hf_model)
    save_model(tmp_path / "ours", folder.model, folder.tokenizer)
    assert json.loads((tmp_path / "ours/config.json").read_text())["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize("changes", [
    {"hidden_act": "relu"}, {"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-3}, {"type_vocab_size": 3},
    {"intermediate_size": 40}, {"vocab_size": 400}, {"dtype": "float16"},
], ids=str)  # fmt: skip
def test_other_bert_settings_match(changes, tiny_folders, tmp_path):
    hf_model = build_hf_model(
        "bert", "BertForPreTraining", tiny_folders, **{k: v for k, v in changes.items() if k != "dtype"}
    )
    if "dtype" in changes:
        hf_model = hf_model.half()
    save_hf_model(hf_model, "bert", tiny_folders, tmp_path)
    assert_same_outputs(load_model(tmp_path).model, hf_model.float())


@pytest.mark.parametrize("changes", [
    {"activation_function": "relu"}, {"activation_function": "gelu"}, {"layer_norm_epsilon": 1e-3}, {"n_inner": 40},
    {"n_inner": None},
], ids=str)  # fmt: skip
def test_other_gpt2_settings_match(changes, tiny_folders, tmp_path):
    hf_model = build_hf_model("gpt2", "GPT2LMHeadModel", tiny_folders, **changes)
    save_hf_model(hf_model, "gpt2", tiny_folders, tmp_path)
    assert_same_outputs(load_model(tmp_path).model, hf_model)


# --- strictness ------------------------------------------------------------------------------------------------------


REQUIRED_TENSORS = {
    "bert": ["bert.embeddings.word_embeddings.weight", "bert.encoder.layer.2.attention.self.key.bias",
             "bert.embeddings.token_type_embeddings.weight", "cls.predictions.bias", "cls.seq_relationship.weight"],
    "gpt2": ["transformer.wte.weight", "transformer.h.1.attn.c_attn.weight", "transformer.ln_f.bias"],
    "modernbert": ["model.embeddings.norm.weight", "model.layers.1.attn_norm.weight", "model.layers.2.mlp.Wi.weight",
               "head.dense.weight", "decoder.bias"],
    "roberta": ["roberta.embeddings.position_embeddings.weight", "lm_head.layer_norm.bias", "lm_head.bias"],
    "distilbert": ["distilbert.transformer.layer.1.attention.k_lin.bias", "vocab_projector.bias"],
    "albert": ["albert.encoder.embedding_hidden_mapping_in.weight", "predictions.dense.weight",
               "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"],
}  # fmt: skip
REQUIRED_CASES = [(f, n) for f, names in REQUIRED_TENSORS.items() for n in names]


@pytest.fixture
def copy_folder(tiny_folders, tmp_path):
    return lambda family: copy_unhashed(tiny_folders[family], tmp_path / family)


@pytest.mark.parametrize("family,name", REQUIRED_CASES)
@pytest.mark.parametrize("with_polyseme_json", [True, False], ids=["ours", "transformers"])
def test_missing_tensor_is_rejected(family, name, with_polyseme_json, copy_folder):
    folder = copy_folder(family)
    if not with_polyseme_json:
        (folder / "polyseme.json").unlink()
    edit_tensors(folder, lambda t: {k: v for k, v in t.items() if k != name})
    with pytest.raises(PolysemeError, match=name):
        load_model(folder)


@pytest.mark.parametrize("family,name", REQUIRED_CASES)
def test_tensor_of_wrong_shape_is_rejected(family, name, copy_folder):
    for change in (lambda t: t[:-1], lambda t: t.repeat(*[1] * (t.ndim - 1), 2), lambda t: t[None]):
        folder = copy_folder(family)
        edit_tensors(folder, lambda t, change=change: t | {name: change(t[name])})
        with pytest.raises(PolysemeError, match=name):
            load_model(folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize("family,name", [
    ("bert", "bert.odd"), ("bert", "bert.encoder.layer.3.output.dense.bias"), ("bert", "classifier.weight"),
    ("gpt2", "odd"), ("gpt2", "transformer.h.3.ln_1.weight"), ("gpt2", "score.weight"),
    ("modernbert", "model.layers.0.attn_norm.weight"), ("modernbert", "model.layers.1.attn.Wo.bias"),
])  # fmt: skip
def test_unexpected_tensor_is_rejected(family, name, copy_folder):
    folder = copy_folder(family)
    edit_tensors(folder, lambda t: t | {name: torch.zeros(3)})
    with pytest.raises(PolysemeError, match=name.replace(".", r"\.")):
        load_model(folder)


def test_new_heads_are_initialized_but_missing_tensors_are_rejected(tiny_folders, copy_folder):
    family_spec = FAMILIES["bert"]
    config = read_model_config(tiny_folders["bert"])[0]
    heads = {"tag": family_spec.task_head("tag", ("a", "b"), config.trunk)}
    folder = load_model(tiny_folders["bert"], heads=heads, seed=5)
    assert folder.newly_initialized == ["heads.tag.linear.bias", "heads.tag.linear.weight"]
    same_seed, other_seed = (load_model(tiny_folders["bert"], heads=heads, seed=s).model for s in (5, 6))
    name = "heads.tag.linear.weight"
    assert torch.equal(folder.model.state_dict()[name], same_seed.state_dict()[name])
    assert not torch.equal(folder.model.state_dict()[name], other_seed.state_dict()[name])
    copied = copy_folder("bert")
    edit_tensors(copied, lambda t: {k: v for k, v in t.items() if "layer.1.output" not in k})
    with pytest.raises(PolysemeError, match=r"layer\.1\.output"):
        load_model(copied, heads=heads)
