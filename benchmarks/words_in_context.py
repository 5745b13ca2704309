"""Word in Context by layer, and the bundled sentences with bank, spring and stick clustered by sense.

    python benchmarks/words_in_context.py WIC [--models mini MODEL …] --out docs/results/wic-by-layer.md

The first model's token embeddings are also read as a table of word vectors, which do not depend on the context: the
reference. The page is written with its chart, `wic-by-layer.svg`.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import torch
from report import header, table

from polyseme.explain.words import explain_word
from polyseme.explain.words.names import model_names
from polyseme.explain.words.occurrences import BUNDLED_WORDS
from polyseme.explain.words.wic import read_wic, report_wic, wic_by_layer
from polyseme.inference.load import load, load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.word_vectors import WordVectors
from polyseme.report.svg import standalone_svg

SENSES = (
    "Adjusted Rand index of k-means clusters (best of ten starts) and senses (1: each cluster is a sense, 0: "
    "chance), with the number of senses known, and, in parentheses, with the number of clusters chosen by "
    "silhouette. An illustration, not a test: the 64 sentences were written for it, 20 or 24 per word, and the "
    "rule for the number of clusters (a silhouette of at least 0.2) and the layer that `explain` shows first "
    "(three quarters up) were settled while looking at these words in these two models. A stricter rule was tried "
    "before and dropped: a larger silhouette than each of 19 samples of a normal distribution with the same "
    "variances. It found one cluster of bank in 15 of 16 layers above the embeddings, and several in the last "
    "layer for 13 of 14 pairs of a model and a frequent word of WikiText-2. Nothing was tuned on Word in Context."
)


def static_table(model: NeuralLM) -> WordVectors:
    """Return the token embeddings of whole words as a table of word vectors."""
    tokenizer = model.tokenizer
    ids = [i for i, piece in enumerate(tokenizer.vocabulary) if piece.isalpha()]
    with torch.inference_mode():
        vectors = model.model.trunk.embeddings.tokens.weight[ids].float().cpu().numpy()
    words = [tokenizer.vocabulary[i] for i in ids]
    return WordVectors(words, vectors, Path("token table"), lowercase=tokenizer.lowercase)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wic", type=Path, help="folder of Word in Context, with train/ and dev/")
    parser.add_argument("--models", nargs="+", default=["mini"])
    parser.add_argument("--names", nargs="+", help="names of the models on the page")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    models = [load(model) for model in options.models]
    names = options.names or model_names(models)
    train, dev = (read_wic(options.wic, split) for split in ("train", "dev"))
    static = f"token table of {names[0]}"
    curves = {name: wic_by_layer(model, train, dev) for name, model in zip(names, models)}
    curves[static] = wic_by_layer(static_table(load_neural(models[0])), train, dev)
    explanation = report_wic(curves, len(train), len(dev))
    parts = [header("# Words in context, by layer\n"), command_line(options), "## Word in Context\n"]
    parts.append(
        wrap(
            "Does a word have the same meaning in two sentences? Yes if the cosine of its two vectors is at least a "
            f"threshold, chosen for each layer on {len(train):,} training pairs; accuracy on {len(dev):,} development "
            "pairs, with 95 % intervals (Wilson). Chance is 50 %. The layer of a model would be chosen by its accuracy "
            "on the training pairs."
        )
    )
    parts.append(f"![accuracy by layer]({options.out.stem}.svg)\n")
    parts.append(table(*explanation.tables[0]) + "\n")
    parts.append("## Bundled sentences, clustered by sense\n")
    parts.append(wrap(SENSES))
    parts.append(sense_table(dict(zip(names, models))))
    options.out.write_text("\n".join(parts) + "\n", encoding="utf-8")
    chart = standalone_svg(explanation.figures["wic"])
    options.out.with_suffix(".svg").write_text(chart, encoding="utf-8")


def command_line(options: argparse.Namespace) -> str:
    """Return the command, without the folders of this machine."""
    models = " ".join(Path(model).name for model in options.models)
    names = f" --names {' '.join(options.names)}" if options.names else ""
    return f"`python benchmarks/words_in_context.py WIC --models {models}{names} --out {options.out}`\n"


def wrap(text: str) -> str:
    """Return a paragraph in lines."""
    return textwrap.fill(text, 120) + "\n"


def sense_table(models: dict[str, object]) -> str:
    """Return the agreement with the senses by layer, a column for each model and word."""
    columns = {}
    for name, model in models.items():
        for word in BUNDLED_WORDS:
            (record,) = explain_word([model], word).record["models"]
            columns[f"{name}, {word}"] = {
                layer["layer"]: f"{layer['adjusted_rand_index_known_number']:.2f} ({layer['adjusted_rand_index']:.2f})"
                for layer in record["layers"]
            }
    last = max(max(column) for column in columns.values())
    rows = [(layer, *(column.get(layer, "") for column in columns.values())) for layer in range(last + 1)]
    return table(["layer", *columns], rows)


if __name__ == "__main__":
    main()
