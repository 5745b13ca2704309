"""Windows over words: how a network over features reads a question and a text, as `windows` is for tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from polyseme.errors import DataError
from polyseme.finetuning.feature_extraction import WORD_PATTERN, Sentence
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.examples import Example
from polyseme.tasks.spans import ExtractiveQAConfig, gold_char_span, gold_token_span, slide_window

MAX_CONTEXT_WORDS = 400  # of the context at a time: as many as Seo et al. 2017 learn from


def word_level_windows(
    example: Example,
    texts: Sequence[Sentence],
    text_offsets: Mapping[Sentence, int],
    example_index: int,
    max_words: int,
    config: ExtractiveQAConfig,
    use_labels: bool,
) -> Iterator[EncodedExample]:
    """Each window of an example: words of its context, then the question, the first word of which is "no answer".

    `text_offsets` says where a text begins in the store, so that windows and questions share what is kept of a context.
    """
    context, question = texts
    if use_labels and example.answers is None:
        raise DataError(f"{example.location}: there is no label")
    question_ids = text_offsets[question] + np.arange(len(question))
    word_offsets = np.array([m.span() for m in WORD_PATTERN.finditer(example.text or "")], dtype=np.int64)
    gold_span = gold_char_span(example) if use_labels else None
    chunks = [(text_offsets[context] + np.arange(len(context)), word_offsets)]
    for place, ids, offsets in slide_window(chunks, max_words, min(config.doc_stride, max(max_words // 2, 1))):
        yield EncodedExample(
            np.concatenate([ids, question_ids]),
            np.repeat([0, 1], [len(ids), len(question_ids)]),
            np.arange(len(ids)),
            gold_token_span(gold_span, place, offsets, 0, len(ids)),
            example_index=example_index,
            offsets=offsets,
            null_position=len(ids),
            restrict_to_context=True,
        )
