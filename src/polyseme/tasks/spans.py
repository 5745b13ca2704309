"""Answers that stand in a text: the question with each window of the text, and the best stretch of them all.

As BERT does it (Devlin et al. 2019, §4.2 and 4.3): the question first, then as much of the context as fits; windows
overlap; a stretch is worth the score of its first token as a start plus that of its last as an end. "No answer" is the
stretch at the token of the whole sequence; it wins if it is worth more than the best one by more than a threshold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np

from polyseme.config import Config
from polyseme.errors import ConfigError, DataError
from polyseme.tasks.encoded import EncodedExample, Target, TextTargets, separator_id
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.standard import squad_scores
from polyseme.tasks.readers.squad import valid_answers
from polyseme.text.tokenizer import Tokenizer

CHUNK_CHARS = 1 << 14  # characters that are tokenised at a time
JoinFn = Callable[[list[int], list[int]], tuple[list[int], list[int]]]  # question and context to ids and segments


@dataclass(frozen=True)
class ExtractiveQAConfig(Config):
    """A window begins at most `doc_stride` tokens, and at most half a window, after the one before it. An answer has at
    most `max_answer_tokens` tokens. Without a `null_score_diff_threshold` every question has an answer; with one, those
    have none whose odds against are above it.
    """

    doc_stride: int = 128
    max_answer_tokens: int = 30
    null_score_diff_threshold: float | None = None

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "doc_stride", "max_answer_tokens")


@dataclass(frozen=True)
class SpanAnswer:
    """A stretch of the context; an empty text is "no answer". `null_score_diff` is by how much that is worth more than
    the best stretch. The probability is that of start and end in their window.
    """

    text: str
    start: int
    end: int
    probability: float
    null_score_diff: float


@dataclass(frozen=True)
class WindowAnswer:
    """The best stretch of a window, in characters of the context; and what "no answer" is worth there."""

    score: float
    start: int
    end: int
    probability: float
    null_score: float


def sliding_windows(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_len: int,
    config: ExtractiveQAConfig,
    truncate: bool = False,
    use_labels: bool = True,
    join: JoinFn | None = None,
    text_targets: TextTargets | None = None,
) -> Iterator[EncodedExample]:
    """Every window of every example, one after the other, so that no document has to be held as tokens.

    A question may take half of a window; a longer one is an error, or is cut if `truncate` is set. `join` puts
    question and context together, if not as a pair.
    """
    join = join or partial(_wrap, tokenizer)
    frame, specials = join([-1], [-2])[0], tokenizer.special_token_ids
    if max_len // 2 - len(frame) < 0:
        raise ConfigError(f"max_len {max_len} leaves no room for text beside the special tokens")
    first = frame[0] == specials.cls and specials.cls is not None
    cached_context: tuple[str, list[tuple[np.ndarray, np.ndarray]]] = ("", [])
    for example_index, example in enumerate(examples):
        if example.pair is None or example.text is None:
            raise DataError(f"{example.location}: there is no question, which this task reads")
        question = tokenizer.encode(example.pair)
        room = max_len // 2 - len(frame) + 2
        if len(question) > room and not truncate:
            raise DataError(
                f"{example.location}: the question has {len(question)} tokens, and {room} are read: truncate"
            )
        is_truncated = len(question) > room
        question = question[:room]
        max_context_tokens = max_len - len(join(question, [])[0])
        context_start = join(question, [-1])[0].index(-1)
        if cached_context[0] is not example.text:  # the questions of a paragraph come together
            chunks = tokenize_in_chunks(tokenizer, example.text)
            cached_context = (example.text, list(chunks)) if len(example.text) <= CHUNK_CHARS else ("", [])
        gold_span = gold_char_span(example) if use_labels else None
        context_chunks = cached_context[1] or tokenize_in_chunks(tokenizer, example.text)
        step = min(config.doc_stride, max(max_context_tokens // 2, 1))
        for place, ids, offsets in slide_window(context_chunks, max_context_tokens, step):
            wrapped, segments = join(question, ids.tolist())
            null_position = 0 if first else len(wrapped) - 1
            yield EncodedExample(
                np.array(wrapped, dtype=np.int64),
                np.array(segments, dtype=np.int64),
                np.arange(context_start, context_start + len(ids)),
                gold_token_span(gold_span, place, offsets, context_start, null_position),
                is_truncated=is_truncated,
                example_index=example_index,
                offsets=offsets,
                null_position=null_position,
                text_targets=text_targets,
            )


def tokenize_in_chunks(tokenizer: Tokenizer, text: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and the characters they cover, of stretches that end before a space."""
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
    """Windows of `window_size` tokens, each `step` after the one before it; and whether a window is first, last or
    both.
    """
    ids, offsets = np.empty(0, np.int32), np.empty((0, 2), np.int64)
    place = "first"
    for chunk in chunks:
        ids, offsets = np.concatenate([ids, chunk[0]]), np.concatenate([offsets, chunk[1]])
        while len(ids) > window_size:  # at least one more window follows
            yield place, ids[:window_size], offsets[:window_size]
            ids, offsets, place = ids[step:], offsets[step:], ""
    yield place + "last", ids, offsets


def gold_char_span(example: Example) -> tuple[int, int] | None:
    """The characters of the first answer that stands where it is said to; (0, 0) where there is none to find."""
    if example.answers == ():
        return (0, 0)
    answers = valid_answers(example)
    return (answers[0][1], answers[0][1] + len(answers[0][0])) if answers else None


def gold_token_span(
    gold_span: tuple[int, int] | None, place: str, offsets: np.ndarray, context_start: int, null_position: int
) -> Target:
    """The rows of the answer's first and last token; those of "no answer" where this window does not hold all of it."""
    if gold_span is None:
        return None
    begin, end = gold_span
    if end > begin and len(offsets):
        contains_answer = ("first" in place or offsets[0, 0] <= begin) and ("last" in place or offsets[-1, 1] >= end)
        first = int(np.searchsorted(offsets[:, 1], begin, side="right"))
        last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
        if contains_answer and first <= last:
            return np.array([context_start + first, context_start + last])
    return np.array([null_position, null_position])


def merge_window_answers(
    window_answers: Iterable[tuple[int, WindowAnswer]], examples: Sequence[Example], config: ExtractiveQAConfig
) -> list[SpanAnswer]:
    """The best stretch of each example, from those of its windows, each with the number of its example."""
    answers = []
    for example_index, group in groupby(window_answers, key=lambda pair: pair[0]):
        top, null_score = WindowAnswer(-np.inf, 0, 0, 0.0, 0.0), np.inf
        for _, window_answer in group:  # no list of them: a document may have any number of windows
            top, null_score = (
                (window_answer if window_answer.score > top.score else top),
                min(null_score, window_answer.null_score),
            )
        null_score_diff = float(null_score - top.score)
        text = examples[example_index].text or ""
        begin, end = top.start, top.end
        inner = text[begin:end]
        begin, end = begin + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
        answer = SpanAnswer(text[begin:end], begin, max(begin, end), top.probability, null_score_diff)
        answers.append(apply_threshold(answer, text, config.null_score_diff_threshold))
    return answers


def apply_threshold(answer: SpanAnswer, context: str, threshold: float | None) -> SpanAnswer:
    """The stretch, or no text where the odds against it are above the threshold."""
    has_no_answer = threshold is not None and answer.null_score_diff > threshold
    text = "" if has_no_answer else context[answer.start : answer.end]
    return SpanAnswer(text, answer.start, answer.end, answer.probability, answer.null_score_diff)


def find_best_threshold(examples: Sequence[Example], answers: Sequence[SpanAnswer]) -> float:
    """The threshold with the best F1 on these examples (as SQuAD 2.0's own script searches it)."""
    golds = [e.gold or () for e in examples]
    answer_f1 = squad_scores(golds, [e.text[a.start : a.end] if e.text else "" for e, a in zip(examples, answers)])[1]
    no_answer_f1 = squad_scores(golds, [""] * len(golds))[1]
    score_diffs = np.array([a.null_score_diff for a in answers])
    order = np.argsort(score_diffs, kind="stable")
    score_diffs = score_diffs[order]
    # answering the first k questions and none of the others
    totals = np.cumsum([no_answer_f1.sum(), *(answer_f1 - no_answer_f1)[order]])
    thresholds = np.array([score_diffs[0] - 1, *(score_diffs[:-1] + score_diffs[1:]) / 2, score_diffs[-1] + 1])
    is_distinct = np.array([True, *(np.diff(score_diffs) > 0), True])  # equal odds cannot be told apart
    return float(thresholds[int(np.argmax(np.where(is_distinct, totals, -np.inf)))])


def best_span(window: EncodedExample, scores: np.ndarray, max_answer_tokens: int) -> WindowAnswer:
    """The best stretch of one window. All stretches up to the longest are compared, not those of the best starts."""
    assert window.offsets is not None
    scores = scores.astype(np.float64)
    null_score = float(scores[window.null_position].sum())
    n = len(window.positions)
    if not n:
        return WindowAnswer(-1e9, 0, 0, 0.0, null_score)
    starts, ends = scores[window.positions, 0], scores[window.positions, 1]
    span_scores = np.full((min(max_answer_tokens, n), n), -np.inf)
    for offset in range(len(span_scores)):
        span_scores[offset, : n - offset] = starts[: n - offset] + ends[offset:]
    best_offset, first = divmod(int(span_scores.argmax()), n)
    score = float(span_scores[best_offset, first])
    log_normalizer = np.logaddexp.reduce(scores[window.candidate_positions], axis=0).sum()
    begin, end = int(window.offsets[first, 0]), int(window.offsets[first + best_offset, 1])
    return WindowAnswer(score, begin, max(begin, end), float(np.exp(score - log_normalizer)), null_score)


def _wrap(tokenizer: Tokenizer, question: list[int], context: list[int]) -> tuple[list[int], list[int]]:
    """Question and context with their special tokens; a causal model, which has none, ends on one that saw all."""
    if tokenizer.num_special_tokens_to_add(pair=True):
        return tokenizer.build_inputs_with_special_tokens(question, context)
    end = separator_id(tokenizer)
    ids = [*question, end, *context, end]
    return ids, [0] * len(ids)
