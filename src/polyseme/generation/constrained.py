"""Answers that are known beforehand: how likely is each, and which stretch of a text is written if nothing else may be.

Free writing may end in what is no answer at all. Where the answers are few, the probability of each of them, whole and
with its end mark, is exact, costs few steps, and gives all of them in order; the stretches of a text are too many for
that, so there every token is the likeliest of those that a stretch can go on with (greedy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from polyseme.generation.session import DecodingSession, TokenIds, start_session
from polyseme.nn.model import Model

Prefix = tuple[int, ...]


@torch.inference_mode()
def score_answers(
    model: Model,
    prompts: Sequence[TokenIds],
    answers: Sequence[Sequence[TokenIds]],
    sources: Sequence[TokenIds] | None = None,
    use_cache: bool = True,
) -> list[np.ndarray]:
    """The log-probability of each answer behind its prompt, float64; what answers begin with alike is read once."""
    answer_ids = [[tuple(int(token) for token in answer) for answer in each] for each in answers]
    if not all(answer for each in answer_ids for answer in each) or not all(answer_ids):
        raise ValueError("every prompt has answers, and an answer has tokens")
    levels = [[_prefixes(each, depth) for each in answer_ids] for depth in range(max(map(len, _flatten(answer_ids))))]
    max_prefixes = max(len(each) for level in levels for each in level)
    max_len = max(map(len, prompts)) + len(levels) - 1
    session = start_session(model, prompts, sources, len(prompts) * max_prefixes, max_len, use_cache)
    totals = [np.zeros(len(each)) for each in answer_ids]
    for depth, level in enumerate(levels):
        each = len(session.scores) // len(prompts)
        rows = [{prefix: i * each + k for k, prefix in enumerate(group)} for i, group in enumerate(level)]
        pending = [
            (i, k, answer_tokens)
            for i, group in enumerate(answer_ids)
            for k, answer_tokens in enumerate(group)
            if len(answer_tokens) > depth
        ]
        log_probs = _token_log_probs(
            session,
            [rows[i][answer_tokens[:depth]] for i, _, answer_tokens in pending],
            [answer_tokens[depth] for _, _, answer_tokens in pending],
        )
        for (i, k, _), log_prob in zip(pending, log_probs):
            totals[i][k] += log_prob
        if depth + 1 < len(levels):
            _advance_prefixes(session, rows, levels[depth + 1])
    return totals


def _prefixes(answers: Sequence[Prefix], depth: int) -> list[Prefix]:
    """The first `depth` tokens of those that go on behind them."""
    return list(dict.fromkeys(answer[:depth] for answer in answers if len(answer) > depth))


def _advance_prefixes(
    session: DecodingSession, rows: Sequence[dict[Prefix, int]], level: Sequence[list[Prefix]]
) -> None:
    """Read the last token of each beginning; a prompt with fewer than others, or none, gets rows nobody asks."""
    max_prefixes, rows_per_prompt = max(map(len, level)), len(session.scores) // len(rows)
    row_indices, tokens = [], []
    for i, (previous_rows, prefixes) in enumerate(zip(rows, level)):
        steps = [(previous_rows[prefix[:-1]], prefix[-1]) for prefix in prefixes]
        steps += [(i * rows_per_prompt, 0)] * (max_prefixes - len(prefixes))
        row_indices += [row for row, _ in steps]
        tokens += [token for _, token in steps]
    is_unchanged = row_indices == list(range(len(session.scores)))
    session.advance(torch.tensor(tokens, device=session.scores.device), None if is_unchanged else row_indices)


class CopiedSpan(NamedTuple):
    """Tokens of a text from the first to the last of them, how likely they are, and how likely it is to write none."""

    first: int
    last: int
    score: float
    no_answer_score: float


@torch.inference_mode()
def extract_spans(
    model: Model,
    prompts: Sequence[TokenIds],
    texts: Sequence[TokenIds],
    max_new_tokens: int,
    eos_token_id: int,
    sources: Sequence[TokenIds] | None = None,
    use_cache: bool = True,
) -> list[CopiedSpan]:
    """Of each text, which is not empty, a stretch of at most `max_new_tokens` tokens: token by token the likeliest that
    occurs there behind those before it, or the end mark. One that occurs several times is the first."""
    text_ids = [np.asarray(text, dtype=np.int64) for text in texts]
    session = start_session(model, prompts, sources, len(prompts), max(map(len, prompts)) + max_new_tokens, use_cache)
    no_answer_scores = _token_log_probs(session, list(range(len(prompts))), [eos_token_id] * len(prompts))
    scores, span_lengths = np.zeros(len(prompts)), [0] * len(prompts)
    next_positions = [
        np.arange(len(text)) for text in text_ids
    ]  # where the stretch so far occurs: behind its last token
    alive = list(range(len(prompts)))
    for step in range(max_new_tokens + 1):
        options = []
        for i in alive:
            inner_positions = next_positions[i][next_positions[i] < len(text_ids[i])]
            options.append(
                [
                    *dict.fromkeys(text_ids[i][inner_positions].tolist() if step < max_new_tokens else []),
                    *([eos_token_id] if step else []),
                ]
            )
        rows = [row for row, row_values in enumerate(options) for _ in row_values]
        log_probs = iter(_token_log_probs(session, rows, [token for row_values in options for token in row_values]))
        row_indices, tokens = [], []
        for row, (i, row_values) in enumerate(zip(alive, options)):
            log_prob, token = max(((next(log_probs), token) for token in row_values), key=lambda pair: pair[0])
            scores[i] += log_prob
            if token != eos_token_id or not step:
                inner_positions = next_positions[i][next_positions[i] < len(text_ids[i])]
                next_positions[i], span_lengths[i] = (
                    inner_positions[text_ids[i][inner_positions] == token] + 1,
                    span_lengths[i] + 1,
                )
                row_indices.append(row)
                tokens.append(token)
        if not row_indices:
            break
        is_unchanged = len(row_indices) == len(alive)
        alive = [alive[row] for row in row_indices]
        session.advance(torch.tensor(tokens, device=session.scores.device), None if is_unchanged else row_indices)
    ends = [int(row_values[0]) for row_values in next_positions]
    return [
        CopiedSpan(e - n, e - 1, float(s), float(z)) for e, n, s, z in zip(ends, span_lengths, scores, no_answer_scores)
    ]


def _token_log_probs(session: DecodingSession, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """Log-probabilities of tokens behind rows; one wait for a GPU."""
    scores = session.scores.double()
    indices = torch.tensor([list(rows), list(tokens)], device=scores.device)
    return (scores[indices[0], indices[1]] - scores.logsumexp(-1).index_select(0, indices[0])).tolist()


def _flatten(groups: Sequence[Sequence[Prefix]]) -> list[Prefix]:
    return [answer for group in groups for answer in group]
