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

from polyseme.errors import UserError
from polyseme.io.files import write_json, write_text
from polyseme.nn.model import Model
from polyseme.nn.packing import bins
from polyseme.progress import progress
from polyseme.tasks.coreference import found_clusters
from polyseme.tasks.encoded import Encoded
from polyseme.tasks.examples import COLUMNS, Example
from polyseme.tasks.metrics.srl import role_columns
from polyseme.tasks.metrics.standard import score
from polyseme.tasks.readers.conll2012 import in_columns, plain_document
from polyseme.tasks.spans import Best, best_spans, best_stretch
from polyseme.tasks.task import Prediction, Task
from polyseme.tasks.text_to_text import text_scores, text_stretches
from polyseme.weights.folder import ModelFolder

WINDOWS = 512  # how many are read before only their answers are kept


Extra = Callable[[Sequence[Example], Sequence[Any]], dict[str, float]]  # more metrics, of examples and answers


def evaluate(
    folder: ModelFolder,
    examples: Sequence[Example],
    max_len: int | None = None,
    truncate: bool | None = None,
    extra: Extra | None = None,
) -> dict[str, float]:
    """The metrics of the folder's task on labelled examples; a label it was not trained on is an error."""
    task = Task.from_model(folder.model, folder.notes)
    for example in examples:
        if example.answer is None:
            raise UserError(f"{example.where}: there is no label to compare with")
    encoded = encode_for(folder, task, examples, max_len, truncate, labelled=True)
    return measure(task, examples, predictions(folder.model, task, examples, encoded), extra)


def predict(
    folder: ModelFolder,
    examples: Sequence[Example],
    max_len: int | None = None,
    truncate: bool | None = None,
) -> list[Prediction]:
    """One prediction for each example. Length and cutting are those of fine-tuning unless they are given."""
    task = Task.from_model(folder.model, folder.notes)
    encoded = encode_for(folder, task, examples, max_len, truncate, labelled=False)
    return predictions(folder.model, task, examples, encoded)


def predictions(model: Model, task: Task, examples: Sequence[Example], encoded: Iterable[Encoded]) -> list[Prediction]:
    """What the model says of each example. Of windows a few hundred are read at a time, and only answers are kept."""
    if task.kind == "coreference":
        return [Prediction(clusters=clusters) for clusters in found_clusters(model, task, list(encoded))]
    if task.kind != "span":
        found = answers(model, task, list(encoded))
        return [task.decode(scores, e, best) for (scores, best), e in zip(found, examples)]

    def scored() -> Iterator[tuple[int, Best]]:
        todo = iter(encoded)
        while some := list(islice(todo, WINDOWS)):
            yield from zip([window.of for window in some], best_of(model, task, some))

    with progress("answer", len(examples), "questions", show=len(examples) > 1):
        return [Prediction(span=answer) for answer in best_spans(scored(), examples, task.span)]


def best_of(model: Model, task: Task, windows: Sequence[Encoded]) -> list[Best]:
    """The best stretch of each window, by its scores or as the model would write it."""
    if task.text:
        return text_stretches([model], windows, task.span.longest)
    both = zip(windows, logits(model, task, windows))
    return [best_stretch(window, scores, task.span.longest) for window, scores in both]


def as_examples(given: Sequence[Any], model: Model, notes: Mapping[str, Any] | None = None) -> list[Example]:
    """Plain values as examples of the model's task: texts, pairs of texts, or sequences of words to tag."""
    task = Task.from_model(model, notes)
    found = []
    for i, value in enumerate(given, 1):
        if isinstance(value, Example):
            found.append(value)
            continue
        where = f"example {i}"
        if task.kind == "coreference":
            sentences: Sequence[Any] = value if isinstance(value, list | tuple) and value else [None]
            if not all(
                isinstance(s, list | tuple) and s and all(w and isinstance(w, str) for w in s) for s in sentences
            ):
                raise UserError(f"{where} is {str(value)[:40]!r}: a document is needed, a list of sentences of words")
            found.append(plain_document(sentences, where))
            continue
        if task.kind == "span":
            if not isinstance(value, list | tuple) or [type(part) for part in value] != [str, str] or not all(value):
                raise UserError(f"{where} is {str(value)[:40]!r}: a context and a question is needed")
            context, question = value
            found.append(Example(where, context, question, id=str(i)))
            continue
        if task.kind == "choice" and isinstance(value, list | tuple) and len(value) == 2:
            text, choices = value
            if isinstance(choices, list | tuple) and len(choices) > 1:
                found.append(Example(where, text, choices=tuple(choices)))
                continue
        if task.kind == "choice":
            raise UserError(f"{where} is {str(value)[:40]!r}: a text and a list of choices is needed")
        parts = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
        if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
            raise UserError(f"{where} is {str(value)[:40]!r}: a text, a pair of texts or a list of words is needed")
        if task.kind == "tagging":
            words = value.split() if isinstance(value, str) else parts
            found.append(Example(where, words=tuple(words)))
        elif len(parts) > 2:
            raise UserError(f"{where} has {len(parts)} parts: the model reads a text or a pair of texts")
        else:
            found.append(Example(where, parts[0], parts[1] if len(parts) == 2 else None))
    return found


def measure(
    task: Task, examples: Sequence[Example], predictions: Sequence[Prediction], extra: Extra | None = None
) -> dict[str, float]:
    """All metrics. A word that was cut off has no tag here, so that what it should have been counts as wrong."""
    said: list[Any] = [p.answer for p in predictions]
    if task.kind == "tagging":
        pairs = [zip(p.tags or (), p.tag_probabilities or ()) for p in predictions]
        said = [tuple(None if share is None else tag for tag, share in pair) for pair in pairs]
    found = score(task.kind, [e.answer for e in examples], said, task.labels)
    return found | (extra(examples, said) if extra else {})


def logits(model: Model, task: Task, encoded: Sequence[Encoded], bin_tokens: int = 16384) -> list[np.ndarray]:
    """The head's scores of each example, [num_rows, labels]."""
    return [scores for scores, _ in answers(model, task, encoded, bin_tokens)]


def answers(
    model: Model, task: Task, encoded: Sequence[Encoded], bin_tokens: int = 16384
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The head's scores and best answers of each example, [num_rows, labels] and [num_rows], in packed bins.

    Always in the precision of the weights: a model measured after training and one loaded again say the same.
    """
    if task.text:
        return [(scores, scores.argmax(-1)) for scores in text_scores(model, task, encoded, bin_tokens)]
    device = next(model.parameters()).device
    found = [(np.empty(0), np.empty(0))] * len(encoded)
    training = model.training
    model.eval()
    with torch.inference_mode(), progress("predict", len(encoded), "examples", len(encoded) > 1) as bar:
        for members in bins([len(e.ids) for e in encoded], bin_tokens):
            batch, order = task.batch([encoded[i] for i in members])
            batch = batch.to(device)
            last = model.trunk(batch.tokens, batch.layout, batch.segments).last
            rows = batch.targets[task.head_name].rows
            both = model.answers(task.head_name, last, batch.layout, rows)
            scores, best = (t.cpu().numpy() for t in both)
            places = [members[i] for i in order]
            ends = np.cumsum([task.num_rows(encoded[i]) for i in places])
            for place, *part in zip(places, np.split(scores, ends[:-1]), np.split(best, ends[:-1])):
                found[place] = part[0], part[1]
            bar.advance(len(members))
    model.train(training)
    return found


def write_predictions(path: Path, examples: Sequence[Example], predictions: Sequence[Prediction]) -> None:
    """Write a whole file or none: JSON lines, a table, or CoNLL columns, as the file's ending says.

    What is written can be read again as examples.
    """
    tagging = any(p.tags is not None for p in predictions)
    known = [".jsonl", ".tsv", *(COLUMNS if tagging else ())]
    if spans := [p.span for p in predictions if p.span]:
        known = [".json", ".jsonl"]
    if any(e.choices for e in examples):
        known = [".jsonl"]
    if roles := any(e.mark for e in examples):
        known = [".jsonl", ".conll", ".props"]
    if documents := [e for e in examples if e.document]:
        known = [".conll", ".jsonl"]
    if path.suffix not in known:
        raise UserError(f"{path}: predictions are written as {', '.join(known)}, not {path.suffix!r}")
    both = list(zip(examples, predictions, strict=True))
    if documents and path.suffix == ".conll":
        write_text(path, "".join(in_columns(e, p.clusters or ()) for e, p in both))
        return
    if path.suffix == ".json":  # as SQuAD's script reads it, the odds against an answer too
        write_json(path.with_suffix(".odds.json"), {e.id: span.odds for e, span in zip(examples, spans)})
        write_json(path, {e.id: span.text for e, span in zip(examples, spans)})
        return
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(_record(e, p), ensure_ascii=False) + "\n" for e, p in both)
    elif roles:  # as srl-eval reads them, or with the words in front
        text = role_columns(examples, [p.tags or () for p in predictions], path.suffix == ".conll")
    elif tagging:
        sentences = [zip(e.words or (), p.tags or ()) for e, p in both]
        text = "\n".join("".join(f"{_flat(word)}\t{tag}\n" for word, tag in rows) for rows in sentences)
    else:
        paired = any(e.pair is not None for e in examples)
        labels = list(predictions[0].probabilities or ()) if predictions else []
        table = [["text", *(["pair"] if paired else []), "label", *(f"p({label})" for label in labels)]]
        for e, p in both:
            texts = [e.text or "", *([e.pair or ""] if paired else [])]
            shares = (f"{share:.6g}" for share in (p.probabilities or {}).values())
            table.append([*map(_flat, texts), str(p.answer), *shares])
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
        "mark": example.mark[0] if example.mark else None,
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


def encode_for(
    folder: ModelFolder,
    task: Task,
    examples: Sequence[Example],
    max_len: int | None,
    truncate: bool | None,
    labelled: bool,
) -> Iterable[Encoded]:
    settings = folder.notes.get("settings", {}) if "task" in folder.notes else {}
    limit = folder.model.spec.trunk.embeddings.max_len
    wanted = max_len or settings.get("max_len") or limit
    if wanted > limit:
        raise UserError(f"max_len {wanted} is longer than the model reads ({limit})")
    cut = settings.get("truncate", False) if truncate is None else truncate
    if task.kind == "span":
        return _counted(task.windows(examples, folder.tokenizer, wanted, cut, labelled), len(examples))
    found = task.encode(examples, folder.tokenizer, wanted, cut, labelled)
    if shorter := sum(e.cut for e in found):
        share = f"{shorter / len(examples):.1%}"
        print(f"{shorter} of {len(examples)} examples ({share}) are cut to {wanted} tokens", file=sys.stderr)
    return found


def _counted(found: Iterable[Encoded], total: int) -> Iterator[Encoded]:
    """The same windows; at their end it is said how many questions were cut."""
    cut = set()
    for window in found:
        if window.cut:
            cut.add(window.of)
        yield window
    if cut:
        print(f"{len(cut)} of {total} questions ({len(cut) / total:.1%}) are cut to half a window", file=sys.stderr)
