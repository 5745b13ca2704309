"""Text in, text out (Raffel et al. 2020, §2.4): examples as sources, answers as targets, and what a model would write.

A model is never asked to write freely. Where the answers are known beforehand, labels, choices, the numbers that a
score is rounded to, the probability of each whole answer decides: that is exact, says how sure the model is, and cannot
end in a text that is no answer. An answer to a question is written in tokens of its window, so that it stands there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from polyseme.errors import UserError
from polyseme.generation.constrained import Stretch, answer_chances, stretches
from polyseme.nn.model import Model
from polyseme.nn.packing import Layout, Source, bins
from polyseme.objectives.batch import IGNORED, Batch, Targets
from polyseme.progress import progress
from polyseme.tasks.encoded import Encoded, Target, Written
from polyseme.tasks.examples import Example
from polyseme.tasks.spans import Best, windows
from polyseme.tasks.text_templates import TextSpec
from polyseme.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from polyseme.tasks.task import Task

BIN = 16384  # tokens that are read at once, those of all answers counted


def sources(
    task: Task,
    form: TextSpec,
    examples: Sequence[Example],
    targets: Sequence[Target],
    tokenizer: Tokenizer,
    max_len: int,
) -> list[tuple[Encoded, int]]:
    """Each example with its words around it, as ids, and how many there were; of too many the longest text is cut."""
    parts = [form.parts(example) for example in examples]
    spoken = {words: tokenizer.encode(words) for each in parts for words, _ in each}
    texts = iter(tokenizer.encode_batch([text for each in parts for _, text in each]))
    marks = _marks(form, tokenizer)
    known = form.numbers if task.kind == "regression" else [form.word(label) for label in task.labels]
    fixed = None if task.kind == "choice" else _answers(known, marks, tokenizer)
    found = []
    for example, target, each in zip(examples, targets, parts):
        held = [next(texts).tolist() for _ in each]
        size = 1 + sum(len(spoken[words]) for words, _ in each) + sum(map(len, held))
        _cut(held, size - max_len, f"max_len {max_len} leaves no room for text beside the words of {form.template!r}")
        ids = [token for (words, _), text in zip(each, held) for token in (*spoken[words], *text)]
        written = fixed or _answers(form.said(example.choices or ()), marks, tokenizer, distinct=form.says == "name")
        if max(map(len, written.answers)) > max_len:
            raise UserError(f"{example.where}: an answer is longer than the {max_len} tokens that are written")
        found.append((_source([*ids, marks.end], target, written), size))
    return found


def _source(ids: list[int], target: Target, written: Written) -> Encoded:
    tokens = np.array(ids, dtype=np.int64)
    return Encoded(tokens, np.zeros_like(tokens), np.arange(0), target, written=written)


def source_windows(
    task: Task,
    form: TextSpec,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_len: int,
    truncate: bool,
    labelled: bool,
) -> Iterator[Encoded]:
    """Questions with the windows of their context; what is written for a window without the answer is nothing."""
    marks = _marks(form, tokenizer)
    (before, _), (between, _) = form.parts(Example("", "context", "question"))
    first, second = tokenizer.encode(before), tokenizer.encode(between)

    def around(question: list[int], context: list[int]) -> tuple[list[int], list[int]]:
        ids = [*first, *question, *second, *context, marks.end]
        return ids, [0] * len(ids)

    return windows(examples, tokenizer, max_len, task.span, truncate, labelled, around, marks)


def _marks(form: TextSpec, tokenizer: Tokenizer) -> Written:
    marks = tokenizer.specials
    end = marks.sep if marks.eos is None else marks.eos
    if end is None:
        raise UserError("the tokenizer has no mark that ends a text, and answers in text need one")
    start = getattr(marks, form.start)
    return Written(end if start is None else start, end)


def _answers(texts: Sequence[str], marks: Written, tokenizer: Tokenizer, distinct: bool = True) -> Written:
    """What may be written; two labels that are the same to the tokenizer could not be told apart."""
    found = tuple(np.append(ids, marks.end).astype(np.int64) for ids in tokenizer.encode_batch(list(texts)))
    seen: dict[bytes, str] = {}
    for text, ids in zip(texts, found) if distinct else ():
        if (other := seen.setdefault(ids.tobytes(), text)) is not text:
            raise UserError(f"the answers {other!r} and {text!r} are the same tokens to this tokenizer")
    return Written(marks.start, marks.end, found)


def _cut(texts: list[list[int]], excess: int, wrong: str) -> None:
    """Drop tokens from the end, one by one, always of the longest text."""
    for _ in range(excess):
        longest = max(reversed(texts), key=len)
        if len(longest) < 2:
            raise UserError(wrong)
        longest.pop()


def target_of(encoded: Encoded) -> np.ndarray | None:
    """What is to be written, with its end mark."""
    written, target = encoded.written, encoded.target
    assert written is not None
    if isinstance(target, np.ndarray):
        size = 0 if target[0] == encoded.null else target[1] + 1 - target[0]
        return np.append(encoded.ids[target[0] : target[0] + size], written.end)
    return None if target is None else written.answers[int(target)]


def text_batch(encoded: Sequence[Encoded]) -> tuple[Batch, list[int]]:
    """Sources, and targets of which every token is predicted from those before it; and which example stands where."""
    targets = [target_of(e) for e in encoded]
    values = [np.array([IGNORED]) if t is None else t for t in targets]
    order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i].ids), len(values[i])))
    tokens, truth, read = [], [], []
    for i in order:
        written = encoded[i].written
        assert written is not None
        tokens.append(np.append(written.start, values[i][:-1]))
        truth.append(values[i])
        read.append(encoded[i].ids)
    layout, behind = Layout.of([len(t) for t in tokens]), Layout.of([len(ids) for ids in read])
    count = sum(len(t) for t in targets if t is not None)
    found = Targets(torch.arange(layout.total), torch.from_numpy(np.concatenate(truth)), count)
    source = Source(torch.from_numpy(np.concatenate(read)), behind)
    flat = torch.from_numpy(np.concatenate(tokens))
    return Batch(flat, layout, None, {"next": found}, layout.total + behind.total, source=source), order


def text_scores(model: Model, task: Task, encoded: Sequence[Encoded], bin_tokens: int = BIN) -> list[np.ndarray]:
    """The log-probability of every answer, [1, labels] or [choices, 1]; of a number, the likeliest one itself."""
    found = [np.empty(0)] * len(encoded)
    assert task.text is not None
    with at_rest(model), progress("predict", len(encoded), "examples", len(encoded) > 1) as bar:
        for some in _bins(encoded, bin_tokens):
            items = [encoded[i] for i in some]
            answers = [[a.tolist() for a in e.written.answers] for e in items if e.written]
            for i, chances in zip(some, answer_chances(model, _starts(items), answers, _read(items))):
                found[i] = chances[:, None] if task.kind == "choice" else chances[None]
            bar.advance(len(some))
    if task.kind == "regression":
        numbers = np.array(task.text.numbers, dtype=np.float64)
        return [numbers[scores.argmax()].reshape(1, 1) for scores in found]
    return found


def text_stretches(models: Sequence[Model], encoded: Sequence[Encoded], most: int, bin_tokens: int = BIN) -> list[Best]:
    """What is written for each window, in at most so many tokens, as characters of its context.

    Of several models: of what each would write, what they hold for the likeliest on the average.
    """
    found = [Best(-1e9, 0, 0, 0.0, 0.0)] * len(encoded)
    for some in _bins(encoded, bin_tokens):
        some = [i for i in some if len(encoded[i].rows)]
        if not some:
            continue
        items = [encoded[i] for i in some]
        given = _starts(items), [e.ids[e.rows].tolist() for e in items]
        ends = [e.written.end for e in items if e.written]
        each = []
        for model in models:
            with at_rest(model):
                each.append(stretches(model, *given, most, ends[0], _read(items)))
        chosen = _agreed(models, items, list(zip(*each))) if len(models) > 1 else each[0]
        for i, item, one in zip(some, items, chosen):
            assert item.offsets is not None
            begin, end = int(item.offsets[one.first, 0]), int(item.offsets[one.last, 1])
            found[i] = Best(one.score, begin, max(begin, end), float(np.exp(one.score)), one.none)
    return found


def _agreed(
    models: Sequence[Model], items: Sequence[Encoded], proposed: Sequence[Sequence[Stretch]]
) -> Iterator[Stretch]:
    """The best of several stretches of each window, by the mean of the probabilities that models give it."""
    ends = [e.written.end for e in items if e.written]
    texts = [[e.ids[e.rows[s.first : s.last + 1]].tolist() for s in own] for e, own in zip(items, proposed)]
    answers = [[[end], *([*text, end] for text in own)] for own, end in zip(texts, ends)]
    each = []
    for model in models:
        with at_rest(model):
            each.append(answer_chances(model, _starts(items), answers, _read(items)))
    for own, *chances in zip(proposed, *each):
        means = np.logaddexp.reduce(chances, axis=0) - np.log(len(chances))
        best = int(means[1:].argmax())
        yield own[best]._replace(score=float(means[1 + best]), none=float(means[0]))


@contextmanager
def at_rest(model: Model) -> Iterator[None]:
    """Without dropout, for a while."""
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)


def _starts(encoded: Sequence[Encoded]) -> list[list[int]]:
    return [[e.written.start] for e in encoded if e.written]


def _read(encoded: Sequence[Encoded]) -> list[list[int]]:
    return [e.ids.tolist() for e in encoded]


def _bins(encoded: Sequence[Encoded], bin_tokens: int) -> Iterator[list[int]]:
    answers = [sum(map(len, e.written.answers)) if e.written else 0 for e in encoded]
    for members in bins([len(e.ids) + size for e, size in zip(encoded, answers)], bin_tokens):
        yield members.tolist()
