"""Extractive question answering in text: the answer is written in tokens of its window, so that it stands there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyseme.generation.constrained import CopiedSpan, extract_spans, score_answers
from polyseme.nn.packing import token_budget_batches
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.text_to_text import TextCodec, required_targets, source_ids, special_targets, start_ids
from polyseme.tasks.windows import WindowAnswer
from polyseme.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from polyseme.nn.model import Model

MAX_BATCH_TOKENS = 16384


@dataclass(frozen=True)
class TextQA(TextCodec):
    """Questions with the windows of their context; for a window without the answer, nothing is written."""

    scores_tokens: ClassVar[bool] = True
    max_windows: ClassVar[int | None] = 512

    @property
    def ensemble_key(self) -> tuple[Any, ...]:
        return (*self.task.ensemble_key, "text")  # one that writes answers and one that points at them do not mix

    def encode(
        self,
        examples: Sequence[Any],
        tokenizer: Tokenizer,
        max_len: int,
        truncate: bool = False,
        use_labels: bool = True,
    ) -> Iterator[EncodedExample]:
        special = special_targets(self.template, tokenizer)
        before, between = (tokenizer.encode(words.strip()) for words, _ in self.template.fields)

        def join(question: list[int], context: list[int]) -> tuple[list[int], list[int]]:
            ids = [*before, *question, *between, *context, special.end_id]
            return ids, [0] * len(ids)

        windows: Iterator[EncodedExample] = self.task.sliding_windows(
            examples, tokenizer, max_len, truncate, use_labels, join, special
        )
        return windows

    def predict(self, model: Model, encoded: Sequence[EncodedExample]) -> list[CopiedSpan | None]:
        """Return the span that the model writes for each window; None where it has no context."""
        windows = [e for e in encoded if len(e.positions)]
        if not windows:
            return [None] * len(encoded)
        contexts = [e.ids[e.positions].tolist() for e in windows]
        end_id, max_tokens = required_targets(windows[0]).end_id, self.task.max_answer_tokens
        spans = iter(extract_spans(model, start_ids(windows), contexts, max_tokens, end_id, source_ids(windows)))
        return [next(spans) if len(e.positions) else None for e in encoded]

    def decode(self, scored: Iterable[tuple[EncodedExample, CopiedSpan | None]], examples: Sequence[Any]) -> list[Any]:
        window_answers = ((window.example_index, _to_window_answer(window, span)) for window, span in scored)
        answers: list[Any] = self.task.merge_windows(window_answers, examples)
        return answers

    def average(
        self,
        scores: Sequence[Sequence[CopiedSpan | None]],
        models: Sequence[Model],
        encoded: Sequence[EncodedExample],
    ) -> list[CopiedSpan | None]:
        """Of what each model would write, return what they find the likeliest on average."""
        best: list[CopiedSpan | None] = [None] * len(encoded)
        proposals = list(zip(*scores))
        for members in token_budget_batches([self.num_tokens(e) for e in encoded], MAX_BATCH_TOKENS):
            indices = [i for i in members.tolist() if len(encoded[i].positions)]
            if indices:
                chosen = _choose_spans(models, [encoded[i] for i in indices], [proposals[i] for i in indices])
                for i, span in zip(indices, chosen):
                    best[i] = span
        return best


def _choose_spans(
    models: Sequence[Model], windows: Sequence[EncodedExample], proposals: Sequence[Sequence[Any]]
) -> Iterator[CopiedSpan]:
    """Yield the best of several spans of each window, by the mean of the probabilities that models give it."""
    ends = [required_targets(e).end_id for e in windows]
    texts = [[e.ids[e.positions[s.first : s.last + 1]].tolist() for s in each] for e, each in zip(windows, proposals)]
    answers = [[[end], *([*text, end] for text in each)] for each, end in zip(texts, ends)]
    log_probs = [score_answers(model, start_ids(windows), answers, source_ids(windows)) for model in models]
    for spans, *scores in zip(proposals, *log_probs):
        means = np.logaddexp.reduce(scores, axis=0) - np.log(len(scores))
        best = int(means[1:].argmax())
        yield spans[best]._replace(score=float(means[1 + best]), no_answer_score=float(means[0]))


def _to_window_answer(window: EncodedExample, span: CopiedSpan | None) -> WindowAnswer:
    """Return a span in characters of its context."""
    if span is None:
        return WindowAnswer(-1e9, 0, 0, 0.0, 0.0)
    assert window.offsets is not None
    begin, end = int(window.offsets[span.first, 0]), int(window.offsets[span.last, 1])
    return WindowAnswer(span.score, begin, max(begin, end), float(np.exp(span.score)), span.no_answer_score)
