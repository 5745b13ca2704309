"""Fixtures for all tests: one thread, commands in this process, a tiny project, tiny model folders."""

from __future__ import annotations

import os

# One thread and one instruction set: tiny models spend more time waiting for threads than computing, and results are
# the same on every machine. Set before torch is imported; subprocesses inherit both.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["PYTHONPATH"] = os.pathsep.join(  # children of the tests import `sitecustomize.py` there
    [os.path.join(os.path.dirname(__file__), "support", "no_network"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

import gc
import re
import runpy
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

from polyseme.logs import log_to_stderr
from tests.support import commands
from tests.support.project import Project, build_project
from tests.support.text import documents, write_glue

gc.set_threshold(50_000, 20, 20)  # collect garbage rarely: it took 4 % of the time
runpy.run_path(str(Path(__file__).parent / "support/no_network/sitecustomize.py"))
torch.set_num_threads(1)
log_to_stderr()  # as every command does, so that no test depends on an earlier command
# Tests do not survive a power failure, so syncing only costs time. `tests/io/test_atomic_writes.py` checks the calls.
os.fsync = lambda handle: None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt modules and collected tests from garbage collection."""
    collect_garbage()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After the last test of a file, exempt what it imported: a collection took longer from file to file."""
    yield
    if nextitem is None or nextitem.path != item.path:
        collect_garbage()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Do not send the output of a test that passed from a worker, which takes seconds in total: nobody reads it."""
    report = yield
    if report.passed and hasattr(item.config, "workerinput"):
        report.sections.clear()
    return report


def collect_garbage() -> None:
    """Collect all garbage, and exempt the rest from later collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def cli():
    """Run a command; returns its exit status and output."""
    return commands.cli


@pytest.fixture(scope="session")
def run_cli():
    """Run a command that must succeed; returns what it prints."""
    return commands.run_cli


def snapshot(folder):
    """Return the contents of every file below a folder, including hidden ones."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def rejects(cli, tmp_path):
    """Run a command that must fail with one line and status 2 and leave `tmp_path` unchanged; returns the message."""

    def run(*args, match=()):
        before = snapshot(tmp_path)
        command = cli(*args)
        lines, after = command.err.splitlines(), snapshot(tmp_path)
        patterns = [match] if isinstance(match, str) else match
        missing = [pattern for pattern in patterns if not re.search(pattern, command.err, re.I)]
        faults = {
            f"status {command.status}": command.status != 2,
            f"{len(lines)} lines": len(lines) != 1,
            "no 'error: '": not command.err.startswith("error: "),
            f"printed {command.out[:80]!r}": bool(command.out),
            f"left {sorted(after.keys() ^ before.keys()) or 'a changed file'}": after != before,
            f"message lacks {missing}": bool(missing),
        }
        if any(faults.values()):
            shown = "; ".join(fault for fault, is_present in faults.items() if is_present)
            pytest.fail(f"{args[0]}: {shown}: {' | '.join(lines[-4:])}", pytrace=False)
        return command.err

    return run


@pytest.fixture
def glue(tmp_path) -> Path:
    """A folder with small GLUE data sets."""
    write_glue(tmp_path / "glue")
    return tmp_path / "glue"


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Project:
    """Text, tokenizers, corpora, pre-trained models and task models, all written by commands."""
    return build_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory) -> dict[str, Path]:
    """A model folder per family, with random weights far from their initial values, so that every parameter matters."""
    from polyseme.families import FAMILIES
    from polyseme.text.tokenizer import Tokenizer
    from polyseme.weights.folder import save_model
    from tests.support.cases import EXTRA, supported_args

    folders = {}
    for family in FAMILIES.values():
        kind = "bpe" if family.tokenizer == "events" else family.tokenizer  # the tests read text
        size = 330 if not family.tokenizer.startswith("unigram") else 120  # the text has no more pieces
        texts = iter(documents(60, seed=5))
        tokenizer = Tokenizer.train(kind, texts, size + family.num_sentinels, num_sentinels=family.num_sentinels)
        tokenizer = tokenizer.with_cls_position(family.cls_position)
        extra = EXTRA.get(family.name, {})
        longest = 48 if kind != "characters" else 96  # for the same texts
        sizes = supported_args(
            family, num_layers=3, dim=24, num_heads=3, vocab_size=tokenizer.vocab_size, max_len=longest
        )
        spec = family.model_config(**sizes, **extra)
        model = spec.build(seed=1)
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=generator) * 0.2)
        folders[family.name] = tmp_path_factory.mktemp("tiny") / family.name
        save_model(folders[family.name], model, tokenizer, {})
    return folders
