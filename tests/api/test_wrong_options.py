"""Options of the wrong type or out of range are one clear error, never a traceback, and never ignored."""

import numpy as np
import pytest

import polyseme
from polyseme.errors import ConfigError, PolysemeError, suggest
from tests.support.small_models import save_small_model

TEXT = "the [MASK] sees the dog"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    names = ("bert", "gpt2", "transformer", "word2vec")
    return {name: polyseme.load(save_small_model(folder / name, name), device="cpu") for name in names}


@pytest.mark.parametrize("top_k", [0, -1, 2.5, None, "5", True])
def test_numbers_of_results(models, top_k):
    for call in (lambda: models["bert"].fill(TEXT, top_k), lambda: models["word2vec"].neighbors("the", top_k)):
        with pytest.raises(ConfigError, match=rf"^top_k is {top_k!r}, expected an integer of 1 or more$"):
            call()


def test_a_number_of_numpy_is_a_number(models):
    assert models["bert"].fill(TEXT, np.int64(2)) == models["bert"].fill(TEXT, 2)
    assert len(models["word2vec"].neighbors("the", np.int64(2))) == 2


@pytest.mark.parametrize("value", [0, -1, 2.5, "many"])
def test_max_batch_tokens(models, value):
    with pytest.raises(ConfigError, match=f"max_batch_tokens is {value!r}, expected an integer of 1 or more"):
        models["bert"].max_batch_tokens = value
    assert models["bert"].max_batch_tokens == 2048


@pytest.mark.parametrize("name", [None, 5, "", [], b"length"])
def test_names_that_are_no_strings(models, name):
    if name is not None:
        with pytest.raises(ConfigError, match=r"pll_metric is .*; valid: original, within_word_l2r"):
            models["bert"].score("the cat", pll_metric=name)
    with pytest.raises(ConfigError, match=r"normalization is .*; (did you mean|valid: length, none, unconditional)"):
        models["gpt2"].rank_choices("the", ["cat"], normalization=name)
    with pytest.raises(ConfigError, match=r"precision is .*; valid: bf16, float32"):
        polyseme.load(models["bert"].path, precision=name)
    assert suggest(name, ["x", "y"]) == "valid: x, y"


@pytest.mark.parametrize("shots", [None, 5, "ab", ["ab"], [("a", 1)], [("a", "b", "c")]])
def test_shots(models, shots):
    with pytest.raises(PolysemeError, match=r"expected (a list of shots|shots that are pairs of a text and)"):
        models["gpt2"].rank_choices("the", ["cat"], shots=shots)


@pytest.mark.parametrize("value", [None, 5, ["{text} {answer}"]])
def test_parts_of_prompts(models, value):
    for option in ("template", "context"):
        with pytest.raises(PolysemeError, match=f"expected a {option}, not "):
            models["gpt2"].rank_choices("the", ["cat"], normalization="unconditional", **{option: value})


def test_split_is_a_function(models):
    with pytest.raises(ConfigError, match="split is 'sentences', expected a function that returns the parts"):
        models["transformer"].translate("the cat sees " * 30, split="sentences")


@pytest.mark.parametrize("path", [None, 5, b"folder", ["folder"]])
def test_paths(models, path):
    with pytest.raises(ConfigError, match="expected a folder, a file, the name of a bundled model, or a loaded model"):
        polyseme.load(path)
    with pytest.raises(ConfigError, match="expected a new folder, not"):
        models["bert"].save(path)


def test_a_task_of_a_model_without_tasks(models):
    with pytest.raises(ConfigError, match=r"task is 'ner', but .*bert was not fine-tuned for several tasks: leave it"):
        polyseme.load(models["bert"].path, task="ner")


def test_one_translation(models):
    with pytest.raises(ConfigError, match="num_return_sequences is 2, which has no effect: a text has one translation"):
        models["transformer"].translate("the cat", num_return_sequences=2)


def test_pairs_and_spans_of_numpy(models):
    pair, span = ("the cat sees", "the"), (4, 7)
    (expected,) = models["gpt2"].score_last_words([pair])
    assert models["gpt2"].score_last_words([tuple(np.array(pair))]) == [expected]
    assert models["bert"].score("the cat", spans=tuple(np.array(span))) == models["bert"].score("the cat", spans=span)
    with pytest.raises(PolysemeError, match=r"the span \(False, True\) is not a part"):
        models["bert"].score("the cat", spans=(False, True))
