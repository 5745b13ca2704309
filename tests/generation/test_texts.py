"""Texts that models write: the library and the command, over every family that can."""

import json
import re

import numpy as np
import pytest

import polyseme
from polyseme.errors import ConfigError, PolysemeError
from polyseme.generation.config import GenerationConfig
from polyseme.generation.text import TextGenerator, decode_continuation

WRITERS = ("gpt", "gpt2", "transformer_xl", "xlnet", "t5", "transformer", "seq2seq")
PROMPT = "The old cat sees"


@pytest.mark.parametrize("family", WRITERS)
def test_texts_of_every_family(family, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    search = GenerationConfig(12)
    (plain,) = model.generate(PROMPT, search)
    assert 0 < len(plain.tokens) <= 12 and plain.score < 0
    assert "".join(model.stream(PROMPT, search)) == plain.text
    drawn = model.generate([PROMPT, "The dog"], GenerationConfig(12, do_sample=True, seed=5, num_return_sequences=2))
    assert [len(each) for each in drawn] == [2, 2] and drawn[0][0].text != drawn[0][1].text
    alone = model.generate("The dog", GenerationConfig(12, do_sample=True, seed=5))
    assert alone[0].text == drawn[1][0].text
    beams = model.generate(PROMPT, GenerationConfig(8, num_beams=3, num_return_sequences=3, length_penalty=0.0))
    assert [b.score for b in beams] == sorted((b.score for b in beams), reverse=True)
    marks = model.tokenizer.all_special_ids - set(model.tokenizer.sentinel_ids)
    assert not any(marks & set(text.tokens) for text in (*drawn[0], *drawn[1], *beams))


def test_against_generate_on_the_same_folder(tiny_folders):
    transformers = pytest.importorskip("transformers")
    import torch

    model = polyseme.load(tiny_folders["gpt2"], device="cpu")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tiny_folders["gpt2"]).eval()
    ids = torch.tensor([[*model.bos_ids, *model.tokenizer.encode(PROMPT)]])
    for ours, how in (
        (GenerationConfig(15), {}),
        (GenerationConfig(15, num_beams=4), {"num_beams": 4, "early_stopping": "never"}),
    ):
        out = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=15, do_sample=False, **how)
        expected = [t for t in out[0, ids.shape[1] :].tolist() if t != model.tokenizer.special_token_ids.eos]
        assert list(model.generate(PROMPT, ours)[0].tokens) == expected
    seq2seq = polyseme.load(tiny_folders["t5"], device="cpu")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tiny_folders["t5"]).eval()
    ids = torch.tensor([seq2seq.encode(PROMPT).input_ids])
    out = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=15, do_sample=False)
    expected = [t for t in out[0, 1:].tolist() if t != seq2seq.tokenizer.special_token_ids.eos]
    assert list(seq2seq.generate(PROMPT, GenerationConfig(15))[0].tokens) == expected


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_prefix_is_how_the_text_begins(family, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    (found,) = model.generate(PROMPT, GenerationConfig(10), prefix=" the grey")
    writer = TextGenerator.from_folder(model.folder)
    beginnings, sources = writer.encode_inputs([PROMPT], " the grey")
    assert beginnings[0][-len(model.tokenizer.encode(" the grey")) :] == model.tokenizer.encode(" the grey")
    (again,) = writer.search(beginnings, sources, GenerationConfig(10))
    assert again.hypotheses[0].tokens == found.tokens
    if family == "gpt2":
        assert model.generate(PROMPT + " the grey", GenerationConfig(10))[0].tokens == found.tokens


def test_characters_of_several_bytes_come_whole(tiny_folders):
    tokenizer = polyseme.load(tiny_folders["gpt2"], device="cpu").tokenizer
    ids = tokenizer.encode("the cat’s äö 猫")
    for n in range(1, len(ids)):
        assert tokenizer.decode(ids[:n]) + decode_continuation(
            tokenizer, ids[:n], ids[n:]
        ) == "the cat’s äö 猫" or "\ufffd" in (tokenizer.decode(ids[:n]))


def test_the_command(project, run_cli, rejects, tmp_path):
    model = project / "run-gpt2/model"
    said = run_cli("generate", model, "--prompt", "The old", "--max-new-tokens", 8)
    assert said.startswith("The old") and said.endswith("\n")
    opened = polyseme.load(model, device="cpu")
    assert said.rstrip("\n") == ("The old" + opened.generate("The old", GenerationConfig(8))[0].text).rstrip("\n")
    sampled = ("--do-sample", "--seed", 3, "--max-new-tokens", 9)
    once, again = (run_cli("generate", model, "--prompt", "The", *sampled) for _ in range(2))
    assert once == again
    beams = ("--num-beams", 3, "--num-return-sequences", 2, "--max-new-tokens", 5)
    rows = run_cli("generate", model, "--prompt", "The", *beams, "--json").splitlines()
    assert len(rows) == 2 and json.loads(rows[0])["log_prob"] <= 0
    (tmp_path / "p.txt").write_text("The cat\nThe dog\n")
    assert (
        len(run_cli("generate", model, "--data", tmp_path / "p.txt", "--max-new-tokens", 3, "--json").splitlines()) == 2
    )
    rejects("generate", model, match="--prompt")
    rejects("generate", model, "--prompt", "The", "--max-new-tokens", 33, match=["has 32 positions", "33 new ones"])
    rejects("generate", model, "--prompt", "The", "--top-p", 1.5, match="top_p is 1.5")
    rejects("generate", model, "--prompt", "The", "--num-beams", 2, "--do-sample", match="does not sample")
    beams = ("--num-beams", 2, "--num-return-sequences", 3)
    rejects("generate", model, "--prompt", "The", *beams, match="num_return_sequences is 3")
    rejects("generate", project / "run-bert/model", "--prompt", "The", match="cannot generate text")


def test_prompts_that_cannot_be(tiny_folders):
    gpt = polyseme.load(tiny_folders["gpt"], device="cpu")
    if not gpt.bos_ids:
        with pytest.raises(PolysemeError, match="prompt is empty"):
            gpt.generate("")
    with pytest.raises(PolysemeError, match="num_return_sequences is 0, expected 1 or more"):
        GenerationConfig(num_return_sequences=0)
    with pytest.raises(PolysemeError, match="without a source"):
        gpt.generate("The", GenerationConfig(0))
    with pytest.raises(PolysemeError, match="can be streamed"):
        list(gpt.stream("The", GenerationConfig(4, num_beams=2)))
    assert gpt.generate([], GenerationConfig(3)) == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_new_tokens", 2.5, "an integer"),
        ("max_new_tokens", True, "an integer"),
        ("top_k", None, "an integer"),
        ("num_beams", "4", "an integer"),
        ("num_return_sequences", [2], "an integer"),
        ("seed", 1.0, "an integer"),
        ("temperature", "hot", "a number"),
        ("temperature", None, "a number"),
        ("top_p", b"1", "a number"),
        ("length_penalty", None, "a number"),
        ("do_sample", "no", "True or False"),
        ("do_sample", 1, "True or False"),
    ],
)
def test_options_of_the_wrong_type(tiny_folders, name, value, expected):
    model = polyseme.load(tiny_folders["gpt2"], device="cpu")
    message = re.escape(f"{name} is {value!r}, expected {expected}")
    with pytest.raises(ConfigError, match=message):
        model.generate("The", **{name: value})
    with pytest.raises(ConfigError, match=message):
        GenerationConfig(**{name: value})


def test_numbers_of_numpy_are_options(tiny_folders):
    model = polyseme.load(tiny_folders["gpt2"], device="cpu")
    options = {"max_new_tokens": np.int64(3), "top_k": np.int32(5), "temperature": np.float32(0.5), "seed": np.uint8(1)}
    assert model.generate("The", **options) == model.generate("The", max_new_tokens=3, top_k=5, temperature=0.5, seed=1)


def test_what_is_no_config(tiny_folders):
    model = polyseme.load(tiny_folders["gpt2"], device="cpu")
    with pytest.raises(ConfigError, match="the config is 20, expected a GenerationConfig, or its fields as options"):
        model.generate("The", 20)
    with pytest.raises(PolysemeError, match="expected a prefix, not int 5"):
        model.generate("The", prefix=5)
    with pytest.raises(PolysemeError, match="expected a prefix, not None"):
        model.stream("The", prefix=None)


@pytest.mark.parametrize("family", ["t5", "transformer", "seq2seq"])
def test_a_stream_may_be_twice_as_long_as_its_source(family, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    (text,) = model.generate(PROMPT, max_new_tokens=0)
    assert "".join(model.stream(PROMPT, max_new_tokens=0)) == text.text
    with pytest.raises(ConfigError, match="without a source nothing limits the length of a text"):
        list(polyseme.load(tiny_folders["gpt2"], device="cpu").stream(PROMPT, max_new_tokens=0))
