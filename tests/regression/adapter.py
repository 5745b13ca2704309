"""The adapter of the regression baseline: all that knows the names of commands, options, settings, files and fields.

When any of these is renamed, this file follows and the record stays. Nothing else here imports the package; what is
recorded has names of its own, and `NAMES` says what they are called today.
"""

from __future__ import annotations

import os

# One thread and one set of instructions, before torch is imported; see tests/conftest.py.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import contextlib
import functools
import io
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import typer
from safetensors.torch import load_file

import polyseme

torch.set_num_threads(1)
os.fsync = lambda handle: None  # nothing here has to outlive a power cut

# recipes, tasks, vocabularies, layers, values of settings: the name in the record -> the name today, if another
NAMES = {
    "roles": "srl", "sentinels": "unigram", "modern-tiny": "modernbert-tiny", "bpe-masked": "byte-bpe-roberta",
    "inside": "inside_recurrence", "pair": "pair_classification", "choice": "multiple_choice",
    "span": "extractive_qa",
}  # fmt: skip
SETTINGS = {  # of a run: our name -> the path of --set
    "batch": "batch_tokens", "part": "micro_batch_tokens", "held": "valid_fraction", "measure": "eval_every",
    "measured": "eval_tokens", "save": "save_every", "log": "log_every", "rate": "optimizer.lr",
    "epochs": "epochs", "examples": "batch_size", "cut": "truncate", "auxiliary": "lm_loss_weight",
    "orders": "task.symmetric_pairs", "unfreeze": "unfreeze_every", "width": "task.head.max_span_width",
    "hidden": "task.head.hidden_dim", "size": "network.lstm_dim", "words": "network.word_dim",
    "relu": "network.relu_dim",
    "longest": "max_len", "optimizer": "optimizer.name", "ramp": "batch_warmup_steps",
    "recompute": "gradient_checkpointing", "attention": "model.attention", "place": "model.context_order",
}  # fmt: skip
PREFIXED = {"epochs": "classifier.epochs", "vocabulary": "vocab_size", "target": "target_epochs"}  # of three stages
MASK = {"roberta-tiny": "<mask>"}  # what stands for a mask, where it is not [MASK]
ONCE_MADE = functools.cache(typer.main.get_command)  # typer makes all commands anew at every call, which is slow


def today(name: str) -> str:
    return NAMES.get(name, name)


def command(*args: object) -> str:
    """What a command prints that must succeed, run in this process."""
    from polyseme.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["polyseme", *map(str, args)]),
        mock.patch.object(typer.main, "get_command", ONCE_MADE),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{args[0]} ended with {end.code}: {err.getvalue()[-400:]}") from None
    return out.getvalue()


def options(names: dict[str, str], given: dict[str, object]) -> list[str]:
    return [part for name, value in given.items() for part in ("--set", f"{names[name]}={today(str(value))}")]


def train_tokenizer(kind: str, sources: list[Path], out: Path, size: int | None, marks: int = 0) -> Path:
    sized = ["--vocab-size", size] if size else []
    split = ["--split", "blank"] if len(sources) == 1 else []
    command(
        "tokenizer", "train", *sources, "--kind", today(kind), *sized, "--num-sentinels", marks, *split, "--out", out
    )
    return out


def prepare(source: Path, tokenizer: Path | None, out: Path) -> Path:
    """A corpus of text, or without a tokenizer one of music."""
    tokenizer = tokenizer or Path("events")
    split = ["--split", "blank"] if source.is_file() else []
    command("prepare", source, "--tokenizer", tokenizer, *split, "--num-workers", 1, "--out", out)
    return out


def prepare_pairs(sources: tuple[Path, Path], tokenizer: Path, out: Path) -> Path:
    command("pairs", *sources, "--tokenizer", tokenizer, "--out", out)
    return out


def arrays_of_corpus(folder: Path) -> list[Path]:
    """The files of a corpus that hold its tokens."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".npy", ".bin"))


def recipes() -> list[str]:
    """Every tiny recipe, and those that count."""
    recorded = {value: key for key, value in NAMES.items()}
    names = list(polyseme.list_recipes())
    names = [recorded.get(name, name) for name in names]
    return [name for name in names if name.endswith("-tiny") or name.startswith("ngram")]


def pretrain(recipe: str, corpus: Path, out: Path, **settings: object) -> Path:
    budget = [] if recipe.startswith("ngram") else ["--budget", "5steps"]
    command("pretrain", today(recipe), "--corpus", corpus, "--out", out, *budget, *options(SETTINGS, settings))
    return out


def distill(teacher: Path, corpus: Path, out: Path, **settings: object) -> Path:
    command("distill", teacher, "--corpus", corpus, "--out", out, "--budget", "5steps", *options(SETTINGS, settings))
    return out


def model_of(run: Path) -> Path:
    return run / "model"


def weights(model: Path) -> list[Any]:
    """The tensors of a model folder, without their names."""
    if files := sorted(model.rglob("*.safetensors")):
        return [tensor for path in files for tensor in load_file(path).values()]
    return [torch.from_numpy(np.load(path)) for path in sorted(model.rglob("*.npy"))]


def run_log(run: Path) -> dict[str, list[Any]]:
    """Of each step the losses, the rate and the norm of the gradient; and what was measured on held-out text."""
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    steps, measured = [row for row in rows if "loss" in row], [row for row in rows if "valid" in row]
    return {
        "loss": [sorted(row["loss"].values()) for row in steps],
        "rate": [row.get("lr") for row in steps],
        "gradient": [row.get("grad_norm") for row in steps],
        "held out": [sorted(row["valid"].values()) for row in measured],
    }


def counted(run: Path) -> dict[str, list[Any]]:
    """The same of a run that counts."""
    found = json.loads((run / "results.json").read_text())
    return {"held out": sorted(found["valid"].values()), "sizes": found["ngrams"], "discounts": found["discounts"]}


def encode(model: Path, *texts: str) -> list[int]:
    found = json.loads(command("encode", model, *texts, "--json"))
    return [*found["input_ids"], *found["token_type_ids"]]


def score(model: Path, data: Path) -> list[Any]:
    rows = map(json.loads, command("score", model, "--data", data, "--json").splitlines())
    return [[row["log_prob"], row["num_tokens"]] for row in rows]


def rank_choices(model: Path, data: Path, *more: object) -> list[Any]:
    rows = [json.loads(line) for line in command("score", model, "--choices", data, "--json", *more).splitlines()]
    return [[row["best_index"], *row["normalized_scores"]] for row in rows if "best_index" in row]


def last_words(model: Path, data: Path) -> list[Any]:
    found = json.loads(command("score", model, "--last-words", data, "--json"))
    return [found["accuracy"], found["perplexity"]]


def fill(model: Path, recipe: str) -> list[Any]:
    mask = MASK.get(recipe, "[MASK]")
    guesses = json.loads(command("fill", model, f"The old {mask} sees the {mask} in the garden.", "--json"))
    return [[guess["token"], guess["probability"]] for each in guesses for guess in each]


BY_LENGTH = ["--normalization", "length"]


def after_shots(examples: Path) -> list[object]:
    return [
        "--num-shots",
        2,
        "--examples",
        examples,
        "--normalization",
        "unconditional",
        "--template",
        "{text}: {answer}",
    ]


def follows(model: Path, first: str, second: str) -> str:
    return command("next", model, first, second).strip()


GREEDY, SAMPLED, BEAM = (
    [],
    [
        "--do-sample",
        "--temperature",
        0.9,
        "--top-k",
        20,
        "--top-p",
        0.95,
        "--repetition-penalty",
        1.1,
        "--seed",
        3,
        "--num-return-sequences",
        2,
    ],
    ["--num-beams", 3, "--num-return-sequences", 2, "--length-penalty", 0.8],
)


def generate(model: Path, data: Path, how: list[object]) -> list[Any]:
    rows = map(
        json.loads, command("generate", model, "--data", data, "--max-new-tokens", 8, "--json", *how).splitlines()
    )
    return [[row["text"], row["log_prob"], row["num_tokens"], row["is_finished"]] for row in rows]


def translate(model: Path, data: Path) -> list[str]:
    search = ("--num-beams", 5, "--length-penalty", 1, "--length-offset", 0)  # as when it was recorded
    return command("translate", model, "--data", data, "--max-new-tokens", 12, *search).splitlines()


def play(model: Path, out: Path) -> bytes:
    command("music", model, "--out", out, "--max-len", 40, "--seed", 1)
    return out.read_bytes()


def embed(model: Path, data: Path, out: Path, layers: str, per: str) -> Any:
    command("embed", model, "--data", data, "--layers", today(layers), "--granularity", today(per), "--out", out)
    with np.load(out) as found:
        return torch.from_numpy(found["vectors"])


def neighbors(model: Path, word: str) -> list[Any]:
    rows = json.loads(command("neighbors", model, word, "--top-k", 5, "--json"))
    return [[row["word"], row["cosine"]] for row in rows]


CRF, BILSTM = ["--tag-decoder", "crf"], ["--network", "bilstm"]


def finetune(
    model: Path, files: dict[str, tuple[Path, Path]], out: Path, frozen: bool, *more: object, **settings: Any
) -> Path:
    """Fine-tune for one task or for several, each with its two files; or train a network over frozen features."""
    given: list[object] = ["--features", model] if frozen else [model]
    for task, (train, dev) in files.items():
        given += ["--task", today(task)]
        given += ["--data", train.parent] if task == "roles" else ["--train", train, "--dev", dev]
    command("finetune", *given, "--out", out, *more, *options(SETTINGS, settings))
    return out


def three_stages(general: Path, files: tuple[Path, Path], out: Path, **settings: object) -> Path:
    command("ulmfit", "--text", general, "--train", files[0], "--dev", files[1], "--out", out, "--preset", "tiny",
            "--budget", "4steps", "--direction", "both", *options(PREFIXED, settings))  # fmt: skip
    return out


def models_of_stages(run: Path) -> list[Path]:
    names = ("general", "target", "classifier")
    return [run / f"{name}-{direction}" / "model" for direction in ("forward", "backward") for name in names]


def metrics(run: Path) -> list[Any]:
    """The measures of a run, of several tasks those of each."""
    found = json.loads((run / "results.json").read_text())
    if "rows" in found:
        return [sorted(cell["mean"] if isinstance(cell, dict) else cell for cell in row.values() if cell is not None)
                for row in found["rows"].values()]  # fmt: skip
    each = [task["mean"] for task in found.get("tasks", {}).values()] or [found["mean"]]
    return [sorted(values.values()) for values in each]


def export_ngrams(model: Path, out: Path) -> bytes:
    command("arpa", "export", model, "--out", out)
    return out.read_bytes()


def export_vectors(model: Path, out: Path) -> bytes:
    command("vectors", "export", model, "--out", out)
    return out.read_bytes()


def predict(model: Path, task: str, several: bool, data: Path, out: Path) -> list[Any]:
    """Of each example the answer and how sure the model is of it."""
    more = ["--task", today(task)] if several or task == "roles" else []
    command("predict", model, "--data", data, "--out", out, *more)
    found = []
    for row in map(json.loads, out.read_text(encoding="utf-8").splitlines()):
        answer, shares = row["prediction"], row.get("probabilities", {})
        if "null_score_diff" in row:
            found.append([answer, row["start"], row["end"], row["probability"], row["null_score_diff"]])
        elif isinstance(answer, list):
            found.append([answer, shares] if shares else answer)  # tags, or clusters
        else:
            found.append([answer, list(shares.values()) if isinstance(shares, dict) else shares])
    return found
