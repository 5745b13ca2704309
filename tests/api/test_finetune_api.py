"""`polyseme.finetune`, `evaluate`, `predict` and `compare` with everything that the commands offer."""

import re

import pytest

import polyseme
from polyseme.tasks.tagging import TaggingTask
from polyseme.weights.folder import load_model

TEXTS = [{"text": text, "label": text.split()[1]} for text in ("the cat sees", "the dog sees", "a cat", "a dog")] * 4
TAGS = [{"words": ["the", "cat"], "tags": ["O", "B-A"]}, {"words": ["a", "dog"], "tags": ["O", "B-B"]}] * 6
VALUES = {"train": TEXTS, "dev": TEXTS[:4]}
FAST = {"steps": 2, "batch_size": 8}


@pytest.fixture(scope="module")
def base(tiny_folders):
    return tiny_folders["bert"]


def test_named_data_set(base, glue, tmp_path):
    options = {"truncate": True, "baselines": ["default"], "seeds": 2, **FAST}
    result = polyseme.finetune(base, "glue/cola", data=glue, out=tmp_path / "run", **options)
    assert result.primary_metric == "matthews" and len(result.seeds) == 2
    assert list(result.baselines) == ["majority", "linear"] and set(result.mean) <= set(result.baselines["linear"])
    evaluated = polyseme.evaluate(result.model, glue, task="glue/cola")
    assert evaluated.metrics["matthews"] == max(seed["matthews"] for seed in result.seeds)
    assert evaluated.chosen_on_dev == ("the best of 2 seeds",) and evaluated.num_parameters > 0
    (glue / "CoLA/test.tsv").write_text("index\tsentence\n0\tthe cat\n1\ta dog\n")
    predictions = polyseme.predict(result.model, glue, task="glue/cola", out=tmp_path / "CoLA.tsv")
    rows = [f"{index}\t{prediction.label}" for index, prediction in enumerate(predictions)]
    assert (tmp_path / "CoLA.tsv").read_text().splitlines() == ["index\tprediction", *rows]


def test_several_tasks(base, tmp_path):
    tasks = {"animals": "classification", "names": TaggingTask(decoder="crf")}
    train, dev = {"animals": TEXTS, "names": TAGS}, {"animals": TEXTS[:4], "names": TAGS[:4]}
    result = polyseme.finetune(base, tasks, train=train, dev=dev, out=tmp_path / "run", **FAST)
    assert list(result.tasks) == ["animals", "names"] and result.tasks["names"].primary_metric == "f1"
    assert load_model(result.model).model.heads["tag@names"].crf is not None
    assert polyseme.evaluate(result.model, TEXTS[:4], task="animals").metrics["accuracy"] == result.mean["animals"]


def test_frozen_features(base, tmp_path):
    options = {"layers": "last", "network": "linear", "epochs": 1.0}
    result = polyseme.finetune(None, "classification", **VALUES, features=base, out=tmp_path / "run", **options)
    assert result.details["features"]["name"] == "linear" and result.details["features"]["layers"] == "last"
    assert (tmp_path / "features").is_dir()
    assert len(polyseme.predict(result.model, ["the cat", "a dog"])) == 2
    words = polyseme.finetune(None, "classification", **VALUES, features=(), out=tmp_path / "words", epochs=1.0)
    assert words.details["model"] == "words alone"


def test_grid_ensemble_and_comparison(base, tmp_path):
    options = {"keep_seeds": True, "seeds": 2, **FAST}
    grid = {"lr": [1e-4, 1e-3], "batch_size": [4]}
    result = polyseme.finetune(base, "classification", **VALUES, out=tmp_path / "grid", grid=grid, **options)
    assert list(result.grid) == ["lr=0.0001_batch_size=4", "lr=0.001_batch_size=4"]
    assert result.mean["accuracy"] == max(result.grid.values())
    ensemble = polyseme.evaluate(tmp_path / "grid", TEXTS[:4], ensemble=True)
    single = polyseme.evaluate(result.model, TEXTS[:4])
    assert ensemble.num_parameters == 2 * single.num_parameters
    comparison = polyseme.compare(tmp_path / "grid", out=tmp_path / "p.svg", num_resamples=100)
    assert not comparison.tests and "<svg" in (tmp_path / "p.svg").read_text()
    low, high = comparison.intervals["grid"]
    assert low <= comparison.runs[0].mean <= high


@pytest.mark.parametrize(
    "model,task,options,message",
    [
        (None, "classification", {}, "choose one: a model to fine-tune, or a network"),
        ("base", "classification", {"features": ["x"]}, "choose one: a model to fine-tune, or a network"),
        ("base", "classification", {"layers": "last"}, "`layers`, `join_at` and `cache_dir` apply to frozen models"),
        (None, "classification", {"features": "x", "freeze_word_embeddings": True}, "without `word_vectors`"),
        (None, "classification", {"features": "x", "from_scratch": True}, "apply to fine-tuning, and features are"),
        ("base", ["classification"], {"keep_seeds": True}, "`keep_seeds` and `keep_checkpoints` are for one task"),
        ("base", ["classification"], {}, "`train` must map the name of each task to its examples"),
        ("base", "glue/cola", {}, "glue/cola has its own files and columns: pass `data` alone"),
        ("base", "glue/cola", {"train": None, "dev": None}, "`data` is missing: the folder that contains CoLA"),
        ("base", "classification", {"dev": None}, "`dev` is missing: classification needs `train` and `dev`"),
        ("base", "classification", {"data": "x"}, "`data` is for named data sets"),
        ("base", "clasification", {}, "there is no task 'clasification'; did you mean 'classification'"),
        ("base", "classification", {"epoch": 3}, "unknown key 'epoch' in FinetuneConfig; did you mean 'epochs'"),
        ("base", "classification", {"baselines": ["crf"]}, "classification has no baseline 'crf'"),
        ("base", "classification", {"seeds": 0}, "`seeds` is 0, expected 1 to 10,000"),
        ("base", "classification", {"text_column": "body"}, "apply to files, and the examples are values"),
        ("base", "classification", {"header": False}, "apply to files, and the examples are values"),
        ("base", "classification", {"strict": True}, "`strict` has no effect: it is for malformed tags in files"),
        ("base", {"a": "classification"}, {"train": {"a": [], "b": []}, "dev": {}}, "`train` has the task 'b', which"),
        ("base", "classification", {"grid": {"lr": []}}, "the grid axis 'lr' is [], expected a list of values"),
        ("base", "classification", {"grid": {"lr": "1e-4"}}, "the grid axis 'lr' is '1e-4', expected a list of values"),
        ("base", "classification", {"grid": {"lr": 1e-4}}, "the grid axis 'lr' is 0.0001, expected a list of values"),
        ("base", "classification", {"grid": {"lr": [1e-4, 1e-4]}}, "axis 'lr' has the value 0.0001 twice"),
        ("base", "classification", {"grid": ["lr=1e-4", "lr=1e-3"]}, "the grid has the axis 'lr' twice: put all of"),
        ("base", "classification", {"grid": " "}, "the grid [' '] has no axis name=value,value…"),
    ],
)
def test_options_without_effect_are_errors(base, tmp_path, model, task, options, message):
    with pytest.raises(polyseme.ConfigError, match=re.escape(message)):
        polyseme.finetune(base if model else None, task, out=tmp_path / "run", **(VALUES | options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["train", "dev"])
def test_no_examples_are_an_error(base, tmp_path, split):
    with pytest.raises(polyseme.DataError, match=f"`{split}` has no examples"):
        polyseme.finetune(base, "tagging", **{"train": TAGS, "dev": TAGS, split: []}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_evaluation_options_are_checked(base):
    with pytest.raises(polyseme.ConfigError, match="there is no option 'text_colum'; did you mean 'text_column'"):
        polyseme.evaluate(base, TEXTS, text_colum="x")
    with pytest.raises(polyseme.ConfigError, match="several models are an ensemble: set `ensemble`"):
        polyseme.predict([base, base], TEXTS)
