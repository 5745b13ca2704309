"""Log-probabilities of texts, last words, and choices, by a causal or a masked language model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.inference.candidates import encode_candidates, score_candidates
from polyseme.inference.cloze import MaskedSpan, candidate_spans, mask_span, score_masked_spans
from polyseme.inference.packed_model import PackedModel
from polyseme.inference.results import ChoiceResult, LastWordScore, TextScore
from polyseme.progress import progress

NORMALIZATIONS = ("none", "length", "unconditional")


def score_causal(packed: PackedModel, texts: Sequence[str], head: str) -> list[TextScore]:
    """Score each text by predicting every token from those before it, or with the head `previous` from those after."""
    is_backward = head == "previous"
    sequences = []
    for text in texts:
        ids = packed.encode_sequence(text)[0]
        row = np.array([*ids, *packed.eos_ids] if is_backward else [*packed.bos_ids, *ids])
        packed.check_length(len(row) - 1, text)
        if len(row) < 2:
            raise DataError(f"{text!r} is a single token, and there is no token before it to predict it from")
        sequences.append(row)
    # the last token (backward: the first) predicts nothing, so it is not read
    inputs, targets = [row[:-1] for row in sequences], [row[1:] for row in sequences]
    if is_backward:
        inputs, targets = targets, inputs
    positions = [np.arange(len(row)) for row in inputs]
    return [score for score, _ in packed.score_positions(head, inputs, positions, targets)]


def score_masked(packed: PackedModel, texts: Sequence[str]) -> list[TextScore]:
    """Score each text by masking one token at a time (pseudo-log-likelihood; Salazar et al. 2020, §2)."""
    num_prefix = packed.tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
    num_special = packed.tokenizer.num_special_tokens_to_add()
    scores = []
    with progress("score", len(texts), "texts", show=len(texts) > 20) as bar:
        for text in texts:
            ids, segments = packed.encode_sequence(text)
            positions = num_prefix + np.arange(len(ids) - num_special)
            span_scores = score_masked_spans(packed, [MaskedSpan(ids, segments, i) for i in positions[:, None]])
            scores.append(TextScore(math.fsum(score.log_prob for score, _ in span_scores), len(positions)))
            bar.advance(1)
    return scores


def score_last_words(packed: PackedModel, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]:
    """Score last words by a causal model; a context that is too long loses its start."""
    num_bos = len(packed.bos_ids)
    sequences, answer_starts, num_truncated = [], [], []
    for context, word in texts:
        candidates = encode_candidates(packed, context.rstrip() + " ", [word], check_length=False)
        row, answer_start = candidates.sequences[0], candidates.answer_starts[0]
        excess = max(len(row) - 1 - packed.max_len, 0)
        if answer_start - excess < 1 + num_bos:
            raise DataError(f"the word {word!r} alone is longer than the model reads ({packed.max_len} tokens)")
        sequences.append(np.delete(row, np.s_[num_bos : num_bos + excess]))
        answer_starts.append(answer_start - excess)
        num_truncated.append(excess)
    inputs = [row[:-1] for row in sequences]
    positions = [np.arange(start - 1, len(row)) for start, row in zip(answer_starts, inputs)]
    targets = [row[start:] for start, row in zip(answer_starts, sequences)]
    scores = packed.score_positions("next", inputs, positions, targets)
    return [LastWordScore(*score, excess) for score, excess in zip(scores, num_truncated)]


def score_masked_last_words(packed: PackedModel, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]:
    """Score last words by a masked model: one mask per token of the word, all masked at once."""
    spans = [mask_span(packed.tokenizer, context.rstrip() + " ", word, "", packed.max_len) for context, word in texts]
    return [LastWordScore(*score, span.num_truncated) for score, span in zip(score_masked_spans(packed, spans), spans)]


def rank_choices(
    packed: PackedModel,
    questions: Sequence[tuple[str, Sequence[str]]],
    normalization: str,
    context: str,
    is_masked_lm: bool,
) -> list[ChoiceResult]:
    """Rank the choices of each prompt by their normalized log-probability."""
    supported = NORMALIZATIONS[: 2 if is_masked_lm else 3]
    if normalization not in supported:
        raise ConfigError(f"normalization is {normalization!r}; {suggest(normalization, supported)}")
    if is_masked_lm:
        spans = [candidate_spans(packed.tokenizer, *question, packed.max_len) for question in questions]
        span_scores = iter(score_masked_spans(packed, [span for group in spans for span in group]))
        scores = [tuple(next(span_scores)[0] for _ in group) for group in spans]
    else:
        unconditional = [(context, choices) for _, choices in questions] if normalization == "unconditional" else []
        candidates = [encode_candidates(packed, *question) for question in (*questions, *unconditional)]
        scores = score_candidates(packed.model, candidates, packed.max_batch_tokens)
    results = []
    for i, choice_scores in enumerate(scores[: len(questions)]):
        values = [score.log_prob for score in choice_scores]
        if normalization == "length":
            values = [score.log_prob / score.num_tokens for score in choice_scores]
        elif normalization == "unconditional":
            values = [v - score.log_prob for v, score in zip(values, scores[len(questions) + i])]
        results.append(ChoiceResult(int(np.argmax(values)), tuple(values), choice_scores))
    return results
