"""The best model for a time budget: pre-training settings compared by BLiMP and held-out text.

    python benchmarks/speedrun.py time ARM …  --corpora FOLDER --out FILE
    python benchmarks/speedrun.py train ARM … --corpora FOLDER --held-out FILE --blimp FOLDER --out FOLDER
        [--seconds 60 --times FILE | --minutes 10] [--seed 0] [--jobs 3]
    python benchmarks/speedrun.py page LEDGER.json > docs/results/speedrun.md

FOLDER of --corpora has one corpus per vocabulary (`wp8192`, `wp16384`, `bert`). `time` measures the seconds per step of
each arm alone on the card. `train` runs an arm for as many steps as fit into `--seconds` by those times, so that
several may share the card, or with `--minutes` by its own clock, compilation included, alone. Every result is a row of
`OUT/ledger.json`: BLiMP (mean of the paradigms), bits per character of held-out sentences (a pseudo-likelihood for
masked models, not to be compared with that of causal ones), settings, cost.
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

IS_CUDA = torch.cuda.is_available()
SIZES = {
    "2x64": {"num_layers": 2, "dim": 64, "num_heads": 2},  # to try this script on a CPU
    "4x512": {"num_layers": 4, "dim": 512, "num_heads": 8},
    "8x512": {"num_layers": 8, "dim": 512, "num_heads": 8},
    "12x512": {"num_layers": 12, "dim": 512, "num_heads": 8},
    "6x768": {"num_layers": 6, "dim": 768, "num_heads": 12},
    "12x768": {"num_layers": 12, "dim": 768, "num_heads": 12},
}
DEFAULTS: dict[str, Any] = {
    "size": "8x512", "vocab": "wp16384", "family": "modernbert", "mask": 0.2, "replace": 0.2, "max_len": 128,
    "batch": 131_072, "lr": 2e-3, "warmup": 0.06, "weight_decay": 0.01,
}  # fmt: skip


def parse_arm(text: str) -> dict[str, Any]:
    """Return the settings of an arm, written as `base` or as changes: `size=4x512,max_len=64`."""
    settings = dict(DEFAULTS)
    for change in text.split(",") if text != "base" else ():
        key, _, value = change.partition("=")
        settings[key] = type(DEFAULTS[key])(value)
    return settings


def build_recipe(arm: str, seed: int = 0) -> Any:
    """Return the recipe of an arm: no dropout, Muon, linear decay, no validation during the run."""
    from polyseme.objectives.causal_lm import CausalLM
    from polyseme.objectives.masked_lm import MaskedLM
    from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
    from polyseme.train.recipe import Recipe

    s = parse_arm(arm)
    masked = MaskedLM(mask_prob=s["mask"], random_token_prob=s["replace"] / 2, keep_token_prob=s["replace"] / 2)
    is_masked = s["family"] == "modernbert"
    model = {**SIZES[s["size"]], "max_len": 512, "dropout": 0.0, "attention_dropout": 0.0}
    optimizer = OptimizerConfig(lr=s["lr"], beta2=0.98, name="muon", weight_decay=s["weight_decay"])
    return Recipe(
        name="speedrun", family=s["family"], model=model, objective=masked if is_masked else CausalLM(),
        max_len=s["max_len"], batch_tokens=s["batch"], micro_batch_tokens=min(s["batch"], 65_536),
        optimizer=optimizer, schedule=ScheduleConfig("linear", warmup=s["warmup"]), seed=seed, compile=IS_CUDA,
        valid_fraction=0.0, eval_every=10**9, save_every=10**9, log_every=100,
    )  # fmt: skip


def synchronize() -> None:
    """Wait for the card, if there is one."""
    if IS_CUDA:
        torch.cuda.synchronize()


def estimate_step_seconds(times: list[dict[str, Any]], arm: str) -> float:
    """Return the time of a step of this arm, or of one of the same size, vocabulary and family, per token."""
    exact = {row["arm"]: row["seconds_per_step"] for row in times}
    if arm in exact:
        return exact[arm]
    settings = parse_arm(arm)
    for name, seconds in exact.items():
        other = parse_arm(name)
        if all(other[key] == settings[key] for key in ("size", "vocab", "family")):
            return seconds * settings["batch"] / other["batch"]
    raise SystemExit(f"no time for {arm}")


def time_arm(arm: str, corpora: Path, lock: Path) -> float:
    """Compile an arm's step, then time 40 steps alone on the card: other processes wait at the lock."""
    from polyseme.corpus.sampling import DataPosition
    from polyseme.corpus.store import Corpus
    from polyseme.objectives.packing import SpecialIds
    from polyseme.text.tokenizer import Tokenizer
    from polyseme.train.loop import setup_device, train
    from polyseme.train.pretrain import build_train_state
    from polyseme.train.streams import open_streams

    corpus, recipe = corpora / parse_arm(arm)["vocab"], build_recipe(arm)
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


def evaluate_model(model: Path, held_out: Path, blimp: Path, all_metrics: bool) -> dict[str, Any]:
    """Return BLiMP (with `all_metrics` by every score), and the bits per character of held-out sentences."""
    import polyseme
    from polyseme.evaluation.minimal_pairs import evaluate_minimal_pairs, read_minimal_pairs

    loaded, pairs = polyseme.load(model, precision="bf16" if IS_CUDA else "float32"), read_minimal_pairs(blimp)
    start = time.perf_counter()
    plain = evaluate_minimal_pairs(loaded, pairs)
    seconds = time.perf_counter() - start
    scores = {"blimp": plain.accuracy, "phenomena": plain.phenomena, "ties": plain.num_ties, "blimp_seconds": seconds}
    if all_metrics and loaded.has_pll_metric:
        scores["blimp_within_word_l2r"] = evaluate_minimal_pairs(loaded, pairs, "within_word_l2r").accuracy
    if all_metrics:
        scores["blimp_by_length"] = evaluate_minimal_pairs(loaded, pairs, normalization="length").accuracy
    sentences = held_out.read_text().splitlines()
    text_scores = loaded.score(sentences)
    num_characters = sum(score.num_characters for score in text_scores)
    bits = -sum(score.log_prob for score in text_scores) / torch.log(torch.tensor(2.0)).item()
    return scores | {"held_out_bits_per_character": bits / num_characters}


def train_arm(arm: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one arm; return its row of the ledger."""
    from polyseme.train.pretrain import pretrain
    from polyseme.train.recipe import BudgetConfig

    start = time.perf_counter()
    recipe, settings = build_recipe(arm, args.seed), parse_arm(arm)
    if args.minutes:
        budget = BudgetConfig(minutes=args.minutes)
    else:
        step_seconds = estimate_step_seconds(json.loads(args.times.read_text()), arm)
        budget = BudgetConfig(steps=max(int(args.seconds / step_seconds), 10))
    out = args.out / f"{arm.replace('=', '-').replace(',', '_')}_{args.minutes or args.seconds:g}_seed{args.seed}"
    results = pretrain(recipe.replace(budget=budget), args.corpora / settings["vocab"], out, start_time=start)
    wall = time.perf_counter() - start
    row = {
        "arm": arm, "settings": settings, "seed": args.seed, "steps": results["steps"], "tokens": results["tokens"],
        "budget": f"{args.minutes:g} min" if args.minutes else f"{args.seconds:g} s alone", "jobs": args.jobs,
        "parameters": results["parameters"], "train_seconds": results["device_hours"] * 3600, "wall_seconds": wall,
        "date": datetime.date.today().isoformat(), "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if IS_CUDA else "cpu", "command": " ".join(["python", *sys.argv]),
    }  # fmt: skip
    torch.cuda.empty_cache()
    return row | evaluate_model(out / "model", args.held_out, args.blimp, bool(args.minutes))


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
        seconds = time_arm(arm, args.corpora, args.out / "card.lock")
        append_row(args.out / "times.json", {"arm": arm, "seconds_per_step": seconds})
        print(arm, f"{1e3 * seconds:.1f} ms per step", flush=True)
        return
    row = train_arm(arm, args)
    append_row(args.out / "ledger.json", row)
    print(json.dumps(row), flush=True)


def arm_rows(rows: list[dict[str, Any]]) -> str:
    """Return the table of arms, best BLiMP first."""
    names = ["arm", "seed", "parameters", "steps", "tokens", "training", "BLiMP", "ties", "held-out bits per character"]
    cells = [
        (
            row["arm"], row["seed"], f"{row['parameters'] / 1e6:.1f} M", f"{row['steps']:,}",
            f"{row['tokens'] / 1e6:.0f} M", f"{row['train_seconds']:.0f} s", f"{100 * row['blimp']:.1f}", row["ties"],
            f"{row['held_out_bits_per_character']:.3f}",
        )
        for row in sorted(rows, key=lambda row: -row["blimp"])
    ]  # fmt: skip
    if len(rows) > 1:
        return table(names, cells)
    phenomena = [(name.replace("_", " "), f"{100 * value:.1f}") for name, value in rows[0]["phenomena"].items()]
    return table(names, cells) + "\n\n" + table(["phenomenon", "accuracy"], phenomena)


def glue_rows(rows: list[dict[str, Any]]) -> str:
    """Return the table of a summary by `glue.py`."""
    return table(["task", "metric", "score"], [(r["task"], r["metric"], format_mean_std(r["rates"][0])) for r in rows])


def scoring_rows(rows: list[dict[str, Any]]) -> str:
    """Return the table of `scoring.py`."""
    cells = [
        (r["precision"], r["system"], f"{r['sentences_per_second']:,.0f}", f"{r['max_error_nats']:.1e}") for r in rows
    ]
    return table(["precision", "system", "sentences/s", "largest difference per token, nats"], cells)


def page(ledger: Path) -> str:
    """Return the page of a ledger."""
    record = json.loads(ledger.read_text())
    tables = {"arms": arm_rows, "glue": glue_rows, "scoring": scoring_rows}
    groups = [
        f"## {group['title']}\n\n{group['text']}\n\n{tables[group['kind']](group['rows'])}"
        for group in record["groups"]
    ]
    return "\n\n".join([record["introduction"], *groups, record["conclusion"]]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["time", "train", "page"])
    parser.add_argument("arms", nargs="+")
    parser.add_argument("--corpora", type=Path)
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--blimp", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--times", type=Path, help="what the command time wrote")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    if args.command == "page":
        print(page(Path(args.arms[0])), end="")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.worker:
        run_worker(args)
        return
    run_jobs(args)


if __name__ == "__main__":
    main()
