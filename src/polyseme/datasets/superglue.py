"""SuperGLUE (Wang et al. 2019b) in JSON lines, and Word in Context in its original format."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import NamedDataset, json_lines_reader, pair_reader, split_files
from polyseme.errors import DataError
from polyseme.tasks.classification import PairClassificationTask
from polyseme.tasks.metrics.standard import squad_scores
from polyseme.tasks.multiple_choice import ChoiceExample, MultipleChoiceTask
from polyseme.tasks.readers.rows import JsonRow, RowReader, read_lines
from polyseme.tasks.sequence import TextExample

COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def _copa_examples(row: JsonRow) -> list[ChoiceExample]:
    question = row.get("question")
    if question not in COPA_QUESTIONS:
        raise DataError(f"{row.location}: question is {question!r}, neither cause nor effect")
    text, choices = f"{row.get('premise')} {COPA_QUESTIONS[question]}", (row.get("choice1"), row.get("choice2"))
    return [ChoiceExample(row.location, text, choices, row.label(), row.id())]


def _multirc_examples(row: JsonRow) -> Iterator[TextExample]:
    """Yield a (passage, question and answer) pair per answer; the id is `passage-question-answer`."""
    passage = row.child("passage")
    text = passage.get("text")
    for question in passage.children("questions"):
        question_text = question.get("question")
        for answer in question.children("answers"):
            question_and_answer = f"{question_text} {answer.get('text')}"
            example_id = f"{row.id()}-{question.id()}-{answer.id()}"
            yield TextExample(answer.location, text, question_and_answer, label=answer.label(), id=example_id)


def _multirc_metrics(examples: Sequence[TextExample], predictions: Sequence[Any]) -> dict[str, float]:
    """Return the share of questions with all answers classified correctly; `f1` is over all answers (F1a)."""
    all_correct: dict[str, bool] = {}
    for example, label in zip(examples, predictions, strict=True):
        question = example.id.rpartition("-")[0]
        all_correct[question] = all_correct.get(question, True) and label == example.label
    return {"exact": sum(all_correct.values()) / max(len(all_correct), 1)}


def _record_examples(row: JsonRow) -> Iterator[ChoiceExample]:
    """Yield a choice among the entities of the passage per query; the label is the first entity that is an answer."""
    passage = row.child("passage")
    text = passage.get("text")
    spans = [(e.get("start", int), e.get("end", int)) for e in passage.children("entities")]
    entities = tuple(dict.fromkeys(text[start : end + 1] for start, end in spans))
    for qa_row in row.children("qas"):
        query = qa_row.get("query")
        if "@placeholder" not in query:
            raise DataError(f"{qa_row.location}: there is no @placeholder in the query")
        gold_answers: tuple[str, ...] = ()
        if row.needs_labels or "answers" in qa_row.values:
            gold_answers = tuple(dict.fromkeys(a.get("text") for a in qa_row.children("answers")))
        label = next((str(i) for i, name in enumerate(entities) if name in gold_answers), None)
        if row.needs_labels and label is None:
            raise DataError(f"{qa_row.location}: no entity of the passage is an answer")
        text_with_query = f"{text.replace('@highlight', '')} {query}"
        yield ChoiceExample(qa_row.location, text_with_query, entities, label, qa_row.id(), gold_answers)


def _record_metrics(examples: Sequence[ChoiceExample], predictions: Sequence[Any]) -> dict[str, float]:
    """Return exact match and F1 of the entity, the best over a query's answers, by SQuAD's rules."""
    predicted_texts = [e.choices[int(i)] for e, i in zip(examples, predictions, strict=True)]
    exact, f1 = squad_scores([e.accepted_answers for e in examples], predicted_texts)
    return {"exact": float(exact.mean()), "f1": float(f1.mean())}


def _wic_examples(row: JsonRow) -> list[TextExample]:
    text = f"{row.get('word')}: {row.get('sentence1')}"
    return [TextExample(row.location, text, row.get("sentence2"), label=row.label(), id=row.id())]


def _wsc_examples(row: JsonRow) -> list[TextExample]:
    """Pair the text, its pronoun enclosed in asterisks, with the candidate referent."""
    target = row.child("target")
    words = row.get("text").split(" ")
    start, pronoun = target.get("span2_index", int), target.get("span2_text")
    num_words = len(pronoun.split(" "))
    if not 0 <= start <= len(words) - num_words:
        raise DataError(f"{row.location}: span2_index is {start}, and the text has {len(words)} words")
    marked_words = [*words[:start], "*", *words[start : start + num_words], "*", *words[start + num_words :]]
    return [TextExample(row.location, " ".join(marked_words), target.get("span1_text"), label=row.label(), id=row.id())]


def _read_wic(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read word, part of speech, positions and two sentences; the labels T and F are in a separate file."""
    lines = read_lines(path)
    labels: list[str | None] = [None] * len(lines)
    if needs_labels:
        gold_path = path.with_name(path.name.replace(".data.", ".gold."))
        labels = [*read_lines(gold_path)]
        if len(labels) != len(lines):
            raise DataError(f"{path} has {len(lines)} lines, but {gold_path} has {len(labels)}")
    for line_number, (line, label) in enumerate(zip(lines, labels), 1):
        yield partial(_parse_wic_line, f"{path}:{line_number}", line, label)


def _parse_wic_line(location: str, line: str, label: str | None) -> TextExample:
    cells = line.split("\t")
    if len(cells) != 5:
        raise DataError(f"{location}: {len(cells)} columns, not 5")
    if label is not None and label not in ("T", "F"):
        raise DataError(f"{location}: the label is {label!r}, neither T nor F")
    return TextExample(location, f"{cells[0]}: {cells[3]}", cells[4], label=label)


_SPLITS = split_files("{}.jsonl", dev="val")
_FOLLOWS = "does the second text follow from the first?"
_IS_YES, _IS_CORRECT = (f"is {what}, according to the passage?" for what in ("the answer yes", "this answer correct"))
_MISSING = "which of the passage's entities is missing?"
_SAME_MEANING = "does the word have the same meaning in both sentences?"
_pair, _choice = (partial(NamedDataset, task, splits=_SPLITS) for task in (PairClassificationTask, MultipleChoiceTask))
_rows = json_lines_reader
DATASETS: dict[str, NamedDataset] = {
    "superglue/boolq": _pair("accuracy", _IS_YES, "BoolQ", pair_reader("passage", "question")),
    "superglue/cb": _pair("macro_f1", _FOLLOWS, "CB", pair_reader("premise", "hypothesis")),
    "superglue/copa": _choice("accuracy", "which cause or effect is more likely?", "COPA", _rows(_copa_examples)),
    "superglue/multirc": _pair("f1", _IS_CORRECT, "MultiRC", _rows(_multirc_examples), extra_metrics=_multirc_metrics),
    "superglue/record": _choice("f1", _MISSING, "ReCoRD", _rows(_record_examples), extra_metrics=_record_metrics),
    "superglue/rte": _pair("accuracy", _FOLLOWS, "RTE", pair_reader("premise", "hypothesis")),
    "superglue/wic": _pair("accuracy", _SAME_MEANING, "WiC", _rows(_wic_examples)),
    "superglue/wsc": _pair("accuracy", "does the pronoun refer to this phrase?", "WSC", _rows(_wsc_examples)),
    "wic": _pair("accuracy", _SAME_MEANING, "wic", _read_wic, splits=split_files("{0}/{0}.data.txt")),
}
