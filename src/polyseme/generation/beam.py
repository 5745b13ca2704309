"""Beam search: the likeliest whole texts, found by keeping the best few beginnings at every step.

At each step the candidates of a sentence are ranked. Of the first `num_beams`, those that end are set aside for good;
the best `num_beams` that do not end go on. Compared are log-probabilities by length to the power of `length_penalty`
(Wu et al. 2016, §7, without its constant): 0 compares them as they are, above 0 favours long texts.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from polyseme.config import check_in_range
from polyseme.errors import ConfigError
from polyseme.generation.sample import Hypothesis, per_prompt_limits
from polyseme.generation.session import AutoregressiveModel, DecodingSession, TokenIds, start_session
from polyseme.generation.topk import fast_topk
from polyseme.nn.model import Model


class BeamNode(NamedTuple):
    """A token in the tree of a search: which node it follows (-1 is the prompt), and the score up to it."""

    parent: int
    token: int
    score: float


@dataclass(eq=False)
class BeamResult:
    """The best texts of one sentence, best first, and the tree they were found in."""

    hypotheses: list[Hypothesis]
    nodes: list[BeamNode]


@dataclass(eq=False)
class _BeamState:
    """One sentence of a search: its tree, the nodes that go on, and what has ended, best first."""

    prompt_index: int
    nodes: list[BeamNode] = field(default_factory=list)
    running: list[int] = field(default_factory=lambda: [-1])
    finished: list[tuple[float, int, bool]] = field(default_factory=list)  # (− value, node, by the end mark)

    def add(self, parent: int, token: int, score: float) -> int:
        self.nodes.append(BeamNode(self.running[parent], token, score))
        return len(self.nodes) - 1

    def best_hypotheses(self, num_return_sequences: int) -> list[Hypothesis]:
        hypotheses = []
        for negative_score, node, has_eos in self.finished[:num_return_sequences]:
            tokens, ancestor = [], node
            while ancestor >= 0:
                tokens.append(self.nodes[ancestor].token)
                ancestor = self.nodes[ancestor].parent
            token_ids = tuple(tokens[:0:-1] if has_eos else tokens[::-1])
            hypotheses.append(Hypothesis(token_ids, self.nodes[node].score, has_eos, -negative_score))
        return hypotheses


@torch.inference_mode()
def beam_search(
    model: Model | AutoregressiveModel,
    prompts: Sequence[TokenIds],
    max_new_tokens: int | Sequence[int],
    num_beams: int = 4,
    length_penalty: float = 1.0,
    num_return_sequences: int = 1,
    sources: Sequence[TokenIds] | None = None,
    eos_token_ids: Collection[int] = (),
    suppress_tokens: Collection[int] = (),
    stop_early: bool = True,
    use_cache: bool = True,
    patience: float = 0.0,
) -> list[BeamResult]:
    """The best `num_return_sequences` texts of at most `max_new_tokens` tokens (or each its own) behind each prompt, of
    the beams of a given width.

    A sentence is done as soon as no beginning that is left can come among its best: a score only falls, so none gets
    above what it has, over the length that is kindest to it. With `stop_early` off it goes on to `max_new_tokens`, to
    the same result. With a `patience` it is done too when num_beams × patience texts have ended (Kasai et al. 2022,
    §2): many tools stop so, with 1; it takes fewer steps and may miss a better text.
    """
    if num_beams < 1 or not 1 <= num_return_sequences <= num_beams:
        raise ConfigError(
            f"num_beams is {num_beams} and num_return_sequences is {num_return_sequences}: "
            "a beam has 1 text or more, and gives at most all of them"
        )
    token_limits = per_prompt_limits(max_new_tokens, len(prompts))
    if not math.isfinite(length_penalty):
        raise ConfigError(f"the length penalty is {length_penalty}, expected a number")
    check_in_range("patience", patience, 0, math.inf)
    if not prompts:
        return []
    states = [_BeamState(i) for i in range(len(prompts))]
    max_len = max(map(len, prompts)) + max(token_limits)
    session = start_session(model, prompts, sources, len(prompts) * num_beams, max_len, use_cache)
    alive: list[_BeamState | None] = list(states)
    running_scores = torch.zeros(len(prompts), 1, dtype=torch.float64, device=session.scores.device)
    suppressed = torch.tensor(list(suppress_tokens), dtype=torch.int64, device=running_scores.device)
    for step in range(max(token_limits)):
        candidates = _rank_candidates(session, running_scores, (1 + max(len(eos_token_ids), 1)) * num_beams, suppressed)
        continuations: list[list[tuple[int, int, float]]] = []  # of each sentence: parent, token, score
        for i, state in enumerate(alive):
            continuations.append([])
            if state is not None:
                max_length = token_limits[state.prompt_index]
                continuations[i] = _extend(
                    state, candidates[i], num_beams, eos_token_ids, step + 1, max_length, length_penalty
                )
                num_needed = max(num_return_sequences, round(num_beams * patience)) if patience else math.inf
                if len(state.finished) >= num_needed or _is_done(
                    state,
                    continuations[i],
                    num_return_sequences,
                    num_beams,
                    step + 1,
                    max_length,
                    length_penalty,
                    stop_early,
                ):
                    alive[i] = None
        unfinished = [i for i, state in enumerate(alive) if state is not None]
        if not unfinished:
            break
        kept_prompts = unfinished if session.should_compact(len(alive), len(unfinished)) else list(range(len(alive)))
        parents, tokens, scores = [], [], []
        rows_per_prompt = running_scores.shape[1]
        for i in kept_prompts:
            padded = [*continuations[i], *[(0, 0, -math.inf)] * (num_beams - len(continuations[i]))]
            parents += [i * rows_per_prompt + parent for parent, _, _ in padded]
            tokens += [token for _, token, _ in padded]
            scores += [score for _, _, score in padded]
        alive = [alive[i] for i in kept_prompts]
        running_scores = torch.tensor(scores, dtype=torch.float64, device=running_scores.device).view(
            len(kept_prompts), num_beams
        )
        is_unchanged = parents == list(range(session.scores.shape[0]))
        session.advance(torch.tensor(tokens, device=running_scores.device), None if is_unchanged else parents)
    return [BeamResult(state.best_hypotheses(num_return_sequences), state.nodes) for state in states]


def _rank_candidates(
    session: DecodingSession, running_scores: Tensor, num_candidates: int, suppressed: Tensor
) -> list[list[tuple[int, int, float]]]:
    """The best candidates of each sentence, best first: which of its rows, which token, and the score with it."""
    log_probs, (num_prompts, rows_per_prompt) = session.scores.log_softmax(-1), running_scores.shape
    values, tokens = fast_topk(log_probs.index_fill_(1, suppressed, -math.inf), num_candidates)
    totals = running_scores.unsqueeze(-1) + values.double().view(num_prompts, rows_per_prompt, -1)
    top = totals.flatten(1).topk(min(num_candidates, totals[0].numel()))
    tokens = tokens.view(num_prompts, -1).gather(1, top.indices)
    rows = top.indices // values.shape[-1]
    return [list(zip(*columns)) for columns in zip(rows.tolist(), tokens.tolist(), top.values.tolist())]


def _extend(
    state: _BeamState,
    candidates: list[tuple[int, int, float]],
    num_beams: int,
    eos_token_ids: Collection[int],
    length: int,
    max_length: int,
    length_penalty: float,
) -> list[tuple[int, int, float]]:
    """Set aside what ends, and say what goes on."""
    continuations: list[tuple[int, int, float]] = []
    nodes = []
    for rank, (parent, token, score) in enumerate(candidates):
        if score == -math.inf:
            break
        is_eos = token in eos_token_ids
        if is_eos or length == max_length:
            if rank < num_beams:
                insort(state.finished, (-score / length**length_penalty, state.add(parent, token, score), is_eos))
        elif len(continuations) < num_beams:
            nodes.append(state.add(parent, token, score))
            continuations.append((parent, token, score))
    state.running = nodes
    return continuations


def _is_done(
    state: _BeamState,
    continuations: list[tuple[int, int, float]],
    num_return_sequences: int,
    num_beams: int,
    length: int,
    max_length: int,
    length_penalty: float,
    stop_early: bool,
) -> bool:
    """Whether nothing that goes on can come among the best; a beam of one is done with its first text: greedy."""
    if not continuations or (num_beams == 1 and state.finished):
        return True
    if not stop_early or len(state.finished) < num_return_sequences:
        return False
    best_length = max_length if length_penalty > 0 else length + 1
    return -state.finished[num_return_sequences - 1][0] >= continuations[0][2] / best_length**length_penalty
