"""Log-probabilities of texts, last words, and choices, by a causal or a masked language model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.inference.candidates import CandidateBatch, join_prompt_answer, score_candidates
from polyseme.inference.cloze import MaskedSpan, candidate_spans, mask_span, score_masked_spans, score_targets
from polyseme.inference.packed_model import PackedModel
from polyseme.inference.results import ChoiceResult, LastWordScore, TextScore
from polyseme.progress import progress

NORMALIZATIONS = ("none", "length", "unconditional")
_ROWS_PER_SOFTMAX = 1024  # bounds the memory of [rows, vocabulary]


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
    scores: list[TextScore] = [TextScore(0.0, 0)] * len(texts)
    for batch in packed.batches(inputs):
        hidden = packed.hidden(batch)
        target_ids = torch.from_numpy(np.concatenate([targets[i] for i in batch.index])).to(packed.device)
        log_probs = torch.cat(
            [
                packed.log_probs(head, batch, hidden, rows).gather(1, target_ids[rows][:, None])[:, 0]
                for rows in torch.arange(len(target_ids), device=packed.device).split(_ROWS_PER_SOFTMAX)
            ]
        )
        for i, text_log_probs in zip(batch.index, log_probs.split(list(batch.layout.lengths))):
            scores[i] = TextScore(float(text_log_probs.double().sum()), len(text_log_probs))
    return scores


def score_masked(packed: PackedModel, texts: Sequence[str]) -> list[TextScore]:
    """Score each text by masking one token at a time (pseudo-log-likelihood; Salazar et al. 2020, §2)."""
    num_prefix = packed.tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
    num_special = packed.tokenizer.num_special_tokens_to_add()
    scores = []
    with progress("score", len(texts), "texts", show=len(texts) > 20) as bar:
        for text in texts:
            ids, segments = packed.encode_sequence(text)
            positions = range(num_prefix, num_prefix + len(ids) - num_special)
            spans = [MaskedSpan(ids, segments, range(i, i + 1)) for i in positions]
            log_probs = [score.log_prob for score, _ in score_masked_spans(packed, spans)]
            scores.append(TextScore(math.fsum(log_probs), len(positions)))
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
        sequences.append(np.concatenate([row[:num_bos], row[num_bos + excess :]]) if excess else row)
        answer_starts.append(answer_start - excess)
        num_truncated.append(excess)
    word_scores: list[LastWordScore | None] = [None] * len(texts)
    for batch in packed.batches([row[:-1] for row in sequences]):
        hidden = packed.hidden(batch)
        offsets = batch.layout.cu_seqlens.tolist()
        rows = [
            torch.arange(offsets[k] + answer_starts[i] - 1, offsets[k] + len(sequences[i]) - 1)
            for k, i in enumerate(batch.index)
        ]
        log_probs = packed.log_probs("next", batch, hidden, torch.cat(rows))
        targets = np.concatenate([sequences[i][answer_starts[i] :] for i in batch.index])
        for i, word_score in zip(batch.index, score_targets(log_probs, targets, [len(part) for part in rows])):
            word_scores[i] = LastWordScore(*word_score, num_truncated[i])
    return [word_score for word_score in word_scores if word_score is not None]


def score_masked_last_words(packed: PackedModel, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]:
    """Score last words by a masked model: one mask per token of the word, all masked at once."""
    spans = [mask_span(packed.tokenizer, context.rstrip() + " ", word, "", packed.max_len) for context, word in texts]
    scored = zip(score_masked_spans(packed, spans), spans)
    return [LastWordScore(score, is_correct, span.num_truncated) for (score, is_correct), span in scored]


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
        candidate_scores = score_candidates(packed.model, candidates, packed.max_batch_tokens)
        scores = [tuple(TextScore(*pair) for pair in pairs) for pairs in candidate_scores]
    results = []
    for i, choice_scores in enumerate(scores[: len(questions)]):
        values = [score.log_prob for score in choice_scores]
        if normalization == "length":
            values = [score.log_prob / score.num_tokens for score in choice_scores]
        elif normalization == "unconditional":
            values = [v - score.log_prob for v, score in zip(values, scores[len(questions) + i])]
        results.append(ChoiceResult(int(np.argmax(values)), tuple(values), choice_scores))
    return results


def encode_candidates(
    packed: PackedModel, prompt: str, choices: Sequence[str], check_length: bool = True
) -> CandidateBatch:
    """Encode each choice after the prompt. A space between them belongs to the first token of the choice."""
    if isinstance(choices, str) or not choices:
        raise DataError(f"choices is {choices!r}, expected a list of answers")
    num_bos = len(packed.bos_ids)
    sequences, answer_starts = [], []
    for choice in choices:
        text = join_prompt_answer(prompt, choice)
        ids, offsets = packed.tokenizer.encode_with_offsets(text)
        answer_start = next((i for i, (_, end) in enumerate(offsets) if end > len(prompt.rstrip(" "))), len(ids))
        if answer_start == len(ids) or not choice.strip():
            raise DataError(f"the choice {choice!r} has no tokens")
        if not answer_start and not num_bos:
            raise DataError(f"the choice {choice!r} needs a prompt: the model has no token that starts a text")
        if check_length:
            packed.check_length(num_bos + len(ids) - 1, text)
        sequences.append(np.array([*packed.bos_ids, *ids]))
        answer_starts.append(num_bos + answer_start)
    return CandidateBatch(sequences, answer_starts)
