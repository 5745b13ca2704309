"""Every `-tiny` recipe for two minutes: held-out loss compared with the entropy of the unigram distribution.

    python benchmarks/tiny.py --out FOLDER [--text SOURCE] [--minutes 2] [--recipes NAME …] [--vocab-size 6000]

Each is trained with `polyseme pretrain` on a corpus of the text with the family's kind of tokenizer. Finished runs in
FOLDER are not repeated. The entropy is the loss of a model that knows only word frequencies; every recipe must get
below it. (Music has its own benchmark.)
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path

from report import header, table

from polyseme.corpus.inspect.statistics import compute_statistics
from polyseme.corpus.store import Corpus
from polyseme.families import FAMILIES
from polyseme.io.json import read_json
from polyseme.recipes import RECIPES, get_training_recipe

SENTINELS = {"t5": 100}


def polyseme(*words: str) -> None:
    """Run a command of `polyseme`."""
    process = subprocess.run([sys.executable, "-m", "polyseme.cli.main", *words], capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"polyseme {' '.join(words)}: {process.stderr.strip().splitlines()[-1]}")


def corpus_for(family: str, out: Path, text: str, vocab_size: int) -> Path:
    """Prepare the corpus of a family, unless it exists."""
    kind, num_sentinels = FAMILIES[family].tokenizer, SENTINELS.get(family, 0)
    folder = out / f"corpus-{kind}{'-sentinels' if num_sentinels else ''}"
    if not (folder / "manifest.json").exists():
        tokenizer = str(out / f"tokenizer-{folder.name}")
        size = ("--vocab-size", str(vocab_size), "--num-sentinels", str(num_sentinels))
        polyseme("tokenizer", "train", text, "--out", tokenizer, "--kind", kind, *size)
        polyseme("prepare", text, "--tokenizer", tokenizer, "--out", str(folder))
    return folder


def main() -> None:
    tiny = [get_training_recipe(name) for name in RECIPES if name.endswith("-tiny")]
    tokenizers = {name: family.tokenizer for name, family in FAMILIES.items()}  # not of images
    names = [recipe.name for recipe in tiny if tokenizers.get(recipe.family, "events") != "events"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", default="python-docs")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--vocab-size", type=int, default=6000)
    parser.add_argument("--recipes", nargs="*", default=names, choices=names)
    args = parser.parse_args()
    print(header(f"{args.minutes:g} minutes per recipe"), flush=True)
    lines = []
    for name in args.recipes:
        family = get_training_recipe(name).family
        corpus = corpus_for(family, args.out, args.text, args.vocab_size)
        run = args.out / name
        if not (run / "results.json").exists():
            polyseme("pretrain", name, "--corpus", str(corpus), "--out", str(run), "--budget", f"{args.minutes:g}m")
        results = read_json(run / "results.json")
        entropy = compute_statistics(Corpus.open(corpus)).unigram.entropy * math.log(2)
        valid = results["valid"]
        term = next(key for key in ("masked", "next", "previous") if key in valid)
        verdict = "below" if valid[term] < entropy else "NOT below"
        lines.append((name, f"{valid[term]:.2f}", f"{entropy:.2f}", verdict, f"{results['tokens'] / 1e6:.2f} M"))
        print(*lines[-1], flush=True)
    print("\n" + table(["recipe", "held-out nats", "unigram entropy", "", "tokens"], lines))


if __name__ == "__main__":
    main()
