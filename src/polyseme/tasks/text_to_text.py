"""Text in, text out (Raffel et al. 2020, §2.4): examples are written as sources and answers as targets.

A model is never asked to write freely. Where the answers are known beforehand (labels, choices, the numbers that a
score is rounded to), the probability of each whole answer decides: that is exact, says how sure the model is, and
cannot end in a text that is no answer. An answer to a question is written in tokens of its window (`text_qa.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.generation.constrained import score_answers
from polyseme.nn.inputs import Inputs
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.tasks.base import RowScores
from polyseme.tasks.encoded import EncodedExample, TextTargets, check_lengths, check_room
from polyseme.tasks.text_templates import TextToTextTemplate
from polyseme.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from polyseme.families.family import Family
    from polyseme.nn.heads.base import HeadConfig
    from polyseme.nn.model import Model
    from polyseme.nn.trunks.base import TrunkConfig


@dataclass(frozen=True)
class TextCodec(ABC):
    """Wraps a task so that a model reads and answers it as text; the other side of `TaskConfig.codec`."""

    task: Any
    head_name: ClassVar[str] = "next"  # of all tasks that a model writes: the source says which one it is

    @property
    def template(self) -> TextToTextTemplate:
        template: TextToTextTemplate = self.task.text_template
        return template

    def heads(self, family: Family, trunk: TrunkConfig) -> dict[str, HeadConfig]:
        return {self.head_name: family.pretraining_heads(trunk)[self.head_name]}

    @abstractmethod
    def encode(
        self,
        examples: Sequence[Any],
        tokenizer: Tokenizer,
        max_len: int,
        truncate: bool = False,
        use_labels: bool = True,
    ) -> Iterable[EncodedExample]:
        """Encode examples as sources, with the answers that may be written."""

    def collate(self, encoded: Sequence[EncodedExample]) -> tuple[Batch, list[int]]:
        """Pack sources, and targets whose every token is predicted from those before it."""
        targets = [encode_text_target(e) for e in encoded]
        labels = [np.array([IGNORE_INDEX]) if t is None else t for t in targets]
        order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i].ids), len(labels[i])))
        tokens = [np.append(required_targets(encoded[i]).start_id, labels[i][:-1]) for i in order]
        sources = [encoded[i].ids for i in order]
        layout = PackedLayout.from_lengths([len(ids) for ids in tokens])
        source_layout = PackedLayout.from_lengths([len(ids) for ids in sources])
        count = sum(len(t) for t in targets if t is not None)
        flat_labels = torch.from_numpy(np.concatenate([labels[i] for i in order]))
        rows = Targets(torch.arange(layout.num_tokens), flat_labels, count)
        source = EncoderInput(torch.from_numpy(np.concatenate(sources)), source_layout)
        num_tokens = layout.num_tokens + source_layout.num_tokens
        flat_tokens = torch.from_numpy(np.concatenate(tokens))
        return Batch(Inputs(flat_tokens, layout, source=source), {self.head_name: rows}, num_tokens), order

    def num_tokens(self, encoded: EncodedExample) -> int:
        return len(encoded.ids) + sum(map(len, required_targets(encoded).answer_ids))


@dataclass(frozen=True)
class TextToText(TextCodec):
    """A task with known answers: the model scores each of the task's `candidate_answers`."""

    max_windows: ClassVar[int | None] = None
    scores_tokens: ClassVar[bool] = False

    @property
    def ensemble_key(self) -> tuple[Any, ...]:
        key: tuple[Any, ...] = self.task.ensemble_key
        return key

    def encode(
        self,
        examples: Sequence[Any],
        tokenizer: Tokenizer,
        max_len: int,
        truncate: bool = False,
        use_labels: bool = True,
    ) -> list[EncodedExample]:
        template, task = self.template, self.task
        targets = [task.candidate_target(template, e) if use_labels else None for e in examples]
        check_room(tokenizer, max_len)
        for example in examples:
            task.text_sequences(example)  # raises if a text is missing
        parts = [template.render_parts(e) for e in examples]
        word_ids = {words: tokenizer.encode(words) for each in parts for words, _ in each}
        texts = iter(tokenizer.encode_batch([text for each in parts for _, text in each]))
        no_answers = special_targets(template, tokenizer)
        known: dict[tuple[str, ...], TextTargets] = {}
        encoded, lengths = [], []
        for example, target, each in zip(examples, targets, parts):
            text_ids = [next(texts).tolist() for _ in each]
            length = 1 + sum(len(word_ids[words]) for words, _ in each) + sum(map(len, text_ids))
            message = f"max_len {max_len} leaves no room for text beside the words of {template.template!r}"
            _truncate_longest(text_ids, length - max_len, message)
            ids = [token for (words, _), text in zip(each, text_ids) for token in (*word_ids[words], *text)]
            answers = tuple(task.candidate_answers(template, example))
            if answers not in known:
                known[answers] = _encode_answers(answers, no_answers, tokenizer, template.answer_with == "name")
            if max(map(len, known[answers].answer_ids)) > max_len:
                raise ConfigError(f"{example.location}: an answer is longer than the {max_len} tokens that are written")
            tokens = np.array([*ids, no_answers.end_id], dtype=np.int64)
            segments = np.zeros_like(tokens)
            encoded.append(EncodedExample(tokens, segments, np.arange(0), target, text_targets=known[answers]))
            lengths.append(length)
        return check_lengths(examples, encoded, lengths, max_len, truncate)

    def predict(self, model: Model, encoded: Sequence[EncodedExample]) -> list[RowScores]:
        """Return the log-probability of every answer, [1, labels] or [choices, 1]; of a number, the likeliest one."""
        answers = [[ids.tolist() for ids in required_targets(e).answer_ids] for e in encoded]
        log_probs = score_answers(model, start_ids(encoded), answers, source_ids(encoded))
        scores = [self.task.candidate_scores(self.template, each) for each in log_probs]
        return [RowScores(each, each.argmax(-1)) for each in scores]

    def decode(self, scored: Iterable[tuple[EncodedExample, RowScores]], examples: Sequence[Any]) -> list[Any]:
        predictions: list[Any] = self.task.decode(scored, examples)
        return predictions

    def average(self, scores: Sequence[Sequence[RowScores]], models: Any, encoded: Any) -> list[RowScores]:
        means: list[RowScores] = self.task.average(scores, models, encoded)
        return means


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
    assert encoded.text_targets is not None
    return encoded.text_targets


def start_ids(encoded: Sequence[EncodedExample]) -> list[list[int]]:
    return [[required_targets(e).start_id] for e in encoded]


def source_ids(encoded: Sequence[EncodedExample]) -> list[list[int]]:
    return [e.ids.tolist() for e in encoded]


def _encode_answers(texts: Sequence[str], special: TextTargets, tokenizer: Tokenizer, must_differ: bool) -> TextTargets:
    """Encode the answers; two labels with the same tokens could not be told apart."""
    answers = tuple(np.append(ids, special.end_id).astype(np.int64) for ids in tokenizer.encode_batch(list(texts)))
    by_tokens: dict[bytes, str] = {}
    for text, ids in zip(texts, answers) if must_differ else ():
        if (other := by_tokens.setdefault(ids.tobytes(), text)) is not text:
            raise ModelError(f"the answers {other!r} and {text!r} are the same tokens to this tokenizer")
    return TextTargets(special.start_id, special.end_id, answers)


def _truncate_longest(texts: list[list[int]], excess: int, message: str) -> None:
    """Drop tokens from the end, one by one, always of the longest text."""
    for _ in range(excess):
        longest = max(reversed(texts), key=len)
        if len(longest) < 2:
            raise DataError(message)
        longest.pop()
