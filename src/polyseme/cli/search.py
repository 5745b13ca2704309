"""`polyseme search`: find the texts of a file that are closest in meaning to a query."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table, read_texts
from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.evaluation.search import SearchHit

VECTORS_HELP = "Vectors of the texts, written by `polyseme embed MODEL --data FILE`: searching again is fast."
MAX_WIDTH = 100  # characters of a text in a table


def search(
    texts: Annotated[Path, Argument(help="File of the texts to search, one per line.")],
    query: Annotated[
        list[str] | None, Argument(help="What to search for; several queries are answered in turn.")
    ] = None,
    *,
    model: Annotated[Path, Option(help="Folder of a model, or a file of word vectors.")],
    top_k: Annotated[int, Option(help="Number of texts for each query.", min=1)] = 10,
    queries: Annotated[Path | None, Option(help="File of queries, one per line, instead of QUERY.")] = None,
    vectors: Annotated[Path | None, Option(help=VECTORS_HELP)] = None,
    as_json: options.JsonLinesOption = False,
    out: Annotated[Path | None, Option(help="Output file of JSON lines (.jsonl) instead of standard output.")] = None,
) -> None:
    """Find the texts closest in meaning to a query, by the cosine similarity of their vectors.

    The search is exact and its memory bounded. Train a model for it with `polyseme finetune --task contrastive`.
    """
    import polyseme
    from polyseme.evaluation.search import open_texts
    from polyseme.evaluation.search import search as run
    from polyseme.io.atomic import write_text

    if bool(query) == (queries is not None):
        raise ConfigError("give a QUERY, or --queries with a file of them")
    if out is not None and out.suffix != ".jsonl":
        raise ConfigError(f"--out {out} does not end in .jsonl")
    query_texts = query or read_texts(queries)  # type: ignore[arg-type]
    hits = run(polyseme.load(model), open_texts(texts), query_texts, top_k, vectors)
    if out is not None:
        write_text(out, "".join(f"{to_json(row)}\n" for row in _rows(query_texts, hits)))
        print(f"{out}: {sum(map(len, hits)):,} texts for {len(hits):,} queries")
    elif as_json:
        for row in _rows(query_texts, hits):
            print_json(row, indent=None)
    else:
        for number, (text, query_hits) in enumerate(zip(query_texts, hits)):
            if len(hits) > 1:
                print(f"{chr(10) if number else ''}{text}")
            rows = [(hit.rank, f"{hit.score:.4f}", hit.row, _shorten(hit.text)) for hit in query_hits]
            print_table(["rank", "score", "row", "text"], rows)


def to_json(row: dict[str, Any]) -> str:
    """Return a row as one line of JSON."""
    import json

    return json.dumps(row, ensure_ascii=False)


def _rows(queries: Sequence[str], hits: "Sequence[Sequence[SearchHit]]") -> Iterator[dict[str, Any]]:
    return ({"query": query, **asdict(hit)} for query, query_hits in zip(queries, hits) for hit in query_hits)


def _shorten(text: str) -> str:
    """Return a text on one line, cut to the width of a table."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_WIDTH else f"{line[: MAX_WIDTH - 1]}…"
