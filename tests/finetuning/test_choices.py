"""What a user chooses or leaves to the defaults: settings by name, seeds, baselines, the learning rate, F1's label."""

import json

import pytest

import polyseme
from polyseme.errors import ConfigError, ModelError
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.defaults import BASE_LR, default_lr
from polyseme.finetuning.experiment import list_seeds
from polyseme.io.model_path import resolve_model
from polyseme.recipes import get_recipe
from polyseme.tasks.extractive_qa import ExtractiveQATask, QuestionExample, extend_to_words
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import load_model, save_model

TEXTS = [{"text": f"a {word} text {i}", "label": label} for i in range(6) for word, label in
         (("good", "ham"), ("bad", "spam"))]  # fmt: skip


def run_finetuning(base, out, **options):
    defaults = {"train": TEXTS, "dev": TEXTS, "steps": 1, "batch_size": 4}
    return polyseme.finetune(base, "classification", out=out, **defaults | options)


@pytest.fixture
def base(tiny_folders):
    return tiny_folders["bert"]


def read_settings(run):
    return json.loads((run.model / "polyseme.json").read_text())["metadata"]["settings"]


def test_one_name_for_each_setting(base, tmp_path):
    """`lr` and `optimizer.lr` are the same in keywords, overrides (`--set`) and grids, in fine-tuning and recipes."""
    spellings = [{"lr": 3e-3}, {"optimizer": {"lr": 3e-3}}, {"grid": ["lr=3e-3"]}, {"grid": {"optimizer.lr": [3e-3]}},
                 {"overrides": {"lr": "3e-3"}}, {"overrides": {"optimizer.lr": "0.003"}}]  # fmt: skip
    runs = [run_finetuning(base, tmp_path / str(i), **each) for i, each in enumerate(spellings)]
    assert [read_settings(run)["optimizer"]["lr"] for run in runs] == [3e-3] * len(spellings)
    recipe = get_recipe("bert-tiny").with_override("lr", "0.5").with_override("mask_prob", "0.25")
    assert recipe.optimizer.lr == 0.5 and recipe.objective.mask_prob == 0.25


@pytest.mark.parametrize(
    ("name", "hint"),
    [("learning_rate", "did you mean 'lr'?"), ("num_train_epochs", "did you mean 'epochs'?"),
     ("warmupp", "did you mean 'warmup'?"), ("optimizer.lrr", "did you mean 'lr'?"), ("name", "may be optimizer.name")],
)  # fmt: skip
def test_unknown_names_get_a_suggestion(name, hint):
    config = FinetuneConfig().with_override("network", '{"kind": "FeatureNetworkSettings"}')
    with pytest.raises(ConfigError, match=hint.replace("?", r"\?")):
        config.with_override(name, "1")


def test_seeds_are_a_number_or_a_list(base, tmp_path, run_cli, rejects):
    run = run_finetuning(base, tmp_path / "a", seeds=[11, 7])
    assert [row["seed"] for row in run.seeds] == [11, 7] and run.best_seed in (7, 11)
    files = [tmp_path / f"{part}.jsonl" for part in ("train", "dev")]
    for file in files:
        file.write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    shared = ["finetune", base, "--task", "classification", "--train", files[0], "--dev", files[1], "--set", "steps=1"]
    shared += ["--set", "batch_size=4"]
    run_cli(*shared, "--out", tmp_path / "b", "--seeds", "11,7")
    again = json.loads((tmp_path / "b/results.json").read_text())
    assert [row["accuracy"] for row in again["seeds"]] == [row["accuracy"] for row in run.seeds]
    assert (list_seeds(2), list_seeds([5])) == ([0, 1], [5])
    for seeds, match in (("x", "a number of seeds, or seeds such as 7,11,13"), ("0", "--seeds is 0, expected 1 to"),
                         ("3,3", "a repeated seed"), ("3,-1", "--seeds has -1, expected integers")):  # fmt: skip
        rejects(*shared, "--out", tmp_path / "c", "--seeds", seeds, match=match)


def test_baselines_are_in_the_results(base, tmp_path, caplog):
    pytest.importorskip("sklearn")
    run = run_finetuning(base, tmp_path / "run", baselines=True, lr=1e-9)
    written = json.loads((tmp_path / "run/results.json").read_text())["baselines"]
    assert written == run.baselines and list(written) == ["majority", "linear"]
    assert written["linear"]["accuracy"] == 1 and written["majority"]["accuracy"] == 0.5
    assert "does not beat the baseline 'linear' (1.0000)" in caplog.text or run.mean["accuracy"] == 1
    grid = run_finetuning(base, tmp_path / "grid", baselines="linear", grid={"lr": [1e-9, 1e-8]})
    assert json.loads((tmp_path / "grid/results.json").read_text())["baselines"] == grid.baselines != {}


def test_learning_rate_depends_on_the_size(base, tmp_path):
    """Base and larger sizes keep BERT's; an explicit rate is used as it is."""
    rates = [default_lr(FAMILIES["bert"].model_config(None, dim=dim, num_heads=2).trunk) for dim in (128, 256, 512)]
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == 3 and min(rates) > BASE_LR
    for family, size in (("bert", "base"), ("bert", "large"), ("roberta", "base"), ("gpt2", "small")):
        assert 2e-5 <= default_lr(FAMILIES[family].model_config(size).trunk) <= 5e-5
    run = run_finetuning(base, tmp_path / "run")
    chosen = run.details["chosen"]["lr"]
    assert chosen["value"] == read_settings(run)["optimizer"]["lr"] == default_lr(FAMILIES["bert"].model_config(
        None, dim=24, num_heads=3).trunk) and "hidden size of 24" in chosen["reason"]  # fmt: skip
    assert run_finetuning(base, tmp_path / "other", lr=1e-5).details["chosen"] == {}


def test_a_model_recommends_a_learning_rate_and_has_a_license(base, tmp_path):
    """Both are inherited by the models that are fine-tuned from it, and the license is on their cards."""
    terms = {"id": "cc-by-sa-3.0", "name": "CC BY-SA 3.0", "url": "https://x.example", "notice": "Share alike."}
    folder = load_model(base)
    for path, lr in (("good", 2e-4), ("bad", "fast")):
        metadata = {"finetuning_lr": lr, "license": terms if path == "good" else 3}
        save_model(tmp_path / path, folder.model, folder.tokenizer, metadata)
    run = run_finetuning(tmp_path / "good", tmp_path / "run")
    assert run.details["chosen"]["lr"] == {"value": 2e-4, "reason": "recommended by the model"}
    again = run_finetuning(run.model, tmp_path / "again")
    assert again.details["chosen"]["lr"]["value"] == 2e-4
    card = (again.model / "README.md").read_text()
    assert 'license: "cc-by-sa-3.0"' in card and "[CC BY-SA 3.0](https://x.example). Share alike." in card
    other = run_finetuning(tmp_path / "bad", tmp_path / "other")
    assert "hidden size" in other.details["chosen"]["lr"]["reason"]
    assert "license" not in (other.model / "README.md").read_text()


def test_f1_names_its_label(base, tmp_path, run_cli, rejects):
    run = run_finetuning(base, tmp_path / "run")
    assert run.details["positive_label"] == "spam"
    other = run_finetuning(base, tmp_path / "other", positive_label="ham")
    assert other.details["positive_label"] == "ham"
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    assert "f1 (of 'ham'): " in run_cli("evaluate", tmp_path / "other", "--data", tmp_path / "dev.jsonl")
    printed = json.loads(run_cli("evaluate", tmp_path / "run", "--data", tmp_path / "dev.jsonl", "--json"))
    assert printed["positive_label"] == "spam"
    predictions = polyseme.predict(tmp_path / "other", tmp_path / "dev.jsonl")
    sklearn_f1 = pytest.importorskip("sklearn.metrics").f1_score
    expected = sklearn_f1([row["label"] for row in TEXTS], [p.label for p in predictions], pos_label="ham")
    assert other.mean["f1"] == pytest.approx(expected)
    with pytest.raises(ConfigError, match=r"`positive_label` is 'spa'.*did you mean 'spam'"):
        run_finetuning(base, tmp_path / "bad", positive_label="spa")
    numbers = [row | {"label": "1" if row["label"] == "spam" else "0"} for row in TEXTS]
    assert run_finetuning(base, tmp_path / "01", train=numbers, dev=numbers, positive_label="0").details[
        "positive_label"] == "0"  # fmt: skip


def test_runs_are_models(project, tmp_path, run_cli, rejects):
    run = project.path / "run-bert"
    assert resolve_model(run) == run / "model" == resolve_model(run / "model") == polyseme.load(run).path
    assert Tokenizer.load(run).hash == Tokenizer.load(run / "model").hash
    result = run_finetuning(run, tmp_path / "task")
    assert polyseme.load(result.out).predict("a good text") == polyseme.load(result.model).predict("a good text")
    for benchmark in ("sst-2", "rte"):
        (tmp_path / "bench" / benchmark).mkdir(parents=True)
        (tmp_path / "bench" / benchmark / "model").symlink_to(run / "model")
    (tmp_path / "bench/benchmark.json").write_text("{}")
    with pytest.raises(ModelError, match=r"choose one of the models in it, .*rte/model, .*sst-2/model"):
        polyseme.load(tmp_path / "bench")
    (tmp_path / "bench/rte/model").unlink()
    assert resolve_model(tmp_path / "bench") == tmp_path / "bench/sst-2/model"
    (tmp_path / "new").mkdir()
    (tmp_path / "new/recipe.json").write_text("{}")
    with pytest.raises(ModelError, match="is a run that has no model yet"):
        polyseme.load(tmp_path / "new")


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [("flightless birds", (0, 6), "flightless"), ("the flightless", (10, 14), "flightless"),
     ("Smith's house", (0, 5), "Smith"), ("in 1,000 years", (5, 8), "000"), ("(café)", (1, 3), "café"),
     ("東京都に住む", (0, 2), "東京"), ("a b", (2, 3), "b")],
)  # fmt: skip
def test_answers_end_at_words(text, span, expected):
    start, end = extend_to_words(text, *span)
    assert text[start:end] == expected


def test_answers_within_words_are_kept_where_the_data_has_them():
    def examples(answer, num=10):
        context = "flightless birds of the island"
        return [QuestionExample(f"q{i}", context, "what?", ((answer, context.index(answer)),)) for i in range(num)]

    assert ExtractiveQATask().fit([*examples("birds", 39), *examples("flight", 1)]).whole_words
    assert not ExtractiveQATask().fit(examples("flight")).whole_words
