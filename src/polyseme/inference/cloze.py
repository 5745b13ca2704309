"""Gaps in a text, and how likely a masked model finds what stands in them: cloze questions, last words, and the
pseudo-likelihood of a text, whose tokens are one gap each (Salazar et al. 2020, §2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import DataError, UnsupportedError
from polyseme.inference.batching import PackedBatch
from polyseme.inference.results import TextScore

if TYPE_CHECKING:
    from polyseme.text.tokenizer import Tokenizer

GAP_PATTERN = r"_{2,}|(?<!\w)_(?!\w)|@placeholder"  # how data sets write a gap, beside the model's own mask


@dataclass(frozen=True, eq=False)
class MaskedSpan:
    """A sequence with its special tokens, and the places of which all tokens are hidden at once. Of the text
    `num_truncated` tokens were left out."""

    ids: np.ndarray
    segments: np.ndarray
    positions: range
    num_truncated: int = 0


def candidate_spans(tokenizer: Tokenizer, prompt: str, choices: Sequence[str], max_len: int) -> list[MaskedSpan]:
    """Each choice in the prompt's gap, or at its end if it has none. Of several it cannot be said which is meant."""
    if isinstance(choices, str) or not choices:
        raise DataError(f"choices is {choices!r}: a list of answers is needed")
    gap = f"{re.escape(tokenizer.mask_token)}|{GAP_PATTERN}" if tokenizer.mask_token else GAP_PATTERN
    before, *after_gaps = re.split(gap, prompt)
    if len(after_gaps) > 1:
        raise DataError(f"there are {len(after_gaps)} gaps in {prompt[:40]!r}, and one answer")
    before, after = (before, after_gaps[0].rstrip(" ")) if after_gaps else (before.rstrip(" ") + " ", "")
    spans = [mask_span(tokenizer, before, choice, after, max_len) for choice in choices]
    if any(gap.num_truncated for gap in spans):
        raise DataError(f"a text of more than {max_len} tokens is longer than the model reads: {prompt[:40]!r}…")
    return spans


def mask_span(tokenizer: Tokenizer, before: str, word: str, after: str, max_len: int) -> MaskedSpan:
    """The word in its place, as pieces. What is too long loses its beginning, and if need be its end."""
    word_start = len(before)
    ids, offsets = tokenizer.encode_with_offsets(before + word + after)
    span_tokens = [i for i, (a, b) in enumerate(offsets) if b > word_start and a < word_start + len(word)]
    if not span_tokens or not word.strip():
        raise DataError(f"there is nothing to read in the answer {word!r}")
    first, last = span_tokens[0], span_tokens[-1] + 1
    max_text_tokens = max_len - tokenizer.num_special_tokens_to_add()
    if last - first > max_text_tokens:
        raise DataError(f"{word[:40]!r} alone is longer than the model reads")
    start = min(max(len(ids) - max_text_tokens, 0), first)
    kept_ids = ids[start : start + max_text_tokens]
    if last - start > max_text_tokens:  # the gap is long and stands late
        start = last - max_text_tokens
        kept_ids = ids[start:last]
    input_ids, segments = tokenizer.build_inputs_with_special_tokens(kept_ids)
    num_prefix = tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1) - start
    return MaskedSpan(
        np.array(input_ids), np.array(segments), range(num_prefix + first, num_prefix + last), len(ids) - len(kept_ids)
    )


def score_masked_spans(
    spans: Sequence[MaskedSpan],
    mask_id: int | None,
    make_batches: Callable[[list[np.ndarray], list[np.ndarray]], Iterator[PackedBatch]],
    masked_log_probs: Callable[[PackedBatch, Tensor], Tensor],
) -> list[tuple[TextScore, bool]]:
    """How likely the hidden tokens are, each from all that is not hidden; and whether each was the likeliest.

    `make_batches` puts sequences into bins; `masked_log_probs` says of rows of one what may stand there,
    [rows, vocabulary].
    """
    if mask_id is None:
        raise UnsupportedError("the tokenizer has no mask: gaps cannot be shown to the model")
    masked_ids = []
    for span in spans:
        span_ids = span.ids.copy()
        span_ids[span.positions.start : span.positions.stop] = mask_id
        masked_ids.append(span_ids)
    scores: list[tuple[TextScore, bool]] = [(TextScore(0.0, 0), False)] * len(spans)
    for batch in make_batches(masked_ids, [span.segments for span in spans]):
        batch_spans = [spans[i] for i in batch.index]
        starts = batch.layout.cu_seqlens.tolist()
        rows = np.concatenate([start + np.array(span.positions) for start, span in zip(starts, batch_spans)])
        log_probs = masked_log_probs(batch, torch.from_numpy(rows))
        targets = torch.from_numpy(
            np.concatenate([span.ids[span.positions.start : span.positions.stop] for span in batch_spans])
        )
        targets = targets.to(log_probs.device)
        sizes = [len(span.positions) for span in batch_spans]
        target_log_probs = log_probs.gather(1, targets[:, None])[:, 0].double().cpu().split(sizes)
        is_correct = (log_probs.argmax(-1) == targets).cpu().split(sizes)
        for i, span_log_probs, span_correct in zip(batch.index, target_log_probs, is_correct):
            scores[i] = TextScore(float(span_log_probs.sum()), len(span_log_probs)), bool(span_correct.all())
    return scores
