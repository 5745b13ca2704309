"""The application: its routes and endpoints."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from polyseme.errors import PolysemeError
from polyseme.serve.admission import AdmissionMiddleware
from polyseme.serve.api.errors import ERROR_STATUS, RequestError, to_request_error
from polyseme.serve.api.openapi import openapi_document
from polyseme.serve.api.requests import CompletionsRequest, EmbeddingsRequest, GenerateRequest
from polyseme.serve.api.responses import ModelsResponse, OpenAIModel, OpenAIModelsResponse
from polyseme.serve.config import AppConfig
from polyseme.serve.handling import (
    call_sized,
    error_response,
    find_model,
    json_response,
    read_request,
    resolve_timeout,
    run_plan,
)
from polyseme.serve.openai_format import plan_embeddings
from polyseme.serve.registry import ModelRegistry, ServedModel
from polyseme.serve.security import SecurityMiddleware
from polyseme.serve.state import ServerState
from polyseme.serve.streaming import answer_completions, answer_generate
from polyseme.serve.verbs import PLANS
from polyseme.serve.verbs.plan import Plan

logger = logging.getLogger(__name__)
PACKAGE = Path(__file__).parent


def create_app(registry: ModelRegistry, config: AppConfig | None = None) -> Starlette:
    """Return the application, which starts its workers when a server starts it."""
    config = config or AppConfig()
    state = ServerState(registry, config)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state.start()
        try:
            yield
        finally:
            await asyncio.to_thread(state.close)

    routes = [
        Route("/v1/embeddings", _measured("embeddings", embeddings), methods=["POST"]),
        *(Route(f"/v1/{verb}", _measured(verb, _verb_endpoint(verb)), methods=["POST"]) for verb in PLANS),
        Route("/v1/generate", _measured("generate", generate), methods=["POST"]),
        Route("/v1/completions", _measured("completions", completions), methods=["POST"]),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/models", list_models),
        Route("/v1/models", list_openai_models),
        Route("/openapi.json", openapi),
        Route("/docs", docs),
        Route("/", playground),
        Mount("/playground", StaticFiles(directory=PACKAGE / "playground")),
        Mount("/docs", StaticFiles(directory=PACKAGE / "pages")),
    ]
    verbs = {f"/v1/{verb}": verb for verb in ("embeddings", *PLANS, "generate", "completions")}
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(SecurityMiddleware, token=config.token, hosts=config.hosts),
            Middleware(AdmissionMiddleware, state=state, verbs=verbs),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _unexpected_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.server = state
    return app


Endpoint = Callable[[Request], Awaitable[Response]]


def _measured(verb: str, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with its time and status counted, and errors as responses."""

    async def measured(request: Request) -> Response:
        state: ServerState = request.app.state.server
        start = time.perf_counter()
        state.num_in_flight += 1
        try:
            response = await endpoint(request)
        except asyncio.CancelledError:
            response = Response(status_code=499)  # nobody receives it
        except Exception as error:
            if not isinstance(error, PolysemeError):
                logger.error(f"a request for {verb} failed: {type(error).__name__}", exc_info=error)
            response = error_response(to_request_error(error))
        finally:
            state.num_in_flight -= 1
        state.record_request(verb, response.status_code, time.perf_counter() - start)
        return response

    return measured


def _verb_endpoint(verb: str) -> Endpoint:
    """Return the endpoint of a verb that is computed at once."""
    cls, _, make_plan = PLANS[verb]

    async def endpoint(request: Request) -> Response:
        return await answer_plan(request, verb, cls, make_plan)

    return endpoint


async def answer_plan(
    request: Request, verb: str, cls: type[Any], make_plan: Callable[[ServedModel, Any], Plan]
) -> Response:
    """Answer a request by a plan."""
    state: ServerState = request.app.state.server
    body, size = await read_request(request, cls)
    served, worker = find_model(state, body, verb)
    timeout = resolve_timeout(state, request, body)
    start = time.perf_counter()
    plan = await call_sized(size, make_plan, served, body)
    state.metrics.observe("polyseme_encode_seconds", time.perf_counter() - start, model=served.name)
    worker.record_size(plan.num_tokens, size)
    return await run_plan(state, worker, plan, request, timeout)


async def embeddings(request: Request) -> Response:
    """Answer OpenAI's request for embeddings."""
    return await answer_plan(request, "embed", EmbeddingsRequest, plan_embeddings)


async def generate(request: Request) -> Response:
    """Generate texts, all at once or as a stream."""
    state: ServerState = request.app.state.server
    body, size = await read_request(request, GenerateRequest)
    served, worker = find_model(state, body, "generate")
    return await answer_generate(state, served, worker, request, body, size)


async def completions(request: Request) -> Response:
    """Answer OpenAI's request for completions."""
    state: ServerState = request.app.state.server
    body, size = await read_request(request, CompletionsRequest)
    served, worker = find_model(state, body, "generate")
    return await answer_completions(state, served, worker, request, body, size)


# ------------------------------------------------------------------------------------------------- information


async def health(request: Request) -> Response:
    """Answer that the process is alive."""
    return json_response({"status": "ok"})


async def ready(request: Request) -> Response:
    """Answer whether requests are accepted."""
    state: ServerState = request.app.state.server
    if not state.is_ready:
        return error_response(RequestError("unavailable", "the server is starting or shutting down"))
    return json_response({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    state: ServerState = request.app.state.server
    return PlainTextResponse(state.format_metrics(), media_type="text/plain; version=0.0.4")


async def list_models(request: Request) -> Response:
    """Return all models with their verbs and examples."""
    state: ServerState = request.app.state.server
    return json_response(ModelsResponse([served.info for served in state.registry.models.values()]))


async def list_openai_models(request: Request) -> Response:
    """Return the names of all models in OpenAI's format."""
    state: ServerState = request.app.state.server
    return json_response(OpenAIModelsResponse([OpenAIModel(name, state.created) for name in state.registry.models]))


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return json_response(openapi_document())


async def docs(request: Request) -> Response:
    """Return the page that shows the OpenAPI document."""
    return FileResponse(PACKAGE / "pages" / "docs.html")


async def playground(request: Request) -> Response:
    """Return the playground."""
    return FileResponse(PACKAGE / "playground" / "index.html")


async def _http_error(request: Request, error: Exception) -> Response:
    """Return errors of routing in our format."""
    assert isinstance(error, HTTPException)
    types = {404: "not_found", 405: "method_not_allowed"}
    error_type = types.get(error.status_code, "invalid_request")
    message = f"there is no {request.method} {request.url.path[:80]}; /docs lists what there is"
    response = error_response(RequestError(error_type, message, dict(error.headers or {})))
    response.status_code = error.status_code if error.status_code in ERROR_STATUS.values() else response.status_code
    return response


async def _unexpected_error(request: Request, error: Exception) -> Response:
    return error_response(to_request_error(error))
