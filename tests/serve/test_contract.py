"""The OpenAPI document describes what the server does: generated and fuzzed requests never get status 500."""

import http.client
import json
import random

import pytest

from polyseme.serve.api.openapi import openapi_document
from polyseme.serve.verbs import PLANS
from tests.serve.models import send

PATHS = [f"/v1/{verb}" for verb in (*PLANS, "generate", "embeddings", "completions")]
ALLOWED = {200, 400, 404, 413, 415, 422}


def test_every_route_is_described(url):
    document = send(url, "/openapi.json").json
    assert document == json.loads(json.dumps(openapi_document()))
    assert set(PATHS) <= set(document["paths"])
    names = set(document["components"]["schemas"])
    references = {part.split('"')[0].split("/")[-1] for part in json.dumps(document).split('"$ref": "')[1:]}
    assert references <= names


def check_operation(url, operation, mode, num_requests):
    """Send valid or invalid requests of one operation; return the statuses of the responses."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    statuses, documented = set(), operation.definition.raw["responses"]

    @seed(1)
    @settings(
        max_examples=num_requests,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        response = case.call(base_url=url, timeout=30)
        statuses.add(response.status_code)
        assert str(response.status_code) in documented or response.status_code == 405, (case.body, response.text)
        if response.status_code != 200:
            error = response.json()["error"]
            assert error["type"] and error["message"]
            is_too_late = error["type"] == "deadline_exceeded"  # of a timeout of nearly 0
            assert response.status_code < 500 or is_too_late, (case.body, response.text)

    check()
    return statuses


def check_generated_requests(url, num_requests):
    """Send requests that schemathesis generates from the document and check each response."""
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    posts = [each.ok() for each in schema.get_all_operations() if each.ok().method == "post"]
    modes = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
    number = max(num_requests // (2 * len(posts)), 1)
    statuses = [check_operation(url, operation, mode, number) for operation in posts for mode in modes]
    assert {200, 422} <= set().union(*statuses)


def test_requests_generated_from_the_document(url):
    check_generated_requests(url, 34)


@pytest.mark.slow
def test_2000_requests_generated_from_the_document(url):
    check_generated_requests(url, 2000)


def fuzz_body(rng: random.Random, names: list[str]) -> bytes:
    """Return a valid body that was broken in one of many ways."""
    words = ["the", "cat", "[MASK]", "", " ", "\x00", "é" * 50, "猫", "a" * 3000, "\ud83d\ude00", "the " * 200]
    values = [
        *words,
        *(0, 1, -1, 2**63, 1e308, -0.5, True, False, None, [], {}, ["the", 3], [["the"]], [None], {"a": 1}),
        *(["the cat", "the [MASK]"], ["x"] * 300, "last", "all", "float", "base64", 10**30),
    ]
    fields = [
        *("text", "texts", "model", "timeout", "top_k", "layers", "granularity", "truncate", "encoding_format", "pair"),
        *("pairs", "words", "predicate", "question", "questions", "choices", "choice_lists", "normalization", "query"),
        *("examples", "max_new_tokens", "temperature", "top_p", "seed", "num_beams", "num_return_sequences", "stop"),
        *("stream", "prefix", "num_top_tokens", "input", "prompt", "n", "logprobs", "echo", "max_tokens", "target"),
    ]
    body = {"model": rng.choice(names), "text": rng.choice(words[:8]), "max_new_tokens": 3}
    for _ in range(rng.randint(0, 5)):
        body[rng.choice(fields)] = rng.choice(values)
    data = json.dumps(body).encode()
    kind = rng.random()
    if kind < 0.2:
        place = rng.randrange(len(data))
        return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    if kind < 0.3:
        return data[: rng.randrange(len(data))]
    if kind < 0.35:
        return rng.randbytes(rng.randint(0, 200))
    if kind < 0.38:
        return b"[" * rng.randint(1, 100_000)
    return data


def check_fuzzed_bodies(url, num_bodies):
    """Send broken bodies over one connection; every one is answered."""
    rng, statuses = random.Random(7), {}
    names = [info["name"] for info in send(url, "/models").json["models"]] + ["", "nothing"]
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    for _ in range(num_bodies):
        body, path = fuzz_body(rng, names), rng.choice(PATHS)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        assert response.status in ALLOWED, (path, body[:300], content[:300])
        if response.status != 200:
            assert set(json.loads(content)["error"]) == {"type", "message"}
        statuses[response.status] = statuses.get(response.status, 0) + 1
    connection.close()
    assert {200, 400, 422} <= set(statuses), statuses
    assert send(url, "/health").status == 200


def test_fuzzed_bodies(url):
    check_fuzzed_bodies(url, 300)


@pytest.mark.slow
def test_10000_fuzzed_bodies(url):
    check_fuzzed_bodies(url, 10_000)
