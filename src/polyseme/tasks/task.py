"""A task: labelled examples in, predictions out. Between them is the packed batch of pre-training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError, UnsupportedError, suggest
from polyseme.families.family import FIXED_LABELS, Family
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.coreference import CoreferenceHeadConfig
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.tasks.coreference import batch_word_rows, encode_documents, gold_mentions, head_config_from_examples
from polyseme.tasks.encoded import EncodedExample, Target, add_special_tokens, encode_words, separator_id
from polyseme.tasks.examples import Example, TaskType, parse_float
from polyseme.tasks.metrics.coreference import Mention
from polyseme.tasks.spans import ExtractiveQAConfig, SpanAnswer, sliding_windows
from polyseme.tasks.text_templates import TextToTextTemplate
from polyseme.tasks.text_to_text import collate_text, encode_source_windows, encode_sources
from polyseme.text.tokenizer import Tokenizer

HEAD_BY_TASK: dict[TaskType, str] = {
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
    def value(self) -> str | float | tuple[Any, ...] | None:
        text = None if self.span is None else self.span.text
        candidates = (self.label, self.number, self.tags, text, self.clusters)
        return next((a for a in candidates if a is not None), None)


@dataclass(frozen=True)
class Task:
    """What is predicted: the kind, and the labels in the order of the head's rows; none for regression.

    With `symmetric_pairs` a pair is read twice, either text first, and the two states are added: for tasks where
    neither text comes before the other (Radford et al. 2018, §3.3, similarity). With `text_template` it is written and
    answered as text.
    """

    task_type: TaskType
    labels: tuple[str, ...]
    symmetric_pairs: bool = False
    span: ExtractiveQAConfig = field(default_factory=ExtractiveQAConfig)
    coreference: CoreferenceHeadConfig = field(default_factory=CoreferenceHeadConfig)
    name: str = ""  # where a model answers several tasks
    text_template: TextToTextTemplate | None = None

    @classmethod
    def from_examples(
        cls,
        task_type: TaskType,
        examples: Sequence[Example],
        symmetric_pairs: bool = False,
        span: ExtractiveQAConfig | None = None,
        coreference: CoreferenceHeadConfig | None = None,
        text_template: TextToTextTemplate | None = None,
    ) -> Task:
        """The task of a training set. Tags are in order of frequency: the first is the best blind guess.

        Where some questions have no answer, "no answer" can be said.
        """
        if symmetric_pairs and task_type not in ("pair", "regression"):
            raise ConfigError(f"symmetric_pairs is for pairs of texts, not for {task_type}")
        if symmetric_pairs and text_template:
            raise ConfigError("symmetric_pairs adds two states, and this family answers in text: it has none to add")
        if task_type == "span":
            span = span or ExtractiveQAConfig()
            if not any(e.answers for e in examples):
                raise DataError(
                    f"the training data has no answers ({examples[0].location} …): there is nothing to learn"
                )
            if span.null_score_diff_threshold is None and any(e.answers == () for e in examples):
                span = span.replace(null_score_diff_threshold=0.0)
            return cls(task_type, FIXED_LABELS["span"], span=span, text_template=text_template)
        if task_type == "coreference":
            return cls(
                task_type, (), coreference=head_config_from_examples(coreference or CoreferenceHeadConfig(), examples)
            )
        if task_type == "tagging":
            counts = Counter(tag for e in examples for tag in e.tags or ())
            labels = sorted(counts, key=lambda tag: (-counts[tag], tag))
        else:
            labels = sorted({e.label for e in examples if e.label is not None})
        if len(labels) < (1 if task_type == "choice" else 2):
            problem = f"only the label {labels[0]!r}" if labels else "no labels"
            raise DataError(f"the training data has {problem} ({examples[0].location} …): there is nothing to learn")
        fixed_labels = {"regression": (), "choice": FIXED_LABELS["choice"]}
        return cls(task_type, fixed_labels.get(task_type, tuple(labels)), symmetric_pairs, text_template=text_template)

    @classmethod
    def from_model(cls, model: Model, metadata: Mapping[str, Any] | None = None) -> Task:
        """The task a model's head was trained for; the notes of its folder tell a pair from a single text."""
        metadata = metadata or {}
        settings = metadata.get("settings", {})
        if "text_template" in metadata and "next" in model.config.heads:
            text_template = TextToTextTemplate.from_json(metadata["text_template"], "text_template")
            span = ExtractiveQAConfig.from_json(settings.get("span", {}), "settings.span")
            return cls(metadata["task"], tuple(metadata["labels"]), span=span, text_template=text_template)
        if isinstance(coreference_head := model.config.heads.get("coreference"), CoreferenceHeadConfig):
            return cls("coreference", (), coreference=coreference_head)
        for name in ("classify", "tag", "choice", "span"):
            head = model.config.heads.get(name)
            if isinstance(head, ClassificationHeadConfig):
                sequence_type: TaskType = "pair" if metadata.get("task") == "pair" else "classification"
                task_type_by_head: dict[str, TaskType] = {"tag": "tagging", "choice": "choice", "span": "span"}
                task_type: TaskType = task_type_by_head.get(name, sequence_type if head.labels else "regression")
                span = ExtractiveQAConfig.from_json(settings.get("span", {}), "settings.span")
                return cls(task_type, head.labels, settings.get("symmetric_pairs", False), span)
        if task_names := [name.partition("@")[2] for name in model.config.heads if "@" in name]:
            raise ConfigError(f"the model answers several tasks, {', '.join(task_names)}: say which")
        head_names = ", ".join(model.config.heads) or "none"
        raise UnsupportedError(f"the model has no task head (its heads: {head_names}): fine-tune it first")

    @property
    def head_name(self) -> str:
        if self.text_template:
            return "next"  # of all tasks that a model writes: the source says which one it is
        return HEAD_BY_TASK[self.task_type] + (f"@{self.name}" if self.name else "")

    def head(self, family: Family, trunk: TrunkConfig) -> HeadConfig:
        """The spec of its head over a trunk of the family."""
        if self.task_type == "coreference":
            return self.coreference
        if self.text_template:
            return family.pretraining_heads(trunk)["next"]
        return family.task_head(HEAD_BY_TASK[self.task_type], self.labels, trunk)

    def encode(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_len: int,
        truncate: bool = False,
        use_labels: bool = True,
    ) -> list[EncodedExample]:
        """Examples as ids. One that is longer than `max_len` is an error, or is cut if `truncate` is set. For spans
        these are windows, each with the number of its example.

        Without `use_labels` there are no targets, and labels that are present are not looked at.
        """
        if self.task_type == "span":
            return list(self.encode_windows(examples, tokenizer, max_len, truncate, use_labels))
        if self.task_type == "coreference":
            return encode_documents(examples, tokenizer, max_len, self.coreference, truncate, use_labels)
        label_ids = {label: i for i, label in enumerate(self.labels)}
        targets = [self._encode_target(e, label_ids) if use_labels else None for e in examples]
        if max_len - tokenizer.num_special_tokens_to_add(pair=True) < 2:
            raise ConfigError(f"max_len {max_len} leaves no room for text beside the special tokens")
        if self.text_template:
            for example in examples:
                self._sequences(example)  # says what is missing
            encoded_with_sizes = encode_sources(self, self.text_template, examples, targets, tokenizer, max_len)
        elif self.task_type == "tagging":
            encoded_with_sizes = [_encode_words(e, t, tokenizer, max_len) for e, t in zip(examples, targets)]
        else:
            encoded_with_sizes = self._encode_texts(examples, targets, tokenizer, max_len)
        too_long = [(e, size) for e, (_, size) in zip(examples, encoded_with_sizes) if size > max_len]
        if too_long and not truncate:
            first, size = too_long[0]
            raise DataError(
                f"{len(too_long)} of {len(examples)} examples are longer than {max_len} tokens, the first at "
                f"{first.location} with {size}: truncate them, or use a model that reads more"
            )
        return [
            replace(encoded, is_truncated=True) if size > max_len else encoded for encoded, size in encoded_with_sizes
        ]

    def encode_windows(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_len: int,
        truncate: bool = False,
        use_labels: bool = True,
    ) -> Iterator[EncodedExample]:
        """What `encode` gives of spans, window by window."""
        if self.text_template:
            return encode_source_windows(self, self.text_template, examples, tokenizer, max_len, truncate, use_labels)
        return sliding_windows(examples, tokenizer, max_len, self.span, truncate, use_labels)

    def collate(self, encoded: Sequence[EncodedExample]) -> tuple[Batch, list[int]]:
        """One packed batch, equal lengths side by side; and which example stands at each place."""
        if self.text_template:
            return collate_text(encoded)
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i].ids))
        items = [encoded[i] for i in order]
        sizes = np.array([size for e in items for size in e.sequence_lengths])
        by_length = np.argsort(sizes, kind="stable")
        places = np.argsort(by_length, kind="stable")  # where each sequence stands
        layout = PackedLayout.from_lengths(sizes[by_length])
        ignore_value, dtype = (np.nan, np.float32) if self.task_type == "regression" else (IGNORE_INDEX, np.int64)
        target_values = [ignore_value if e.target is None else e.target for e in items]
        count_targets = {
            "tagging": lambda e: len(e.positions),
            "coreference": lambda e: self.coreference.max_mentions(len(e.positions)),
        }
        count = sum(count_targets.get(self.task_type, lambda e: 1)(e) for e in items if e.target is not None)
        if self.task_type == "tagging":
            rows = np.concatenate([start + e.positions for start, e in zip(layout.cu_seqlens.tolist(), items)])
            values = np.concatenate([np.full(len(e.positions), target) for e, target in zip(items, target_values)])
        elif self.task_type == "choice":  # the value of each row is the row of the right choice
            firsts = np.cumsum([0, *(len(e.sequence_lengths) for e in items)])
            gold_rows = [first + e.target if e.target is not None else IGNORE_INDEX for first, e in zip(firsts, items)]
            rows, values = places, np.repeat(gold_rows, [len(e.sequence_lengths) for e in items])
        elif self.task_type == "span":  # the values of each row are the rows of the right start and end
            rows, values = np.arange(layout.num_tokens), np.full((layout.num_tokens, 2), IGNORE_INDEX)
            for start, e in zip(layout.cu_seqlens.tolist(), items):
                if e.target is not None:
                    values[start + e.candidate_positions] = start + e.target
        elif self.task_type == "coreference":  # the values are the true mentions
            rows, values = batch_word_rows(items, layout.cu_seqlens.numpy()[places])
        else:
            rows, values = (places.reshape(-1, 2) if self.symmetric_pairs else places), np.array(target_values, dtype)
        targets = Targets(torch.from_numpy(rows), torch.from_numpy(values), count)

        def laid(parts: list[np.ndarray]) -> torch.Tensor:
            sequences = np.split(np.concatenate(parts), np.cumsum(sizes)[:-1])
            return torch.from_numpy(np.concatenate([sequences[i] for i in by_length]))

        tokens, segments = laid([e.ids for e in items]), laid([e.segments for e in items])
        return Batch(Inputs(tokens, layout, segments), {self.head_name: targets}, layout.num_tokens), order

    def num_rows(self, encoded: EncodedExample) -> int:
        """How many rows of scores an example takes."""
        if self.task_type == "choice":
            return len(encoded.sequence_lengths)
        if self.task_type == "span":
            return len(encoded.ids)
        return len(encoded.positions) if self.task_type == "tagging" else 1

    def decode(self, logits: np.ndarray, example: Example, best_labels: np.ndarray | None = None) -> Prediction:
        """An example's scores, [num_rows, labels] or a number alone, as a prediction; `best_labels` if it is not the
        highest.

        Words that were cut off get the tag of words outside of everything (O, else the first and most
        frequent), so that no word is ever lost.
        """
        if self.task_type == "regression":
            return Prediction(number=float(logits[0, 0]))
        logits = logits.T if self.task_type == "choice" else logits
        shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
        probabilities = shifted / shifted.sum(-1, keepdims=True)
        best_labels = probabilities.argmax(-1) if best_labels is None or self.task_type != "tagging" else best_labels
        if self.task_type != "tagging":
            labels = [str(i) for i in range(len(probabilities[0]))] if self.task_type == "choice" else self.labels
            return Prediction(labels[best_labels[0]], dict(zip(labels, probabilities[0].tolist())))
        num_truncated = len(example.words or ()) - len(logits)
        outside = "O" if "O" in self.labels else self.labels[0]
        tags = (*(self.labels[i] for i in best_labels), *[outside] * num_truncated)
        return Prediction(
            tags=tags,
            tag_probabilities=(
                *probabilities[np.arange(len(best_labels)), best_labels].tolist(),
                *[None] * num_truncated,
            ),
        )

    def _encode_target(self, example: Example, label_ids: dict[str, int]) -> Target:
        if self.task_type == "coreference":
            return gold_mentions(example)
        gold_labels = example.tags if self.task_type == "tagging" else example.label
        if gold_labels is None or self.task_type == "regression":
            number = None if gold_labels is None else parse_float(gold_labels, example.location)
            return (
                self.text_template.nearest_number_index(number) if self.text_template and number is not None else number
            )
        if self.task_type == "choice":
            return int(example.label or 0)
        for label in gold_labels if isinstance(gold_labels, tuple) else (gold_labels,):
            if label not in label_ids:
                suggestion = suggest(label, label_ids)
                raise DataError(f"{example.location}: the label {label!r} was never seen in training; {suggestion}")
        return (
            label_ids[gold_labels]
            if isinstance(gold_labels, str)
            else np.array([label_ids[tag] for tag in gold_labels])
        )

    def _encode_texts(
        self, examples: Sequence[Example], targets: Sequence[Target], tokenizer: Tokenizer, max_len: int
    ) -> list[tuple[EncodedExample, int]]:
        texts = [text for e in examples for pair in self._sequences(e) for text in pair if text is not None]
        ids = iter(tokenizer.encode_batch(texts))
        encoded_with_sizes = []
        for example, target in zip(examples, targets):
            parts, longest = [], 0
            for _, second_text in self._sequences(example):
                first = next(ids).tolist()
                second = None if second_text is None else next(ids).tolist()
                size = len(add_special_tokens(tokenizer, first, second)[0])
                _truncate_longer(first, second, size - max_len)
                parts.append(add_special_tokens(tokenizer, first, second))
                longest = max(longest, size)
            token_ids, segments = (list(chain.from_iterable(part)) for part in zip(*parts))
            lengths = tuple(len(part) for part, _ in parts) if len(parts) > 1 else ()
            encoded_with_sizes.append((_make_encoded(token_ids, segments, np.arange(0), target, lengths), longest))
        return encoded_with_sizes

    def _sequences(self, example: Example) -> list[tuple[str, str | None]]:
        """The texts of each sequence that an example is read as."""
        text = _require_field(example, example.text, "text")
        if self.task_type == "choice":
            return [(text, choice) for choice in _require_field(example, example.choices, "choices")]
        second_text = example.pair
        if self.task_type in ("pair", "span") or self.symmetric_pairs:
            second_text = _require_field(
                example, second_text, "question" if self.task_type == "span" else "second text"
            )
        return (
            [(text, second_text), (second_text, text)]
            if self.symmetric_pairs and second_text
            else [(text, second_text)]
        )


def _encode_words(example: Example, target: Target, tokenizer: Tokenizer, max_len: int) -> tuple[EncodedExample, int]:
    """Words as pieces, and where each word's first piece is.

    The word that the tags are about comes first, as a text of its own (as Shi and Lin 2019 put it behind; a causal
    model must have read it before), and stands between two marks in its sentence, where its like may stand too.
    """
    words = _require_field(example, example.words, "words")
    pieces, word_index = encode_words(tokenizer, words)
    positions = np.searchsorted(word_index, np.arange(len(words)))
    predicate_ids: list[int] | None = None
    if example.predicate is not None:
        predicate_index = example.predicate[0]
        bounds = np.searchsorted(word_index, [predicate_index, predicate_index + 1])
        predicate_ids = pieces[bounds[0] : bounds[1]].tolist()
        pieces = np.insert(pieces, bounds, separator_id(tokenizer))
        positions[predicate_index:] += 1
        positions[predicate_index + 1 :] += 1

    def around(piece_ids: list[int]) -> tuple[list[int], list[int]]:
        return (
            tokenizer.build_inputs_with_special_tokens(piece_ids)
            if predicate_ids is None
            else add_special_tokens(tokenizer, predicate_ids, piece_ids)
        )

    frame = around([-1])[0]
    room = max(max_len - len(frame) + 1, 0)
    positions = frame.index(-1) + positions[positions < room]
    ids, segments = around(pieces[:room].tolist())
    word_targets = target[: len(positions)] if isinstance(target, np.ndarray) else None
    return _make_encoded(ids, segments, positions, word_targets), len(pieces) + len(frame) - 1


def _make_encoded(
    ids: list[int], segments: list[int], positions: np.ndarray, target: Target, lengths: tuple[int, ...] = ()
) -> EncodedExample:
    return EncodedExample(np.array(ids, dtype=np.int64), np.array(segments, dtype=np.int64), positions, target, lengths)


def _truncate_longer(first: list[int], second: list[int] | None, excess: int) -> None:
    """Drop tokens from the end, one by one, always of the longer side, as BERT's code does."""
    for _ in range(excess):
        (first if second is None or len(first) > len(second) else second).pop()


def _require_field(example: Example, value: Any, field_name: str) -> Any:
    if value is None:
        raise DataError(f"{example.location}: there is no {field_name}, which this task reads")
    return value
