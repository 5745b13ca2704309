"""Loaded models: one text gives one result, unsupported calls raise an error, threads may share a model."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import polyseme
from polyseme.inference.base import OPERATIONS
from polyseme.word_vectors.files import write_vectors

TEXTS = ["the cat sees the dog", "a dog", "the fish the cat"]


@pytest.fixture(scope="module")
def models(tiny_folders):
    return {name: polyseme.load(tiny_folders[name], device="cpu") for name in ("bert", "gpt2", "t5", "word2vec")}


def test_one_text_gives_one_result(models):
    bert, gpt = models["bert"], models["gpt2"]
    assert bert.score(TEXTS[0]) == bert.score(TEXTS[:1])[0]
    assert bert.fill("the [MASK]", top_k=2) == bert.fill(["the [MASK]"], top_k=2)[0]
    np.testing.assert_array_equal(bert.embed(TEXTS[0]), bert.embed(TEXTS[:1])[0])
    assert bert.embed(TEXTS[0], granularity="token").ndim == 2 and isinstance(
        bert.embed(TEXTS, granularity="word"), list
    )
    assert gpt.generate("the", max_new_tokens=3) == gpt.generate(["the"], max_new_tokens=3)[0]
    assert gpt.rank_choices("the", ["cat", "dog"]) == gpt.rank_choices(["the"], [["cat", "dog"]])[0]
    assert gpt.score_last_words(("the cat", "sees")) == gpt.score_last_words([("the cat", "sees")])[0]
    assert models["t5"].translate("the cat") == models["t5"].translate(["the cat"])[0]


CALLS = {
    "fill": lambda m: m.fill("the [MASK]"),
    "next_sentence": lambda m: m.next_sentence("a", "b"),
    "score": lambda m: m.score("the cat"),
    "score_last_words": lambda m: m.score_last_words(("the", "cat")),
    "rank_choices": lambda m: m.rank_choices("the", ["cat", "dog"]),
    "generate": lambda m: m.generate("the", max_new_tokens=2),
    "translate": lambda m: m.translate("the cat"),
    "caption": lambda m: m.caption("cat.png"),
    "answer_image": lambda m: m.answer_image("cat.png", "who?"),
    "embed": lambda m: m.embed("the cat"),
    "attention": lambda m: m.attention("the cat"),
    "encode": lambda m: m.encode("the cat"),
    "predict": lambda m: m.predict("the cat"),
    "answer": lambda m: m.answer("the cat", "who?"),
    "attribute": lambda m: m.attribute("the [MASK]", method="erasure"),
}


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "word2vec"])
def test_capabilities_match_the_supported_calls(models, name):
    model = models[name]
    assert set(CALLS) == set(OPERATIONS) and set(model.capabilities) <= set(OPERATIONS)
    for operation, call in CALLS.items():
        if operation in model.capabilities:
            call(model)
        else:
            with pytest.raises(
                polyseme.UnsupportedError, match=f"cannot .*: it is a .*supports {model.capabilities[0]}"
            ):
                call(model)


def test_threads_share_a_model(models):
    """Several threads give the same results as one."""
    bert, gpt = models["bert"], models["gpt2"]

    def ask(number):
        if number % 2:
            return gpt.generate(TEXTS[number % 3], max_new_tokens=4, temperature=1.0, seed=number)
        return bert.embed(TEXTS, granularity="token")[number % 3].tolist(), bert.score(TEXTS[number % 3])

    expected = [ask(number) for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(12))) == expected


def test_word_vectors_are_a_model(tmp_path):
    table = np.eye(3, dtype=np.float32)
    write_vectors(tmp_path / "v.txt", ["cat", "dog", "fish"], table)
    vectors = polyseme.load(tmp_path / "v.txt")
    assert isinstance(vectors, polyseme.WordVectors) and vectors.neighbors("cat", 1)[0][0] in ("dog", "fish")
    np.testing.assert_allclose(vectors.embed("cat dog"), [0.5, 0.5, 0])
    assert polyseme.load(vectors) is vectors
    with pytest.raises(polyseme.ConfigError, match="loaded already"):
        polyseme.load(vectors, precision="bf16")


@pytest.mark.parametrize(
    "options,says",
    [
        ({"temprature": 1.0}, "did you mean 'temperature'"),
        ({"seed": 3}, "seed is 3, which has no effect: do_sample is false"),
        ({"length_penalty": 2.0}, "length_penalty is 2.0, which has no effect: num_beams is 0"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature is 0.5, which has no effect: num_beams is set"),
        ({"num_beams": 2, "num_return_sequences": 3}, "more than num_beams"),
        ({"do_sample": False, "top_k": 5}, "top_k is 5, which has no effect"),
    ],
)
def test_generation_options_without_effect(models, options, says):
    with pytest.raises(polyseme.ConfigError, match=says):
        models["gpt2"].generate("the", **options)
