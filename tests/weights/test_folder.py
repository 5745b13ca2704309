"""The model folder, both ways: `transformers` opens what is saved here, and what it saves is opened here."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.families.family import FIXED_LABELS
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.weights.folder import load_model, read_model_config, save_model, verify_model

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

# those that read a source and a target are in tests/parity/test_t5.py and test_transformer_folder.py
PAIRED = [f.name for f in FAMILIES.values() if isinstance(f.model_config().trunk, EncoderDecoderConfig)]
ARCHITECTURES = [
    (family.name, name)
    for family in FAMILIES.values()
    for name in family.architectures
    if hasattr(transformers, name) and family.name not in PAIRED  # it has Transformer-XL no more
]
LENGTHS = (7, 3, 9)


def batch(vocab_size, family):
    generator = torch.Generator().manual_seed(4)
    layout = PackedLayout.from_lengths(LENGTHS if family != "xlnet" else (7, 7, 7))  # which pads on the left
    tokens = torch.randint(5, vocab_size, (layout.num_tokens,), generator=generator)
    segments = FAMILIES[family].model_config().trunk.num_segments
    return tokens, layout, (layout.positions > 3).long() if segments == 2 else None


def theirs_on(model, tokens, layout, segments):
    given = {"input_ids": layout.pad(tokens), "attention_mask": layout.attention_mask().long()}
    if segments is not None:
        given["token_type_ids"] = layout.pad(segments)
    if type(model).__name__.endswith("DoubleHeadsModel"):
        given["mc_token_ids"] = torch.tensor(layout.lengths) - 1
    if type(model).__name__.endswith("MultipleChoice"):  # each sequence as the one choice there is
        given = {name: value[:, None] for name, value in given.items()}
    with torch.no_grad():
        return model.eval()(**given)


def assert_same(ours, theirs, names=None):
    """Every head, or the bare states, agree to 1e-5."""
    family = ours.config.family
    tokens, layout, segments = batch(ours.config.trunk.embeddings.vocab_size, family)
    expected = theirs_on(theirs, tokens, layout, segments)
    with torch.no_grad():
        last = ours.eval().trunk(Inputs(tokens, layout, segments)).hidden
        found = {
            name: ours.predict(name, last, layout) for name in ours.heads if name in FAMILIES[family].head_weight_maps
        }
        pooled = ours.trunk.pool(last, layout)
    logits = getattr(expected, "logits", None)
    for name in names if names is not None else found:
        if name == "masked":
            wanted = layout.unpad(expected.prediction_logits if hasattr(expected, "prediction_logits") else logits)
        elif name == "pair":
            named = [n for n in ("seq_relationship_logits", "sop_logits") if hasattr(expected, n)]
            wanted = getattr(expected, named[0]) if named else logits
        elif name == "choice" and hasattr(expected, "mc_logits"):
            wanted = expected.mc_logits[:, None]
        elif name in ("next", "tag"):
            wanted = layout.unpad(logits)
        elif name == "span":
            wanted = layout.unpad(torch.stack([expected.start_logits, expected.end_logits], -1))
        else:
            wanted = logits
        torch.testing.assert_close(found[name], wanted, atol=1e-5, rtol=1e-5)
    if hasattr(expected, "last_hidden_state"):
        torch.testing.assert_close(last, layout.unpad(expected.last_hidden_state), atol=1e-5, rtol=0)
        if getattr(expected, "pooler_output", None) is not None:
            torch.testing.assert_close(pooled, expected.pooler_output, atol=1e-5, rtol=0)


def opened(cls, folder):
    """Their model, and nothing missing, unexpected or misshapen on the way."""
    model, info = cls.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    trouble = {k: v for k, v in info.items() if v}
    return model.eval(), trouble


def round_trip(model, tokenizer, folder, notes=None):
    save_model(folder, model, tokenizer, notes)
    again = load_model(folder)
    assert again.model.config == model.config and not again.newly_initialized
    before, after = model.state_dict(), again.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
    verify_model(folder)
    return again


# --- what we save ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family,name", [
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
def test_transformers_opens_ours(family, name, tiny_folders):
    folder = tiny_folders[family]
    theirs, trouble = opened(getattr(transformers, name), folder)
    assert not trouble.get("missing_keys") and not trouble.get("mismatched_keys")
    assert trouble.keys() <= {"unexpected_keys"}  # a head that this class does not have
    heads = {
        "AutoModel": [], "AutoModelForMaskedLM": ["masked"], "BertForMaskedLM": ["masked"],
        "BertForNextSentencePrediction": ["pair"],
    }  # fmt: skip
    ours = load_model(folder).model
    if "PreTraining" in name or family in ("gpt", "gpt2"):
        assert not trouble
    assert_same(ours, theirs, heads.get(name))


def test_configs_name_the_class(tiny_folders):
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
def test_auto_tokenizer(family, tiny_folders):
    theirs = transformers.AutoTokenizer.from_pretrained(tiny_folders[family])
    ours = load_model(tiny_folders[family]).tokenizer
    text = f"The unseen cat, it's 12 swans! {ours.mask_token or ''}"
    assert theirs(text)["input_ids"] == ours.build_inputs_with_special_tokens(ours.encode(text))[0]
    assert theirs.model_max_length > 0 and len(theirs) == ours.vocab_size
    for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        if (ours.mask_token and getattr(ours.special_token_ids, role) is not None) or role in ("bos", "eos"):
            assert getattr(theirs, f"{role}_token_id", None) == getattr(ours.special_token_ids, role), role


@pytest.mark.parametrize("family,name", ARCHITECTURES)
def test_our_folder_of_each_architecture(family, name, tiny_folders, tmp_path):
    """Any set of heads that a published class has is saved as that class, and it opens without a word."""
    fam, folder = FAMILIES[family], load_model(tiny_folders[family])
    trunk, known = folder.model.config.trunk, folder.model.config.heads
    labels = ("a", "b", "c")
    heads = {h: known.get(h) or fam.task_head(h, FIXED_LABELS.get(h, labels), trunk) for h in fam.architectures[name]}
    model = ModelConfig(family, trunk, heads).build(seed=3)
    randomise(model)
    save_model(tmp_path / "model", model, folder.tokenizer)
    assert json.loads((tmp_path / "model/config.json").read_text())["architectures"] == [name]
    assert not (tmp_path / "model/polyseme.safetensors").exists()
    theirs, trouble = opened(getattr(transformers, name), tmp_path / "model")
    # token classes of BERT have no pooler, which our trunk keeps; next-sentence has no other surplus
    surplus = trouble.pop("unexpected_keys", ())
    assert not trouble and all("pooler" in key for key in surplus)
    assert_same(model, theirs)
    if "classify" in heads or "tag" in heads:
        assert [theirs.config.id2label[i] for i in range(3)] == list(labels)
    again = load_model(tmp_path / "model")
    assert again.model.config == model.config and not again.newly_initialized
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in again.model.state_dict().items())


# --- what transformers saves -----------------------------------------------------------------------------------------


def randomise(model):
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def make(family, name, tiny_folders, **changes):
    config = transformers.AutoConfig.from_pretrained(tiny_folders[family])
    config.num_labels = 2 if "QuestionAnswering" in name or name.endswith("PreTraining") else 3
    config.attn_implementation = "eager"
    for key, value in changes.items():
        setattr(config, key, value)
    if family in ("gpt", "gpt2") and config.pad_token_id is None:
        config.pad_token_id = 0
    model = getattr(transformers, name)(config).eval()
    randomise(model)
    return model


def save(model, family, tiny_folders, folder, **options):
    """As their users do it: model and tokenizer in one folder."""
    model.save_pretrained(folder, **options)
    transformers.AutoTokenizer.from_pretrained(tiny_folders[family]).save_pretrained(folder)
    return folder


def edit(folder, change):
    tensors = change(load_file(folder / "model.safetensors"))
    save_file({k: t.clone().contiguous() for k, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("family,name", ARCHITECTURES)
@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "sharded"])
def test_we_open_theirs(family, name, sharded, tiny_folders, tmp_path):
    theirs = make(family, name, tiny_folders)
    save(theirs, family, tiny_folders, tmp_path, **({"max_shard_size": "20KB"} if sharded else {}))
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == sharded
    found = load_model(tmp_path)
    assert tuple(found.model.heads) == FAMILIES[family].architectures[name]
    # the classes that train no pooler have none to give: it is new, and named as such
    assert all(n.startswith("trunk.pooler.") for n in found.newly_initialized)
    ours = any(n.startswith("trunk.pooler.") for n in found.model.state_dict())
    assert bool(found.newly_initialized) == (ours and not any("pooler" in n for n in theirs.state_dict()))
    assert_same(found.model, theirs)
    verify_model(tmp_path)
    save_model(tmp_path / "ours", found.model, found.tokenizer)
    again, trouble = opened(getattr(transformers, name), tmp_path / "ours")
    assert not trouble.get("missing_keys") and not trouble.get("mismatched_keys")
    assert_same(found.model, again)


@pytest.mark.parametrize("said", [{"problem_type": "regression"}, {}], ids=["said", "unsaid"])
@pytest.mark.parametrize("family,name", [a for a in ARCHITECTURES if "classify" in FAMILIES[a[0]].architectures[a[1]]])
def test_a_number_there_and_back(family, name, said, tiny_folders, tmp_path):
    """A class of texts with one output is a regression, whether its config says so or not."""
    theirs = make(family, name, tiny_folders, num_labels=1, **said)
    save(theirs, family, tiny_folders, tmp_path)
    found = load_model(tmp_path)
    assert found.model.config.heads["classify"].labels == ()
    assert all(n.startswith("trunk.pooler.") for n in found.newly_initialized)  # a pooler that this class has not
    assert_same(found.model, theirs)
    save_model(tmp_path / "ours", found.model, found.tokenizer)
    again, trouble = opened(getattr(transformers, name), tmp_path / "ours")
    assert not trouble.keys() - {"unexpected_keys"}
    assert (again.config.num_labels, again.config.problem_type) == (1, "regression")
    assert_same(found.model, again)
    assert load_model(tmp_path / "ours").model.config == found.model.config


def test_a_regression_with_several_outputs_is_refused(tiny_folders, tmp_path):
    save(
        make("bert", "BertForSequenceClassification", tiny_folders, problem_type="regression"),
        "bert",
        tiny_folders,
        tmp_path,
    )
    with pytest.raises(PolysemeError, match="a regression with 3 outputs"):
        load_model(tmp_path)


@pytest.mark.parametrize("family,name", ARCHITECTURES)
def test_with_and_without_the_base_prefix(family, name, tiny_folders, tmp_path):
    theirs = make(family, name, tiny_folders)
    save(theirs, family, tiny_folders, tmp_path)
    prefix = FAMILIES[family].base_model_prefix

    def turn(tensors):
        if not FAMILIES[family].architectures[name]:
            return {prefix + k: t for k, t in tensors.items()}
        return {k.removeprefix(prefix): t for k, t in tensors.items()}

    edit(tmp_path, turn)
    assert_same(load_model(tmp_path).model, theirs)


def test_old_norm_names(tiny_folders, tmp_path):
    theirs = make("bert", "BertForPreTraining", tiny_folders)
    save(theirs, "bert", tiny_folders, tmp_path)

    def old(tensors):
        ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        found = {}
        for key, tensor in tensors.items():
            for new, was in ends.items():
                key = key.removesuffix(new) + was if key.endswith(new) else key
            found[key] = tensor
        assert any(k.endswith("gamma") for k in found)
        return found

    edit(tmp_path, old)
    assert_same(load_model(tmp_path).model, theirs)


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
@pytest.mark.parametrize("present", [True, False], ids=["present", "absent"])
def test_tied_weights(family, name, present, tiny_folders, tmp_path):
    theirs = make(family, name, tiny_folders)
    save(theirs, family, tiny_folders, tmp_path)
    tied = FAMILIES[family].tied_weights

    def change(tensors):
        found = {k: t for k, t in tensors.items() if k not in tied}
        return found | {k: found[source].clone() for k, source in tied.items()} if present else found

    edit(tmp_path, change)
    assert_same(load_model(tmp_path).model, theirs)


@pytest.mark.parametrize("family,name", TIED)
def test_tied_weights_that_differ(family, name, tiny_folders, tmp_path):
    save(make(family, name, tiny_folders), family, tiny_folders, tmp_path)
    tied, source = next(iter(FAMILIES[family].tied_weights.items()))
    edit(tmp_path, lambda t: t | {tied: t[source] + 1})
    with pytest.raises(PolysemeError, match=tied):
        load_model(tmp_path)


def test_a_config_that_names_fewer_heads_than_there_are(tiny_folders, tmp_path):
    """bert-base-uncased as published: its config says BertForMaskedLM, its file has the next-sentence head too."""
    theirs = make("bert", "BertForPreTraining", tiny_folders)
    save(theirs, "bert", tiny_folders, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    found = load_model(tmp_path)
    assert sorted(found.model.heads) == ["masked", "pair"] and not found.newly_initialized
    assert_same(found.model, theirs)
    save_model(tmp_path / "ours", found.model, found.tokenizer)
    assert json.loads((tmp_path / "ours/config.json").read_text())["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize("changes", [
    {"hidden_act": "relu"}, {"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-3}, {"type_vocab_size": 3},
    {"intermediate_size": 40}, {"vocab_size": 400}, {"dtype": "float16"},
], ids=str)  # fmt: skip
def test_other_settings_of_bert(changes, tiny_folders, tmp_path):
    theirs = make("bert", "BertForPreTraining", tiny_folders, **{k: v for k, v in changes.items() if k != "dtype"})
    if "dtype" in changes:
        theirs = theirs.half()
    save(theirs, "bert", tiny_folders, tmp_path)
    assert_same(load_model(tmp_path).model, theirs.float())


@pytest.mark.parametrize("changes", [
    {"activation_function": "relu"}, {"activation_function": "gelu"}, {"layer_norm_epsilon": 1e-3}, {"n_inner": 40},
    {"n_inner": None},
], ids=str)  # fmt: skip
def test_other_settings_of_gpt2(changes, tiny_folders, tmp_path):
    theirs = make("gpt2", "GPT2LMHeadModel", tiny_folders, **changes)
    save(theirs, "gpt2", tiny_folders, tmp_path)
    assert_same(load_model(tmp_path).model, theirs)


# --- strictness ------------------------------------------------------------------------------------------------------


EVERY = {
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
CASES = [(f, n) for f, names in EVERY.items() for n in names]


@pytest.fixture
def copy(tiny_folders, tmp_path):
    return lambda family: shutil.copytree(tiny_folders[family], tmp_path / family)


@pytest.mark.parametrize("family,name", CASES)
@pytest.mark.parametrize("known", [True, False], ids=["ours", "theirs"])
def test_a_missing_tensor_is_named(family, name, known, copy):
    folder = copy(family)
    if not known:
        (folder / "polyseme.json").unlink()
    edit(folder, lambda t: {k: v for k, v in t.items() if k != name})
    with pytest.raises(PolysemeError, match=name):
        load_model(folder)


@pytest.mark.parametrize("family,name", CASES)
def test_a_misshapen_tensor_is_named(family, name, copy):
    for change in (lambda t: t[:-1], lambda t: t.repeat(*[1] * (t.ndim - 1), 2), lambda t: t[None]):
        folder = copy(family)
        edit(folder, lambda t, change=change: t | {name: change(t[name])})
        with pytest.raises(PolysemeError, match=name):
            load_model(folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize("family,name", [
    ("bert", "bert.odd"), ("bert", "bert.encoder.layer.3.output.dense.bias"), ("bert", "classifier.weight"),
    ("gpt2", "odd"), ("gpt2", "transformer.h.3.ln_1.weight"), ("gpt2", "score.weight"),
    ("modernbert", "model.layers.0.attn_norm.weight"), ("modernbert", "model.layers.1.attn.Wo.bias"),
])  # fmt: skip
def test_an_extra_tensor_is_named(family, name, copy):
    folder = copy(family)
    edit(folder, lambda t: t | {name: torch.zeros(3)})
    with pytest.raises(PolysemeError, match=name.replace(".", r"\.")):
        load_model(folder)


def test_new_heads_are_named_and_nothing_else_is_forgiven(tiny_folders, copy):
    fam = FAMILIES["bert"]
    spec = read_model_config(tiny_folders["bert"])[0]
    heads = {"tag": fam.task_head("tag", ("a", "b"), spec.trunk)}
    found = load_model(tiny_folders["bert"], heads=heads, seed=5)
    assert found.newly_initialized == ["heads.tag.linear.bias", "heads.tag.linear.weight"]
    again, other = (load_model(tiny_folders["bert"], heads=heads, seed=s).model for s in (5, 6))
    name = "heads.tag.linear.weight"
    assert torch.equal(found.model.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(found.model.state_dict()[name], other.state_dict()[name])
    folder = copy("bert")
    edit(folder, lambda t: {k: v for k, v in t.items() if "layer.1.output" not in k})
    with pytest.raises(PolysemeError, match=r"layer\.1\.output"):
        load_model(folder, heads=heads)
