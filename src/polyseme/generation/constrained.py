"""Generation that is restricted to known answers: the probability of each, or the best span of a text.

Free generation may end in a text that is no answer. If the answers are few, the probability of each whole answer with
its end token is exact and takes few steps. The spans of a text are too many for that, so each token is the most likely
one of those that continue a span (greedy).
"""

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
    """Return the log-probability of each answer after its prompt, float64; common prefixes are computed once."""
    answer_ids = [[tuple(int(token) for token in answer) for answer in group] for group in answers]
    if not all(group and all(group) for group in answer_ids):
        raise ValueError("every prompt has answers, and an answer has tokens")
    num_steps = max(len(answer) for group in answer_ids for answer in group)
    levels = [[_prefixes(group, depth) for group in answer_ids] for depth in range(num_steps)]
    max_prefixes = max(len(prefixes) for level in levels for prefixes in level)
    max_len = max(map(len, prompts)) + num_steps - 1
    session = start_session(model, prompts, sources, len(prompts) * max_prefixes, max_len, use_cache)
    totals = [np.zeros(len(group)) for group in answer_ids]
    for depth, level in enumerate(levels):
        rows_per_prompt = len(session.scores) // len(prompts)
        rows = [{prefix: i * rows_per_prompt + k for k, prefix in enumerate(group)} for i, group in enumerate(level)]
        pending = [
            (i, k, answer)
            for i, group in enumerate(answer_ids)
            for k, answer in enumerate(group)
            if len(answer) > depth
        ]
        prefix_rows = [rows[i][answer[:depth]] for i, _, answer in pending]
        log_probs = _token_log_probs(session, prefix_rows, [answer[depth] for _, _, answer in pending])
        for (i, k, _), log_prob in zip(pending, log_probs):
            totals[i][k] += log_prob
        if depth + 1 < num_steps:
            _advance_prefixes(session, rows, levels[depth + 1])
    return totals


def _prefixes(answers: Sequence[Prefix], depth: int) -> list[Prefix]:
    """Return the distinct first `depth` tokens of the answers that are longer."""
    return list(dict.fromkeys(answer[:depth] for answer in answers if len(answer) > depth))


def _advance_prefixes(
    session: DecodingSession, rows: Sequence[dict[Prefix, int]], level: Sequence[list[Prefix]]
) -> None:
    """Append the last token of each prefix; prompts with fewer prefixes than others get unused rows."""
    max_prefixes, rows_per_prompt = max(map(len, level)), len(session.scores) // len(rows)
    steps: list[tuple[int, int]] = []  # row, token
    for i, (previous_rows, prefixes) in enumerate(zip(rows, level)):
        steps += [(previous_rows[prefix[:-1]], prefix[-1]) for prefix in prefixes]
        steps += [(i * rows_per_prompt, 0)] * (max_prefixes - len(prefixes))
    _advance(session, [row for row, _ in steps], [token for _, token in steps])


def _advance(session: DecodingSession, row_indices: list[int], tokens: list[int]) -> None:
    is_unchanged = row_indices == list(range(len(session.scores)))
    session.advance(torch.tensor(tokens, device=session.scores.device), None if is_unchanged else row_indices)


def _token_log_probs(session: DecodingSession, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """Return the log-probability of a token after each row, with one device sync."""
    scores = session.scores.double()
    indices = torch.tensor([list(rows), list(tokens)], device=scores.device)
    return (scores[indices[0], indices[1]] - scores.logsumexp(-1).index_select(0, indices[0])).tolist()


class CopiedSpan(NamedTuple):
    """The first and last token of a span, its log-probability, and that of generating nothing."""

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
    """Generate a span of each text, of at most `max_new_tokens` tokens; the texts are not empty.

    Each token is the most likely of those that follow the span so far somewhere in the text, or the end token. A span
    that occurs several times is the first.
    """
    text_ids = [np.asarray(text, dtype=np.int64) for text in texts]
    session = start_session(model, prompts, sources, len(prompts), max(map(len, prompts)) + max_new_tokens, use_cache)
    no_answer_scores = _token_log_probs(session, range(len(prompts)), [eos_token_id] * len(prompts))
    scores, span_lengths = np.zeros(len(prompts)), [0] * len(prompts)
    next_positions = [np.arange(len(text)) for text in text_ids]  # after each occurrence of the span so far
    active = list(range(len(prompts)))
    for step in range(max_new_tokens + 1):
        continuing = {i: next_positions[i][next_positions[i] < len(text_ids[i])] for i in active}
        options = []
        for i in active:
            tokens = text_ids[i][continuing[i]].tolist() if step < max_new_tokens else []
            options.append([*dict.fromkeys(tokens), *([eos_token_id] if step else [])])
        rows = [row for row, row_tokens in enumerate(options) for _ in row_tokens]
        log_probs = iter(_token_log_probs(session, rows, [token for row_tokens in options for token in row_tokens]))
        row_indices, next_tokens = [], []
        for row, (i, row_tokens) in enumerate(zip(active, options)):
            log_prob, token = max(((next(log_probs), token) for token in row_tokens), key=lambda pair: pair[0])
            scores[i] += log_prob
            if token != eos_token_id or not step:
                next_positions[i] = continuing[i][text_ids[i][continuing[i]] == token] + 1
                span_lengths[i] += 1
                row_indices.append(row)
                next_tokens.append(token)
        if not row_indices:
            break
        active = [active[row] for row in row_indices]
        _advance(session, row_indices, next_tokens)
    ends = [int(positions[0]) for positions in next_positions]
    columns = zip(ends, span_lengths, scores.tolist(), no_answer_scores)
    return [CopiedSpan(end - size, end - 1, score, no_answer) for end, size, score, no_answer in columns]
