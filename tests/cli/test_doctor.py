"""`doctor`, `--version`, shell completion, and the width of lists."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from polyseme import machine as machine_module
from polyseme.cli import completion, doctor
from polyseme.machine import Cpu, Finding, Gpu, Machine, Package

CPU = Cpu("Some CPU", 8, 8, frozenset({"avx2", "avx512f"}))
H200 = Gpu("NVIDIA H200", 139.8, 9.0)
FINE = Machine(
    polyseme="0.1.0", python="3.11.7", system="Linux", torch="2.13.0", torch_cuda="12.8", cpu=CPU, memory_gb=64.0,
    packages=(Package("torch", "<2.14,>=2.11", "", "2.13.0+cu128"), Package("mido", ">=1.3", "music", "")),
    gpus=(H200,), disk_free_gb={"/": 100.0}, shm_gb=8.0, compiler="/usr/bin/g++", has_python_headers=True,
)  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_wrong_with_a_fine_machine():
    """A missing extra is no problem."""
    assert FINE.find_problems() == [] and FINE.device == "NVIDIA H200"


PROBLEMS = {
    "torch is missing": ("broken", {"packages": (Package("torch", ">=2.11", "", ""),)}),
    "torch 2.14.1 is installed, but <2.14,>=2.11 is required": (
        "broken", {"packages": (Package("torch", "<2.14,>=2.11", "", "2.14.1"),)}),
    "mido 1.2.9 is installed, but >=1.3 is required": (
        "slow", {"packages": (Package("mido", ">=1.3", "music", "1.2.9"),)}),
    "there is no GPU": ("slow", {"gpus": ()}),
    "torch 2.13.0 was built without CUDA": ("slow", {"torch_cuda": ""}),
    "Tesla V100 has no bfloat16": ("slow", {"gpus": (Gpu("Tesla V100", 32.0, 7.0),)}),
    "/dev/shm has 0.1 GB": ("slow", {"gpus": (H200, H200), "shm_gb": 0.1}),
    "has no AVX2": ("slow", {"cpu": replace(CPU, flags=frozenset({"sse2"}))}),
    "CPU with AMX crash in some virtual machines": ("note", {"cpu": replace(CPU, flags=CPU.flags | {"amx_bf16"})}),
    "may use 2 of 8 cores": ("slow", {"cpu": replace(CPU, num_usable_cores=2)}),
    "no C++ compiler": ("slow", {"compiler": ""}),
    "headers (Python.h) are missing": ("slow", {"has_python_headers": False}),
    "2.0 GB of memory": ("slow", {"memory_gb": 2.0}),
    "/ has 0.5 GB of free space": ("slow", {"disk_free_gb": {"/": 0.5}}),
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS)
def test_problems_have_one_line_of_advice(problem):
    severity, changes = PROBLEMS[problem]
    (finding,) = replace(FINE, **changes).find_problems()
    assert finding.severity == severity and problem in finding.problem
    assert finding.advice and "\n" not in finding.problem + finding.advice


@pytest.mark.parametrize("threads,problem", [("9", "but 8 cores can be used"), ("1", "is 1, but 8 cores"), ("8", None)])
def test_thread_settings(monkeypatch, threads, problem):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert [problem in finding.problem for finding in FINE.find_problems()] == ([True] if problem else [])


def test_gpus_are_those_of_the_driver(monkeypatch):
    output = "NVIDIA H200, 143771, 9.0\nTesla V100-SXM2, 32768, 7.0\nold, 1024, [N/A]\n"
    monkeypatch.setattr(machine_module.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, output))
    gpus = list(machine_module.list_gpus())
    assert [(gpu.memory_gb, gpu.supports_bf16) for gpu in gpus] == [(140.4, True), (32.0, False), (1.0, False)]


def test_doctor_reports_this_machine(run_cli):
    facts = json.loads(run_cli("doctor", "--json"))
    versions = {package["name"]: package["version"] for package in facts["packages"]}
    assert versions["typer"] and facts["cpu"]["num_cores"] == os.cpu_count() and facts["memory_gb"] > 0
    printed = run_cli("doctor")
    words = " ".join(printed.split())
    assert printed.startswith("polyseme  ") and f" typer {versions['typer']} " in words
    assert printed.endswith("\nnothing is broken\n")
    for finding in facts["findings"]:
        assert f"{finding['severity']}: {finding['problem']}; {finding['advice']}" in words


def test_doctor_fails_if_something_is_broken(cli, monkeypatch):
    broken = replace(FINE, packages=(Package("torch", ">=2.11", "", ""), Package("mido", ">=1.3", "music", "")))
    monkeypatch.setattr(Machine, "inspect", classmethod(lambda cls: broken))
    completed = cli("doctor")
    assert completed.status == 1 and "broken: torch is missing" in completed.out
    assert "no mido: pip install 'polyseme[music]'" in completed.out and "nothing is broken" not in completed.out


@pytest.mark.parametrize("code,outcome", [
    ("pass", None),
    ("raise SystemExit('no compiler')", "works not (no compiler)"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "works not (signal 4)"),
])  # fmt: skip
def test_a_trial_may_crash(monkeypatch, code, outcome):
    monkeypatch.setitem(doctor.TRIALS, "bfloat16", code)
    trial = doctor.run_trial("bfloat16")
    if outcome is None:
        assert trial > 0
    else:
        assert isinstance(trial, Finding) and trial.severity == "slow"
        assert trial.problem == f"bfloat16 {outcome}".replace("works not", "does not work")


def test_version(run_cli):
    assert re.fullmatch(r"polyseme \d\S* \(torch \d\S*, Python 3\.\S+, .+\)\n", run_cli("--version"))


def test_completed_names_are_those_that_exist():
    from polyseme.datasets.catalog import DATASETS
    from polyseme.families import ALL_FAMILIES
    from polyseme.recipes import NGRAM_RECIPES, RECIPES
    from polyseme.tasks import TASKS
    from polyseme.text.pipelines import TOKENIZER_KINDS

    names = {
        "FAMILY_NAMES": ALL_FAMILIES, "RECIPE_NAMES": {**RECIPES, **NGRAM_RECIPES}, "TASK_NAMES": TASKS,
        "DATASET_NAMES": DATASETS, "TOKENIZER_KINDS": TOKENIZER_KINDS,
    }  # fmt: skip
    for variable, expected in names.items():
        assert set(getattr(completion, variable)) == set(expected), f"cli/completion.py: {variable}"


CODE = """
import sys
from polyseme.cli.main import main
sys.argv = ["polyseme"]
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words,expected",
    [
        ("polyseme pretrain bert-t", ["bert-tiny"]),
        ("polyseme recipes --family camem", ["camembert"]),
        ("polyseme finetune m --task conll-200", ["conll-2000", "conll-2003"]),
        ("polyseme doc", ["doctor"]),
    ],
)
def test_the_shell_completes_names_without_torch(words, expected):
    env = {
        **os.environ,
        "_POLYSEME_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    completed = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=60)
    assert sorted(completed.stdout.split()) == expected, completed.stderr
    assert completed.stderr.endswith("False\n")


@pytest.mark.parametrize("command", [["recipes"], ["families"], ["tasks"], ["tasks", "conll-2003"], ["tasks", "ner"]])
def test_lists_fit_80_columns(command, run_cli, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    printed = run_cli(*command)
    assert max(map(len, printed.splitlines())) <= 80


def test_the_files_of_a_data_set(run_cli, rejects):
    printed = " ".join(run_cli("tasks", "conll-2003").split())
    assert "dev eng.testa or valid.txt or dev.txt" in printed and "folder conll2003, or another" in printed
    rejects("tasks", "conll2003", match="there is no data set 'conll2003'; did you mean 'conll-2003'")


def test_a_family_without_recipes(rejects):
    rejects("recipes", "--family", "electra", match="there is no recipe of the family 'electra'; ")
