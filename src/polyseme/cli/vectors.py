"""`polyseme neighbours`, `analogy`, `similarity` and `vectors`: what word vectors know, and files of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL = "a model folder of word vectors, or a file of them (word2vec's text or binary form, or GloVe's text)"
_JSON = "print everything as JSON"

app = typer.Typer(help="Write word vectors to a file, or make a model of one.", rich_markup_mode=None)


def neighbours(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    word: Annotated[str, typer.Argument(help="a word; fastText knows words that it has not seen too")],
    top: Annotated[int, typer.Option(help="how many", min=1)] = 10,
    json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
) -> None:
    """The words whose vectors are nearest, by cosine."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.word_vectors.model import load

    found = load(model).neighbours(word, top)
    if json:
        print_json([{"word": name, "cosine": value} for name, value in found])
        return
    print_table(["word", "cosine"], [(name, f"{value:.4f}") for name, value in found])


def analogy(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    data: Annotated[Path, typer.Option(help="four words a line, sections named by `: NAME`, as questions-words.txt")],
    multiply: Annotated[bool, typer.Option(help="3CosMul instead of 3CosAdd")] = False,
    restrict: Annotated[int, typer.Option(help="answers are among so many words, the most frequent", min=4)] = 30_000,
    json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
) -> None:
    """How many analogies come out right, by section."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.errors import UserError
    from polyseme.word_vectors.model import Section, load, read_questions

    sections = load(model).analogies(read_questions(data), multiply, restrict)
    sums = [sum(getattr(section, name) for section in sections) for name in ("right", "asked", "questions")]
    total = Section("total", *sums)
    if not total.asked:
        raise UserError(f"of {total.questions} questions in {data} none has four words that {model} knows")
    if json:
        print_json([vars(section) | {"accuracy": section.accuracy} for section in (*sections, total)])
        return
    rows = [(s.name, f"{s.accuracy:.1%}", s.right, s.asked, s.questions) for s in (*sections, total)]
    print_table(["section", "accuracy", "right", "asked", "questions"], rows)


def similarity(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    data: Annotated[list[Path], typer.Option(help="two words and a number a line; may be repeated")],
    json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
) -> None:
    """Spearman's correlation of cosines with what people said: WordSim-353, SimLex-999, MEN."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.word_vectors.model import load, read_pairs

    vectors, sets = load(model), {path.name: read_pairs(path) for path in data}
    found = {name: vectors.similarity(pairs) for name, pairs in sets.items()}
    if json:
        print_json({name: vars(agreement) for name, agreement in found.items()})
        return
    print_table(
        ["data", "Spearman", "asked", "pairs"], [(n, f"{a.spearman:.4f}", a.asked, a.pairs) for n, a in found.items()]
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
    from polyseme.io.files import new_folder
    from polyseme.weights.folder import save_model
    from polyseme.word_vectors.files import model_of, read_vectors

    new_folder(out)
    model, tokenizer = model_of(*read_vectors(file), lowercase)
    save_model(out, model, tokenizer, {"imported": file.name})
    print(f"{out}: {tokenizer.vocab_size:,} words, {model.spec.trunk.dim} numbers each")
