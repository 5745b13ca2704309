"""BERT read left to right (Devlin et al. 2019, §5.1), and BERT with `is_decoder` in `transformers`."""

import json
import re

import numpy as np
import pytest
import torch

from polyseme import load
from polyseme.errors import ConfigError, ModelError
from polyseme.families import FAMILIES
from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import Inputs
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.recipes import RECIPES
from polyseme.weights.folder import load_model, save_model
from tests.support.hf_models import build_hf_model, convert_model, load_hf_model, make_batch, randomize, save_hf_model

transformers = pytest.importorskip("transformers")
BERT = FAMILIES["bert"]


@pytest.mark.parametrize(
    "name,head",
    [("BertLMHeadModel", "next"), ("BertForTokenClassification", "tag"), ("BertForQuestionAnswering", "span")],
)
def test_states_and_heads_match(name, head, tiny_folders):
    hf_model = build_hf_model("bert", name, tiny_folders, is_decoder=True).double()
    model = convert_model(hf_model, "bert", (head,), ("a", "b", "c")).double()
    assert model.config.trunk.causal
    tokens, layout, segments = make_batch(model.config.trunk.embeddings.vocab_size, "bert")
    inputs = {"input_ids": layout.pad(tokens), "token_type_ids": layout.pad(segments)}
    with torch.no_grad():
        expected = hf_model(**inputs, attention_mask=layout.attention_mask().long(), output_hidden_states=True)
        hidden = model.trunk(Inputs(tokens, layout, segments)).hidden
        scores = model.predict(head, hidden, layout)
    torch.testing.assert_close(hidden, layout.unpad(expected.hidden_states[-1]), atol=1e-10, rtol=0)
    logits = torch.stack([expected.start_logits, expected.end_logits], -1) if head == "span" else expected.logits
    torch.testing.assert_close(scores, layout.unpad(logits), atol=1e-10, rtol=0)


@pytest.fixture
def causal_folder(tiny_folders, tmp_path):
    """Write a causal BERT with random weights."""
    bert = load_model(tiny_folders["bert"])
    trunk = bert.model.config.trunk
    sizes = {"num_layers": 2, "dim": 16, "num_heads": 2, "vocab_size": trunk.embeddings.vocab_size, "max_len": 32}
    model = randomize(BERT.model_config(causal=True, **sizes).build(seed=1))
    save_model(tmp_path / "causal", model, bert.tokenizer)
    return tmp_path / "causal"


def test_a_saved_model_opens_as_its_class_and_generates_the_same(causal_folder):
    hf_config = json.loads((causal_folder / "config.json").read_text())
    assert (hf_config["architectures"], hf_config["is_decoder"]) == (["BertLMHeadModel"], True)
    hf_model, problems = load_hf_model(transformers.AutoModelForCausalLM, causal_folder)
    assert all("pooler" in key for key in problems.pop("unexpected_keys", ())) and not problems
    model = load(causal_folder)
    ids = [model.tokenizer.special_token_ids.cls, *model.tokenizer.encode("the cat")]
    (text,) = model.generate("the cat", max_new_tokens=6, num_beams=1)
    special = model.tokenizer.special_token_ids
    hf_ids = hf_model.generate(
        torch.tensor([ids]), max_new_tokens=6, do_sample=False, eos_token_id=special.sep, pad_token_id=special.pad,
        suppress_tokens=sorted(model.tokenizer.all_special_ids - {special.sep}),
    )  # fmt: skip
    assert [i for i in hf_ids[0, len(ids) :].tolist() if i != special.sep] == list(text.tokens)


def test_the_code_on_its_card_runs(causal_folder, monkeypatch):
    monkeypatch.chdir(causal_folder.parent)
    blocks = re.findall(r"```python\n(.*?)```", (causal_folder / "README.md").read_text(), re.DOTALL)
    assert "AutoModelForCausalLM" in blocks[-1] and "generate" in blocks[0]
    for code in blocks:
        exec(code, {})


def test_scores_are_log_likelihoods_after_the_start_token(causal_folder):
    model = load(causal_folder)
    assert "score" in model.capabilities and "generate" in model.capabilities and not model.has_pll_metric
    hf_model, _ = load_hf_model(transformers.BertLMHeadModel, causal_folder)
    ids = torch.tensor([model.tokenizer.special_token_ids.cls, *model.tokenizer.encode("the cat sat")])
    with torch.no_grad():
        log_probs = hf_model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])
    np.testing.assert_allclose(model.score("the cat sat").log_prob, log_probs.sum().item(), atol=1e-4)


def test_pooled_heads_stay_out_of_the_published_weights(causal_folder, tmp_path):
    """`transformers` pools BERT at its first token, so it has no class for these."""
    folder = load_model(causal_folder)
    trunk = folder.model.config.trunk
    model = ModelConfig("bert", trunk, {"classify": BERT.task_head("classify", ("a", "b"), trunk)}).build(seed=2)
    save_model(tmp_path / "task", model, folder.tokenizer)
    assert json.loads((tmp_path / "task/config.json").read_text())["architectures"] == ["BertModel"]
    assert (tmp_path / "task/polyseme.safetensors").exists()
    _, problems = load_hf_model(transformers.AutoModel, tmp_path / "task")
    assert not problems
    reloaded = load_model(tmp_path / "task").model
    assert reloaded.config == model.config and reloaded.config.trunk.pooler.pooling == "last"
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in reloaded.state_dict().items())


@pytest.mark.parametrize("name,is_decoder", [("BertForSequenceClassification", True), ("BertForMaskedLM", True),
                                             ("BertLMHeadModel", False)])  # fmt: skip
def test_classes_that_compute_something_else_are_rejected(name, is_decoder, tiny_folders, tmp_path):
    save_hf_model(build_hf_model("bert", name, tiny_folders, is_decoder=is_decoder), "bert", tiny_folders, tmp_path)
    with pytest.raises(ModelError, match=f"directional architecture '{name}'|causal architecture '{name}'"):
        load_model(tmp_path)


def test_objectives_that_do_not_fit_are_rejected():
    causal, bert = RECIPES["bert-tiny"]().replace(model={"causal": True}), RECIPES["bert-tiny"]()
    with pytest.raises(ConfigError, match=r"MaskedLM needs a trunk that reads both sides .* CausalLM"):
        causal.replace(objective=MaskedLM()).model_config(99)
    with pytest.raises(ConfigError, match=r"CausalLM needs a causal trunk, .* model\.causal=true"):
        bert.replace(objective=CausalLM()).model_config(99)
    assert list(causal.replace(objective=CausalLM()).model_config(99).heads) == ["next"]
