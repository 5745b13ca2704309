"""A researcher: grids, chosen seeds, paired tests, tables for a paper, and files of other projects as they are."""

import pytest

import polyseme
from tests.support.text import task_rows


@pytest.fixture(scope="module")
def lab(project, tmp_path_factory, run_cli):
    """Two fine-tuning runs of one model on one task, with chosen seeds."""
    folder = tmp_path_factory.mktemp("lab")
    for name, lr in (("low", "1e-4"), ("high", "3e-3")):
        run_cli(
            "finetune", project / "run-bert", "--task", "classification", "--out", folder / name,
            "--train", project / "classification-train.tsv", "--dev", project / "classification-dev.tsv",
            "--seeds", "5,6", "--set", f"lr={lr}",
        )  # fmt: skip
    return folder


def test_two_runs_of_one_model_are_two_rows(lab, run_cli, tmp_path):
    table = run_cli("compare", lab / "low", lab / "high", "--out", tmp_path / "paper")
    assert "low" in table and "high" in table and "two-sided" in table
    comparison = polyseme.compare([lab / "low", lab / "high"])
    assert {run.name for run in comparison.runs} == {"low", "high"}
    for test in comparison.tests:
        assert (test.p < 0.05) == (test.low > 0 or test.high < 0), "the p-value agrees with its interval"
    assert r"\toprule" in next((tmp_path / "paper").glob("*.tex")).read_text()
    assert next((tmp_path / "paper").glob("*.csv")).read_text().count("\n") >= 3


def test_runs_that_cannot_be_compared(lab, project, rejects, tmp_path):
    rejects("compare", lab / "low", tmp_path / "none", match="there is no run at .*none")
    rejects("compare", lab / "low", project / "run-bert", match="compare runs of one kind")


def test_a_grid_names_the_learning_rate_as_everywhere(project, run_cli, rejects, tmp_path):
    files = ["--train", project / "classification-train.tsv", "--dev", project / "classification-dev.tsv"]
    command = ["finetune", project / "run-bert", "--task", "classification", *files, "--set", "epochs=1"]
    run_cli(*command, "--out", tmp_path / "g", "--grid", "lr=1e-4,1e-3")
    assert "<svg" in (tmp_path / "g/report.html").read_text()
    rejects(*command, "--out", tmp_path / "h", "--set", "learning_rate=1", match="lr")


def test_conll_2003_as_it_is_distributed(project, run_cli, tmp_path):
    """train.txt, valid.txt and test.txt; predictions align with the lines of the input."""
    folder = tmp_path / "conll2003"
    folder.mkdir()
    for seed, split in enumerate(("train", "valid", "test")):
        blocks = task_rows("tagging", 12, seed).replace("B-A", "B-PER").replace("\t", " -X- -X- ")
        (folder / f"{split}.txt").write_text(f"-DOCSTART- -X- -X- O\n\n{blocks}\n")
    command = ["finetune", project / "run-bert", "--task", "conll-2003", "--data", folder, "--set", "epochs=1"]
    run_cli(*command, "--out", tmp_path / "run")
    run_cli("predict", tmp_path / "run", "--data", folder / "test.txt", "--out", tmp_path / "test.conll")
    lines, predicted = (path.read_text().splitlines() for path in (folder / "test.txt", tmp_path / "test.conll"))
    assert len(lines) == len(predicted)
    assert [line.split()[:1] for line in lines] == [line.split()[:1] for line in predicted]


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"config.json": '{"model_type": "electra"}', "model.safetensors": ""}, "electra.*not supported"),
        ({"config.json": '{"model_type": "bert"}', "pytorch_model.bin": "x"}, "save_pretrained"),
        ({"config.json": '{"model_type": "bert"}', "model.onnx": "x"}, "ONNX"),
    ],
)
def test_folders_that_cannot_be_opened_say_what_to_do(files, match, rejects, tmp_path):
    (tmp_path / "m").mkdir()
    for name, content in files.items():
        (tmp_path / "m" / name).write_text(content)
    rejects("fill", tmp_path / "m", "a [MASK]", match=match)
