"""The process: its address, its token, its hosts, its end, and its command."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import polyseme
from polyseme.serve.security import SecurityMiddleware
from tests.serve.models import running_server, save_small_model, send

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def secured(models):
    with running_server({"bert": models["bert"]}, token=TOKEN, hosts=("models.example.org",)) as address:
        yield address


def test_a_token_is_needed(secured):
    body = {"text": "the cat"}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": "é"}):
        answer = send(secured, "/v1/embed", body, headers=headers)
        assert answer.status == 401 and answer.json["error"]["type"] == "unauthorized"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert send(secured, "/v1/embed", body, headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
    for path in ("/models", "/metrics", "/v1/models"):
        assert send(secured, path).status == 401
    for path in ("/", "/docs", "/docs/docs.js", "/openapi.json", "/health", "/ready", "/playground/index.html"):
        assert send(secured, path).status == 200, path
    assert polyseme.connect(secured, token=TOKEN).embed("the cat").shape == (8,)
    with pytest.raises(polyseme.PolysemeError, match="token"):
        polyseme.connect(secured)


def test_the_token_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda *values: compared.append(values) or False)
    from starlette.datastructures import Headers

    middleware = SecurityMiddleware(None, TOKEN)
    with pytest.raises(polyseme.PolysemeError):
        middleware.check("/v1/embed", Headers({"host": "127.0.0.1", "authorization": "Bearer abc"}))
    assert compared == [(b"abc", TOKEN.encode())]


def test_a_foreign_host_or_origin_is_refused(secured):
    port = secured.rsplit(":", 1)[1]
    for host in ("attacker.example", f"attacker.example:{port}", "127.0.0.1.attacker.example", ""):
        answer = send(secured, "/health", headers={"Host": host})
        assert answer.status in (400, 403), host
    for host in (
        "localhost",
        f"localhost:{port}",
        "127.0.0.1",
        "[::1]:80",
        "models.example.org",
        "MODELS.example.org.",
    ):
        assert send(secured, "/health", headers={"Host": host}).status == 200, host
    for origin in ("http://attacker.example", "null", f"http://localhost:{port}"):
        assert send(secured, "/health", headers={"Origin": origin}).status == 403
    answer = send(secured, "/health", headers={"Origin": secured})
    assert answer.status == 200 and not [name for name in answer.headers if name.startswith("access-control")]


def test_pages_have_a_strict_policy_and_load_nothing_from_elsewhere(url):
    for path in ("/", "/docs", "/docs/docs.css", "/docs/docs.js"):
        answer = send(url, path)
        policy = answer.headers["content-security-policy"]
        assert answer.status == 200 and "default-src 'none'" in policy and "unsafe" not in policy
        assert not re.search(rb"(?:src|href)=\"(?:https?:)?//", answer.content)
        assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/docs/../app.py", "/playground/%2e%2e/app.py", "/docs/../../../../etc/passwd"):
        assert send(url, path).status == 404


def test_texts_are_not_logged(url, caplog):
    with caplog.at_level("DEBUG"):
        for body in ({"text": "secretword"}, {"text": "secretword " * 90}, {"text": "secretword", "layers": 99}):
            send(url, "/v1/embed", {"model": "bert", **body})
        send(url, "/v1/fill", {"model": "bert", "text": "secretword"})
    assert "secretword" not in caplog.text


def test_a_body_that_does_not_arrive_ends_its_connection(models):
    with running_server({"bert": models["bert"]}, timeout=0.3) as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
        connection.putrequest("POST", "/v1/embed")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b'{"text": ')
        answer = connection.getresponse()
        error = {"type": "deadline_exceeded", "message": "the body did not arrive within 0.3 s"}
        assert (answer.status, json.loads(answer.read())) == (503, {"error": error}) and answer.will_close
        connection.close()
        assert send(address, "/v1/embed", {"text": "the cat"}).status == 200


# ---------------------------------------------------------------------------------------------------- command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("command") / "bert", "bert")


def start_server(folder, *options):
    """Start the command; return the process and its address."""
    command = [sys.executable, "-m", "polyseme.cli.main", "serve", str(folder), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for line in process.stderr:
        if match := re.search(r"http://127\.0\.0\.1:\d+", line):
            url = match[0]
            break
    else:
        raise AssertionError(f"the server ended with status {process.wait()}")
    for _ in range(200):
        try:
            if send(url, "/ready").status == 200:
                return process, url
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the server is not ready")


def test_sigterm_finishes_what_is_in_progress(folder):
    process, url = start_server(folder, "--max-wait", "1")
    try:
        host, port = url.removeprefix("http://").split(":")
        assert socket.getfqdn(host) and process.poll() is None
        texts = ["the old cat sees the young dog"] * 200
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(send(url, "/v1/score", {"texts": texts}))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        deadline = time.perf_counter() + 10
        while not re.search(r"in_flight [123]\n", send(url, "/metrics").content.decode()):
            assert time.perf_counter() < deadline and not answers
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(20)
        assert [answer.status for answer in answers] == [200] * 3
        assert all(len(answer.json["results"]) == 200 for answer in answers)
        assert process.wait(20) == 0
        with pytest.raises(OSError):
            http.client.HTTPConnection(host, int(port), timeout=2).connect()
    finally:
        process.kill()
        process.stderr.close()


@pytest.mark.parametrize("url", ["ftp://localhost", "localhost:8000", "http://", "http://[::1", "http://localhost:x"])
def test_what_is_no_address_is_rejected(url):
    with pytest.raises(polyseme.PolysemeError, match=f"^the address '{re.escape(url)}' is not one of a server"):
        polyseme.connect(url)


def test_bad_options_are_one_line(folder, rejects, tmp_path, monkeypatch):
    for device in ("tpu", "cuda:99"):
        rejects("serve", "--port", 0, folder, "--device", device, match=f"--device is '{device}', which cannot be used")
    monkeypatch.setattr("polyseme.serve.server.serve_models", lambda *_: pytest.fail("the server started"))
    rejects("serve", "--port", 0, tmp_path / "nothing", match="nothing")
    rejects("serve", "--port", 0, folder, folder, match="two models are called 'bert'")
    rejects("serve", "--port", 0, folder, "--engine", "onnx", match=["ONNX graph", "quantize"])
    rejects("serve", "--port", 0, folder, "--engine", "tf", match="--engine is 'tf'")
    rejects("serve", "--port", 0, folder, "--precision", "bf17", match="precision")
    rejects("serve", "--port", 0, folder, "--token-file", tmp_path / "token", match="token file")
    (tmp_path / "short").write_text("abc")
    rejects("serve", "--port", 0, folder, "--precision", "bf17", match="precision")
    rejects("serve", "--port", 0, folder, "--token-file", tmp_path / "short", match="at least 16")
    rejects("serve", "--port", 0, folder, "--max-queue", 0, match="max-queue")


def test_a_port_in_use_is_one_line(folder, rejects):
    with socket.create_server(("127.0.0.1", 0)) as other:
        rejects("serve", folder, "--port", other.getsockname()[1], match="cannot listen")


def test_names_of_models(folder, models):
    from polyseme.serve.registry import load_models

    assert list(load_models([f"cat={folder}", folder, "mini"])) == ["cat", "bert", "mini"]


def test_an_exported_folder_runs_in_onnxruntime(folder, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    import numpy as np

    from polyseme.serve.registry import load_models

    polyseme.compress.export(folder, to="onnx", out=tmp_path / "graph", head="vectors")
    models = load_models([tmp_path / "graph"], engine="onnx")
    texts = ["the old cat", "the young dog sees"]
    with running_server(models) as url:
        assert send(url, "/models").json["models"][0]["engine"] == "onnx"
        np.testing.assert_allclose(polyseme.connect(url).embed(texts), polyseme.load(folder).embed(texts), atol=1e-5)
    with pytest.raises(polyseme.ConfigError, match="`engine` has to be onnx"):
        load_models([tmp_path / "graph"])
