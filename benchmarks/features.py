"""Frozen features and the networks on top of them for tagging: every row of three tables, over several seeds.

    python benchmarks/features.py MODELS --data FOLDER --out FOLDER [--tables lineage elmo layers]
        [--tasks wnut-17 ud-pos] [--seeds 3] [--jobs 4] [--words VECTORS] [--epochs N] [--limit SENTENCES]

MODELS is a folder of model folders (or run folders, which contain `model`) with these names: `forward` and `backward`,
or `taglm` for both in one (recurrent language models), `elmo`, `flair`, `encoder` (for the table by layers), `words`
(word vectors; or a file `words.*`, or --words). Rows whose model is missing are skipped with a message.

Tables: `lineage`, a BiLSTM-CRF over word vectors alone, + TagLM, + ELMo, + Flair, with two layers in all rows; `elmo`,
the choice of layers, of λ and of the place (Peters et al. 2018, tables 2 and 3); `layers`, the encoder fine-tuned and
by layers (Devlin et al. 2019, table 7: two BiLSTM layers over the features alone, with a softmax per tag).

No installation is needed: set PYTHONPATH=src:benchmarks. Each model first reads all sentences once; then each (row,
task, seed) is a run in one of `--jobs` processes, which share the GPU. OUT/results.json is written after every run, and
the same command continues from there; failed runs are stored with their error and repeated. Scores are the primary
metric × 100 after the last epoch, on the dev set and on the test set.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jobs import Run, RunFile, failed_run, worker_pool
from report import format_mean_std, header, mean_std, table

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import PolysemeError
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.frozen import FeatureInputs
from polyseme.inference.feature_extraction import FeatureEncoder, extract_features
from polyseme.nn.layer_selection import FEATURE_SELECTIONS
from polyseme.tasks.tagging import TaggingTask

TABLES = ("lineage", "elmo", "layers")
EPOCHS = {"wnut-17": 15.0, "ud-pos": 5.0}  # of the networks; fine-tuning always takes 3
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Row:
    """Row of a table: the frozen models and the changes to the default network."""

    table: str
    name: str
    models: tuple[str, ...] = ()
    words: bool = True
    finetuned: bool = False
    decoder: str = "crf"
    network: dict[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> str:
        """The selection of layers."""
        return str(self.network.get("layers", "scalar_mix"))


def rows_of(names: Iterable[str]) -> list[Row]:
    """Return all rows; TagLM's depends on the available models."""
    taglm = ("forward", "backward") if {"forward", "backward"} <= set(names) else ("taglm",)
    two = {"num_layers": 2}
    bare = {**two, "word_dim": 0, "use_char_cnn": False}
    return [
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
        *(
            Row("layers", name, ("encoder",), False, False, "softmax", {**bare, "layers": name})
            for name in FEATURE_SELECTIONS
        ),
    ]


@dataclass(frozen=True)
class Job:
    """One run and everything that its score depends on; the row is given by name."""

    table: str
    row: str
    task: str
    seed: int
    epochs: float
    limit: int = 0  # sentences of each split; 0: all
    models: str = ""  # their folder
    words: str = ""

    @property
    def name(self) -> str:
        """Description for messages."""
        return f"{self.table}: {self.row}, {self.task}, seed {self.seed}"


@dataclass(frozen=True)
class Place:
    """Paths of the data, the cache and the models, for the workers."""

    data: str
    cache: str
    models: tuple[tuple[str, str], ...]
    words: str

    def path(self, name: str) -> Path:
        """Return the folder of a model."""
        return Path(dict(self.models)[name])


def find_models(folder: Path) -> dict[str, str]:
    """Return the model folders, and those in run folders, by name."""
    if not folder.is_dir():
        raise PolysemeError(f"there is no folder {folder}")
    models = {}
    for path in sorted(folder.iterdir()):
        inner = path / "model" if (path / "model").is_dir() else path
        if (inner / "config.json").is_file() or (inner / "options.json").is_file():
            models[path.name] = str(inner)
    return models


def find_words(folder: Path, models: dict[str, str]) -> str:
    """Return the path of the word vectors among the models, or an empty string."""
    return models.get("words", next((str(p) for p in sorted(folder.glob("words.*")) if p.is_file()), ""))


@functools.cache
def examples(task: str, data: str, name: str, limit: int) -> list[Any]:
    """Read a split of a data set: the usual file, or the only file with the split in its name.

    With a limit, examples with tags that do not occur in the training examples are dropped.
    """
    dataset = DATASETS[task]
    try:
        split = dataset.read_split(data, name)
    except PolysemeError:
        folder = Path(data) / dataset.folder
        files = sorted((folder if folder.is_dir() else Path(data)).glob(f"*{name}*"))
        if len(files) != 1:
            raise
        split = dataset.task.collect(files[0], dataset.iter_rows(files[0], True))
    if limit and name != "train":
        known_tags = {tag for e in examples(task, data, "train", limit) for tag in e.tags or ()}
        split = [e for e in split if known_tags.issuperset(e.tags or ())]
    return split[:limit] if limit else split


def read(name: str, place: Place, tasks: Sequence[str], layers: Sequence[str], limit: int) -> dict[str, Any]:
    """Extract and cache the features of all sentences."""
    start, num_words = time.perf_counter(), 0
    try:
        encoder = FeatureEncoder.load(place.path(name))
        for task, split in itertools.product(tasks, SPLITS):
            sentences = [e.words for e in examples(task, place.data, split, limit)]
            num_words += sum(map(len, sentences))
            for selection in layers:
                extract_features(encoder, sentences, selection, Path(place.cache))
    except (PolysemeError, RuntimeError, OSError) as error:
        return {"model": name, "error": f"{type(error).__name__}: {error}"[:500]}
    return {"model": name, "words": num_words, "seconds": time.perf_counter() - start}


def run(job: Job, row: Row, place: Place) -> Run:
    """Run a job; an error is returned, so that the other jobs continue."""
    from polyseme.finetuning.config import FeatureNetworkSettings, FinetuneConfig
    from polyseme.finetuning.finetune import finetune
    from polyseme.finetuning.frozen import FEATURE_DEFAULTS, train_on_features

    start = time.perf_counter()
    try:
        train, dev, test = (examples(job.task, place.data, split, job.limit) for split in SPLITS)
        options, metric = RunOptions(seeds=[job.seed]), DATASETS[job.task].metric
        task = TaggingTask() if row.finetuned else TaggingTask(decoder=row.decoder)
        task_data = TaskData(task, train, dev, primary_metric=metric, extra_eval={"test": test})
        models = [place.path(name) for name in row.models]
        if row.finetuned:
            results = finetune(models[0], task_data, None, FinetuneConfig(truncate=True), options)
        else:
            network = FeatureNetworkSettings().replace(**row.network)
            settings = FEATURE_DEFAULTS.replace(epochs=job.epochs, batch_size=32, network=network)
            words = Path(place.words) if row.words and place.words else None
            inputs = FeatureInputs(models, words, Path(place.cache))
            with tempfile.TemporaryDirectory() as folder:  # the weights of a mix of layers are read from the model
                results = train_on_features(inputs, task_data, Path(folder) / "run", settings, options)
    except (PolysemeError, RuntimeError, OSError) as error:
        return failed_run(job, error)
    metrics = {name: results[name] for name in ("primary_metric", "mean", "steps", "parameters")}
    metrics |= {"test": results["extra_eval"]["test"][0], "mix_weights": results.get("mix_weights", {})}
    return {**asdict(job), **metrics, "train_s": results["seconds"], "wall_s": time.perf_counter() - start}


def summary(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return mean and deviation on dev and test for each row and task."""
    groups: dict[tuple[str, str, str, str], dict[int, tuple[float, float]]] = {}
    for run in runs:
        if "error" not in run:
            key = (run["table"], run["row"], run["task"], run["primary_metric"])
            groups.setdefault(key, {})[run["seed"]] = 100 * run["mean"][run["primary_metric"]], 100 * run["test"]
    rows = []
    for (name, row, task, metric), by_seed in groups.items():
        stats = {split: mean_std(scores) for split, scores in zip(("dev", "test"), zip(*by_seed.values()))}
        rows.append({"table": name, "row": row, "task": task, "metric": metric, "seeds": len(by_seed), **stats})
    return rows


def markdown(summaries: Sequence[dict[str, Any]], rows: Sequence[Row], tasks: Sequence[str]) -> str:
    """Format each table, with two columns for each task."""
    by_key = {(stats["table"], stats["row"], stats["task"]): stats for stats in summaries}
    columns = list(itertools.product(tasks, ("dev", "test")))
    lines = []
    for name in dict.fromkeys(row.table for row in rows):
        body = [
            [row.name, *(_cell(by_key.get((name, row.name, task)), split) for task, split in columns)]
            for row in rows
            if row.table == name
        ]
        lines += [table([name, *(f"{task}, {split}" for task, split in columns)], body), ""]
    return "\n".join(lines)


def _cell(stats: dict[str, Any] | None, split: str) -> str:
    return "" if stats is None else f"{format_mean_std(stats[split], 2)} (n={stats['seeds']})"


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, metavar="MODELS")
    parser.add_argument("--data", required=True, help="folder that contains wnut17 and ud-ewt")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--tasks", nargs="+", default=list(EPOCHS), choices=list(EPOCHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--words", default="", help="word vectors, if not in MODELS")
    parser.add_argument("--epochs", type=float, default=0.0, help="of the networks; default: 15, for ud-pos 5")
    parser.add_argument("--limit", type=int, default=0, help="sentences of each split, for a quick test")
    return parser.parse_args()


def available_rows(options: argparse.Namespace, models: dict[str, str]) -> list[Row]:
    """Return the requested rows whose models are present; name the others."""
    rows = [row for row in rows_of(models) if row.table in options.tables]
    for row in rows:
        if missing := [name for name in row.models if name not in models]:
            print(f"skipped: {row.table}, {row.name}: there is no {missing[0]} in {options.models}", file=sys.stderr)
    return [row for row in rows if set(row.models) <= set(models)]


def read_all(
    pool: ProcessPoolExecutor, runs: RunFile, rows: Iterable[Row], place: Place, options: argparse.Namespace
) -> None:
    """Extract the features that these rows need."""
    layers_by_model: dict[str, dict[str, None]] = {}
    for row in rows:
        for name in row.models if not row.finetuned else ():
            layers_by_model.setdefault(name, {})[row.layers] = None
    futures = [
        pool.submit(read, name, place, options.tasks, list(layers), options.limit)
        for name, layers in layers_by_model.items()
    ]
    readings = runs.extra["readings"] = []
    for future in as_completed(futures):
        readings.append(future.result())
        runs.print(f"read: {json.dumps(readings[-1])}")


def main() -> None:
    options = parse_options()
    try:  # check the inputs before starting
        models = find_models(options.models)
        words = options.words or find_words(options.models, models)
        for task, split in itertools.product(options.tasks, SPLITS):
            examples(task, options.data, split, options.limit)
    except PolysemeError as error:
        sys.exit(f"error: {error}")
    if not words:
        print("no word vectors: those of the networks start at random", file=sys.stderr)
    rows = available_rows(options, models)
    by_name = {(row.table, row.name): row for row in rows}
    place = Place(options.data, str(options.out / "features"), tuple(models.items()), words)
    jobs = [
        Job(row.table, row.name, task, seed, options.epochs or EPOCHS[task], options.limit, str(options.models), words)
        for seed, task, row in itertools.product(range(options.seeds), options.tasks, rows)
    ]
    title = header("Frozen features: primary metric x 100")
    options.out.mkdir(parents=True, exist_ok=True)
    runs = RunFile(options.out / "results.json", title, jobs, summary)
    print(f"{title}\n{len(jobs)} runs, {len(runs.pending)} of them pending, {options.jobs} at a time", flush=True)
    with worker_pool(options.jobs) as pool:
        read_all(pool, runs, [by_name[job.table, job.row] for job in runs.pending], place, options)
        summaries = runs.run_pending(lambda job: pool.submit(run, job, by_name[job.table, job.row], place), 2)
    print("\n" + markdown(summaries, rows, options.tasks))
    runs.exit_on_failure()


if __name__ == "__main__":
    main()
