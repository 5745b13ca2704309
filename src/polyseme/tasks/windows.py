"""Overlapping windows over a long text, and the best answer of each.

As in BERT (Devlin et al. 2019, §4.2 and 4.3), the question comes first, then as much of the context as fits. The score
of a span is the start score of its first token plus the end score of its last. "No answer" is the span at the token of
the whole sequence; it wins if its score exceeds that of the best span by more than a threshold.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from polyseme.tasks.encoded import EncodedExample, IdsAndSegments, Target
from polyseme.text.tokenizer import Tokenizer

CHUNK_CHARS = 1 << 14  # characters that are tokenized at a time
JoinFn = Callable[[list[int], list[int]], IdsAndSegments]  # question and context to ids and segments


@dataclass(frozen=True)
class WindowAnswer:
    """The best span of a window, in characters of the context, and the score of "no answer" there."""

    score: float
    start: int
    end: int
    probability: float
    null_score: float


def tokenize_in_chunks(tokenizer: Tokenizer, text: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield token ids and the characters they cover, for chunks that end before a space."""
    begin = 0
    while begin < len(text):
        end = begin + CHUNK_CHARS
        if end < len(text):
            spaces = [m.start() for m in re.finditer(r"\s", text[end - 1000 : end])]
            end = end - 1000 + spaces[-1] if spaces else end
        ids, offsets = tokenizer.encode_with_offsets(text[begin:end])
        yield np.array(ids, dtype=np.int32), np.array(offsets, dtype=np.int64).reshape(-1, 2) + begin
        begin = end


def slide_window(
    chunks: Iterable[tuple[np.ndarray, np.ndarray]], window_size: int, step: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield windows, each `step` tokens after the previous one, with their place: "first", "last", both or neither."""
    ids, offsets = np.empty(0, np.int32), np.empty((0, 2), np.int64)
    place = "first"
    for chunk_ids, chunk_offsets in chunks:
        ids, offsets = np.concatenate([ids, chunk_ids]), np.concatenate([offsets, chunk_offsets])
        while len(ids) > window_size:  # at least one more window follows
            yield place, ids[:window_size], offsets[:window_size]
            ids, offsets, place = ids[step:], offsets[step:], ""
    yield place + "last", ids, offsets


def gold_token_span(
    gold_span: tuple[int, int] | None, place: str, offsets: np.ndarray, context_start: int, null_position: int
) -> Target:
    """Return the positions of the answer's first and last token; those of "no answer" if the window lacks some."""
    if gold_span is None:
        return None
    begin, end = gold_span
    if end > begin and len(offsets):
        is_inside = ("first" in place or offsets[0, 0] <= begin) and ("last" in place or offsets[-1, 1] >= end)
        first = int(np.searchsorted(offsets[:, 1], begin, side="right"))
        last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
        if is_inside and first <= last:
            return np.array([context_start + first, context_start + last])
    return np.array([null_position, null_position])


def best_span(window: EncodedExample, scores: np.ndarray, max_answer_tokens: int) -> WindowAnswer:
    """Return the best span of a window among all spans up to the maximum length."""
    assert window.offsets is not None
    scores = scores.astype(np.float64)
    null_score = float(scores[window.null_position].sum())
    n = len(window.positions)
    if not n:
        return WindowAnswer(-1e9, 0, 0, 0.0, null_score)
    starts, ends = scores[window.positions, 0], scores[window.positions, 1]
    values = np.full((min(max_answer_tokens, n), n), -np.inf)
    for extra in range(len(values)):
        values[extra, : n - extra] = starts[: n - extra] + ends[extra:]
    extra, first = divmod(int(values.argmax()), n)
    value = float(values[extra, first])
    total = np.logaddexp.reduce(scores[window.candidate_positions], axis=0).sum()
    begin, end = int(window.offsets[first, 0]), int(window.offsets[first + extra, 1])
    return WindowAnswer(value, begin, max(begin, end), float(np.exp(value - total)), null_score)
