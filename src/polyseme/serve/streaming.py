"""Responses of text generation: whole, or as server-sent events."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from polyseme.errors import ConfigError, PolysemeError
from polyseme.generation.config import GenerationConfig
from polyseme.serve.api.errors import RequestError, to_request_error
from polyseme.serve.api.requests import CompletionsRequest, GenerateRequest
from polyseme.serve.api.responses import GeneratedResult, GenerateResponse, TokenEvent, Usage
from polyseme.serve.api.schema import to_plain
from polyseme.serve.batching.generation import TextGeneration
from polyseme.serve.batching.worker import ModelWorker
from polyseme.serve.handling import call_sized, json_response, resolve_timeout, run_plan, wait_until
from polyseme.serve.openai_format import CompletionFormatter, start_completions
from polyseme.serve.registry import ServedModel
from polyseme.serve.state import ServerState
from polyseme.serve.verbs.plan import Plan, count_usage

logger = logging.getLogger(__name__)
SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def answer_generate(
    state: ServerState, served: ServedModel, worker: ModelWorker, request: Request, body: GenerateRequest, size: int
) -> Response:
    """Answer `/v1/generate`; beam search has no stream."""
    timeout = resolve_timeout(state, request, body)
    config = body.generation_config()
    if config.num_beams:
        if body.stream or body.stop or body.num_top_tokens:
            raise ConfigError("num_beams is set: beam search has no stream, stop and num_top_tokens")
        return await run_plan(state, worker, await call_sized(size, plan_beams, served, body), request, timeout)
    generation = await call_sized(size, start_generation, served, body, config)

    def respond(results: list[GeneratedResult]) -> GenerateResponse:
        copies = config.num_return_sequences
        rows = [results[i : i + copies] for i in range(0, len(results), copies)]
        num_generated = sum(len(each.tokens) for each in results)
        state.metrics.count("polyseme_generated_tokens_total", num_generated, model=served.name)
        return GenerateResponse(served.name, rows, Usage(generation.num_prompt_tokens, num_generated))

    submit(worker, generation)
    if body.stream:
        return StreamingResponse(sse_events(generation, respond, timeout), 200, SSE_HEADERS, "text/event-stream")
    try:
        results = await wait_until(request, collect(generation), timeout)
    finally:
        generation.cancel()
    return json_response(respond(results))


def start_generation(served: ServedModel, body: GenerateRequest, config: GenerationConfig) -> TextGeneration:
    """Return the generation that a request asks for."""
    options: dict[str, Any] = {"prefix": body.prefix, "stop": body.stop, "num_top_tokens": body.num_top_tokens}
    generator = served.model._text_generator
    generation = TextGeneration(generator, body.all_texts, config, **options, truncate=body.truncate)
    generation.keeps_events, generation.is_streamed = body.num_top_tokens > 0, body.stream
    return generation


def plan_beams(served: ServedModel, body: GenerateRequest) -> Plan:
    """Generate by beam search."""
    config, texts = body.generation_config(), body.all_texts
    if not config.max_new_tokens and not served.model.is_seq2seq:
        sized = TextGeneration(served.model._text_generator, texts, config.replace(num_beams=0), body.prefix)
        config = config.replace(max_new_tokens=sized.max_new_tokens)
    usage = count_usage(served, texts)

    def run(inputs: Any) -> Any:
        return served.model.generate(list(inputs), config, prefix=body.prefix)

    def respond(results: Any) -> GenerateResponse:
        rows = [
            [
                GeneratedResult(
                    text.text, list(text.tokens), text.score, text.is_finished, "eos" if text.is_finished else "length"
                )
                for text in texts
            ]
            for texts in results
        ]
        num_generated = sum(len(text.tokens) for texts in rows for text in texts)
        return GenerateResponse(served.name, rows, Usage(usage.num_tokens, num_generated))

    return Plan(("beams", config, body.prefix), texts, usage.num_tokens * config.num_beams, run, respond)


async def answer_completions(
    state: ServerState, served: ServedModel, worker: ModelWorker, request: Request, body: CompletionsRequest, size: int
) -> Response:
    """Answer `/v1/completions`."""
    timeout = resolve_timeout(state, request, body)
    generation = await call_sized(size, start_completions, served, body)
    formatter = CompletionFormatter(served, body, generation)
    submit(worker, generation)
    if body.stream:
        return StreamingResponse(sse_chunks(generation, formatter, timeout), 200, SSE_HEADERS, "text/event-stream")
    try:
        results = await wait_until(request, collect(generation), timeout)
    finally:
        generation.cancel()
    return json_response(formatter.respond(results))


def submit(worker: ModelWorker, generation: TextGeneration) -> None:
    """Give a generation to a worker; its events come to this event loop."""
    generation.loop = asyncio.get_running_loop()
    worker.submit(generation)


async def iter_events(
    generation: TextGeneration, timeout: float | None = None
) -> AsyncIterator[TokenEvent | GeneratedResult]:
    """Yield the events of a generation; raise its error, or at the deadline. Leaving the loop cancels it."""
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout
    try:
        while True:
            rest = None if end is None else end - loop.time()
            event = await asyncio.wait_for(generation.events.get(), rest)
            if event is None:
                return
            if isinstance(event, BaseException):
                raise event
            yield event
    except TimeoutError:
        message = f"the request took longer than its timeout of {timeout:g} s"
        raise RequestError("deadline_exceeded", message) from None
    finally:
        generation.cancel()


async def collect(generation: TextGeneration) -> list[GeneratedResult]:
    """Return the whole texts of a generation."""
    return [event async for event in iter_events(generation) if isinstance(event, GeneratedResult)]


async def sse_events(generation: TextGeneration, respond: Any, timeout: float) -> AsyncIterator[str]:
    """Yield events `token`, and at the end `done` with the whole response, or `error`."""
    results: list[GeneratedResult] = []
    try:
        async for event in iter_events(generation, timeout):
            if isinstance(event, TokenEvent):
                yield format_event(event, "token")
            else:
                results.append(event)
        yield format_event(respond(results), "done")
    except Exception as error:
        yield format_event(_stream_error(error), "error")


async def sse_chunks(generation: TextGeneration, formatter: CompletionFormatter, timeout: float) -> AsyncIterator[str]:
    """Yield OpenAI's chunks, then `[DONE]`."""
    try:
        async for chunk in formatter.chunks(iter_events(generation, timeout)):
            yield format_event(chunk)
        yield "data: [DONE]\n\n"
    except Exception as error:
        yield format_event(_stream_error(error))


def _stream_error(error: Exception) -> dict[str, Any]:
    if not isinstance(error, PolysemeError):
        logger.error(f"a stream failed: {type(error).__name__}", exc_info=error)
    return to_request_error(error).to_json()


def format_event(content: Any, name: str = "") -> str:
    """Return a server-sent event with JSON as its data."""
    data = json.dumps(to_plain(content), ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n"
