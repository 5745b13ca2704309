"""A hybrid model (GPT-BERT): causal scores and text, pseudo-log-likelihoods on request, gaps and tasks in both ways."""

import json

import numpy as np
import pytest
import torch

from polyseme import load
from polyseme.datasets.minimal_pairs import MinimalPair
from polyseme.errors import ConfigError
from polyseme.evaluation.minimal_pairs import evaluate_minimal_pairs
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.finetune import load_for_tasks
from polyseme.generation.sample import generate_tokens
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.tasks import TASKS
from tests.support.small_models import save_small_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("hybrid") / "model", "gpt-bert")


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


def log_probs(model, ids, causal):
    layout = PackedLayout.from_lengths([len(ids)])
    hidden = model.model.trunk(Inputs(torch.tensor(ids), layout.as_causal() if causal else layout)).hidden
    return model.model.predict("next", hidden, layout).log_softmax(-1)


@torch.no_grad()
def test_scores(model):
    text, special = "the cat sat on the mat", model.tokenizer.special_token_ids
    ids = [special.cls, *model.tokenizer.encode(text)]
    causal = log_probs(model, ids, True)[:-1].gather(1, torch.tensor(ids)[1:, None]).sum()
    assert not model.has_pll_metric and model.supports_pll_metric
    np.testing.assert_allclose(model.score(text).log_prob, causal.item(), rtol=1e-5)
    pseudo = 0.0
    for i in range(1, len(ids)):
        masked = [*ids[:i], special.mask, *ids[i + 1 :], special.sep]
        pseudo += log_probs(model, masked, False)[i - 1, ids[i]].item()
    np.testing.assert_allclose(model.score(text, pll_metric="original").log_prob, pseudo, rtol=1e-5)
    assert model.score(text).num_tokens == model.score(text, pll_metric="original").num_tokens == len(ids) - 1


def test_minimal_pairs_in_both_ways(model):
    pairs = [MinimalPair("the cat sat", "the cats sat", "a", ""), MinimalPair("a dog ran", "a dogs ran", "a", "")]
    for metric in (None, "original"):
        expected = np.mean([model.score(p.good, metric).log_prob > model.score(p.bad, metric).log_prob for p in pairs])
        assert evaluate_minimal_pairs(model, pairs, metric).accuracy == expected


@torch.no_grad()
def test_gaps_are_filled_in_both_directions(model):
    special = model.tokenizer.special_token_ids
    (gap,) = model.fill("the [MASK] sat", top_k=2)
    before, after = model.tokenizer.encode("the"), model.tokenizer.encode("sat")
    ids = [special.cls, *before, special.mask, *after, special.sep]
    probs = log_probs(model, ids, False)[len(before)].exp()
    np.testing.assert_allclose([g.probability for g in gap], probs.topk(2).values, rtol=1e-4)


def test_generation_with_and_without_a_cache(model):
    prompts = [[model.tokenizer.special_token_ids.cls, 7, 8, 9], [model.tokenizer.special_token_ids.cls, 11]]
    with_cache, without = (generate_tokens(model.model, prompts, 8, use_cache=use) for use in (True, False))
    assert [list(h.tokens) for h in with_cache] == [list(h.tokens) for h in without]
    assert "generate" in model.capabilities and model.generate("the cat", max_new_tokens=4)[0].text is not None


@torch.no_grad()
def test_a_task_reads_in_both_directions(folder):
    task = TASKS["tagging"](labels=("O", "B-X"))
    tuned = load_for_tasks(folder, [task], FinetuneConfig(), 0, False)
    tags = []
    for last in (7, 8):
        layout = PackedLayout.from_lengths([4])
        tags.append(
            tuned.model.predict("tag", tuned.model.trunk(Inputs(torch.tensor([2, 5, 6, last]), layout)).hidden, layout)
        )
    assert (tags[0][0] != tags[1][0]).any()
    with pytest.raises(ConfigError, match="lm_loss_weight is for a causal language model, which gpt-bert is not"):
        load_for_tasks(folder, [task], FinetuneConfig(lm_loss_weight=0.5), 0, False)


@torch.no_grad()
def test_transformers_opens_the_trunk_as_modernbert(folder, model):
    transformers = pytest.importorskip("transformers")
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("modernbert", ["ModernBertModel"])
    hf_model, info = transformers.AutoModel.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values())
    ids = torch.tensor([2, 7, 8, 9, 3])
    hidden = model.model.trunk(Inputs(ids, PackedLayout.from_lengths([5]))).hidden
    torch.testing.assert_close(hf_model.eval()(ids[None]).last_hidden_state[0], hidden, atol=1e-5, rtol=0)
    card = (folder / "README.md").read_text()
    assert "does not read `polyseme.safetensors`" in card
