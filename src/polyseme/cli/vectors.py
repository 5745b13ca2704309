"""`polyseme neighbors`, `analogy`, `similarity` and `vectors`: evaluate, export and import word vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL = "model folder of word vectors, or a file in word2vec's text or binary format or GloVe's text format"
_JSON = "print JSON"

app = typer.Typer(help="Export word vectors to a file, or import them.", rich_markup_mode=None)


def neighbors(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    word: Annotated[str, typer.Argument(help="word; fastText also embeds unknown words")],
    top_k: Annotated[int, typer.Option(help="number of neighbors", min=1)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
) -> None:
    """Print the nearest words by cosine similarity."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.inference.word_vectors import WordVectors

    nearest_words = WordVectors.load(model).neighbors(word, top_k)
    if as_json:
        print_json([{"word": name, "cosine": value} for name, value in nearest_words])
        return
    print_table(["word", "cosine"], [(name, f"{value:.4f}") for name, value in nearest_words])


def analogy(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    data: Annotated[
        Path,
        typer.Option(help="analogy questions, four words per line in sections named `: NAME`, as questions-words.txt"),
    ],
    cosmul: Annotated[bool, typer.Option(help="use 3CosMul instead of 3CosAdd")] = False,
    max_words: Annotated[int, typer.Option(help="restrict answers to the most frequent words", min=4)] = 30_000,
    as_json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
) -> None:
    """Print the analogy accuracy by section."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.errors import DataError
    from polyseme.inference.word_vectors import AnalogySection, WordVectors
    from polyseme.word_vectors.evaluation import read_analogy_questions

    sections = WordVectors.load(model).evaluate_analogies(read_analogy_questions(data), cosmul, max_words)
    counts = ("num_correct", "num_answerable", "num_questions")
    totals = [sum(getattr(section, name) for section in sections) for name in counts]
    total = AnalogySection("total", *totals)
    if not total.num_answerable:
        raise DataError(f"of {total.num_questions} questions in {data} none has four words that {model} knows")
    if as_json:
        print_json([vars(section) | {"accuracy": section.accuracy} for section in (*sections, total)])
        return
    rows = [(s.name, f"{s.accuracy:.1%}", s.num_correct, s.num_answerable, s.num_questions) for s in (*sections, total)]
    print_table(["section", "accuracy", "correct", "answerable", "questions"], rows)


def similarity(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    data: Annotated[list[Path], typer.Option(help="word pairs with ratings, one per line; may be repeated")],
    as_json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
) -> None:
    """Print Spearman's correlation of cosine similarities with human ratings: WordSim-353, SimLex-999, MEN."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.inference.word_vectors import WordVectors
    from polyseme.word_vectors.evaluation import read_similarity_pairs

    vectors, pair_sets = WordVectors.load(model), {path.name: read_similarity_pairs(path) for path in data}
    results_by_set = {name: vectors.evaluate_similarity(pairs) for name, pairs in pair_sets.items()}
    if as_json:
        print_json({name: vars(similarity_result) for name, similarity_result in results_by_set.items()})
        return
    print_table(
        ["dataset", "Spearman", "answerable", "pairs"],
        [(n, f"{a.spearman:.4f}", a.num_answerable, a.num_pairs) for n, a in results_by_set.items()],
    )


@app.callback()
def group() -> None:
    """Export word vectors to a file, or import them."""


@app.command()
def export(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    out: Annotated[Path, typer.Option(help="output file")],
    format: Annotated[str, typer.Option(help="text or binary (word2vec), or glove")] = "text",
) -> None:
    """Export word vectors to a file that other tools read."""
    from polyseme.inference.word_vectors import WordVectors
    from polyseme.word_vectors.files import write_vectors

    vectors = WordVectors.load(model)
    write_vectors(out, vectors.words, vectors.vectors, format)  # type: ignore[arg-type]
    print(f"{out}: {len(vectors.words):,} words, {vectors.vectors.shape[1]} numbers each")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="file in word2vec's text or binary format, or GloVe's text format")],
    out: Annotated[Path, typer.Option(help="output model folder")],
    lowercase: Annotated[
        bool | None, typer.Option(help="lowercase texts; default: if all words of the file are in lower case")
    ] = None,
) -> None:
    """Import a file of word vectors as a model folder, for `embed`, `finetune` and other commands."""
    from polyseme.io.atomic import ensure_new_directory
    from polyseme.weights.folder import save_model
    from polyseme.word_vectors.files import read_vectors, to_model

    ensure_new_directory(out)
    model, tokenizer = to_model(*read_vectors(file), lowercase)
    save_model(out, model, tokenizer, {"imported": file.name})
    print(f"{out}: {tokenizer.vocab_size:,} words, {model.config.trunk.dim} numbers each")
