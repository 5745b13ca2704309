"""A user's mistake is one line on stderr, exit status 2, no traceback, and nothing half written."""

import gzip
import json
import lzma
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

LONG = "the old cat sees the dog " * 10


def snapshot(folder):
    """Everything below a folder, hidden files too."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def refused(cli, tmp_path):
    """Run a command that must fail; `tmp_path` stays as it was. Returns what was said."""

    def run(*args, says=()):
        before = snapshot(tmp_path)
        answer = cli(*args)
        lines, after = answer.err.splitlines(), snapshot(tmp_path)
        absent = [part for part in ([says] if isinstance(says, str) else says) if not re.search(part, answer.err, re.I)]
        faults = {
            f"status {answer.status}": answer.status != 2,
            f"{len(lines)} lines": len(lines) != 1,
            "no 'error: '": not answer.err.startswith("error: "),
            f"printed {answer.out[:80]!r}": bool(answer.out),
            f"left {sorted(after.keys() ^ before.keys()) or 'a file changed'}": after != before,
            f"does not say {absent}": bool(absent),
        }
        if any(faults.values()):
            shown = "; ".join(fault for fault, holds in faults.items() if holds)
            pytest.fail(f"{args[0]}: {shown}: {' | '.join(lines[-4:])}", pytrace=False)
        return answer.err

    return run


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
def test_sources(case, verb, refused, project, tmp_path):
    name, content, says = TEXTS[case]
    path = lay(tmp_path, name, content)
    if verb == "tokenizer":
        refused("tokenizer", "train", path, "--vocab-size", 300, "--out", tmp_path / "out", says=says)
    else:
        refused("prepare", path, "--tokenizer", project / "tok-bert", "--out", tmp_path / "out", says=says)


@pytest.mark.parametrize("case", [c for c in TEXTS if not c.startswith("json") and c != "empty folder"])
@pytest.mark.parametrize("verb", ["score", "embed"])
def test_lines(case, verb, refused, project, tmp_path):
    name, content, says = TEXTS[case]
    path = lay(tmp_path, name, content)
    out = ("--out", tmp_path / "v.npz") if verb == "embed" else ()
    refused(verb, project / "run-bert/model", "--data", path, *out, says=says)


@pytest.mark.parametrize("verb", ["score", "embed"])
def test_one_blank_line_is_named(verb, refused, project, tmp_path):
    (tmp_path / "a.txt").write_text("the cat\n\nthe dog\n")
    out = ("--out", tmp_path / "v.npz") if verb == "embed" else ()
    refused(verb, project / "run-bert/model", "--data", tmp_path / "a.txt", *out, says=["a.txt", r"(line |:)2\b"])


def test_bad_rows_late_in_a_source_leave_nothing(refused, project, tmp_path):
    rows = [json.dumps({"text": f"the cat sees the dog {i}."}) for i in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, "{"]))
    refused("prepare", tmp_path / "a.jsonl", "--tokenizer", project / "tok-bert", "--out", tmp_path / "out",
            says="line 51")  # fmt: skip


@pytest.mark.parametrize("options,says", [
    (("--kind", "wordpieces"), "wordpiece"),
    (("--split", "lines"), "'line'"),
    (("--vocab-size", "20"), "small"),
    (("--vocab-size", "0"), "0"),
    (("--vocab-size", "-4"), "-4"),
    (("--vocab-size", "many"), "vocab-size"),
    (("--kind", "bpe", "--vocab-size", "100"), "257"),
])  # fmt: skip
def test_tokenizer_options(options, says, refused, project, tmp_path):
    size = () if "--vocab-size" in options else ("--vocab-size", 300)
    refused("tokenizer", "train", project / "text.txt", *size, *options, "--out", tmp_path / "out", says=says)


@pytest.mark.parametrize("what", ["missing", "empty folder", "malformed", "a vocabulary without [CLS]"])
def test_tokenizers(what, refused, project, tmp_path):
    folder = tmp_path / "tok"
    if what != "missing":
        folder.mkdir()
    if what == "malformed":
        (folder / "tokenizer.json").write_text("{")
    if what == "a vocabulary without [CLS]":
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\nthe\n")
    refused("prepare", project / "text.txt", "--tokenizer", folder, "--out", tmp_path / "out", says="tok")


# --- corpora ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(project, tmp_path):
    return shutil.copytree(project / "corpus-bert", tmp_path / "corpus")


def both_refuse(refused, project, corpus, tmp_path, says):
    """`verify` and `pretrain` say no."""
    refused("verify", corpus, says=says)
    refused("pretrain", project / "bert.json", "--corpus", corpus, "--out", tmp_path / "run", says=says)


@pytest.mark.parametrize("part", ["tokens", "sentences", "documents", "words"])
def test_one_flipped_byte(part, refused, project, corpus, tmp_path):
    file = corpus / f"shard-00000.{part}.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    both_refuse(refused, project, corpus, tmp_path, [file.name, "hash|damaged"])


def test_a_shard_cut_short_or_missing(refused, project, corpus, tmp_path):
    file = corpus / "shard-00000.tokens.npy"
    file.write_bytes(file.read_bytes()[:-2])
    both_refuse(refused, project, corpus, tmp_path, file.name)
    file.unlink()
    both_refuse(refused, project, corpus, tmp_path, [file.name, "missing"])


@pytest.mark.parametrize("how", ["edited", "malformed", "a list", "unfinished", "missing"])
def test_manifest(how, refused, project, corpus, tmp_path):
    path = corpus / "manifest.json"
    manifest = json.loads(path.read_text())
    if how == "edited":
        manifest["counts"]["tokens"] += 1
    if how == "unfinished":
        manifest["finished"] = False
    path.write_text("{" if how == "malformed" else json.dumps([] if how == "a list" else manifest))
    if how == "missing":
        path.unlink()
    both_refuse(refused, project, corpus, tmp_path, "prepar" if how == "unfinished" else "manifest.json")


def test_a_tokenizer_that_is_not_the_corpus_s(refused, project, corpus, tmp_path):
    shutil.rmtree(corpus / "tokenizer")
    shutil.copytree(project / "tok-gpt2", corpus / "tokenizer")
    both_refuse(refused, project, corpus, tmp_path, "tokenizer")


def test_one_edited_piece_in_the_corpus_s_tokenizer(refused, project, corpus, tmp_path):
    path = corpus / "tokenizer/tokenizer.json"
    path.write_text(path.read_text().replace('"cat"', '"tac"'))
    both_refuse(refused, project, corpus, tmp_path, "tokenizer")


def test_prepare_again_with_another_tokenizer_or_sources(refused, project, corpus, tmp_path):
    refused("prepare", project / "text.txt", "--tokenizer", project / "tok-gpt2", "--out", corpus, "--split", "blank",
            says="another tokenizer")  # fmt: skip
    refused("prepare", project / "text.txt", "--tokenizer", project / "tok-bert", "--out", corpus, "--split", "line",
            says="split")  # fmt: skip
    (tmp_path / "other.txt").write_text("the cat sees the dog.")
    refused("prepare", tmp_path / "other.txt", "--tokenizer", project / "tok-bert", "--out", corpus, "--split", "blank",
            says="sources")  # fmt: skip


def test_verify_of_neither(refused, tmp_path):
    (tmp_path / "folder").mkdir()
    refused("verify", tmp_path / "folder", says="neither")
    refused("verify", tmp_path / "none", says="none")


# --- model folders ---------------------------------------------------------------------------------------------------


@pytest.fixture
def model(project, tmp_path):
    return shutil.copytree(project / "run-bert/model", tmp_path / "model")


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def only_a_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))


MODELS = {
    "missing tensor": (lambda f: edit_tensors(f, lambda t: t.pop(QUERY)), re.escape(QUERY)),
    "extra tensor": (lambda f: edit_tensors(f, lambda t: t.update({"bert.odd": torch.zeros(2)})), "bert.odd"),
    "wrong shape": (lambda f: edit_tensors(f, lambda t: t.update({QUERY: torch.zeros(32, 31)})), re.escape(QUERY)),
    "wrong shape, same size": (
        lambda f: edit_tensors(f, lambda t: t.update({QUERY: torch.zeros(16, 64)})), re.escape(QUERY)),
    "truncated": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-100]), "safetensors"),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    "pickle only": (only_a_pickle, ["pytorch_model.bin", "pickle"]),
    "config malformed": (lambda f: (f / "config.json").write_text('{\n"a": 1,\n'), ["config.json", "line"]),
    "config a list": (lambda f: (f / "config.json").write_text("[1]"), "config.json"),
    "config missing": (lambda f: (f / "config.json").unlink(), "config.json"),
    "polyseme.json malformed": (lambda f: (f / "polyseme.json").write_text("{"), "polyseme.json"),
    "polyseme.json a list": (lambda f: (f / "polyseme.json").write_text("[]"), "polyseme.json"),
    "polyseme.json without spec": (lambda f: (f / "polyseme.json").write_text("{}"), "polyseme.json|spec"),
    "tokenizer missing": (
        lambda f: [(f / n).unlink() for n in ("tokenizer.json", "vocab.txt") if (f / n).exists()], "tokenizer"),
    "tokenizer malformed": (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer.json"),
    "folder missing": (lambda f: shutil.rmtree(f), "model folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_model_folders(case, refused, project, model, tmp_path):
    change, says = MODELS[case]
    change(model)
    refused("verify", model, says=says if case != "folder missing" and case != "config missing" else "model")
    refused("fill", model, "the [MASK]", says=says)
    refused("finetune", model, "--task", "classification", "--train", project / "classification-train.tsv", "--dev",
            project / "classification-dev.tsv", "--out", tmp_path / "run", says=says)  # fmt: skip


PUBLISHED = {
    "unknown model_type": ({"model_type": "brt"}, ["brt", "'bert'"]),
    "no model_type": ({"model_type": None}, "model_type"),
    "unknown architecture": ({"architectures": ["BertForMaskedLMs"]}, "BertForMaskedLM"),
    "relative positions": ({"position_embedding_type": "relative_key"}, "relative_key"),
    "a decoder": ({"is_decoder": True}, "is_decoder"),
    "a wrong size": ({"hidden_size": 48, "num_attention_heads": 2}, "shape"),
    "a layer too many": ({"num_hidden_layers": 3}, "layer.2"),
    "a layer too few": ({"num_hidden_layers": 1}, "layer.1"),
    "odd heads": ({"num_attention_heads": 5}, "5"),
    "a text for a number": ({"hidden_size": "wide"}, "wide"),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_configs_of_others(case, refused, model):
    """A folder without polyseme.json is read by its config.json alone."""
    (model / "polyseme.json").unlink()
    changes, says = PUBLISHED[case]
    edit_config(model, **changes)
    refused("fill", model, "the [MASK]", says=says)
    refused("verify", model, says=says)


def test_a_missing_number_in_the_config(refused, model):
    (model / "polyseme.json").unlink()
    config = json.loads((model / "config.json").read_text())
    del config["hidden_size"]
    (model / "config.json").write_text(json.dumps(config))
    refused("fill", model, "the [MASK]", says="hidden_size")


def test_shards_that_are_missing_or_outside(refused, model):
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00002-of-00002.safetensors"}}))
    refused("verify", model, says="model-00002-of-00002.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    refused("verify", model, says="outside")


def test_a_weight_changed_after_saving(refused, model):
    edit_tensors(model, lambda t: t[QUERY].add_(1))
    refused("verify", model, says=["model.safetensors", "hash"])


def test_a_tokenizer_larger_than_the_model(refused, project, model):
    for file in model.glob("*tok*"):
        file.unlink()
    (model / "vocab.txt").write_text(
        (project / "tok-bert/vocab.txt").read_text() + "".join(f"more{i}\n" for i in range(50))
    )
    refused("fill", model, "the [MASK]", says="pieces")


# --- recipes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pretrain(refused, project, tmp_path):
    def run(*options, recipe=None, says=(), change=None):
        path = project / "bert.json"
        if change is not None:
            path = tmp_path / "recipe.json"
            data = json.loads((project / "bert.json").read_text())
            path.write_text(json.dumps(change(data) or data))
        recipe = recipe or path
        return refused(
            "pretrain", recipe, "--corpus", project / "corpus-bert", "--out", tmp_path / "run", *options, says=says
        )

    return run


SETTINGS = {
    "no equals": ("optim.rate", "path=value"),
    "unknown": ("optm.rate=1", ["optm", "'optim'"]),
    "unknown nested": ("optim.rat=1", ["rat", "'rate'"]),
    "unknown in model": ("model.num_layer=1", ["num_layer", "'num_layers'"]),
    "no parts": ("seed.x=1", "seed"),
    "text for a number": ("optim.rate=fast", ["optim.rate", "fast"]),
    "float for an int": ("eval_every=2.5", ["eval_every", "2.5"]),
    "number for a flag": ("compile=3", ["compile", "3"]),
    "not a choice": ("precision=fp8", ["precision", "fp8"]),
    "text in model": ("model.dim=wide", "wide"),
    "fraction in model": ("model.dim=16.5", "16.5"),
    "heads": ("model.num_heads=5", ["5", "32"]),
    "no heads": ("model.num_heads=0", "0"),
    "no layers": ("model.num_layers=0", "layer"),
    "negative dim": ("model.dim=-32", "-32"),
    "activation": ("model.activation=gelo", "gelo"),
    "eval_every": ("eval_every=0", ["eval_every", "0"]),
    "save_every": ("save_every=0", ["save_every", "0"]),
    "log_every": ("log_every=0", ["log_every", "0"]),
    "keep": ("keep=0", ["keep", "0"]),
    "steps": ("budget.steps=0", "budget"),
    "negative steps": ("budget.steps=-3", "-3"),
    "bin_tokens": ("bin_tokens=16", "bin_tokens"),
    "no bin_tokens": ("bin_tokens=0", "bin_tokens"),
    "batch_tokens": ("batch_tokens=300", "batch_tokens"),
    "no batch": ("batch_tokens=0", "batch_tokens"),
    "max_len beyond the model": ("max_len=64", "64"),
    "max_len nothing": ("max_len=0", "max_len"),
    "mask rate": ("objective.rate=1.5", ["rate", "1.5"]),
    "holdout": ("holdout=1.5", ["holdout", "1.5"]),
    "dropout": ("model.dropout=1.5", "1.5"),
    "family": ("family=brt", ["brt", "'bert'"]),
    "size": ("size=basse", ["basse", "'base'"]),
    "head of another family": ("family=gpt2", "MaskedPairs"),
    "negative rate": ("optim.rate=-1", "-1"),
    "beta": ("optim.beta1=1.5", "1.5"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_set(case, pretrain):
    change, says = SETTINGS[case]
    pretrain("--set", change, says=says)


RECIPES = {
    "unknown key": (lambda r: r.update(sede=1), ["'sede'", "'seed'"]),
    "unknown nested key": (lambda r: r["optim"].update(rat=1), ["'rat'", "optim", "'rate'"]),
    "unknown key in the objective": (lambda r: r["objective"].update(masks=1), ["'masks'", "objective"]),
    "unknown kind": (lambda r: r["objective"].update(kind="MaskedPair"), ["MaskedPair", "'MaskedPairs'"]),
    "missing key": (lambda r: r.pop("family") and None, "family"),
    "a list": (lambda r: [r], "object"),
    "wrong type": (lambda r: r.update(max_len="32"), "max_len"),
    "null": (lambda r: r.update(max_len=None), "max_len"),
    "a list for the model": (lambda r: r.update(model=[1]), "model"),
    "a list in the model": (lambda r: r["model"].update(dim=[1]), "dim"),
    "infinite": (lambda r: r["optim"].update(rate=float("inf")), "rate"),
}


@pytest.mark.parametrize("case", RECIPES)
def test_recipe_files(case, pretrain):
    change, says = RECIPES[case]
    pretrain(change=change, says=says)


def test_recipes_that_are_not_there(pretrain, project, tmp_path):
    pretrain(recipe=tmp_path / "none.json", says=["none.json", "missing"])
    pretrain(recipe="bert-tini", says=["bert-tini", "'bert-tiny'"])
    (tmp_path / "bad.json").write_text('{\n"name": "a",\n')
    pretrain(recipe=tmp_path / "bad.json", says=["bad.json", "line"])
    (tmp_path / "empty.json").write_text("")
    pretrain(recipe=tmp_path / "empty.json", says="empty.json")
    (tmp_path / "latin.json").write_bytes(b'{"name": "caf\xe9"}')
    pretrain(recipe=tmp_path / "latin.json", says="latin.json")
    (tmp_path / "folder.json").mkdir()
    pretrain(recipe=tmp_path / "folder.json", says="folder.json")


def test_corpora_that_are_not_there_or_too_small(refused, project, done, tmp_path):
    refused("pretrain", project / "bert.json", "--corpus", tmp_path / "none", "--out", tmp_path / "run", says="none")
    (tmp_path / "one.txt").write_text("The cat sees the dog.")
    done("prepare", tmp_path / "one.txt", "--tokenizer", project / "tok-bert", "--out", tmp_path / "one")
    refused("pretrain", project / "bert.json", "--corpus", tmp_path / "one", "--out", tmp_path / "run",
            says="two documents")  # fmt: skip


def test_an_objective_the_tokenizer_cannot_serve(refused, project, tmp_path):
    refused("pretrain", project / "bert.json", "--corpus", project / "corpus-gpt2", "--out", tmp_path / "run",
            says="cls")  # fmt: skip


def test_resume_of_another_run(refused, done, project, tmp_path):
    common = ("pretrain", project / "bert.json", "--corpus", project / "corpus-bert", "--out", tmp_path / "run")
    done(*common, "--set", "budget.steps=1")
    refused(*common, "--set", "budget.steps=1", says="--resume")
    refused(*common, "--resume", says="budget")
    (tmp_path / "run/recipe.json").write_text("[]")
    refused(*common, "--resume", says="recipe.json")


# --- tasks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def finetune(refused, project, tmp_path):
    def run(*options, task="classification", train=None, dev=None, model=None, says=()):
        ending = "conll" if task.startswith("tag") else "tsv"
        kind = task if (project / f"{task}-train.{ending}").exists() else "classification"
        train = train or project / f"{kind}-train.{ending}"
        dev = dev or project / f"{kind}-dev.{ending}"
        return refused(
            "finetune", model or project / "run-bert/model", "--task", task, "--train", train, "--dev", dev, "--out",
            tmp_path / "run", "--set", "steps=1", *options, says=says,
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
def test_examples(case, refused, finetune, project, tmp_path):
    name, content, says = EXAMPLES[case]
    path = lay(tmp_path, name, content)
    finetune(train=path, says=says)
    finetune(dev=path, says=says)
    refused("evaluate", project / "run-classification/model", "--data", path, says=says)
    if case != "json key":
        refused(
            "predict", project / "run-classification/model", "--data", path, "--out", tmp_path / "p.jsonl", says=says
        )


def test_a_missing_column_names_those_that_are_there(finetune, tmp_path):
    (tmp_path / "a.tsv").write_text("sentence\tgold\na\tland\n")
    finetune(train=tmp_path / "a.tsv", says=["'text'", "sentence", "gold"])
    (tmp_path / "a.jsonl").write_text('{"sentence": "a", "gold": "land"}\n')
    finetune(train=tmp_path / "a.jsonl", says=["'text'", "sentence", "gold"])


def test_labels_never_seen(refused, finetune, project, tmp_path):
    (tmp_path / "odd.tsv").write_text("text\tlabel\nthe cat\tland\nthe fish\twatr\n")
    finetune(dev=tmp_path / "odd.tsv", says=["odd.tsv:3", "'watr'", "'water'"])
    refused(
        "evaluate", project / "run-classification/model", "--data", tmp_path / "odd.tsv", says=["odd.tsv:3", "'watr'"]
    )
    (tmp_path / "odd.conll").write_text("the\tO\ncat\tB-B\n")
    finetune(task="tagging", dev=tmp_path / "odd.conll", says=["odd.conll", "'B-B'"])
    refused("evaluate", project / "run-tagging/model", "--data", tmp_path / "odd.conll", says="'B-B'")


TASKS = {
    "unknown task": (("--task", "taging"), ["taging", "'tagging'"]),
    "unknown key": (("--set", "epoch=1"), "'epochs'"),
    "unknown nested key": (("--set", "optim.rat=1"), "'rate'"),
    "no equals": (("--set", "epochs"), "path=value"),
    "wrong type": (("--set", "epochs=many"), "many"),
    "batch": (("--set", "batch_size=0"), "batch_size"),
    "no seeds": (("--seeds", "0"), "seeds"),
    "length": (("--set", "max_len=4"), "max_len|longer"),
    "too long": (("--set", "max_len=64"), "64"),
    "freeze": (("--set", "freeze=9"), "freeze"),
    "text column": (("--text", "txt"), "'txt'"),
    "column number": (("--no-header", "--text", "7", "--label", "2"), "7"),
}


@pytest.mark.parametrize("case", TASKS)
def test_finetune_options(case, finetune):
    options, says = TASKS[case]
    finetune(*options, says=says)


def test_a_training_set_with_one_label(finetune, tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe cat\tland\nthe dog\tland\n")
    finetune(train=tmp_path / "a.tsv", says="'land'")


def test_models_without_the_head_that_is_asked_for(refused, project, tmp_path):
    data = project / "classification-dev.tsv"
    refused("evaluate", project / "run-bert/model", "--data", data, says="fine-tune")
    refused("predict", project / "run-bert/model", "--data", data, "--out", tmp_path / "p.tsv", says="fine-tune")
    refused("fill", project / "run-gpt2/model", "the [MASK]", says=["next", "'masked'"])
    refused("next", project / "run-gpt2/model", "a cat", "a dog", says="'pair'")
    refused("next", project / "run-classification/model", "a cat", "a dog", says=["classify", "'pair'"])
    (tmp_path / "a.txt").write_text("the cat\n")
    refused("score", project / "run-classification/model", "--data", tmp_path / "a.txt", says="'masked'")


@pytest.mark.parametrize("name,says", [("p.xls", ".jsonl"), ("p", ".jsonl"), ("p.conll", ".jsonl")])
def test_predict_to_an_unknown_ending(name, says, refused, project, tmp_path):
    refused("predict", project / "run-classification/model", "--data", project / "classification-dev.tsv", "--out",
            tmp_path / name, says=says)  # fmt: skip


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_longer_than_the_model(family, refused, project, tmp_path):
    model = project / f"run-{family}/model"
    (tmp_path / "long.txt").write_text(f"the cat\n{LONG}\n")
    says = [r"\b32\b", "long"]
    if family == "bert":
        refused("fill", model, LONG + "[MASK]", says=says)
        refused("next", model, LONG, "the cat", says=says)
        refused("next", model, "the cat", LONG, says=says)
    refused("encode", model, LONG, says=says)
    refused("encode", model, "a cat", LONG, says=says)
    refused("score", model, "--data", tmp_path / "long.txt", says=says)
    refused("embed", model, "--data", tmp_path / "long.txt", "--out", tmp_path / "v.npz", says=says)


def test_examples_longer_than_the_model(refused, finetune, project, tmp_path):
    (tmp_path / "long.tsv").write_text(f"text\tlabel\nthe cat\tland\n{LONG}\twater\n")
    says = ["long.tsv:3", r"\b32\b"]
    finetune(train=tmp_path / "long.tsv", says=says)
    finetune(dev=tmp_path / "long.tsv", says=says)
    refused("evaluate", project / "run-classification/model", "--data", tmp_path / "long.tsv", says=says)
    refused("predict", project / "run-classification/model", "--data", tmp_path / "long.tsv", "--out",
            tmp_path / "p.jsonl", says=says)  # fmt: skip
    (tmp_path / "long.conll").write_text("".join(f"{w}\t{'O' if w == 'the' else 'B-A'}\n" for w in LONG.split()))
    finetune(task="tagging", train=tmp_path / "long.conll", says=["long.conll", r"\b32\b"])
    refused("predict", project / "run-tagging/model", "--data", tmp_path / "long.conll", "--out", tmp_path / "p.conll",
            says=["long.conll", r"\b32\b"])  # fmt: skip


@pytest.mark.parametrize("text", ["", "  ", "\n", "\u200b\x00"], ids=["empty", "blanks", "newline", "control"])
def test_zero_length_texts(text, refused, project):
    model = project / "run-bert/model"
    refused("fill", model, text, says="nothing|empty")
    refused("encode", model, text, says="nothing|empty")
    refused("encode", model, "a cat", text, says="nothing|empty")
    refused("next", model, text, "a cat", says="nothing|empty")
    refused("next", model, "a cat", text, says="nothing|empty")


def test_fill_without_a_mask(refused, project):
    refused("fill", project / "run-bert/model", "the cat", says=r"\[MASK\]")
    refused("fill", project / "run-bert/model", "the [MASK]", "--top", 0, says="top|0")


@pytest.mark.parametrize("options,says", [
    (("--layers", "lst"), "last"),
    (("--layers", "3"), "3"),
    (("--layers", "-1"), "-1"),
    (("--layers", "1.5"), "1.5"),
    (("--layers", ""), "layers"),
    (("--per", "words"), "'word'"),
])  # fmt: skip
def test_embed_options(options, says, refused, project, tmp_path):
    (tmp_path / "a.txt").write_text("the cat\n")
    refused("embed", project / "run-bert/model", "--data", tmp_path / "a.txt", "--out", tmp_path / "v.npz", *options,
            says=says)  # fmt: skip


def test_embed_to_another_ending(refused, project, tmp_path):
    (tmp_path / "a.txt").write_text("the cat\n")
    refused("embed", project / "run-bert/model", "--data", tmp_path / "a.txt", "--out", tmp_path / "v.npy", says=".npz")


# --- where things are written ----------------------------------------------------------------------------------------


def writers(project, out, ending=""):
    """Every command that writes, to `out`."""
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
def test_out_that_exists(verb, refused, project, tmp_path):
    out = tmp_path / "place/out"
    out.mkdir(parents=True)
    (out / "precious.txt").write_text("keep me")
    refused(*writers(project, out)[verb], says="out")
    (out / "precious.txt").unlink()
    out.rmdir()
    out.write_text("a file")
    refused(*writers(project, out)[verb], says="out")


@pytest.mark.parametrize("verb", FILES)
def test_out_that_is_a_folder(verb, refused, project, tmp_path):
    (tmp_path / "place").mkdir()
    command = writers(project, tmp_path / "place/out")[verb]
    command[-1].mkdir()
    refused(*command, says="out")


@pytest.mark.parametrize("verb", FOLDERS + FILES)
def test_out_below_a_file(verb, refused, project, tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place/file").write_text("a file")
    command = list(writers(project, tmp_path / "place/out")[verb])
    command = [
        tmp_path / "place/file" / p.name if isinstance(p, type(tmp_path)) and p.parent == tmp_path / "place" else p
        for p in command
    ]
    refused(*command, says="file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("verb", FOLDERS + FILES)
def test_out_without_permission(verb, refused, project, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    command = writers(project, place / "out")[verb]
    place.chmod(0o500)
    try:
        refused(*command, says="permission")
    finally:
        place.chmod(0o700)


# --- the command line itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("args,says", [
    (("fil",), ["fil", "fill"]),
    (("tokenizer", "trian"), ["trian"]),
    (("fill",), "model"),
    (("fill", "a"), "text"),
    (("fill", "a", "b", "c"), "c"),
    (("fill", "a", "b", "--topp", "3"), ["--topp", "--top"]),
    (("fill", "a", "b", "--top", "x"), "--top"),
    (("fill", "a", "b", "--top"), "--top"),
    (("pretrain", "demo"), "corpus|out"),
    (("recipes", "x"), "x"),
    (("--nonsense",), "--nonsense"),
])  # fmt: skip
def test_usage(args, says, refused):
    refused(*args, says=says)


# --- a full disk -----------------------------------------------------------------------------------------------------


def with_small_disk(limit, *args):
    """The command in a process that may write no file of more than `limit` bytes, as on a full disk."""

    def shrink():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", "polyseme.cli.main", *map(str, args)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=shrink)
    shown = f"status {found.returncode}\n{found.stdout}\n{found.stderr}"
    assert "Traceback" not in found.stderr and found.returncode == 2, shown
    assert len(found.stderr.splitlines()) == 1 and found.stderr.startswith("error: "), shown
    assert re.search("cannot write|too large|space", found.stderr), shown
    return found.stderr


def parts(folder):
    return [str(p) for p in folder.rglob(".*")]


def test_disk_full_in_a_checkpoint(project, tmp_path):
    with_small_disk(60_000, "pretrain", project / "bert.json", "--corpus", project / "corpus-bert", "--out",
                    tmp_path / "run")  # fmt: skip
    assert not list((tmp_path / "run").rglob("step-*")) and not (tmp_path / "run/model").exists()
    assert not parts(tmp_path)


def test_disk_full_in_a_model(project, tmp_path):
    with_small_disk(
        60_000, "finetune", project / "run-bert/model", "--task", "classification", "--train",
        project / "classification-train.tsv", "--dev", project / "classification-dev.tsv", "--out", tmp_path / "run",
        "--set", "steps=1",
    )  # fmt: skip
    assert not (tmp_path / "run/model").exists() and not (tmp_path / "run/results.json").exists()
    assert not parts(tmp_path)


def test_disk_full_in_prepare(project, done, cli, tmp_path):
    (tmp_path / "long.txt").write_text("The old cat sees the dog in the quiet garden.\n\n" * 6000)
    common = ("prepare", tmp_path / "long.txt", "--tokenizer", project / "tok-bert", "--out", tmp_path / "corpus",
              "--split", "blank")  # fmt: skip
    with_small_disk(60_000, *common)
    assert not parts(tmp_path)
    assert cli("verify", tmp_path / "corpus").status == 2
    done(*common)  # with room again, it goes on
    done("verify", tmp_path / "corpus")


def test_disk_full_in_embed(project, tmp_path):
    (tmp_path / "lines.txt").write_text("the old cat\n" * 800)
    with_small_disk(60_000, "embed", project / "run-bert/model", "--data", tmp_path / "lines.txt", "--out",
                    tmp_path / "v.npz")  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lines.txt"]


def test_disk_full_in_predict(project, tmp_path):
    row = (project / "classification-dev.tsv").read_text().splitlines()[1]
    (tmp_path / "many.tsv").write_text("text\tlabel\n" + f"{row}\n" * 500)
    with_small_disk(20_000, "predict", project / "run-classification/model", "--data", tmp_path / "many.tsv", "--out",
                    tmp_path / "p.jsonl")  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["many.tsv"]


def test_disk_full_in_tokenizer(project, tmp_path):
    with_small_disk(2_000, "tokenizer", "train", project / "text.txt", "--vocab-size", 300, "--out", tmp_path / "tok")
    assert list(tmp_path.iterdir()) == []
