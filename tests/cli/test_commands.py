"""Every command on a tiny project: exit status, printed output and written files."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

VERBS = [
    (), ("tokenizer",), ("tokenizer", "train"), ("prepare",), ("verify",), ("pretrain",), ("recipes",), ("families",),
    ("distill",), ("tasks",), ("finetune",), ("evaluate",), ("predict",), ("fill",), ("next",), ("score",), ("embed",),
    ("encode",),
    ("demo",),
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: "-".join(v) or "polyseme")
def test_help(verb, run_cli):
    said = run_cli(*verb, "--help")
    assert "Usage:" in said and "--help" in said
    if verb == ():
        missing = [v[0] for v in VERBS if v and not re.search(rf"^  {v[0]}\b", said, re.M)]
        assert not missing
    elif len(verb) == 1 and verb != ("tokenizer",):
        assert len(said.splitlines()) > 5


def test_no_argument_is_help(cli):
    said = cli()
    assert "Usage:" in said.out + said.err and "Traceback" not in said.err


def test_tokenizer_train(project):
    assert re.search(r"wordpiece, \d+ pieces, lower case", project.output["tokenizer bert"])
    assert re.search(r"bpe, \d+ pieces, case kept", project.output["tokenizer gpt2"])
    assert (project / "tok-bert/vocab.txt").read_text().splitlines()[:5] == [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    ]  # fmt: skip
    names = {p.name for p in (project / "tok-bert").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json"} <= names


def test_prepare(project, cli):
    manifest = json.loads((project / "corpus-bert/manifest.json").read_text())
    counts = manifest["counts"]
    assert counts["documents"] == 36 and counts["sentences"] > 36 * 4
    for name, value in counts.items():
        assert f"{value:,} {name}" in project.output["prepare bert"]
    again = cli("prepare", project / "text.txt", "--tokenizer", project / "tok-bert", "--out", project / "corpus-bert",
                "--split", "blank")  # fmt: skip
    assert again.status == 0 and "already prepared" in again.err
    assert json.loads((project / "corpus-bert/manifest.json").read_text()) == manifest


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_pretrain(project, family):
    run = project / f"run-{family}"
    results = json.loads((run / "results.json").read_text())
    assert results["steps"] == 6 and results["parameters"] > 0 and results["tokens"] > 0 and results["flops"] > 0
    said = project.output[f"pretrain {family}"]
    for name, value in results["valid"].items():
        assert f"valid {name}: {value:.4f}" in said
    assert f"{results['parameters']:,} parameters" in said
    terms = {"bert": {"masked", "pair"}, "gpt2": {"next"}}[family]
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows if "loss" in r] == [1, 2, 3, 4, 5, 6]
    assert all(set(r["loss"]) == terms for r in rows if "loss" in r)
    assert [r["step"] for r in rows if "valid" in r] == [3, 6]
    assert (run / "checkpoints/LATEST").read_text().strip() == "step-6"
    assert "<html" in (run / "report.html").read_text() and (run / "tensorboard").is_dir()
    assert {"config.json", "model.safetensors", "polyseme.json", "tokenizer.json"} <= {
        p.name for p in (run / "model").iterdir()
    }
    assert json.loads((run / "recipe.json").read_text())["recipe"]["model"]["dim"] == 32


def test_pretrain_set_and_resume(project, run_cli, cli, tmp_path):
    common = (
        "pretrain",
        project / "bert.json",
        "--corpus",
        project / "corpus-bert",
        "--out",
        tmp_path / "run",
    )
    run_cli(*common, "--set", "budget.steps=2", "--set", "optimizer.lr=3e-4", "--set", "model.dim=16")
    saved = json.loads((tmp_path / "run/recipe.json").read_text())["recipe"]
    assert (saved["budget"]["steps"], saved["optimizer"]["lr"], saved["model"]["dim"]) == (2, 3e-4, 16)
    # a finished run: --resume does nothing more, and the recipe of a run folder is a recipe
    options = ("--set", "budget.steps=2", "--set", "optimizer.lr=3e-4", "--set", "model.dim=16")
    assert "model" in run_cli(*common, *options, "--resume")
    assert "model" in run_cli("pretrain", tmp_path / "run/recipe.json", *common[2:], "--resume")
    assert json.loads((tmp_path / "run/results.json").read_text())["steps"] == 2
    assert "--resume" in cli(*common, *options).err


@pytest.mark.parametrize("kind", ["classification", "pair_classification", "regression", "tagging"])
def test_finetune_evaluate_predict(project, run_cli, tmp_path, kind):
    run, ending = project / f"run-{kind}", "conll" if kind == "tagging" else "tsv"
    results = json.loads((run / "results.json").read_text())
    assert results["task"] == kind and results["train_examples"] == 24 and results["steps"] == 4
    header, row = project.output[f"finetune {kind}"].splitlines()[:2]
    positive = {"classification": "water", "pair_classification": "yes"}.get(kind)
    titles = [f"f1 (of '{positive}')" if positive and name == "f1" else name for name in results["mean"]]
    assert re.split(" {2,}", header) == ["1 seed(s)", *titles] and row.startswith("fine-tuned")
    assert row.split()[1:] == [f"{v:.4f}" for v in results["mean"].values()]
    assert (run / "report.html").exists()

    dev = project / f"{kind}-dev.{ending}"
    found = json.loads(run_cli("evaluate", run / "model", "--data", dev, "--json"))
    assert found.pop("examples") == 24 and found.pop("parameters") == results["parameters"]
    assert found.pop("examples_per_second") > 0 and found.pop("ms_per_text") > 0
    assert found.pop("positive_label", None) == positive and found == pytest.approx(results["mean"])
    said = run_cli("evaluate", run / "model", "--data", dev)
    lines = [f"{title}: {results['mean'][name]:.4f}" for title, name in zip(titles, results["mean"])]
    assert set(lines) <= set(said.splitlines()) and "24 examples" in said

    assert "24 predictions" in run_cli("predict", run / "model", "--data", dev, "--out", tmp_path / "p.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len(rows) == 24
    if kind == "tagging":
        sentences = dev.read_text().strip().split("\n\n")
        assert [r["words"] for r in rows] == [[line.split("\t")[0] for line in s.splitlines()] for s in sentences]
        gold = [[line.split("\t")[1] for line in s.splitlines()] for s in sentences]
        right = [p == g for r, s in zip(rows, gold) for p, g in zip(r["prediction"], s)]
        assert np.mean(right) == pytest.approx(found["accuracy"])
        run_cli("predict", run / "model", "--data", dev, "--out", tmp_path / "p.conll")
        lines, predicted = dev.read_text().splitlines(), (tag for r in rows for tag in r["prediction"])
        expected = [f"{line}\t{next(predicted)}" if line else line for line in lines]
        assert (tmp_path / "p.conll").read_text().splitlines() == expected
    elif kind == "regression":
        gold = [float(line.split("\t")[1]) for line in dev.read_text().splitlines()[1:]]
        assert np.corrcoef(gold, [r["prediction"] for r in rows])[0, 1] == pytest.approx(found["pearson"])
        run_cli("predict", run / "model", "--data", dev, "--out", tmp_path / "p.tsv")
        assert (tmp_path / "p.tsv").read_text().splitlines()[:2] == [
            "text\tlabel\tprediction", f"{rows[0]['text']}\t{rows[0]['label']}\t{rows[0]['prediction']}",
        ]  # fmt: skip
    else:
        table = [line.split("\t") for line in dev.read_text().splitlines()[1:]]
        assert [r["text"] for r in rows] == [t[0] for t in table]
        assert np.mean([r["prediction"] == t[-1] == r["label"] for r, t in zip(rows, table)]) == pytest.approx(
            found["accuracy"]
        )
        assert all(sum(r["probabilities"].values()) == pytest.approx(1) for r in rows)
        assert all(max(r["probabilities"], key=r["probabilities"].get) == r["prediction"] for r in rows)
        assert ("pair" in rows[0]) == (kind == "pair_classification")
        run_cli("predict", run / "model", "--data", dev, "--out", tmp_path / "p.tsv")
        assert (tmp_path / "p.tsv").read_text().splitlines()[1].split("\t")[0] == rows[0]["text"]


def test_finetune_seeds_baselines_and_json_lines(project, run_cli, tmp_path):
    for part in ("train", "dev"):
        lines = (project / f"classification-{part}.tsv").read_text().splitlines()[1:]
        rows = [dict(zip(("sentence", "gold"), line.split("\t"))) for line in lines]
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    said = run_cli(
        "finetune", project / "run-bert/model", "--task", "classification", "--train", tmp_path / "train.jsonl",
        "--dev", tmp_path / "dev.jsonl", "--out", tmp_path / "run", "--seeds", 2, "--set", "steps=1",
        "--text-column", "sentence", "--label-column", "gold", "--baselines", "--from-scratch",
    )  # fmt: skip
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert len(results["seeds"]) == 2 and results["from_scratch"]
    assert [line.split("  ")[0] for line in said.splitlines()[:4]] == [
        "2 seed(s)",
        "majority",
        "linear",
        "from scratch",
    ]
    assert f"{results['mean']['accuracy']:.4f} ± {results['std']['accuracy']:.4f}" in said


def test_tasks_and_a_named_data_set(project, run_cli, glue, tmp_path):
    listed = [line.split()[:3] for line in run_cli("tasks").splitlines()]
    assert ["glue/mrpc", "pair_classification", "f1"] in listed and ["glue/sts-b", "regression", "spearman"] in listed
    for name, metric, blind in (("cola", "matthews", "majority"), ("sts-b", "spearman", "mean")):
        said = run_cli(
            "finetune", project / "run-bert/model", "--task", f"glue/{name}", "--data", glue, "--out", tmp_path / name,
            "--seeds", 2, "--set", "steps=2", "--set", "truncate=true", "--baselines",
        )  # fmt: skip
        results = json.loads((tmp_path / name / "results.json").read_text())
        assert results["primary_metric"] == metric and results["data"] == f"glue/{name}"
        header, *rows = said.splitlines()
        assert header.split()[2] == metric and [row.split()[0] for row in rows[:3]] == [blind, "linear", "fine-tuned"]
        best = max(results["seeds"], key=lambda run: run[metric])
        found = json.loads(
            run_cli("evaluate", tmp_path / name / "model", "--task", f"glue/{name}", "--data", glue, "--json")
        )
        assert results["best_seed"] == best["seed"] and found[metric] == pytest.approx(best[metric])


def test_finetune_gpt2(project, run_cli, tmp_path):
    run_cli("finetune", project / "run-gpt2/model", "--task", "classification", "--train",
         project / "classification-train.tsv", "--dev", project / "classification-dev.tsv", "--out", tmp_path / "run",
         "--set", "steps=1", "--set", "truncate=true")  # fmt: skip
    assert json.loads((tmp_path / "run/model/config.json").read_text())["architectures"] == [
        "GPT2ForSequenceClassification"
    ]


def test_fill(project, run_cli):
    model = project / "run-bert/model"
    one = run_cli("fill", model, "the old [MASK] sees the dog", "--top-k", 3)
    assert len(one.splitlines()) == 3 and all(re.fullmatch(r" *\d+\.\d\d%  \S+", line) for line in one.splitlines())
    found = json.loads(run_cli("fill", model, "the old [MASK] sees the dog", "--top-k", 3, "--json"))
    assert [g["token"] for g in found[0]] == [line.split()[1] for line in one.splitlines()]
    chances = [g["probability"] for g in found[0]]
    assert chances == sorted(chances, reverse=True) and 0 < sum(chances) <= 1
    several = run_cli("fill", model, "the [MASK] cat [MASK] the dog", "--top-k", 2)
    lines = several.splitlines()
    assert len(lines) == 6 and (lines[0], lines[3]) == ("mask 1", "mask 2")
    found = json.loads(run_cli("fill", model, "the [MASK] cat [MASK] the dog", "--json"))
    assert [len(g) for g in found] == [5, 5] and all(set(g) == {"token", "probability"} for f in found for g in f)
    everything = json.loads(run_cli("fill", model, "[MASK]", "--top-k", 100000, "--json"))[0]
    assert sum(g["probability"] for g in everything) == pytest.approx(1, abs=1e-4)


def test_next(project, run_cli):
    import polyseme

    said = float(run_cli("next", project / "run-bert/model", "the cat sees.", "the dog hears."))
    found = polyseme.load(project / "run-bert/model").next_sentence("the cat sees.", "the dog hears.")
    assert 0 < said < 1 and said == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_score(project, run_cli, tmp_path, family):
    lines = ["the old cat sees the dog", "a dog", "the quiet swan feeds the small frog in the garden."]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    model = project / f"run-{family}/model"
    rows = [json.loads(r) for r in run_cli("score", model, "--data", tmp_path / "lines.txt", "--json").splitlines()]
    assert [r["text"] for r in rows] == lines
    for row in rows:
        assert row["log_prob"] < 0 and row["num_tokens"] >= 2
        assert row["perplexity"] == pytest.approx(np.exp(-row["log_prob"] / row["num_tokens"]))
    plain = run_cli("score", model, "--data", tmp_path / "lines.txt").splitlines()
    assert len(plain) == 4 and plain[3].endswith("(all)")
    total, tokens = sum(r["log_prob"] for r in rows), sum(r["num_tokens"] for r in rows)
    numbers = plain[3].split()
    prefix = "pseudo-" if family == "bert" else ""
    assert numbers[1::2][:3] == [f"{prefix}log-prob", "tokens", f"{prefix}perplexity"]
    assert all(row["is_pseudo_likelihood"] == (family == "bert") for row in rows)
    assert float(numbers[0]) == pytest.approx(total, abs=1e-3) and int(numbers[2]) == tokens
    assert float(numbers[4]) == pytest.approx(np.exp(-total / tokens), rel=1e-4)
    assert [p.split("  ")[-1] for p in plain[:3]] == lines


CHOICES = {
    "embeddings": (32,), "last": (32,), "second_to_last": (32,),
    "sum_all": (32,), "all": (3, 32), "0": (32,), "1": (32,), "2": (32,),
}  # fmt: skip


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_embed(project, run_cli, tmp_path, family):
    lines = ["the old cat sees the dog", "a dog", "the unseen swan."]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    found = {}
    for layers, shape in CHOICES.items():
        for granularity in ("token", "word", "text"):
            out = tmp_path / f"{layers}-{granularity}.npz"
            said = run_cli("embed", project / f"run-{family}/model", "--data", tmp_path / "lines.txt", "--layers",
                           layers, "--granularity", granularity, "--out", out)  # fmt: skip
            with np.load(out) as arrays:
                found[layers, granularity] = vectors = arrays["vectors"]
                assert f"vectors {vectors.shape}" in said and vectors.shape[1:] == shape
                if granularity == "text":
                    assert len(vectors) == 3 and set(arrays) == {"vectors"}
                else:
                    assert len(arrays["starts"]) == 4 and arrays["starts"][-1] == len(vectors)
                    sizes = np.diff(arrays["starts"])
                    if granularity == "word":
                        assert sizes.tolist() == [6, 2, 4]
    for granularity in ("token", "word", "text"):
        same = {"0": "embeddings", "2": "last", "1": "second_to_last"}
        for number, name in same.items():
            np.testing.assert_array_equal(found[number, granularity], found[name, granularity])
        every = found["all", granularity]
        np.testing.assert_allclose(every[:, 2], found["last", granularity], atol=1e-6)
        np.testing.assert_allclose(every[:, 1:].sum(1), found["sum_all", granularity], atol=1e-5)


def test_encode(project, run_cli):
    model = project / "run-bert/model"
    one = json.loads(run_cli("encode", model, "the cat sees", "--json"))
    assert one["tokens"] == ["[CLS]", "the", "cat", "sees", "[SEP]"]
    assert one["token_type_ids"] == [0] * 5 and one["attention_mask"] == [1] * 5 and len(one["input_ids"]) == 5
    two = json.loads(run_cli("encode", model, "the cat", "a dog", "--json"))
    assert two["tokens"] == ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "[SEP]"]
    assert two["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    table = [line.split() for line in run_cli("encode", model, "the cat", "a dog").splitlines()]
    assert table[0] == ["token", "input", "id", "token", "type", "id", "attention"]
    assert [row[0] for row in table[1:]] == two["tokens"]
    assert [[int(c) for c in row[1:]] for row in table[1:]] == [
        list(r) for r in zip(two["input_ids"], two["token_type_ids"], [1] * 7)
    ]
    causal = json.loads(run_cli("encode", project / "run-gpt2/model", "the cat", "--json"))
    assert "".join(causal["tokens"]).replace("Ġ", " ") == "the cat"


def test_verify(project, run_cli):
    for name in ("corpus-bert", "corpus-gpt2", "run-bert/model", "run-gpt2/model", "run-tagging/model"):
        assert "intact" in run_cli("verify", project / name)


def test_recipes_and_families(run_cli):
    from polyseme.families import ALL_FAMILIES
    from polyseme.recipes import NGRAM_RECIPES, RECIPES

    lines = [line for line in run_cli("recipes").splitlines() if not line.startswith(" ")]  # without wrapped ones
    assert [line.split()[0] for line in lines[1:]] == [*RECIPES, *NGRAM_RECIPES]
    assert all(len(line.split()) > 1 for line in lines[1:])
    said = " ".join(run_cli("families").split())
    rows = json.loads(run_cli("families", "--json"))
    assert {r["family"] for r in rows} == set(ALL_FAMILIES)
    for family in ALL_FAMILIES.values():
        for size, count in family.num_params.items():
            row = next(r for r in rows if (r["family"], r["size"]) == (family.name, size))
            assert count in row.values() and f"{count:,}" in said
        assert family.paper in said


def call(*args, **options):
    command = [sys.executable, "-m", "polyseme.cli.main", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ, **options)


def test_command_in_a_subprocess(project):
    found = call("fill", project / "run-bert/model", "the [MASK] cat", "--json")
    assert found.returncode == 0 and found.stderr == ""
    assert len(json.loads(found.stdout)[0]) == 5


@pytest.mark.slow  # as in `test_threads_do_not_print_after_an_error`
def test_error_in_a_subprocess_is_one_line(tmp_path):
    found = call("fill", tmp_path / "none", "the [MASK]")
    assert found.returncode == 2 and found.stdout == ""
    assert len(found.stderr.splitlines()) == 1 and found.stderr.startswith("error: there is no model folder")


def test_closed_pipe_is_no_error():
    """As in `polyseme … | head`, with a reader that exits at once."""
    command = f"{sys.executable} -m polyseme.cli.main --help | true"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, env=os.environ)
    assert found.stderr == "" and found.stdout == ""
