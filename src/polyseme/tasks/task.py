"""A task: labelled examples in, predictions out. Between them is the packed batch of pre-training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from polyseme.errors import UserError, nearest
from polyseme.families.family import FIXED_LABELS, Family
from polyseme.nn.heads.coreference import CoreferenceHeadSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec
from polyseme.nn.model import Model, TrunkSpec
from polyseme.nn.packing import Layout
from polyseme.objectives.batch import IGNORED, Batch, Targets
from polyseme.tasks.coreference import encode_documents, head_for, laid_rows, mentions_of
from polyseme.tasks.encoded import Encoded, Target, end_of, word_pieces, wrap
from polyseme.tasks.examples import Example, Kind, as_number
from polyseme.tasks.metrics.coreference import Mention
from polyseme.tasks.spans import SpanAnswer, SpanSpec, windows
from polyseme.tasks.text_templates import TextSpec
from polyseme.tasks.text_to_text import source_windows, sources, text_batch
from polyseme.text.tokenizer import Tokenizer

HEADS: dict[Kind, str] = {
    "classification": "classify",
    "pair": "classify",
    "regression": "classify",  # without labels
    "choice": "choice",
    "tagging": "tag",
    "span": "span",
    "coreference": "coreference",
}


@dataclass(frozen=True)
class Prediction:
    """A label and the probability of each; a number; a stretch of a text; each word's tag and its probability, None
    where cut off; or clusters of mentions in a document."""

    label: str | None = None
    probabilities: dict[str, float] | None = None
    number: float | None = None
    tags: tuple[str, ...] | None = None
    tag_probabilities: tuple[float | None, ...] | None = None
    span: SpanAnswer | None = None
    clusters: tuple[tuple[Mention, ...], ...] | None = None

    @property
    def answer(self) -> str | float | tuple[Any, ...] | None:
        text = None if self.span is None else self.span.text
        found = (self.label, self.number, self.tags, text, self.clusters)
        return next((a for a in found if a is not None), None)


@dataclass(frozen=True)
class Task:
    """What is predicted: the kind, and the labels in the order of the head's rows; none for regression.

    With `both_orders` a pair is read twice, either text first, and the two states are added: for tasks where neither
    text comes before the other (Radford et al. 2018, §3.3, similarity). With `text` it is written and answered as text.
    """

    kind: Kind
    labels: tuple[str, ...]
    both_orders: bool = False
    span: SpanSpec = field(default_factory=SpanSpec)
    coreference: CoreferenceHeadSpec = field(default_factory=CoreferenceHeadSpec)
    name: str = ""  # where a model answers several tasks
    text: TextSpec | None = None

    @classmethod
    def of(
        cls,
        kind: Kind,
        examples: Sequence[Example],
        both_orders: bool = False,
        span: SpanSpec | None = None,
        coreference: CoreferenceHeadSpec | None = None,
        text: TextSpec | None = None,
    ) -> Task:
        """The task of a training set. Tags are in order of frequency: the first is the best blind guess.

        Where some questions have no answer, "no answer" can be said.
        """
        if both_orders and kind not in ("pair", "regression"):
            raise UserError(f"both_orders is for pairs of texts, not for {kind}")
        if both_orders and text:
            raise UserError("both_orders adds two states, and this family answers in text: it has none to add")
        if kind == "span":
            span = span or SpanSpec()
            if not any(e.answers for e in examples):
                raise UserError(f"the training data has no answers ({examples[0].where} …): there is nothing to learn")
            if span.threshold is None and any(e.answers == () for e in examples):
                span = span.replace(threshold=0.0)
            return cls(kind, FIXED_LABELS["span"], span=span, text=text)
        if kind == "coreference":
            return cls(kind, (), coreference=head_for(coreference or CoreferenceHeadSpec(), examples))
        if kind == "tagging":
            counts = Counter(tag for e in examples for tag in e.tags or ())
            labels = sorted(counts, key=lambda tag: (-counts[tag], tag))
        else:
            labels = sorted({e.label for e in examples if e.label is not None})
        if len(labels) < (1 if kind == "choice" else 2):
            said = f"only the label {labels[0]!r}" if labels else "no labels"
            raise UserError(f"the training data has {said} ({examples[0].where} …): there is nothing to learn")
        fixed = {"regression": (), "choice": FIXED_LABELS["choice"]}
        return cls(kind, fixed.get(kind, tuple(labels)), both_orders, text=text)

    @classmethod
    def from_model(cls, model: Model, notes: Mapping[str, Any] | None = None) -> Task:
        """The task a model's head was trained for; the notes of its folder tell a pair from a single text."""
        notes = notes or {}
        settings = notes.get("settings", {})
        if "text" in notes and "next" in model.spec.heads:
            text = TextSpec.from_json(notes["text"], "text")
            span = SpanSpec.from_json(settings.get("span", {}), "settings.span")
            return cls(notes["task"], tuple(notes["labels"]), span=span, text=text)
        if isinstance(found := model.spec.heads.get("coreference"), CoreferenceHeadSpec):
            return cls("coreference", (), coreference=found)
        for name in ("classify", "tag", "choice", "span"):
            head = model.spec.heads.get(name)
            if isinstance(head, LabelHeadSpec):
                single: Kind = "pair" if notes.get("task") == "pair" else "classification"
                others: dict[str, Kind] = {"tag": "tagging", "choice": "choice", "span": "span"}
                kind: Kind = others.get(name, single if head.labels else "regression")
                span = SpanSpec.from_json(settings.get("span", {}), "settings.span")
                return cls(kind, head.labels, settings.get("both_orders", False), span)
        if named := [name.partition("@")[2] for name in model.spec.heads if "@" in name]:
            raise UserError(f"the model answers several tasks, {', '.join(named)}: say which")
        has = ", ".join(model.spec.heads) or "none"
        raise UserError(f"the model has no task head (its heads: {has}): fine-tune it first")

    @property
    def head_name(self) -> str:
        if self.text:
            return "next"  # of all tasks that a model writes: the source says which one it is
        return HEADS[self.kind] + (f"@{self.name}" if self.name else "")

    def head(self, family: Family, trunk: TrunkSpec) -> HeadSpec:
        """The spec of its head over a trunk of the family."""
        if self.kind == "coreference":
            return self.coreference
        if self.text:
            return family.heads(trunk)["next"]
        return family.label_head(HEADS[self.kind], self.labels, trunk)

    def encode(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_len: int,
        truncate: bool = False,
        labelled: bool = True,
    ) -> list[Encoded]:
        """Examples as ids. One that is longer than `max_len` is an error, or is cut if `truncate` is set. For spans
        these are windows, each with the number of its example.

        Without `labelled` there are no targets, and labels that are present are not looked at.
        """
        if self.kind == "span":
            return list(self.windows(examples, tokenizer, max_len, truncate, labelled))
        if self.kind == "coreference":
            return encode_documents(examples, tokenizer, max_len, self.coreference, truncate, labelled)
        numbers = {label: i for i, label in enumerate(self.labels)}
        targets = [self._target(e, numbers) if labelled else None for e in examples]
        if max_len - tokenizer.num_added(pair=True) < 2:
            raise UserError(f"max_len {max_len} leaves no room for text beside the special tokens")
        if self.text:
            for example in examples:
                self._sequences(example)  # says what is missing
            found = sources(self, self.text, examples, targets, tokenizer, max_len)
        elif self.kind == "tagging":
            found = [_encode_words(e, t, tokenizer, max_len) for e, t in zip(examples, targets)]
        else:
            found = self._encode_texts(examples, targets, tokenizer, max_len)
        long = [(e, size) for e, (_, size) in zip(examples, found) if size > max_len]
        if long and not truncate:
            first, size = long[0]
            raise UserError(
                f"{len(long)} of {len(examples)} examples are longer than {max_len} tokens, the first at "
                f"{first.where} with {size}: truncate them, or use a model that reads more"
            )
        return [replace(encoded, cut=True) if size > max_len else encoded for encoded, size in found]

    def windows(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_len: int,
        truncate: bool = False,
        labelled: bool = True,
    ) -> Iterator[Encoded]:
        """What `encode` gives of spans, window by window."""
        if self.text:
            return source_windows(self, self.text, examples, tokenizer, max_len, truncate, labelled)
        return windows(examples, tokenizer, max_len, self.span, truncate, labelled)

    def batch(self, encoded: Sequence[Encoded]) -> tuple[Batch, list[int]]:
        """One packed batch, equal lengths side by side; and which example stands at each place."""
        if self.text:
            return text_batch(encoded)
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i].ids))
        items = [encoded[i] for i in order]
        sizes = np.array([size for e in items for size in e.sizes])
        by_length = np.argsort(sizes, kind="stable")
        places = np.argsort(by_length, kind="stable")  # where each sequence stands
        layout = Layout.of(sizes[by_length])
        blank, dtype = (np.nan, np.float32) if self.kind == "regression" else (IGNORED, np.int64)
        known = [blank if e.target is None else e.target for e in items]
        sizes_of = {"tagging": lambda e: len(e.rows), "coreference": lambda e: self.coreference.kept(len(e.rows))}
        count = sum(sizes_of.get(self.kind, lambda e: 1)(e) for e in items if e.target is not None)
        if self.kind == "tagging":
            rows = np.concatenate([start + e.rows for start, e in zip(layout.starts.tolist(), items)])
            values = np.concatenate([np.full(len(e.rows), target) for e, target in zip(items, known)])
        elif self.kind == "choice":  # the value of each row is the row of the right choice
            firsts = np.cumsum([0, *(len(e.sizes) for e in items)])
            right = [first + e.target if e.target is not None else IGNORED for first, e in zip(firsts, items)]
            rows, values = places, np.repeat(right, [len(e.sizes) for e in items])
        elif self.kind == "span":  # the values of each row are the rows of the right start and end
            rows, values = np.arange(layout.total), np.full((layout.total, 2), IGNORED)
            for start, e in zip(layout.starts.tolist(), items):
                if e.target is not None:
                    values[start + e.rivals] = start + e.target
        elif self.kind == "coreference":  # the values are the true mentions
            rows, values = laid_rows(items, layout.starts.numpy()[places])
        else:
            rows, values = (places.reshape(-1, 2) if self.both_orders else places), np.array(known, dtype)
        targets = Targets(torch.from_numpy(rows), torch.from_numpy(values), count)

        def laid(parts: list[np.ndarray]) -> torch.Tensor:
            sequences = np.split(np.concatenate(parts), np.cumsum(sizes)[:-1])
            return torch.from_numpy(np.concatenate([sequences[i] for i in by_length]))

        tokens, segments = laid([e.ids for e in items]), laid([e.segments for e in items])
        return Batch(tokens, layout, segments, {self.head_name: targets}, layout.total), order

    def num_rows(self, encoded: Encoded) -> int:
        """How many rows of scores an example takes."""
        if self.kind == "choice":
            return len(encoded.sizes)
        if self.kind == "span":
            return len(encoded.ids)
        return len(encoded.rows) if self.kind == "tagging" else 1

    def decode(self, logits: np.ndarray, example: Example, best: np.ndarray | None = None) -> Prediction:
        """An example's scores, [num_rows, labels] or a number alone, as a prediction; `best` if it is not the highest.

        Words that were cut off get the tag of words outside of everything (O, else the first and most
        frequent), so that no word is ever lost.
        """
        if self.kind == "regression":
            return Prediction(number=float(logits[0, 0]))
        logits = logits.T if self.kind == "choice" else logits
        shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
        shares = shifted / shifted.sum(-1, keepdims=True)
        best = shares.argmax(-1) if best is None or self.kind != "tagging" else best
        if self.kind != "tagging":
            labels = [str(i) for i in range(len(shares[0]))] if self.kind == "choice" else self.labels
            return Prediction(labels[best[0]], dict(zip(labels, shares[0].tolist())))
        cut = len(example.words or ()) - len(logits)
        outside = "O" if "O" in self.labels else self.labels[0]
        tags = (*(self.labels[i] for i in best), *[outside] * cut)
        return Prediction(tags=tags, tag_probabilities=(*shares[np.arange(len(best)), best].tolist(), *[None] * cut))

    def _target(self, example: Example, numbers: dict[str, int]) -> Target:
        if self.kind == "coreference":
            return mentions_of(example)
        given = example.tags if self.kind == "tagging" else example.label
        if given is None or self.kind == "regression":
            number = None if given is None else as_number(given, example.where)
            return self.text.place(number) if self.text and number is not None else number
        if self.kind == "choice":
            return int(example.label or 0)
        for label in given if isinstance(given, tuple) else (given,):
            if label not in numbers:
                known = nearest(label, numbers)
                raise UserError(f"{example.where}: the label {label!r} was never seen in training; {known}")
        return numbers[given] if isinstance(given, str) else np.array([numbers[tag] for tag in given])

    def _encode_texts(
        self, examples: Sequence[Example], targets: Sequence[Target], tokenizer: Tokenizer, max_len: int
    ) -> list[tuple[Encoded, int]]:
        written = [text for e in examples for pair in self._sequences(e) for text in pair if text is not None]
        ids = iter(tokenizer.encode_batch(written))
        found = []
        for example, target in zip(examples, targets):
            parts, longest = [], 0
            for _, other in self._sequences(example):
                first = next(ids).tolist()
                second = None if other is None else next(ids).tolist()
                size = len(wrap(tokenizer, first, second)[0])
                _cut_longer(first, second, size - max_len)
                parts.append(wrap(tokenizer, first, second))
                longest = max(longest, size)
            joined, segments = (list(chain.from_iterable(part)) for part in zip(*parts))
            lengths = tuple(len(part) for part, _ in parts) if len(parts) > 1 else ()
            found.append((_encoded(joined, segments, np.arange(0), target, lengths), longest))
        return found

    def _sequences(self, example: Example) -> list[tuple[str, str | None]]:
        """The texts of each sequence that an example is read as."""
        text = _given(example, example.text, "text")
        if self.kind == "choice":
            return [(text, choice) for choice in _given(example, example.choices, "choices")]
        other = example.pair
        if self.kind in ("pair", "span") or self.both_orders:
            other = _given(example, other, "question" if self.kind == "span" else "second text")
        return [(text, other), (other, text)] if self.both_orders and other else [(text, other)]


def _encode_words(example: Example, target: Target, tokenizer: Tokenizer, max_len: int) -> tuple[Encoded, int]:
    """Words as pieces, and where each word's first piece is.

    The word that the tags are about comes first, as a text of its own (as Shi and Lin 2019 put it behind; a causal
    model must have read it before), and stands between two marks in its sentence, where its like may stand too.
    """
    words = _given(example, example.words, "words")
    pieces, of = word_pieces(tokenizer, words)
    rows = np.searchsorted(of, np.arange(len(words)))
    marked: list[int] | None = None
    if example.mark is not None:
        place = example.mark[0]
        both = np.searchsorted(of, [place, place + 1])
        marked = pieces[both[0] : both[1]].tolist()
        pieces = np.insert(pieces, both, end_of(tokenizer))
        rows[place:] += 1
        rows[place + 1 :] += 1

    def around(some: list[int]) -> tuple[list[int], list[int]]:
        return tokenizer.wrap(some) if marked is None else wrap(tokenizer, marked, some)

    frame = around([-1])[0]
    room = max(max_len - len(frame) + 1, 0)
    rows = frame.index(-1) + rows[rows < room]
    ids, segments = around(pieces[:room].tolist())
    kept = target[: len(rows)] if isinstance(target, np.ndarray) else None
    return _encoded(ids, segments, rows, kept), len(pieces) + len(frame) - 1


def _encoded(
    ids: list[int], segments: list[int], rows: np.ndarray, target: Target, lengths: tuple[int, ...] = ()
) -> Encoded:
    return Encoded(np.array(ids, dtype=np.int64), np.array(segments, dtype=np.int64), rows, target, lengths)


def _cut_longer(first: list[int], second: list[int] | None, excess: int) -> None:
    """Drop tokens from the end, one by one, always of the longer side, as BERT's code does."""
    for _ in range(excess):
        (first if second is None or len(first) > len(second) else second).pop()


def _given(example: Example, value: Any, what: str) -> Any:
    if value is None:
        raise UserError(f"{example.where}: there is no {what}, which this task reads")
    return value
