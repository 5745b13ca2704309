"""A string is one text, everywhere. Every public method that takes texts is found by its first parameter."""

import inspect

import numpy as np
import pytest

import polyseme
from polyseme import FeatureModel, LanguageModel, NeuralLM, NgramLM, PolysemeError, Tokenizer, WordVectors
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from tests.support.small_models import save_small_model

TEXT_PARAMETERS = {"text", "texts", "prompt", "prompts", "first", "word", "words", "context", "examples"}
INTERNAL = {
    "predict_examples",
    "evaluate",
    "encode_for_embed",
    "build_inputs_with_special_tokens",
}  # take lists, or ids
TEXT = "the [MASK] sees the dog"
# The second argument of methods that need one, for one text; a method that is not here is called without.
ARGUMENTS = {"next_sentence": ["the cat"], "rank_choices": [["cat", "dog"]], "answer": ["who sees?"]}
ONE_ONLY = {"stream", "encode_with_offsets", "get_vector", "vector", "neighbors", "find_index"}
LISTS_ONLY = {"encode_words"}  # of words
VALUES = {"score_last_words": ("the cat sees the", "dog"), "word": "cat", "encode_words": ["cat", "dog"]}


def text_methods() -> list[tuple[type, str]]:
    classes = (LanguageModel, NeuralLM, NgramLM, FeatureModel, WordVectors, Tokenizer)
    found = {}
    for cls in classes:
        for name, function in inspect.getmembers(cls, inspect.isfunction):
            parameters = list(inspect.signature(function).parameters)
            if not name.startswith("_") and name not in INTERNAL and {*parameters[1:2]} & TEXT_PARAMETERS:
                found.setdefault(function, (cls, name))
    return sorted(found.values(), key=lambda pair: (pair[0].__name__, pair[1]))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, LanguageModel | Tokenizer]:
    """A model for every operation."""
    folder, models = tmp_path_factory.mktemp("models"), {}
    tasks = {"gpt2": None, "transformer": None, "bert": None, "classify": ClassificationTask(labels=("a", "b")),
             "span": ExtractiveQATask()}  # fmt: skip
    for name, task in tasks.items():
        models[name] = polyseme.load(save_small_model(folder / name, "bert" if task else name, task))
    words = ["cat", "dog", "the", "sees"]
    models["words"] = WordVectors(words, np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32))
    models["tokenizer"] = models["bert"].tokenizer
    return models


def bound_method(models, cls, name):
    if cls in (WordVectors, Tokenizer):
        return getattr(models["words" if cls is WordVectors else "tokenizer"], name)
    operation = {"stream": "generate"}.get(name, name)
    return getattr(next(m for m in models.values() if operation in getattr(m, "capabilities", ())), name)


def to_plain(value):
    """Return a result as something that can be compared; floats may differ in their last bits."""
    if isinstance(value, np.ndarray | list | tuple):
        return [to_plain(each) for each in value]
    if isinstance(value, dict) or hasattr(value, "__dict__"):
        return {name: to_plain(each) for name, each in (value if isinstance(value, dict) else vars(value)).items()}
    return pytest.approx(value, abs=1e-4) if isinstance(value, float | np.floating) else value


def test_the_methods_are_found():
    names = {name for _, name in text_methods()}
    reads_images = {"caption", "answer_image"}
    assert {*polyseme.inference.base.OPERATIONS, "stream"} - reads_images <= names
    assert {"encode_batch", "word_ids", "neighbors", "vector"} <= names and len(names) >= 20


@pytest.mark.parametrize(("cls", "name"), text_methods(), ids=lambda value: getattr(value, "__name__", value))
def test_a_string_is_one_text(models, cls, name):
    method = bound_method(models, cls, name)
    parameter = next(iter(inspect.signature(method).parameters))
    value = VALUES.get(name, VALUES.get(parameter, TEXT))
    other = ARGUMENTS.get(name)
    options = {"max_new_tokens": 2} if name in ("generate", "stream", "translate") else {}

    def call(texts, argument=None):
        answer = method(texts, *([] if argument is None else [argument]), **options)
        return list(answer) if name == "stream" else answer  # a generator

    one = call(value, other and other[0])
    if name not in ONE_ONLY | LISTS_ONLY | {"encode_corpus"}:
        several = call([value, value], other and [other[0], other[0]])
        assert len(several) == 2 and to_plain(several[0]) == to_plain(one)
    for wrong in (b"cat", 5, None, *(() if name in ONE_ONLY else ([value, 5], [None], [b"cat"]))):
        with pytest.raises(PolysemeError) as caught:
            call(wrong, other and ([other[0]] * len(wrong) if isinstance(wrong, list) else other[0]))
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_two_arguments_are_of_one_kind(models):
    for name, text in (("next_sentence", "the cat"), ("encode", "the cat")):
        method = getattr(models["bert"], name)
        with pytest.raises(PolysemeError, match="expected a list of texts, not str 'the cat'"):
            method([text, text], text)
        with pytest.raises(PolysemeError, match="lengths, 2 and 1"):
            method([text, text], [text])
        with pytest.raises(PolysemeError, match="expected a text, not list"):
            method(text, [text])
    with pytest.raises(PolysemeError, match="expected a list of choices, not str 'cat'"):
        models["gpt2"].rank_choices("the", "cat")


def test_a_string_is_a_path_where_files_are_read(tmp_path, models):
    with pytest.raises(PolysemeError, match="there is no file 'a great film': `data` is a file, or a list of texts"):
        polyseme.predict(models["classify"], "a great film")
    with pytest.raises(PolysemeError, match="nosuchrun"):
        polyseme.compare("nosuchrun")
