"""Text generation for one request, alone or in a batch with others; every token is reported as it is generated."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from polyseme.generation.config import GenerationConfig
from polyseme.generation.sample import GeneratedToken, stream_tokens
from polyseme.generation.session import is_unbounded, max_positions
from polyseme.generation.text import IncrementalDecoder, TextGenerator
from polyseme.nn.model import Model
from polyseme.serve.api.errors import RequestError
from polyseme.serve.api.responses import GeneratedResult, TokenEvent, TokenLogProb
from polyseme.serve.batching.worker import Generation

DEFAULT_NEW_TOKENS = 100
StreamEvent = TokenEvent | GeneratedResult | BaseException


class StopFilter:
    """Text that grows piece by piece, up to the first of some strings; what may be the start of one is held back."""

    def __init__(self, stop: Sequence[str]):
        self.stop = [each for each in stop if each]
        self.text, self.num_emitted, self.has_stopped = "", 0, False

    def push(self, piece: str, is_last: bool = False) -> str:
        """Add a piece; return the text that may be shown now."""
        if self.has_stopped:
            return ""
        self.text += piece
        places = [place for each in self.stop if (place := self.text.find(each)) >= 0]
        if places:
            self.has_stopped, self.text = True, self.text[: min(places)]
        end = len(self.text)
        if not self.has_stopped and not is_last:
            end -= max((self._overlap(each) for each in self.stop), default=0)
        shown, self.num_emitted = self.text[self.num_emitted : end], max(end, self.num_emitted)
        return shown

    def _overlap(self, stop: str) -> int:
        """Return how many characters at the end of the text start a stop string."""
        return next((n for n in range(min(len(stop) - 1, len(self.text)), 0, -1) if self.text.endswith(stop[:n])), 0)


class GeneratedSequence:
    """One text: its tokens so far, its decoder, and why it ended."""

    def __init__(self, request: "TextGeneration", index: int, prompt_ids: Sequence[int]):
        self.request, self.index = request, index
        self.decoder, self.filter = IncrementalDecoder(request.generator, prompt_ids), StopFilter(request.stop)
        self.tokens: list[int] = []
        self.events: list[TokenEvent] = []
        self.score, self.finish_reason = 0.0, ""

    def push(self, token: int, log_prob: float, top_tokens: list[TokenLogProb] | None) -> None:
        """Add a token and report it."""
        self.score += log_prob
        is_eos = token in self.request.generator.eos_token_ids
        if is_eos:
            self.finish_reason = "eos"
        else:
            self.tokens.append(token)
        piece = self.filter.push(self.decoder.finish() if is_eos else self.decoder.push(token), is_eos)
        if self.filter.has_stopped:
            self.finish_reason = "stop"
        elif not is_eos and len(self.tokens) >= self.request.max_new_tokens:
            self.finish_reason = "length"
            piece += self.filter.push(self.decoder.finish(), is_last=True)
        name = self.request.token_name(token)
        event = TokenEvent(self.index, piece, name, token, log_prob, top_tokens)
        self.events.append(event)
        self.request.report(event)

    def to_result(self) -> GeneratedResult:
        """Return the whole text."""
        is_finished = self.finish_reason == "eos"
        events = self.events if self.request.keeps_events else None
        return GeneratedResult(
            self.filter.text, self.tokens, self.score, is_finished, self.finish_reason or "length", events
        )


class TextGeneration(Generation):
    """The texts of one request: greedy or sampled, with one limit on their tokens."""

    def __init__(
        self,
        generator: TextGenerator,
        prompts: Sequence[str],
        config: GenerationConfig,
        prefix: str = "",
        stop: Sequence[str] = (),
        num_top_tokens: int = 0,
        truncate: bool = False,
    ):
        self.generator, self.stop, self.num_top_tokens = generator, stop, num_top_tokens
        self.prompt_ids, self.sources = generator.encode_inputs(prompts, prefix)
        self.config, self.max_new_tokens = config, config.max_new_tokens
        self._fit_limits(truncate)
        self.num_prompt_tokens = sum(map(len, self.sources or self.prompt_ids))
        copies = config.num_return_sequences
        rows = [ids for ids in self.prompt_ids for _ in range(copies)]
        self.sequences = [GeneratedSequence(self, index, ids) for index, ids in enumerate(rows)]
        source_lengths = [len(ids) for ids in self.sources or [[]] * len(prompts)]
        widths = (len(ids) + self.max_new_tokens + n for ids, n in zip(self.prompt_ids, source_lengths))
        self.num_cells = copies * sum(widths)
        self.arrival, self.keeps_events, self._is_cancelled = time.perf_counter(), False, False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.events: asyncio.Queue[StreamEvent | None] = asyncio.Queue()

    def _fit_limits(self, truncate: bool) -> None:
        """Check the lengths of prompts and sources; choose the number of tokens if it is not set."""
        model = self.generator.model
        if not isinstance(model, Model):
            self.max_new_tokens = self.max_new_tokens or DEFAULT_NEW_TOKENS
            return
        if self.sources is not None:
            limit = self.generator.max_source_len
            self.sources = [_fit(ids, limit, truncate, keep="start") for ids in self.sources]
        room = max_positions(model)
        longest = max(map(len, self.prompt_ids))
        if is_unbounded(model):
            self.max_new_tokens = self.max_new_tokens or DEFAULT_NEW_TOKENS
            return
        default = DEFAULT_NEW_TOKENS if self.sources is None else 2 * max(map(len, self.sources)) + 20
        wanted = self.max_new_tokens or max(min(default, room - longest), 1)
        if wanted >= room:
            raise RequestError("too_long", f"max_new_tokens is {wanted}, and the model has {room} positions")
        self.prompt_ids = [_fit(ids, room - wanted, truncate, keep="end", extra=wanted) for ids in self.prompt_ids]
        self.max_new_tokens = wanted

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        """Stop generating: nobody waits any more."""
        self._is_cancelled = True

    def token_name(self, token: int) -> str:
        """Return how a token is shown, with `_` for a space."""
        return self.generator.target_tokenizer.display_tokens([token])[0]

    def can_join(self, other: Generation) -> bool:
        """Whether the other one samples in the same way; limits and stop strings may differ."""
        if not isinstance(other, TextGeneration) or other.generator is not self.generator:
            return False
        if (self.sources is None) != (other.sources is None):
            return False
        return replace(self.config, max_new_tokens=0) == replace(other.config, max_new_tokens=0)

    def start(self, others: Sequence[Generation]) -> Callable[[], bool]:
        members = [self, *(each for each in others if isinstance(each, TextGeneration))]
        steps = _GenerationBatch(members).run()

        def step() -> bool:
            return next(steps, None) is not None

        return step

    def report(self, event: StreamEvent | None) -> None:
        """Hand an event to the event loop; None ends the stream."""
        if self.loop is not None and not self.loop.is_closed() and not self._is_cancelled:
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)

    def finish(self) -> None:
        """Report the whole texts, and the end."""
        for sequence in self.sequences:
            self.report(sequence.to_result())
        self.report(None)

    def fail(self, error: BaseException) -> None:
        self.report(error)
        self.report(None)


def _fit(ids: list[int], limit: int, truncate: bool, keep: str, extra: int = 0) -> list[int]:
    """Return ids that fit the model; cut them if that is allowed."""
    if len(ids) <= limit:
        return ids
    if not truncate:
        what = f" with {extra} new tokens" if extra else ""
        message = f"the text has {len(ids)} tokens, and the model reads {limit}{what}: shorten it, or set truncate"
        raise RequestError("too_long", message)
    return ids[:limit] if keep == "start" else ids[len(ids) - limit :]


class _GenerationBatch:
    """Requests that are generated together; an observer of the steps."""

    def __init__(self, members: Sequence[TextGeneration]):
        self.members = members
        self.sequences = [sequence for member in members for sequence in member.sequences]
        self.top_tokens: dict[int, list[TokenLogProb]] = {}
        self.num_top_tokens = max(member.num_top_tokens for member in members)

    def observe(self, log_probs: Tensor, sequences: Sequence[int | None]) -> None:
        """Keep the most likely tokens of each text."""
        if not self.num_top_tokens:
            return
        best = log_probs.topk(min(self.num_top_tokens, log_probs.shape[-1]))
        for sequence, ids, values in zip(sequences, best.indices.tolist(), best.values.tolist()):
            if sequence is not None:
                request = self.sequences[sequence].request
                names = map(request.token_name, ids[: request.num_top_tokens])
                self.top_tokens[sequence] = [TokenLogProb(n, v) for n, v in zip(names, values) if v > float("-inf")]

    def has_ended(self, sequence: int) -> bool:
        """Whether a text is complete, or nobody waits for it."""
        state = self.sequences[sequence]
        return bool(state.finish_reason) or state.request.is_cancelled

    def run(self) -> Iterator[bool]:
        """Yield after every step; the first one starts the session."""
        first = self.members[0]
        copies = first.config.num_return_sequences
        prompts = [ids for member in self.members for ids in member.prompt_ids for _ in range(copies)]
        sources = None
        if first.sources is not None:
            sources = [ids for member in self.members for ids in member.sources or () for _ in range(copies)]
        limits = [member.max_new_tokens for member in self.members for _ in member.sequences]
        steps = stream_tokens(
            first.generator.model,
            prompts,
            limits,
            first.config.sampling,
            sources,
            first.generator.eos_token_ids,
            first.generator.suppress_tokens,
            sample_indices=[i % copies for i in range(len(prompts))],
            observer=self,
        )
        unfinished = list(self.members)
        for step in steps:
            self._report(step)
            for member in [each for each in unfinished if all(s.finish_reason for s in each.sequences)]:
                member.finish()
                unfinished.remove(member)
            yield True
        for member in unfinished:
            member.finish()

    def _report(self, step: Sequence[GeneratedToken]) -> None:
        for sequence, token, log_prob in step:
            state = self.sequences[sequence]
            if not state.finish_reason and not state.request.is_cancelled:
                top_tokens = self.top_tokens.get(sequence) if state.request.num_top_tokens else None
                state.push(token, log_prob, top_tokens)
