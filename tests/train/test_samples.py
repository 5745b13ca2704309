"""Samples drawn at each validation of a run: prompts, contents, the same weights with and without them."""

import json
import re
from pathlib import Path

import pytest
import torch

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.store import Corpus
from polyseme.nn.model import Model
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import pretrain as module
from polyseme.train.monitoring.samples import HeldOutSamples, nearest_tokens
from polyseme.train.pretrain import pretrain
from tests.support.runs import checkpoint_tensors, tiny_recipe
from tests.support.text import documents


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("samples")
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents(60)))
    for family, kind in (("bert", "wordpiece"), ("gpt2", "bpe")):
        tokenizer = Tokenizer.train(kind, iter(documents(60)), 320)
        config = PrepareConfig(num_workers=1, dedup="none", shard_characters=8000)
        prepare([f"{text}::split=blank"], tokenizer, folder / family, config)
    return {family: folder / family for family in ("bert", "gpt2")}


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_samples_change_no_bit(family, corpora, tmp_path, monkeypatch):
    recipe = tiny_recipe(family)
    pretrain(recipe, corpora[family], tmp_path / "with")
    rows = [json.loads(line) for line in (tmp_path / "with/samples.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4, 8, 9] and all(len(row["samples"]) == 4 for row in rows)
    prompts = [[sample["prompt"] for sample in row["samples"]] for row in rows]
    assert prompts[0] == prompts[1] == prompts[2] and len(set(prompts[0])) > 1
    for sample in rows[-1]["samples"]:
        if family == "bert":
            assert sample["prompt"].count("[MASK]") == 1 and sample["answer"].isalpha() and len(sample["guesses"]) == 3
            probs = [probability for _, probability in sample["guesses"]]
            assert probs == sorted(probs, reverse=True) and 0 < sample["answer_probability"] <= probs[0]
        else:
            assert sample["prompt"] and sample["continuation"] and "<|endoftext|>" not in sample["continuation"]
    page = (tmp_path / "with/report.html").read_text()
    assert "What the model writes" in page and rows[-1]["samples"][0]["prompt"] in page
    monkeypatch.setattr(module.HeldOutSamples, "open", lambda *args: None)
    pretrain(recipe, corpora[family], tmp_path / "without")
    assert not (tmp_path / "without/samples.jsonl").exists()
    first, second = (checkpoint_tensors(tmp_path / name) for name in ("with", "without"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_prompts_need_held_out_text_and_a_language_model(corpora, tmp_path):
    corpus, tokenizer = Corpus.open(corpora["bert"]), Tokenizer.load(corpora["bert"] / "tokenizer")
    recipe = tiny_recipe("bert")
    config = recipe.model_config(tokenizer.vocab_size)
    assert HeldOutSamples.open(tmp_path, config, tokenizer, None, 32) is None
    builder = type("Builder", (), {"corpus": corpus})()
    samples = HeldOutSamples.open(tmp_path, config, tokenizer, builder, 32)
    assert len(samples.prompts) == 4 and all(len(prompt) <= 32 for prompt in samples.prompts)
    pair_only = config.replace(heads={"pair": config.heads["pair"]})
    assert HeldOutSamples.open(tmp_path, pair_only, tokenizer, builder, 32) is None
    samples.path.write_text('{"step": 4}\n{"step": 8}\n{"ste')
    samples.truncate(4)
    assert samples.path.read_text() == '{"step": 4}\n'


def test_nearest_tokens(corpora):
    corpus, tokenizer = Corpus.open(corpora["bert"]), Tokenizer.load(corpora["bert"] / "tokenizer")
    model: Model = tiny_recipe("bert").model_config(tokenizer.vocab_size).build(0)
    rows = nearest_tokens(model, tokenizer, corpus)
    text = " ".join(documents(60)).lower()
    assert rows and len({row["token"] for row in rows}) == len(rows)
    first, (neighbor, _) = rows[0], rows[0]["neighbors"][-1]
    ids = [tokenizer.vocabulary.index(word) for word in (first["token"], neighbor)]
    assert first["count"] == len(re.findall(rf"\b{first['token']}\b", text)) >= 10
    with torch.no_grad():
        model.trunk.token_embeddings[ids[1]] = 2 * model.trunk.token_embeddings[ids[0]]
    assert nearest_tokens(model, tokenizer, corpus)[0]["neighbors"][0] == (neighbor, 1.0)
