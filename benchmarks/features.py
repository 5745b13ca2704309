"""Frozen features and the networks over them on tagging: every row of every table, mean and deviation over seeds.

    python benchmarks/features.py MODELS --data FOLDER --out FOLDER [--tables lineage elmo layers]
        [--tasks wnut-17 ud-pos] [--seeds 3] [--jobs 4] [--words VECTORS] [--epochs N] [--limit SENTENCES]

MODELS is a folder of model folders (or of run folders, with `model` in them) by these names: `forward` and `backward`,
or `taglm` for both in one (recurrent language models), `elmo`, `flair`, `encoder` (for the table by layers), `words`
(word vectors; or a file of them `words.*`, or --words). A row whose model is not there is left out, and said.

Tables: `lineage`, a BiLSTM-CRF over word vectors alone, + TagLM, + ELMo, + Flair, with two layers in all rows; `elmo`,
which layers, which λ, and where (Peters et al. 2018, tables 2 and 3); `layers`, the encoder fine-tuned and by layers
(Devlin et al. 2019, table 7: two BiLSTM layers over features and nothing else, each tag by itself).

Nothing has to be installed: PYTHONPATH=src:benchmarks is enough. First every model reads all sentences, once; then each
(row, task, seed) is one run in one of `--jobs` processes, which share the GPU. OUT/results.json holds what is done
after every run, and the same command goes on from there; one that fails is there with its error and is tried again.
Figures are the primary metric × 100 after the last epoch, on the dev examples and on the test examples.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glue import begin
from report import header, table

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import PolysemeError
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.frozen import FeatureInputs
from polyseme.inference.feature_extraction import FeatureEncoder, extract_features
from polyseme.io.json import read_json, write_json
from polyseme.nn.layer_selection import FEATURE_SELECTIONS
from polyseme.tasks.tagging import TaggingTask

TABLES = ("lineage", "elmo", "layers")
EPOCHS = {"wnut-17": 15.0, "ud-pos": 5.0}  # of networks; of fine-tuning always 3
PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class Row:
    """One row of a table: the models that are frozen, and what differs from the usual network."""

    table: str
    name: str
    models: tuple[str, ...] = ()
    words: bool = True
    finetuned: bool = False
    decoder: str = "crf"
    network: dict[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> str:
        return str(self.network.get("layers", "scalar_mix"))


def rows_of(names: Iterable[str]) -> list[Row]:
    """Every row, for the models that there are."""
    taglm = ("forward", "backward") if {"forward", "backward"} <= set(names) else ("taglm",)
    two = {"num_layers": 2}
    found = [
        Row("lineage", "word vectors alone", network=two),
        Row("lineage", "+ TagLM", taglm, network={**two, "layers": "last", "join_at": "between"}),
        Row("lineage", "+ ELMo", ("elmo",), network=two),
        Row("lineage", "+ Flair", ("flair",), network={**two, "layers": "last"}),
        Row("elmo", "word vectors alone"),
        Row("elmo", "last layer", ("elmo",), network={"layers": "last"}),
        *(Row("elmo", f"all layers, λ = {rate:g}", ("elmo",), network={"mix_penalty": rate}) for rate in (1.0, 0.001)),
        Row("elmo", "λ = 0.001, at the output", ("elmo",), network={"join_at": "output"}),
        Row("elmo", "λ = 0.001, at both ends", ("elmo",), network={"join_at": "both"}),
        Row("layers", "fine-tuned", ("encoder",), False, True, "softmax"),
    ]
    bare = {**two, "word_dim": 0, "use_char_cnn": False}
    choices = (
        Row("layers", name, ("encoder",), False, False, "softmax", {**bare, "layers": name})
        for name in FEATURE_SELECTIONS
    )
    return [*found, *choices]


@dataclass(frozen=True)
class Job:
    """One run, and all that its figure depends on; its row by name."""

    table: str
    row: str
    task: str
    seed: int
    epochs: float
    limit: int = 0  # sentences of each part, 0 for all
    models: str = ""  # the folder they are from
    words: str = ""

    @property
    def name(self) -> str:
        return f"{self.table}: {self.row}, {self.task}, seed {self.seed}"


@dataclass(frozen=True)
class Place:
    """Where everything lies: handed to the workers."""

    data: str
    cache: str
    models: tuple[tuple[str, str], ...]
    words: str

    def path(self, name: str) -> Path:
        return Path(dict(self.models)[name])


def find_models(folder: Path) -> dict[str, str]:
    """Model folders, and run folders that hold one."""
    if not folder.is_dir():
        raise PolysemeError(f"there is no folder {folder}")
    found = {}
    for path in sorted(folder.iterdir()):
        inner = path / "model" if (path / "model").is_dir() else path
        if (inner / "config.json").is_file() or (inner / "options.json").is_file():
            found[path.name] = str(inner)
    return found


def find_words(folder: Path, models: dict[str, str]) -> str:
    """The word vectors among the models, if there are any."""
    return models.get("words", next((str(p) for p in sorted(folder.glob("words.*")) if p.is_file()), ""))


@functools.cache
def examples(task: str, data: str, name: str, limit: int) -> list[Any]:
    """A part of a data set; under its usual file name, or the one file that has the part in its name.

    Of a few sentences, those whose tags stand in the first ones of training.
    """
    named = DATASETS[task]
    try:
        found = named.read_split(data, name)
    except PolysemeError:
        folder = Path(data) / named.folder
        files = sorted((folder if folder.is_dir() else Path(data)).glob(f"*{name}*"))
        if len(files) != 1:
            raise
        found = named.task.collect(files[0], named.reader(files[0], True))
    if limit and name != "train":
        known = {tag for e in examples(task, data, "train", limit) for tag in e.tags or ()}
        found = [e for e in found if known.issuperset(e.tags or ())]
    return found[:limit] if limit else found


def read(name: str, place: Place, tasks: Sequence[str], layers: Sequence[str], limit: int) -> dict[str, Any]:
    """What a model says of all sentences, kept for the runs."""
    began, words = time.perf_counter(), 0
    try:
        encoder = FeatureEncoder.load(place.path(name))
        for task, part in itertools.product(tasks, PARTS):
            sentences = [e.words for e in examples(task, place.data, part, limit)]
            words += sum(map(len, sentences))
            for choice in layers:
                extract_features(encoder, sentences, choice, Path(place.cache))
    except (PolysemeError, RuntimeError, OSError) as error:
        return {"model": name, "error": f"{type(error).__name__}: {error}"[:500]}
    return {"model": name, "words": words, "seconds": time.perf_counter() - began}


def run(job: Job, row: Row, place: Place) -> dict[str, Any]:
    """One run; what goes wrong is an answer too, so that the other runs go on."""
    from polyseme.finetuning.config import FeatureNetworkSettings, FinetuneConfig
    from polyseme.finetuning.finetune import finetune
    from polyseme.finetuning.frozen import FEATURE_DEFAULTS, train_on_features

    began = time.perf_counter()
    try:
        train, dev, test = (examples(job.task, place.data, part, job.limit) for part in PARTS)
        options = RunOptions(first_seed=job.seed)
        metric = DATASETS[job.task].metric
        models = [place.path(name) for name in row.models]
        if row.finetuned:
            settings = FinetuneConfig(truncate=True)
            task_data = TaskData(TaggingTask(), train, dev, primary_metric=metric, extra_eval={"test": test})
            results = finetune(models[0], task_data, None, settings, options)
        else:
            network = FeatureNetworkSettings().replace(**row.network)
            settings = FEATURE_DEFAULTS.replace(epochs=job.epochs, batch_size=32, network=network)
            task = TaggingTask(decoder=row.decoder)
            task_data = TaskData(task, train, dev, primary_metric=metric, extra_eval={"test": test})
            words = Path(place.words) if row.words and place.words else None
            inputs = FeatureInputs(list(map(Path, models)), words, Path(place.cache))
            with tempfile.TemporaryDirectory() as folder:  # what is kept says how a mix weighs the layers
                results = train_on_features(inputs, task_data, Path(folder) / "run", settings, options)
    except (PolysemeError, RuntimeError, OSError) as error:
        return {**asdict(job), "error": f"{type(error).__name__}: {error}"[:500]}
    kept = {name: results[name] for name in ("primary_metric", "mean", "steps", "parameters")}
    kept |= {"test": results["extra_eval"]["test"][0], "mix_weights": results.get("mix_weights", {})}
    return {**asdict(job), **kept, "train_s": results["seconds"], "wall_s": time.perf_counter() - began}


def summary(done: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each row and task the mean and the sample deviation, on dev and on test."""
    groups: dict[tuple[str, str, str, str], dict[int, tuple[float, float]]] = {}
    for one in done:
        if "error" not in one:
            key = (one["table"], one["row"], one["task"], one["primary_metric"])
            groups.setdefault(key, {})[one["seed"]] = 100 * one["mean"][one["primary_metric"]], 100 * one["test"]
    found = []
    for (name, row, task, metric), values in groups.items():
        parts = {}
        for part, figures in zip(("dev", "test"), zip(*values.values())):
            deviation = statistics.stdev(figures) if len(figures) > 1 else None
            parts[part] = {"mean": statistics.fmean(figures), "std": deviation}
        found.append({"table": name, "row": row, "task": task, "metric": metric, "seeds": len(values), **parts})
    return found


def markdown(found: Sequence[dict[str, Any]], rows: Sequence[Row], tasks: Sequence[str]) -> str:
    """A table for each table, a row for each row, two columns for each task."""
    cells = {(one["table"], one["row"], one["task"], part): one for one in found for part in ("dev", "test")}
    lines = []
    for name in dict.fromkeys(row.table for row in rows):
        heads = [f"{task}, {part}" for task in tasks for part in ("dev", "test")]
        body = []
        for row in (row for row in rows if row.table == name):
            asked = [(name, row.name, task, part) for task in tasks for part in ("dev", "test")]
            body.append([row.name, *(_cell(cells.get(key), key[-1]) for key in asked)])
        lines += [table([name, *heads], body), ""]
    return "\n".join(lines)


def _cell(one: dict[str, Any] | None, part: str) -> str:
    if one is None:
        return ""
    deviation = "" if one[part]["std"] is None else f" ± {one[part]['std']:.2f}"
    return f"{one[part]['mean']:.2f}{deviation} (n={one['seeds']})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, metavar="MODELS")
    parser.add_argument("--data", required=True, help="the folder that holds wnut17 and ud-ewt")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--tasks", nargs="+", default=list(EPOCHS), choices=list(EPOCHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--words", default="", help="word vectors, if they are not among MODELS")
    parser.add_argument("--epochs", type=float, default=0.0, help="of networks; else 15, and 5 for ud-pos")
    parser.add_argument("--limit", type=int, default=0, help="sentences of each part, to try it out")
    options = parser.parse_args()

    try:  # before anything is started
        models = find_models(options.models)
        words = options.words or find_words(options.models, models)
        for task, part in itertools.product(options.tasks, PARTS):
            examples(task, options.data, part, options.limit)
    except PolysemeError as error:
        sys.exit(f"error: {error}")
    if not words:
        print("no word vectors: those of the networks begin at random", file=sys.stderr)
    rows = [row for row in rows_of(models) if row.table in options.tables]
    for row in rows:
        if missing := [name for name in row.models if name not in models]:
            print(f"left out: {row.table}, {row.name}: there is no {missing[0]} in {options.models}", file=sys.stderr)
    rows = [row for row in rows if set(row.models) <= set(models)]
    by_name = {(row.table, row.name): row for row in rows}
    place = Place(options.data, str(options.out / "features"), tuple(models.items()), words)
    wanted = [
        Job(row.table, row.name, task, seed, options.epochs or EPOCHS[task], options.limit, str(options.models), words)
        for seed, task, row in itertools.product(range(options.seeds), options.tasks, rows)
    ]
    target, fields = options.out / "results.json", list(Job.__dataclass_fields__)
    finished: list[dict[str, Any]] = []
    if target.exists():
        finished = [one for one in read_json(target)["runs"] if "error" not in one]
    known = {Job(**{name: one[name] for name in fields}) for one in finished}
    todo = [job for job in wanted if job not in known]
    about = header("Frozen features: the primary metric x 100")
    print(about)
    print(f"{len(wanted)} runs, {len(wanted) - len(todo)} of them done before, {options.jobs} at a time", flush=True)
    readings: list[dict[str, Any]] = []

    def keep() -> None:
        asked = set(wanted)
        ours = [one for one in finished if Job(**{name: one[name] for name in fields}) in asked]
        write_json(target, {"about": about, "readings": readings, "summary": summary(ours), "runs": finished})

    options.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    threads = int(os.environ.get("OMP_NUM_THREADS") or max((os.cpu_count() or 1) // options.jobs, 1))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, begin, (threads,)) as pool:
        frozen = [by_name[job.table, job.row] for job in todo if not by_name[job.table, job.row].finetuned]
        asked = {name: list(dict.fromkeys(r.layers for r in frozen if name in r.models)) for name in models}
        reading = [
            pool.submit(read, name, place, options.tasks, layers, options.limit)
            for name, layers in asked.items()
            if layers
        ]
        for future in as_completed(reading):
            readings.append(future.result())
            print(f"{time.perf_counter() - began:6.0f} s  read: {json.dumps(readings[-1])}", flush=True)
        under_way = {pool.submit(run, job, by_name[job.table, job.row], place): job for job in todo}
        for future in as_completed(under_way):
            job = under_way[future]
            try:
                one = future.result()
            except Exception as error:  # a worker that died takes the others with it: those wait for the next time
                one = {**asdict(job), "error": f"{type(error).__name__}: {error}"[:500]}
            finished.append(one)
            keep()
            said = one.get("error") or f"{one['primary_metric']} {100 * one['mean'][one['primary_metric']]:.2f}"
            print(f"{time.perf_counter() - began:6.0f} s  {job.name}: {said}", flush=True)
    keep()
    print()
    print(markdown(read_json(target)["summary"], rows, options.tasks))
    failed = [one for one in finished if "error" in one]
    if failed:
        print(f"{len(failed)} runs failed, the first: {json.dumps(failed[0])}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
