"""The commands with an encoder-decoder, and the errors of commands that it does not support."""

import json

import numpy as np
import pytest
import torch

import polyseme
from tests.support.commands import run_cli
from tests.support.project import tiny_recipe
from tests.support.text import documents, task_rows


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents()) + "\n")
    options = ("--kind", "unigram", "--vocab-size", 200, "--num-sentinels", 20)
    run_cli("tokenizer", "train", text, *options, "--out", folder / "tok")
    run_cli("prepare", text, "--tokenizer", folder / "tok", "--out", folder / "corpus", "--split", "blank")
    (folder / "t5.json").write_text(json.dumps(tiny_recipe("t5", objective={"kind": "SpanCorruption"})))
    said = run_cli("pretrain", folder / "t5.json", "--corpus", folder / "corpus", "--out", folder / "run")
    assert "valid next:" in said
    return folder


def test_tokenizer_ends_with_sentinels(made):
    from polyseme.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(made / "tok")
    assert tokenizer.sentinel_ids == tuple(range(tokenizer.vocab_size - 1, tokenizer.vocab_size - 21, -1))
    marks = tokenizer.special_token_ids
    assert (marks.pad, marks.eos, marks.unk) == (0, 1, 2) and marks.bos is marks.mask is None
    assert tokenizer.build_inputs_with_special_tokens([7, 8], [9])[0] == [7, 8, 1, 9, 1]
    assert tokenizer.encode("cat <extra_id_3> dog").count(tokenizer.sentinel_ids[3]) == 1
    assert not set(tokenizer.encode_corpus(["cat <extra_id_3> </s> dog"]).ids) & set(tokenizer.sentinel_ids)


def test_transformers_opens_the_folder(made):
    transformers = pytest.importorskip("transformers")
    theirs, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(made / "run/model", output_loading_info=True)
    assert not any(info.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(made / "run/model")
    model = polyseme.load(made / "run/model", device="cpu")
    text = "the old cat <extra_id_0> the dog."
    assert tokenizer(text)["input_ids"] == model.encode(text).input_ids
    states = theirs.get_encoder()(**tokenizer("the old cat sees the dog.", return_tensors="pt")).last_hidden_state[0]
    (found,) = model.embed(["the old cat sees the dog."], granularity="token")
    np.testing.assert_allclose(found, states.detach().numpy(), atol=1e-5)


def test_attention_of_the_encoder(made):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.T5EncoderModel.from_pretrained(made / "run/model", attn_implementation="eager").eval()
    model = polyseme.load(made / "run/model", device="cpu")
    attention = model.attention("the old cat sees the dog.")["encoder"]
    maps = attention.weights
    ids = torch.tensor([model.encode("the old cat sees the dog.").input_ids])
    with torch.no_grad():
        expected = torch.cat(theirs(input_ids=ids, output_attentions=True).attentions).numpy()
    assert len(attention.keys) == maps.shape[-1] and maps.sum(-1) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(maps, expected, atol=1e-5)


def test_vectors_and_a_task(made, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat\nthe old dog sees the fish\n")
    run_cli("embed", made / "run/model", "--data", tmp_path / "texts.txt", "--out", tmp_path / "vectors.npz")
    assert np.load(tmp_path / "vectors.npz")["vectors"].shape == (2, 32)
    for name, seed in (("train", 0), ("dev", 1)):
        (tmp_path / f"{name}.tsv").write_text(task_rows("classification", 12, seed))
    files = ("--train", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv", "--out", tmp_path / "task")
    run_cli("finetune", made / "run/model", "--task", "classification", *files, "--set", "steps=1", "--set",
         "truncate=true")  # fmt: skip
    assert json.loads((tmp_path / "task/model/config.json").read_text())["architectures"] == [
        "T5ForConditionalGeneration"
    ]
    assert not (tmp_path / "task/model/polyseme.safetensors").exists()  # it answers in text: there is no new head
    said = run_cli("evaluate", tmp_path / "task/model", "--data", tmp_path / "dev.tsv")
    assert "accuracy" in said
    run_cli("predict", tmp_path / "task/model", "--data", tmp_path / "dev.tsv", "--out", tmp_path / "said.jsonl")
    labels = set(json.loads((tmp_path / "task/model/polyseme.json").read_text())["metadata"]["task"]["labels"])
    assert {json.loads(line)["prediction"] for line in (tmp_path / "said.jsonl").read_text().splitlines()} <= labels


@pytest.mark.parametrize("family,objective,match", [
    ("t5", "CausalLM", "t5 is an encoder-decoder, and CausalLM has no source for it"),
    ("gpt2", "SpanCorruption", "SpanCorruption needs an encoder-decoder, and gpt2 is none"),
    ("t5", "MaskedLM", "needs a head 'masked', which t5 does not have"),
])  # fmt: skip
def test_incompatible_objectives(family, objective, match, made, rejects, tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps(tiny_recipe(family, objective={"kind": objective})))
    rejects("pretrain", tmp_path / "recipe.json", "--corpus", made / "corpus", "--out", tmp_path / "run", match=match)


def test_unsupported_commands(made, rejects, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat\n")
    folder = made / "run/model"
    rejects(
        "score", folder, "--last-words", tmp_path / "texts.txt", match="cannot predict last words: it is a t5 model"
    )
    rejects("fill", folder, "the [MASK]", match="cannot fill masks: it is a t5 model")
    rejects(
        "next", folder, "the cat", "the dog", match="cannot predict whether one text follows another: it is a t5 model"
    )
    objective = {"kind": "SpanCorruption", "mean_span_length": 1.0, "noise_density": 0.5}
    few = json.dumps(tiny_recipe("t5", objective=objective, max_len=64) | {
        "model": {"num_layers": 1, "dim": 8, "num_heads": 1, "max_len": 64}
    })  # fmt: skip
    (tmp_path / "few.json").write_text(few)
    rejects(
        "pretrain", tmp_path / "few.json", "--corpus", made / "corpus", "--out", tmp_path / "run", match="sentinels"
    )
    options = ("--kind", "unigram", "--vocab-size", 90, "--num-sentinels", 100, "--out", tmp_path / "tok")
    rejects("tokenizer", "train", tmp_path / "texts.txt", *options, match="too small for 100 sentinel tokens")
