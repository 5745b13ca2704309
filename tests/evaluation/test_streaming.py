"""Commands over files in windows: bounded memory, and the same bytes after an interruption at any window."""

import io
import json
import os
import re
import threading

import numpy as np
import pytest
import torch

import polyseme
from polyseme.evaluation import streaming
from polyseme.evaluation.embed_file import write_npz
from polyseme.evaluation.streaming import ConsoleOutput, Source, count_characters, run_windows
from polyseme.evaluation.text_rows import TextRow
from polyseme.families import FAMILIES
from polyseme.io.partial import PartialOutput
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.semantic_roles import SemanticRolesTask
from polyseme.tasks.tagging import TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model
from tests.support.cases import supported_args
from tests.support.text import documents

WINDOW = 4
TEXTS = [f"the {size} cat sees the {animal}" for size in ("old", "young", "quiet") for animal in ("dog", "bird", "cat")]
TAGS = ("O", "B-A0", "I-A0", "B-V")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Random models: two taggers, a classifier, a language model and a translator."""
    folder = tmp_path_factory.mktemp("models")
    tasks = {
        "classify": ClassificationTask(labels=("a", "b")), "tag": TaggingTask(labels=TAGS),
        "roles": SemanticRolesTask(labels=TAGS), "gpt2": None, "transformer": None,
    }  # fmt: skip
    for name, task in tasks.items():
        family = FAMILIES["bert" if task else name]
        tokenizer = Tokenizer.train(family.tokenizer, iter(documents(20, seed=5)), 300)
        sizes = supported_args(family, num_layers=1, dim=8, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=24)
        config = family.model_config(**sizes)
        if task:
            config = config.replace(heads=task.heads(family, config.trunk))
        model = config.build(seed=1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.2)
        save_model(folder / name, model, tokenizer, {"task": task.to_json()} if task else {})
    return folder


@pytest.fixture
def files(tmp_path):
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "r.txt").write_text("\n".join(reversed(TEXTS)) + "\n")
    table = "".join(f'{i},"{text}",{"ab"[i % 2]}\n' for i, text in enumerate(TEXTS))
    (tmp_path / "t.csv").write_text("id,text,label\n" + table)
    (tmp_path / "t.tsv").write_text("text\n" + "\n".join(TEXTS) + "\n")
    (tmp_path / "t.conll").write_text("\n\n".join(text.replace(" ", "\n") for text in TEXTS) + "\n")
    rows = ["the -", "old see", "cat see", "ran -"]  # two predicates for each sentence
    (tmp_path / "s.conll").write_text("\n\n".join("\n".join(rows) for _ in range(5)) + "\n")
    (tmp_path / "w.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    choices = [{"text": text, "choices": ["the cat", "a dog"], "label": 0} for text in TEXTS]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in choices))
    return tmp_path


COMMANDS = {
    "predict.jsonl": "predict classify --data t.tsv",
    "predict.tsv": "predict classify --data t.tsv",
    "predict.conll": "predict tag --data t.conll",
    "roles.props": "predict roles --data s.conll",
    "text.npz": "embed gpt2 --data t.txt --layers 1",
    "token.npz": "embed gpt2 --data t.txt --granularity token",
    "word.npz": "embed classify --data t.txt --granularity word",
    "predict.csv": "predict classify --data t.csv",
    "predict.parquet": "predict classify --data t.csv",
    "vectors.parquet": "embed gpt2 --data t.csv",
    "vectors.npz": "embed gpt2 --data t.csv",
    "score.txt": "score gpt2 --data t.txt",
    "score.jsonl": "score gpt2 --data t.txt --json",
    "score.csv": "score gpt2 --data t.csv",
    "last.jsonl": "score gpt2 --last-words w.jsonl",
    "choices.jsonl": "score gpt2 --choices c.jsonl",
    "translate.tsv": "translate transformer --data t.csv --num-beams 2 --max-new-tokens 3",
    "translate.txt": "translate transformer --data t.txt --num-beams 2 --max-new-tokens 3",
    "bleu.txt": "translate transformer --data t.txt --reference r.txt --max-new-tokens 3",
}
INTERRUPTED_TWICE = ("predict.jsonl", "text.npz", "score.csv", "translate.tsv")  # one of each command


def arguments(name, models, files, out=None):
    verb, model, *rest = COMMANDS[name].split()
    rest = [files / word if (files / word).is_file() else word for word in rest]
    return verb, models / model, *rest, *(("--out", out or files / name))


def stop_at(monkeypatch, checkpoint):
    """Interrupt a run right after one of its checkpoints."""
    original, calls = PartialOutput.checkpoint, []

    def stop(self):
        original(self)
        calls.append(self.num_windows)
        if len(calls) == checkpoint:
            raise KeyboardInterrupt

    monkeypatch.setattr(PartialOutput, "checkpoint", stop)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupted_run_resumes_to_the_same_bytes(name, models, files, cli, run_cli, monkeypatch):
    command = arguments(name, models, files)
    whole = run_cli(*command)
    in_one_window = (files / name).read_bytes()
    (files / name).unlink()
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", WINDOW)
    shown = run_cli(*command)
    expected = (files / name).read_bytes()
    before = {path.name for path in files.iterdir()} - {name}
    assert re.sub(r"\d\.\d+", "", shown) == re.sub(r"\d\.\d+", "", whole)
    if not name.endswith(".parquet"):  # scores may differ in their last digits
        assert expected.count(b"\n") == in_one_window.count(b"\n") or name.endswith(".npz")
        assert abs(len(expected) - len(in_one_window)) < 100
    for checkpoint in (1, 2) if name in INTERRUPTED_TWICE else (2,):
        (files / name).unlink()
        with monkeypatch.context() as patch:
            stop_at(patch, checkpoint)
            stopped = cli(*command)
        assert stopped.status == 130 and not (files / name).exists()
        assert f"{WINDOW * checkpoint} rows are saved and can be resumed" in stopped.err or name == "roles.props"
        assert run_cli(*command, "--resume") == shown
        assert (files / name).read_bytes() == expected
        assert {path.name for path in files.iterdir()} - {name} == before


def test_what_cannot_be_resumed(models, files, cli, rejects, run_cli, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", WINDOW)
    name = "predict.jsonl"
    command = arguments(name, models, files)
    rejects(*command, "--resume", match="nothing to resume of .*predict.jsonl: leave out --resume")
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        assert cli(*command).status == 130
    rejects(*command, match=r"first 4 rows are saved: resume the run, or remove .*\(--resume\)")
    rejects(*command, "--resume", "--truncate", match="cannot resume .*: --truncate is True and was None")
    other = [models / "tag" if argument == models / "classify" else argument for argument in command]
    rejects(*other, "--resume", match="cannot resume|tsv")
    content = (files / "t.tsv").read_text()
    (files / "t.tsv").write_text(content + "one more\n")
    rejects(*command, "--resume", match="cannot resume .*: the input differs; remove .* to start over")
    (files / "t.tsv").write_text(content)
    assert "9 predictions" in run_cli(*command, "--resume")
    for verb in ("score.txt", "translate.txt"):
        *to_stdout, _, _ = arguments(verb, models, files)
        rejects(*to_stdout, "--resume", match="--resume needs an output file: set --out")


def test_the_input_is_not_overwritten(models, files, rejects):
    before = (files / "t.txt").read_bytes()
    for verb, model in (("score", "gpt2"), ("predict", "classify")):
        out = files / ".." / files.name / "t.txt"
        rejects(verb, models / model, "--data", files / "t.txt", "--out", out, match="t.txt is the input")
        assert (files / "t.txt").read_bytes() == before


def test_standard_output_is_that_of_a_file(models, files, run_cli, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", WINDOW)
    *to_stdout, _, out = arguments("translate.txt", models, files)
    run_cli(*to_stdout, "--out", out)
    assert run_cli(*to_stdout) == out.read_text()
    *to_stdout, _, out = arguments("score.jsonl", models, files)
    run_cli(*to_stdout, "--out", out)
    printed = [json.loads(line) for line in run_cli(*to_stdout).splitlines()]
    assert printed == [json.loads(line) for line in out.read_text().splitlines()]
    for name in ("last.jsonl", "choices.jsonl"):  # the summary is printed
        *to_stdout, _, out = arguments(name, models, files)
        shown = run_cli(*to_stdout, "--out", out)
        summary = shown.removesuffix(f"{out}: {len(TEXTS)} texts\n")
        assert summary and run_cli(*to_stdout).endswith(summary) and out.read_text().count("\n") == len(TEXTS)


def test_an_error_names_the_rows_of_its_window(models, files, cli, rejects, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", WINDOW)
    (files / "t.txt").write_text("\n".join([*TEXTS[:3], "the cat " * 50]) + "\n")
    rejects(*arguments("translate.txt", models, files), match="^error: text 4 has 201 tokens")
    (files / "t.txt").write_text("\n".join([*TEXTS[:4], "the cat " * 50]) + "\n")
    *to_stdout, _, _ = arguments("score.txt", models, files)
    assert "t.txt:5: a text of" in cli(*to_stdout).err
    embed = ("embed", models / "gpt2", "--data", files / "t.txt", "--out", files / "t.npz")
    rejects(*embed, match="rows 5 to 5: a text of")  # nothing is left: a resumed run would end with the same error
    rejects(*arguments("translate.txt", models, files), match="rows 5 to 5: text 1 has 201 tokens")
    (files / "t.tsv").write_text("text\n" + (files / "t.txt").read_text())
    rejects(*arguments("predict.jsonl", models, files), match=r"longer than 24 tokens, the first at .*t\.tsv:6")
    rows = [{"context": text, "continuation": "cat"} for text in TEXTS[:4]]
    rows += [{"context": "the", "continuation": "cat" * 50}]
    (files / "w.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rejects(*arguments("last.jsonl", models, files), match="rows 5 to 5: the word .* alone is longer")
    command = arguments("predict.jsonl", models, files)
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        assert cli(*command).status == 130
    assert cli(*command, "--resume").status == 2 and not list(files.glob(".predict*")), "nor of a resumed run"


def test_predict_in_python(models, files, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", WINDOW)
    model, out = polyseme.load(models / "classify"), files / "p.tsv"
    predictions = polyseme.predict(model, TEXTS, out=out)
    expected = out.read_bytes()
    assert len(predictions) == len(TEXTS) == len(polyseme.predict(model, TEXTS))
    out.unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, 1)
        polyseme.predict(model, TEXTS, out=out)
    with pytest.raises(polyseme.ConfigError, match="the input differs"):
        polyseme.predict(model, TEXTS[:-1], out=out, resume=True)
    assert polyseme.predict(model, TEXTS, out=out, resume=True) == predictions[WINDOW:]
    assert out.read_bytes() == expected
    with pytest.raises(polyseme.ConfigError, match="`resume` needs an output file"):
        polyseme.predict(model, TEXTS, resume=True)


def test_bad_rows_are_found_before_anything_is_computed(models, files, cli, rejects, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", WINDOW)
    with open(files / "t.tsv", "a") as file:
        file.write("a\tb\n")
    command = arguments("predict.jsonl", models, files)
    rejects(*command, match=r"t\.tsv:11: 2 columns, but the first line has 1")
    skipped = cli(*command, "--skip-bad")
    assert skipped.err.count("skipped 1 bad of 10 rows") == 1 and "9 predictions" in skipped.out


def test_truncated_examples_are_counted_over_all_windows(models, files, cli, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", WINDOW)
    long = "the cat " * 20
    (files / "t.tsv").write_text("text\n" + "\n".join([long, *TEXTS, long]) + "\n")
    command = cli(*arguments("predict.jsonl", models, files), "--truncate")
    assert command.err == "2 of 11 examples (18.2%) are truncated (max_len 24)\n"


# ------------------------------------------------------------------------------------------ windows and sources


class Tracked:
    """A text that counts how many of its kind exist."""

    num_alive = max_alive = 0

    def __init__(self):
        Tracked.num_alive += 1
        Tracked.max_alive = max(Tracked.max_alive, Tracked.num_alive)

    def __del__(self):
        Tracked.num_alive -= 1


def test_few_examples_exist_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", 10)
    (tmp_path / "a").touch()
    source = Source(tmp_path / "a", lambda _: (Tracked() for _ in range(1000)))
    sizes = []

    def compute(window, start, summary):
        sizes.append((start, len(window)))
        return [b""]

    run_windows(source, source.windows(), ConsoleOutput(lambda text: None), compute, lambda _: [b""], "test")
    assert sizes == [(i, 10) for i in range(0, 1000, 10)] and Tracked.max_alive <= 21


def test_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_EXAMPLES", 3)
    source = Source(None, lambda _: ["a", "b", "c", "d" * 9, "e", "f" * 20, "g"])
    assert list(source.windows(10)) == [["a", "b", "c"], ["d" * 9, "e"], ["f" * 20], ["g"]]
    grouped = Source(None, lambda _: ["a1", "a2", "b1", "b2", "b3", "c1"])
    assert list(grouped.windows(group_key=lambda text: text[0])) == [["a1", "a2", "b1", "b2", "b3"], ["c1"]]
    example = ClassificationTask.example_type("here", "four", "fives")
    assert count_characters(example) == 9 and count_characters(("ab", None, ("c",))) == 3, "without its location"
    assert count_characters(TextRow("text", {"text": "text", "id": 1}, "/a/long/path.csv:2")) == 4
    assert count_characters(TextRow("text", {"text": "text", "note": "long"}, "here")) == 8


def test_a_pipe_is_read_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=("a\nb\n",)).start()
    source = Source(pipe, lambda _: pipe.read_text().splitlines())
    assert source.total == 2 and list(source) == list(source) == ["a", "b"] and len(source.hash) == 64


def test_vectors_are_written_as_numpy_does(tmp_path):
    arrays = {"vectors": np.arange(12, dtype=np.float32).reshape(4, 3), "starts": np.array([0, 2, 4])}
    for name, array in arrays.items():
        (tmp_path / name).write_bytes(array.tobytes())
    write_npz(tmp_path / "a.npz", {name: (tmp_path / name, a.dtype, a.shape) for name, a in arrays.items()})
    expected = io.BytesIO()
    np.savez(expected, **arrays)
    assert (tmp_path / "a.npz").read_bytes() == expected.getvalue()
