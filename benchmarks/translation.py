"""Translation: train models on a prepared corpus of pairs and compute sacreBLEU on a test set, over several seeds.

    python benchmarks/translation.py --corpus PAIRS --test SOURCE REFERENCE [--models NAME …] [--seeds 3] [--jobs 1]
        [--set path=value …] [--beams 5] [--penalty 1.0] [--out FOLDER]

A model is one of `MODELS` (by default, all): recurrent without attention (none), with each kind of attention inside the
recurrence or after it (dot-after, additive-inside …), the Transformer; or the name of a recipe.

Prepare the corpus first; only the corpus and the two files of the test set are read. Multi30k (English to German, test
2016):

    polyseme tokenizer train train.en train.de --kind bpe --vocab-size 10000 --out tok
    polyseme pairs train.en train.de --tokenizer tok --out pairs
    python benchmarks/translation.py --corpus pairs --test test_2016_flickr.en test_2016_flickr.de --jobs 6

Each model and seed runs in its own process, `--jobs` of them at a time; small models share a GPU well. Each writes
`MODEL/seed-N/result.json` at the end, and all results are collected in `results.json`. The same command resumes
interrupted runs. At the end, BLEU is printed as mean and deviation, and by length of the source. Options such as
`--set model.dropout=0.4` change every recipe; use another `--out` with them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from report import format_mean_std, header, mean_std, table

KINDS = [
    f"{score}-{order}" for order in ("after", "inside") for score in ("dot", "cosine", "multiplicative", "additive")
]
MODELS = {
    "none": ("seq2seq-multi30k", ["model.attention=none"]),
    **{
        kind: ("seq2seq-multi30k", [f"model.attention={score}", f"model.context_order={order}_recurrence"])
        for kind in KINDS
        for score, order in [kind.split("-")]
    },
    "transformer": ("transformer-multi30k", []),
}


def run(model: str, seed: int, args: argparse.Namespace) -> None:
    """Train with one seed and evaluate, or evaluate an already trained model."""
    import polyseme
    from polyseme.cli.output import apply_overrides
    from polyseme.generation.config import GenerationConfig
    from polyseme.recipes import get_training_recipe
    from polyseme.tasks.metrics.translation import score_translations
    from polyseme.train.pretrain import pretrain

    name, changes = MODELS.get(model, (model, []))
    settings = dict(change.split("=", 1) for change in [*changes, *args.set])  # the last of a name
    recipe = apply_overrides(get_training_recipe(name), list(map("=".join, settings.items()))).replace(seed=seed)
    out = args.out / model / f"seed-{seed}"
    start = time.perf_counter()
    results = pretrain(recipe, args.corpus, out, resume=(out / "recipe.json").exists())
    minutes = (time.perf_counter() - start) / 60
    sources, references = (path.read_text(encoding="utf-8").splitlines() for path in args.test)
    loaded = polyseme.load(out / "model")
    start = time.perf_counter()
    translations = loaded.translate(sources, GenerationConfig(0, num_beams=args.beams, length_penalty=args.penalty))
    seconds = time.perf_counter() - start
    lines = [translation.text for translation in translations]
    (out / "translations.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    log = [json.loads(row) for row in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    facts = {"model": model, "seed": seed, "valid": results["valid"], "minutes": minutes,
             "texts_per_second": len(sources) / seconds, "parameters": results["parameters"],
             "unfinished": sum(not translation.is_finished for translation in translations), "examples": lines[:5],
             "curve": [[row["step"], row["valid"]["next"]] for row in log if "valid" in row]}  # fmt: skip
    temporary = out / "result.tmp"
    temporary.write_text(json.dumps(score_translations(lines, references, sources) | facts), encoding="utf-8")
    temporary.rename(out / "result.json")


def run_all(jobs: list[tuple[str, int]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all jobs, `--jobs` at a time, and return the results."""
    waiting = [job for job in jobs if not _result(args.out, *job).exists()]
    running: dict[tuple[str, int], subprocess.Popen] = {}
    threads = str(max((os.cpu_count() or 1) // args.jobs, 1))
    while waiting or running:
        while waiting and len(running) < args.jobs:
            model, seed = job = waiting.pop(0)
            folder = args.out / model
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / f"seed-{seed}.log", "a", encoding="utf-8") as log:
                command = [sys.executable, __file__, *sys.argv[1:], "--one", model, str(seed)]
                running[job] = subprocess.Popen(
                    command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": threads}
                )
        time.sleep(0.5)
        for job in [job for job, process in running.items() if process.poll() is not None]:
            status, name = running.pop(job).returncode, f"{job[0]}, seed {job[1]}"
            if status:
                tail = (args.out / job[0] / f"seed-{job[1]}.log").read_text(encoding="utf-8").splitlines()[-1:]
                print(f"{name} ended with status {status}: {' '.join(tail)}", flush=True)
                continue
            result = json.loads(_result(args.out, *job).read_text(encoding="utf-8"))
            bleu, loss = result["bleu"], result["valid"]["next"]
            print(f"{name}: BLEU {bleu:.2f}, valid {loss:.3f}, {result['minutes']:.1f} minutes", flush=True)
            _collect(jobs, args.out)
    return _collect(jobs, args.out)


def _result(out: Path, model: str, seed: int) -> Path:
    return out / model / f"seed-{seed}" / "result.json"


def _collect(jobs: list[tuple[str, int]], out: Path) -> list[dict[str, Any]]:
    paths = [_result(out, *job) for job in jobs]
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    (out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


def show(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the tables."""
    models: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        models.setdefault(result["model"], []).append(result)
    print(header(f"translation {' '.join(args.set)}, {results[0]['bleu_signature']}, beam {args.beams}"))

    def mean(runs: list[dict[str, Any]], key: str) -> float:
        return statistics.mean(r[key] for r in runs)

    rows = []
    for name, runs in models.items():
        bleu = format_mean_std(mean_std([r["bleu"] for r in runs]), 2)
        rows.append([
            name, f"{runs[0]['parameters'] / 1e6:.1f}", len(runs), bleu,
            f"{mean(runs, 'chrf'):.2f}", f"{statistics.mean(r['valid'].get('next', float('nan')) for r in runs):.3f}",
            f"{mean(runs, 'minutes'):.1f}", f"{mean(runs, 'texts_per_second'):,.0f}",
            sum(r["unfinished"] for r in runs),
        ])  # fmt: skip
    names = ["model", "M parameters", "seeds", "BLEU", "chrF", "valid loss", "minutes", "texts/s", "truncated"]
    print(table(names, rows))
    print("\nBLEU by number of words in the source, mean over seeds:\n")
    first = results[0]["by_length"]
    lengths = [f"{row['words']} ({row['texts']} texts)" for row in first]
    by_length = [
        [name, *(f"{statistics.mean(r['by_length'][i]['bleu'] for r in runs):.2f}" for i in range(len(first)))]
        for name, runs in models.items()
    ]
    print(table(["model", *lengths], by_length))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--test", type=Path, nargs=2, required=True, metavar=("SOURCE", "REFERENCE"))
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--penalty", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("runs/translation"))
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run(args.one[0], int(args.one[1]), args)
        return
    results = run_all([(model, seed) for seed in range(args.seeds) for model in args.models], args)
    if not results:
        raise SystemExit("no model was trained: see the logs")
    show(results, args)


if __name__ == "__main__":
    main()
