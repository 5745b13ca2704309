"""Beam search: the most likely texts, found by keeping the best few prefixes at every step.

At each step the candidates of a prompt are ranked. Of the first `num_beams`, those that end are finished; the best
`num_beams` that do not end continue. Texts of n tokens are compared by their log-probability divided by
((c + n) / (c + 1)) to the power of `length_penalty`: 0 compares plain log-probabilities, values above 0 favor long
texts. The constant c is `length_offset`: 5 in Wu et al. (2016, §7), 0 in `transformers`.
"""

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
from polyseme.nn.model import Model

TOPK_CHUNK_SIZE = 64
Candidate = tuple[int, int, float]  # which of the prompt's rows it extends, its token, and the score with it


class BeamNode(NamedTuple):
    """A token in the search tree: the node that it follows (-1 for the prompt), and the score up to it."""

    parent: int
    token: int
    score: float


@dataclass(eq=False)
class BeamResult:
    """The best texts of one prompt, best first, and the search tree."""

    hypotheses: list[Hypothesis]
    nodes: list[BeamNode]


@dataclass(frozen=True)
class _BeamOptions:
    num_beams: int
    length_penalty: float
    num_return_sequences: int
    eos_token_ids: Collection[int]
    stop_early: bool
    patience: float
    length_offset: float

    def normalize(self, score: float, length: int) -> float:
        """Return the score by which texts of different lengths are compared."""
        return score / ((self.length_offset + length) / (self.length_offset + 1)) ** self.length_penalty

    def __post_init__(self) -> None:
        if self.num_beams < 1 or not 1 <= self.num_return_sequences <= self.num_beams:
            sizes = f"num_beams is {self.num_beams} and num_return_sequences is {self.num_return_sequences}"
            raise ConfigError(f"{sizes}: a beam has 1 text or more, and returns at most all of them")
        if not math.isfinite(self.length_penalty):
            raise ConfigError(f"length_penalty is {self.length_penalty}, expected a number")
        check_in_range("patience", self.patience, 0, math.inf)
        check_in_range("length_offset", self.length_offset, 0, math.inf)


@dataclass(eq=False)
class _Beam:
    """The search for one prompt: its tree, the nodes that continue, and what is finished, best first."""

    options: _BeamOptions
    max_length: int
    nodes: list[BeamNode] = field(default_factory=list)
    leaves: list[int] = field(default_factory=lambda: [-1])
    finished: list[tuple[float, int, bool]] = field(default_factory=list)  # (negative score, node, ends with EOS)

    def extend(self, candidates: list[Candidate], length: int) -> list[Candidate]:
        """Add candidates to the tree; return those that continue."""
        continuations: list[Candidate] = []
        leaves: list[int] = []
        for rank, (parent, token, score) in enumerate(candidates):
            if score == -math.inf:
                break
            is_eos = token in self.options.eos_token_ids
            is_finished = is_eos or length == self.max_length
            if rank >= self.options.num_beams if is_finished else len(continuations) == self.options.num_beams:
                continue
            self.nodes.append(BeamNode(self.leaves[parent], token, score))
            if is_finished:
                insort(self.finished, (-self.options.normalize(score, length), len(self.nodes) - 1, is_eos))
            else:
                leaves.append(len(self.nodes) - 1)
                continuations.append((parent, token, score))
        self.leaves = leaves
        return continuations

    def is_done(self, continuations: list[Candidate], length: int) -> bool:
        """Whether no continuation can be among the best texts; a beam of one is done with its first text (greedy)."""
        options, num_finished = self.options, len(self.finished)
        num_needed = max(options.num_return_sequences, round(options.num_beams * options.patience))
        if options.patience and num_finished >= num_needed:
            return True
        if not continuations or (options.num_beams == 1 and num_finished):
            return True
        if not options.stop_early or num_finished < options.num_return_sequences:
            return False
        best_length = self.max_length if options.length_penalty > 0 else length + 1
        best_possible = options.normalize(continuations[0][2], best_length)
        return -self.finished[options.num_return_sequences - 1][0] >= best_possible

    def result(self) -> BeamResult:
        """The best finished texts."""
        hypotheses = []
        for negative_score, node, has_eos in self.finished[: self.options.num_return_sequences]:
            tokens, ancestor = [], node
            while ancestor >= 0:
                tokens.append(self.nodes[ancestor].token)
                ancestor = self.nodes[ancestor].parent
            token_ids = tuple(tokens[:0:-1] if has_eos else tokens[::-1])
            hypotheses.append(Hypothesis(token_ids, self.nodes[node].score, has_eos, -negative_score))
        return BeamResult(hypotheses, self.nodes)


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
    length_offset: float = 0.0,
) -> list[BeamResult]:
    """Find the best `num_return_sequences` texts of at most `max_new_tokens` tokens (one limit, or one per prompt).

    A prompt is done as soon as no continuation can be among its best texts: scores only fall, so a continuation is at
    best its score at the most favorable length. Without `stop_early`, the search runs to `max_new_tokens`, with the
    same result. With `patience`, it also stops when num_beams × patience texts are finished (Kasai et al. 2022, §2;
    many tools stop at 1), which is faster but may miss a better text.
    """
    token_limits = per_prompt_limits(max_new_tokens, len(prompts))
    settings = num_beams, length_penalty, num_return_sequences, eos_token_ids, stop_early, patience, length_offset
    options = _BeamOptions(*settings)
    if not prompts:
        return []
    max_len = max(map(len, prompts)) + max(token_limits)
    session = start_session(model, prompts, sources, len(prompts) * num_beams, max_len, use_cache)
    beams = [_Beam(options, limit) for limit in token_limits]
    active: list[_Beam | None] = list(beams)  # None: done, but its rows are still there
    scores = torch.zeros(len(prompts), 1, dtype=torch.float64, device=session.scores.device)
    suppressed = torch.tensor(list(suppress_tokens), dtype=torch.int64, device=scores.device)
    num_candidates = (1 + max(len(eos_token_ids), 1)) * num_beams
    for length in range(1, max(token_limits) + 1):
        candidates = _rank_candidates(session, scores, num_candidates, suppressed)
        continuations = [beam.extend(each, length) if beam else [] for beam, each in zip(active, candidates)]
        active = [
            None if beam is None or beam.is_done(each, length) else beam for beam, each in zip(active, continuations)
        ]
        unfinished = [i for i, beam in enumerate(active) if beam]
        if not unfinished:
            break
        indices = unfinished if session.should_compact(len(active), len(unfinished)) else list(range(len(active)))
        rows = [
            (i * scores.shape[1] + parent, token, score)
            for i in indices
            for parent, token, score in (continuations[i] + [(0, 0, -math.inf)] * num_beams)[:num_beams]
        ]
        parents, tokens, row_scores = map(list, zip(*rows))
        active = [active[i] for i in indices]
        scores = torch.tensor(row_scores, dtype=torch.float64, device=scores.device).view(len(indices), num_beams)
        is_unchanged = parents == list(range(session.scores.shape[0]))
        session.advance(torch.tensor(tokens, device=scores.device), None if is_unchanged else parents)
    return [beam.result() for beam in beams]


def _rank_candidates(
    session: DecodingSession, scores: Tensor, num_candidates: int, suppressed: Tensor
) -> list[list[Candidate]]:
    """Return the best candidates of each prompt, best first; `scores` are those of its rows, [prompts, rows]."""
    log_probs, (num_prompts, num_rows) = session.scores.log_softmax(-1), scores.shape
    values, tokens = fast_topk(log_probs.index_fill_(1, suppressed, -math.inf), num_candidates)
    totals = scores.unsqueeze(-1) + values.double().view(num_prompts, num_rows, -1)
    top = totals.flatten(1).topk(min(num_candidates, totals[0].numel()))
    tokens = tokens.view(num_prompts, -1).gather(1, top.indices)
    rows = top.indices // values.shape[-1]
    return [list(zip(*columns)) for columns in zip(rows.tolist(), tokens.tolist(), top.values.tolist())]


def fast_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the `k` highest values of each row [rows, vocabulary], highest first, and their indices.

    On a CPU, `torch.topk` sorts along the whole row. This reads only the chunks with the highest maxima, which contain
    the highest values, and the remainder at the end of the row.
    """
    num_rows, size = scores.shape
    k, num_chunks = min(k, size), size // TOPK_CHUNK_SIZE
    if scores.is_cuda or num_chunks < 4 * k:
        top = scores.topk(k)
        return top.values, top.indices
    chunked_size = num_chunks * TOPK_CHUNK_SIZE
    body, row = scores[:, :chunked_size].unflatten(1, (num_chunks, TOPK_CHUNK_SIZE)), torch.arange(num_rows)[:, None]
    top_chunks = body.amax(-1).topk(k, sorted=False).indices
    top = torch.cat([body[row, top_chunks].flatten(1), scores[:, chunked_size:]], dim=1).topk(k)
    chunk, offset = top.indices // TOPK_CHUNK_SIZE, top.indices % TOPK_CHUNK_SIZE
    is_remainder = chunk >= k  # after all chunks
    chunk_indices = top_chunks.gather(1, chunk.masked_fill(is_remainder, 0)) * TOPK_CHUNK_SIZE + offset
    return top.values, torch.where(is_remainder, top.indices - k * TOPK_CHUNK_SIZE + chunked_size, chunk_indices)
