# ruff: noqa: E501
"""Every command that writes, with small inputs: for kills and full disks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import run_cli
from tests.support.project import Project, tiny_recipe
from tests.support.studies import TINY as TINY_STUDY
from tests.support.studies import study_json
from tests.support.text import documents, write_glue


@dataclass(frozen=True)
class Inputs:
    """What the commands read: the project, a model folder for each family, and a folder for more."""

    project: Project
    models: dict[str, Path]
    folder: Path

    def write(self, name: str, text: str) -> Path:
        """Write an input file once."""
        path = self.folder / name
        if not path.exists():
            path.write_text(text)
        return path


@dataclass(frozen=True)
class Writer:
    """A command that writes `out`; `resume` is added to continue after a fault."""

    name: str
    args: Callable[[Inputs, Path], Sequence[object]]
    resume: tuple[str, ...] = ()
    suffix: str = ""  # of the output file
    before: Callable[[Inputs, Path], Sequence[object]] | None = None  # a command that must run first


def _finetune(*options: object, task: str = "classification") -> Callable[[Inputs, Path], Sequence[object]]:
    suffix = "conll" if task == "tagging" else "tsv"
    return lambda i, out: (
        "finetune", i.project / "run-bert/model", "--task", task, "--train", i.project / f"{task}-train.{suffix}",
        "--dev", i.project / f"{task}-dev.{suffix}", "--out", out, "--set", "steps=4", *options,
    )  # fmt: skip


def _lines(i: Inputs, count: int = 40) -> Path:
    return i.write(f"lines-{count}.txt", "".join(f"the {n} old cats see the dog\n" for n in range(count)))


def _recipe(i: Inputs, family: str, **changes: object) -> Path:
    return i.write(f"recipe-{family}.json", json.dumps(tiny_recipe(family, **changes)))


def _contrastive(inputs: Inputs, out: Path) -> Sequence[object]:
    pairs = inputs.write("similar.tsv", "text\tpair\n" + "".join(f"{a[:40]}\t{a[40:80]}\n" for a in documents(8)))
    return (
        "finetune",
        inputs.project / "run-bert",
        "--task",
        "contrastive",
        "--train",
        pairs,
        "--dev",
        pairs,
        "--out",
        out,
        "--seeds",
        2,
        "--set",
        "epochs=1",
    )


def _multitask(i: Inputs, out: Path) -> Sequence[object]:
    files = [
        (i.project / f"{t}-train.{s}", i.project / f"{t}-dev.{s}")
        for t, s in (("classification", "tsv"), ("tagging", "conll"))
    ]
    named = [v for name, task, (train, dev) in zip("ab", ("classification", "tagging"), files)
             for v in ("--task", f"{name}={task}", "--train", train, "--dev", dev)]  # fmt: skip
    return ("finetune", i.project / "run-bert/model", *named, "--out", out, "--set", "steps=4", "--seeds", 2)


def _features(i: Inputs, out: Path) -> Sequence[object]:
    return ("finetune", "--features", i.project / "run-bert/model", "--task", "tagging", "--train",
            i.project / "tagging-train.conll", "--dev", i.project / "tagging-dev.conll", "--out", out, "--cache-dir",
            out.parent / "cache", "--set", "steps=4", "--set", "network.lstm_dim=8", "--seeds", 2)  # fmt: skip


def _text_to_text(i: Inputs, out: Path) -> Sequence[object]:
    return ("finetune", i.models["t5"], "--task", "classification", "--train", i.project / "classification-train.tsv",
            "--dev", i.project / "classification-dev.tsv", "--out", out, "--set", "steps=4", "--seeds", 2)  # fmt: skip


def _ulmfit(i: Inputs, out: Path) -> Sequence[object]:
    return ("ulmfit", "--text", i.project / "text.txt", "--train", i.project / "classification-train.tsv", "--dev",
            i.project / "classification-dev.tsv", "--out", out, "--preset", "tiny", "--budget", "2steps")  # fmt: skip


def _benchmark(i: Inputs, out: Path) -> Sequence[object]:
    if not (i.folder / "glue").exists():
        write_glue(i.folder / "glue")
    return ("benchmark", "glue", i.project / "run-bert/model", "--data", i.folder / "glue", "--out", out, "--set",
            "steps=2", "--set", "max_len=32")  # fmt: skip


def _study(i: Inputs, out: Path) -> Sequence[object]:
    if not (i.folder / "data").exists():
        write_glue(i.folder / "data/glue")
    study = i.write("study.json", json.dumps(study_json(metrics=("valid_loss", "cola"), lr_factors=[1.0, 2.0])))
    settings = [word for path, value in TINY_STUDY.items() for word in ("--set", f"{path}={value}")]
    return ("study", study, "--corpus", i.project / "corpus-bert", "--data", i.folder / "data", "--budget", "3steps",
            "--seeds", 1, "--out", out, "--finetune", "steps=2", *settings)  # fmt: skip


def _pairs(i: Inputs, out: Path) -> Sequence[object]:
    rows = "".join(f"the cat sees the {a}\tthe {a} sees the cat\n" for a in documents(40))
    return ("pairs", i.write("pairs.tsv", "en\tde\n" + rows), "--tokenizer", i.project / "tok-bert", "--keys", "en+de",
            "--out", out)  # fmt: skip


def _prepare(i: Inputs, out: Path, name: str = "a", *options: object) -> Sequence[object]:
    text = i.write(f"{name}.txt", "\n\n".join(documents(400, seed=ord(name))))
    return ("prepare", text, "--tokenizer", i.project / "tok-bert", "--out", out, "--split", "blank", "--num-workers",
            1, *options)  # fmt: skip


def _pretrain(family: str, **changes: object) -> Callable[[Inputs, Path], Sequence[object]]:
    kind = "bert" if family == "bert" else "gpt2"
    return lambda i, out: ("pretrain", _recipe(i, family, **changes), "--corpus", i.project / f"corpus-{kind}", "--out", out)  # fmt: skip


_ARPA = "\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n-1.0\t<unk>\n-99\t<s>\t-0.3\n-0.5\t</s>\n-0.7\tcat\t-0.1\n\n\\2-grams:\n-0.2\t<s> cat\n\n\\end\\\n"

WRITERS = [
    Writer("tokenizer train", lambda i, out: ("tokenizer", "train", i.project / "text.txt", "--vocab-size", 300, "--out", out)),
    Writer("tokenizer import", lambda i, out: ("tokenizer", "import", i.project / "tok-bert/vocab.txt", "--out", out)),
    Writer("prepare", _prepare),
    Writer("prepare --append", lambda i, out: _prepare(i, out, "b", "--append"), before=_prepare),
    Writer("pairs", _pairs),
    Writer("describe", lambda i, out: ("describe", i.project / "corpus-bert", "--out", out), suffix=".html"),
    Writer("pretrain bert", _pretrain("bert"), ("--resume",)),
    Writer("pretrain gpt2", _pretrain("gpt2"), ("--resume",)),
    Writer("pretrain ngram", lambda i, out: ("pretrain", "ngram-5", "--corpus", i.project / "corpus-gpt2", "--out", out)),
    Writer("distill", lambda i, out: ("distill", i.project / "run-bert/model", "--corpus", i.project / "corpus-bert", "--out", out, "--budget", "4steps", "--set", "save_every=1", "--set", "batch_tokens=512", "--set", "micro_batch_tokens=256"), ("--resume",)),
    Writer("finetune", _finetune("--seeds", 2)),
    Writer("finetune --keep", _finetune("--seeds", 2, "--keep-seeds", "--keep-checkpoints", 2, "--set", "patience=1")),
    Writer("finetune --grid", _finetune("--grid", "lr=1e-3,1e-4")),
    Writer("finetune tagging", _finetune("--seeds", 2, "--baselines", task="tagging")),
    Writer("finetune multi-task", _multitask),
    Writer("finetune --features", _features),
    Writer("finetune text-to-text", _text_to_text),
    Writer("ulmfit", _ulmfit),
    Writer("benchmark", _benchmark),
    Writer("study", _study),
    Writer("predict", lambda i, out: ("predict", i.project / "run-classification/model", "--data", i.project / "classification-dev.tsv", "--out", out), ("--resume",), ".jsonl"),
    Writer("predict parquet", lambda i, out: ("predict", i.project / "run-classification", "--data", i.project / "classification-dev.tsv", "--out", out), ("--resume",), ".parquet"),
    Writer("score", lambda i, out: ("score", i.project / "run-gpt2", "--data", _lines(i), "--out", out), ("--resume",), ".csv"),
    Writer("search", lambda i, out: ("search", _lines(i), "the cat", "--model", i.project / "run-bert", "--out", out), suffix=".csv"),
    Writer("compare", lambda i, out: ("compare", i.project / "run-bert", i.project / "run-gpt2", "--out", out)),
    Writer("finetune contrastive", _contrastive),
    Writer("embed", lambda i, out: ("embed", i.project / "run-bert/model", "--data", _lines(i), "--out", out), ("--resume",), ".npz"),
    Writer("translate", lambda i, out: ("translate", i.models["t5"], "--data", _lines(i, 6), "--out", out, "--max-new-tokens", 4), ("--resume",), ".txt"),
    Writer("arpa import", lambda i, out: ("arpa", "import", i.write("a.arpa", _ARPA), "--out", out)),
    Writer("vectors import", lambda i, out: ("vectors", "import", i.write("v.txt", "2 3\ncat 1 2 3\ndog 4 5 6\n"), "--out", out)),
]  # fmt: skip


def prepare_folder(writer: Writer, inputs: Inputs, out: Path) -> None:
    """Run the command that must come first, if there is one."""
    if writer.before is not None:
        run_cli(*writer.before(inputs, out))
