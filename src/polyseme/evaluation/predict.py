"""A task model at work: predictions in the order of the input, their metrics, and their files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError
from polyseme.io.atomic import write_text
from polyseme.io.json import write_json
from polyseme.nn.model import Model
from polyseme.nn.packing import token_budget_batches
from polyseme.progress import progress
from polyseme.tasks.coreference import predict_clusters
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.examples import CONLL_SUFFIXES, Example
from polyseme.tasks.metrics.srl import format_props
from polyseme.tasks.metrics.standard import compute_metrics
from polyseme.tasks.readers.conll2012 import format_conll, make_document
from polyseme.tasks.spans import WindowAnswer, best_span, merge_window_answers
from polyseme.tasks.task import Prediction, Task
from polyseme.tasks.text_to_text import generate_spans, score_text_answers
from polyseme.weights.folder import ModelFolder

WINDOWS_PER_BATCH = 512  # how many are read before only their answers are kept


MetricsFn = Callable[[Sequence[Example], Sequence[Any]], dict[str, float]]  # more metrics, of examples and answers


def evaluate(
    folder: ModelFolder,
    examples: Sequence[Example],
    max_len: int | None = None,
    truncate: bool | None = None,
    extra_metrics: MetricsFn | None = None,
) -> dict[str, float]:
    """The metrics of the folder's task on labelled examples; a label it was not trained on is an error."""
    task = Task.from_model(folder.model, folder.metadata)
    for example in examples:
        if example.gold is None:
            raise DataError(f"{example.location}: there is no label to compare with")
    encoded = encode_examples(folder, task, examples, max_len, truncate, use_labels=True)
    return evaluate_predictions(task, examples, predict_encoded(folder.model, task, examples, encoded), extra_metrics)


def predict(
    folder: ModelFolder,
    examples: Sequence[Example],
    max_len: int | None = None,
    truncate: bool | None = None,
) -> list[Prediction]:
    """One prediction for each example. Length and cutting are those of fine-tuning unless they are given."""
    task = Task.from_model(folder.model, folder.metadata)
    encoded = encode_examples(folder, task, examples, max_len, truncate, use_labels=False)
    return predict_encoded(folder.model, task, examples, encoded)


def predict_encoded(
    model: Model, task: Task, examples: Sequence[Example], encoded: Iterable[EncodedExample]
) -> list[Prediction]:
    """What the model says of each example. Of windows a few hundred are read at a time, and only answers are kept."""
    if task.task_type == "coreference":
        return [Prediction(clusters=clusters) for clusters in predict_clusters(model, task, list(encoded))]
    if task.task_type != "span":
        outputs = compute_logits_and_labels(model, task, list(encoded))
        return [task.decode(scores, e, best) for (scores, best), e in zip(outputs, examples)]

    def scored() -> Iterator[tuple[int, WindowAnswer]]:
        remaining = iter(encoded)
        while window_batch := list(islice(remaining, WINDOWS_PER_BATCH)):
            yield from zip([window.example_index for window in window_batch], answer_windows(model, task, window_batch))

    with progress("answer", len(examples), "questions", show=len(examples) > 1):
        return [Prediction(span=answer) for answer in merge_window_answers(scored(), examples, task.span)]


def answer_windows(model: Model, task: Task, windows: Sequence[EncodedExample]) -> list[WindowAnswer]:
    """The best stretch of each window, by its scores or as the model would write it."""
    if task.text_template:
        return generate_spans([model], windows, task.span.max_answer_tokens)
    windows_and_scores = zip(windows, compute_logits(model, task, windows))
    return [best_span(window, scores, task.span.max_answer_tokens) for window, scores in windows_and_scores]


def to_examples(values: Sequence[Any], model: Model, metadata: Mapping[str, Any] | None = None) -> list[Example]:
    """Plain values as examples of the model's task: texts, pairs of texts, or sequences of words to tag."""
    task = Task.from_model(model, metadata)
    examples = []
    for i, value in enumerate(values, 1):
        if isinstance(value, Example):
            examples.append(value)
            continue
        location = f"example {i}"
        if task.task_type == "coreference":
            sentences: Sequence[Any] = value if isinstance(value, list | tuple) and value else [None]
            if not all(
                isinstance(s, list | tuple) and s and all(w and isinstance(w, str) for w in s) for s in sentences
            ):
                raise DataError(
                    f"{location} is {str(value)[:40]!r}: a document is needed, a list of sentences of words"
                )
            examples.append(make_document(sentences, location))
            continue
        if task.task_type == "span":
            if not isinstance(value, list | tuple) or [type(part) for part in value] != [str, str] or not all(value):
                raise DataError(f"{location} is {str(value)[:40]!r}: a context and a question is needed")
            context, question = value
            examples.append(Example(location, context, question, id=str(i)))
            continue
        if task.task_type == "choice" and isinstance(value, list | tuple) and len(value) == 2:
            text, choices = value
            if isinstance(choices, list | tuple) and len(choices) > 1:
                examples.append(Example(location, text, choices=tuple(choices)))
                continue
        if task.task_type == "choice":
            raise DataError(f"{location} is {str(value)[:40]!r}: a text and a list of choices is needed")
        parts = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
        if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
            raise DataError(f"{location} is {str(value)[:40]!r}: a text, a pair of texts or a list of words is needed")
        if task.task_type == "tagging":
            words = value.split() if isinstance(value, str) else parts
            examples.append(Example(location, words=tuple(words)))
        elif len(parts) > 2:
            raise DataError(f"{location} has {len(parts)} parts: the model reads a text or a pair of texts")
        else:
            examples.append(Example(location, parts[0], parts[1] if len(parts) == 2 else None))
    return examples


def evaluate_predictions(
    task: Task, examples: Sequence[Example], predictions: Sequence[Prediction], extra_metrics: MetricsFn | None = None
) -> dict[str, float]:
    """All metrics. A word that was cut off has no tag here, so that what it should have been counts as wrong."""
    predicted: list[Any] = [p.value for p in predictions]
    if task.task_type == "tagging":
        pairs = [zip(p.tags or (), p.tag_probabilities or ()) for p in predictions]
        predicted = [tuple(None if probability is None else tag for tag, probability in pair) for pair in pairs]
    metrics = compute_metrics(task.task_type, [e.gold for e in examples], predicted, task.labels)
    return metrics | (extra_metrics(examples, predicted) if extra_metrics else {})


def compute_logits(
    model: Model, task: Task, encoded: Sequence[EncodedExample], max_batch_tokens: int = 16384
) -> list[np.ndarray]:
    """The head's scores of each example, [num_rows, labels]."""
    return [scores for scores, _ in compute_logits_and_labels(model, task, encoded, max_batch_tokens)]


def compute_logits_and_labels(
    model: Model, task: Task, encoded: Sequence[EncodedExample], max_batch_tokens: int = 16384
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The head's scores and best answers of each example, [num_rows, labels] and [num_rows], in packed bins.

    Always in the precision of the weights: a model measured after training and one loaded again say the same.
    """
    if task.text_template:
        return [(scores, scores.argmax(-1)) for scores in score_text_answers(model, task, encoded, max_batch_tokens)]
    device = next(model.parameters()).device
    outputs = [(np.empty(0), np.empty(0))] * len(encoded)
    training = model.training
    model.eval()
    with torch.inference_mode(), progress("predict", len(encoded), "examples", len(encoded) > 1) as bar:
        for members in token_budget_batches([len(e.ids) for e in encoded], max_batch_tokens):
            batch, order = task.collate([encoded[i] for i in members])
            batch = batch.for_trunk(model.config.trunk).to(device)
            last = model.trunk(batch.inputs).hidden
            rows = batch.targets[task.head_name].rows
            head_outputs = model.predict_labels(task.head_name, last, batch.inputs.layout, rows)
            scores, best = (t.cpu().numpy() for t in head_outputs)
            example_indices = [members[i] for i in order]
            ends = np.cumsum([task.num_rows(encoded[i]) for i in example_indices])
            for place, *part in zip(example_indices, np.split(scores, ends[:-1]), np.split(best, ends[:-1])):
                outputs[place] = part[0], part[1]
            bar.advance(len(members))
    model.train(training)
    return outputs


def write_predictions(path: Path, examples: Sequence[Example], predictions: Sequence[Prediction]) -> None:
    """Write a whole file or none: JSON lines, a table, or CoNLL columns, as the file's ending says.

    What is written can be read again as examples.
    """
    tagging = any(p.tags is not None for p in predictions)
    suffixes = [".jsonl", ".tsv", *(CONLL_SUFFIXES if tagging else ())]
    if spans := [p.span for p in predictions if p.span]:
        suffixes = [".json", ".jsonl"]
    if any(e.choices for e in examples):
        suffixes = [".jsonl"]
    if has_predicates := any(e.predicate for e in examples):
        suffixes = [".jsonl", ".conll", ".props"]
    if documents := [e for e in examples if e.document]:
        suffixes = [".conll", ".jsonl"]
    if path.suffix not in suffixes:
        raise ConfigError(f"{path}: predictions are written as {', '.join(suffixes)}, not {path.suffix!r}")
    pairs = list(zip(examples, predictions, strict=True))
    if documents and path.suffix == ".conll":
        write_text(path, "".join(format_conll(e, p.clusters or ()) for e, p in pairs))
        return
    if path.suffix == ".json":  # as SQuAD's script reads it, the odds against an answer too
        write_json(
            path.with_suffix(".null_odds.json"), {e.id: span.null_score_diff for e, span in zip(examples, spans)}
        )
        write_json(path, {e.id: span.text for e, span in zip(examples, spans)})
        return
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(_record(e, p), ensure_ascii=False) + "\n" for e, p in pairs)
    elif has_predicates:  # as srl-eval reads them, or with the words in front
        text = format_props(examples, [p.tags or () for p in predictions], path.suffix == ".conll")
    elif tagging:
        sentences = [zip(e.words or (), p.tags or ()) for e, p in pairs]
        text = "\n".join("".join(f"{_flat(word)}\t{tag}\n" for word, tag in rows) for rows in sentences)
    else:
        has_pair = any(e.pair is not None for e in examples)
        labels = list(predictions[0].probabilities or ()) if predictions else []
        table = [["text", *(["pair"] if has_pair else []), "label", *(f"p({label})" for label in labels)]]
        for e, p in pairs:
            texts = [e.text or "", *([e.pair or ""] if has_pair else [])]
            probabilities = (f"{probability:.6g}" for probability in (p.probabilities or {}).values())
            table.append([*map(_flat, texts), str(p.value), *probabilities])
        text = "".join("\t".join(row) + "\n" for row in table)
    write_text(path, text)


def _record(example: Example, prediction: Prediction) -> dict[str, object]:
    fields: dict[str, object] = {
        "text": example.text,
        "pair": example.pair,
        "choices": example.choices,
        "label": prediction.label if prediction.number is None else prediction.number,
        "probabilities": prediction.probabilities,
        "words": example.words,
        "tags": prediction.tags,
        "predicate": example.predicate[0] if example.predicate else None,
        "tag_probabilities": prediction.tag_probabilities,
    }
    if prediction.span:
        fields = {"id": example.id, "question": example.pair, **asdict(prediction.span)}
    if prediction.clusters is not None:
        fields = {"id": example.id, "words": example.words, "clusters": prediction.clusters}
    if example.choices and prediction.label is not None:
        fields["label"] = int(prediction.label)
    return {key: value for key, value in fields.items() if value is not None}


def _flat(text: str) -> str:
    """A text in one cell of a table."""
    return re.sub(r"[\t\r\n]+", " ", text)


def encode_examples(
    folder: ModelFolder,
    task: Task,
    examples: Sequence[Example],
    max_len: int | None,
    truncate: bool | None,
    use_labels: bool,
) -> Iterable[EncodedExample]:
    settings = folder.metadata.get("settings", {}) if "task" in folder.metadata else {}
    limit = folder.model.config.trunk.embeddings.max_len
    length = max_len or settings.get("max_len") or limit
    if length > limit:
        raise ConfigError(f"max_len {length} is longer than the model reads ({limit})")
    should_truncate = settings.get("truncate", False) if truncate is None else truncate
    if task.task_type == "span":
        return _count_truncated(
            task.encode_windows(examples, folder.tokenizer, length, should_truncate, use_labels), len(examples)
        )
    encoded = task.encode(examples, folder.tokenizer, length, should_truncate, use_labels)
    if num_truncated := sum(e.is_truncated for e in encoded):
        percentage = f"{num_truncated / len(examples):.1%}"
        print(f"{num_truncated} of {len(examples)} examples ({percentage}) are cut to {length} tokens", file=sys.stderr)
    return encoded


def _count_truncated(windows: Iterable[EncodedExample], total: int) -> Iterator[EncodedExample]:
    """The same windows; at their end it is said how many questions were cut."""
    truncated_examples = set()
    for window in windows:
        if window.is_truncated:
            truncated_examples.add(window.example_index)
        yield window
    if truncated_examples:
        print(
            f"{len(truncated_examples)} of {total} questions ({len(truncated_examples) / total:.1%}) "
            "are cut to half a window",
            file=sys.stderr,
        )
