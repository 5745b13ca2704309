"""The code on every model card runs, with Polyseme and with `transformers`, for every family and task."""

import contextlib
import io
import re

import pytest
import yaml

from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.finetune import load_for_tasks
from polyseme.report.cards.transformers_usage import MODEL_TYPES
from polyseme.tasks import TASKS
from polyseme.tasks.tagging import TaggingTask
from polyseme.weights.folder import save_model

TRAIN = {
    "classification": [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}],
    "pair_classification": [{"text": "a", "pair": "b", "label": "x"}, {"text": "b", "pair": "c", "label": "y"}],
    "regression": [{"text": "a", "label": 1.0}, {"text": "b", "label": 2.0}],
    "multiple_choice": [{"text": "a", "choices": ["b", "c"], "label": 0}],
    "tagging": [{"words": ["a", "b"], "tags": ["O", "B-X"]}],
    "semantic_roles": [{"words": ["a", "b"], "tags": ["O", "B-V"], "predicate": 1}],
    "contrastive": [{"text": "a", "pair": "b"}, {"text": "c", "pair": "d"}],
    "extractive_qa": [{"context": "a b", "question": "a?", "answers": ["a"]}],
}


def snippets(folder):
    """The code blocks of a card, that of `transformers` last."""
    return re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)


def front_matter(folder):
    return yaml.safe_load((folder / "README.md").read_text().split("---")[1])


def run_snippets(folder, monkeypatch):
    """Run the code of a card where its text says, and return what each block prints."""
    monkeypatch.chdir(folder.parent)
    outputs = []
    for code in snippets(folder):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})
        outputs.append(printed.getvalue())
    return outputs


def read_train(task_type):
    task = TASKS[task_type]
    if task_type in TRAIN:
        return task.read(TRAIN[task_type], needs_labels=task.needs_labels)
    words = [["Anna", "has", "a", "dog"], ["She", "feeds", "it"]]
    (example,) = task.read([words], needs_labels=False)
    return [type(example)(**vars(example) | {"clusters": (((0, 0), (4, 4)),)})]


def save_task_model(task, train, base, out):
    """Write the folder of a task model that was not trained."""
    task = task.fit(train)
    loaded = load_for_tasks(base, [task], FinetuneConfig(), 0, False)
    metadata = {"task": task.to_json(), "usage": task.describe_usage(train), "results": {"task": task.task_type}}
    save_model(out, loaded.model, loaded.tokenizer, metadata)
    return out


def test_the_types_that_transformers_has():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    ours = {family.model_type or family.name for family in FAMILIES.values()}
    assert ours & set(CONFIG_MAPPING) == ours & MODEL_TYPES and set(CONFIG_MAPPING) >= MODEL_TYPES


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, tiny_folders, monkeypatch):
    outputs = run_snippets(tiny_folders[family], monkeypatch)
    model_type = FAMILIES[family].hf_config.model_type or FAMILIES[family].model_type or family
    assert len(outputs) == 1 + (model_type in MODEL_TYPES) and all(outputs)


@pytest.mark.parametrize("task_type", [name for name in TASKS if name != "visual_qa"])  # which needs an image model
def test_tasks(task_type, tiny_folders, tmp_path, monkeypatch):
    folder = save_task_model(TASKS[task_type](), read_train(task_type), tiny_folders["bert"], tmp_path / "model")
    ours, theirs = run_snippets(folder, monkeypatch)
    assert front_matter(folder).get("pipeline_tag", "") == TASKS[task_type].pipeline_tag
    if task_type in ("classification", "pair_classification"):  # both say the same
        assert f"label='{theirs.strip()}'" in ours
    if task_type == "regression":
        assert float(theirs) == pytest.approx(float(re.search(r"number=([-\d.e]+)", ours)[1]), abs=1e-5)


@pytest.mark.parametrize("family", ["t5", "gpt", "gpt2", "xlnet", "rnn_lm", "word2vec"])
def test_tasks_of_other_families(family, tiny_folders, tmp_path, monkeypatch):
    train = read_train("classification")
    task = TASKS["classification"]().fit(train)
    if FAMILIES[family].is_text_to_text:
        task = task.with_text_template("", train)
    folder = save_task_model(task, train, tiny_folders[family], tmp_path / "model")
    outputs = run_snippets(folder, monkeypatch)
    assert "label=" in outputs[0] and len(outputs) == 1 + (family in ("t5", "gpt", "gpt2", "xlnet"))


def test_a_head_that_transformers_lacks(tiny_folders, tmp_path, monkeypatch):
    task = TaggingTask(decoder="crf")
    folder = save_task_model(task, read_train("tagging"), tiny_folders["bert"], tmp_path / "model")
    assert "tags=" in run_snippets(folder, monkeypatch)[0]
    assert "`transformers` does not read `polyseme.safetensors`" in (folder / "README.md").read_text()


def test_two_tasks(tiny_folders, tmp_path, monkeypatch):
    train = {name: read_train(name) for name in ("classification", "tagging")}
    tasks = [TASKS[name](name=name).fit(examples) for name, examples in train.items()]
    loaded = load_for_tasks(tiny_folders["bert"], tasks, FinetuneConfig(), 0, False)
    each = {
        task.name: {"task": task.replace(name="").to_json(), "usage": task.describe_usage(train[task.name])}
        for task in tasks
    }
    save_model(tmp_path / "model", loaded.model, loaded.tokenizer, {"tasks": each})
    output = run_snippets(tmp_path / "model", monkeypatch)[0]
    assert "label=" in output and "tags=" in output
