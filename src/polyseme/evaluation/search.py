"""Exact search by meaning: the texts of a file whose vectors are closest to that of a query, in bounded memory."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import ConfigError, DataError
from polyseme.evaluation.embed_file import MappedVectors
from polyseme.evaluation.streaming import Source, hash_path
from polyseme.inference.base import LanguageModel
from polyseme.progress import progress
from polyseme.report.notebook import NotebookResult
from polyseme.tasks.readers.rows import iter_lines

logger = logging.getLogger(__name__)
MAX_SCORES = 1 << 23  # scores that are in memory at once
SCORE_DECIMALS = 6  # equal texts tie, although their scores may differ in the last bits


@dataclass(frozen=True)
class SearchHit(NotebookResult):
    """A text that was found: its rank from 1, its cosine similarity with the query, its row from 1, and the text."""

    rank: int
    score: float
    row: int
    text: str


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
    model: LanguageModel,
    source: Source[str],
    queries: Sequence[str],
    top_k: int = 10,
    vectors: Path | None = None,
) -> list[list[SearchHit]]:
    """Return the `top_k` best texts for each query; texts that are too long for the model are cut, with a warning.

    `vectors` are those of the texts, written by `embed`. Without them the texts are read and embedded in windows.
    """
    if top_k < 1:
        raise ConfigError(f"`top_k` is {top_k}: it is the number of texts to return, at least 1")
    if not queries:
        raise DataError("there is no query to search for")
    for number, query in enumerate(queries, 1):
        if not query.strip():
            raise DataError(f"query {number} is empty: write what to search for")
    if not source.total:
        raise DataError("there are no texts to search")
    best, texts = TopK(len(queries), min(top_k, source.total)), dict[int, str]()
    if vectors is None:
        num_truncated = _count_truncated(model, queries)
        query_vectors = normalize(model.embed(list(queries), truncate=True))
        num_truncated += _search_windows(model, source, query_vectors, best, texts)
        if num_truncated:
            limit = f"longer than the {model.max_text_tokens} tokens that the model reads"
            logger.warning(f"texts {limit}, of which only the beginning is compared: {num_truncated:,}")
    else:
        _search_vectors(model, source, queries, best, vectors)
        wanted = best.all_rows()
        texts = {row: text for row, text in enumerate(source) if row in wanted}
    return [
        [
            SearchHit(rank, round(float(score), SCORE_DECIMALS), int(row) + 1, texts[int(row)])
            for rank, (score, row) in enumerate(zip(scores, rows), 1)
        ]
        for scores, rows in zip(best.scores, best.rows)
    ]


def _search_windows(
    model: LanguageModel, source: Source[str], queries: np.ndarray, best: TopK, texts: dict[int, str]
) -> int:
    """Embed and compare the texts window by window, keep the texts of the best rows; return how many are too long."""
    first_row = num_truncated = 0
    with progress("search", source.total, "texts", show=source.total > 1) as bar:
        for window in source.windows():
            try:
                with bar.window(len(window)):
                    window_vectors = normalize(model.embed(window, truncate=True))
            except DataError as error:
                raise DataError(f"rows {first_row + 1:,} to {first_row + len(window):,}: {error}") from None
            num_truncated += _count_truncated(model, window)
            best.update(queries, window_vectors, first_row)
            rows = best.all_rows()
            texts |= {row: window[row - first_row] for row in rows if row >= first_row}
            for row in texts.keys() - rows:
                del texts[row]
            first_row += len(window)
        bar.finish()
    return num_truncated


def _search_vectors(model: LanguageModel, source: Source[str], queries: Sequence[str], best: TopK, path: Path) -> None:
    """Compare the queries with stored vectors, after a check that they are those of the texts and of the model."""
    stored = MappedVectors.open(path)
    hint = "write them again with `polyseme embed`"
    if stored.settings.get("granularity") != "text":
        raise DataError(f"{path} has no vectors of texts that `polyseme embed` wrote: {hint}")
    if stored.settings["model"] != hash_path(model.path):
        raise DataError(f"{path} has the vectors of another model than {model.path}: {hint}")
    if stored.settings["input"] != source.hash:
        raise DataError(f"{path} has the vectors of other texts than {source.path or 'these'}: {hint}")
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


def _iter_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            raise DataError(f"{path}:{number} is empty: every line must contain a text")
        yield line


def _iter_values(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts that are Python values; anything but a text with something in it is an error."""
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"text {number} is {str(text)[:40]!r}: a text with something in it is needed")
        yield text


def open_texts(texts: Any) -> Source[str]:
    """Return a file of texts, or texts as Python values, as a source."""
    if isinstance(texts, str | Path):
        path = Path(texts)
        return Source(path, lambda _: _iter_lines(path))
    return Source(None, lambda _: _iter_values(texts))
