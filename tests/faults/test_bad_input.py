"""A user error gives one line on stderr, exit status 2, no traceback, and no partial output."""

import gzip
import json
import lzma
import os

import pytest
import torch

LONG = "the old cat sees the dog " * 10


# --- text files, through both of their readers -----------------------------------------------------------------------


def corrupt_gzip(path):
    path.write_bytes(gzip.compress(os.urandom(20000))[:9000])


def corrupt_xz(path):
    path.write_bytes(lzma.compress(os.urandom(20000))[:9000])


TEXTS = {
    "missing": ("none.txt", None, "none.txt"),
    "empty": ("a.txt", b"", ["a.txt", "empty|nothing|no text"]),
    "utf-16": ("a.txt", "the cat\n".encode("utf-16"), ["a.txt", "UTF-8"]),
    "latin-1": ("a.txt", b"the cat\nthe caf\xe9\n", ["a.txt", r"(line |:)2\b", "UTF-8"]),
    "gzip": ("a.txt.gz", corrupt_gzip, "a.txt.gz"),
    "xz": ("a.txt.xz", corrupt_xz, "a.txt.xz"),
    "not gzip": ("a.txt.gz", b"the cat sees the dog", "a.txt.gz"),
    "json": ("a.jsonl", b'{"text": "a"}\n{"text": "b"}\n{"text": \n', ["a.jsonl", "line 3|:3", "JSON"]),
    "json list": ("a.jsonl", b'{"text": "a"}\n["b"]\n', ["a.jsonl", "line 2|:2"]),
    "json key": ("a.jsonl", b'{"texts": "a", "id": "b"}\n', ["line 1|:1", "'text'", "texts"]),
    "json number": ("a.jsonl", b'{"text": 5}\n', ["line 1|:1", "'text'", "5"]),
    "blank": ("a.txt", b"\n  \n\n", "a.txt"),
    "empty folder": ("folder", "folder", "folder"),
}


def lay(tmp_path, name, content):
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif callable(content):
        content(path)
    elif content is not None:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("verb", ["tokenizer", "prepare"])
def test_sources(case, verb, rejects, project, tmp_path):
    name, content, match = TEXTS[case]
    path = lay(tmp_path, name, content)
    if verb == "tokenizer":
        rejects("tokenizer", "train", path, "--vocab-size", 300, "--out", tmp_path / "out", match=match)
    else:
        rejects("prepare", path, "--tokenizer", project / "tok-bert", "--out", tmp_path / "out", match=match)


@pytest.mark.parametrize("case", [c for c in TEXTS if not c.startswith("json") and c != "empty folder"])
@pytest.mark.parametrize("verb", ["score", "embed"])
def test_lines(case, verb, rejects, project, tmp_path):
    name, content, match = TEXTS[case]
    path = lay(tmp_path, name, content)
    out = ("--out", tmp_path / "v.npz") if verb == "embed" else ()
    rejects(verb, project / "run-bert/model", "--data", path, *out, match=match)


@pytest.mark.parametrize("verb", ["score", "embed"])
def test_blank_line_is_reported(verb, rejects, project, tmp_path):
    (tmp_path / "a.txt").write_text("the cat\n\nthe dog\n")
    out = ("--out", tmp_path / "v.npz") if verb == "embed" else ()
    rejects(verb, project / "run-bert/model", "--data", tmp_path / "a.txt", *out, match=["a.txt", r"(line |:)2\b"])


def test_late_bad_row_leaves_no_output(rejects, project, tmp_path):
    rows = [json.dumps({"text": f"the cat sees the dog {i}."}) for i in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, "{"]))
    rejects("prepare", tmp_path / "a.jsonl", "--tokenizer", project / "tok-bert", "--out", tmp_path / "out",
            match="line 51")  # fmt: skip


@pytest.mark.parametrize("options,match", [
    (("--kind", "wordpieces"), "wordpiece"),
    (("--split", "lines"), "'line'"),
    (("--vocab-size", "20"), "small"),
    (("--vocab-size", "0"), "0"),
    (("--vocab-size", "-4"), "-4"),
    (("--vocab-size", "many"), "vocab-size"),
    (("--kind", "bpe", "--vocab-size", "100"), "257"),
])  # fmt: skip
def test_tokenizer_options(options, match, rejects, project, tmp_path):
    size = () if "--vocab-size" in options else ("--vocab-size", 300)
    rejects("tokenizer", "train", project / "text.txt", *size, *options, "--out", tmp_path / "out", match=match)


@pytest.mark.parametrize("what", ["missing", "empty folder", "malformed", "a vocabulary without [CLS]"])
def test_tokenizers(what, rejects, project, tmp_path):
    folder = tmp_path / "tok"
    if what != "missing":
        folder.mkdir()
    if what == "malformed":
        (folder / "tokenizer.json").write_text("{")
    if what == "a vocabulary without [CLS]":
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\nthe\n")
    rejects("prepare", project / "text.txt", "--tokenizer", folder, "--out", tmp_path / "out", match="tok")


# --- tasks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def finetune(rejects, project, tmp_path):
    def run(*options, task="classification", train=None, dev=None, model=None, match=()):
        ending = "conll" if task.startswith("tag") else "tsv"
        kind = task if (project / f"{task}-train.{ending}").exists() else "classification"
        train = train or project / f"{kind}-train.{ending}"
        dev = dev or project / f"{kind}-dev.{ending}"
        return rejects(
            "finetune", model or project / "run-bert/model", "--task", task, "--train", train, "--dev", dev, "--out",
            tmp_path / "run", "--set", "steps=1", *options, match=match,
        )  # fmt: skip

    return run


EXAMPLES = {
    "missing": ("none.tsv", None, "none.tsv"),
    "empty": ("a.tsv", b"", ["a.tsv", "empty"]),
    "header only": ("a.tsv", b"text\tlabel\n", ["a.tsv", "no examples"]),
    "encoding": ("a.tsv", b"text\tlabel\nthe caf\xe9\tland\n", ["a.tsv:2", "utf-8"]),
    "gzip": ("a.tsv.gz", corrupt_gzip, "a.tsv.gz"),
    "xz": ("a.tsv.xz", corrupt_xz, "a.tsv.xz"),
    "column": ("a.tsv", b"texts\tlabels\na\tland\n", ["'text'", "texts"]),
    "ragged": ("a.tsv", b"text\tlabel\na\tland\nb\n", ["a.tsv:3", "columns"]),
    "blank text": ("a.tsv", b"text\tlabel\na\tland\n \twater\n", "a.tsv:3"),
    "blank line": ("a.tsv", b"text\tlabel\na\tland\n\nb\twater\n", "a.tsv:3"),
    "json": ("a.jsonl", b'{"text": "a", "label": "land"}\n{"text"\n', ["a.jsonl:2", "JSON"]),
    "json key": ("a.jsonl", b'{"text": "a", "lable": "land"}\n', ["a.jsonl:1", "'label'", "lable"]),
    "ending": ("a.xlsx", b"a", "xlsx"),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_examples(case, rejects, finetune, project, tmp_path):
    name, content, match = EXAMPLES[case]
    path = lay(tmp_path, name, content)
    finetune(train=path, match=match)
    finetune(dev=path, match=match)
    rejects("evaluate", project / "run-classification/model", "--data", path, match=match)
    if case != "json key":
        rejects(
            "predict", project / "run-classification/model", "--data", path, "--out", tmp_path / "p.jsonl", match=match
        )


def test_missing_column_lists_the_others(finetune, tmp_path):
    (tmp_path / "a.tsv").write_text("sentence\tgold\na\tland\n")
    finetune(train=tmp_path / "a.tsv", match=["'text'", "sentence", "gold"])
    (tmp_path / "a.jsonl").write_text('{"sentence": "a", "gold": "land"}\n')
    finetune(train=tmp_path / "a.jsonl", match=["'text'", "sentence", "gold"])


def test_unknown_labels(rejects, finetune, project, tmp_path):
    (tmp_path / "odd.tsv").write_text("text\tlabel\nthe cat\tland\nthe fish\twatr\n")
    finetune(dev=tmp_path / "odd.tsv", match=["odd.tsv:3", "'watr'", "'water'"])
    rejects(
        "evaluate", project / "run-classification/model", "--data", tmp_path / "odd.tsv", match=["odd.tsv:3", "'watr'"]
    )
    (tmp_path / "odd.conll").write_text("the\tO\ncat\tB-B\n")
    finetune(task="tagging", dev=tmp_path / "odd.conll", match=["odd.conll", "'B-B'"])
    rejects("evaluate", project / "run-tagging/model", "--data", tmp_path / "odd.conll", match="'B-B'")


TASKS = {
    "unknown task": (("--task", "taging"), ["taging", "'tagging'"]),
    "unknown key": (("--set", "epoch=1"), "'epochs'"),
    "unknown nested key": (("--set", "optimizer.l=1"), ["'l' in OptimizerConfig", "valid: .* lr,"]),
    "misspelled nested key": (("--set", "optimizer.lrr=1"), ["'lrr'", "'lr'"]),
    "no equals": (("--set", "epochs"), "path=value"),
    "wrong type": (("--set", "epochs=many"), "many"),
    "batch": (("--set", "batch_size=0"), "batch_size"),
    "no seeds": (("--seeds", "0"), "seeds"),
    "length": (("--set", "max_len=4"), "max_len|longer"),
    "too long": (("--set", "max_len=64"), "64"),
    "num_frozen_groups": (("--set", "num_frozen_groups=9"), "freeze 9 groups"),
    "chunk_size": (("--set", "chunk_size=8"), "no memory"),
    "text column": (("--text-column", "txt"), "'txt'"),
    "column number": (("--no-header", "--text-column", "7", "--label-column", "2"), "7"),
}


@pytest.mark.parametrize("case", TASKS)
def test_finetune_options(case, finetune):
    options, match = TASKS[case]
    finetune(*options, match=match)


NAMED = {
    "both": (("--task", "glue/cola", "--data", "glue", "--train", "x.tsv"), "pass --data alone"),
    "columns": (("--task", "glue/cola", "--data", "glue", "--text-column", "3"), "pass --data alone"),
    "no folder": (("--task", "glue/cola"), ["--data is missing", "CoLA"]),
    "missing folder": (("--task", "glue/cola", "--data", "none"), "no folder .*none"),
    "missing file": (("--task", "glue/wnli", "--data", "glue"), r"WNLI/dev\.tsv is missing"),
    "unknown": (("--task", "glue/colla", "--data", "glue"), ["'glue/colla'", "'glue/cola'"]),
    "a kind": (
        ("--task", "pair_classification", "--data", "glue"),
        ["--data is for named data sets", "--train and --dev"],
    ),
    "one file": (("--task", "pair_classification", "--train", "x.tsv"), "--dev is missing"),
    "no file": (("--task", "pair_classification"), "--train is missing"),
    "not a number": (("--task", "glue/sts-b", "--data", "glue"), [r"STS-B/dev\.tsv:2", "'high' is not a number"]),
}


@pytest.mark.parametrize("case", NAMED)
def test_named_data_sets(case, rejects, project, glue, tmp_path):
    (glue / "WNLI/dev.tsv").unlink()
    score = (glue / "STS-B/dev.tsv").read_text().splitlines()[1].split("\t")[-1]
    file = glue / "STS-B/dev.tsv"
    file.write_text(file.read_text().replace(score, "high"))
    options, match = NAMED[case]
    given = [tmp_path / o if o in ("glue", "none") else o for o in options]
    rejects("finetune", project / "run-bert/model", *given, "--out", tmp_path / "run", match=match)


def test_training_set_with_one_label(finetune, tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe cat\tland\nthe dog\tland\n")
    finetune(train=tmp_path / "a.tsv", match="'land'")


def test_models_without_the_required_head(rejects, project, tmp_path):
    data = project / "classification-dev.tsv"
    rejects("evaluate", project / "run-bert/model", "--data", data, match="fine-tune")
    rejects("predict", project / "run-bert/model", "--data", data, "--out", tmp_path / "p.tsv", match="fine-tune")
    rejects(
        "fill", project / "run-gpt2/model", "the [MASK]", match=["cannot fill masks", "gpt2 model with the head next"]
    )
    follows = "cannot predict whether one text follows another"
    rejects("next", project / "run-gpt2/model", "a cat", "a dog", match=[follows, "gpt2 model with the head next"])
    rejects("next", project / "run-classification/model", "a cat", "a dog", match=[follows, "with the head classify"])
    (tmp_path / "a.txt").write_text("the cat\n")
    rejects(
        "score",
        project / "run-classification/model",
        "--data",
        tmp_path / "a.txt",
        match=["cannot score texts", "with the head classify"],
    )


@pytest.mark.parametrize("name,match", [("p.xls", ".jsonl"), ("p", ".jsonl"), ("p.conll", ".jsonl")])
def test_predict_to_an_unknown_suffix(name, match, rejects, project, tmp_path):
    rejects("predict", project / "run-classification/model", "--data", project / "classification-dev.tsv", "--out",
            tmp_path / name, match=match)  # fmt: skip


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_texts_longer_than_the_model(family, rejects, project, tmp_path):
    model = project / f"run-{family}/model"
    (tmp_path / "long.txt").write_text(f"the cat\n{LONG}\n")
    match = [r"\b32\b", "long"]
    if family == "bert":
        rejects("fill", model, LONG + "[MASK]", match=match)
        rejects("next", model, LONG, "the cat", match=match)
        rejects("next", model, "the cat", LONG, match=match)
    rejects("encode", model, LONG, match=match)
    rejects("encode", model, "a cat", LONG, match=match)
    rejects("score", model, "--data", tmp_path / "long.txt", match=match)
    rejects("embed", model, "--data", tmp_path / "long.txt", "--out", tmp_path / "v.npz", match=match)


def test_examples_longer_than_the_model(rejects, finetune, project, tmp_path):
    (tmp_path / "long.tsv").write_text(f"text\tlabel\nthe cat\tland\n{LONG}\twater\n")
    match = ["long.tsv:3", r"\b32\b"]
    finetune(train=tmp_path / "long.tsv", match=match)
    finetune(dev=tmp_path / "long.tsv", match=match)
    rejects("evaluate", project / "run-classification/model", "--data", tmp_path / "long.tsv", match=match)
    rejects("predict", project / "run-classification/model", "--data", tmp_path / "long.tsv", "--out",
            tmp_path / "p.jsonl", match=match)  # fmt: skip
    (tmp_path / "long.conll").write_text("".join(f"{w}\t{'O' if w == 'the' else 'B-A'}\n" for w in LONG.split()))
    finetune(task="tagging", train=tmp_path / "long.conll", match=["long.conll", r"\b32\b"])
    rejects("predict", project / "run-tagging/model", "--data", tmp_path / "long.conll", "--out", tmp_path / "p.conll",
            match=["long.conll", r"\b32\b"])  # fmt: skip


@pytest.mark.parametrize("text", ["", "  ", "\n", "\u200b\x00"], ids=["empty", "blanks", "newline", "control"])
def test_zero_length_texts(text, rejects, project):
    model = project / "run-bert/model"
    rejects("fill", model, text, match="has no tokens")
    rejects("encode", model, text, match="has no tokens")
    rejects("encode", model, "a cat", text, match="has no tokens")
    rejects("next", model, text, "a cat", match="has no tokens")
    rejects("next", model, "a cat", text, match="has no tokens")


def test_fill_without_a_mask(rejects, project):
    rejects("fill", project / "run-bert/model", "the cat", match=r"\[MASK\]")
    rejects("fill", project / "run-bert/model", "the [MASK]", "--top-k", 0, match="top-k|0")


@pytest.mark.parametrize("options,match", [
    (("--layers", "lst"), "last"),
    (("--layers", "3"), "3"),
    (("--layers", "-1"), "-1"),
    (("--layers", "1.5"), "1.5"),
    (("--layers", ""), "layers"),
    (("--granularity", "words"), "'word'"),
])  # fmt: skip
def test_embed_options(options, match, rejects, project, tmp_path):
    (tmp_path / "a.txt").write_text("the cat\n")
    rejects("embed", project / "run-bert/model", "--data", tmp_path / "a.txt", "--out", tmp_path / "v.npz", *options,
            match=match)  # fmt: skip


def test_embed_to_an_unknown_suffix(rejects, project, tmp_path):
    (tmp_path / "a.txt").write_text("the cat\n")
    rejects(
        "embed", project / "run-bert/model", "--data", tmp_path / "a.txt", "--out", tmp_path / "v.npy", match=".npz"
    )


# --- where things are written ----------------------------------------------------------------------------------------


def writers(project, out, ending=""):
    """All commands that write, with the output path `out`."""
    (out.parent.parent / "lines").mkdir(exist_ok=True)
    lines = out.parent.parent / "lines/a.txt"
    lines.write_text("the cat\n")
    return {
        "tokenizer": ("tokenizer", "train", project / "text.txt", "--vocab-size", 300, "--out", out),
        "prepare": ("prepare", project / "text.txt", "--tokenizer", project / "tok-bert", "--out", out),
        "pretrain": ("pretrain", project / "bert.json", "--corpus", project / "corpus-bert", "--out", out),
        "finetune": (
            "finetune", project / "run-bert/model", "--task", "classification", "--train",
            project / "classification-train.tsv", "--dev", project / "classification-dev.tsv", "--out", out,
            "--set", "steps=1"),
        "predict": (
            "predict", project / "run-classification/model", "--data", project / "classification-dev.tsv", "--out",
            out.with_suffix(".jsonl")),
        "embed": ("embed", project / "run-bert/model", "--data", lines, "--out", out.with_suffix(".npz")),
        "demo": ("demo", "--out", out, "--minutes", "0.01"),
    }  # fmt: skip


FOLDERS = ["tokenizer", "prepare", "pretrain", "finetune", "demo"]
FILES = ["predict", "embed"]


@pytest.mark.parametrize("verb", FOLDERS)
def test_out_that_exists(verb, rejects, project, tmp_path):
    out = tmp_path / "place/out"
    out.mkdir(parents=True)
    (out / "precious.txt").write_text("keep me")
    rejects(*writers(project, out)[verb], match="out")
    (out / "precious.txt").unlink()
    out.rmdir()
    out.write_text("a file")
    rejects(*writers(project, out)[verb], match="out")


@pytest.mark.parametrize("verb", FILES)
def test_out_that_is_a_folder(verb, rejects, project, tmp_path):
    (tmp_path / "place").mkdir()
    command = writers(project, tmp_path / "place/out")[verb]
    command[-1].mkdir()
    rejects(*command, match="out")


@pytest.mark.parametrize("verb", FOLDERS + FILES)
def test_out_below_a_file(verb, rejects, project, tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place/file").write_text("a file")
    command = list(writers(project, tmp_path / "place/out")[verb])
    command = [
        tmp_path / "place/file" / p.name if isinstance(p, type(tmp_path)) and p.parent == tmp_path / "place" else p
        for p in command
    ]
    rejects(*command, match="file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("verb", FOLDERS + FILES)
def test_out_without_permission(verb, rejects, project, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    command = writers(project, place / "out")[verb]
    place.chmod(0o500)
    try:
        rejects(*command, match="permission")
    finally:
        place.chmod(0o700)


# --- the command line itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("args,match", [
    (("fil",), ["fil", "fill"]),
    (("tokenizer", "trian"), ["trian"]),
    (("fill",), "model"),
    (("fill", "a"), "text"),
    (("fill", "a", "b", "c"), "c"),
    (("fill", "a", "b", "--topk", "3"), ["--topk", "--top-k"]),
    (("fill", "a", "b", "--top-k", "x"), "--top-k"),
    (("fill", "a", "b", "--top-k"), "--top-k"),
    (("pretrain", "demo"), "corpus|out"),
    (("recipes", "x"), "x"),
    (("--nonsense",), "--nonsense"),
])  # fmt: skip
def test_usage(args, match, rejects):
    rejects(*args, match=match)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it works")
@pytest.mark.parametrize("precision,match", [("bf16", "needs a GPU"), ("fp16", "precision is .fp16.")])
def test_precision(precision, match, rejects, project, tmp_path):
    (tmp_path / "a.txt").write_text("The cat.")
    given = ("--data", tmp_path / "a.txt", "--out", tmp_path / "v.npz", "--precision", precision)
    rejects("embed", project / "run-bert/model", *given, match=match)


def test_the_rejects_fixture_can_fail(rejects, project):
    """Many tests here assert by calling `rejects` alone, so it has to notice each fault."""
    for args, match in ((("recipes",), ""), (("fill", project / "none", "the [MASK]"), "another message")):
        with pytest.raises(pytest.fail.Exception):
            rejects(*args, match=match)
