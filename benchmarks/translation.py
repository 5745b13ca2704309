"""Translation: train on a prepared corpus of pairs and measure sacreBLEU on a test set, over several seeds.

    python benchmarks/translation.py --corpus PAIRS --test SOURCE REFERENCE [--recipe transformer-multi30k] [--seeds 3]
        [--set path=value …] [--beams 5] [--penalty 1.0] [--out FOLDER]

The corpus is made before, where there is a network or not: no data but the corpus and the two files of the test set is
read, and no sentence is split. Multi30k (English to German, test 2016):

    polyseme tokenizer train train.en train.de --kind bpe --vocab-size 10000 --out tok
    polyseme pairs train.en train.de --tokenizer tok --out pairs
    python benchmarks/translation.py --corpus pairs --test test_2016_flickr.en test_2016_flickr.de

A line for each seed with BLEU and chrF, the mean and the deviation, BLEU by length of the source, minutes and the speed
of translating. `--set model.dropout=0.4` and its like change the recipe; give another `--out` then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from report import header, table

import polyseme
from polyseme.cli.output import set_values
from polyseme.generation import Search
from polyseme.recipes import find_recipe
from polyseme.tasks.translation import scores
from polyseme.train.pretrain import pretrain


def run(seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train with one seed and measure, or measure what an earlier call trained."""
    recipe = set_values(find_recipe(args.recipe), args.set).replace(seed=seed)
    out = args.out / f"seed-{seed}"
    began = time.perf_counter()
    results = pretrain(recipe, args.corpus, out, resume=(out / "recipe.json").exists())
    minutes = (time.perf_counter() - began) / 60
    sources, references = (path.read_text(encoding="utf-8").splitlines() for path in args.test)
    model = polyseme.load(out / "model")
    began = time.perf_counter()
    found = model.translate(sources, Search(0, beams=args.beams, penalty=args.penalty))
    seconds = time.perf_counter() - began
    lines = [each.text for each in found]
    (out / "translations.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    measured = scores(lines, references, sources)
    facts = {"seed": seed, "valid": results["valid"], "minutes": minutes, "texts_per_second": len(sources) / seconds,
             "parameters": results["parameters"], "unfinished": sum(not each.finished for each in found)}  # fmt: skip
    return measured | facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--test", type=Path, nargs=2, required=True, metavar=("SOURCE", "REFERENCE"))
    parser.add_argument("--recipe", default="transformer-multi30k")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--penalty", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("runs/translation"))
    args = parser.parse_args()
    found = [run(seed, args) for seed in range(args.seeds)]
    print(header(f"{args.recipe} {' '.join(args.set)}, {found[0]['parameters']:,} parameters"))
    rows = [
        [r["seed"], f"{r['bleu']:.2f}", f"{r['chrf']:.2f}", f"{r['valid'].get('next', float('nan')):.3f}",
         f"{r['minutes']:.1f}", f"{r['texts_per_second']:,.0f}", r["unfinished"]]
        for r in found
    ]  # fmt: skip
    print(table(["seed", "BLEU", "chrF", "valid loss", "minutes", "texts/s", "cut off"], rows))
    values = [r["bleu"] for r in found]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    print(f"\nBLEU {statistics.mean(values):.2f}{spread}  {found[0]['bleu_signature']}, beam {args.beams}")
    print(table(["words of the source", "texts", *(f"BLEU, seed {r['seed']}" for r in found)], [
        [first["words"], first["texts"], *(f"{r['by_length'][i]['bleu']:.2f}" for r in found)]
        for i, first in enumerate(found[0]["by_length"])
    ]))  # fmt: skip
    (args.out / "results.json").write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
