"""Text in, text out (Raffel et al. 2020, §2.4): examples are written as sources and answers as targets.

A model is never asked to write freely. Where the answers are known beforehand (labels, choices, the numbers that a
score is rounded to), the probability of each whole answer decides: that is exact, gives a confidence, and cannot end in
a text that is no answer. The answer to a question is written in tokens of its window, so that it occurs there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from polyseme.errors import ConfigError, ModelError
from polyseme.families.family import Family
from polyseme.generation.constrained import CopiedSpan, extract_spans, score_answers
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.model import Model
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout, token_budget_batches
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.tasks.encoded import Codec, Encoded, EncodedExample, Examples, RowScores, TextTargets, truncate_longest
from polyseme.tasks.text_templates import TextToTextTemplate
from polyseme.tasks.windows import WindowAnswer
from polyseme.text.tokenizer import Tokenizer

MAX_BATCH_TOKENS = 16384


@dataclass(frozen=True)
class TextCodec(Codec):
    """Wraps a task so that a model reads and answers it as text."""

    task: Any  # a task with a `text_template`
    head_name = "next"  # for all tasks that a model answers in text: the source says which one it is

    @property
    def template(self) -> TextToTextTemplate:
        """How the task is written as text."""
        return self.task.text_template

    def heads(self, family: Family, trunk: TrunkConfig) -> dict[str, HeadConfig]:
        return {self.head_name: family.pretraining_heads(trunk)[self.head_name]}

    def collate(self, encoded: Encoded) -> tuple[Batch, list[int]]:
        """Pack sources, and targets whose every token is predicted from those before it."""
        targets = [encode_text_target(e) for e in encoded]
        labels = [np.array([IGNORE_INDEX]) if t is None else t for t in targets]
        order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i].ids), len(labels[i])))
        tokens = [np.append(required_targets(encoded[i]).start_id, labels[i][:-1]) for i in order]
        sources = [encoded[i].ids for i in order]
        layout, source_layout = (PackedLayout.from_lengths([*map(len, ids)]) for ids in (tokens, sources))
        flat_tokens, flat_labels, flat_sources = (
            torch.from_numpy(np.concatenate(arrays)) for arrays in (tokens, [labels[i] for i in order], sources)
        )
        count = sum(len(t) for t in targets if t is not None)
        rows = Targets(torch.arange(layout.num_tokens), flat_labels, count)
        inputs = Inputs(flat_tokens, layout, source=EncoderInput(flat_sources, source_layout))
        return Batch(inputs, {self.head_name: rows}, layout.num_tokens + source_layout.num_tokens), order

    def num_tokens(self, encoded: EncodedExample) -> int:
        return len(encoded.ids) + sum(map(len, required_targets(encoded).answer_ids))


@dataclass(frozen=True)
class TextToText(TextCodec):
    """A task with known answers: the model scores each of the task's `candidate_answers`."""

    @property
    def ensemble_key(self) -> tuple[Any, ...]:
        return self.task.ensemble_key

    def target(self, example: Any) -> int | None:
        return self.task.candidate_target(self.template, example)

    def encode_truncated(
        self, examples: Examples, targets: Sequence[Any], tokenizer: Tokenizer, max_len: int
    ) -> Iterator[tuple[EncodedExample, int]]:
        template, task = self.template, self.task
        for example in examples:
            task.text_sequences(example)  # raises if a text is missing
        parts = [template.render_parts(e) for e in examples]
        word_ids = {words: tokenizer.encode(words) for each in parts for words, _ in each}
        texts = iter(tokenizer.encode_batch([text for each in parts for _, text in each]))
        special = special_targets(template, tokenizer)
        encoded_answers: dict[tuple[str, ...], TextTargets] = {}
        no_room = f"max_len {max_len} leaves no room for text beside the words of {template.template!r}"
        for example, target, each in zip(examples, targets, parts):
            text_ids = [next(texts).tolist() for _ in each]
            num_words = 1 + sum(len(word_ids[words]) for words, _ in each)
            length = num_words + sum(map(len, text_ids))
            if length > max_len:
                truncate_longest(text_ids, max_len - num_words, no_room)
            ids = [token for (words, _), text in zip(each, text_ids) for token in (*word_ids[words], *text)]
            answers = tuple(task.candidate_answers(template, example))
            if answers not in encoded_answers:
                encoded_answers[answers] = _encode_answers(answers, special, tokenizer, template.answer_with == "name")
            text_targets = encoded_answers[answers]
            if max(map(len, text_targets.answer_ids)) > max_len:
                raise ConfigError(f"{example.location}: an answer is longer than the {max_len} tokens that are written")
            tokens = np.array([*ids, special.end_id], dtype=np.int64)
            segments = np.zeros_like(tokens)
            yield EncodedExample(tokens, segments, np.arange(0), target, text_targets=text_targets), length

    def predict(self, model: Model, encoded: Encoded) -> list[RowScores]:
        """Return the log-probability of every answer, [1, labels] or [choices, 1]; of a number, the likeliest one."""
        answers = [[ids.tolist() for ids in required_targets(e).answer_ids] for e in encoded]
        log_probs = score_answers(model, start_ids(encoded), answers, source_ids(encoded))
        scores = [self.task.candidate_scores(self.template, each) for each in log_probs]
        return [RowScores(each, each.argmax(-1)) for each in scores]

    @property
    def supports_attribution(self) -> bool:  # type: ignore[override]
        """Whether the answers are labels, each with a log-probability."""
        return self.task.supports_attribution and bool(self.task.output_labels)

    def answer_logits(self, model: Model, encoded: Encoded) -> list[torch.Tensor]:
        """Return the log-probability of every answer, [1, labels]."""
        columns = []
        for label in range(len(required_targets(encoded[0]).answer_ids)):
            batch, order = self.collate([replace(e, target=label) for e in encoded])
            inputs, targets = batch.inputs, batch.targets[self.head_name]
            device = next(model.parameters()).device
            hidden = model.trunk(inputs.to(device)).hidden
            log_probs = model.predict(self.head_name, hidden, inputs.layout).float().log_softmax(-1)
            sums = log_probs.gather(1, targets.labels.to(device)[:, None])[:, 0].split(list(inputs.layout.lengths))
            columns.append(torch.stack([sums[rank].sum() for rank in np.argsort(order)]))
        return list(torch.stack(columns, dim=-1)[:, None])

    def decode(self, scored: Iterable[tuple[EncodedExample, RowScores]], examples: Examples) -> list[Any]:
        return self.task.decode(scored, examples)

    def average(self, scores: Sequence[Sequence[RowScores]], models: Any, encoded: Any) -> list[RowScores]:
        return self.task.average(scores, models, encoded)


@dataclass(frozen=True)
class TextQA(TextCodec):
    """Questions with the windows of their context; for a window without the answer, nothing is written."""

    scores_tokens = True
    max_windows = 512

    @property
    def ensemble_key(self) -> tuple[Any, ...]:
        return (*self.task.ensemble_key, "text")  # a model that writes answers and one that points at them do not mix

    def encode(
        self, examples: Examples, tokenizer: Tokenizer, max_len: int, truncate: bool = False, use_labels: bool = True
    ) -> Iterator[EncodedExample]:
        special = special_targets(self.template, tokenizer)
        before, between = (tokenizer.encode(words.strip()) for words, _ in self.template.fields)

        def join(question: list[int], context: list[int]) -> tuple[list[int], list[int]]:
            ids = [*before, *question, *between, *context, special.end_id]
            return ids, [0] * len(ids)

        windows = self.task.encode(examples, tokenizer, max_len, truncate, use_labels, join)
        return (replace(window, text_targets=special) for window in windows)

    def predict(self, model: Model, encoded: Encoded) -> list[CopiedSpan | None]:
        """Return the span that the model writes for each window; None where it has no context."""
        windows = [e for e in encoded if len(e.positions)]
        if not windows:
            return [None] * len(encoded)
        contexts = [e.ids[e.positions].tolist() for e in windows]
        end_id, max_tokens = required_targets(windows[0]).end_id, self.task.max_answer_tokens
        spans = iter(extract_spans(model, start_ids(windows), contexts, max_tokens, end_id, source_ids(windows)))
        return [next(spans) if len(e.positions) else None for e in encoded]

    def decode(self, scored: Iterable[tuple[EncodedExample, CopiedSpan | None]], examples: Examples) -> list[Any]:
        return self.task.merge_windows(((w.example_index, _to_window_answer(w, span)) for w, span in scored), examples)

    def average(
        self, scores: Sequence[Sequence[Any]], models: Sequence[Model], encoded: Encoded
    ) -> list[CopiedSpan | None]:
        """Return, of the spans that the models would write, the one that they find likeliest on average."""
        best: list[CopiedSpan | None] = [None] * len(encoded)
        proposals = list(zip(*scores))
        for members in token_budget_batches([self.num_tokens(e) for e in encoded], MAX_BATCH_TOKENS):
            indices = [i for i in members.tolist() if len(encoded[i].positions)]
            if indices:
                chosen = _choose_spans(models, [encoded[i] for i in indices], [proposals[i] for i in indices])
                for i, span in zip(indices, chosen):
                    best[i] = span
        return best


def special_targets(template: TextToTextTemplate, tokenizer: Tokenizer) -> TextTargets:
    """Return the tokens that targets start and end with."""
    special = tokenizer.special_token_ids
    end = special.sep if special.eos is None else special.eos
    if end is None:
        raise ModelError("the tokenizer has no token that ends a text, and answers in text need one")
    start = getattr(special, template.decoder_start_token)
    return TextTargets(end if start is None else start, end)


def encode_text_target(encoded: EncodedExample) -> np.ndarray | None:
    """Return the tokens that are to be written, with the end token."""
    targets, target = required_targets(encoded), encoded.target
    if isinstance(target, np.ndarray):
        size = 0 if target[0] == encoded.null_position else target[1] + 1 - target[0]
        return np.append(encoded.ids[target[0] : target[0] + size], targets.end_id)
    return None if target is None else targets.answer_ids[int(target)]


def required_targets(encoded: EncodedExample) -> TextTargets:
    """Return the text targets of an example that a `TextCodec` encoded."""
    assert encoded.text_targets is not None
    return encoded.text_targets


def start_ids(encoded: Encoded) -> list[list[int]]:
    """Return the first tokens of the decoder."""
    return [[required_targets(e).start_id] for e in encoded]


def source_ids(encoded: Encoded) -> list[list[int]]:
    """Return the tokens that the encoder reads."""
    return [e.ids.tolist() for e in encoded]


def _encode_answers(texts: Sequence[str], special: TextTargets, tokenizer: Tokenizer, must_differ: bool) -> TextTargets:
    """Encode the answers; two labels with the same tokens could not be told apart."""
    answers = tuple(np.append(ids, special.end_id).astype(np.int64) for ids in tokenizer.encode_batch(list(texts)))
    by_tokens: dict[bytes, str] = {}
    for text, ids in zip(texts, answers) if must_differ else ():
        if (other := by_tokens.setdefault(ids.tobytes(), text)) is not text:
            raise ModelError(f"the answers {other!r} and {text!r} are the same tokens to this tokenizer")
    return replace(special, answer_ids=answers)


def _choose_spans(
    models: Sequence[Model], windows: Encoded, proposals: Sequence[Sequence[Any]]
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
