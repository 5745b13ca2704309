"""Token by token generation: the most likely token (greedy), or one sampled from the model's distribution."""

import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError
from polyseme.generation.config import GREEDY, SamplingConfig
from polyseme.generation.session import AutoregressiveModel, TokenIds, start_session
from polyseme.nn.model import Model
from polyseme.rng import RandomStream, derive_sample_keys, random_bits, uniform


@dataclass(frozen=True)
class Hypothesis:
    """Generated tokens without the end token, and their log-probability with it.

    `is_finished` says whether the model ended the text. Beam search compares `normalized_score`.
    """

    tokens: tuple[int, ...]
    score: float
    is_finished: bool
    normalized_score: float = 0.0


class GeneratedToken(NamedTuple):
    """One step of one sequence: its index, the token, and its log-probability."""

    sequence: int
    token: int
    score: float


class StepObserver(Protocol):
    """What watches the steps of `stream_tokens`, and may end sequences before their time."""

    def observe(self, log_probs: Tensor, sequences: Sequence[int | None]) -> None:
        """Take the log-probabilities [rows, vocabulary] of a step, and the sequence of each row, None if it ended."""

    def has_ended(self, sequence: int) -> bool:
        """Whether no more tokens of a sequence are needed."""


def per_prompt_limits(max_new_tokens: int | Sequence[int], num_prompts: int) -> list[int]:
    """Return the number of tokens that each prompt may get."""
    token_limits = [max_new_tokens] * max(num_prompts, 1) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if min(token_limits, default=1) < 1:
        raise ConfigError(f"max_new_tokens is {min(token_limits)}, which is less than 1")
    return token_limits


@torch.inference_mode()
def stream_tokens(
    model: Model | AutoregressiveModel,
    prompts: Sequence[TokenIds],
    max_new_tokens: int | Sequence[int],
    sampling: SamplingConfig = GREEDY,
    sources: Sequence[TokenIds] | None = None,
    eos_token_ids: Collection[int] = (),
    suppress_tokens: Collection[int] = (),
    sample_indices: Sequence[int] | None = None,
    use_cache: bool = True,
    observer: StepObserver | None = None,
) -> Iterator[list[GeneratedToken]]:
    """Yield the tokens of each step, with end tokens; `max_new_tokens` is one limit, or one per prompt.

    What is sampled for a sequence depends on the seed, its source and prompt, its index among several samples of them
    (`sample_indices`), and the step, but not on the batch.
    """
    token_limits = per_prompt_limits(max_new_tokens, len(prompts))
    if not prompts:
        return
    max_len = max(map(len, prompts)) + max(token_limits)
    session = start_session(model, prompts, sources, len(prompts), max_len, use_cache)
    key_ids = [(*(_source_ids(sources[i]) if sources else ()), -1, *ids) for i, ids in enumerate(prompts)]
    keys = [derive_text_key(sampling.seed, *each) for each in zip(key_ids, sample_indices or [0] * len(prompts))]
    sampler = _TokenSampler(sampling, prompts, keys, session.scores)
    suppressed = torch.tensor(list(suppress_tokens), dtype=torch.int64, device=session.scores.device)
    active: list[int | None] = list(range(len(prompts)))  # the sequence of each row; None if it has ended
    for step in range(max(token_limits)):
        scores = session.scores
        log_probs = scores.log_softmax(-1)
        if observer is not None:
            observer.observe(log_probs, active)
        tokens = sampler(scores.index_fill_(1, suppressed, -math.inf), active, step)
        token_log_probs = log_probs.gather(1, tokens[:, None])[:, 0]
        token_values, score_values = torch.stack([tokens.double(), token_log_probs.double()]).tolist()  # one sync
        step_tokens = [(n, int(token), score) for n, token, score in zip(active, token_values, score_values)]
        yield [GeneratedToken(n, t, s) for n, t, s in step_tokens if n is not None]
        active = [
            None if n is None or token in eos_token_ids or step + 1 == token_limits[n] else n
            for n, token, _ in step_tokens
        ]
        if observer is not None:
            active = [None if n is None or observer.has_ended(n) else n for n in active]
        num_active = sum(n is not None for n in active)
        if not num_active:
            return
        row_indices = None
        if session.should_compact(len(active), num_active):
            row_indices = compaction_order([n is not None for n in active])
            active, tokens = [active[row] for row in row_indices], tokens[row_indices]
        session.advance(tokens, row_indices)


def generate_tokens(
    model: Model | AutoregressiveModel,
    prompts: Sequence[TokenIds],
    max_new_tokens: int | Sequence[int],
    sampling: SamplingConfig = GREEDY,
    sources: Sequence[TokenIds] | None = None,
    eos_token_ids: Collection[int] = (),
    **options: Any,
) -> list[Hypothesis]:
    """Return the whole sequences that `stream_tokens`, which takes the same arguments, yields token by token."""
    tokens: list[list[int]] = [[] for _ in prompts]
    scores = [0.0] * len(prompts)
    is_finished = [False] * len(prompts)
    for step in stream_tokens(model, prompts, max_new_tokens, sampling, sources, eos_token_ids, **options):
        for n, token, score in step:
            scores[n] += score
            is_finished[n] = token in eos_token_ids
            tokens[n] += [] if is_finished[n] else [token]
    return [Hypothesis(tuple(t), s, e, s) for t, s, e in zip(tokens, scores, is_finished)]


class _TokenSampler:
    """Chooses the tokens of a step; for a repetition penalty it keeps the tokens that each sequence contains."""

    def __init__(
        self, sampling: SamplingConfig, prompts: Sequence[TokenIds], keys: Sequence[np.uint64], scores: Tensor
    ):
        self.sampling = sampling
        self.keys = np.array([*keys, 0], dtype=np.uint64)  # the last: of sequences that have ended
        self.seen_tokens: Tensor | None = None  # bool [sequences + 1, vocabulary]
        if sampling.repetition_penalty != 1:
            self.seen_tokens = scores.new_zeros(len(self.keys), scores.shape[-1], dtype=torch.bool)
            for row, ids in enumerate(prompts):
                self.seen_tokens[row, torch.tensor(list(ids), dtype=torch.int64, device=scores.device)] = True

    def __call__(self, scores: Tensor, active: Sequence[int | None], step: int) -> Tensor:
        sampling, seen_tokens = self.sampling, self.seen_tokens
        sequences = [len(self.keys) - 1 if n is None else n for n in active]
        rows = None if seen_tokens is None else torch.tensor(sequences, device=scores.device)
        if seen_tokens is not None:
            penalty = sampling.repetition_penalty
            penalized = torch.where(scores > 0, scores / penalty, scores * penalty)
            scores = torch.where(seen_tokens[rows], penalized, scores)
        if not sampling.temperature:
            tokens = scores.argmax(-1)
        else:
            bits = random_bits(self.keys[sequences], np.full(len(sequences), step), RandomStream.GENERATION)
            tokens = sample_tokens(scores, sampling, torch.from_numpy(uniform(bits)).to(scores.device))
        if seen_tokens is not None:
            seen_tokens[rows, tokens] = True
        return tokens


def sample_tokens(scores: Tensor, sampling: SamplingConfig, uniforms: Tensor) -> Tensor:
    """Sample a token for each row of scores by the inverse of its cumulative distribution at a number in [0, 1)."""
    probs = (scores.double() / sampling.temperature).softmax(-1)
    if 0 < sampling.top_k < probs.shape[-1]:
        probs = keep_likely(probs, probs.topk(sampling.top_k).values[:, -1:])
    if sampling.top_p < 1:
        probs = keep_nucleus(probs, sampling.top_p)
    return draw_tokens(probs, uniforms)


def keep_likely(probs: Tensor, threshold: Tensor) -> Tensor:
    """Set probabilities below the threshold of their row to 0."""
    return probs.where(probs >= threshold, 0)


def keep_nucleus(probs: Tensor, top_p: float | Tensor) -> Tensor:
    """Set probabilities outside of the nucleus to 0; `top_p` is one for all rows, or [rows, 1]."""
    sorted_probs = (probs / probs.sum(-1, keepdim=True)).sort(-1, descending=True).values
    num_kept = (sorted_probs.cumsum(-1) - sorted_probs < top_p).sum(-1, keepdim=True).clamp(min=1)
    threshold = sorted_probs.gather(-1, num_kept - 1) * probs.sum(-1, keepdim=True)
    return keep_likely(probs, threshold * (1 - 1e-12))


def draw_tokens(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token for each row, whose probabilities need not sum to 1."""
    cumulative = probs.cumsum(-1)
    token_ids = torch.searchsorted(cumulative, (uniforms[:, None] * cumulative[:, -1:]), right=True)[:, 0]
    # rounding may lead past the last token with a probability
    last_allowed = (probs > 0).long().mul_(torch.arange(probs.shape[-1], device=probs.device)).amax(-1)
    return torch.minimum(token_ids, last_allowed)


def _source_ids(source: Any) -> Any:
    """Return the tokens of a source; of an image, one number that stands for its regions."""
    if isinstance(source, np.ndarray) and source.ndim > 1:
        return np.frombuffer(hashlib.blake2b(source.tobytes(), digest_size=8).digest(), dtype="<i8")
    return source


def derive_text_key(seed: int, ids: Sequence[int], sample_index: int) -> np.uint64:
    """Derive a 64-bit random key from a seed, a text and the index of a sample."""
    content = hashlib.blake2b(np.array(ids, dtype="<i8").tobytes(), digest_size=8).digest()
    return np.uint64(derive_sample_keys(seed, sample_index, np.frombuffer(content, dtype="<u8"))[0])


def compaction_order(is_active: Sequence[bool]) -> list[int]:
    """Return the row that moves to each place when inactive rows are dropped: the last rows fill the gaps."""
    num_active = sum(is_active)
    movable = [row for row in range(num_active, len(is_active)) if is_active[row]]
    return [row if is_active[row] else movable.pop() for row in range(num_active)]
