"""`/v1/embeddings` and `/v1/completions` in OpenAI's format, over the verbs `embed` and `generate`."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from polyseme.errors import ConfigError, DataError
from polyseme.generation.config import GenerationConfig
from polyseme.serve.api.arrays import write_arrays
from polyseme.serve.api.requests import (
    MAX_TEXTS,
    CompletionsRequest,
    EmbeddingsRequest,
)
from polyseme.serve.api.responses import (
    CompletionChoice,
    CompletionLogProbs,
    CompletionsResponse,
    GeneratedResult,
    OpenAIUsage,
    TokenEvent,
)
from polyseme.serve.api.schema import encode_json, to_plain
from polyseme.serve.batching.generation import TextGeneration
from polyseme.serve.registry import ServedModel
from polyseme.serve.verbs.plan import Plan
from polyseme.serve.verbs.vectors import plan_vectors

DEFAULT_MAX_TOKENS = 16
FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}


def as_texts(value: str | tuple[str, ...], name: str) -> list[str]:
    """Return one text or several as a list."""
    texts = [value] if isinstance(value, str) else list(value)
    if len(texts) > MAX_TEXTS:
        raise ConfigError(f"{name} has {len(texts):,} elements, at most {MAX_TEXTS} are allowed")
    return texts


def plan_embeddings(served: ServedModel, request: EmbeddingsRequest) -> Plan:
    """Compute vectors of texts."""
    texts = as_texts(request.input, "input")
    if request.dimensions is not None and request.dimensions != served.dim:
        raise DataError(f"dimensions is {request.dimensions}, and the model {served.name!r} has {served.dim}")
    plan = plan_vectors(served, texts, "last", "text", request.truncate)

    def respond(results: Sequence[Any]) -> bytes:
        return write_embeddings_response(served.name, results, plan.num_tokens, request.encoding_format)

    return replace(plan, respond=respond)


def write_embeddings_response(model: str, vectors: Sequence[Any], num_tokens: int, encoding_format: str) -> bytes:
    """Return an `EmbeddingsResponse` in JSON; its parts are put together as text, which takes much less time."""
    rows = enumerate(write_arrays(vectors, encoding_format))
    data = b",".join([b'{"index":%d,"embedding":%b,"object":"embedding"}' % row for row in rows])
    usage = encode_json(to_plain(OpenAIUsage(num_tokens, num_tokens)))
    return b'{"data":[%b],"model":%b,"usage":%b,"object":"list"}' % (data, encode_json(model), usage)


def start_completions(served: ServedModel, request: CompletionsRequest) -> TextGeneration:
    """Return the generation of completions."""
    temperature = 1.0 if request.temperature is None else request.temperature
    num_texts = request.n or 1
    options: dict[str, Any] = {"max_new_tokens": request.max_tokens or DEFAULT_MAX_TOKENS}
    if temperature > 0:
        options |= {"do_sample": True, "temperature": temperature, "num_return_sequences": num_texts}
        options |= {"seed": request.seed if request.seed is not None else uuid.uuid4().int >> 65}
        options |= {} if request.top_p is None else {"top_p": request.top_p}
    elif num_texts > 1:
        raise ConfigError(f"n is {num_texts}, but with temperature 0 all completions are the same")
    stop = (request.stop,) if isinstance(request.stop, str) else request.stop or ()
    generation = TextGeneration(
        served.model._text_generator,
        as_texts(request.prompt, "prompt"),
        GenerationConfig(**options),
        stop=stop,
        num_top_tokens=request.logprobs or 0,
    )
    generation.keeps_events, generation.is_streamed = request.logprobs is not None, bool(request.stream)
    return generation


class CompletionFormatter:
    """The response, or the chunks, of one request."""

    def __init__(self, served: ServedModel, request: CompletionsRequest, generation: TextGeneration):
        self.name, self.request, self.generation = served.name, request, generation
        self.id, self.created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        prompts = as_texts(request.prompt, "prompt")
        self.prompts = [prompt for prompt in prompts for _ in range(request.n or 1)]
        self.offsets = [len(prompt) if request.echo else 0 for prompt in self.prompts]

    def respond(self, results: Sequence[GeneratedResult]) -> CompletionsResponse:
        """Return the whole response."""
        choices = []
        for index, each in enumerate(results):
            log_probs = self.log_probs(index, each.token_events or []) if self.request.logprobs is not None else None
            text = self.prompts[index] + each.text if self.request.echo else each.text
            choices.append(CompletionChoice(text, index, FINISH_REASONS[each.finish_reason], log_probs))
        return CompletionsResponse(self.id, self.created, self.name, choices, self.usage(results))

    def usage(self, results: Sequence[GeneratedResult]) -> OpenAIUsage:
        """Count the tokens of prompts and completions."""
        prompt_tokens, num_tokens = self.generation.num_prompt_tokens, sum(len(each.tokens) for each in results)
        return OpenAIUsage(prompt_tokens, prompt_tokens + num_tokens, num_tokens)

    def log_probs(self, index: int, events: Sequence[TokenEvent]) -> CompletionLogProbs:
        """Convert the log-probabilities of tokens; offsets count the characters of the text so far."""
        offsets = []
        for event in events:
            offsets.append(self.offsets[index])
            self.offsets[index] += len(event.text)
        tops = [{each.token: each.log_prob for each in event.top_tokens or ()} for event in events]
        tokens, values = [event.token for event in events], [event.log_prob for event in events]
        return CompletionLogProbs(tokens, values, tops, offsets)

    async def chunks(self, events: AsyncIterator[TokenEvent | GeneratedResult]) -> AsyncIterator[CompletionsResponse]:
        """Yield a chunk per token that adds text, then the reason why each text ended, then the usage if asked."""
        if self.request.echo:
            for index, prompt in enumerate(self.prompts):
                yield self.chunk(CompletionChoice(prompt, index))
        results: list[GeneratedResult] = []
        async for event in events:
            if isinstance(event, GeneratedResult):
                reason = FINISH_REASONS[event.finish_reason]
                yield self.chunk(CompletionChoice("", len(results), reason))
                results.append(event)
            elif event.text or self.request.logprobs is not None:
                log_probs = self.log_probs(event.index, [event]) if self.request.logprobs is not None else None
                yield self.chunk(CompletionChoice(event.text, event.index, None, log_probs))
        if self.request.stream_options is not None and self.request.stream_options.include_usage:
            yield CompletionsResponse(self.id, self.created, self.name, [], self.usage(results))

    def chunk(self, choice: CompletionChoice) -> CompletionsResponse:
        """Return a chunk of a stream."""
        return CompletionsResponse(self.id, self.created, self.name, [choice])
