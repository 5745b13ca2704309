"""Masked spans of a text and their log-probabilities: cloze questions, last words, and pseudo-log-likelihood
(Salazar et al. 2020, §2)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyseme.errors import DataError, UnsupportedError
from polyseme.inference.packed_model import PackedModel
from polyseme.inference.results import TextScore
from polyseme.text.tokenizer import Tokenizer

GAP_PATTERN = r"_{2,}|(?<!\w)_(?!\w)|@placeholder"  # how data sets write a gap, besides the mask token


@dataclass(frozen=True, eq=False)
class MaskedSpan:
    """A sequence with its special tokens, and the positions that are masked together.

    `num_truncated` tokens of the text were left out.
    """

    ids: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
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
    if any(span.num_truncated for span in spans):
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
    if last - start > max_text_tokens:  # a long word near the end
        start = last - max_text_tokens
    text_ids = ids[start : start + max_text_tokens]
    input_ids, segments = tokenizer.build_inputs_with_special_tokens(text_ids)
    num_prefix = tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1) - start
    positions = np.arange(num_prefix + first, num_prefix + last)
    return MaskedSpan(np.array(input_ids), np.array(segments), positions, len(ids) - len(text_ids))


def score_masked_spans(packed: PackedModel, spans: Sequence[MaskedSpan]) -> list[tuple[TextScore, bool]]:
    """Score the tokens of each span with all of them masked, as `PackedModel.score_positions` does."""
    mask_id = packed.tokenizer.special_token_ids.mask
    if mask_id is None:
        raise UnsupportedError("the tokenizer has no mask token, which masked prediction needs")
    ids, positions = [span.ids.copy() for span in spans], [span.positions for span in spans]
    for row, masked in zip(ids, positions):
        row[masked] = mask_id
    targets = [span.ids[span.positions] for span in spans]
    return packed.score_positions("masked", ids, positions, targets, [span.segments for span in spans])
