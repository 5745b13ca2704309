"""Write the bundled model `mini`: int8 weights, a card with scores from result files, license and attribution.

    python benchmarks/mini.py MODEL --titles FILE --ledger FILE.json --glue FILE.json … --overlap FILE.json …
        [--select cased8192] --out src/polyseme/models/mini

MODEL is the folder that `speedrun.py train` wrote; the ledger is that of the same command, and `--glue` files are those
of `glue.py`. `--select` is a part of the arm's name, if the files have several. `--overlap` files are the JSON of
`polyseme overlap`. FILE of `--titles` has a title of the training text per line; that of a novel is AUTHOR_TITLE_YEAR.
No figure of the card is typed by hand.
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
    "The novels were published from {first} to {last}. Five of them are not in the public domain everywhere: "
    "Galsworthy's of 1933 and Woolf's of 1937 in the United States (until 2029 and 2033), and Forster's three where "
    "copyright lasts for 70 years after the author's death (until 2041). This package contains no text of them."
)
INTENDED_USE = [
    "A small English encoder to fine-tune on a CPU (labels of texts, words and pairs), to try commands, and to teach.",
    "Not for facts, text generation, or decisions about people.",
]


def benchmark_rows(ledger: list[dict[str, Any]], glue: list[dict[str, Any]], select: str) -> list[dict[str, Any]]:
    """Return the rows of the card: GLUE at the learning rate with the best mean, and BLiMP by both scores."""
    rows = []
    for task, name in TASK_NAMES.items():
        summaries = [row for row in glue if row["task"] == task and select in row["model"] and not row["scratch"]]
        rates = [{**rate, "metric": row["metric"]} for row in summaries for rate in row["rates"]]
        if rates:
            best = max(rates, key=lambda rate: rate["mean"])
            choice = f", the best of {len(rates)} on the same examples" if len(rates) > 1 else ""
            note = f"dev set; learning rate {best['rate']:g}{choice}"
            keys = {key: best[key] for key in ("metric", "mean", "std", "seeds")}
            rows.append({"data": name, **keys, "note": note})
    (entry,) = [row for row in ledger if select in row["arm"]]
    for key, note in (("blimp", "sum of token scores"), ("blimp_within_word_l2r", "within-word masking")):
        how = f"mean of 67 paradigms, pseudo-log-likelihood, {note}; no training"
        rows.append({"data": "BLiMP", "metric": "accuracy", "mean": 100 * entry[key], "note": how})
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
    ledger = json.loads(options.ledger.read_text())
    glue_files = [json.loads(path.read_text()) for path in options.glue]
    parts = [part for file in glue_files for part in (file if isinstance(file, list) else [file])]
    overlaps = [row for path in options.overlap for row in json.loads(path.read_text())]
    for row in overlaps:
        row["name"] = Path(row["name"]).stem
        row.pop("worst_examples")
    (entry,) = [row for row in ledger if options.select in row["arm"]]
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
        "command": entry["command"],
        "corpus_facts": folder.metadata["corpus_facts"] | {"name": CORPUS_NAME},
        "finetuning_lr": FINETUNING_LR,
        "intended_use": INTENDED_USE,
        "benchmarks": benchmark_rows(ledger, [row for part in parts for row in part["summary"]], options.select),
        "contamination": overlaps,
        "limits": [
            f"Pre-trained on texts of at most {max_len} tokens; longer ones, up to {config.trunk.embeddings.max_len}, "
            "are untested.",
            "The scores are those of the float32 weights, before they were stored as int8, which changed them by "
            f"{error.relative_error:.2%} of their norm.",
            "Wikipedia and novels up to 1937: few dialogs, no code, no news, and the views of their time.",
        ],
        "license": LICENSE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--titles", type=Path, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--glue", type=Path, nargs="+", required=True)
    parser.add_argument("--overlap", type=Path, nargs="+", required=True)
    parser.add_argument("--select", default="")
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
