"""What must stay the same to the bit while the code is rewritten: losses, weights, ids, scores, texts, predictions.

    python tests/regression/baseline.py record FILE [--only gpt2-tiny,tagging]
    python tests/regression/baseline.py compare FILE [--only gpt2-tiny,tagging]

Every tiny recipe is trained for five steps on generated text, every model is asked what it can answer, and every kind
of task is learned from a handful of examples. `record` writes {section: {key: value}} as JSON; `compare` runs the same
again, prints each difference by section and exits with 1 if there is any. Floats are exact (`float.hex`), tensors are
a shape and a hash, and nothing that is recorded holds a name from the code: when names change, only `adapter.py` has
to follow. Bits depend on the processor and on the version of torch, which the file states.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adapter  # before torch, whose threads it sets
import material
import torch


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
    return sorted(exact(tensor) for tensor in adapter.weights(model))


def whole(values: list[str]) -> str:
    """Many hashes as one."""
    return f"{len(values)}:{hashlib.sha256(' '.join(values).encode()).hexdigest()[:16]}"


class Workshop:
    """A folder in which corpora and models are made when a section first asks for them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.text = material.text(folder / "text.txt")
        self.lines = material.lines(folder / "lines.txt", material.LINES)
        self.events = material.lines(folder / "events.txt", material.EVENTS)
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
            return adapter.prepare_pairs(
                sources, adapter.train_tokenizer("bpe", list(sources), self.new(), 380), self.new()
            )
        if kind == "events":
            return adapter.prepare(material.music(self.new()), None, self.new())
        marks = 100 if kind == "sentinels" else 0
        size = {"words": None, "characters": None, "unigram": 230, "sentinels": 330}.get(kind, 400)
        return adapter.prepare(
            self.text, adapter.train_tokenizer(kind, [self.text], self.new(), size, marks), self.new()
        )

    def run(self, recipe: str) -> Path:
        kind, given = CORPORA[recipe], {}
        if not recipe.startswith("ngram"):
            given = dict(PRETRAINING)
        if recipe in BY_WORDS:
            given |= dict(batch=2048, part=2048)
        return self.once(recipe, lambda: adapter.pretrain(recipe, self.corpus(kind), self.new(), held=0.1, **given))

    def model(self, recipe: str) -> Path:
        return adapter.model_of(self.run(recipe))

    def labeled(self, kind: str) -> tuple[Path, Path]:
        folder = self.once(f"task {kind}", self.new)
        if folder.exists():
            return tuple(sorted(folder.iterdir(), reverse=True))  # type: ignore[return-value]
        folder.mkdir()
        return material.labeled(folder, kind)


PRETRAINING: dict[str, Any] = dict(batch=1024, part=512, measure=3, measured=512, save=2, log=1)
BY_WORDS = ("word2vec-tiny", "cbow-tiny", "fasttext-tiny", "glove-tiny")
CORPORA = {
    **dict.fromkeys(("bert-tiny", "spanbert-tiny", "distilbert-tiny", "modern-tiny", "gpt-bert-tiny"), "wordpiece"),
    "ngram-3": "wordpiece",
    **dict.fromkeys(("gpt-tiny", "gpt2-tiny", "transformer_xl-tiny", "nnlm-tiny", "ulmfit-tiny"), "bpe"),
    **dict.fromkeys(("rnn_lm-tiny", "taglm-tiny"), "bpe"),
    **dict.fromkeys(("albert-tiny", "xlnet-tiny"), "unigram"),
    **dict.fromkeys((*BY_WORDS, "elmo-tiny", "ngram-5"), "words"),
    **dict.fromkeys(("seq2seq-tiny", "transformer-tiny"), "pairs"),
    **dict.fromkeys(("music-tiny", "performance_rnn-tiny"), "events"),
    **{"roberta-tiny": "bpe-masked", "t5-tiny": "sentinels", "flair-tiny": "characters"},
}
MASKED = ("bert-tiny", "roberta-tiny", "albert-tiny", "spanbert-tiny", "distilbert-tiny", "modern-tiny", "xlnet-tiny")
PAIRED = ("bert-tiny", "albert-tiny")
CAUSAL = ("gpt-tiny", "gpt2-tiny", "transformer_xl-tiny", "nnlm-tiny", "ulmfit-tiny", "rnn_lm-tiny")
BOTH_WAYS = ("elmo-tiny", "flair-tiny", "taglm-tiny")
COUNTED = ("ngram-3", "ngram-5")
SOURCED = ("t5-tiny", "seq2seq-tiny", "transformer-tiny")
PLAYED = ("music-tiny", "performance_rnn-tiny")
UNEVEN = ("nnlm-tiny", "ulmfit-tiny", "flair-tiny")  # their layers have several sizes
QUICK: dict[str, Any] = dict(epochs=1, examples=4, rate=1e-3, cut="true")


def corpora(shop: Workshop) -> Iterator[tuple[str, Any]]:
    for kind in sorted(set(CORPORA.values())):
        yield kind, sorted(exact(path.read_bytes()) for path in adapter.arrays_of_corpus(shop.corpus(kind)))


def trained(shop: Workshop, recipe: str) -> Iterator[tuple[str, Any]]:
    """A recipe's run, and all that its model can be asked."""
    run, model = shop.run(recipe), shop.model(recipe)
    yield from (adapter.counted(run) if recipe in COUNTED else adapter.run_log(run)).items()
    yield "tensors", tensors(model)
    texts, file = (material.EVENTS, shop.events) if recipe in PLAYED else (material.LINES, shop.lines)
    yield "ids", [adapter.encode(model, line) for line in texts]
    if recipe not in COUNTED:
        yield "ids of a pair", adapter.encode(model, *texts[:2])
        for layers, per in (("last", "text"), ("last", "word"), ("embeddings" if recipe in UNEVEN else "all", "token")):
            yield f"vectors of {layers}, {per}", adapter.embed(model, file, shop.new(".npz"), layers, per)
    if recipe in (*MASKED, *CAUSAL, *BOTH_WAYS, *PLAYED, *COUNTED):
        yield "scores", adapter.score(model, file)
    if recipe in (*MASKED, *CAUSAL, *BOTH_WAYS):
        yield "scores of choices", adapter.rank_choices(model, shop.labeled("choice")[1])
        yield "scores by length", adapter.rank_choices(model, shop.labeled("choice")[1], *adapter.BY_LENGTH)
        yield "scores of last words", adapter.last_words(model, shop.lines)
    if recipe in CAUSAL:
        train, dev = shop.labeled("choice")
        yield "scores after shots", adapter.rank_choices(model, dev, *adapter.after_shots(train))
    if recipe in MASKED:
        yield "fillings", adapter.fill(model, recipe)
    if recipe in PAIRED:
        yield "follows", adapter.follows(model, *material.LINES[:2])
    if recipe in (*CAUSAL, *SOURCED, *PLAYED, *COUNTED, "xlnet-tiny"):
        for name, how in (("greedy", adapter.GREEDY), ("sampled", adapter.SAMPLED), ("beam", adapter.BEAM)):
            yield f"texts, {name}", adapter.generate(model, shop.events if recipe in PLAYED else shop.prompts, how)
    if recipe in SOURCED:
        yield "translations", adapter.translate(model, shop.prompts)
    if recipe in PLAYED:
        yield "piece", adapter.play(model, shop.new(".mid"))
    if recipe in BY_WORDS:
        yield "neighbors", [adapter.neighbors(model, word) for word in ("cat", "garden")]
    if recipe == "fasttext-tiny":
        yield "neighbors of a new word", adapter.neighbors(model, "catfish")
    if recipe == "word2vec-tiny":
        yield "file", adapter.export_vectors(model, shop.new(".txt"))
    if recipe in COUNTED:
        yield "file", adapter.export_ngrams(model, shop.new(".arpa"))
    if recipe in (*MASKED, *CAUSAL, *BOTH_WAYS, "t5-tiny"):
        settings = {"auxiliary": 0} if recipe == "gpt-tiny" else {}  # as when it was recorded; 0.5 is the default now
        for name, value in tuned(shop, recipe, ("classification",), **settings):
            yield f"classifier, {name}", whole(value) if name == "tensors" else value


def tuned(
    shop: Workshop,
    recipe: str,
    tasks: tuple[str, ...],
    more: tuple[object, ...] = (),
    frozen: bool = False,
    **settings: Any,
) -> Iterator[tuple[str, Any]]:
    """One fine-tuning, or a network over frozen features."""
    files = {task: shop.labeled(task) for task in tasks}
    run = adapter.finetune(shop.model(recipe), files, shop.new(), frozen, *more, **QUICK | settings)
    yield "loss", adapter.run_log(run)["loss"]
    yield "metrics", adapter.metrics(run)
    yield "tensors", tensors(adapter.model_of(run))
    for task, (_, dev) in files.items():
        found = adapter.predict(adapter.model_of(run), task, len(tasks) > 1, dev, shop.new(".jsonl"))
        yield f"predictions, {task}", found


def stages(shop: Workshop) -> Iterator[tuple[str, Any]]:
    """A general language model, the same on the text of a task, and a classifier, in both directions."""
    files = shop.labeled("classification")
    run = adapter.three_stages(shop.text, files, shop.new(), vocabulary=400, target=0.2, epochs=4)
    yield "metrics", adapter.metrics(run)
    for number, model in enumerate(adapter.models_of_stages(run)):
        yield f"tensors {number}", tensors(model)


def varied(shop: Workshop, recipe: str, **settings: object) -> Iterator[tuple[str, Any]]:
    """A recipe with other settings than its own."""
    run = adapter.pretrain(recipe, shop.corpus(CORPORA[recipe]), shop.new(), held=0.1, **PRETRAINING | settings)
    yield from adapter.run_log(run).items()
    yield "tensors", whole(tensors(adapter.model_of(run)))


def distilled(shop: Workshop) -> Iterator[tuple[str, Any]]:
    run = adapter.distill(shop.model("bert-tiny"), shop.corpus("wordpiece"), shop.new(), **PRETRAINING, held=0.1)
    yield from adapter.run_log(run).items()
    yield "tensors", tensors(adapter.model_of(run))


def sections() -> dict[str, Callable[[Workshop], Iterator[tuple[str, Any]]]]:
    """The name of every section, and what makes its keys and values."""

    def task(recipe: str, *tasks: str, more: Any = (), **settings: Any) -> Callable[..., Any]:
        return functools.partial(tuned, recipe=recipe, tasks=tasks, more=tuple(more), **settings)

    over: dict[str, Any] = dict(frozen=True, size=16, words=8)
    found: dict[str, Callable[..., Any]] = {"corpora": corpora}
    found |= {recipe: functools.partial(trained, recipe=recipe) for recipe in adapter.recipes()}
    return found | {
        "muon": functools.partial(varied, recipe="gpt2-tiny", optimizer="muon"),
        "averaged": functools.partial(varied, recipe="rnn_lm-tiny", optimizer="nt_asgd", measure=1),
        "ramp": functools.partial(varied, recipe="bert-tiny", ramp=3),
        "recomputed": functools.partial(varied, recipe="bert-tiny", recompute="true"),
        "additive": functools.partial(varied, recipe="seq2seq-tiny", attention="additive", place="inside"),
        "distillation": distilled,
        "classification": task("bert-tiny", "classification"),
        "pair": task("bert-tiny", "pair"),
        "regression": task("bert-tiny", "regression"),
        "choice": task("bert-tiny", "choice"),
        "tagging": task("bert-tiny", "tagging", epochs=6, rate=3e-3),
        "tagging-crf": task("bert-tiny", "tagging", more=adapter.CRF, epochs=6, rate=3e-3),
        "span": task("bert-tiny", "span", longest=48),
        "coreference": task("bert-tiny", "coreference", width=3, hidden=24, epochs=20, rate=3e-3),
        "roles": task("bert-tiny", "roles"),
        "gradual": task("bert-tiny", "classification", unfreeze=0.34, epochs=3),
        "text-to-text": task("t5-tiny", "classification"),
        "text-to-text-pair": task("t5-tiny", "pair"),
        "text-to-text-span": task("t5-tiny", "span", longest=64),
        "several": task("bert-tiny", "pair", "tagging", "regression"),
        "features-tagging": task("elmo-tiny", "tagging", more=adapter.BILSTM, epochs=15, rate=1e-2, **over),
        "features-pair": task("bert-tiny", "pair", **over),
        "features-classification": task("flair-tiny", "classification", relu=0, **over),
        "features-span": task("elmo-tiny", "span", **over),
        "auxiliary": task("gpt-tiny", "pair", auxiliary=0.5, orders="true"),
        "auxiliary-choice": task("gpt2-tiny", "choice", auxiliary=0.5),
        "stages": stages,
    }


def machine() -> dict[str, str]:
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        rows = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((row.partition(":")[2].strip() for row in rows if row.startswith("model name")), processor)
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


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
        if "error" in found.get(name, {}) and lines:
            lines = [f"{name} failed: {found[name]['error']}"]
        different += bool(lines)
        for line in lines[: given.most]:
            print(line)
        if len(lines) > given.most:
            print(f"{name}: {len(lines) - given.most} more differences")
    print(f"{len(found)} sections, {different} differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
