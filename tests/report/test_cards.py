"""Cards: front matter that the Hub accepts, figures of the results, nothing private, and edits that are kept."""

import json
import shutil

import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard

import polyseme
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.inference.verify import verify
from polyseme.report.cards.model_card import ModelFacts, format_model_card
from polyseme.report.cards.readme import escape, format_front_matter, is_edited, short_name, write_readme
from polyseme.report.cards.run_card import format_command, record_command, write_run_card
from polyseme.report.cards.transformers_usage import transformers_usage
from polyseme.text.tokenizer import Tokenizer
from tests.support.folders import copy_unhashed

FACTS = ModelFacts("bert", "A model.", {"family": "bert"}, "import polyseme")


def test_front_matter_is_yaml():
    values = {
        "a": "yes", "b": "1.0", "c": "x: [y] # \"z\" 'w'\n\t\\", "d": [1, 2.5, 1e-20, 1e300, True, "null", ""],
        "e": [{"f": {"g": "é\u2028\x85\ufeff😀"}, "h": [{"i": "- j"}]}], "k": "", "l": [], "m": "true", "n": "~",
    }  # fmt: skip
    text = format_front_matter(values)
    expected = {key: value for key, value in values.items() if value not in ("", [])}
    assert yaml.safe_load(text.strip().strip("-")) == expected


def test_names_and_cells_cannot_break_the_page():
    assert escape("a|b\n<script>`x`", 40) == r"a\|b \<script\>\`x\`"
    assert escape("x" * 200).endswith("…") and len(escape("x" * 200)) == 120
    assert escape("\ud800") == "?"
    assert short_name("/disk/anna/run/model") == "run" and short_name("/disk/anna/bert-base/") == "bert-base"


def test_cards_of_a_project(project):
    """Every folder has a card that was not edited, in the Hub's format, without paths or texts of this machine."""
    folders = ["tok-bert", "corpus-bert", "run-bert", "run-bert/model", "run-classification", "run-tagging/model"]
    text = (project / "text.txt").read_text().split("\n\n")[0][:40]
    for name in folders:
        content = (project / name / "README.md").read_text()
        assert not is_edited(project / name / "README.md")
        assert str(project.path.parent) not in content and text not in content and ".part" not in content
    card = ModelCard.load(project / "run-bert/model/README.md", ignore_metadata_errors=False)
    results = json.loads((project / "run-bert/results.json").read_text())
    scores = {score.metric_type: score.metric_value for score in card.data.eval_results}
    assert scores["perplexity"] == results["valid"]["perplexity"] and card.data.pipeline_tag == "fill-mask"
    assert (card.data.datasets, card.data.language, card.data.library_name) == (["corpus-bert"], ["en"], "transformers")
    assert f"| parameters | {results['parameters']:,} |" in card.text and "| corpus | corpus-bert |" in card.text
    assert "Short training" in card.text
    data = DatasetCard.load(project / "corpus-bert/README.md", ignore_metadata_errors=False).data
    assert data.size_categories == ["n<1K"] and data.language == ["en"]


def test_the_card_of_a_task_model(project):
    card = ModelCard.load(project / "run-classification/model/README.md", ignore_metadata_errors=False)
    results = json.loads((project / "run-classification/results.json").read_text())
    scores = {score.metric_type: score.metric_value for score in card.data.eval_results}
    assert scores["accuracy"] == results["mean"]["accuracy"]
    assert (card.data.base_model, card.data.pipeline_tag) == ("run-bert", "text-classification")
    assert card.data.language == ["en"]  # of the text that the model was pre-trained on
    for line in ("| train examples | 24 (classification-train.tsv) |", "| labels | land, water |", "One seed:"):
        assert line in card.text


def test_scores_of_several_seeds_and_limits():
    results = {
        "task": "classification", "model": "/disk/anna/bert/model", "primary_metric": "accuracy", "best_seed": 1,
        "seeds": [{"seed": 0}, {"seed": 1}], "mean": {"accuracy": 0.9, "f1": float("nan")},
        "std": {"accuracy": 0.01, "f1": None}, "baselines": {"majority": {"accuracy": 0.5}},
        "before": {"accuracy": 0.4}, "failed_seeds": [0],
        "train_examples": 10, "dev_examples": 100, "num_truncated": {"train": 5, "dev": 0},
        "chosen_on_dev": ["the epoch"], "warnings": ["the loss diverged"], "seconds": 3600.0,
    }  # fmt: skip
    text = format_model_card(FACTS, {"task": {"labels": ["a|b", "c"]}, "results": results}, "model")
    for line in (
        "| metric | model | before training | majority |",
        "| accuracy | 0.9000 ± 0.0100 (95 % interval of 100 examples: 0.826 to 0.945) | 0.4000 | 0.5000 |",
        "mean ± standard deviation over 2 seeds",
        r"| labels | a\|b, c |",
        "5 of 10 train examples (50.0%) were truncated",
        "1 of 2 seeds were no better than the majority baseline",
        "chosen on the same dev examples: the epoch",
        "- the loss diverged",
        "| device-hours | 1 |",
    ):
        assert line in text
    assert "anna" not in text
    (index,) = yaml.safe_load(text.split("---")[1])["model-index"]
    assert [metric["type"] for metric in index["results"][0]["metrics"]] == ["accuracy"]  # not the one that is NaN


def test_an_empty_card_is_a_card():
    assert format_model_card(FACTS, {}, "model").startswith("---\nlibrary_name: polyseme\n")


def test_edited_cards_are_kept(tmp_path, caplog):
    write_readme(tmp_path, "first")
    write_readme(tmp_path, "second")
    path = tmp_path / "README.md"
    assert path.read_text().startswith("second\n") and not is_edited(path)
    path.write_text(path.read_text().replace("second", "mine"))
    with caplog.at_level("INFO"):
        write_readme(tmp_path, "third")
    assert path.read_text().startswith("mine") and "was edited" in caplog.text
    (tmp_path / "new").mkdir()
    write_readme(tmp_path / "new", "third", existing=tmp_path)
    assert (tmp_path / "new/README.md").read_text().startswith("mine")
    path.unlink()
    write_readme(tmp_path, "fourth")
    assert path.read_text().startswith("fourth")


def test_verify_mentions_an_edited_card(project, tmp_path, run_cli):
    folder = shutil.copytree(project / "run-bert", tmp_path / "run")
    assert not verify(folder).edited_cards and "README" not in run_cli("verify", folder)
    (folder / "model/README.md").write_text("mine")
    assert verify(folder).edited_cards == (folder / "model/README.md",)
    output = run_cli("verify", folder)
    assert "intact" in output and "model/README.md was edited since it was written" in output
    (folder / "model/README.md").unlink()
    assert "README" not in run_cli("verify", folder)
    polyseme.load(folder / "model")


def test_a_foreign_readme_does_not_interfere(project, tmp_path):
    """It is kept where we write again, and is no part of a model."""
    folder = copy_unhashed(project / "run-bert/model", tmp_path / "bert")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Theirs\n")
    (folder / "polyseme.json").unlink()
    assert not verify(folder).edited_cards
    files = {split: project / f"classification-{split}.tsv" for split in ("train", "dev")}
    run = polyseme.finetune(folder, "classification", **files, out=tmp_path / "run", steps=1)
    assert "base_model: bert" in (run.model / "README.md").read_text()
    assert "started from Python" in (tmp_path / "run/README.md").read_text()
    assert (folder / "README.md").read_text().endswith("# Theirs\n")


def test_a_resumed_run_keeps_an_edited_card(project, tmp_path, run_cli):
    folder = shutil.copytree(project / "run-bert", tmp_path / "run-bert")
    (folder / "model/README.md").write_text("mine")
    (folder / "README.md").write_text("mine, too")
    command = ("pretrain", project / "bert.json", "--corpus", project / "corpus-bert", "--out", folder, "--resume")
    run_cli(*command)
    assert (folder / "model/README.md").read_text() == "mine"
    assert (folder / "README.md").read_text() == "mine, too"
    (folder / "README.md").unlink()
    run_cli(*command)
    commands = (folder / "README.md").read_text()
    expected = "polyseme pretrain bert.json --corpus corpus-bert --out run-bert\n```"
    assert expected in commands and expected.replace("\n", " --resume\n") in commands


def prepare_lines(folder, out, names, **options):
    """Prepare files of ten lines each, and return the card."""
    texts = {name: [f"{name} cat {i}" for i in range(10)] for name in names}
    for name, lines in texts.items():
        (folder / f"{name}.txt").write_text("\n".join(lines))
    config = PrepareConfig(split="line", dedup="none", num_workers=1, **options)
    tokenizer = Tokenizer.train("words", iter(["a b c d e cat 0 1 2 3 4 5 6 7 8 9"] * 9))
    prepare([folder / f"{name}.txt" for name in names], tokenizer, folder / out, config)
    return (folder / out / "README.md").read_text()


def test_code_of_cards_quotes_the_names_of_folders(tmp_path):
    name = 'my "best" folder'
    Tokenizer.train("words", ["a cat"] * 9).save(tmp_path / name)
    content = (tmp_path / name / "README.md").read_text()
    assert f"--tokenizer '{name}' --out CORPUS" in content and r'Tokenizer.load("my \"best\" folder")' in content
    usage = transformers_usage({"model_type": "bert", "architectures": ["BertModel"]}, name, "a cat")
    assert usage.count(r'from_pretrained("my \"best\" folder")') == 2


def test_an_appended_corpus_has_a_new_card(tmp_path):
    content = prepare_lines(tmp_path, "corpus", "a")
    assert "| documents | 10 |" in content and "\n# Tokenized corpus of a.txt\n" in content
    content = prepare_lines(tmp_path, "corpus", "b", append=True)
    assert "| documents | 20 |" in content and "\n# Tokenized corpus of a.txt and b.txt\n" in content
    assert str(tmp_path) not in content


def test_the_card_of_a_corpus_does_not_depend_on_its_folder(tmp_path, monkeypatch, run_cli):
    content = prepare_lines(tmp_path, "first", "abcde")
    assert content == prepare_lines(tmp_path, "second", "abcde") and "first" not in content
    assert "\n# Tokenized corpus of a.txt, b.txt and 3 more\n" in content
    assert "\n# Tokenized corpus of a.txt, b.txt and c.txt\n" in prepare_lines(tmp_path, "third", "abc")
    monkeypatch.chdir(tmp_path / "first")
    exec(content.split("```python\n")[1].split("```")[0], {})
    *checks, training = content.split("```bash\n")[1].split("```")[0].splitlines()
    assert len(checks) == 2 and all(run_cli(*command.split()[1:]) for command in checks)
    run_cli(*training.replace("RECIPE", "ngram-3").split()[1:])
    assert (tmp_path / "RUN/README.md").read_text().startswith("# ngram-3 on first\n")
    assert "| corpus | first |" in (tmp_path / "RUN/model/README.md").read_text()


def test_commands_name_no_folder_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "finetune",
        "/disk/anna/bert/model",
        "--train",
        f"{tmp_path}/data/a b.csv::text=body",
        "--set",
        "a=1/2",
    ]
    expected = "polyseme finetune bert/model --train 'data/a b.csv::text=body' --set a=1/2"
    assert format_command(arguments) == expected
    assert format_command(["x", "--data=/disk/anna/c.csv", "../d/e.txt"]) == "polyseme x --data=c.csv ../d/e.txt"


def test_a_run_from_python_is_reproduced_from_its_recipe(project, tmp_path):
    folder = shutil.copytree(project / "run-gpt2", tmp_path / "run-gpt2")
    (folder / "README.md").unlink()
    record = json.loads((folder / "recipe.json").read_text())
    record["recipe"]["budget"] = {"steps": 0, "tokens": 0, "minutes": 1.5}
    (folder / "recipe.json").write_text(json.dumps(record))
    write_run_card(folder)
    content = (folder / "README.md").read_text()
    assert content.startswith("# tiny-gpt2 on corpus-gpt2\n")
    assert "polyseme pretrain recipe.json --corpus corpus-gpt2 --out RUN\n" in content
    assert "`--budget 6steps`" in content
    with record_command(["pretrain", "gpt2-tiny", "--out", str(folder)]):
        write_run_card(folder)
    assert "polyseme pretrain gpt2-tiny" in (folder / "README.md").read_text()


@pytest.mark.parametrize("kind", ["n-grams", "features", "grid"])
def test_cards_of_other_runs(kind, project, tmp_path):
    files = {split: project / f"classification-{split}.tsv" for split in ("train", "dev")}
    out = tmp_path / "run"
    if kind == "n-grams":
        polyseme.pretrain("ngram-3", project / "corpus-bert", out, order=2)
    else:
        source = (
            {"features": [str(project / "run-bert/model")]} if kind == "features" else {"grid": {"lr": [1e-3, 1e-4]}}
        )
        model = None if kind == "features" else project / "run-bert/model"
        polyseme.finetune(model, "classification", **files, out=out, steps=1, **source)
    content = (out / "model/README.md").read_text()
    assert verify(out).edited_cards == ()
    assert "## Reproduce" in (out / "README.md").read_text()
    assert {
        "n-grams": "| order | 2 |",
        "features": "run-bert (",
        "grid": "- Scores are optimistic: the settings are the best of 2",
    }[kind] in content
    code = content.split("```python\n")[1].split("```")[0].replace('"model"', repr(str(out / "model")))
    exec(code, {})
    assert str(project.path) not in content


def test_card_of_a_published_model():
    """Its sections come from the metadata, and malformed entries are left out."""
    counts = {"num_examples": 10, "num_compared": 8, "num_contaminated": 2, "num_half_contaminated": 1}
    metadata = {
        "name": "small",
        "intended_use": ["To teach."],
        "limits": ["English only."],
        "benchmarks": [{"data": "CoLA", "metric": "matthews", "mean": 20.04, "std": 1.0, "seeds": 3, "note": "dev"}],
        "contamination": [{"name": "CoLA", "n": 8, **counts}, {"name": "empty", "n": 8, **dict.fromkeys(counts, 0)}],
        "command": "polyseme pretrain mini",
        "license": {"id": "cc-by-4.0", "name": "CC BY 4.0", "url": "https://x.example", "notice": "Give credit."},
    }
    text = format_model_card(FACTS, metadata, "folder")
    assert "\n# small\n" in text and "\nlicense: " in text and "\n- English only.\n" in text
    assert "| CoLA | matthews | 20.0 ± 1.0 | 3 | dev |" in text
    assert "| CoLA | 8 | 10 | 8 | 2 | 1 | 25.00% |" in text and "| empty | 8 | 0 | 0 | 0 | 0 | – |" in text
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["Intended use", "Model", "Usage", "Benchmarks", "Contamination", "Command", "Limits", "License"]
    malformed = {name: 3 for name in metadata if name != "name"}
    assert format_model_card(FACTS, malformed, "small") == format_model_card(FACTS, {}, "small")
