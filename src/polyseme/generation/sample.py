"""One token after another: the likeliest (greedy), or drawn from what the model thinks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.generation.session import AutoregressiveModel, TokenIds, start_session
from polyseme.nn.model import Model
from polyseme.rng import RandomStream, random_bits, uniform
from polyseme.rng import derive_sample_keys as keys_of


@dataclass(frozen=True)
class SamplingConfig(Config):
    """How a token is chosen. Scores go through these in turn; at temperature 0 the likeliest is taken.

    `repetition_penalty` above 1 makes what stands in the text already less likely (Keskar et al. 2019, §4.1); `top_k`
    leaves the k likeliest, 0 is all; `top_p` the fewest that have this share together (Holtzman et al. 2020, §3.1).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_range(0, math.inf, "temperature", "top_k")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}, expected a share above 0 and up to 1")
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(f"repetition_penalty is {self.repetition_penalty}, expected a number above 0")


GREEDY = SamplingConfig(temperature=0.0)


@dataclass(frozen=True)
class Hypothesis:
    """What was written behind a prompt, without the end mark; `score` is its log-probability, the end mark's too.

    `is_finished` says whether the model ended it. `normalized_score` is what a search compares, the score by length.
    """

    tokens: tuple[int, ...]
    score: float
    is_finished: bool
    normalized_score: float = 0.0


class GeneratedToken(NamedTuple):
    """One step of one sequence: its number, the token, and its log-probability."""

    sequence: int
    token: int
    score: float


def per_prompt_limits(max_new_tokens: int | Sequence[int], num_prompts: int) -> list[int]:
    """How many tokens each of a number of sequences may get."""
    token_limits = [max_new_tokens] * max(num_prompts, 1) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if min(token_limits, default=1) < 1:
        raise ConfigError(f"the number of tokens to write is {min(token_limits)}, which is less than 1")
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
) -> Iterator[list[GeneratedToken]]:
    """Each step's tokens as they come, at most `max_new_tokens` for each prompt, or each its own, end marks too.

    What is drawn for a sequence depends on the seed, its source and prompt, its number among `sample_indices` of them,
    and the step: not on the batch.
    """
    token_limits = per_prompt_limits(max_new_tokens, len(prompts))
    if not prompts:
        return
    max_len = max(map(len, prompts)) + max(token_limits)
    session = start_session(model, prompts, sources, len(prompts), max_len, use_cache)
    vocab_size = session.scores.shape[-1]
    alive: list[int | None] = list(range(len(prompts)))  # which sequence is in which row; None if it has ended
    sample_step = _TokenSampler(
        sampling, prompts, sources, sample_indices or [0] * len(prompts), vocab_size, session.scores.device
    )
    suppressed = _to_tensor(suppress_tokens, session.scores)
    for step in range(max(token_limits)):
        scores = session.scores
        log_probs = scores.log_softmax(-1)
        tokens = sample_step(scores.index_fill_(1, suppressed, -math.inf), alive, step)
        token_log_probs = log_probs.gather(1, tokens[:, None])[:, 0]
        token_values, score_values = torch.stack(
            [tokens.double(), token_log_probs.double()]
        ).tolist()  # one wait for a GPU
        step_tokens = [(n, int(token), score) for n, token, score in zip(alive, token_values, score_values)]
        yield [GeneratedToken(n, t, s) for n, t, s in step_tokens if n is not None]
        alive = [
            None if n is None or token in eos_token_ids or step + 1 == token_limits[n] else n
            for n, token, _ in step_tokens
        ]
        num_alive = sum(n is not None for n in alive)
        if not num_alive:
            return
        row_indices = None
        if session.should_compact(len(alive), num_alive):
            row_indices = _compaction_order([n is not None for n in alive])
            alive, tokens = [alive[row] for row in row_indices], tokens[row_indices]
        session.advance(tokens, row_indices)


def generate_tokens(
    model: Model | AutoregressiveModel,
    prompts: Sequence[TokenIds],
    max_new_tokens: int | Sequence[int],
    sampling: SamplingConfig = GREEDY,
    sources: Sequence[TokenIds] | None = None,
    eos_token_ids: Collection[int] = (),
    suppress_tokens: Collection[int] = (),
    sample_indices: Sequence[int] | None = None,
    use_cache: bool = True,
) -> list[Hypothesis]:
    """What `stream_tokens` gives, whole."""
    tokens: list[list[int]] = [[] for _ in prompts]
    scores = [0.0] * len(prompts)
    is_finished = [False] * len(prompts)
    for step in stream_tokens(
        model, prompts, max_new_tokens, sampling, sources, eos_token_ids, suppress_tokens, sample_indices, use_cache
    ):
        for n, token, score in step:
            scores[n] += score
            is_finished[n] = token in eos_token_ids
            tokens[n] += [] if is_finished[n] else [token]
    return [Hypothesis(tuple(t), s, e, s) for t, s, e in zip(tokens, scores, is_finished)]


class _TokenSampler:
    """Draws the tokens of a step; has in mind what each sequence holds, where that counts."""

    def __init__(
        self,
        sampling: SamplingConfig,
        prompts: Sequence[TokenIds],
        sources: Sequence[TokenIds] | None,
        sample_indices: Sequence[int],
        vocab_size: int,
        device: torch.device,
    ):
        self.sampling = sampling
        self.seen_tokens: Tensor | None = None
        if sampling.repetition_penalty != 1:
            self.seen_tokens = torch.zeros(
                len(prompts) + 1, vocab_size, dtype=torch.bool, device=device
            )  # the last: of those ended
            for row, ids in enumerate(prompts):
                self.seen_tokens[row, _to_tensor(ids, self.seen_tokens)] = True
        key_ids = [(*(sources[i] if sources else ()), -1, *ids) for i, ids in enumerate(prompts)]
        self.keys = np.array(
            [*(_key(sampling.seed, ids, sample_index) for ids, sample_index in zip(key_ids, sample_indices)), 0],
            dtype=np.uint64,
        )

    def __call__(self, scores: Tensor, alive: Sequence[int | None], step: int) -> Tensor:
        sampling = self.sampling
        sequence_ids = [len(self.keys) - 1 if n is None else n for n in alive]
        adjusted = scores
        if self.seen_tokens is not None:
            is_seen = self.seen_tokens[_to_tensor(sequence_ids, scores)]
            penalized = torch.where(
                scores > 0, scores / sampling.repetition_penalty, scores * sampling.repetition_penalty
            )
            adjusted = torch.where(is_seen, penalized, scores)
        if not sampling.temperature:
            tokens = adjusted.argmax(-1)
        else:
            bits = random_bits(self.keys[sequence_ids], np.full(len(sequence_ids), step), RandomStream.GENERATION)
            tokens = sample_tokens(adjusted, sampling, torch.from_numpy(uniform(bits)).to(scores.device))
        if self.seen_tokens is not None:
            self.seen_tokens[_to_tensor(sequence_ids, scores), tokens] = True
        return tokens


def sample_tokens(scores: Tensor, sampling: SamplingConfig, uniforms: Tensor) -> Tensor:
    """A token for each row of scores, by a number from [0, 1) for each: where the sum of probabilities passes it."""
    probs = (scores.double() / sampling.temperature).softmax(-1)
    if 0 < sampling.top_k < probs.shape[-1]:
        threshold = probs.topk(sampling.top_k).values[:, -1:]
        probs = probs.where(probs >= threshold, 0)
    if sampling.top_p < 1:
        sorted_probs = (probs / probs.sum(-1, keepdim=True)).sort(-1, descending=True).values
        num_kept = (sorted_probs.cumsum(-1) - sorted_probs < sampling.top_p).sum(-1, keepdim=True).clamp(min=1)
        threshold = sorted_probs.gather(-1, num_kept - 1) * probs.sum(-1, keepdim=True)
        probs = probs.where(probs >= threshold * (1 - 1e-12), 0)
    cumulative = probs.cumsum(-1)
    token_ids = torch.searchsorted(cumulative, (uniforms[:, None] * cumulative[:, -1:]), right=True)[:, 0]
    last_allowed = (
        (probs > 0).long().mul_(torch.arange(probs.shape[-1], device=probs.device)).amax(-1)
    )  # if rounding passes
    return torch.minimum(token_ids, last_allowed)


def _key(seed: int, ids: Sequence[int], sample_index: int) -> np.uint64:
    """One 64-bit key of a text and its copy."""
    content = hashlib.blake2b(np.array(ids, dtype="<i8").tobytes(), digest_size=8).digest()
    return np.uint64(keys_of(seed, sample_index, np.frombuffer(content, dtype="<u8"))[0])


def _compaction_order(alive: Sequence[bool]) -> list[int]:
    """Which row goes to each place when the dead ones fall away: those that can stay do, the last fill the gaps."""
    num_alive = sum(alive)
    movable = [row for row in range(num_alive, len(alive)) if alive[row]]
    return [row if alive[row] else movable.pop() for row in range(num_alive)]


def _to_tensor(ids: Collection[int], like: Tensor) -> Tensor:
    return torch.tensor(
        sorted(ids) if isinstance(ids, set | frozenset) else list(ids), dtype=torch.int64, device=like.device
    )
