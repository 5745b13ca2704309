"""The OpenAPI document, generated from the dataclasses of requests and responses."""

from functools import cache
from typing import Any

from polyseme import __version__
from polyseme.serve.api import requests, responses
from polyseme.serve.api.errors import ERROR_STATUS
from polyseme.serve.api.schema import json_schema
from polyseme.serve.verbs import PLANS

SUMMARIES = {
    "fill": "Predict masked tokens",
    "embed": "Vectors of texts, words or tokens",
    "score": "Log-probabilities of texts",
    "classify": "Labels or numbers of texts and pairs",
    "tag": "Tags of words",
    "answer": "Answers to questions in a text",
    "choose": "Choose among several texts",
    "rerank": "Order texts by a query",
    "generate": "Generate text, also as a stream",
    "translate": "Translate texts",
    "neighbors": "Words with similar vectors",
    "predict": "Predict examples of any task",
    "attention": "Attention weights",
    "encode": "Tokens as the model reads them",
    "next_sentence": "Whether a text follows another",
    "embeddings": "OpenAI's embeddings",
    "completions": "OpenAI's completions",
}
_POST_ERRORS = (400, 401, 403, 404, 413, 415, 422, 429, 503)


@cache
def openapi_document() -> dict[str, Any]:
    """Return the document."""
    schemas: dict[str, Any] = {"Error": _error_schema()}
    endpoints: dict[str, tuple[type, type]] = {verb: (cls, response) for verb, (cls, response, _) in PLANS.items()}
    endpoints["generate"] = requests.GenerateRequest, responses.GenerateResponse
    endpoints["embeddings"] = requests.EmbeddingsRequest, responses.EmbeddingsResponse
    endpoints["completions"] = requests.CompletionsRequest, responses.CompletionsResponse
    paths: dict[str, Any] = {}
    for verb in SUMMARIES:
        request, response = endpoints[verb]
        schema, streams = json_schema(response, schemas), verb in ("generate", "completions")
        paths[f"/v1/{verb}"] = {"post": _operation(verb, json_schema(request, schemas), schema, streams)}
    json_schema(responses.TokenEvent, schemas)
    status = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    paths["/models"] = {"get": _get("models", "All models", json_schema(responses.ModelsResponse, schemas))}
    openai_models = json_schema(responses.OpenAIModelsResponse, schemas)
    paths["/v1/models"] = {"get": _get("openai_models", "All models in OpenAI's format", openai_models)}
    paths["/health"] = {"get": _get("health", "Whether the process is alive", status)}
    paths["/ready"] = {"get": _get("ready", "Whether requests are accepted", status, 503)}
    metrics = _get("metrics", "Metrics in Prometheus' text format", {"type": "string"}, media_type="text/plain")
    paths["/metrics"] = {"get": metrics}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Polyseme", "version": __version__, "description": "Language models behind one port."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


def _error_schema() -> dict[str, Any]:
    fields = {"type": {"type": "string", "enum": list(ERROR_STATUS)}, "message": {"type": "string"}}
    error = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}


def _errors(*statuses: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    types = {status: [name for name, each in ERROR_STATUS.items() if each == status] for status in statuses}
    return {str(status): {"description": ", ".join(types[status]), "content": content} for status in statuses}


def _operation(verb: str, request: dict[str, Any], response: dict[str, Any], streams: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": response}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    header = {
        "name": "X-Timeout",
        "in": "header",
        "required": False,
        "description": "Seconds until the deadline, unless the body has a timeout.",
        "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600},
    }
    return {
        "operationId": verb,
        "summary": SUMMARIES[verb],
        "parameters": [header],
        "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
        "responses": {"200": {"description": "The results", "content": content}, **_errors(*_POST_ERRORS)},
    }


def _get(
    name: str, summary: str, schema: dict[str, Any], *errors: int, media_type: str = "application/json"
) -> dict[str, Any]:
    success = {"description": summary, "content": {media_type: {"schema": schema}}}
    return {"operationId": name, "summary": summary, "responses": {"200": success, **_errors(401, 403, *errors)}}
