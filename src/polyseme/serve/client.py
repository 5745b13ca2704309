"""`connect`: use the models of a server as `load` uses those of a folder, with the same methods and result types."""

from __future__ import annotations

import dataclasses
import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from polyseme.errors import ConfigError, DataError, ModelError, PolysemeError, UnsupportedError, suggest
from polyseme.generation.config import GenerationConfig
from polyseme.generation.text import GeneratedText, Split, TranslatedText
from polyseme.inference.base import Granularity, LanguageModel, Options, Texts
from polyseme.inference.inspection.attention import Attention, AttentionMap
from polyseme.inference.results import ChoiceResult, EncodedText, MaskPrediction, TextScore
from polyseme.serve.api.arrays import decode_array
from polyseme.text.arguments import check_list, check_text, check_texts
from polyseme.text.tokenizer import Tokenizer

MAX_TEXTS = 256  # of a request; a longer list is sent in parts
MAX_REQUEST_CHARS = 400_000  # a request stays below the server's limit of 2 MB
GRACE_SECONDS = 5  # after the deadline, for the server to say so
_ERRORS = {"unsupported": UnsupportedError, "invalid_request": DataError, "too_long": DataError, "too_large": DataError}
_VERBS = {"rank_choices": "choose"}  # other operations have the name of the verb


class ServerError(PolysemeError):
    """An answer of a server that is no result; `status` is its HTTP status, and `error_type` names the problem."""

    def __init__(self, status: int, error_type: str, message: str):
        super().__init__(message)
        self.status, self.error_type = status, error_type


def connect(url: str, model: str = "", *, token: str = "", timeout: float = 60.0) -> RemoteModel:
    """Connect to a server that `polyseme serve` started; returns a model with the methods of a loaded one.

    `model` is one of the server's models, by default the first. `token` is what the server's token file has. `timeout`
    is in seconds.

    >>> remote = polyseme.connect("http://127.0.0.1:8000")  # doctest: +SKIP
    >>> remote.fill("the [MASK] sat")  # doctest: +SKIP
    """
    return RemoteModel(url, model, token, timeout)


class RemoteModel(LanguageModel):
    """A model of a server. Threads may share it: each has its own connection."""

    def __init__(self, url: str, model: str = "", token: str = "", timeout: float = 60.0):
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of a bracket that is not closed, or of a port that is no number
            is_address = False
        if not is_address:
            raise ConfigError(f"the address {url!r} is not one of a server, such as http://127.0.0.1:8000")
        self.url, self.token, self.timeout, self._parts = url.rstrip("/"), token, timeout, parts
        self._local = threading.local()
        infos = {info["name"]: info for info in self._exchange("GET", "/models", None)["models"]}
        if model and model not in infos:
            raise ModelError(f"{url} has no model {model!r}; {suggest(model, infos)}")
        name = model or next(iter(infos))
        super().__init__(Path(name))
        self.name, self.info = name, dict[str, Any](infos[name])

    @property
    def tokenizer(self) -> Tokenizer:
        raise UnsupportedError(f"the tokenizer of {self.name} is at {self.url}: use `encode`")

    @property
    def description(self) -> str:
        return f"{self.info['description']} at {self.url}"

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs of the server that this model supports."""
        return tuple(self.info["verbs"])

    @property
    def capabilities(self) -> tuple[str, ...]:
        operations = (
            *("encode", "fill", "next_sentence", "score", "rank_choices", "generate", "translate", "embed"),
            *("attention", "predict", "answer"),
        )
        return tuple(each for each in operations if _VERBS.get(each, each) in self.verbs)

    @property
    def max_text_tokens(self) -> int:
        self._require("embed")
        return self.info.get("max_tokens") or super().max_text_tokens

    # --------------------------------------------------------------------------------------------------- operations

    def _encode(self, text: str, pair: str | None) -> EncodedText:
        if pair is not None:
            raise UnsupportedError("a server encodes single texts")
        return EncodedText(**self._post("encode", {"text": text})[0])

    def _fill(self, texts: Sequence[str], top_k: int) -> list[list[list[MaskPrediction]]]:
        rows = self._post_texts("fill", texts, {"top_k": top_k})
        return [[[MaskPrediction(**each) for each in mask] for mask in masks] for masks in rows]

    def _next_sentence(self, first: str, second: str) -> float:
        probability: float = self._post("next_sentence", {"text": first, "pair": second})[0]
        return probability

    def _score(self, texts: Sequence[str], pll_metric: str | None, spans: Any) -> list[TextScore]:
        if spans is not None:
            raise UnsupportedError("a server scores whole texts: leave out spans")
        return [_text_score(row) for row in self._post_texts("score", texts, {"pll_metric": pll_metric})]

    def _rank_choices(
        self, questions: Sequence[tuple[str, Sequence[str]]], normalization: str, context: str
    ) -> list[ChoiceResult]:
        results = []
        for text, choices in questions:
            body = {"text": text, "choices": list(choices), "normalization": normalization, "context": context}
            row = self._post("choose", body)[0]
            scores = tuple(map(_text_score, row.get("log_probs", ())))
            results.append(ChoiceResult(row["best_index"], tuple(row["scores"]), scores))
        return results

    def _embed(
        self, texts: Sequence[str], layers: str | int, granularity: Granularity, truncate: bool
    ) -> np.ndarray | list[np.ndarray]:
        options = {"layers": layers, "granularity": granularity, "truncate": truncate, "encoding_format": "base64"}
        arrays = [decode_array(row["vectors"], row["shape"]) for row in self._post_texts("embed", texts, options)]
        if granularity == "text":
            return np.stack(arrays) if arrays else np.empty((0, self.info.get("dim", 0)), dtype=np.float32)
        return arrays

    def _attention(self, text: str, pair: str | None, target: str | None) -> Attention:
        rows = self._post("attention", {"text": text, "pair": pair, "target": target, "encoding_format": "base64"})
        maps = []
        for row in rows:
            weights = decode_array(row.pop("weights"), row.pop("shape"))
            maps.append(AttentionMap(weights=weights, **row))
        return Attention(tuple(maps))

    def _predict(self, examples: Sequence[Any]) -> list[Any]:
        return [_to_prediction(row) for row in self._post_texts("predict", examples, {}, "examples")]

    def generate(self, prompts: Texts, config: Options = None, *, prefix: str = "", **options: Any) -> list[Any]:
        """Generate texts as a loaded model does."""
        self._require("generate")
        body = _decoding_options(config, options) | {"prefix": prefix}
        texts = [prompts] if isinstance(prompts, str) else check_texts(prompts)
        rows = [[_generated_text(each) for each in row] for row in self._post_texts("generate", texts, body)]
        return rows[0] if isinstance(prompts, str) else rows

    def stream(self, prompt: str, config: Options = None, *, prefix: str = "", **options: Any) -> Iterator[str]:
        """Generate one text and yield it piece by piece, as it comes from the server."""
        self._require("generate")
        body = _decoding_options(config, options) | {"prefix": prefix, "text": check_text(prompt, "prompt")}
        for event in self.stream_events(body):
            if event["event"] == "token" and event["data"]["text"]:
                yield event["data"]["text"]

    def stream_events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a request for `/v1/generate`: `{"event": "token", "data": {…}}`, last `done`."""
        connection = self._open()
        try:
            response = self._request(connection, "POST", "/v1/generate", body | {"model": self.name, "stream": True})
            if response.status != 200:
                _raise_error(response.status, response.read())
            yield from _parse_events(response)
        finally:
            connection.close()

    def translate(self, texts: Texts, config: Options = None, *, split: Split | None = None, **options: Any) -> Any:
        """Translate texts as a loaded model does; the server can split them into sentences (`split_sentences=True`)."""
        self._require("translate")
        if split is not None:
            raise UnsupportedError("a function cannot be sent to a server: pass split_sentences=True")
        splits = {"split_sentences": options.pop("split_sentences", False)}
        body = _decoding_options(config, options) | splits
        rows = self._post_texts("translate", [texts] if isinstance(texts, str) else check_texts(texts), body)
        results = [TranslatedText(**row) for row in rows]
        return results[0] if isinstance(texts, str) else results

    def predict(self, examples: Any) -> Any:
        self._require("predict")
        if isinstance(examples, str | tuple | dict):
            return self._predict([examples])[0]
        return self._predict(check_list(examples, "example"))

    def classify(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """Predict labels or numbers of texts or pairs, as `predict`."""
        if pairs is None:
            return self.predict(texts)
        if isinstance(texts, str):
            return self.predict((texts, pairs))
        return self.predict(list(zip(check_texts(texts), check_texts(pairs), strict=True)))

    def tag(self, texts: Texts) -> Any:
        """Tag the words of texts: for each `words`, `offsets`, `tags`, `probabilities` and `spans`, a dictionary."""
        self._require("predict")
        rows = self._post_texts("tag", [texts] if isinstance(texts, str) else check_texts(texts), {})
        return rows[0] if isinstance(texts, str) else rows

    def rerank(self, query: str, texts: Sequence[str], top_k: int | None = None) -> list[tuple[int, float]]:
        """Return the indices and scores of texts, the best match of the query first."""
        rows = self._post("rerank", {"query": query, "texts": check_texts(texts), "top_k": top_k})
        return [(row["index"], row["score"]) for row in rows]

    def neighbors(self, word: str, top_k: int = 10) -> list[tuple[str, float]]:
        """Return the words with the most similar vectors, as `WordVectors` does."""
        rows = self._post("neighbors", {"text": word, "top_k": top_k})[0]
        return [(row["word"], row["similarity"]) for row in rows]

    # --------------------------------------------------------------------------------------------------- transport

    def _post(self, verb: str, body: dict[str, Any]) -> list[Any]:
        """Send one request; return its results."""
        fields = {name: value for name, value in body.items() if value is not None}
        results: list[Any] = self._exchange("POST", f"/v1/{verb}", fields | {"model": self.name})["results"]
        return results

    def _post_texts(self, verb: str, texts: Sequence[Any], options: dict[str, Any], name: str = "texts") -> list[Any]:
        """Send texts in as many requests as the server's limits need."""
        results: list[Any] = []
        part: list[Any] = []
        size = 0
        for text in texts:
            length = len(text) if isinstance(text, str) else len(json.dumps(text))
            if part and (len(part) == MAX_TEXTS or size + length > MAX_REQUEST_CHARS):
                results += self._post(verb, options | {name: part})
                part, size = [], 0
            part.append(text)
            size += length
        return results + (self._post(verb, options | {name: part}) if part else [])

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        """Send a request over this thread's connection, renewed if it is stale; return the parsed response."""
        connection = getattr(self._local, "connection", None)
        is_new = connection is None
        while True:
            connection = connection or self._open()
            try:
                response = self._request(connection, method, path, body)
                content = response.read()
                break
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                connection.close()
                if is_new:
                    raise ModelError(f"{self.url} closed the connection") from None
                connection, is_new = None, True
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._local.connection = None
                raise ModelError(f"cannot reach {self.url}: {error or type(error).__name__}") from None
        self._local.connection = connection
        if response.status != 200:
            _raise_error(response.status, content)
        return json.loads(content)

    def _open(self) -> http.client.HTTPConnection:
        cls = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return cls(self._parts.hostname or "", self._parts.port, timeout=self.timeout + GRACE_SECONDS)

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "X-Timeout": f"{min(self.timeout, 3600):g}"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, self._parts.path.rstrip("/") + path, data, headers)
        return connection.getresponse()


def _raise_error(status: int, content: bytes) -> None:
    """Raise the error of a response: the type that a loaded model would raise, or `ServerError`."""
    try:
        error = json.loads(content)["error"]
        error_type, message = str(error["type"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        error_type, message = "internal", f"the server answered with status {status}"
    if error_type in _ERRORS:
        raise _ERRORS[error_type](message)
    raise ServerError(status, error_type, message)


def _parse_events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield server-sent events; raise an event `error`."""
    name = ""
    while line := response.readline():
        text = line.decode().rstrip("\r\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            data = json.loads(text.removeprefix("data: "))
            if name == "error":
                _raise_error(503, json.dumps(data).encode())
            yield {"event": name, "data": data}
            if name == "done":
                return
    raise ModelError("the server ended the stream before the text was complete")


def _decoding_options(config: GenerationConfig | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from their defaults, as a request has them."""
    names = {field.name: field.default for field in dataclasses.fields(GenerationConfig)}
    for name in options:
        if name not in names:
            raise ConfigError(f"unknown generation option {name!r}; {suggest(name, names)}")
    set_fields = {} if config is None else {n: v for n in names if (v := getattr(config, n)) != names[n]}
    if config is not None and "max_new_tokens" not in set_fields:
        set_fields["max_new_tokens"] = config.max_new_tokens
    return set_fields | options


def _text_score(row: dict[str, Any]) -> TextScore:
    return TextScore(row["log_prob"], row["num_tokens"], row["num_characters"])


def _generated_text(row: dict[str, Any]) -> GeneratedText:
    return GeneratedText(row["text"], tuple(row["tokens"]), row["score"], row["is_finished"])


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


def _to_prediction(row: dict[str, Any]) -> Any:
    """Return a prediction of the class that the server names; an array in it, which is not sent, is empty."""
    import polyseme.tasks  # noqa: F401  defines the classes
    from polyseme.tasks.base import Prediction

    types: dict[str, Any] = {cls.__name__: cls for cls in Prediction.__subclasses__()}
    cls = types.get(row.pop("type", ""))
    if cls is None:
        return row
    values = {field.name: row.get(field.name, np.empty(0, np.float32)) for field in dataclasses.fields(cls)}
    return cls(**{name: _to_tuples(value) for name, value in values.items()})
