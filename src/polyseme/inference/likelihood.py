"""Log-probabilities of texts, in batches of many texts.

One rule for all models: a score covers the tokens of the text, and nothing that the model adds to it. A start token is
read and not predicted, and the end of the text is neither predicted nor counted. A causal model without a start token
(GPT, 2018) does not predict its first token, which is then not counted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, TextError, UnsupportedError, suggest
from polyseme.inference.packed_model import PackedModel, device_batches, to_host_async
from polyseme.inference.results import TextScore
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.objectives.packing import local_positions
from polyseme.text.cached_encoder import concat_ranges
from polyseme.train.loop import prefetch

PLLMetric = Literal["original", "within_word_l2r"]
PLL_METRICS = ("original", "within_word_l2r")
TEXTS_PER_WINDOW = 8192  # bounds the memory of masked copies


Spans = Sequence[tuple[int, int]] | None  # the characters of each text that are scored, given the rest; None: all


def score_causal(packed: PackedModel, texts: Sequence[str], head: str, spans: Spans = None) -> list[TextScore]:
    """Score each text by predicting every token from those before it, or with the head `previous` from those after."""
    is_backward = head == "previous"
    boundary = packed.eos_ids if is_backward else packed.bos_ids
    # the last token (backward: the first) predicts nothing, so it is not read
    inputs, targets = [], []
    for text, ids in zip(texts, encode_texts(packed, texts)):
        row = np.array([*ids, *boundary] if is_backward else [*boundary, *ids])
        packed.check_length(len(row) - 1, text)
        if len(row) < 2:
            raise TextError(f"{text!r} is a single token, and there is no token before it to predict it from", text)
        inputs.append(row[1:] if is_backward else row[:-1])
        targets.append(row[:-1] if is_backward else row[1:])
    positions = [np.arange(len(row)) for row in inputs]
    predicted = [(0, len(text)) for text in texts]
    if not boundary:  # the first token (backward: the last) is not predicted
        predicted = [_cut_first_token(packed, text, is_backward) for text in texts]
    if spans is not None:
        selected = [select_tokens(packed, text, span) for text, span in zip(texts, spans)]
        if not boundary:
            selected = [mask[:-1] if is_backward else mask[1:] for mask in selected]
        for text, mask in zip(texts, selected):
            if not mask.any():
                raise TextError(f"the model does not predict the first token, which alone is scored: {text!r}", text)
        positions = [index[mask] for index, mask in zip(positions, selected)]
        targets = [row[mask] for row, mask in zip(targets, selected)]
        predicted = [(max(a, start), min(b, end)) for (a, b), (start, end) in zip(predicted, spans)]
    num_characters = [end - start for start, end in predicted]
    scores = [score for score, _ in packed.score_positions(head, inputs, positions, targets)]
    return [replace(score, num_characters=count) for score, count in zip(scores, num_characters)]


def _cut_first_token(packed: PackedModel, text: str, is_backward: bool) -> tuple[int, int]:
    """Return the characters of a text without its first token, or when it is read backward, without the last."""
    offsets = packed.tokenizer.encode_with_offsets(text)[1]
    return (0, offsets[-1][0]) if is_backward else (offsets[0][1], len(text))


def score_masked(
    packed: PackedModel, texts: Sequence[str], pll_metric: str = "original", spans: Spans = None
) -> list[TextScore]:
    """Score each text by masking one token at a time (pseudo-log-likelihood; Salazar et al. 2020, §2).

    `within_word_l2r` also masks the later tokens of the same word, which otherwise give away the first ones of a rare
    word (Kauf and Ivanova 2023, §3).
    """
    if pll_metric not in PLL_METRICS:
        raise ConfigError(f"pll_metric is {pll_metric!r}; {suggest(pll_metric, PLL_METRICS)}")
    mask_id = packed.tokenizer.special_token_ids.mask
    if mask_id is None:
        raise UnsupportedError("the tokenizer has no mask token, which masked prediction needs")
    template = InputTemplate.of_model(packed)

    def log_probs(copies: MaskedCopies) -> Tensor:
        inputs = Inputs(copies.tokens, copies.layout, copies.segments)
        return packed.token_log_probs("masked", inputs, copies.rows, copies.targets, copies.masked)

    def build(window: Sequence[str], window_spans: Spans) -> TokenizedTexts:
        return TokenizedTexts.build(packed, window, template, window_spans, pll_metric == "within_word_l2r")

    return _score_windows(packed, map_windows(build, texts, spans), mask_id, log_probs)


def score_span_corruption(
    packed: PackedModel, texts: Sequence[str], spans: Spans, start_ids: Sequence[int], source_suffix: Sequence[int]
) -> list[TextScore]:
    """Score each text with T5 by replacing one token at a time by a sentinel, which the decoder reads before it."""
    sentinel = packed.tokenizer.sentinel_ids[0]
    prompt = torch.tensor([*start_ids, sentinel], device=packed.device)

    def log_probs(copies: MaskedCopies) -> Tensor:
        num_copies = len(copies.rows)
        layout = PackedLayout.from_lengths([len(prompt)] * num_copies, device=packed.device)
        inputs = Inputs(prompt.repeat(num_copies), layout, source=EncoderInput(copies.tokens, copies.layout))
        return packed.token_log_probs("next", inputs, layout.last_indices, copies.targets)

    def build(window: Sequence[str], window_spans: Spans) -> TokenizedTexts:
        return TokenizedTexts.build(packed, window, InputTemplate([], list(source_suffix)), window_spans)

    return _score_windows(packed, map_windows(build, texts, spans), sentinel, log_probs)


def encode_texts(packed: PackedModel, texts: Sequence[str]) -> list[np.ndarray]:
    """Encode texts without special tokens; a text without tokens is an error."""
    ids = packed.tokenizer.encode_batch(texts)
    for text, row in zip(texts, ids):
        if not len(row):
            raise TextError(f"the text has no tokens: {text!r}", text)
    return ids


def select_tokens(packed: PackedModel, text: str, span: tuple[int, int]) -> np.ndarray:
    """Return whether each token of a text covers characters of the span; at least one has to.

    A token of no characters, such as SentencePiece's ▁ before the first word, belongs to the character at its place.
    """
    starts, ends = np.array(packed.tokenizer.encode_with_offsets(text)[1]).T
    is_selected: np.ndarray = (np.maximum(ends, starts + 1) > span[0]) & (starts < span[1])
    if not is_selected.any():
        raise TextError(f"characters {span[0]} to {span[1]} of the text have no tokens: {text!r}", text)
    return is_selected


class InputTemplate(NamedTuple):
    """The token ids that a model reads before and after a text; with them, the segment of each of the three parts."""

    prefix: list[int]
    suffix: list[int]
    segments: tuple[list[int], int, list[int]] | None = None

    @classmethod
    def of_model(cls, packed: PackedModel) -> "InputTemplate":
        """Return the template of the tokenizer, with segments if the model has them."""
        ids, segments = packed.tokenizer.build_inputs_with_special_tokens([-1])
        text = ids.index(-1)
        parts = segments[:text], segments[text], segments[text + 1 :]
        return cls(ids[:text], ids[text + 1 :], parts if packed.model.config.trunk.num_segments else None)


@dataclass(frozen=True, eq=False)
class MaskedCopies:
    """A packed batch of copies of texts, the row that each predicts, its true token, and all masked rows."""

    tokens: Tensor
    layout: PackedLayout
    segments: Tensor | None
    rows: Tensor
    targets: Tensor
    masked: Tensor


@dataclass(frozen=True, eq=False)
class TokenizedTexts:
    """Texts with their special tokens as one array, and one masked copy per token of a text.

    Copy i belongs to the text `text_of_copy[i]`, predicts its token `position[i]` and masks `num_masked[i]` tokens from
    there on.
    """

    ids: np.ndarray
    segments: np.ndarray | None
    starts: np.ndarray
    lengths: np.ndarray
    num_characters: np.ndarray
    text_of_copy: np.ndarray
    position: np.ndarray
    num_masked: np.ndarray

    @classmethod
    def build(
        cls,
        packed: PackedModel,
        texts: Sequence[str],
        template: InputTemplate,
        spans: Spans = None,
        mask_rest_of_word: bool = False,
    ) -> "TokenizedTexts":
        """Encode texts, add the special tokens around each, and make a copy for each token to be scored."""
        encoded = encode_texts(packed, texts)
        num_tokens = np.array([len(row) for row in encoded], dtype=np.int64)
        prefix, suffix = (np.array(part, dtype=np.int64) for part in (template.prefix, template.suffix))
        lengths = num_tokens + len(prefix) + len(suffix)
        for i in np.flatnonzero(lengths > packed.max_len)[:1]:
            packed.check_length(int(lengths[i]), texts[i])
        ids = np.concatenate([part for row in encoded for part in (prefix, row, suffix)])
        segments = None
        if template.segments is not None:
            before, inside, after = template.segments
            segments = np.concatenate([part for n in num_tokens.tolist() for part in (before, [inside] * n, after)])
        text_of_copy, position = np.repeat(np.arange(len(texts)), num_tokens), len(prefix) + local_positions(num_tokens)
        num_masked, num_characters = np.ones_like(position), np.array(list(map(len, texts)))
        if mask_rest_of_word:
            num_masked = np.concatenate(list(map(_count_left_in_word, packed.tokenizer.word_ids(texts))))
        if spans is not None:
            selected = np.concatenate([select_tokens(packed, text, span) for text, span in zip(texts, spans)])
            text_of_copy, position, num_masked = (each[selected] for each in (text_of_copy, position, num_masked))
            num_characters = np.array([end - start for start, end in spans])
        starts = np.cumsum(lengths) - lengths
        return cls(ids, segments, starts, lengths, num_characters, text_of_copy, position, num_masked)

    def masked_copies(self, index: np.ndarray, mask_id: int) -> MaskedCopies:
        """Pack some of the copies."""
        text = self.text_of_copy[index]
        lengths = self.lengths[text]
        source = concat_ranges(self.starts[text], lengths)
        tokens = self.ids[source]
        rows = np.cumsum(lengths) - lengths + self.position[index]
        targets = tokens[rows]
        masked = concat_ranges(rows, self.num_masked[index])
        tokens[masked] = mask_id
        segments = None if self.segments is None else torch.from_numpy(self.segments[source])
        layout = PackedLayout.from_lengths(lengths)
        row_arrays = map(torch.from_numpy, (rows, targets, masked))
        return MaskedCopies(torch.from_numpy(tokens), layout, segments, *row_arrays)


def map_windows(
    build: Callable[[Sequence[str], Spans], TokenizedTexts], texts: Sequence[str], spans: Spans
) -> Iterator[TokenizedTexts]:
    """Tokenize `TEXTS_PER_WINDOW` texts at a time."""
    for start in range(0, len(texts), TEXTS_PER_WINDOW):
        part = slice(start, start + TEXTS_PER_WINDOW)
        yield build(texts[part], None if spans is None else spans[part])


def _score_windows(
    packed: PackedModel,
    windows: Iterator[TokenizedTexts],
    mask_id: int,
    log_probs: Callable[[MaskedCopies], Tensor],
) -> list[TextScore]:
    """Run the model over all masked copies and sum the log-probabilities of each text."""
    scores: list[TextScore] = []
    for encoded in prefetch(windows) if packed.device.type == "cuda" else windows:
        copy_lengths = encoded.lengths[encoded.text_of_copy]
        build = partial(encoded.masked_copies, mask_id=mask_id)
        batches = device_batches(build, copy_lengths, packed.max_batch_tokens, packed.device)
        copy_scores = np.empty(len(copy_lengths))
        for index, values in to_host_async((index, log_probs(copies)) for index, copies in batches):
            copy_scores[index] = values
        num_tokens = np.bincount(encoded.text_of_copy)
        sums = np.add.reduceat(copy_scores, np.cumsum(num_tokens) - num_tokens)
        scores += map(TextScore, sums.tolist(), num_tokens.tolist(), encoded.num_characters.tolist())
    return scores


def _count_left_in_word(word_ids: np.ndarray) -> np.ndarray:
    """Return for each token how many tokens of its word are left, itself included."""
    last, index = np.flatnonzero(np.append(np.diff(word_ids) != 0, True)), np.arange(len(word_ids))
    return last[np.searchsorted(last, index)] - index + 1
