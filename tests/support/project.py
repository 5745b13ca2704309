"""A folder with the output of every basic command."""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import run_cli
from tests.support.text import documents, task_rows


@dataclass(frozen=True)
class Project:
    """A folder with everything that the commands write, and what each printed."""

    path: Path
    output: dict[str, str]

    def __truediv__(self, name: str) -> Path:
        return self.path / name


def tiny_recipe(family: str, **changes: object) -> dict[str, object]:
    """Return a recipe for a run of one second, as the JSON that a user writes."""
    settings: dict[str, object] = {
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
    return settings | changes


def build_project(folder: Path) -> Project:
    """Build text, tokenizers, corpora, pre-trained models and task models with the commands."""
    output: dict[str, str] = {}
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents()) + "\n")
    for family, kind in (("bert", "wordpiece"), ("gpt2", "bpe")):
        tokenizer, corpus, recipe = folder / f"tok-{family}", folder / f"corpus-{family}", folder / f"{family}.json"
        output[f"tokenizer {family}"] = run_cli(
            "tokenizer", "train", text, "--kind", kind, "--vocab-size", 320, "--out", tokenizer
        )
        output[f"prepare {family}"] = run_cli(
            "prepare", text, "--tokenizer", tokenizer, "--out", corpus, "--split", "blank"
        )
        recipe.write_text(json.dumps(tiny_recipe(family)))
        output[f"pretrain {family}"] = run_cli(
            "pretrain", recipe, "--corpus", corpus, "--out", folder / f"run-{family}"
        )
    for task in ("classification", "pair_classification", "regression", "tagging"):
        suffix = "conll" if task == "tagging" else "tsv"
        files = [folder / f"{task}-{split}.{suffix}" for split in ("train", "dev")]
        for seed, file in enumerate(files):
            file.write_text(task_rows(task, 24, seed))
        output[f"finetune {task}"] = run_cli(
            "finetune", folder / "run-bert/model", "--task", task, "--train", files[0], "--dev", files[1],
            "--out", folder / f"run-{task}", "--set", "epochs=2", "--set", "optimizer.lr=1e-3",
        )  # fmt: skip
    return Project(folder, output)
