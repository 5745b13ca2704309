"""What several folders of tests share: one thread, the command line in this process, a tiny project, tiny models."""

from __future__ import annotations

import os

# One thread and one set of instructions: tiny models wait for their threads longer than they compute, and the same
# numbers come out on every machine. Both have to be set before torch is imported, and subprocesses inherit them.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import contextlib
import functools
import io
import json
import random
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import torch
import typer

from polyseme.logs import log_to_stderr

torch.set_num_threads(1)
log_to_stderr()  # as every command does, so that no test depends on a command having run before it
# Tests do not survive a power failure, so syncing only costs time. `tests/io/test_atomic_writes.py` checks the calls.
os.fsync = lambda handle: None
# Typer makes all commands anew at every call, which takes longer than most of them.
made = functools.cache(typer.main.get_command)

ANIMALS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare", "mole", "newt", "seal", "swan"]
VERBS = ["sees", "hears", "follows", "likes", "finds", "chases", "feeds", "leads"]
ADJECTIVES = ["old", "young", "grey", "brown", "quiet", "loud", "small", "unseen"]
PLACES = ["river", "forest", "meadow", "mountain", "garden", "island"]


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    status: int
    out: str
    err: str


def cli(*args: object) -> Answer:
    """A command in this process, as `polyseme …` runs it; what escapes `main` is status 1 and a traceback."""
    from polyseme.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with (
        mock.patch.object(sys, "argv", ["polyseme", *map(str, args)]),
        mock.patch.object(typer.main, "get_command", made),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = 0 if end.code is None else end.code
        except Exception:
            traceback.print_exc(file=err)
            status = 1
    return Answer(int(status), out.getvalue(), err.getvalue())  # type: ignore[call-overload]


def done(*args: object) -> str:
    """What a command that must succeed prints."""
    answer = cli(*args)
    assert answer.status == 0, f"{args}: {answer.status}\n{answer.out}\n{answer.err}"
    return answer.out


@pytest.fixture(scope="session", name="cli")
def cli_fixture():
    return cli


@pytest.fixture(scope="session", name="done")
def done_fixture():
    return done


def snapshot(folder):
    """Everything below a folder, hidden files too."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def refused(cli, tmp_path):
    """Run a command that must fail; `tmp_path` stays as it was. Returns what was said."""

    def run(*args, says=()):
        before = snapshot(tmp_path)
        answer = cli(*args)
        lines, after = answer.err.splitlines(), snapshot(tmp_path)
        absent = [part for part in ([says] if isinstance(says, str) else says) if not re.search(part, answer.err, re.I)]
        faults = {
            f"status {answer.status}": answer.status != 2,
            f"{len(lines)} lines": len(lines) != 1,
            "no 'error: '": not answer.err.startswith("error: "),
            f"printed {answer.out[:80]!r}": bool(answer.out),
            f"left {sorted(after.keys() ^ before.keys()) or 'a file changed'}": after != before,
            f"does not say {absent}": bool(absent),
        }
        if any(faults.values()):
            shown = "; ".join(fault for fault, holds in faults.items() if holds)
            pytest.fail(f"{args[0]}: {shown}: {' | '.join(lines[-4:])}", pytrace=False)
        return answer.err

    return run


def sentence(draw: random.Random) -> str:
    subject, thing = (f"the {draw.choice(ADJECTIVES)} {draw.choice(ANIMALS)}" for _ in range(2))
    return f"{subject} {draw.choice(VERBS)} {thing} in the {draw.choice(PLACES)}.".capitalize()


def documents(count: int = 36, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(sentence(draw) for _ in range(draw.randint(5, 9))) for _ in range(count)]


def recipe(family: str, **changes: object) -> dict[str, object]:
    """A run of a second, as the JSON that a user writes."""
    found: dict[str, object] = {
        "name": f"tiny-{family}",
        "family": family,
        "model": {"num_layers": 2, "dim": 32, "num_heads": 2, "max_len": 32},
        "objective": {"kind": "MaskedLMWithSentencePairs" if family == "bert" else "CausalLM"},
        "max_len": 32,
        "batch_tokens": 512,
        "micro_batch_tokens": 256,
        "budget": {"steps": 6},
        "optimizer": {"lr": 1e-3},
        "valid_fraction": 0.1,
        "eval_every": 3,
        "eval_tokens": 256,
        "save_every": 2,
        "log_every": 1,
    }
    return found | changes


@dataclass(frozen=True)
class Project:
    """A folder with everything the commands make: `said` has what each printed."""

    path: Path
    said: dict[str, str]

    def __truediv__(self, name: str) -> Path:
        return self.path / name


def task_rows(kind: str, count: int, seed: int) -> str:
    draw = random.Random(seed)
    if kind == "tagging":
        lines = []
        for _ in range(count):
            words = sentence(draw).lower().rstrip(".").split()
            lines.append("".join(f"{w}\t{'B-A' if w in ANIMALS else 'O'}\n" for w in words))
        return "\n".join(lines)
    rows = ["text\tpair\tlabel" if kind == "pair_classification" else "text\tlabel"]
    for i in range(count):
        first, second = sentence(draw), sentence(draw)
        if kind == "regression":
            rows.append(f"{first}\t{first.count('e') / 2}")
        elif kind == "pair_classification":
            rows.append(f"{first[:20].strip()}\t{second[:24].strip()}\t{'yes' if 'fish' in second else 'no'}")
        else:
            rows.append(f"{first}\t{'water' if i % 2 else 'land'}")
    return "\n".join(rows) + "\n"


def lay_glue(folder: Path, rows: int = 12) -> None:
    """GLUE's data sets as they are distributed, small: MRPC as Microsoft has it, with the ids of its dev set."""
    draw = random.Random(0)
    first, second = ([sentence(draw) for _ in range(2 * rows)] for _ in range(2))
    scores = [f"{draw.uniform(0, 5):.3f}" for _ in first]
    tables = {
        "CoLA": ("", [f"gj04\t{i % 2}\t{'' if i % 2 else '*'}\t{s}" for i, s in enumerate(first)]),
        "SST-2": ("sentence\tlabel\n", [f'" {s} \t{i % 2}' for i, s in enumerate(first)]),
        "STS-B": (
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
            [
                f"{i}\tnews\tx\t2012\t1\tnone\tnone\t{a}\t{b}\t{scores[i]}"
                for i, (a, b) in enumerate(zip(first, second))
            ],
        ),
        "WNLI": (
            "index\tsentence1\tsentence2\tlabel\n",
            [f"{i}\t{a}\t{b}\t{i % 2}" for i, (a, b) in enumerate(zip(first, second))],
        ),
    }
    for name, (header, lines) in tables.items():
        (folder / name).mkdir(parents=True)
        for part, chosen in (("train", lines[:rows]), ("dev", lines[rows:])):
            (folder / name / f"{part}.tsv").write_text(header + "\n".join(chosen))
    (folder / "MRPC").mkdir()
    pairs = [f'{i % 2}\t{i}\t{100 + i}\t{a}\t" {b}' for i, (a, b) in enumerate(zip(first, second))]
    top = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    (folder / "MRPC/msr_paraphrase_train.txt").write_text(
        "\n".join([top, *pairs]), encoding="utf-8-sig", newline="\r\n"
    )
    (folder / "MRPC/dev_ids.tsv").write_text("".join(f"{i}\t{100 + i}\n" for i in range(5)))


@pytest.fixture
def glue(tmp_path) -> Path:
    lay_glue(tmp_path / "glue")
    return tmp_path / "glue"


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Project:
    """Text, tokenizers, corpora, pre-trained models and task models, every one of them made by its command."""
    folder = tmp_path_factory.mktemp("project")
    said: dict[str, str] = {}
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents()) + "\n")
    for family, kind in (("bert", "wordpiece"), ("gpt2", "bpe")):
        said[f"tokenizer {family}"] = done(
            "tokenizer", "train", text, "--kind", kind, "--vocab-size", 320, "--out", folder / f"tok-{family}"
        )
        said[f"prepare {family}"] = done(
            "prepare", text, "--tokenizer", folder / f"tok-{family}", "--out", folder / f"corpus-{family}",
            "--split", "blank",
        )  # fmt: skip
        (folder / f"{family}.json").write_text(json.dumps(recipe(family)))
        said[f"pretrain {family}"] = done(
            "pretrain", folder / f"{family}.json", "--corpus", folder / f"corpus-{family}", "--out",
            folder / f"run-{family}",
        )  # fmt: skip
    for kind in ("classification", "pair_classification", "regression", "tagging"):
        ending = "conll" if kind == "tagging" else "tsv"
        files = {part: folder / f"{kind}-{part}.{ending}" for part in ("train", "dev")}
        for seed, file in enumerate(files.values()):
            file.write_text(task_rows(kind, 24, seed))
        said[f"finetune {kind}"] = done(
            "finetune", folder / "run-bert/model", "--task", kind, "--train", files["train"], "--dev", files["dev"],
            "--out", folder / f"run-{kind}", "--set", "epochs=2", "--set", "optimizer.lr=1e-3",
        )  # fmt: skip
    return Project(folder, said)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory) -> dict[str, Path]:
    """Model folders with random weights far from their start, so that every bias and norm shows."""
    from polyseme.families import FAMILIES
    from polyseme.text.tokenizer import Tokenizer
    from polyseme.weights.folder import save_model
    from tests.contracts.cases import EXTRA, fitting

    found = {}
    for family in FAMILIES.values():
        kind = "bpe" if family.tokenizer == "events" else family.tokenizer  # the text of these tests is text
        size = 330 if family.tokenizer != "unigram" else 120  # its text has no more pieces
        texts = iter(documents(60, seed=5))
        tokenizer = Tokenizer.train(kind, texts, size + family.num_sentinels, num_sentinels=family.num_sentinels)
        tokenizer = tokenizer.with_cls_position(family.cls_position)
        extra = EXTRA.get(family.name, {})
        longest = 48 if kind != "characters" else 96  # the same texts
        sizes = fitting(family, num_layers=3, dim=24, num_heads=3, vocab_size=tokenizer.vocab_size, max_len=longest)
        spec = family.model_config(**sizes, **extra)
        model = spec.build(seed=1)
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=generator) * 0.2)
        found[family.name] = tmp_path_factory.mktemp("tiny") / family.name
        save_model(found[family.name], model, tokenizer, {})
    return found
