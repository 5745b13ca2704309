"""Generated text: whole, streamed, in batches, in OpenAI's format."""

import json
import math

import pytest

import polyseme
from polyseme.serve.batching.generation import StopFilter
from tests.serve.models import send

PROMPT = "The old cat"


def generate(url, **body):
    answer = send(url, "/v1/generate", {"model": "gpt2", "text": PROMPT, **body})
    assert answer.status == 200, answer.json
    return answer.json


def parse_events(content: bytes) -> list[tuple[str, dict]]:
    blocks = [block.split("\n") for block in content.decode().split("\n\n") if block]
    return [(block[0].removeprefix("event: "), json.loads(block[1].removeprefix("data: "))) for block in blocks]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "num_return_sequences": 3, "seed": 1},
        {"num_beams": 3, "num_return_sequences": 2},
        {"repetition_penalty": 1.3},
    ],
)
def test_generated_texts_are_those_of_the_model(url, models, options):
    prompts = [PROMPT, "The loud dog sees"]
    rows = generate(url, text=None, texts=prompts, max_new_tokens=8, **options)["results"]
    for row, expected in zip(rows, models["gpt2"].generate(prompts, max_new_tokens=8, **options)):
        assert [each["text"] for each in row] == [each.text for each in expected]
        assert [tuple(each["tokens"]) for each in row] == [each.tokens for each in expected]
        assert [each["score"] for each in row] == pytest.approx([each.score for each in expected], abs=1e-4)


def test_a_stream_has_every_token_and_ends_with_the_response(url):
    options = {"max_new_tokens": 8, "temperature": 1.0, "seed": 5, "num_top_tokens": 3}
    whole = generate(url, **options)
    answer = send(url, "/v1/generate", {"model": "gpt2", "text": PROMPT, "stream": True, **options})
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    *tokens, (last_name, last) = parse_events(answer.content)
    assert last_name == "done" and last == whole
    assert {name for name, _ in tokens} == {"token"}
    result = whole["results"][0][0]
    assert "".join(data["text"] for _, data in tokens) == result["text"]
    assert math.fsum(data["log_prob"] for _, data in tokens) == pytest.approx(result["score"])
    assert [data for _, data in tokens] == result["token_events"]
    for _, data in tokens:
        tops = [each["log_prob"] for each in data["top_tokens"]]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True) and tops[0] >= data["log_prob"] - 1e-6


def test_stop_strings_end_a_text(url):
    text = generate(url, max_new_tokens=12)["results"][0][0]["text"]
    stop = text[5:7]
    result = generate(url, max_new_tokens=12, stop=[stop])["results"][0][0]
    assert result["text"] == text[: text.index(stop)] and result["finish_reason"] == "stop"


def test_what_may_start_a_stop_string_is_held_back():
    stop_filter = StopFilter(["</s>", "END"])
    assert [stop_filter.push(piece) for piece in ("a <", "/", "b E", "N")] == ["a ", "", "</b ", ""]
    assert stop_filter.push("D more") == "" and stop_filter.has_stopped and stop_filter.text == "a </b "
    assert StopFilter(["xyz"]).push("ax", is_last=True) == "ax"


def test_a_long_prompt_is_cut_at_its_start_on_request(url, models):
    prompt = "the cat " * 40
    options = {"max_new_tokens": 4}
    row = generate(url, text=prompt, truncate=True, **options)
    assert row["usage"]["num_tokens"] == models["gpt2"].max_len - 4
    answer = send(url, "/v1/generate", {"model": "gpt2", "text": PROMPT, "max_new_tokens": 100})
    assert answer.status == 413 and "positions" in answer.json["error"]["message"]


def test_a_sequence_to_sequence_model(url, models):
    (row,) = generate(url, model="t5", max_new_tokens=5)["results"]
    assert row[0]["text"] == models["t5"].generate(PROMPT, max_new_tokens=5)[0].text


def test_options_without_effect_are_rejected(url):
    for options in ({"num_beams": 2, "stream": True}, {"num_beams": 2, "temperature": 0.5}, {"seed": 3}):
        answer = send(url, "/v1/generate", {"model": "gpt2", "text": PROMPT, **options})
        assert answer.status == 422, options


def test_concurrent_generations_do_not_change_each_other(url, models):
    from concurrent.futures import ThreadPoolExecutor

    prompts = [f"The old cat sees the {word}" for word in ("dog", "wolf in", "bird in the", "seal in the garden.")] * 3
    with ThreadPoolExecutor(12) as pool:
        rows = list(pool.map(lambda prompt: generate(url, text=prompt, max_new_tokens=20)["results"][0][0], prompts))
    for prompt, row in zip(prompts, rows):
        (expected,) = models["gpt2"].generate(prompt, max_new_tokens=20)
        assert row["text"] == expected.text and row["score"] == pytest.approx(expected.score, abs=1e-4)


# ------------------------------------------------------------------------------------------------------ OpenAI


@pytest.fixture(scope="module")
def openai_client(url):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    yield client
    client.close()


def test_openai_embeddings(openai_client, models):
    import numpy as np

    texts = ["The old cat", "The young dog sees"]
    expected = models["bert"].embed(texts)
    response = openai_client.embeddings.create(model="bert", input=texts)  # asks for base64
    np.testing.assert_allclose([each.embedding for each in response.data], expected, atol=1e-5)
    floats = openai_client.embeddings.create(model="bert", input=texts[0], encoding_format="float")
    np.testing.assert_allclose(floats.data[0].embedding, expected[0], atol=1e-5)
    assert response.usage.prompt_tokens == sum(len(models["bert"].tokenizer.encode(text)) for text in texts)
    assert [model.id for model in openai_client.models.list()] == list(models)


def test_openai_completions(openai_client, models):
    options = {"model": "gpt2", "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    response = openai_client.completions.create(**options, logprobs=2)
    (expected,) = models["gpt2"].generate(PROMPT, max_new_tokens=6)
    choice = response.choices[0]
    assert choice.text == expected.text
    assert choice.finish_reason == ("stop" if expected.is_finished else "length")
    assert response.usage.completion_tokens == len(expected.tokens)
    assert math.fsum(choice.logprobs.token_logprobs) == pytest.approx(expected.score, abs=1e-4)
    assert all(len(tops) == 2 for tops in choice.logprobs.top_logprobs)
    chunks = list(openai_client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected.text
    assert chunks[-1].usage.completion_tokens == len(expected.tokens) and chunks[-2].choices[0].finish_reason
    echoed = openai_client.completions.create(**options, echo=True)
    assert echoed.choices[0].text == PROMPT + expected.text
    sampled = openai_client.completions.create(model="gpt2", prompt=[PROMPT, "The"], n=2, seed=1, max_tokens=4)
    assert [choice.index for choice in sampled.choices] == [0, 1, 2, 3]


def test_openai_errors_have_a_message(openai_client):
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.NotFoundError, match="no model"):
        openai_client.embeddings.create(model="nothing", input="a")
    with pytest.raises(openai.UnprocessableEntityError, match="supported"):
        openai_client.completions.create(model="bert", prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="best_of"):
        openai_client.completions.create(model="gpt2", prompt="a", best_of=3)


# ------------------------------------------------------------------------------------------------------ client


def test_the_client_has_the_methods_and_results_of_a_loaded_model(url, models):
    import numpy as np

    texts = ["The old cat", "The young dog sees"]
    remote, local = polyseme.connect(url, "bert"), models["bert"]
    assert set(remote.capabilities) == set(local.capabilities) - {"score_last_words", "attribute"}
    np.testing.assert_allclose(remote.embed(texts), local.embed(texts), atol=1e-5)
    np.testing.assert_allclose(remote.embed(texts[0]), local.embed(texts[0]), atol=1e-5)
    np.testing.assert_allclose(
        remote.embed(texts[1], granularity="word"), local.embed(texts[1], granularity="word"), atol=1e-5
    )
    assert remote.encode(texts[0]) == local.encode(texts[0])
    (mask,), (expected,) = remote.fill("the [MASK] sat"), local.fill("the [MASK] sat")
    assert [each.token for each in mask] == [each.token for each in expected]
    assert remote.score(texts[0]).log_prob == pytest.approx(local.score(texts[0]).log_prob, abs=1e-4)
    assert remote.next_sentence(*texts) == pytest.approx(local.next_sentence(*texts), abs=1e-5)
    np.testing.assert_allclose(remote.attention(texts[0])["self"].weights, local.attention(texts[0])["self"].weights)
    with pytest.raises(polyseme.UnsupportedError):
        remote.generate("a")
    with pytest.raises(polyseme.DataError, match="tokens"):
        remote.embed("the cat " * 100)


def test_the_client_predicts_and_generates(url, models):
    for name, example in {
        "classify": "The old cat",
        "pairs": ("The cat", "a dog"),
        "number": "The old cat",
        "tag": ("The", "old", "cat"),
        "choice": ("The cat", ("a dog", "a fish")),
    }.items():
        remote, local = polyseme.connect(url, name).predict(example), models[name].predict(example)
        assert type(remote) is type(local) and remote.value == pytest.approx(local.value, abs=1e-5)
    assert (
        polyseme.connect(url, "answer").answer("The cat sat.", "Who?").text
        == models["answer"].answer("The cat sat.", "Who?").text
    )
    remote, local = polyseme.connect(url, "gpt2"), models["gpt2"]
    (text,), (expected,) = remote.generate(PROMPT, max_new_tokens=5), local.generate(PROMPT, max_new_tokens=5)
    assert (text.text, text.tokens, text.is_finished) == (expected.text, expected.tokens, expected.is_finished)
    assert "".join(remote.stream(PROMPT, max_new_tokens=5)) == expected.text
    choices = ["sees", "in the river"]
    assert remote.rank_choices(PROMPT, choices).best_index == local.rank_choices(PROMPT, choices).best_index
    assert polyseme.connect(url, "vectors").neighbors("cat", 2) == models["vectors"].neighbors("cat", 2)
    remote = polyseme.connect(url, "t5")
    assert remote.translate(PROMPT, max_new_tokens=4).text == models["t5"].translate(PROMPT, max_new_tokens=4).text


def test_the_client_names_the_problem(url):
    with pytest.raises(polyseme.ModelError, match="did you mean 'bert'"):
        polyseme.connect(url, "brt")
    with pytest.raises(polyseme.ConfigError, match=r"http://127\.0\.0\.1:8000"):
        polyseme.connect("127.0.0.1")
    with pytest.raises(polyseme.ModelError, match="cannot reach"):
        polyseme.connect("http://127.0.0.1:9", timeout=2)
    assert len(polyseme.connect(url, "bert").embed(["the cat"] * 300)) == 300
