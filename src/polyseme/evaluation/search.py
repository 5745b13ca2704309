"""Exact search by meaning: the texts of a file whose vectors are closest to that of a query, in bounded memory."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import ConfigError, DataError
from polyseme.evaluation.embed_file import MappedVectors
from polyseme.evaluation.streaming import Source, hash_path
from polyseme.evaluation.text_rows import TextFile, TextRow
from polyseme.evaluation.text_rows import open_texts as open_file
from polyseme.inference.base import LanguageModel
from polyseme.progress import progress
from polyseme.report.notebook import NotebookResult
from polyseme.text.arguments import check_list

logger = logging.getLogger(__name__)
MAX_SCORES = 1 << 23  # scores that are in memory at once
SCORE_DECIMALS = 6  # equal texts tie, although their scores may differ in the last bits


@dataclass(frozen=True)
class SearchHit(NotebookResult):
    """A text that was found: its rank from 1, its cosine similarity with the query, its row from 1, and the text.

    `columns` are all columns of its row in the file.
    """

    rank: int
    score: float
    row: int
    text: str
    columns: Mapping[str, Any] = field(default_factory=dict, repr=False)


class TopK:
    """The best rows of each query so far. Of equal scores, the first row is better."""

    def __init__(self, num_queries: int, top_k: int):
        self.top_k = top_k
        self.scores = [np.empty(0, dtype=np.float32) for _ in range(num_queries)]
        self.rows = [np.empty(0, dtype=np.int64) for _ in range(num_queries)]

    def update(self, queries: np.ndarray, vectors: np.ndarray, first_row: int) -> None:
        """Compare all queries with the vectors of the rows from `first_row` on; all vectors have length one."""
        block_size = max(MAX_SCORES // max(len(vectors), 1), 1)
        for start in range(0, len(queries), block_size):
            block = np.round(queries[start : start + block_size] @ vectors.T, SCORE_DECIMALS)
            for query, scores in enumerate(block, start):
                self._merge(query, scores, first_row)

    def _merge(self, query: int, scores: np.ndarray, first_row: int) -> None:
        limit = self.scores[query][-1] if len(self.scores[query]) == self.top_k else -np.inf
        if len(scores) > self.top_k:
            limit = max(limit, np.partition(scores, -self.top_k)[-self.top_k])
        best = np.flatnonzero(scores >= limit)
        merged = np.concatenate([self.scores[query], scores[best]])
        rows = np.concatenate([self.rows[query], first_row + best])
        order = np.argsort(-merged, kind="stable")[: self.top_k]  # rows ascend, so that the first of equals wins
        self.scores[query], self.rows[query] = merged[order], rows[order]

    def all_rows(self) -> set[int]:
        """Return the rows that are among the best of any query."""
        return {int(row) for rows in self.rows for row in rows}


def search(
    model: LanguageModel, texts: TextFile, queries: Sequence[str], top_k: int = 10, vectors: Path | None = None
) -> list[list[SearchHit]]:
    """Return the `top_k` best texts for each query; texts that are too long for the model are cut, with a warning.

    `vectors` are those of the texts, written by `embed`. Without them the texts are read and embedded in windows.
    """
    if not isinstance(top_k, Integral) or top_k < 1:
        raise ConfigError(f"`top_k` is {top_k!r}: it is the number of texts to return, at least 1")
    if not queries:
        raise DataError("there is no query to search for")
    for number, query in enumerate(queries, 1):
        if not query.strip():
            raise DataError(f"query {number} is empty: write what to search for")
    if not texts.source.total:
        raise DataError("there are no texts to search")
    best, rows = TopK(len(queries), min(top_k, texts.source.total)), dict[int, TextRow]()
    if vectors is None:
        query_vectors = normalize(model.embed(list(queries), truncate=True))
        num_truncated = _count_truncated(model, queries) + _search_windows(
            model, texts.source, query_vectors, best, rows
        )
        if num_truncated:
            limit = f"longer than the {model.max_text_tokens} tokens that the model reads"
            logger.warning(f"texts {limit}, of which only the beginning is compared: {num_truncated:,}")
    else:
        _search_vectors(model, texts, queries, best, vectors)
        wanted = best.all_rows()
        rows = {number: row for number, row in enumerate(texts.source) if number in wanted}
    return [
        [
            SearchHit(rank, round(float(score), SCORE_DECIMALS), int(number) + 1, *rows[int(number)][:2])
            for rank, (score, number) in enumerate(zip(scores, numbers), 1)
        ]
        for scores, numbers in zip(best.scores, best.rows)
    ]


def _search_windows(
    model: LanguageModel, source: Source[TextRow], queries: np.ndarray, best: TopK, rows: dict[int, TextRow]
) -> int:
    """Embed and compare the texts window by window and keep the best rows; return how many texts are too long."""
    first_row = num_truncated = 0
    with progress("search", source.total, "texts", show=source.total > 1) as bar:
        for window in source.windows():
            window_texts = [row.text for row in window]
            try:
                with bar.window(len(window)):
                    window_vectors = normalize(model.embed(window_texts, truncate=True))
            except DataError as error:
                raise DataError(f"rows {first_row + 1:,} to {first_row + len(window):,}: {error}") from None
            num_truncated += _count_truncated(model, window_texts)
            best.update(queries, window_vectors, first_row)
            best_rows = best.all_rows()
            rows |= {number: window[number - first_row] for number in best_rows if number >= first_row}
            for number in rows.keys() - best_rows:
                del rows[number]
            first_row += len(window)
        bar.finish()
    return num_truncated


def _search_vectors(model: LanguageModel, texts: TextFile, queries: Sequence[str], best: TopK, path: Path) -> None:
    """Compare the queries with stored vectors, after a check that they are those of the texts and of the model."""
    stored, hint = MappedVectors.open(path), "write them again with `polyseme embed`"
    if stored.settings.get("granularity") != "text":
        raise DataError(f"{path} has no vectors of texts that `polyseme embed` wrote: {hint}")
    if stored.settings["model"] != hash_path(model.path):
        raise DataError(f"{path} has the vectors of another model than {model.path}: {hint}")
    if stored.settings["input"] != texts.source.hash:
        raise DataError(f"{path} has the vectors of other texts than {texts.source.path or 'these'}: {hint}")
    if stored.settings["text"] != texts.text_column:
        columns = f"{stored.settings['text']!r}, not {texts.text_column!r}"
        raise DataError(f"{path} has the vectors of the column {columns}: {hint}")
    query_vectors = normalize(model.embed(list(queries), stored.settings["layers"], truncate=True))
    for first_row, block in stored.blocks():
        best.update(query_vectors, normalize(block), first_row)


def normalize(vectors: np.ndarray) -> np.ndarray:
    """Return vectors scaled to length one; a vector of zeros stays zero."""
    vectors = vectors.astype(np.float32, copy=False)
    scaled: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled


def _count_truncated(model: LanguageModel, texts: Iterable[str]) -> int:
    """Return how many texts are longer than the model reads; only those with enough bytes are encoded again."""
    max_tokens = model.max_text_tokens
    long = [text for text in texts if len(text) > max_tokens or len(text.encode()) > max_tokens]
    return int((model.tokenizer.encode_corpus(long).lengths > max_tokens).sum()) if long else 0


def open_texts(texts: Any, model: Path | None = None) -> TextFile:
    """Open a file of texts, in any format and `PATH::text=COLUMN`, or texts as Python values.

    `model` is a folder that may remember the column of the text from fine-tuning.
    """
    if isinstance(texts, str | Path):
        return open_file(texts, model)
    values = check_list(texts)
    return TextFile(Source(None, lambda _: _iter_values(values)), ["text"], "text", "")


def _iter_values(texts: Iterable[Any]) -> Iterator[TextRow]:
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"text {number} is {str(text)[:40]!r}: a text with something in it is needed")
        yield TextRow(text, {"text": text})
