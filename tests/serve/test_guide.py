"""The examples of the guide and the example files are correct."""

import configparser
import json
import re
import shlex

import pytest

import polyseme
from tests.design.pages import GUIDES, ROOT, code_blocks
from tests.serve.models import running_server, send

ADDRESS = "127.0.0.1:8000"


def test_the_examples_of_the_guide_run(models, capsys):
    pytest.importorskip("openai")
    with running_server({"task": models["classify"], "mini": polyseme.load("mini")}) as url:
        address = url.removeprefix("http://")
        for code in code_blocks(GUIDES / "serving.md", "py"):
            exec(compile(code.replace(ADDRESS, address), "serving.md", "exec"), {})
        assert "(2, 320)" in capsys.readouterr().out
        for page in (GUIDES / "serving.md", ROOT / "README.md"):
            (block,) = code_blocks(page, "sh")
            words = shlex.split(next(line for line in block.splitlines() if line.startswith("curl")))
            path, body = words[1].removeprefix(ADDRESS), json.loads(words[words.index("-d") + 1])
            assert words[words.index("-H") + 1] == "Content-Type: application/json"
            assert send(url, path, body).status == 200


def test_the_guide_lists_every_verb_and_error(url):
    from polyseme.serve.api.errors import ERROR_STATUS
    from polyseme.serve.registry import VERBS

    text = (GUIDES / "serving.md").read_text()
    assert set(VERBS) <= set(re.findall(r"`(\w+)`", text.partition("## Python")[0]))
    assert set(ERROR_STATUS) - {"internal"} <= set(re.findall(r"`(\w+)`", text.partition("## Errors")[2]))


def test_the_unit_of_systemd_runs_our_command(rejects, tmp_path):
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read(ROOT / "examples/deploy/polyseme.service")
    words = unit["Service"]["ExecStart"].split()
    assert words[0].endswith("/polyseme") and words[1] == "serve"
    words = [str(tmp_path / "token") if word.endswith("/token") else word for word in words]
    (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef")
    words[words.index("--port") + 1] = "0"
    rejects(*words[1:], match="/srv/models/topics")  # every option is known, and the model is not there
