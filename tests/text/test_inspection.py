"""Tokenizer statistics, and the commands that train, inspect and import tokenizers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from multilingual import generate_lines

from polyseme.cli.main import main
from polyseme.text.inspection import describe_vocabulary, measure_tokenization
from polyseme.text.pipelines import TOKENIZER_KINDS
from polyseme.text.tokenizer import Tokenizer

TEXTS = [text for _, text in sorted(topics.items())][:20]


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run a command; return its exit status, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["polyseme", *map(str, words)])
    with pytest.raises(SystemExit) as exit_info:
        main()
    captured = capsys.readouterr()
    return int(exit_info.value.code or 0), captured.out, captured.err


def test_describe_vocabulary() -> None:
    tokenizer = Tokenizer.train("wordpiece", iter(TEXTS), 600)
    facts = describe_vocabulary(tokenizer)
    inner = [piece for piece in tokenizer.vocabulary if piece.startswith("##")]
    assert facts["continuation pieces"] == len(inner) / (600 - 5)
    assert facts["characters"] == len({c for piece in tokenizer.vocabulary[5:] for c in piece.removeprefix("##")})
    assert sum(facts["lengths"].values()) == 595 and facts["lengths"]["1"] == 2 * facts["characters"]
    assert facts["specials"]["mask"] == ["[MASK]", 4]
    bpe = describe_vocabulary(Tokenizer.train("bpe", iter(TEXTS), 600))
    assert bpe["characters"] is None and bpe["pieces"] == 600 and 0.3 < bpe["continuation pieces"] < 0.9
    assert describe_vocabulary(Tokenizer.train("characters", iter(TEXTS), 600))["continuation pieces"] is None


def test_measure_tokenization() -> None:
    tokenizer = Tokenizer.train("wordpiece", ["the cat sat on the mat"] * 50, 80)
    texts = [("en", "the cat sat"), ("en", "the mat"), ("ru", "the Ж")]
    stats = measure_tokenization(tokenizer, texts)
    english, russian = stats["en"].to_row(), stats["ru"].to_row()
    assert stats["en"].num_documents == 2 and english["words"] == 5 and english["unknown"] == 0
    assert english["tokens per word"] == 1 and english["whole words"] == 1
    assert english["characters per token"] == len("the cat sat" + "the mat") / 5
    assert russian["unknown"] == 0.5 and russian["whole words"] == 0.5
    assert measure_tokenization(tokenizer, [("en", "cats \ud800 mat")])["en"].num_tokens > 2


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "en.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    rows = [{"body": line} for line in generate_lines(300, seed=2, marks=["\u200d"])]
    (tmp_path / "xx.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_train_inspect_and_import(kind: str, corpus: Path, monkeypatch, capsys) -> None:
    if kind.startswith("unigram"):
        pytest.importorskip("sentencepiece")
    sources = [corpus / "en.txt", f"{corpus}/xx.jsonl::lang=xx,weight=2,text=body"]
    size = [] if kind == "characters" else ["--vocab-size", 2500]
    out = corpus / "tokenizer"
    words = ["tokenizer", "train", *sources, "--kind", kind, *size, "--out", out, "--smoothing", "0.5"]
    status, stdout, error = run(monkeypatch, capsys, *words)
    assert status == 0, error
    tokenizer = Tokenizer.load(out)
    assert stdout.splitlines()[0].startswith(f"{out}: {kind}, {tokenizer.vocab_size} pieces")
    assert tokenizer.kind == kind and tokenizer.lowercase == (kind == "wordpiece")
    status, stdout, _ = run(
        monkeypatch, capsys, "tokenizer", "inspect", out, *(w for s in sources for w in ("--text", s))
    )
    assert status == 0 and "whole words" in stdout and "\nen " in stdout and "\nxx " in stdout
    status, stdout, _ = run(monkeypatch, capsys, "tokenizer", "inspect", out, "--text", sources[0], "--json")
    (row,) = json.loads(stdout)["texts"]
    assert (
        row["lang"] == "en"
        and row["unknown"] < (0.2 if kind in ("words", "whitespace") else 0.01)
        and row["characters per token"] >= 1
    )
    imported = corpus / "imported"
    status, stdout, _ = run(monkeypatch, capsys, "tokenizer", "import", out / "tokenizer.json", "--out", imported)
    assert status == 0 and Tokenizer.load(imported).hash == tokenizer.hash


def test_inspection_reports_what_it_skips(corpus: Path, monkeypatch, capsys) -> None:
    Tokenizer.train("wordpiece", iter(TEXTS), 600).save(corpus / "tokenizer")
    (corpus / "texts").mkdir()
    (corpus / "texts/a.jsonl").write_text('{"text": "the cat"}\n{"text": 3}\n')
    (corpus / "texts/b.bin").write_text("x")
    words = ["tokenizer", "inspect", corpus / "tokenizer", "--text", corpus / "texts", "--skip-bad"]
    status, _, error = run(monkeypatch, capsys, *words)
    assert status == 0 and "1 bad rows were skipped, the first: " in error and "b.bin" in error


@pytest.mark.parametrize(
    "words,message",
    [
        (["train", "en.txt", "--out", "o"], "--vocab-size is missing"),
        (["train", "en.txt", "--out", "o", "--vocab-size", "100", "--kind", "bpe"], "vocab_size is 100, too small"),
        (["train", "en.txt", "--out", "o", "--vocab-size", "3"], "vocab_size is 3, too small"),
        (["train", "en.txt", "--out", "o", "--vocab-size", "900", "--kind", "unigrams"], "did you mean 'unigram'?"),
        (["train", "en.txt", "--out", "o", "--vocab-size", "900", "--smoothing", "2"], "--smoothing"),
        (["train", "ex.txt", "--out", "o", "--vocab-size", "900"], "did you mean 'en.txt'?"),
        (["train", "empty.txt", "--out", "o", "--vocab-size", "900"], "there is no text in empty.txt"),
        (
            ["train", "en.txt", "--out", "o", "--kind", "characters", "--min-frequency", "5"],
            "--min-frequency has no effect on a characters vocabulary",
        ),
        (
            ["train", "en.txt", "--out", "o", "--vocab-size", "900", "--kind", "bpe", "--max-alphabet", "50"],
            "--max-alphabet has no effect on a bpe vocabulary",
        ),
        (["inspect", "nowhere"], "no such file or folder"),
        (["inspect", "vocab.txt", "--split", "line"], "--split has no effect without --text"),
        (["import", "en.txt", "--out", "o"], "is not a supported vocabulary file"),
        (["import", "vocab.txt", "--out", "o", "--kind", "bpe"], "the kind is wordpiece, not bpe"),
        (["import", "vocab.txt", "--out", "full"], "already exists"),
    ],
)
def test_invalid_arguments_give_one_line(words: list[str], message: str, corpus: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(corpus)
    Path("empty.txt").write_text(" \n")
    Path("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    Path("full").mkdir()
    Path("full", "x").touch()
    status, _, error = run(monkeypatch, capsys, "tokenizer", *words)
    assert status == 2 and message in error and error.count("\n") == 1 and not Path("o").exists()


def test_training_unigram_without_sentencepiece_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyseme.errors import PolysemeError

    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(PolysemeError, match=r"needs sentencepiece: pip install 'polyseme\[unigram\]'"):
        Tokenizer.train("unigram", iter(TEXTS), 600)
