"""Text generation for one request: its texts, where they stop, and the events that it reports."""

import asyncio
from collections.abc import Iterable, Sequence

from polyseme.generation.config import GenerationConfig
from polyseme.generation.session import is_unbounded, max_positions
from polyseme.generation.text import IncrementalDecoder, TextGenerator
from polyseme.nn.model import Model
from polyseme.serve.api.errors import RequestError
from polyseme.serve.api.responses import GeneratedResult, TokenEvent, TokenLogProb

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
        self.request, self.index, self.prompt_ids = request, index, prompt_ids
        self.decoder, self.filter = IncrementalDecoder(request.generator, prompt_ids), StopFilter(request.stop)
        self.tokens: list[int] = []
        self.events: list[TokenEvent] = []
        self.score, self.finish_reason = 0.0, ""

    @property
    def has_ended(self) -> bool:
        """Whether the text is complete, or nobody waits for it."""
        return bool(self.finish_reason) or self.request.is_cancelled

    def push(self, token: int, log_prob: float, top_tokens: list[TokenLogProb] | None) -> None:
        """Add a token and report it."""
        self.score += log_prob
        is_eos = token in self.request.generator.eos_token_ids
        if is_eos:
            self.finish_reason = "eos"
        else:
            self.tokens.append(token)
        piece = self.filter.push(self.decoder.finish() if is_eos else self._decode(token), is_eos)
        if self.filter.has_stopped:
            self.finish_reason = "stop"
        elif not is_eos and len(self.tokens) >= self.request.max_new_tokens:
            self.finish_reason = "length"
            piece += self.filter.push(self.decoder.finish(), is_last=True)
        if self.request.needs_pieces:
            event = TokenEvent(self.index, piece, self.request.token_name(token), token, log_prob, top_tokens)
            self.events.append(event)
            self.request.report(event)

    def _decode(self, token: int) -> str:
        """Return what a token adds to the text; nothing until the end if only the whole text is needed."""
        if self.request.needs_pieces or self.request.stop:
            return self.decoder.push(token)
        self.decoder.tokens.append(token)
        return ""

    def to_result(self) -> GeneratedResult:
        """Return the whole text."""
        is_finished = self.finish_reason == "eos"
        events = self.events if self.request.keeps_events else None
        return GeneratedResult(
            self.filter.text, self.tokens, self.score, is_finished, self.finish_reason or "length", events
        )


class TextGeneration:
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
        self.num_cells = copies * sum(widths)  # rows × columns of the buffers that it needs
        self.keeps_events = self.is_streamed = self._is_cancelled = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.events: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        self.outbox: list[StreamEvent | None] = []

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
        """Whether nobody waits for the texts any more."""
        return self._is_cancelled

    @property
    def needs_pieces(self) -> bool:
        """Whether the text of each token is needed, and not only the whole."""
        return self.is_streamed or self.keeps_events

    @property
    def is_complete(self) -> bool:
        """Whether all texts are complete."""
        return all(sequence.finish_reason for sequence in self.sequences)

    def cancel(self) -> None:
        """Stop generating: nobody waits any more."""
        self._is_cancelled = True

    def token_name(self, token: int) -> str:
        """Return how a token is shown, with `_` for a space."""
        return self.generator.target_tokenizer.display_tokens([token])[0]

    def name_top_tokens(self, ids: Sequence[int], log_probs: Sequence[float]) -> list[TokenLogProb]:
        """Return the first of some tokens, as many as the request asks for, that have a probability."""
        names = map(self.token_name, ids[: self.num_top_tokens])
        return [TokenLogProb(name, value) for name, value in zip(names, log_probs) if value > float("-inf")]

    def report(self, event: StreamEvent | None) -> None:
        """Add an event, which `deliver_events` hands to the event loop; None ends the stream."""
        if not self._is_cancelled and (self.is_streamed or not isinstance(event, TokenEvent)):
            self.outbox.append(event)

    def finish(self) -> None:
        """Report the whole texts, and the end."""
        for sequence in self.sequences:
            self.report(sequence.to_result())
        self.report(None)

    def fail(self, error: BaseException) -> None:
        """Report an error to whoever waits, and generate no more."""
        self.report(error)
        self.report(None)
        deliver_events([self])
        self.cancel()


def deliver_events(generations: Iterable[TextGeneration]) -> None:
    """Hand new events to the event loop of the requests, with one wake-up for all."""
    outboxes = [(each, each.outbox) for each in generations if each.outbox]
    if not outboxes:
        return

    def put_events() -> None:
        for generation, events in outboxes:
            for event in events:
                generation.events.put_nowait(event)

    for generation, _ in outboxes:
        generation.outbox = []
    loop = outboxes[0][0].loop
    if loop is not None and not loop.is_closed():
        loop.call_soon_threadsafe(put_events)


def _fit(ids: list[int], limit: int, truncate: bool, keep: str, extra: int = 0) -> list[int]:
    """Return ids that fit the model; cut them if that is allowed."""
    if len(ids) <= limit:
        return ids
    if not truncate:
        what = f" with {extra} new tokens" if extra else ""
        message = f"the text has {len(ids)} tokens, and the model reads {limit}{what}: shorten it, or set truncate"
        raise RequestError("too_long", message)
    return ids[:limit] if keep == "start" else ids[len(ids) - limit :]
