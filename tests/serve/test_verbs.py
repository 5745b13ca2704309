"""Every verb answers what the Python API answers, and rejects what the model cannot do."""

import base64
import re

import numpy as np
import pytest

from polyseme.serve.registry import VERBS
from polyseme.serve.verbs import PLANS
from tests.serve.models import TEXTS, send


def post(url, verb, **body):
    answer = send(url, f"/v1/{verb}", body)
    assert answer.status == 200, answer.json
    assert answer.json["model"] == body["model"]
    return answer.json["results"]


def test_models_list_their_verbs_and_examples_that_work(url):
    models = send(url, "/models").json["models"]
    covered = set()
    for info in models:
        assert list(info["examples"]) == info["verbs"]
        for verb, body in info["examples"].items():
            answer = send(url, f"/v1/{verb}", {**body, "model": info["name"]})
            assert answer.status == 200, (verb, answer.json)
            covered.add(verb)
    assert covered == set(VERBS) == {*PLANS, "generate"}


def test_fill(url, models):
    texts = ["The [MASK] cat sees the [MASK].", "The old [MASK]"]
    rows = post(url, "fill", model="bert", texts=texts, top_k=3)
    expected = models["bert"].fill(texts, top_k=3)
    assert [[[c["token"] for c in mask] for mask in row] for row in rows] == [
        [[c.token for c in mask] for mask in row] for row in expected
    ]
    assert rows[1][0][0]["probability"] == pytest.approx(expected[1][0][0].probability, abs=1e-5)


@pytest.mark.parametrize("granularity", ["text", "word", "token"])
@pytest.mark.parametrize("layers", ["last", "sum_all", "all", 0])
def test_embed(url, models, granularity, layers):
    options = {"granularity": granularity, "layers": layers}
    rows = post(url, "embed", model="bert", texts=TEXTS[:3], encoding_format="base64", **options)
    plain = post(url, "embed", model="bert", texts=TEXTS[:3], **options)
    for row, floats, expected in zip(rows, plain, models["bert"].embed(TEXTS[:3], **options)):
        vectors = np.frombuffer(base64.b64decode(row["vectors"]), "<f4").reshape(row["shape"])
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
        np.testing.assert_allclose(floats["vectors"], expected, atol=1e-5)
        if granularity != "text":
            assert len(row["units"]) == len(expected)
    if granularity == "word":
        assert " ".join(rows[0]["units"]).replace(" .", ".") == TEXTS[0].lower()


def test_score(url, models):
    for name in ("bert", "gpt2"):
        rows = post(url, "score", model=name, texts=TEXTS[:2])
        for row, expected in zip(rows, models[name].score(TEXTS[:2])):
            assert row["log_prob"] == pytest.approx(expected.log_prob, abs=1e-4)
            assert (row["num_tokens"], row["perplexity"]) == (expected.num_tokens, pytest.approx(expected.perplexity))


def test_classify(url, models):
    for row, expected in zip(post(url, "classify", model="classify", texts=TEXTS), models["classify"].predict(TEXTS)):
        assert row["label"] == expected.label
        assert row["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
    (row,) = post(url, "classify", model="pairs", text=TEXTS[0], pair=TEXTS[1])
    assert row["label"] == models["pairs"].predict((TEXTS[0], TEXTS[1])).label
    (row,) = post(url, "classify", model="number", text=TEXTS[0])
    assert row["number"] == pytest.approx(models["number"].predict(TEXTS[0]).number, abs=1e-5)


def test_a_model_over_features(url, models):
    rows = post(url, "classify", model="features", texts=TEXTS)
    assert [row["label"] for row in rows] == [each.label for each in models["features"].predict(TEXTS)]


def test_n_grams(url, models):
    (row,) = post(url, "score", model="ngram", text="the cat sat")
    assert row["log_prob"] == pytest.approx(-(0.2 + 0.3 + 0.3) * np.log(10), rel=1e-5)
    (row,) = post(url, "generate", model="ngram", text="the")
    assert row[0]["text"].strip() == "cat sat" and row[0]["finish_reason"] == "eos"


def test_tag(url, models):
    text = TEXTS[0]
    (row,) = post(url, "tag", model="tag", text=text)
    expected = models["tag"].predict(text)
    assert tuple(row["tags"]) == expected.tags and row["words"] == text.split()
    assert [text[start:end] for start, end in row["offsets"]] == row["words"]
    assert all(text[span["start"] : span["end"]] == span["text"] and span["label"] == "X" for span in row["spans"])
    (words,) = post(url, "tag", model="tag", words=[text.split()])
    assert words["tags"] == row["tags"]


def test_tags_of_one_entity_are_one_span():
    from polyseme.serve.verbs.task_models import tag_result
    from polyseme.tasks.tagging import Tagging

    words, tags = ["a", "b", "c", "d", "e", "f"], ("B-X", "I-X", "O", "I-Y", "B-Y", "NOUN")
    row = tag_result("a b  c d e f", words, Tagging(tags, (1.0,) * 6))
    spans = [(span.label, span.text) for span in row.spans]
    assert spans == [("X", "a b"), ("Y", "d"), ("Y", "e"), ("NOUN", "f")]


def test_answer(url, models):
    question = "What does the cat see?"
    (row,) = post(url, "answer", model="answer", text=TEXTS[0], question=question)
    expected = models["answer"].answer(TEXTS[0], question)
    assert (row["text"], row["start"], row["end"]) == (expected.text, expected.start, expected.end)
    assert row["probability"] == pytest.approx(expected.probability, abs=1e-5)


def test_choose(url, models):
    choices = ["sees the dog", "in the river"]
    (row,) = post(url, "choose", model="gpt2", text="The old cat", choices=choices)
    expected = models["gpt2"].rank_choices("The old cat", choices)
    assert row["best_index"] == expected.best_index and row["best"] == choices[expected.best_index]
    assert row["scores"] == pytest.approx(expected.normalized_scores, abs=1e-4)
    (row,) = post(url, "choose", model="choice", text="The old cat", choices=choices)
    assert row["best_index"] == int(models["choice"].predict(("The old cat", choices)).label)
    assert sum(row["scores"]) == pytest.approx(1)


def test_rerank(url, models):
    rows = post(url, "rerank", model="bert", query=TEXTS[2], texts=TEXTS, top_k=3)
    assert rows[0]["index"] == 2 and rows[0]["score"] == pytest.approx(1, abs=1e-5) and len(rows) == 3
    vectors = models["bert"].embed(TEXTS)
    cosines = vectors @ vectors[2] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[2])
    assert [row["index"] for row in rows] == np.argsort(-cosines)[:3].tolist()
    scores = [row["score"] for row in post(url, "rerank", model="pairs", query="a cat", texts=TEXTS)]
    assert scores == sorted(scores, reverse=True)


def test_translate(url, models):
    rows = post(url, "translate", model="t5", texts=TEXTS[:2], max_new_tokens=5)
    expected = models["t5"].translate(TEXTS[:2], max_new_tokens=5)
    assert [row["text"] for row in rows] == [each.text for each in expected]


def test_neighbors(url, models):
    (row,) = post(url, "neighbors", model="vectors", text="cat", top_k=3)
    expected = models["vectors"].neighbors("cat", 3)
    assert [(each["word"], pytest.approx(each["similarity"])) for each in row] == expected
    answer = send(url, "/v1/neighbors", {"model": "vectors", "text": "unknownword"})
    assert answer.status == 422 and "not in the vocabulary" in answer.json["error"]["message"]


def test_attention(url, models):
    (row,) = post(url, "attention", model="bert", text=TEXTS[0])
    expected = models["bert"].attention(TEXTS[0])["self"]
    np.testing.assert_allclose(row["weights"], expected.weights, atol=1e-5)
    assert row["queries"] == expected.queries


def test_a_verb_that_the_model_lacks_names_those_that_it_has(url):
    answer = send(url, "/v1/generate", {"model": "bert", "text": "The"})
    assert answer.status == 422 and answer.json["error"]["type"] == "unsupported"
    assert "supported: fill, embed" in answer.json["error"]["message"]


def test_models_are_selected_by_name_only(url, tmp_path):
    for name in ("nothing", str(tmp_path), "../bert", "mini"):
        answer = send(url, "/v1/embed", {"model": name, "text": "The"})
        assert answer.status == 404 and answer.json["error"]["type"] == "model_not_found"


def test_a_text_that_is_too_long_is_rejected_with_its_length(url, models):
    text = "the cat " * 100
    for verb, model in (("embed", "bert"), ("score", "gpt2"), ("generate", "gpt2")):
        answer = send(url, f"/v1/{verb}", {"model": model, "text": text})
        length = len(models[model].tokenizer.encode(text))
        assert answer.status == 413 and answer.json["error"]["type"] == "too_long"
        message = answer.json["error"]["message"]
        assert int(re.search(r"(\d+) tokens", message)[1]) - length in (0, 1, 2)  # with special tokens
    (row,) = post(url, "embed", model="bert", text=text, truncate=True)
    np.testing.assert_allclose(row["vectors"], models["bert"].embed(text, truncate=True), atol=1e-5)
    answer = send(url, "/v1/classify", {"model": "classify", "text": text})
    assert answer.status == 422 and "tokens" in answer.json["error"]["message"]
    post(url, "classify", model="classify", text=text, truncate=True)


@pytest.mark.parametrize(
    "body,status,part",
    [
        (b"{", 400, "not valid JSON"),
        (b"\xff", 400, "not UTF-8"),
        (b"[" * 200 + b"]" * 200, 400, "levels deep"),
        (b"[]", 422, "expected an object"),
        (b'{"text": "a", "text": "b"}', 400, "twice"),
        (b"{}", 422, "either `text` or `texts`"),
        (b'{"text": "a", "texts": ["b"]}', 422, "not both"),
        (b'{"text": 1}', 422, "text is 1"),
        (b'{"text": "a", "txet": 1}', 422, "did you mean 'text'"),
        (b'{"texts": []}', 422, "at least 1"),
        (b'{"texts": ["a", ""]}', 422, "has no tokens"),
        (b'{"text": "the", "layers": "lats"}', 422, "last"),
        (b'{"text": "the", "layers": 17}', 422, "17"),
        (b'{"text": "the", "timeout": 0}', 422, "timeout"),
        (b'{"text": "the", "timeout": NaN}', 422, "finite"),
        (b'{"text": "' + b"a" * (2 << 20) + b'"}', 413, "bytes"),
    ],
)
def test_bad_requests_get_one_clear_line(url, body, status, part):
    answer = send(url, "/v1/embed", body)
    assert answer.status == status, answer.json
    error = answer.json["error"]
    assert part in error["message"] and "\n" not in error["message"] and set(error) == {"type", "message"}


def test_other_paths_and_methods(url):
    assert send(url, "/nothing").status == 404
    assert send(url, "/v1/embed").status == 405
    assert send(url, "/health").json == {"status": "ok"} and send(url, "/ready").status == 200
    answer = send(url, "/v1/embed", b"text=the", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status == 415 and answer.json["error"]["type"] == "unsupported_media_type"


def test_metrics_are_prometheus_text(url):
    send(url, "/v1/embed", {"model": "bert", "text": "the cat"})
    lines = send(url, "/metrics").content.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['polyseme_requests_total{verb="embed",status="200"}']) >= 1
    assert float(values['polyseme_batch_tokens_count{model="bert"}']) >= 1
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert (
        len(names)
        == sum(line.startswith("# TYPE") for line in lines)
        == sum(line.startswith("# HELP") for line in lines)
    )
