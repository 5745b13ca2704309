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

from polyseme.errors import DataError, ModelError
from polyseme.generation.constrained import CopiedSpan, extract_spans, score_answers
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model
from polyseme.nn.packing import EncoderInput, PackedLayout, token_budget_batches
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.progress import progress
from polyseme.tasks.encoded import EncodedExample, Target, TextTargets
from polyseme.tasks.examples import Example
from polyseme.tasks.spans import WindowAnswer, sliding_windows
from polyseme.tasks.text_templates import TextToTextTemplate
from polyseme.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from polyseme.tasks.task import Task

MAX_BATCH_TOKENS = 16384  # tokens that are read at once, those of all answers counted


def encode_sources(
    task: Task,
    template: TextToTextTemplate,
    examples: Sequence[Example],
    targets: Sequence[Target],
    tokenizer: Tokenizer,
    max_len: int,
) -> list[tuple[EncodedExample, int]]:
    """Each example with its words around it, as ids, and how many there were; of too many the longest text is cut."""
    parts = [template.render_parts(example) for example in examples]
    prompt_ids = {words: tokenizer.encode(words) for each in parts for words, _ in each}
    texts = iter(tokenizer.encode_batch([text for each in parts for _, text in each]))
    marks = _special_targets(template, tokenizer)
    answer_texts = (
        template.number_texts
        if task.task_type == "regression"
        else [template.label_word(label) for label in task.labels]
    )
    fixed_targets = None if task.task_type == "choice" else _encode_answers(answer_texts, marks, tokenizer)
    encoded = []
    for example, target, each in zip(examples, targets, parts):
        text_ids = [next(texts).tolist() for _ in each]
        size = 1 + sum(len(prompt_ids[words]) for words, _ in each) + sum(map(len, text_ids))
        _truncate_longest(
            text_ids,
            size - max_len,
            f"max_len {max_len} leaves no room for text beside the words of {template.template!r}",
        )
        ids = [token for (words, _), text in zip(each, text_ids) for token in (*prompt_ids[words], *text)]
        text_targets = fixed_targets or _encode_answers(
            template.choice_answers(example.choices or ()), marks, tokenizer, distinct=template.answer_with == "name"
        )
        if max(map(len, text_targets.answer_ids)) > max_len:
            raise DataError(f"{example.location}: an answer is longer than the {max_len} tokens that are written")
        encoded.append((_make_source([*ids, marks.end_id], target, text_targets), size))
    return encoded


def _make_source(ids: list[int], target: Target, text_targets: TextTargets) -> EncodedExample:
    tokens = np.array(ids, dtype=np.int64)
    return EncodedExample(tokens, np.zeros_like(tokens), np.arange(0), target, text_targets=text_targets)


def encode_source_windows(
    task: Task,
    template: TextToTextTemplate,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_len: int,
    truncate: bool,
    use_labels: bool,
) -> Iterator[EncodedExample]:
    """Questions with the windows of their context; what is written for a window without the answer is nothing."""
    marks = _special_targets(template, tokenizer)
    (before, _), (between, _) = template.render_parts(Example("", "context", "question"))
    first, second = tokenizer.encode(before), tokenizer.encode(between)

    def around(question: list[int], context: list[int]) -> tuple[list[int], list[int]]:
        ids = [*first, *question, *second, *context, marks.end_id]
        return ids, [0] * len(ids)

    return sliding_windows(examples, tokenizer, max_len, task.span, truncate, use_labels, around, marks)


def _special_targets(template: TextToTextTemplate, tokenizer: Tokenizer) -> TextTargets:
    specials = tokenizer.special_token_ids
    end = specials.sep if specials.eos is None else specials.eos
    if end is None:
        raise ModelError("the tokenizer has no mark that ends a text, and answers in text need one")
    start = getattr(specials, template.decoder_start_token)
    return TextTargets(end if start is None else start, end)


def _encode_answers(
    texts: Sequence[str], marks: TextTargets, tokenizer: Tokenizer, distinct: bool = True
) -> TextTargets:
    """What may be written; two labels that are the same to the tokenizer could not be told apart."""
    answer_ids = tuple(np.append(ids, marks.end_id).astype(np.int64) for ids in tokenizer.encode_batch(list(texts)))
    text_by_ids: dict[bytes, str] = {}
    for text, ids in zip(texts, answer_ids) if distinct else ():
        if (other := text_by_ids.setdefault(ids.tobytes(), text)) is not text:
            raise ModelError(f"the answers {other!r} and {text!r} are the same tokens to this tokenizer")
    return TextTargets(marks.start_id, marks.end_id, answer_ids)


def _truncate_longest(texts: list[list[int]], excess: int, message: str) -> None:
    """Drop tokens from the end, one by one, always of the longest text."""
    for _ in range(excess):
        longest = max(reversed(texts), key=len)
        if len(longest) < 2:
            raise ModelError(message)
        longest.pop()


def encode_text_target(encoded: EncodedExample) -> np.ndarray | None:
    """What is to be written, with its end mark."""
    text_targets, target = encoded.text_targets, encoded.target
    assert text_targets is not None
    if isinstance(target, np.ndarray):
        size = 0 if target[0] == encoded.null_position else target[1] + 1 - target[0]
        return np.append(encoded.ids[target[0] : target[0] + size], text_targets.end_id)
    return None if target is None else text_targets.answer_ids[int(target)]


def collate_text(encoded: Sequence[EncodedExample]) -> tuple[Batch, list[int]]:
    """Sources, and targets of which every token is predicted from those before it; and which example stands where."""
    targets = [encode_text_target(e) for e in encoded]
    values = [np.array([IGNORE_INDEX]) if t is None else t for t in targets]
    order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i].ids), len(values[i])))
    tokens, labels, source_ids = [], [], []
    for i in order:
        text_targets = encoded[i].text_targets
        assert text_targets is not None
        tokens.append(np.append(text_targets.start_id, values[i][:-1]))
        labels.append(values[i])
        source_ids.append(encoded[i].ids)
    layout, source_layout = (
        PackedLayout.from_lengths([len(t) for t in tokens]),
        PackedLayout.from_lengths([len(ids) for ids in source_ids]),
    )
    count = sum(len(t) for t in targets if t is not None)
    head_targets = Targets(torch.arange(layout.num_tokens), torch.from_numpy(np.concatenate(labels)), count)
    source = EncoderInput(torch.from_numpy(np.concatenate(source_ids)), source_layout)
    decoder_tokens = torch.from_numpy(np.concatenate(tokens))
    return Batch(
        Inputs(decoder_tokens, layout, source=source),
        {"next": head_targets},
        layout.num_tokens + source_layout.num_tokens,
    ), order


def score_text_answers(
    model: Model, task: Task, encoded: Sequence[EncodedExample], max_batch_tokens: int = MAX_BATCH_TOKENS
) -> list[np.ndarray]:
    """The log-probability of every answer, [1, labels] or [choices, 1]; of a number, the likeliest one itself."""
    scores_per_example = [np.empty(0)] * len(encoded)
    assert task.text_template is not None
    with eval_mode(model), progress("predict", len(encoded), "examples", len(encoded) > 1) as bar:
        for members in _token_budget_batches(encoded, max_batch_tokens):
            items = [encoded[i] for i in members]
            answers = [[a.tolist() for a in e.text_targets.answer_ids] for e in items if e.text_targets]
            for i, log_probs in zip(members, score_answers(model, _starts(items), answers, _source_ids(items))):
                scores_per_example[i] = log_probs[:, None] if task.task_type == "choice" else log_probs[None]
            bar.advance(len(members))
    if task.task_type == "regression":
        numbers = np.array(task.text_template.number_texts, dtype=np.float64)
        return [numbers[scores.argmax()].reshape(1, 1) for scores in scores_per_example]
    return scores_per_example


def generate_spans(
    models: Sequence[Model],
    encoded: Sequence[EncodedExample],
    max_answer_tokens: int,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
) -> list[WindowAnswer]:
    """What is written for each window, in at most so many tokens, as characters of its context.

    Of several models: of what each would write, what they hold for the likeliest on the average.
    """
    window_answers = [WindowAnswer(-1e9, 0, 0, 0.0, 0.0)] * len(encoded)
    for members in _token_budget_batches(encoded, max_batch_tokens):
        members = [i for i in members if len(encoded[i].positions)]
        if not members:
            continue
        items = [encoded[i] for i in members]
        generation_inputs = _starts(items), [e.ids[e.positions].tolist() for e in items]
        ends = [e.text_targets.end_id for e in items if e.text_targets]
        spans_per_model = []
        for model in models:
            with eval_mode(model):
                spans_per_model.append(
                    extract_spans(model, *generation_inputs, max_answer_tokens, ends[0], _source_ids(items))
                )
        spans = _ensemble_spans(models, items, list(zip(*spans_per_model))) if len(models) > 1 else spans_per_model[0]
        for i, window, span in zip(members, items, spans):
            assert window.offsets is not None
            begin, end = int(window.offsets[span.first, 0]), int(window.offsets[span.last, 1])
            window_answers[i] = WindowAnswer(
                span.score, begin, max(begin, end), float(np.exp(span.score)), span.no_answer_score
            )
    return window_answers


def _ensemble_spans(
    models: Sequence[Model], items: Sequence[EncodedExample], proposals: Sequence[Sequence[CopiedSpan]]
) -> Iterator[CopiedSpan]:
    """The best of several stretches of each window, by the mean of the probabilities that models give it."""
    ends = [e.text_targets.end_id for e in items if e.text_targets]
    texts = [
        [e.ids[e.positions[s.first : s.last + 1]].tolist() for s in candidates]
        for e, candidates in zip(items, proposals)
    ]
    answers = [[[end], *([*text, end] for text in candidates)] for candidates, end in zip(texts, ends)]
    log_probs_per_model = []
    for model in models:
        with eval_mode(model):
            log_probs_per_model.append(score_answers(model, _starts(items), answers, _source_ids(items)))
    for candidates, *log_probs in zip(proposals, *log_probs_per_model):
        means = np.logaddexp.reduce(log_probs, axis=0) - np.log(len(log_probs))
        best = int(means[1:].argmax())
        yield candidates[best]._replace(score=float(means[1 + best]), no_answer_score=float(means[0]))


@contextmanager
def eval_mode(model: Model) -> Iterator[None]:
    """Without dropout, for a while."""
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)


def _starts(encoded: Sequence[EncodedExample]) -> list[list[int]]:
    return [[e.text_targets.start_id] for e in encoded if e.text_targets]


def _source_ids(encoded: Sequence[EncodedExample]) -> list[list[int]]:
    return [e.ids.tolist() for e in encoded]


def _token_budget_batches(encoded: Sequence[EncodedExample], max_batch_tokens: int) -> Iterator[list[int]]:
    answer_lengths = [sum(map(len, e.text_targets.answer_ids)) if e.text_targets else 0 for e in encoded]
    for members in token_budget_batches(
        [len(e.ids) + size for e, size in zip(encoded, answer_lengths)], max_batch_tokens
    ):
        yield members.tolist()
