"""Run the examples in the docstrings of the public API, in the order of the README."""

import doctest
import random

import pytest

import polyseme
from polyseme.inference.base import OPERATIONS, LanguageModel
from polyseme.inference.inspection.attention import AttentionMap

ANIMALS, VERBS = ["cat", "dog"], ["sat", "ran", "saw", "ate"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A folder with text and labeled examples."""
    folder, draw = tmp_path_factory.mktemp("api"), random.Random(0)
    (folder / "text").mkdir()
    sentences = [f"the {draw.choice(ANIMALS)} {draw.choice(VERBS)} the {draw.choice(ANIMALS)}." for _ in range(1200)]
    for number in range(40):
        (folder / "text" / f"{number}.txt").write_text("\n".join(sentences[30 * number : 30 * number + 30]))
    rows = ["text\tlabel", *(f"the {animal} {verb}\t{animal}" for animal in ANIMALS for verb in VERBS)]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def namespace(workdir, tiny_folders):
    """Names that earlier examples define for later ones."""
    return {"polyseme": polyseme, "gpt": polyseme.load(tiny_folders["gpt2"], device="cpu")}


# of models that read images: tests/cli/test_images.py and tests/tasks/test_visual_qa.py
IMAGE_OPERATIONS = ("caption", "answer_image")


def run_examples(item, name, namespace):
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = [test for test in finder.find(item, name, globs=namespace) if test.examples]
    assert tests, f"{name} has no example"
    for test in tests:
        runner.run(test, clear_globs=False)
        namespace.update(test.globs)
    assert not runner.failures


def test_every_public_function_has_an_example_that_runs(workdir, namespace, monkeypatch):
    monkeypatch.chdir(workdir)
    namespace["tokenizer"] = polyseme.Tokenizer.train("wordpiece", "text", vocab_size=120)
    for name in ("prepare", "pretrain", "load", "finetune", "evaluate", "predict", "compare"):
        run_examples(getattr(polyseme, name), name, namespace)
    for name in [name for name in OPERATIONS if name not in ("translate", "answer", *IMAGE_OPERATIONS)]:
        run_examples(getattr(LanguageModel, name), name, namespace)
    lists = ("list_recipes", "list_families", "list_datasets", "list_published_tables")
    for name in (*lists, "describe_recipe", "published_table"):
        run_examples(getattr(polyseme, name), name, namespace)
    run_examples(LanguageModel.stream, "stream", namespace)
    run_examples(AttentionMap.merge_words, "merge_words", namespace)
    run_examples(polyseme.Tokenizer.train, "train", namespace)


def test_dir_and_help_show_the_api():
    assert set(polyseme.__all__) <= set(dir(polyseme))
    assert "__getattr__" not in dir(polyseme) and "annotations" not in dir(polyseme)
    for name in polyseme.__all__:
        assert (getattr(polyseme, name).__doc__ or "").strip(), f"{name} has no docstring"
    with pytest.raises(AttributeError):
        polyseme.nothing  # noqa: B018
