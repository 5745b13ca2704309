"""`polyseme search`: find the texts of a file that are closest in meaning to a query."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_table, read_texts
from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.evaluation.search import SearchHit

VECTORS_HELP = "Vectors of the texts, written by `polyseme embed MODEL --data FILE`: searching again is fast."
OUT_HELP = "Output file: .csv, .tsv, .jsonl or .parquet with the query, rank and score beside all columns of the input."
MAX_WIDTH = 100  # characters of a text in a table
QueriesArgument = Annotated[list[str] | None, Argument(help="What to search for; each query gets its own results.")]


def search(
    texts: Annotated[str, Argument(help=f"Texts to search: {options.INPUT_HELP}")],
    query: QueriesArgument = None,
    *,
    model: Annotated[Path, Option(help="Folder of a model, or a file of word vectors.")],
    top_k: Annotated[int, Option(help="Number of texts for each query.", min=1)] = 10,
    queries: Annotated[
        str | None, Option(help="File of queries instead of QUERY, in any format that TEXTS has.")
    ] = None,
    vectors: Annotated[Path | None, Option(help=VECTORS_HELP)] = None,
    as_json: options.JsonLinesOption = False,
    out: Annotated[Path | None, Option(help=OUT_HELP)] = None,
) -> None:
    """Find the texts of a file closest in meaning to a query.

    Texts are compared by the cosine similarity of their vectors. The search is exact and its memory
    bounded. Train a model for it with `polyseme finetune --task contrastive`.
    """
    import polyseme
    from polyseme.evaluation.search import open_texts
    from polyseme.evaluation.search import search as run
    from polyseme.io.table_output import TABLE_SUFFIXES, TableOutput, check_output_suffix

    if bool(query) == (queries is not None):
        raise ConfigError("give a QUERY, or --queries with a file of them")
    if out is not None:
        check_output_suffix(out, TABLE_SUFFIXES[:-1], "results")
    query_texts = query or read_texts(queries)  # type: ignore[arg-type]
    file = open_texts(texts, model)
    hits = run(polyseme.load(model), file, query_texts, top_k, vectors)
    rows = [
        (hit.columns, {"query": query, "rank": hit.rank, "score": hit.score, "row": hit.row})
        for query, query_hits in zip(query_texts, hits)
        for hit in query_hits
    ]
    if out is not None:
        write_rows(out, file.names, rows)
        print(f"{out}: {len(rows):,} results of {len(hits):,} queries")
    elif as_json:
        print(TableOutput(Path("results.jsonl"), file.names).encode(rows), end="")
    else:
        _print_hits(query_texts, hits, file.id_column)


def write_rows(out: Path, names: Sequence[str], rows: Sequence[Any]) -> None:
    """Write rows of the input's columns and ours to a file, whose name decides the format."""
    from polyseme.io.atomic import write_text
    from polyseme.io.partial import part_path
    from polyseme.io.table_output import TableOutput

    table, part = TableOutput(out, names), part_path(out)
    write_text(part, table.encode(rows))
    table.install(part)
    part.unlink(missing_ok=True)


def _print_hits(queries: Sequence[str], hits: "Sequence[Sequence[SearchHit]]", id_column: str) -> None:
    for number, (query, query_hits) in enumerate(zip(queries, hits)):
        if len(hits) > 1:
            print(f"{chr(10) if number else ''}{query}")
        header = ["rank", "score", id_column or "row", "text"]
        rows = [
            (hit.rank, f"{hit.score:.4f}", hit.columns.get(id_column, hit.row), _shorten(hit.text))
            for hit in query_hits
        ]
        print_table(header, rows)


def _shorten(text: str) -> str:
    """Return a text on one line, cut to the width of a table."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_WIDTH else f"{line[: MAX_WIDTH - 1]}…"
