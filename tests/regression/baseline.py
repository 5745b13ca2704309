"""What must stay the same to the bit while the code is rewritten: losses, weights, ids, scores, texts, predictions.

    python tests/regression/baseline.py record FILE [--only gpt2-tiny,tagging]
    python tests/regression/baseline.py compare FILE [--only gpt2-tiny,tagging]

Every tiny recipe is trained for five steps on generated text, every model is asked what it can answer, and every kind
of task is learned from a handful of examples. `record` writes {section: {key: value}} as JSON; `compare` runs the same
again, prints each difference by section and exits with 1 if there is any. Floats are exact (`float.hex`), tensors are
a shape and a hash, and nothing that is recorded holds a name from the code: when names change, only the adapter below
has to follow. Bits depend on the processor and on the version of torch, which the file states.
"""

from __future__ import annotations

import os

# One thread and one set of instructions, before torch is imported; see tests/conftest.py.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import argparse
import contextlib
import functools
import hashlib
import io
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import material
import numpy as np
import torch
import typer
from safetensors.torch import load_file

torch.set_num_threads(1)
os.fsync = lambda handle: None  # nothing here has to outlive a power cut

# --- adapter: all that knows the names of commands, options, settings, files and their fields ------------------------

SETTINGS = {  # of a run: our name -> the path of --set
    "batch": "batch_tokens", "part": "bin_tokens", "held": "holdout", "measure": "eval_every",
    "measured": "eval_tokens", "save": "save_every", "log": "log_every", "rate": "optim.rate",
    "epochs": "epochs", "examples": "batch_size", "cut": "truncate", "auxiliary": "auxiliary",
    "orders": "both_orders", "unfreeze": "unfreeze", "width": "coreference.width", "hidden": "coreference.hidden",
    "size": "network.size", "words": "network.word_dim", "longest": "max_len", "layers": "model.num_layers",
}  # fmt: skip
PREFIXED = {"epochs": "classifier.epochs", "vocabulary": "vocab_size", "target": "target_epochs"}  # of three stages
ONCE_MADE = functools.cache(typer.main.get_command)  # typer makes all commands anew at every call, which is slow


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
    return [part for name, value in given.items() for part in ("--set", f"{names[name]}={value}")]


def train_tokenizer(kind: str, sources: list[Path], out: Path, size: int | None, marks: int = 0) -> Path:
    sized = ["--vocab-size", size] if size else []
    split = ["--split", "blank"] if len(sources) == 1 else []
    command("tokenizer", "train", *sources, "--kind", kind, *sized, "--sentinels", marks, *split, "--out", out)
    return out


def prepare(source: Path, tokenizer: str | Path, out: Path) -> Path:
    split = ["--split", "blank"] if source.is_file() else []
    command("prepare", source, "--tokenizer", tokenizer, *split, "--workers", 1, "--out", out)
    return out


def prepare_pairs(sources: tuple[Path, Path], tokenizer: Path, out: Path) -> Path:
    command("pairs", *sources, "--tokenizer", tokenizer, "--out", out)
    return out


def arrays_of_corpus(folder: Path) -> list[Path]:
    """The files of a corpus that hold its tokens."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".npy", ".bin"))


def recipes() -> list[str]:
    """Every tiny recipe, and those that count."""
    names = [line.split()[0] for line in command("recipes").splitlines()[1:]]
    return [name for name in names if name.endswith("-tiny") or name.startswith("ngram")]


def pretrain(recipe: str, corpus: Path, out: Path, **settings: object) -> Path:
    budget = [] if recipe.startswith("ngram") else ["--budget", "5steps"]
    command("pretrain", recipe, "--corpus", corpus, "--out", out, *budget, *options(SETTINGS, settings))
    return out


def distill(teacher: Path, corpus: Path, out: Path, **settings: object) -> Path:
    command("distil", teacher, "--corpus", corpus, "--out", out, "--budget", "5steps", *options(SETTINGS, settings))
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
        "rate": [row.get("rate") for row in steps],
        "gradient": [row.get("gradient") for row in steps],
        "held out": [sorted(row["valid"].values()) for row in measured],
    }


def counted(run: Path) -> dict[str, list[Any]]:
    """The same of a run that counts."""
    found = json.loads((run / "results.json").read_text())
    return {"held out": sorted(found["valid"].values()), "sizes": found["ngrams"], "discounts": found["discounts"]}


def encode(model: Path, *texts: str) -> list[int]:
    found = json.loads(command("encode", model, *texts, "--json"))
    return [*found["ids"], *found["segments"]]


def score(model: Path, data: Path) -> list[Any]:
    rows = map(json.loads, command("score", model, "--data", data, "--json").splitlines())
    return [[row["log_probability"], row["tokens"]] for row in rows]


def choose(model: Path, data: Path, *more: object) -> list[Any]:
    rows = [json.loads(line) for line in command("score", model, "--choices", data, "--json", *more).splitlines()]
    return [[row["best"], *row["values"]] for row in rows if "best" in row]


def last_words(model: Path, data: Path) -> list[Any]:
    found = json.loads(command("score", model, "--last-words", data, "--json"))
    return [found["accuracy"], found["perplexity"]]


def fill(model: Path, text: str) -> list[Any]:
    guesses = json.loads(command("fill", model, text, "--json"))
    return [[guess["piece"], guess["probability"]] for each in guesses for guess in each]


def follows(model: Path, first: str, second: str) -> str:
    return command("next", model, first, second).strip()


GREEDY, SAMPLED, BEAM = (
    [],
    ["--sample", "--temperature", 0.9, "--top-k", 20, "--top-p", 0.95, "--repetition", 1.1, "--seed", 3, "--copies", 2],
    ["--beams", 3, "--best", 2, "--penalty", 0.8],
)


def generate(model: Path, data: Path, how: list[object]) -> list[Any]:
    rows = map(json.loads, command("generate", model, "--data", data, "--most", 8, "--json", *how).splitlines())
    return [[row["text"], row["log_probability"], row["tokens"], row["finished"]] for row in rows]


def translate(model: Path, data: Path) -> list[str]:
    return command("translate", model, "--data", data, "--most", 12).splitlines()


def play(model: Path, out: Path) -> bytes:
    command("music", model, "--out", out, "--length", 40, "--seed", 1)
    return out.read_bytes()


def embed(model: Path, data: Path, out: Path, layers: str, per: str) -> Any:
    command("embed", model, "--data", data, "--layers", layers, "--per", per, "--out", out)
    with np.load(out) as found:
        return torch.from_numpy(found["vectors"])


def neighbors(model: Path, word: str) -> list[Any]:
    rows = json.loads(command("neighbours", model, word, "--top", 5, "--json"))
    return [[row["word"], row["cosine"]] for row in rows]


def finetune(model: Path | None, tasks: dict[str, tuple[Path, ...]], out: Path, *more: object, **settings: Any) -> Path:
    """Each task with its two files, or with the folder of a data set."""
    given: list[object] = [] if model is None else [model]
    for task, files in tasks.items():
        given += ["--task", task]
        given += ["--train", files[0], "--dev", files[1]] if len(files) == 2 else ["--data", files[0]]
    command("finetune", *given, "--out", out, *more, *options(SETTINGS, settings))
    return out


def three_stages(general: Path, files: tuple[Path, Path], out: Path, **settings: object) -> Path:
    command("ulmfit", "--text", general, "--train", files[0], "--dev", files[1], "--out", out, "--preset", "tiny",
            "--budget", "4steps", "--direction", "both", *options(PREFIXED, settings))  # fmt: skip
    return out


def metrics(run: Path) -> list[Any]:
    """The measures of a run, of several tasks those of each."""
    found = json.loads((run / "results.json").read_text())
    if "rows" in found:
        return [sorted(cell["mean"] if isinstance(cell, dict) else cell for cell in row.values() if cell is not None)
                for row in found["rows"].values()]  # fmt: skip
    each = [task["mean"] for task in found.get("tasks", {}).values()] or [found["mean"]]
    return [sorted(values.values()) for values in each]


def predict(model: Path, data: Path, out: Path, *more: object) -> list[Any]:
    """Of each example the answer and how sure the model is of it."""
    command("predict", model, "--data", data, "--out", out, *more)
    found = []
    for row in map(json.loads, out.read_text(encoding="utf-8").splitlines()):
        if "clusters" in row:
            found.append(row["clusters"])
        elif "question" in row:
            found.append([row["text"], row["start"], row["end"], row["probability"], row["odds"]])
        elif "tags" in row:
            found.append([row["tags"], row["tag_probabilities"]])
        else:
            found.append([row["label"], list(row.get("probabilities", {}).values())])
    return found


# --- what is recorded ------------------------------------------------------------------------------------------------


def exact(value: Any) -> Any:
    """The value as JSON, with every float to the bit and every tensor as a shape and a hash."""
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        raw = data.flatten().view(torch.uint8).numpy().tobytes() if data.numel() else b""
        return f"{'x'.join(map(str, data.shape)) or 'scalar'}:{hashlib.sha256(raw).hexdigest()[:16]}"
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()[:16]
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    return value


def tensors(model: Path) -> list[str]:
    return sorted(exact(tensor) for tensor in weights(model))


class Workshop:
    """A folder in which corpora and models are made when a section first asks for them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.text = material.text(folder / "text.txt")
        self.lines = material.lines(folder / "lines.txt", material.LINES)
        self.prompts = material.lines(folder / "prompts.txt", material.QUESTIONS)
        self.made: dict[str, Path] = {}
        self.count = 0

    def new(self, ending: str = "") -> Path:
        self.count += 1
        return self.folder / f"made-{self.count}{ending}"

    def once(self, name: str, make: Callable[[], Path]) -> Path:
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def corpus(self, kind: str) -> Path:
        return self.once(f"corpus {kind}", lambda: self._corpus(kind))

    def _corpus(self, kind: str) -> Path:
        if kind == "pairs":
            sources = material.parallel(self.folder)
            return prepare_pairs(sources, train_tokenizer("bpe", list(sources), self.new(), 380), self.new())
        if kind == "events":
            return prepare(material.music(self.new()), "events", self.new())
        trained, marks = ("unigram", 100) if kind == "sentinels" else (kind, 0)
        size = None if kind in ("words", "characters") else 230 + marks if trained == "unigram" else 400
        return prepare(self.text, train_tokenizer(trained, [self.text], self.new(), size, marks), self.new())

    def run(self, recipe: str) -> Path:
        kind, given = CORPORA[recipe], {}
        if not recipe.startswith("ngram"):
            given = dict(batch=1024, part=512, measure=3, measured=512, save=2, log=1)
        if recipe in BY_WORDS:
            given |= dict(batch=2048, part=2048)
        return self.once(recipe, lambda: pretrain(recipe, self.corpus(kind), self.new(), held=0.1, **given))

    def model(self, recipe: str) -> Path:
        return model_of(self.run(recipe))

    def labeled(self, kind: str) -> tuple[Path, Path]:
        folder = self.once(f"task {kind}", self.new)
        if folder.exists():
            return tuple(sorted(folder.iterdir(), reverse=True))  # type: ignore[return-value]
        folder.mkdir()
        return material.labeled(folder, kind)


BY_WORDS = ("word2vec-tiny", "cbow-tiny", "fasttext-tiny", "glove-tiny")
CORPORA = {
    **dict.fromkeys(("bert-tiny", "spanbert-tiny", "distilbert-tiny", "modern-tiny", "ngram-3"), "wordpiece"),
    **dict.fromkeys(("gpt-tiny", "gpt2-tiny", "transformer_xl-tiny", "nnlm-tiny", "ulmfit-tiny"), "bpe"),
    **dict.fromkeys(("rnn_lm-tiny", "taglm-tiny"), "bpe"),
    **dict.fromkeys(("albert-tiny", "xlnet-tiny"), "unigram"),
    **dict.fromkeys((*BY_WORDS, "elmo-tiny", "ngram-5"), "words"),
    **dict.fromkeys(("seq2seq-tiny", "transformer-tiny"), "pairs"),
    **dict.fromkeys(("music-tiny", "performance_rnn-tiny"), "events"),
    **{"roberta-tiny": "bpe-masked", "t5-tiny": "sentinels", "flair-tiny": "characters"},
}
MASKED = ("bert-tiny", "roberta-tiny", "albert-tiny", "spanbert-tiny", "distilbert-tiny", "modern-tiny")
CAUSAL = ("gpt-tiny", "gpt2-tiny", "transformer_xl-tiny", "nnlm-tiny", "ulmfit-tiny", "rnn_lm-tiny")
COUNTED = ("ngram-3", "ngram-5")
SOURCED = ("t5-tiny", "seq2seq-tiny", "transformer-tiny")


def corpora(shop: Workshop) -> Iterator[tuple[str, Any]]:
    for kind in sorted(set(CORPORA.values())):
        yield kind, sorted(exact(path.read_bytes()) for path in arrays_of_corpus(shop.corpus(kind)))


def trained(shop: Workshop, recipe: str) -> Iterator[tuple[str, Any]]:
    """A recipe's run, and all that its model can be asked."""
    run, model = shop.run(recipe), shop.model(recipe)
    yield from (counted(run) if recipe in COUNTED else run_log(run)).items()
    yield "tensors", tensors(model)


def sections() -> dict[str, Callable[[Workshop], Iterator[tuple[str, Any]]]]:
    """The name of every section, and what makes its keys and values."""
    found = {"corpora": corpora}
    return found | {recipe: functools.partial(trained, recipe=recipe) for recipe in recipes()}


def machine() -> dict[str, str]:
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        rows = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((row.partition(":")[2].strip() for row in rows if row.startswith("model name")), processor)
    return {"torch": torch.__version__, "python": platform.python_version(), "processor": processor}


def measure(only: list[str]) -> dict[str, dict[str, Any]]:
    known = sections()
    if unknown := [name for name in only if name not in known]:
        sys.exit(f"no section {', '.join(unknown)}; there are {', '.join(known)}")
    found: dict[str, dict[str, Any]] = {}
    folder = Path(tempfile.mkdtemp(prefix="baseline-"))
    try:
        shop = Workshop(folder)
        for name in only or known:
            began, values = time.perf_counter(), {}
            try:
                for key, value in known[name](shop):
                    values[key] = exact(value)
            except Exception as error:
                values = {"error": f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER")}
            found[name] = values
            print(f"{time.perf_counter() - began:6.1f} s  {name}  {values.get('error', '')}", file=sys.stderr)
    finally:
        shutil.rmtree(folder)
    return found


def differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """A line for each place where two values differ; lists of one length are compared item by item."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(f"{path} {key}", old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new)):
            yield from differences(f"{path}[{place}]", one, other)
    elif old != new:
        shown = [str(value) if len(str(value)) < 100 else f"{str(value)[:97]}..." for value in (old, new)]
        with contextlib.suppress(ValueError, TypeError):
            gap = float.fromhex(new) - float.fromhex(old) if "0x" in old and "0x" in new else None
            shown.append(f"difference {gap:.3g}" if gap is not None else "")
        yield f"{path}: {shown[0]} -> {shown[1]}" + (f" ({shown[2]})" if len(shown) > 2 and shown[2] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="sections, with commas between")
    parser.add_argument("--most", type=int, default=5, help="how many differences of a section are printed")
    given = parser.parse_args()
    before = json.loads(given.file.read_text()) if given.mode == "compare" else {}
    found = measure([name for name in given.only.split(",") if name])
    if given.mode == "record":
        rows = {"machine": machine(), **found}
        body = ",\n".join(
            f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in rows.items()
        )
        given.file.write_text("{\n" + body + "\n}\n")
        failed = [name for name, values in found.items() if "error" in values]
        sys.exit(f"recorded with errors in {', '.join(failed)}" if failed else 0)
    if before["machine"] != machine():
        print(f"note: recorded on {before['machine']}, this is {machine()}: bits may differ for that alone")
    expected = {name: values for name, values in before.items() if name != "machine"}
    if given.only:
        expected = {name: values for name, values in expected.items() if name in found}
    different = 0
    for name in [*expected, *(name for name in found if name not in expected)]:
        lines = list(differences(name, expected.get(name), found.get(name)))
        different += bool(lines)
        for line in lines[: given.most]:
            print(line)
        if len(lines) > given.most:
            print(f"{name}: {len(lines) - given.most} more differences")
    print(f"{len(found)} sections, {different} differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
