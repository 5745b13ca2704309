"""Probes by layer of models and tasks, and the page that answers: lower layers syntax, higher layers semantics?

    python benchmarks/probing.py MODEL… --data FOLDER --out results.json [--tasks ud-pos ud-deprel ner wic]
        [--seeds 3] [--max-examples 8000]
    python benchmarks/probing.py --page results.json --out docs/results/probing.md

FOLDER has the folders of the data sets: `ud-ewt`, `wnut17`, `wic`. Each (model, task) is saved when it is done, and the
same command continues from there. The second form writes the page from the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

from report import header, table

from polyseme.explain.probing.api import probe
from polyseme.io.json import read_json, write_json
from polyseme.report.cards.readme import short_name

FOLDERS = {
    **{name: "ud-ewt" for name in ("ud-pos", "ud-deprel", "ud-tree", "ud-heads")},
    "ner": "wnut17",
    "wic": "wic",
}
VARIANTS = ("trained", "control", "untrained")
SCORES = ("score", "control", "untrained", "selectivity", "gain")
INTRODUCTION = """# Probes by layer

Do lower layers encode syntax and higher layers semantics (Tenney et al. 2019)? Linear probes at each layer of
all-MiniLM-L6-v2 (6 layers, a sentence encoder) and of the bundled `mini` (10 layers, a masked language model), on parts
of speech (`ud-pos`), dependency relations (`ud-deprel`), named entities (`ner`, WNUT-17) and word senses (`wic`), next
to a control task and an untrained copy; and the structural probe (`ud-tree`) for whole trees. The
[guide](../guide/probing.md) says how each is computed. `benchmarks/probing.py` writes this page from
[probing.json](probing.json).
"""


NOTES = """The score is that of the best layer; selectivity and gain are its differences to the control task and to the
untrained copy. For entities the control task is the easier one: its random labels also fall on frequent words, which
recur in dev, while the entities of WNUT-17's dev set are new. Its negative selectivity says little; the gain over
the untrained copy does. In WiC, the control probe recognizes words of the training set.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["ud-pos", "ud-deprel", "ner", "wic"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-examples", type=int, default=8000)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.page is not None:
        args.out.write_text(format_page(read_json(args.page)), encoding="utf-8")
        return
    runs: list[dict[str, Any]] = read_json(args.out)["runs"] if args.out.exists() else []
    for model in args.models:
        for task in args.tasks:
            settings = {
                "model": short_name(model),
                "task": task,
                "seeds": args.seeds,
                "max_examples": args.max_examples,
            }
            if any(all(run[key] == value for key, value in settings.items()) for run in runs):
                continue
            start = time.perf_counter()
            data = args.data / FOLDERS[task]
            record = probe(model, task, data, seeds=args.seeds, max_examples=args.max_examples).record
            seconds = round(time.perf_counter() - start, 1)
            runs.append({**settings, "seconds": seconds, "header": header("").strip(), "probe": record["tasks"][0]})
            write_json(args.out, {"runs": runs})
            print(json.dumps({**settings, "seconds": seconds}))


def format_page(results: dict[str, Any]) -> str:
    """Return the page in Markdown."""
    trees, heads = ([run for run in results["runs"] if run["task"] == task] for task in ("ud-tree", "ud-heads"))
    linear = [run for run in results["runs"] if run["task"] not in ("ud-tree", "ud-heads")]
    runs, first = linear + trees, results["runs"][0]
    headers = dict.fromkeys(run["header"] for run in results["runs"])
    commands = (
        "    polyseme probe MODEL --task TASK --data FOLDER --out probes.html "
        f"--seeds {first['seeds']} --max-examples {first['max_examples']}"
    )
    parts = [
        INTRODUCTION,
        f"{'; '.join(headers)}; {first['seeds']} seeds. Command, for each model and task:\n\n{commands}\n",
    ]
    parts += ["## Which layers\n", _expected_table(runs), _answer(runs), "## Best layers\n", _best_table(linear)]
    parts += [_tree_table(trees), *map(_head_table, heads), *map(_layer_table, linear)]
    return "\n".join(part for part in parts if part)


def _format(estimate: dict[str, Any], digits: int = 3) -> str:
    if estimate["value"] is None:
        return "–"
    return f"{estimate['value']:.{digits}f} ({estimate['low']:.{digits}f} to {estimate['high']:.{digits}f})"


def _models(runs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    return [(run, run["probe"], model) for run in runs for model in run["probe"]["models"]]


def _expected_table(runs: list[dict[str, Any]]) -> str:
    rows = [
        (model["model"], run["task"], _format(model["expected_layer"], 2), _format(model["expected_depth"], 2))
        for run, _, model in sorted(_models(runs), key=lambda row: row[2]["model"])
    ]
    text = (
        "The expected layer is the mean of the layers, each weighted by what it adds to the best score of the layers "
        "below it, with 95 % intervals over dev sentences and seeds.\n\n"
    )
    return text + table(["model", "task", "expected layer", "relative depth"], rows) + "\n"


def _answer(runs: list[dict[str, Any]]) -> str:
    """Say for each pair of a syntactic and a semantic task which one a model solves at lower layers."""
    rows, verdicts = [], list[str]()
    for name in dict.fromkeys(model["model"] for *_, model in _models(runs)):
        layers = {run["task"]: m["expected_layer"] for run, _, m in _models(runs) if m["model"] == name}
        for low, high in itertools.product(("ud-pos", "ud-deprel"), ("ner", "wic")):
            a, b = layers.get(low), layers.get(high)
            if a is None or b is None or a["value"] is None or b["value"] is None:
                continue
            verdicts.append("below" if a["high"] < b["low"] else "above" if a["low"] > b["high"] else "not apart from")
            rows.append([name, f"{low} is {verdicts[-1]} {high}", f"{b['value'] - a['value']:+.2f}"])
    depths = [m["expected_depth"]["value"] for *_, m in _models(runs) if m["expected_depth"]["value"] is not None]
    counts = [verdicts.count(verdict) for verdict in ("below", "not apart from", "above")]
    sentence = (
        f"Of {len(verdicts)} comparisons of a syntactic with a semantic task, the syntactic one is solved at lower "
        f"layers in {counts[0]}, the intervals overlap in {counts[1]}, and the order is reversed in {counts[2]}. All "
        f"expected layers are at a relative depth of {min(depths):.2f} to {max(depths):.2f}."
    )
    return f"{table(['model', 'by intervals', 'difference in layers'], rows)}\n\n{sentence}\n"


def _best_table(runs: list[dict[str, Any]]) -> str:
    rows = []
    for run, probe_record, model in _models(runs):
        best = max(model["layers"], key=lambda layer: layer["scores"]["trained"]["value"])
        scores = [_format(best["scores"][key]) for key in VARIANTS]
        baselines = [f"{probe_record['majority']:.3f}", f"{probe_record['lookup']:.3f}"]
        scores += [_format(best["selectivity"]), _format(best["gain"])]
        rows.append([run["task"], model["model"], best["layer"], *scores, *baselines, f"{run['seconds']:.0f}"])
    names = ["task", "model", "best layer", *SCORES, "majority", "by word type", "seconds"]
    return f"{NOTES}\n{table(names, rows)}\n"


def _tree_table(runs: list[dict[str, Any]]) -> str:
    rows = []
    for _, probe_record, model in _models(runs):
        for layer in model["layers"]:
            scores = [_format(layer["scores"][key]) for key in ("trained", "untrained")]
            spearman = f"{layer['spearman']['trained']:.3f}"
            rows.append([model["model"], layer["layer"], *scores, _format(probe_record["chain"]), spearman])
    names = ["model", "layer", "UUAS", "untrained", "chain of neighbors", "Spearman"]
    return "## Trees\n\n" + table(names, rows) + "\n" if rows else ""


def _head_table(run: dict[str, Any]) -> str:
    """List the heads that beat the best offset, in the order of the difference."""
    model = run["probe"]["models"][0]
    relations = [row for row in model["relations"] if row["relation"] != "all"]
    better = sorted((row for row in relations if row["difference"]["low"] > 0), key=lambda r: -r["difference"]["value"])
    rows = [
        [
            *(row["relation"], row["num_dev"], f"{row['layer']}-{row['head']}", row["direction"]),
            *(_format(row["accuracy"]), f"{row['offset']:+d}", _format(row["offset_accuracy"])),
        ]
        for row in better
    ]
    names = ["relation", "arcs", "layer-head", "direction", "accuracy", "best offset", "its accuracy"]
    count = f"A head beats the best fixed offset, beyond the interval, in {len(better)} of {len(relations)} relations:"
    return f"## Attention heads and relations, {model['model']}\n\n{count}\n\n{table(names, rows)}\n"


def _layer_table(run: dict[str, Any]) -> str:
    probe_record, model = run["probe"], run["probe"]["models"][0]
    rows = [
        [
            layer["layer"],
            *(_format(layer["scores"][key]) for key in VARIANTS),
            _format(layer["selectivity"]),
            *(f"{layer['compression'][key]:.2f}" for key in VARIANTS),
        ]
        for layer in model["layers"]
    ]
    sizes = f"{probe_record['num_train']:,} to train on, {probe_record['num_dev']:,} to score, {probe_record['metric']}"
    names = ["layer", "score", "control", "untrained", "selectivity", "compression", "of control", "of untrained"]
    return f"## {run['task']}, {model['model']}\n\n{sizes}.\n\n{table(names, rows)}\n"


if __name__ == "__main__":
    main()
