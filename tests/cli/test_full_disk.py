"""A full disk while saving: an error of one line, and no partial output."""

import re
import resource
import shlex
import subprocess
import sys

from tests.support.commands import cli


def told(status, out, err):
    """Check that a command failed with one line that names the reason."""
    shown = f"status {status}\n{out}\n{err}"
    assert "Traceback" not in err and status == 2, shown
    assert len(err.splitlines()) == 1 and err.startswith("error: "), shown
    assert re.search("cannot write|too large|space", err), shown


def with_small_disk(limit, *args):
    """Run a command that cannot write files of more than `limit` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        answer = cli(*args)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told(answer.status, answer.out, answer.err)


def parts(folder):
    return [str(p) for p in folder.rglob(".*")]


def test_disk_full_in_a_checkpoint(project, tmp_path):
    """In a subprocess, because threads that outlive the failed command must not print either."""
    command = [sys.executable, "-m", "polyseme.cli.main", "pretrain", project / "bert.json", "--corpus",
               project / "corpus-bert", "--out", tmp_path / "run"]  # fmt: skip
    limited = f"ulimit -f 60; exec {shlex.join(map(str, command))}"  # in blocks of 1,024 bytes
    found = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=120)
    told(found.returncode, found.stdout, found.stderr)
    assert not list((tmp_path / "run").rglob("step-*")) and not (tmp_path / "run/model").exists()
    assert not parts(tmp_path)


def test_disk_full_in_a_model(project, tmp_path):
    with_small_disk(
        60_000, "finetune", project / "run-bert/model", "--task", "classification", "--train",
        project / "classification-train.tsv", "--dev", project / "classification-dev.tsv", "--out", tmp_path / "run",
        "--set", "steps=1",
    )  # fmt: skip
    assert not (tmp_path / "run/model").exists() and not (tmp_path / "run/results.json").exists()
    assert not parts(tmp_path)


def test_disk_full_in_prepare(project, run_cli, tmp_path):
    (tmp_path / "long.txt").write_text("The old cat sees the dog in the quiet garden.\n\n" * 6000)
    common = ("prepare", tmp_path / "long.txt", "--tokenizer", project / "tok-bert", "--out", tmp_path / "corpus",
              "--split", "blank")  # fmt: skip
    with_small_disk(60_000, *common)
    assert not parts(tmp_path)
    assert cli("verify", tmp_path / "corpus").status == 2
    run_cli(*common)  # with room again, it goes on
    run_cli("verify", tmp_path / "corpus")


def test_disk_full_in_embed(project, tmp_path):
    (tmp_path / "lines.txt").write_text("the old cat\n" * 800)
    with_small_disk(60_000, "embed", project / "run-bert/model", "--data", tmp_path / "lines.txt", "--out",
                    tmp_path / "v.npz")  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lines.txt"]


def test_disk_full_in_predict(project, tmp_path):
    row = (project / "classification-dev.tsv").read_text().splitlines()[1]
    (tmp_path / "many.tsv").write_text("text\tlabel\n" + f"{row}\n" * 500)
    with_small_disk(20_000, "predict", project / "run-classification/model", "--data", tmp_path / "many.tsv", "--out",
                    tmp_path / "p.jsonl")  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["many.tsv"]


def test_disk_full_in_tokenizer(project, tmp_path):
    with_small_disk(2_000, "tokenizer", "train", project / "text.txt", "--vocab-size", 300, "--out", tmp_path / "tok")
    assert list(tmp_path.iterdir()) == []
