"""Arguments of the functions of the package that are neither paths nor values are one clear error."""

import pytest

import polyseme
from polyseme.errors import PolysemeError
from polyseme.tasks.classification import ClassificationTask
from tests.support.small_models import save_small_model

EXAMPLES = [("the cat", "a"), ("the dog", "b")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    task = ClassificationTask(labels=("a", "b"))
    return polyseme.load(save_small_model(tmp_path_factory.mktemp("models") / "task", "bert", task), device="cpu")


CALLS = {
    "evaluate model": lambda model, value: polyseme.evaluate(value, EXAMPLES),
    "evaluate data": lambda model, value: polyseme.evaluate(model, value),
    "predict data": lambda model, value: polyseme.predict(model, value),
    "predict out": lambda model, value: polyseme.predict(model, ["the cat"], out=value or 0),
    "compare runs": lambda model, value: polyseme.compare(value),
    "compare out": lambda model, value: polyseme.compare(["nothing"], out=value or 0),
    "table": lambda model, value: polyseme.published_table(value),
    "table runs": lambda model, value: polyseme.published_table("bert-miniatures", value),
    "search texts": lambda model, value: polyseme.search(model, value, "cat"),
    "search query": lambda model, value: polyseme.search(model, ["the cat"], value),
    "search top_k": lambda model, value: polyseme.search(model, ["the cat"], "cat", top_k=value or -1),
    "search vectors": lambda model, value: polyseme.search(model, ["the cat"], "cat", vectors=value or 0),
    "verify": lambda model, value: polyseme.verify(value),
    "finetune model": lambda model, value: polyseme.finetune(value or 0, "classification", out="nowhere"),
    "finetune out": lambda model, value: polyseme.finetune(model, "classification", train=EXAMPLES, out=value),
    "pretrain out": lambda model, value: polyseme.pretrain("bert-tiny", "nothing", out=value),
    "pretrain corpus": lambda model, value: polyseme.pretrain("bert-tiny", value or 0, out="nowhere"),
    "pretrain init": lambda model, value: polyseme.pretrain("bert-tiny", "nothing", out="nowhere", init_from=value),
    "prepare sources": lambda model, value: polyseme.prepare(value, model.tokenizer, out="nowhere"),
    "prepare out": lambda model, value: polyseme.prepare("nothing", model.tokenizer, out=value),
    "word vectors": lambda model, value: polyseme.WordVectors.load(value),
}


@pytest.mark.parametrize("value", [None, 2.5, b"bytes", object()], ids=["None", "float", "bytes", "object"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_neither_a_path_nor_a_value(model, call, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolysemeError) as caught:
        call(model, value)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_no_model_is_an_error():
    with pytest.raises(PolysemeError, match="there is no model: pass a folder or a loaded model, or a list of them"):
        polyseme.predict([], ["the cat"])
