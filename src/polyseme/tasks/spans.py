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

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.tasks.encoded import Encoded, Target, Written, end_of
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.standard import question_scores
from polyseme.tasks.readers.squad import sound_answers
from polyseme.text.tokenizer import Tokenizer

CHUNK = 1 << 14  # characters that are tokenised at a time
Around = Callable[[list[int], list[int]], tuple[list[int], list[int]]]  # question and context to ids and segments


@dataclass(frozen=True)
class SpanSpec(Spec):
    """A window begins at most `stride` tokens, and at most half a window, after the one before it. An answer has at
    most `longest` tokens. Without a `threshold` every question has an answer; with one, those have none whose odds
    against are above it.
    """

    stride: int = 128
    longest: int = 30
    threshold: float | None = None

    def __post_init__(self) -> None:
        self.within(1, math.inf, "stride", "longest")


@dataclass(frozen=True)
class SpanAnswer:
    """A stretch of the context; an empty text is "no answer". `odds` is by how much that is worth more than the best
    stretch. The probability is that of start and end in their window."""

    text: str
    start: int
    end: int
    probability: float
    odds: float


@dataclass(frozen=True)
class Best:
    """The best stretch of a window, in characters of the context; and what "no answer" is worth there."""

    value: float
    start: int
    end: int
    probability: float
    null: float


def windows(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_len: int,
    spec: SpanSpec,
    truncate: bool = False,
    labelled: bool = True,
    around: Around | None = None,
    written: Written | None = None,
) -> Iterator[Encoded]:
    """Every window of every example, one after the other, so that no document has to be held as tokens.

    A question may take half of a window; a longer one is an error, or is cut if `truncate` is set. `around` puts
    question and context together, if not as a pair.
    """
    around = around or partial(_wrap, tokenizer)
    frame, marks = around([-1], [-2])[0], tokenizer.specials
    if max_len // 2 - len(frame) < 0:
        raise UserError(f"max_len {max_len} leaves no room for text beside the special tokens")
    first = frame[0] == marks.cls and marks.cls is not None
    last: tuple[str, list[tuple[np.ndarray, np.ndarray]]] = ("", [])
    for number, example in enumerate(examples):
        if example.pair is None or example.text is None:
            raise UserError(f"{example.where}: there is no question, which this task reads")
        question = tokenizer.encode(example.pair)
        room = max_len // 2 - len(frame) + 2
        if len(question) > room and not truncate:
            raise UserError(f"{example.where}: the question has {len(question)} tokens, and {room} are read: truncate")
        cut = len(question) > room
        question = question[:room]
        size = max_len - len(around(question, [])[0])
        lead = around(question, [-1])[0].index(-1)
        if last[0] is not example.text:  # the questions of a paragraph come together
            chunks = pieces(tokenizer, example.text)
            last = (example.text, list(chunks)) if len(example.text) <= CHUNK else ("", [])
        truth = truth_of(example) if labelled else None
        given = last[1] or pieces(tokenizer, example.text)
        step = min(spec.stride, max(size // 2, 1))
        for place, ids, offsets in slide(given, size, step):
            wrapped, segments = around(question, ids.tolist())
            null = 0 if first else len(wrapped) - 1
            yield Encoded(
                np.array(wrapped, dtype=np.int64),
                np.array(segments, dtype=np.int64),
                np.arange(lead, lead + len(ids)),
                target_of(truth, place, offsets, lead, null),
                cut=cut,
                of=number,
                offsets=offsets,
                null=null,
                written=written,
            )


def pieces(tokenizer: Tokenizer, text: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and the characters they cover, of stretches that end before a space."""
    begin = 0
    while begin < len(text):
        end = begin + CHUNK
        if end < len(text):
            spaces = [m.start() for m in re.finditer(r"\s", text[end - 1000 : end])]
            end = end - 1000 + spaces[-1] if spaces else end
        ids, offsets = tokenizer.encode_with_offsets(text[begin:end])
        yield np.array(ids, dtype=np.int32), np.array(offsets, dtype=np.int64).reshape(-1, 2) + begin
        begin = end


def slide(
    chunks: Iterable[tuple[np.ndarray, np.ndarray]], size: int, step: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Windows of `size` tokens, each `step` after the one before it; and whether a window is first, last or both."""
    ids, offsets = np.empty(0, np.int32), np.empty((0, 2), np.int64)
    place = "first"
    for more in chunks:
        ids, offsets = np.concatenate([ids, more[0]]), np.concatenate([offsets, more[1]])
        while len(ids) > size:  # at least one more window follows
            yield place, ids[:size], offsets[:size]
            ids, offsets, place = ids[step:], offsets[step:], ""
    yield place + "last", ids, offsets


def truth_of(example: Example) -> tuple[int, int] | None:
    """The characters of the first answer that stands where it is said to; (0, 0) where there is none to find."""
    if example.answers == ():
        return (0, 0)
    found = sound_answers(example)
    return (found[0][1], found[0][1] + len(found[0][0])) if found else None


def target_of(truth: tuple[int, int] | None, place: str, offsets: np.ndarray, lead: int, null: int) -> Target:
    """The rows of the answer's first and last token; those of "no answer" where this window does not hold all of it."""
    if truth is None:
        return None
    begin, end = truth
    if end > begin and len(offsets):
        held = ("first" in place or offsets[0, 0] <= begin) and ("last" in place or offsets[-1, 1] >= end)
        first = int(np.searchsorted(offsets[:, 1], begin, side="right"))
        last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
        if held and first <= last:
            return np.array([lead + first, lead + last])
    return np.array([null, null])


def best_spans(best: Iterable[tuple[int, Best]], examples: Sequence[Example], spec: SpanSpec) -> list[SpanAnswer]:
    """The best stretch of each example, from those of its windows, each with the number of its example."""
    found = []
    for number, group in groupby(best, key=lambda pair: pair[0]):
        top, null = Best(-np.inf, 0, 0, 0.0, 0.0), np.inf
        for _, one in group:  # no list of them: a document may have any number of windows
            top, null = (one if one.value > top.value else top), min(null, one.null)
        odds = float(null - top.value)
        text = examples[number].text or ""
        begin, end = top.start, top.end
        inner = text[begin:end]
        begin, end = begin + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
        answer = SpanAnswer(text[begin:end], begin, max(begin, end), top.probability, odds)
        found.append(decided(answer, text, spec.threshold))
    return found


def decided(answer: SpanAnswer, context: str, threshold: float | None) -> SpanAnswer:
    """The stretch, or no text where the odds against it are above the threshold."""
    none = threshold is not None and answer.odds > threshold
    text = "" if none else context[answer.start : answer.end]
    return SpanAnswer(text, answer.start, answer.end, answer.probability, answer.odds)


def best_threshold(examples: Sequence[Example], found: Sequence[SpanAnswer]) -> float:
    """The threshold with the best F1 on these examples (as SQuAD 2.0's own script searches it)."""
    golds = [e.answer or () for e in examples]
    said = question_scores(golds, [e.text[a.start : a.end] if e.text else "" for e, a in zip(examples, found)])[1]
    silent = question_scores(golds, [""] * len(golds))[1]
    odds = np.array([a.odds for a in found])
    order = np.argsort(odds, kind="stable")
    odds = odds[order]
    # answering the first k questions and none of the others
    totals = np.cumsum([silent.sum(), *(said - silent)[order]])
    edges = np.array([odds[0] - 1, *(odds[:-1] + odds[1:]) / 2, odds[-1] + 1])
    real = np.array([True, *(np.diff(odds) > 0), True])  # equal odds cannot be told apart
    return float(edges[int(np.argmax(np.where(real, totals, -np.inf)))])


def best_stretch(window: Encoded, scores: np.ndarray, longest: int) -> Best:
    """The best stretch of one window. All stretches up to the longest are compared, not those of the best starts."""
    assert window.offsets is not None
    scores = scores.astype(np.float64)
    null = float(scores[window.null].sum())
    n = len(window.rows)
    if not n:
        return Best(-1e9, 0, 0, 0.0, null)
    starts, ends = scores[window.rows, 0], scores[window.rows, 1]
    values = np.full((min(longest, n), n), -np.inf)
    for more in range(len(values)):
        values[more, : n - more] = starts[: n - more] + ends[more:]
    longer, first = divmod(int(values.argmax()), n)
    value = float(values[longer, first])
    whole = np.logaddexp.reduce(scores[window.rivals], axis=0).sum()
    begin, end = int(window.offsets[first, 0]), int(window.offsets[first + longer, 1])
    return Best(value, begin, max(begin, end), float(np.exp(value - whole)), null)


def _wrap(tokenizer: Tokenizer, question: list[int], context: list[int]) -> tuple[list[int], list[int]]:
    """Question and context with their special tokens; a causal model, which has none, ends on one that saw all."""
    if tokenizer.num_added(pair=True):
        return tokenizer.wrap(question, context)
    end = end_of(tokenizer)
    ids = [*question, end, *context, end]
    return ids, [0] * len(ids)
