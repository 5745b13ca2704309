"""Regular expressions that backtrack forever are rejected when a tokenizer is loaded; ids are checked."""

import json

import pytest

from polyseme.errors import PolysemeError
from polyseme.text import patterns
from polyseme.text.tokenizer import Tokenizer

TEXTS = ["the cat sat on the mat", "a dog ran to the cat"] * 20


@pytest.fixture
def edit(tmp_path):
    """Save a tokenizer, change its tokenizer.json, and load it."""

    def change_and_load(kind, change):
        Tokenizer.train(kind, iter(TEXTS), 300).save_files(tmp_path)
        content = json.loads((tmp_path / "tokenizer.json").read_text())
        change(content)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        return Tokenizer.load(tmp_path)

    return change_and_load


def set_pattern(pattern):
    def change(content):
        content["pre_tokenizer"] = {
            "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False
        }  # fmt: skip

    return change


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(?:x+x+)+y"])
def test_runaway_patterns_are_rejected(pattern, edit):
    with pytest.raises(PolysemeError, match="takes too long"):
        edit("wordpiece", set_pattern(pattern))


def test_harmless_patterns_are_tried_once(edit, monkeypatch):
    calls = []
    run = patterns.subprocess.run
    monkeypatch.setattr(
        patterns.subprocess, "run", lambda *args, **options: calls.append(args) or run(*args, **options)
    )
    for _ in range(2):
        assert edit("wordpiece", set_pattern(r"[a-z]+|\d+|\S")).encode("the cat")
    assert len(calls) == 1
    for kind in ("unigram", "characters", "bpe", "words", "whitespace"):
        edit(kind, lambda content: None)
    edit("wordpiece", set_pattern(next(p for p in patterns.KNOWN_PATTERNS if "'re" in p)))
    assert len(calls) == 1  # ours and published ones are known


def test_slow_probes_are_stopped(monkeypatch):
    monkeypatch.setattr(patterns, "MAX_PATTERN_SECONDS", 0.01)
    assert not patterns._is_fast(r"[b-d]+")


@pytest.mark.parametrize("ids,message", [({"the": 7, "##a": 7}, "the same id 7"), ({"the": 10**6}, "has id 1000000")])
def test_ids_of_entries(ids, message, edit):
    tokenizer = edit("wordpiece", lambda content: content["model"]["vocab"].update(ids))
    with pytest.raises(PolysemeError, match=message):
        tokenizer.check_ids(400)
    with pytest.raises(PolysemeError):
        tokenizer.validate()


@pytest.mark.parametrize("content", ["[]", '{"mask_token": 3}', '{"mask_token": ["x"]}', "[" * 5000])
def test_bad_settings(content, tmp_path):
    Tokenizer.train("wordpiece", iter(TEXTS), 60).save_files(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(PolysemeError):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("options", [{"vocab_size": 10**9}, {"vocab_size": 10**30}, {"min_frequency": 10**30}])
def test_absurd_vocabularies(options):
    with pytest.raises(PolysemeError, match=next(iter(options))):
        Tokenizer.train("wordpiece", iter(TEXTS), **({"vocab_size": 60} | options))
