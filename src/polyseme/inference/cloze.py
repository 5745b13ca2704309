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

from polyseme.errors import UserError
from polyseme.inference.batching import Packed
from polyseme.inference.results import Score

if TYPE_CHECKING:
    from polyseme.text.tokenizer import Tokenizer

WRITTEN = r"_{2,}|(?<!\w)_(?!\w)|@placeholder"  # how data sets write a gap, beside the model's own mask


@dataclass(frozen=True, eq=False)
class Gap:
    """A sequence with its special tokens, and the places of which all tokens are hidden at once. Of the text `cut`
    tokens were left out."""

    ids: np.ndarray
    segments: np.ndarray
    places: range
    cut: int = 0


def choice_gaps(tokenizer: Tokenizer, prompt: str, choices: Sequence[str], max_len: int) -> list[Gap]:
    """Each choice in the prompt's gap, or at its end if it has none. Of several it cannot be said which is meant."""
    if isinstance(choices, str) or not choices:
        raise UserError(f"choices is {choices!r}: a list of answers is needed")
    gap = f"{re.escape(tokenizer.mask_token)}|{WRITTEN}" if tokenizer.mask_token else WRITTEN
    before, *more = re.split(gap, prompt)
    if len(more) > 1:
        raise UserError(f"there are {len(more)} gaps in {prompt[:40]!r}, and one answer")
    before, after = (before, more[0].rstrip(" ")) if more else (before.rstrip(" ") + " ", "")
    found = [gap_of(tokenizer, before, choice, after, max_len) for choice in choices]
    if any(gap.cut for gap in found):
        raise UserError(f"a text of more than {max_len} tokens is longer than the model reads: {prompt[:40]!r}…")
    return found


def gap_of(tokenizer: Tokenizer, before: str, word: str, after: str, max_len: int) -> Gap:
    """The word in its place, as pieces. What is too long loses its beginning, and if need be its end."""
    begin = len(before)
    ids, offsets = tokenizer.encode_with_offsets(before + word + after)
    inside = [i for i, (a, b) in enumerate(offsets) if b > begin and a < begin + len(word)]
    if not inside or not word.strip():
        raise UserError(f"there is nothing to read in the answer {word!r}")
    first, last = inside[0], inside[-1] + 1
    room = max_len - tokenizer.num_added()
    if last - first > room:
        raise UserError(f"{word[:40]!r} alone is longer than the model reads")
    start = min(max(len(ids) - room, 0), first)
    kept = ids[start : start + room]
    if last - start > room:  # the gap is long and stands late
        start = last - room
        kept = ids[start:last]
    wrapped, segments = tokenizer.wrap(kept)
    lead = tokenizer.wrap([-1])[0].index(-1) - start
    return Gap(np.array(wrapped), np.array(segments), range(lead + first, lead + last), len(ids) - len(kept))


def gap_scores(
    gaps: Sequence[Gap],
    mask: int | None,
    pack: Callable[[list[np.ndarray], list[np.ndarray]], Iterator[Packed]],
    blind: Callable[[Packed, Tensor], Tensor],
) -> list[tuple[Score, bool]]:
    """How likely the hidden tokens are, each from all that is not hidden; and whether each was the likeliest.

    `pack` puts sequences into bins; `blind` says of rows of one what may stand there, [rows, vocabulary].
    """
    if mask is None:
        raise UserError("the tokenizer has no mask: gaps cannot be shown to the model")
    hidden = []
    for gap in gaps:
        copy = gap.ids.copy()
        copy[gap.places.start : gap.places.stop] = mask
        hidden.append(copy)
    found: list[tuple[Score, bool]] = [(Score(0.0, 0), False)] * len(gaps)
    for packed in pack(hidden, [gap.segments for gap in gaps]):
        mine = [gaps[i] for i in packed.index]
        starts = packed.layout.starts.tolist()
        rows = np.concatenate([start + np.array(gap.places) for start, gap in zip(starts, mine)])
        chances = blind(packed, torch.from_numpy(rows))
        truth = torch.from_numpy(np.concatenate([gap.ids[gap.places.start : gap.places.stop] for gap in mine]))
        truth = truth.to(chances.device)
        sizes = [len(gap.places) for gap in mine]
        worth = chances.gather(1, truth[:, None])[:, 0].double().cpu().split(sizes)
        right = (chances.argmax(-1) == truth).cpu().split(sizes)
        for i, part, best in zip(packed.index, worth, right):
            found[i] = Score(float(part.sum()), len(part)), bool(best.all())
    return found
