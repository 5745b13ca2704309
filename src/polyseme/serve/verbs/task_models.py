"""Verbs of task models: classify, tag, answer, and predict for any task."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyseme.errors import ConfigError, DataError
from polyseme.serve.api import requests, responses
from polyseme.serve.api.schema import to_plain
from polyseme.serve.registry import ServedModel
from polyseme.serve.verbs.plan import Plan, Results, count_usage, plan_examples


def plan_classify(served: ServedModel, request: requests.ClassifyRequest) -> Plan:
    """Predict labels or numbers."""
    pairs = request.spread("pair", request.pair, request.pairs)
    examples = [text if pair is None else (text, pair) for text, pair in zip(request.all_texts, pairs)]
    fields = responses.ClassifyResult.__dataclass_fields__

    def respond(results: Results) -> responses.ClassifyResponse:
        rows = [responses.ClassifyResult(**{k: v for k, v in vars(each).items() if k in fields}) for each in results]
        return responses.ClassifyResponse(served.name, rows, usage)

    usage = count_usage(served, [*request.all_texts, *(pair for pair in pairs if pair is not None)])
    return plan_examples(served, examples, usage.num_tokens, request.truncate, respond)


def plan_tag(served: ServedModel, request: requests.TagRequest) -> Plan:
    """Predict tags of words."""
    texts, words = request.all_texts, request.all_words
    for text_words in words:
        if not text_words or not all(word.strip() for word in text_words):
            raise DataError("a text has no words, or an empty one")
    if request.predicate is not None:
        shortest = min(map(len, words))
        if request.predicate >= shortest:
            raise DataError(f"predicate is {request.predicate}, and a text has {shortest} words")
    examples: list[Any] = [each if request.predicate is None else (each, request.predicate) for each in words]

    def respond(results: Results) -> responses.TagResponse:
        rows = [tag_result(*each) for each in zip(texts, words, results)]
        return responses.TagResponse(served.name, rows, usage)

    usage = count_usage(served, texts)
    return plan_examples(served, examples, usage.num_tokens, request.truncate, respond)


def tag_result(text: str, words: Sequence[str], prediction: Any) -> responses.TagResult:
    """Return tags with their place in the text; words of one entity (B-X, I-X, …) are one span."""
    offsets, place = [], 0
    for word in words:
        start = text.index(word, place)
        place = start + len(word)
        offsets.append((start, place))
    spans: list[responses.TagSpan] = []
    previous = ""
    for (start, end), tag in zip(offsets, prediction.tags):
        prefix, dash, label = tag.partition("-")
        has_scheme = bool(dash) and prefix in ("B", "I", "E", "S", "L", "U", "M")
        label = label if has_scheme else tag
        if tag in ("O", "_"):
            previous = ""
            continue
        if has_scheme and prefix in ("I", "E", "L", "M") and previous == label:
            start = spans.pop().start
        spans.append(responses.TagSpan(label, start, end, text[start:end]))
        previous = label if has_scheme else ""
    tags, probabilities = list(prediction.tags), list(prediction.probabilities)
    return responses.TagResult(list(words), offsets, tags, probabilities, spans)


def plan_answer(served: ServedModel, request: requests.AnswerRequest) -> Plan:
    """Find answers to questions."""
    questions = request.spread("question", request.question, request.questions)
    if None in questions:
        raise ConfigError("`question` is missing")
    examples = list(zip(request.all_texts, questions))

    def respond(results: Results) -> responses.AnswerResponse:
        fields = responses.AnswerResult.__dataclass_fields__
        rows = [responses.AnswerResult(**{name: getattr(each, name) for name in fields}) for each in results]
        return responses.AnswerResponse(served.name, rows, usage)

    usage = count_usage(served, [*request.all_texts, *questions])
    return plan_examples(served, examples, usage.num_tokens, False, respond)


def plan_predict(served: ServedModel, request: requests.PredictRequest) -> Plan:
    """Predict examples of any task."""
    examples = [tuple(each) if isinstance(each, list) else each for each in request.examples]
    num_tokens = sum(len(str(each).split()) for each in examples)

    def respond(results: Results) -> responses.PredictResponse:
        rows = [plain_prediction(each) for each in results]
        return responses.PredictResponse(served.name, rows, responses.Usage(num_tokens))

    return plan_examples(served, examples, num_tokens, request.truncate, respond)


def plain_prediction(prediction: Any) -> dict[str, Any]:
    """Return the fields of a prediction as plain values, without arrays, and the name of its type."""
    fields = {name: value for name, value in vars(prediction).items() if not isinstance(value, np.ndarray)}
    plain: dict[str, Any] = to_plain(fields)
    return {"type": type(prediction).__name__, **plain}
