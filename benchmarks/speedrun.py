"""The best model for a time budget: pre-training settings compared by BLiMP and held-out text.

    python benchmarks/speedrun.py time ARM …  --corpora FOLDER --out FOLDER
    python benchmarks/speedrun.py train ARM … --corpora FOLDER --held-out FILE --blimp FOLDER --out FOLDER
        [--seconds 60 --times FILE | --minutes 10] [--seed 0] [--jobs 3]
    python benchmarks/speedrun.py add FILE … --group TITLE
    python benchmarks/speedrun.py page

An arm is `base`, the settings that the recipe `best` has on this device for this time, or changes of it, such as
`size=12x384,max_len=64`: fields of `SpeedrunSettings`. FOLDER of --corpora has one corpus per vocabulary (`wp8192`,
`wp16384`, `bert`). `time` measures the seconds per step of each arm alone on the device. `train` runs an arm for as
many steps as fit into `--seconds` by those times, so that several may share the device, or with `--minutes` by its own
clock, compilation included, alone. Every result is a row of `OUT/ledger.json`: BLiMP (mean of the paradigms), bits per
character of held-out sentences (a pseudo-likelihood for masked models, not to be compared with that of causal ones),
settings, cost. `add` copies rows into the ledger of the package, from which the recipe `best` follows, and `page`
writes docs/results/speedrun.md.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from report import format_mean_std, table

from polyseme.recipes.best import ComputeDevice, select_measurement
from polyseme.recipes.ledger import LEDGER, DeviceKind, SpeedrunSettings, read_measurements
from polyseme.train.recipe import BudgetConfig

IS_CUDA = torch.cuda.is_available()
PAGE = Path(__file__).parent.parent / "docs/results/speedrun.md"
NO_VALIDATION = {"valid_fraction": 0.0, "eval_every": 10**9, "save_every": 10**9, "log_every": 100}


def parse_arm(text: str, minutes: float) -> SpeedrunSettings:
    """Return the settings of an arm for so many minutes of this device."""
    device = ComputeDevice.detect()
    settings = select_measurement(device.kind, minutes * device.speed).settings
    for change in text.split(",") if text != "base" else ():
        key, _, value = change.partition("=")
        settings = settings.with_override(key, value)
    return settings


def synchronize() -> None:
    """Wait for the card, if there is one."""
    if IS_CUDA:
        torch.cuda.synchronize()


def estimate_step_seconds(times: list[dict[str, Any]], arm: SpeedrunSettings) -> float:
    """Return the time of a step of this arm, or of one of the same size, vocabulary and family, per token."""
    timed = [(SpeedrunSettings.from_json(row["settings"]), row["seconds_per_step"]) for row in times]
    timed.sort(key=lambda pair: pair[0] != arm)
    for other, seconds in timed:
        if all(getattr(other, key) == getattr(arm, key) for key in ("size", "vocab", "family")):
            return seconds * arm.batch / other.batch
    raise SystemExit(f"no time for {arm}")


def time_arm(arm: SpeedrunSettings, corpora: Path, lock: Path) -> float:
    """Compile an arm's step, then time 40 steps alone on the card: other processes wait at the lock."""
    from polyseme.corpus.sampling import DataPosition
    from polyseme.corpus.store import Corpus
    from polyseme.objectives.packing import SpecialIds
    from polyseme.text.tokenizer import Tokenizer
    from polyseme.train.loop import setup_device, train
    from polyseme.train.pretrain import build_train_state
    from polyseme.train.streams import open_streams

    corpus, recipe = corpora / arm.vocab, arm.build_recipe("speedrun", IS_CUDA, **NO_VALIDATION)
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    stream, _ = open_streams(recipe, Corpus.open(corpus), SpecialIds.from_tokenizer(tokenizer))
    state = build_train_state(recipe, recipe.model_config(tokenizer.vocab_size), setup_device())
    state.total_steps, start = 60, 0.0
    with lock.open("w") as handle:
        for report in train(state, stream.steps(DataPosition(), 0)):
            if report.step == 15:
                synchronize()
                fcntl.flock(handle, fcntl.LOCK_EX)
            if report.step == 20:
                synchronize()
                start = time.perf_counter()
        synchronize()
        return (time.perf_counter() - start) / 40


def evaluate_model(model: Path, args: argparse.Namespace, all_metrics: bool) -> dict[str, Any]:
    """Return BLiMP (with `all_metrics` by every score), and the bits per character of held-out sentences."""
    import polyseme
    from polyseme.evaluation.minimal_pairs import evaluate_minimal_pairs, read_minimal_pairs

    loaded, pairs = polyseme.load(model, precision="bf16" if IS_CUDA else "float32"), read_minimal_pairs(args.blimp)
    start = time.perf_counter()
    plain = evaluate_minimal_pairs(loaded, pairs)
    seconds = time.perf_counter() - start
    scores = {"blimp": plain.accuracy, "phenomena": plain.phenomena, "ties": plain.num_ties, "blimp_seconds": seconds}
    if all_metrics and loaded.has_pll_metric:
        scores["blimp_within_word_l2r"] = evaluate_minimal_pairs(loaded, pairs, "within_word_l2r").accuracy
    if all_metrics:
        scores["blimp_by_length"] = evaluate_minimal_pairs(loaded, pairs, normalization="length").accuracy
    if is_hybrid := loaded.supports_pll_metric and not loaded.has_pll_metric:
        scores["blimp_as_masked_lm"] = evaluate_minimal_pairs(loaded, pairs, "original").accuracy
    sentences = args.held_out.read_text().splitlines()[: args.max_sentences]
    text_scores = loaded.score(sentences, pll_metric="original" if is_hybrid else None)
    num_characters = sum(score.num_characters for score in text_scores)
    bits = -sum(score.log_prob for score in text_scores) / torch.log(torch.tensor(2.0)).item()
    return scores | {"held_out_bits_per_character": bits / num_characters}


def train_arm(arm: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one arm; return its row of the ledger."""
    from polyseme.train.pretrain import pretrain

    start, settings = time.perf_counter(), parse_arm(arm, args.minutes or args.seconds / 60)
    if args.minutes:
        budget = BudgetConfig(minutes=args.minutes)
    else:
        step_seconds = estimate_step_seconds(json.loads(args.times.read_text()), settings)
        budget = BudgetConfig(steps=max(int(args.seconds / step_seconds), 10))
    recipe = settings.build_recipe("speedrun", IS_CUDA, seed=args.seed, budget=budget, **NO_VALIDATION)
    out = args.out / f"{arm.replace('=', '-').replace(',', '_')}_{args.minutes or args.seconds:g}_seed{args.seed}"
    results = pretrain(recipe, args.corpora / settings.vocab, out, start_time=start)
    wall = time.perf_counter() - start
    settings_json = settings.to_json()
    del settings_json["kind"]
    row = {
        "settings": settings_json, "seed": args.seed, "steps": results["steps"], "tokens": results["tokens"],
        "budget": f"{args.minutes:g} min" if args.minutes else f"{args.seconds:g} s alone", "jobs": args.jobs,
        "parameters": results["parameters"], "train_seconds": results["device_hours"] * 3600, "wall_seconds": wall,
        "date": datetime.date.today().isoformat(), "torch": torch.__version__, "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if IS_CUDA else "cpu", "command": " ".join(["python", *sys.argv]),
    }  # fmt: skip
    torch.cuda.empty_cache()
    return row | evaluate_model(out / "model", args, bool(args.minutes))


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Append a row to a ledger that several processes write."""
    with path.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        rows = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*rows, row], indent=1))


def run_jobs(args: argparse.Namespace) -> None:
    """Run each arm in its own process, `jobs` at a time."""
    pending, running = list(args.arms), []
    options = sys.argv[sys.argv.index(args.arms[-1]) + 1 :]
    while pending or running:
        running = [process for process in running if process.poll() is None]
        while pending and len(running) < args.jobs:
            arm = pending.pop(0)
            log = (args.out / f"{args.command}-{arm}.log").open("w")
            command = [sys.executable, __file__, args.command, arm, *options, "--worker"]
            running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        time.sleep(0.2)


def run_worker(args: argparse.Namespace) -> None:
    """Run one arm in this process."""
    (arm,) = args.arms
    if args.command == "time":
        settings = parse_arm(arm, args.minutes or args.seconds / 60)
        seconds = time_arm(settings, args.corpora, args.out / "device.lock")
        append_row(args.out / "times.json", {"settings": settings.to_json(), "seconds_per_step": seconds})
        print(arm, f"{1e3 * seconds:.1f} ms per step", flush=True)
        return
    row = train_arm(arm, args)
    append_row(args.out / "ledger.json", row)
    print(json.dumps(row), flush=True)


def add_rows(ledger: Path, paths: list[Path], title: str) -> None:
    """Append the rows of files to the group of this title; rows with the settings of earlier versions are converted."""
    record = json.loads(ledger.read_text())
    group = next((group for group in record["groups"] if group["title"] == title), None)
    if group is None:
        group = {"kind": "arms", "title": title, "text": "", "rows": []}
        record["groups"].append(group)
    for row in (row for path in paths for row in json.loads(path.read_text())):
        settings = row.pop("settings")
        if "replace" in settings:
            settings["replace_prob"] = settings.pop("replace")
        settings_json = SpeedrunSettings.from_json(settings).to_json()
        del settings_json["kind"]
        row.pop("arm", None)
        group["rows"].append({"settings": settings_json, **row})
    ledger.write_text(json.dumps(record, indent=1) + "\n")


def arm_rows(rows: list[dict[str, Any]]) -> str:
    """Return the table of arms, best first: their main settings, and others that differ between them."""
    main = {
        "size": "size",
        "max_len": "length",
        "mask": "masked",
        "batch": "tokens/step",
        "optimizer": "",
        "lr": "rate",
    }
    varied = [key for key in rows[0]["settings"] if len({str(row["settings"].get(key)) for row in rows}) > 1]
    keys = {**main, **{key: key.replace("_", " ") for key in varied if key not in main}}
    names = [*(name or key for key, name in keys.items()), "seed", "parameters", "steps", "tokens", "training"]
    is_cpu = rows[0]["device"] == "cpu"
    cells = [
        (
            *(f"{value:,}" if type(value := row["settings"].get(key)) is int else value for key in keys), row["seed"],
            f"{row['parameters'] / 1e6:.1f} M", f"{row['steps']:,}",
            f"{row['tokens'] / 1e6:{',.0f' if row['tokens'] >= 1e9 else ',.3g'}} M",
            f"{row['train_seconds']:.0f} s", f"{100 * row['blimp']:.1f}", row["ties"],
            f"{row['held_out_bits_per_character']:.3f}",
        )
        for row in sorted(rows, key=lambda row: row["held_out_bits_per_character"] if is_cpu else -row["blimp"])
    ]  # fmt: skip
    arms = table([*names, "BLiMP", "ties", "held-out bits per character"], cells)
    if len(rows) > 1:
        return arms
    phenomena = [(name.replace("_", " "), f"{100 * value:.1f}") for name, value in rows[0]["phenomena"].items()]
    return arms + "\n\n" + table(["phenomenon", "accuracy"], phenomena)


def glue_rows(rows: list[dict[str, Any]]) -> str:
    """Return the table of a summary by `glue.py`."""
    cells = [(r["task"], r["metric"], f"{rate['rate']:g}", format_mean_std(rate)) for r in rows for rate in r["rates"]]
    return table(["task", "metric", "rate", "score"], cells)


def scoring_rows(rows: list[dict[str, Any]]) -> str:
    """Return the table of `scoring.py`."""
    cells = [
        (r["precision"], r["system"], f"{r['sentences_per_second']:,.0f}", f"{r['max_error_nats']:.1e}") for r in rows
    ]
    return table(["precision", "system", "sentences/s", "largest difference per token, nats"], cells)


def page() -> str:
    """Return the page of the ledger."""
    record = json.loads(LEDGER.read_text())
    tables = {"arms": arm_rows, "glue": glue_rows, "scoring": scoring_rows, "recipe": lambda _: recipe_rows()}
    groups = [
        f"## {group['title']}\n\n{group['text']}\n\n{tables[group['kind']](group['rows'])}"
        for group in record["groups"]
    ]
    return "\n\n".join([record["introduction"], *groups, record["conclusion"]]) + "\n"


def recipe_rows() -> str:
    """Return the table of measured times and their best settings."""
    kinds: tuple[DeviceKind, ...] = ("cpu", "gpu")
    cells = [
        (
            candidates[0].device, f"{minutes:.3g} min", candidates[0].settings, len(candidates),
            f"{100 * candidates[0].blimp:.1f}", f"{candidates[0].bits_per_character:.3f}", candidates[0].date,
        )
        for kind in kinds
        for minutes, candidates in read_measurements(kind).items()
    ]  # fmt: skip
    return table(["device", "from", "settings", "best of", "BLiMP", "bits per character", "date"], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["time", "train", "add", "page"])
    parser.add_argument("arms", nargs="*")
    parser.add_argument("--corpora", type=Path)
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--max-sentences", type=int, help="of the held-out ones, for a CPU")
    parser.add_argument("--blimp", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--times", type=Path, help="what the command time wrote")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--group", default="", help="title of the group to add rows to")
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    if args.command == "add":
        add_rows(LEDGER, [Path(path) for path in args.arms], args.group)
    if args.command in ("add", "page"):
        PAGE.write_text(page())
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.worker:
        run_worker(args)
        return
    run_jobs(args)


if __name__ == "__main__":
    main()
