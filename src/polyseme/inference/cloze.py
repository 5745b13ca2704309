"""Masked spans of a text and their log-probability: cloze questions, last words, and pseudo-log-likelihood
(Salazar et al. 2020, §2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import DataError, UnsupportedError
from polyseme.inference.packed_model import PackedModel
from polyseme.inference.results import TextScore

if TYPE_CHECKING:
    from polyseme.text.tokenizer import Tokenizer

GAP_PATTERN = r"_{2,}|(?<!\w)_(?!\w)|@placeholder"  # how data sets write a gap, besides the mask token


@dataclass(frozen=True, eq=False)
class MaskedSpan:
    """A sequence with its special tokens, and the places of which all tokens are hidden at once. Of the text
    `num_truncated` tokens were left out."""

    ids: np.ndarray
    segments: np.ndarray
    positions: range
    num_truncated: int = 0


def candidate_spans(tokenizer: Tokenizer, prompt: str, choices: Sequence[str], max_len: int) -> list[MaskedSpan]:
    """Put each choice into the gap of the prompt, or at its end if it has none; several gaps are an error."""
    if isinstance(choices, str) or not choices:
        raise DataError(f"choices is {choices!r}, expected a list of answers")
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
    """Encode a word in its context. A text that is too long loses its start, and its end if necessary."""
    word_start = len(before)
    ids, offsets = tokenizer.encode_with_offsets(before + word + after)
    span_tokens = [i for i, (a, b) in enumerate(offsets) if b > word_start and a < word_start + len(word)]
    if not span_tokens or not word.strip():
        raise DataError(f"the answer {word!r} has no tokens")
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


def score_masked_spans(packed: PackedModel, spans: Sequence[MaskedSpan]) -> list[tuple[TextScore, bool]]:
    """Score the tokens of each span with all of them masked; and whether each of them is the model's first choice."""
    mask_id = packed.tokenizer.special_token_ids.mask
    if mask_id is None:
        raise UnsupportedError("the tokenizer has no mask token, which masked prediction needs")
    masked_ids = []
    for span in spans:
        span_ids = span.ids.copy()
        span_ids[span.positions.start : span.positions.stop] = mask_id
        masked_ids.append(span_ids)
    scores: list[tuple[TextScore, bool]] = [(TextScore(0.0, 0), False)] * len(spans)
    for batch in packed.batches(masked_ids, [span.segments for span in spans]):
        batch_spans = [spans[i] for i in batch.index]
        starts = batch.layout.cu_seqlens.tolist()
        rows = np.concatenate([start + np.array(span.positions) for start, span in zip(starts, batch_spans)])
        log_probs = packed.masked_log_probs(batch, torch.from_numpy(rows))
        targets = np.concatenate([span.ids[span.positions.start : span.positions.stop] for span in batch_spans])
        sizes = [len(span.positions) for span in batch_spans]
        for i, score in zip(batch.index, score_targets(log_probs, targets, sizes)):
            scores[i] = score
    return scores


def score_targets(log_probs: Tensor, targets: np.ndarray, sizes: Sequence[int]) -> list[tuple[TextScore, bool]]:
    """Score consecutive groups of target tokens, given log-probabilities [targets, vocabulary]."""
    target_ids = torch.from_numpy(targets).to(log_probs.device)
    target_log_probs = log_probs.gather(1, target_ids[:, None])[:, 0].double().cpu().split(list(sizes))
    is_first_choice = (log_probs.argmax(-1) == target_ids).cpu().split(list(sizes))
    groups = zip(target_log_probs, is_first_choice)
    return [(TextScore(float(part.sum()), len(part)), bool(is_correct.all())) for part, is_correct in groups]
