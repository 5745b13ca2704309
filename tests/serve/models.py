"""Small models of every kind, and a server for them in this process."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import polyseme
from polyseme.ngram.arpa import read_arpa
from polyseme.ngram.model import NgramFolder
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.multiple_choice import MultipleChoiceTask
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.tagging import TaggingTask
from tests.support.small_models import save_small_model
from tests.support.text import documents

TEXTS = [" ".join(text.split()[:12]) for text in documents(8, seed=3)]


def write_vectors(path: Path) -> Path:
    """Write word vectors in word2vec's text format."""
    rng = np.random.default_rng(0)
    words = ["the", "cat", "dog", "house", "river", "tree"]
    rows = [f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=4))}" for word in words]
    path.write_text(f"{len(words)} 4\n" + "\n".join(rows) + "\n")
    return path


ARPA = """\\data\\
ngram 1=6
ngram 2=4

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.3
-0.9\t</s>
-0.6\tthe\t-0.2
-0.7\tcat\t-0.2
-0.8\tsat\t-0.2

\\2-grams:
-0.2\t<s> the
-0.3\tthe cat
-0.3\tcat sat
-0.2\tsat </s>

\\end\\
"""


def save_ngrams(folder: Path) -> Path:
    """Write a model of bigrams."""
    (folder / "bigrams.arpa").write_text(ARPA)
    ngrams, tokenizer = read_arpa(folder / "bigrams.arpa")
    NgramFolder(folder, ngrams, tokenizer).save(folder / "ngram")
    return folder / "ngram"


def save_feature_model(folder: Path, source: Path) -> Path:
    """Train a classifier over the frozen features of a model for one step."""
    rows = [(text, label) for text, label in zip(TEXTS, ["cat", "dog"] * 4)]
    (folder / "rows.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    files = {"train": folder / "rows.tsv", "dev": folder / "rows.tsv"}
    run = polyseme.finetune(None, "classification", **files, features=[source], out=folder / "features", steps=1)
    return run.model


def save_models(folder: Path) -> dict[str, Path]:
    """Write a model folder for every verb."""
    labels = ("cat", "dog")
    tasks = {
        "classify": ClassificationTask(labels=labels),
        "pairs": PairClassificationTask(labels=labels),
        "number": RegressionTask(),
        "tag": TaggingTask(labels=("O", "B-X", "I-X")),
        "answer": ExtractiveQATask(),
        "choice": MultipleChoiceTask(),
    }
    paths = {name: save_small_model(folder / name, "bert", task, max_len=64) for name, task in tasks.items()}
    for family in ("bert", "gpt2", "t5"):
        paths[family] = save_small_model(folder / family, family, max_len=64)
    paths["ngram"], paths["features"] = save_ngrams(folder), save_feature_model(folder, paths["bert"])
    paths["vectors"] = write_vectors(folder / "vectors.txt")
    return paths


@contextmanager
def running_server(models: dict, **settings) -> Iterator[str]:
    """Run a server of loaded models in a thread; yields its address."""
    import uvicorn

    from polyseme.serve.app import create_app
    from polyseme.serve.config import AppConfig
    from polyseme.serve.registry import ModelRegistry
    from polyseme.serve.server import open_socket

    app = create_app(ModelRegistry(models), AppConfig(**settings))
    listener = open_socket("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        for _ in range(500):
            if server.started:
                break
            thread.join(0.01)
        assert server.started
        yield url
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


class Answer:
    """The response to a request."""

    def __init__(self, status: int, headers: dict, content: bytes):
        self.status, self.headers, self.content = status, headers, content

    @property
    def json(self):
        """The parsed body."""
        return json.loads(self.content)


def send(url: str, path: str, body=None, *, method: str = "", headers: dict | None = None) -> Answer:
    """Send a request; a body that is no bytes is sent as JSON."""
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(
            method or ("GET" if body is None else "POST"),
            path,
            data,
            {"Content-Type": "application/json", **(headers or {})},
        )
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, response.read())
    finally:
        connection.close()
