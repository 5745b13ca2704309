"""`polyseme neighbors`, `analogy`, `similarity` and `vectors`: evaluate, export and import word vectors."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table
from polyseme.errors import DataError
from polyseme.io.lock import locks_folder

app = Typer(help="Export word vectors to a file, or import them.", rich_markup_mode=None)
VectorsArgument = Annotated[
    str, Argument(help="Model folder of word vectors, or a file in word2vec's text or binary format or GloVe's.")
]
QUESTIONS_HELP = "Analogy questions, four words per line in sections named `: NAME`, as in questions-words.txt."


def neighbors(
    model: VectorsArgument,
    word: Annotated[str, Argument(help="The word; fastText also embeds unknown words.")],
    top_k: Annotated[int, Option(help="Number of neighbors.", min=1)] = 10,
    as_json: options.JsonOption = False,
) -> None:
    """Print the nearest words by cosine similarity."""
    from polyseme.inference.word_vectors import WordVectors

    nearest = WordVectors.load(model).neighbors(word, top_k)
    if as_json:
        print_json([{"word": name, "cosine": value} for name, value in nearest])
        return
    print_table(["word", "cosine"], [(name, f"{value:.4f}") for name, value in nearest])


def analogy(
    model: VectorsArgument,
    data: Annotated[Path, Option(help=QUESTIONS_HELP)],
    cosmul: Annotated[bool, Option(help="Use 3CosMul instead of 3CosAdd.")] = False,
    max_words: Annotated[int, Option(help="Restrict answers to the most frequent words.", min=4)] = 30_000,
    as_json: options.JsonOption = False,
) -> None:
    """Print the analogy accuracy by section."""
    from polyseme.inference.word_vectors import AnalogySection, WordVectors
    from polyseme.word_vectors.evaluation import read_analogy_questions

    sections = WordVectors.load(model).evaluate_analogies(read_analogy_questions(data), cosmul, max_words)
    counts = ("num_correct", "num_answerable", "num_questions")
    total = AnalogySection("total", *(sum(getattr(section, name) for section in sections) for name in counts))
    if not total.num_answerable:
        raise DataError(f"of {total.num_questions} questions in {data} none has four words that {model} knows")
    if as_json:
        print_json([vars(section) | {"accuracy": section.accuracy} for section in (*sections, total)])
        return
    rows = [(s.name, f"{s.accuracy:.1%}", s.num_correct, s.num_answerable, s.num_questions) for s in (*sections, total)]
    print_table(["section", "accuracy", "correct", "answerable", "questions"], rows)


def similarity(
    model: VectorsArgument,
    data: Annotated[list[Path], Option(help="Word pairs with ratings, one per line; may be repeated.")],
    as_json: options.JsonOption = False,
) -> None:
    """Compare similarities of words with human ratings.

    Prints Spearman's correlation on WordSim-353, SimLex-999, MEN and files like them.
    """
    from polyseme.inference.word_vectors import WordVectors
    from polyseme.word_vectors.evaluation import read_similarity_pairs

    vectors, pair_sets = WordVectors.load(model), {path.name: read_similarity_pairs(path) for path in data}
    results = {name: vectors.evaluate_similarity(pairs) for name, pairs in pair_sets.items()}
    if as_json:
        print_json({name: vars(each) for name, each in results.items()})
        return
    rows = [(name, f"{each.spearman:.4f}", each.num_answerable, each.num_pairs) for name, each in results.items()]
    print_table(["dataset", "Spearman", "answerable", "pairs"], rows)


@app.callback()
def group() -> None:
    """Export word vectors to a file, or import them."""


@app.command()
def export(
    model: VectorsArgument,
    out: Annotated[Path, Option(help="Output file.")],
    format: Annotated[str, Option(help="text or binary (word2vec), or glove.")] = "text",
) -> None:
    """Export word vectors to a file that other tools read."""
    from polyseme.inference.word_vectors import WordVectors
    from polyseme.word_vectors.files import write_vectors

    vectors = WordVectors.load(model)
    write_vectors(out, vectors.words, vectors.vectors, format)  # type: ignore[arg-type]
    print(f"{out}: {len(vectors.words):,} words of dimension {vectors.vectors.shape[1]}")


@app.command("import")
@locks_folder("vectors import")
def import_(
    file: Annotated[Path, Argument(help="File in word2vec's text or binary format, or GloVe's text format.")],
    out: Annotated[Path, Option(help="Output model folder.")],
    lowercase: Annotated[bool | None, Option(help="Lowercase texts; default: if all words are in lower case.")] = None,
) -> None:
    """Import a file of word vectors as a model folder.

    `embed`, `finetune` and other commands read it.
    """
    from polyseme.io.atomic import ensure_new_directory
    from polyseme.weights.folder import save_model
    from polyseme.word_vectors.files import read_vectors, to_model

    ensure_new_directory(out)
    model, tokenizer = to_model(*read_vectors(file), lowercase)
    save_model(out, model, tokenizer, {"imported": file.name})
    print(f"{out}: {tokenizer.vocab_size:,} words of dimension {model.config.trunk.dim}")
