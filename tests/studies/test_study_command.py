"""`polyseme study`: the list, the exit status, and jobs in processes that are stopped and continued."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.studies import TINY, arm, study_json


@pytest.fixture
def command(project, study_data, tmp_path):
    """The arguments of a tiny study in `tmp_path / "out"`."""
    study = tmp_path / "study.json"
    study.write_text(json.dumps(study_json(arm("nsp"), arm("mlm", overrides={"objective": "MaskedLM"}))))
    settings = [word for path, value in TINY.items() for word in ("--set", f"{path}={value}")]
    return ["study", study, "--corpus", project / "corpus-bert", "--data", study_data, "--budget", "3steps", "--seeds",
            2, "--out", tmp_path / "out", *settings]  # fmt: skip


def test_studies_are_listed(run_cli):
    assert "lineage" in run_cli("study", "--list")
    (study,) = json.loads(run_cli("study", "bert-objectives", "--list", "--json"))
    assert {arm["name"] for arm in study["arms"]} >= {"mlm-nsp", "left-to-right"}
    assert "left-to-right" in run_cli("study", "bert-objectives", "--list")


def test_wrong_commands_are_rejected(rejects, command, tmp_path):
    rejects("study", "lineage", match=["--corpus, --data, --budget, --out missing"])
    rejects("study", "linage", *command[2:], match="did you mean 'lineage'")
    rejects(*command, "--metrics", "wic", match=["--metrics", "wic: wic"])
    for option in ("--seeds", "--search-fraction"):
        rejects("study", "--page", tmp_path, option, "1", match=f"{option} has no effect with --page")
    rejects("study", "lineage", "--list", "--budget", "9s", match="--budget has no effect with --list")
    (tmp_path / "empty").mkdir()
    rejects("study", "--page", tmp_path / "empty", match="study.json is missing")


def test_the_exit_status_tells_whether_a_study_is_finished(cli, command, tmp_path):
    assert (
        cli(*command, "--time-limit", "500steps").err == "error: --time-limit is 500steps, expected a time such as 9m\n"
    )
    stopped = cli(*command, "--time-limit", "1s")
    assert stopped.status == 3 and "0 of 4 runs are done; the same command continues" in stopped.out
    finished = cli(*command, "--seeds", 2, "--json")
    assert finished.status == 0 and json.loads(finished.out)["done"] == 4
    assert cli("verify", tmp_path / "out").status == 0
    assert cli(*command, "--time-limit", "1s").status == 0, "nothing is left to do"
    for option in (["--json"], ["--finetune", "epochs=1"], ["--jobs", "3"], ["--held-out", "x.txt"], ["--keep-models"]):
        error = cli("study", "--page", tmp_path / "out", *option).err
        assert f"{option[0]} has no effect with --page" in error
    page = cli("study", "--page", tmp_path / "out", "--out", tmp_path / "page.md")
    assert page.status == 0 and (tmp_path / "page.md").is_file() and cli("verify", tmp_path / "out").status == 0


@pytest.mark.slow
def test_jobs_in_processes_save_their_state_at_a_signal(run_cli, command, tmp_path):
    words = [sys.executable, "-m", "polyseme.cli.main", *map(str, command), "--jobs", "2"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "out").glob("arms/*/seed-?.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM and "can be resumed with the same command" in errors
    workers = subprocess.run(["pgrep", "-f", str(tmp_path / "out")], capture_output=True, text=True).stdout.split()
    assert set(workers) <= {str(os.getpid())}
    assert len(list((tmp_path / "out").glob("arms/*/seed-?.json"))) < 4
    run_cli(*command)
    rows = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("arms/*/seed-?.json")]
    assert len(rows) == 4 and all("error" not in row for row in rows)
