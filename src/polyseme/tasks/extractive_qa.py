"""Extractive question answering: the span of a text that answers a question, or that there is none."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks import windows
from polyseme.tasks.base import BaselineFn, Prediction, RowsAndLabels, TaskConfig, Words, require_gold
from polyseme.tasks.baselines.texts import first_words, sliding_window
from polyseme.tasks.encoded import (
    AnswerCells,
    Codec,
    Encoded,
    EncodedExample,
    Examples,
    IdsAndSegments,
    RowScores,
    separator_id,
)
from polyseme.tasks.formats import PredictionFormat, json_object_format
from polyseme.tasks.metrics.diagnostics import diagnose_spans
from polyseme.tasks.metrics.standard import span_metrics, squad_scores
from polyseme.tasks.readers.rows import (
    NESTED_SUFFIXES,
    WORD_PATTERN,
    Columns,
    RowReader,
    parse_text,
    split_words,
)
from polyseme.tasks.readers.squad import QuestionExample, iter_questions, parse_answers
from polyseme.tasks.text_templates import TextToTextTemplate
from polyseme.tasks.text_to_text import TextQA
from polyseme.text.tokenizer import Tokenizer

MAX_PARTIAL_SHARE = 0.05  # of the answers of a training set; sets like SQuAD have 0.2 to 0.5 %, mostly errors
# Letters and digits, but not of Thai, Lao, Burmese, Khmer, Japanese and Chinese, which put no spaces between words.
WORD_CHARACTER = re.compile(r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


@dataclass(frozen=True)
class SpanAnswer(Prediction):
    """A span of the context; an empty text is "no answer".

    `null_score_diff` is the score of "no answer" minus that of the best span. The probability is that of start and end
    in their window.
    """

    value_field = "text"

    text: str
    start: int
    end: int
    probability: float
    null_score_diff: float


@dataclass(frozen=True)
class ExtractiveQATask(TaskConfig):
    """The span of a context that answers a question, read in overlapping windows.

    A window begins at most `doc_stride` tokens, and at most half a window, after the previous one. An answer has at
    most `max_answer_tokens` tokens. Without a `null_score_diff_threshold` every question has an answer; with one, those
    whose `null_score_diff` is above it have none. Where training questions lack an answer, the threshold is tuned on
    the dev examples (`tune_threshold`), unless it is set. Answers are extended to `whole_words`, unless answers of the
    training set begin or end within words.
    """

    task_type = "extractive_qa"
    usage_example = ("Anna lives in Paris.", "Where does Anna live?")
    pipeline_tag = "question-answering"
    example_type = QuestionExample
    default_metric = "f1"
    head_type = "span"
    own_suffixes = (".json",)
    record_suffixes = NESTED_SUFFIXES
    feature_networks = ("bidaf", "bilstm")
    answers_questions = True
    verb = "answer"
    supports_attribution = True
    averages_logits = True
    scores_tokens = True
    text_format = "question: {question} context: {context}"
    max_windows = 512
    output_labels = ("start", "end")

    doc_stride: int = 128
    max_answer_tokens: int = 30
    null_score_diff_threshold: float | None = None
    tune_threshold: bool = False
    whole_words: bool = True

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "doc_stride", "max_answer_tokens")

    @classmethod
    def iter_rows(cls, path: Path, columns: Columns, needs_labels: bool) -> Iterator[RowReader]:
        """Read SQuAD's JSON, or records with `context`, `question` and a list of `answers`."""
        if cls.record_format(path, columns):
            return cls.iter_record_rows(path, columns, needs_labels)
        columns.reject(path, "SQuAD's JSON")
        return iter_questions(path, needs_labels)

    @classmethod
    def from_record(cls, record: dict[str, Any], location: str, columns: Columns, needs_labels: bool) -> Any:
        """Convert a record; its text is the `context`, its pair the `question` and its label the `answers`."""
        names = (columns.text or "context", columns.pair or "question")
        context, question = (parse_text(record.get(name), location, name) for name in names)
        label_name, id_ = columns.label or "answers", record.get(columns.id or "id")
        answers = parse_answers(record.get(label_name), context, location, label_name)
        if answers is None and needs_labels:
            raise DataError(f"{location}: there is no answer")
        return QuestionExample(location, context, question, answers, location if id_ is None else str(id_))

    @classmethod
    def parse_value(cls, value: Any, location: str) -> QuestionExample:
        if not isinstance(value, list | tuple) or [type(part) for part in value] != [str, str] or not all(value):
            raise DataError(f"{location} is {str(value)[:40]!r}: a context and a question is needed")
        context, question = value
        return QuestionExample(location, context, question, id=location.rpartition(" ")[2])

    def fit(self, examples: Sequence[QuestionExample]) -> Self:
        if not any(e.answers for e in examples):
            raise DataError(f"the training data has no answers ({examples[0].location} …): there is nothing to learn")
        if not any(e.valid_answers for e in examples):
            problem = f"no answer of the training data is at its offset in the context ({examples[0].location} …)"
            raise DataError(f"{problem}: there is nothing to learn")
        task = self.replace(whole_words=self.whole_words and not has_partial_words(examples))
        if self.null_score_diff_threshold is None and any(e.answers == () for e in examples):
            return task.replace(null_score_diff_threshold=0.0, tune_threshold=True)
        return task

    @classmethod
    def from_head(cls, head: ClassificationHeadConfig) -> Self:
        return cls()

    def describe_data(self, train: Sequence[QuestionExample], dev: Sequence[QuestionExample]) -> dict[str, Any]:
        return {"bad_offsets": {"train": count_bad_offsets(train), "dev": count_bad_offsets(dev)}}

    def encode(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        max_len: int,
        truncate: bool = False,
        use_labels: bool = True,
        join: windows.JoinFn | None = None,
    ) -> Iterator[EncodedExample]:
        """Yield every window of every example, so that no document has to be held as tokens.

        A question may take half of a window; a longer one is an error, or is cut if `truncate` is set. `join` puts
        question and context together, by default with the tokenizer's special tokens.
        """
        join = join or partial(_join, tokenizer)
        template, cls_id = join([-1], [-2])[0], tokenizer.special_token_ids.cls
        max_question = max_len // 2 - len(template) + 2
        if max_question < 2:
            raise ConfigError(f"max_len {max_len} leaves no room for text beside the special tokens")
        null_is_first = cls_id is not None and template[0] == cls_id
        cached: tuple[str, list[tuple[np.ndarray, np.ndarray]]] = ("", [])
        for index, example in enumerate(examples):
            question = tokenizer.encode(example.question)
            is_truncated = len(question) > max_question
            if is_truncated and not truncate:
                shown = f"the question has {len(question)} tokens, and {max_question} are read"
                raise ConfigError(f"{example.location}: {shown}: truncate it")
            question = question[:max_question]
            size = max_len - len(join(question, [])[0])
            context_start = join(question, [-1])[0].index(-1)
            if cached[0] is not example.context:  # the questions of a paragraph come together
                chunks = windows.tokenize_in_chunks(tokenizer, example.context)
                cached = (example.context, list(chunks)) if len(example.context) <= windows.CHUNK_CHARS else ("", [])
            gold_span = example.char_span if use_labels else None
            pieces = cached[1] or windows.tokenize_in_chunks(tokenizer, example.context)
            for place, ids, offsets in windows.slide_window(pieces, size, min(self.doc_stride, max(size // 2, 1))):
                tokens, segments = (np.array(part, dtype=np.int64) for part in join(question, ids.tolist()))
                positions = np.arange(context_start, context_start + len(ids))
                null_position = 0 if null_is_first else len(tokens) - 1
                target = windows.gold_token_span(gold_span, place, offsets, context_start, null_position)
                yield EncodedExample(
                    tokens, segments, positions, target, (), is_truncated, index, offsets, null_position
                )

    def batch_targets(self, encoded: Encoded, ranks: np.ndarray, starts: np.ndarray) -> RowsAndLabels:
        """Return all rows; the labels of each are the rows of the correct start and end."""
        total = sum(len(e.ids) for e in encoded)
        labels = np.full((total, 2), IGNORE_INDEX)
        for start, e in zip(starts.tolist(), encoded):
            if e.target is not None:
                labels[start + e.candidate_positions] = start + e.target
        return np.arange(total), labels

    def row_groups(self, encoded: Encoded, starts: np.ndarray) -> torch.Tensor:
        """Number the windows; start and end are chosen among the candidate positions of each."""
        groups = np.full(sum(len(e.ids) for e in encoded), -1)
        for number, (start, e) in enumerate(zip(starts.tolist(), encoded)):
            groups[start + e.candidate_positions] = number
        return torch.from_numpy(groups)

    def num_rows(self, encoded: EncodedExample) -> int:
        return len(encoded.ids)

    def decode(self, scored: Iterable[tuple[EncodedExample, RowScores]], examples: Examples) -> list[SpanAnswer]:
        best = ((w.example_index, windows.best_span(w, s.logits, self.max_answer_tokens)) for w, s in scored)
        return self.merge_windows(best, examples)

    def merge_windows(
        self, window_answers: Iterable[tuple[int, windows.WindowAnswer]], examples: Sequence[QuestionExample]
    ) -> list[SpanAnswer]:
        """Return the best span of each example, from those of its windows, each with the index of its example."""
        answers = []
        for index, group in groupby(window_answers, key=itemgetter(0)):
            top, null_score = windows.WindowAnswer(-np.inf, 0, 0, 0.0, 0.0), np.inf
            for _, each in group:  # no list of them: a document may have any number of windows
                top, null_score = (each if each.score > top.score else top), min(null_score, each.null_score)
            text = examples[index].context
            span = text[top.start : top.end]
            begin, end = top.end - len(span.lstrip()), top.start + len(span.rstrip())
            if self.whole_words and begin < end:
                begin, end = extend_to_words(text, begin, end)
            diff = float(null_score - top.score)
            answer = SpanAnswer(text[begin:end], begin, max(begin, end), top.probability, diff)
            answers.append(self.apply_threshold(answer, text))
        return answers

    def apply_threshold(self, answer: SpanAnswer, context: str) -> SpanAnswer:
        """Return the span, or an empty text where the score of "no answer" is above the threshold."""
        threshold = self.null_score_diff_threshold
        is_null = threshold is not None and answer.null_score_diff > threshold
        return replace(answer, text="" if is_null else context[answer.start : answer.end])

    def calibrate(self, predictions: list[SpanAnswer], dev: Sequence[QuestionExample]) -> tuple[Self, list[SpanAnswer]]:
        if not self.tune_threshold:
            return self, predictions
        task = self.replace(null_score_diff_threshold=find_best_threshold(dev, predictions))
        return task, [task.apply_threshold(p, e.context) for e, p in zip(dev, predictions)]

    @property
    def dev_choices(self) -> list[str]:
        return ["the threshold of no answer"] if self.tune_threshold else []

    def score(self, gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
        return span_metrics(gold, predicted)

    def perfect_values(self, examples: Sequence[QuestionExample]) -> list[str]:
        return [e.gold[0] if e.gold else "" for e in examples]

    def diagnose(self, train: Examples, dev: Examples, predictions: Sequence[Any]) -> Diagnostics:
        return diagnose_spans(dev, predictions)

    def baselines(self) -> dict[str, BaselineFn]:
        return {"majority": first_words, "linear": sliding_window}

    def example_columns(self, example: QuestionExample) -> Mapping[str, Any]:
        """Return the row of the file, or else the question without its context."""
        return example.row or {"id": example.id, "question": example.question}

    def prediction_columns(self, example: QuestionExample, prediction: SpanAnswer) -> dict[str, Any]:
        columns = asdict(prediction)
        return {"prediction": columns.pop("text"), **columns}

    def own_formats(self, path: Path, examples: Iterable[QuestionExample]) -> dict[Path, PredictionFormat]:
        """Return what SQuAD's script reads, with the scores of "no answer" in a second file."""
        ids = set[str]()
        for example in examples:
            if example.id in ids:
                problem = f"{example.location}: another question has the id {example.id!r}"
                raise DataError(
                    f"{problem}, and {path.suffix} has one answer for each id: write .jsonl or .csv instead"
                )
            ids.add(example.id)
        return {
            path.with_suffix(".null_odds.json"): json_object_format(lambda e, p: (e.id, p.null_score_diff)),
            path: json_object_format(lambda e, p: (e.id, p.text)),
        }

    def input_texts(self, example: QuestionExample) -> list[str]:
        return [example.context, example.question]

    def locate_answer(
        self, answer: str | None, example: QuestionExample, encoded: EncodedExample, prediction: SpanAnswer
    ) -> AnswerCells:
        """Locate the start and the end of a span of the context."""
        start, end = prediction.start, prediction.end
        if answer is not None:
            start = example.context.find(answer)
            end = start + len(answer)
        assert encoded.offsets is not None
        inside = np.flatnonzero((encoded.offsets[:, 1] > start) & (encoded.offsets[:, 0] < end))
        if start < 0 or not len(inside):
            raise DataError(f"the answer {answer or ''!r} is not in the text: an answer is a part of it")
        positions = tuple(int(encoded.positions[i]) for i in (inside[0], inside[-1]))
        return AnswerCells(example.context[start:end], (0, 1), positions, "tokens")

    def word_sequences(self, example: QuestionExample) -> list[tuple[Words, ...]]:
        texts = split_words(example.context), split_words(example.question)
        if not all(texts):
            raise DataError(f"{example.location}: a text has no words")
        return [texts]

    def encode_features(
        self, example: QuestionExample, index: int, offsets: Mapping[Words, int], max_words: int, use_labels: bool
    ) -> Iterator[EncodedExample]:
        """Yield each window: words of its context, then the question, whose first word is "no answer".

        Windows and questions share what is stored of a context.
        """
        ((context, question),) = self.word_sequences(example)
        if use_labels:
            require_gold([example])
        question_ids = offsets[question] + np.arange(len(question))
        chars = np.array([m.span() for m in WORD_PATTERN.finditer(example.context)], dtype=np.int64)
        gold_span = example.char_span if use_labels else None
        words = [(offsets[context] + np.arange(len(context)), chars)]
        step = min(self.doc_stride, max(max_words // 2, 1))
        for place, ids, covered in windows.slide_window(words, max_words, step):
            n = len(ids)
            tokens, segments = np.concatenate([ids, question_ids]), np.repeat([0, 1], [n, len(question)])
            target = windows.gold_token_span(gold_span, place, covered, 0, n)
            yield EncodedExample(tokens, segments, np.arange(n), target, (), False, index, covered, n, True)

    @property
    def codec(self) -> Codec:
        return self if self.text_template is None else TextQA(self)

    def with_text_template(self, name: str, examples: Sequence[Any]) -> Self:
        return self.replace(text_template=TextToTextTemplate(self.text_format))


def find_best_threshold(examples: Sequence[QuestionExample], answers: Sequence[SpanAnswer]) -> float:
    """Return the threshold with the best F1 on these examples (as SQuAD 2.0's own script searches it)."""
    golds = [e.gold or () for e in examples]
    answered = squad_scores(golds, [e.context[a.start : a.end] for e, a in zip(examples, answers)])[1]
    silent = squad_scores(golds, [""] * len(golds))[1]
    diffs = np.array([a.null_score_diff for a in answers])
    order = np.argsort(diffs, kind="stable")
    diffs = diffs[order]
    # answering the first k questions and none of the others
    totals = np.cumsum([silent.sum(), *(answered - silent)[order]])
    edges = np.array([diffs[0] - 1, *(diffs[:-1] + diffs[1:]) / 2, diffs[-1] + 1])
    is_border = np.array([True, *(np.diff(diffs) > 0), True])  # equal differences cannot be told apart
    return float(edges[int(np.argmax(np.where(is_border, totals, -np.inf)))])


def extend_to_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span with the rest of the words that it cuts; a character of a script without spaces is a word."""
    while start > 0 and WORD_CHARACTER.match(text[start]) and WORD_CHARACTER.match(text[start - 1]):
        start -= 1
    while end < len(text) and WORD_CHARACTER.match(text[end - 1]) and WORD_CHARACTER.match(text[end]):
        end += 1
    return start, end


def has_partial_words(examples: Sequence[QuestionExample]) -> bool:
    """Whether more than a few answers begin or end within a word, as in Korean or in text without spaces."""
    spans = [(e.context, start, start + len(text)) for e in examples for text, start in e.valid_answers]
    num_partial = sum(extend_to_words(*span) != span[1:] for span in spans)
    return num_partial > MAX_PARTIAL_SHARE * len(spans)


def count_bad_offsets(examples: Sequence[QuestionExample]) -> tuple[int, int]:
    """Return how many answers are not at their offset, and how many questions have no other."""
    bad = sum(len(e.answers or ()) - len(e.valid_answers) for e in examples)
    return bad, sum(not e.is_trainable for e in examples)


def _join(tokenizer: Tokenizer, question: list[int], context: list[int]) -> IdsAndSegments:
    """Add special tokens to question and context; without any (GPT-2's tokenizer), a separator follows each of them."""
    if tokenizer.num_special_tokens_to_add(pair=True):
        return tokenizer.build_inputs_with_special_tokens(question, context)
    end = separator_id(tokenizer)
    ids = [*question, end, *context, end]
    return ids, [0] * len(ids)
