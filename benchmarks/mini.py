"""Write the bundled model `mini`: int8 weights, a card with scores from result files, license and attribution.

    python benchmarks/mini.py MODEL --titles FILE --glue FILE.json … --blimp blimp-METRIC.json … --overlap FILE.json …
        --command TEXT --out src/polyseme/models/mini

MODEL is the folder that `polyseme pretrain mini` wrote. The files are those of `glue.py`, and the JSON of `polyseme
evaluate` (named by the metric) and of `polyseme overlap`. FILE of `--titles` has a title of the training text per line;
that of a novel is AUTHOR_TITLE_YEAR. No figure of the card is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

from polyseme.io.hashes import write_hashes
from polyseme.weights.folder import load_model, save_model
from polyseme.weights.int8_storage import dequantize_weights, measure_error, quantize_weights

NAME = "mini"
CORPUS_NAME = "wikipedia-and-novels"
FINETUNING_LR = 1e-4  # the best of 1e-4, 2e-4 and 5e-4 on most tasks of GLUE
NOVEL = re.compile(r"[A-Z][a-z]+_\w+_\d{4}")
TASK_NAMES = {"cola": "CoLA", "sst-2": "SST-2", "mrpc": "MRPC", "sts-b": "STS-B"}
LICENSE = {
    "id": "cc-by-sa-3.0",
    "name": "Creative Commons Attribution-ShareAlike 3.0 Unported (CC BY-SA 3.0)",
    "url": "https://creativecommons.org/licenses/by-sa/3.0/legalcode",
    "notice": (
        "Most of the training text is from Wikipedia, by its contributors, under this license. Whether the weights of "
        "a model are an adaptation of its training text is not settled, so these are published under the license of "
        "the text: you may share and adapt them, also commercially, if you give credit, link to the license, say what "
        "you changed, and share an adaptation, such as a fine-tuned model, under the same license. The file LICENSE of "
        "the bundled model lists all articles. The code of Polyseme is under the Apache License 2.0."
    ),
}
NOVELS_NOTE = (
    "The novels were published from {first} to {last}, and are in the public domain in the United States. Forster's "
    "three are not where copyright lasts for 70 years after the author's death (until 2041). This package contains no "
    "text of them."
)
BLIMP_METRICS = {"original": "sum over tokens", "within_word_l2r": "later tokens of a word masked, too"}
INTENDED_USE = [
    "A small English encoder to fine-tune on a CPU (labels of texts, words and pairs), to try commands, and to teach.",
    "Not for facts, text generation, or decisions about people.",
]


def benchmark_rows(glue: list[dict[str, Any]], blimp: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the card: GLUE at the learning rate with the best mean, and BLiMP by each score."""
    rows = []
    for task, name in TASK_NAMES.items():
        rates = [{**rate, "metric": row["metric"]} for row in glue if row["task"] == task for rate in row["rates"]]
        if rates:
            best = max(rates, key=lambda rate: rate["mean"])
            choice = f", the best of {len(rates)} on the same examples" if len(rates) > 1 else ""
            keys = {key: best[key] for key in ("metric", "mean", "std", "seeds")}
            rows.append({"data": name, **keys, "note": f"dev set; learning rate {best['rate']:g}{choice}"})
    for metric, scores in blimp.items():
        note = f"mean of the paradigms; pseudo-log-likelihood, {BLIMP_METRICS[metric]}; no training"
        rows.append({"data": "BLiMP", "metric": "accuracy", "mean": 100 * scores["accuracy"], "note": note})
    return rows


def license_text(titles: list[str]) -> str:
    """Return the license, the attribution, and the title of every text that the model was trained on."""
    novels = [title for title in titles if NOVEL.fullmatch(title)]
    articles = sorted(set(titles) - set(novels))
    years = sorted(title[-4:] for title in novels)
    parts = [
        f"The weights of the model {NAME}\n\n{LICENSE['name']}\n{LICENSE['url']}\n\n{LICENSE['notice']}",
        f"Training text: {len(articles):,} articles of English Wikipedia, by its contributors, cleaned and cut into "
        f"tokens, and {len(novels)} English novels. The article TITLE is at https://en.wikipedia.org/wiki/TITLE, and "
        "its authors are listed in its history.",
        NOVELS_NOTE.format(first=years[0], last=years[-1]),
        "Novels (author, title, year)\n\n" + "\n".join(title.replace("_", ", ") for title in novels),
        "Articles\n\n" + "\n".join(articles),
    ]
    return "\n\n\n".join(parts) + "\n"


def build_metadata(folder: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return the metadata of the model with everything that its card shows."""
    glue = [row for path in options.glue for row in json.loads(path.read_text())["summary"]]
    blimp = {path.stem.removeprefix("blimp-"): json.loads(path.read_text())[0] for path in options.blimp}
    overlaps = [row for path in options.overlap for row in json.loads(path.read_text())]
    for row in overlaps:
        row["name"] = Path(row["name"]).stem
        row.pop("worst_examples")
    config, tokenizer = folder.model.config, folder.tokenizer
    num_parameters = sum(parameter.numel() for parameter in folder.model.parameters())
    case = "lowercase" if tokenizer.lowercase else "cased"
    size = f"{config.trunk.num_layers} layers of {config.trunk.dim}, {num_parameters / 1e6:.1f} M parameters"
    max_len = folder.metadata["recipe"]["max_len"]
    stored = dequantize_weights(quantize_weights(folder.model.state_dict()), options.model)
    error = measure_error(folder.model.state_dict(), stored)
    return folder.metadata | {
        "name": NAME,
        "description": f"English encoder ({config.family}, {size}, {case}), Wikipedia and novels, CC BY-SA 3.0",
        "command": options.command,
        "corpus_facts": folder.metadata["corpus_facts"] | {"name": CORPUS_NAME},
        "finetuning_lr": FINETUNING_LR,
        "intended_use": INTENDED_USE,
        "benchmarks": benchmark_rows(glue, blimp),
        "contamination": overlaps,
        "limits": [
            f"Pre-trained on texts of at most {max_len} tokens; longer ones, up to {config.trunk.embeddings.max_len}, "
            "are untested.",
            "The scores are those of the float32 weights, before they were stored as int8, which changed them by "
            f"{error.relative_error:.2%} of their norm.",
            "Encyclopedia and old novels: no code, no news, little everyday language, and the views of their time.",
        ],
        "license": LICENSE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--titles", type=Path, required=True)
    parser.add_argument("--blimp", type=Path, nargs="+", required=True)
    parser.add_argument("--glue", type=Path, nargs="+", required=True)
    parser.add_argument("--overlap", type=Path, nargs="+", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folder = load_model(options.model)
    metadata = build_metadata(folder, options)
    if options.out.exists():
        shutil.rmtree(options.out)
    save_model(options.out, folder.model, folder.tokenizer, metadata, dtype="int8")
    (options.out / "LICENSE").write_text(license_text(options.titles.read_text().splitlines()))
    write_hashes(options.out)
    num_bytes = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{options.out}: {num_bytes / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
