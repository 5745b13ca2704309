"""Windows over words: how a network over features reads a question and a text, as `windows` is for tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from polyseme.errors import UserError
from polyseme.finetuning.feature_extraction import PIECE, Sentence
from polyseme.tasks.encoded import Encoded
from polyseme.tasks.examples import Example
from polyseme.tasks.spans import SpanSpec, slide, target_of, truth_of

WORDS = 400  # of the context at a time: as many as Seo et al. 2017 learn from


def word_windows(
    example: Example,
    texts: Sequence[Sentence],
    places: Mapping[Sentence, int],
    number: int,
    size: int,
    spec: SpanSpec,
    labelled: bool,
) -> Iterator[Encoded]:
    """Each window of an example: words of its context, then the question, the first word of which is "no answer".

    `places` says where a text begins in the store, so that windows and questions share what is kept of a context.
    """
    context, question = texts
    if labelled and example.answers is None:
        raise UserError(f"{example.where}: there is no label")
    asked = places[question] + np.arange(len(question))
    covered = np.array([m.span() for m in PIECE.finditer(example.text or "")], dtype=np.int64)
    truth = truth_of(example) if labelled else None
    whole = [(places[context] + np.arange(len(context)), covered)]
    for place, ids, offsets in slide(whole, size, min(spec.stride, max(size // 2, 1))):
        yield Encoded(
            np.concatenate([ids, asked]),
            np.repeat([0, 1], [len(ids), len(asked)]),
            np.arange(len(ids)),
            target_of(truth, place, offsets, 0, len(ids)),
            of=number,
            offsets=offsets,
            null=len(ids),
            apart=True,
        )
