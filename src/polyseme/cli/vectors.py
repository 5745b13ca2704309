"""`polyseme neighbors`, `analogy`, `similarity` and `vectors`: what word vectors know, and files of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL = "a model folder of word vectors, or a file of them (word2vec's text or binary form, or GloVe's text)"
_JSON = "print everything as JSON"

app = typer.Typer(help="Write word vectors to a file, or make a model of one.", rich_markup_mode=None)


def neighbors(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    word: Annotated[str, typer.Argument(help="a word; fastText knows words that it has not seen too")],
    top_k: Annotated[int, typer.Option(help="how many", min=1)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
) -> None:
    """The words whose vectors are nearest, by cosine."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.word_vectors.model import load

    nearest_words = load(model).neighbors(word, top_k)
    if as_json:
        print_json([{"word": name, "cosine": value} for name, value in nearest_words])
        return
    print_table(["word", "cosine"], [(name, f"{value:.4f}") for name, value in nearest_words])


def analogy(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    data: Annotated[Path, typer.Option(help="four words a line, sections named by `: NAME`, as questions-words.txt")],
    cosmul: Annotated[bool, typer.Option(help="3CosMul instead of 3CosAdd")] = False,
    max_words: Annotated[int, typer.Option(help="answers are among so many words, the most frequent", min=4)] = 30_000,
    as_json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
) -> None:
    """How many analogies come out right, by section."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.errors import DataError
    from polyseme.word_vectors.model import AnalogySection, load, read_analogy_questions

    sections = load(model).evaluate_analogies(read_analogy_questions(data), cosmul, max_words)
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
    data: Annotated[list[Path], typer.Option(help="two words and a number a line; may be repeated")],
    as_json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
) -> None:
    """Spearman's correlation of cosines with what people said: WordSim-353, SimLex-999, MEN."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.word_vectors.model import load, read_similarity_pairs

    vectors, pair_sets = load(model), {path.name: read_similarity_pairs(path) for path in data}
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
    """Write word vectors to a file, or make a model of one."""


@app.command()
def export(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    out: Annotated[Path, typer.Option(help="the file to write")],
    format: Annotated[str, typer.Option(help="text or binary (word2vec's), or glove")] = "text",
) -> None:
    """Write a file of vectors that other tools read."""
    from polyseme.word_vectors.files import write_vectors
    from polyseme.word_vectors.model import load

    vectors = load(model)
    write_vectors(out, vectors.words, vectors.vectors, format)  # type: ignore[arg-type]
    print(f"{out}: {len(vectors.words):,} words, {vectors.vectors.shape[1]} numbers each")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="word2vec's text or binary form, or GloVe's text")],
    out: Annotated[Path, typer.Option(help="the model folder to write")],
    lowercase: Annotated[
        bool | None, typer.Option(help="read texts in lower case; default: if the file's words are all so")
    ] = None,
) -> None:
    """Make a model folder of a file of vectors, for `embed`, `finetune` and the rest."""
    from polyseme.io.atomic import ensure_new_directory
    from polyseme.weights.folder import save_model
    from polyseme.word_vectors.files import read_vectors, to_model

    ensure_new_directory(out)
    model, tokenizer = to_model(*read_vectors(file), lowercase)
    save_model(out, model, tokenizer, {"imported": file.name})
    print(f"{out}: {tokenizer.vocab_size:,} words, {model.config.trunk.dim} numbers each")
