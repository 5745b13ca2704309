"""Damaged corpora and model folders, and invalid recipes: an error of one line, and no output."""

import json
import pickle
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

# --- corpora ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(project, tmp_path):
    return shutil.copytree(project / "corpus-bert", tmp_path / "corpus")


def both_refuse(rejects, project, corpus, tmp_path, match):
    """Check that `verify` and `pretrain` fail."""
    rejects("verify", corpus, match=match)
    rejects("pretrain", project / "bert.json", "--corpus", corpus, "--out", tmp_path / "run", match=match)


@pytest.mark.parametrize("part", ["tokens", "sentences", "documents", "words"])
def test_one_flipped_byte(part, rejects, project, corpus, tmp_path):
    file = corpus / f"shard-00000.{part}.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    both_refuse(rejects, project, corpus, tmp_path, [file.name, "hash|damaged"])


def test_truncated_or_missing_shard(rejects, project, corpus, tmp_path):
    file = corpus / "shard-00000.tokens.npy"
    file.write_bytes(file.read_bytes()[:-2])
    both_refuse(rejects, project, corpus, tmp_path, file.name)
    file.unlink()
    both_refuse(rejects, project, corpus, tmp_path, [file.name, "missing"])


@pytest.mark.parametrize("how", ["edited", "malformed", "a list", "unfinished", "missing"])
def test_manifest(how, rejects, project, corpus, tmp_path):
    path = corpus / "manifest.json"
    manifest = json.loads(path.read_text())
    if how == "edited":
        manifest["counts"]["tokens"] += 1
    path.write_text("{" if how == "malformed" else json.dumps([] if how == "a list" else manifest))
    if how in ("missing", "unfinished"):
        path.unlink()
    if how == "unfinished":
        (corpus / ".work").mkdir()
    both_refuse(rejects, project, corpus, tmp_path, "prepar" if how == "unfinished" else "manifest.json")


def test_tokenizer_of_another_corpus(rejects, project, corpus, tmp_path):
    shutil.rmtree(corpus / "tokenizer")
    shutil.copytree(project / "tok-gpt2", corpus / "tokenizer")
    both_refuse(rejects, project, corpus, tmp_path, "tokenizer")


def test_edited_tokenizer_of_the_corpus(rejects, project, corpus, tmp_path):
    path = corpus / "tokenizer/tokenizer.json"
    path.write_text(path.read_text().replace('"cat"', '"tac"'))
    both_refuse(rejects, project, corpus, tmp_path, "tokenizer")


def test_prepare_again_with_another_tokenizer_or_sources(rejects, project, corpus, tmp_path):
    rejects("prepare", project / "text.txt", "--tokenizer", project / "tok-gpt2", "--out", corpus, "--split", "blank",
            match="another tokenizer")  # fmt: skip
    rejects("prepare", project / "text.txt", "--tokenizer", project / "tok-bert", "--out", corpus, "--split", "line",
            match="split")  # fmt: skip
    (tmp_path / "other.txt").write_text("the cat sees the dog.")
    rejects("prepare", tmp_path / "other.txt", "--tokenizer", project / "tok-bert", "--out", corpus, "--split", "blank",
            match="sources")  # fmt: skip


def test_verify_rejects_other_folders(rejects, tmp_path):
    (tmp_path / "folder").mkdir()
    rejects("verify", tmp_path / "folder", match="neither")
    rejects("verify", tmp_path / "none", match="none")


# --- model folders ---------------------------------------------------------------------------------------------------


@pytest.fixture
def hashed_model(project, tmp_path):
    return shutil.copytree(project / "run-bert/model", tmp_path / "model")


@pytest.fixture
def model(hashed_model):
    """A model folder without hashes, so that a change is judged by itself."""
    (hashed_model / "SHA256SUMS").unlink()
    return hashed_model


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
    "pickle only": (only_a_pickle, ["pytorch_model.bin", "pickle", r"BertForPreTraining\.from_pretrained"]),
    "config malformed": (lambda f: (f / "config.json").write_text('{\n"a": 1,\n'), ["config.json", "line"]),
    "config a list": (lambda f: (f / "config.json").write_text("[1]"), "config.json"),
    "config missing": (lambda f: (f / "config.json").unlink(), "config.json"),
    "polyseme.json malformed": (lambda f: (f / "polyseme.json").write_text("{"), "polyseme.json"),
    "polyseme.json a list": (lambda f: (f / "polyseme.json").write_text("[]"), "polyseme.json"),
    "polyseme.json without config": (lambda f: (f / "polyseme.json").write_text("{}"), "polyseme.json|at config"),
    "tokenizer missing": (
        lambda f: [(f / n).unlink() for n in ("tokenizer.json", "vocab.txt") if (f / n).exists()], "tokenizer"),
    "tokenizer malformed": (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer.json"),
    "folder missing": (lambda f: shutil.rmtree(f), "model folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_model_folders(case, rejects, project, model, tmp_path):
    change, match = MODELS[case]
    change(model)
    rejects("verify", model, match=match if case != "folder missing" and case != "config missing" else "model")
    rejects("fill", model, "the [MASK]", match=match)
    rejects("finetune", model, "--task", "classification", "--train", project / "classification-train.tsv", "--dev",
            project / "classification-dev.tsv", "--out", tmp_path / "run", match=match)  # fmt: skip


PUBLISHED = {
    "unknown model_type": ({"model_type": "brt"}, ["brt", "supported: albert, bert, "]),
    "no model_type": ({"model_type": None}, "model_type"),
    "unknown architecture": ({"architectures": ["BertForMaskedLMs"]}, "BertForMaskedLM"),
    "relative positions": ({"position_embedding_type": "relative_key"}, "relative_key"),
    "a decoder": ({"is_decoder": True}, "a causal architecture"),
    "a wrong size": ({"hidden_size": 48, "num_attention_heads": 2}, "shape"),
    "a layer too many": ({"num_hidden_layers": 3}, "layer.2"),
    "a layer too few": ({"num_hidden_layers": 1}, "layer.1"),
    "odd heads": ({"num_attention_heads": 5}, "5"),
    "a text for a number": ({"hidden_size": "wide"}, "wide"),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_transformers_configs(case, rejects, model):
    """A folder without polyseme.json is read from its config.json."""
    (model / "polyseme.json").unlink()
    changes, match = PUBLISHED[case]
    edit_config(model, **changes)
    rejects("fill", model, "the [MASK]", match=match)
    rejects("verify", model, match=match)


def test_missing_field_in_the_config(rejects, model):
    (model / "polyseme.json").unlink()
    config = json.loads((model / "config.json").read_text())
    del config["hidden_size"]
    (model / "config.json").write_text(json.dumps(config))
    rejects("fill", model, "the [MASK]", match="hidden_size")


def test_missing_or_outside_shards(rejects, model):
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00002-of-00002.safetensors"}}))
    rejects("verify", model, match="model-00002-of-00002.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    rejects("verify", model, match="outside")


def test_weight_changed_after_saving(rejects, hashed_model):
    edit_tensors(hashed_model, lambda t: t[QUERY].add_(1))
    rejects("verify", hashed_model, match=["model.safetensors", "hash"])


def test_tokenizer_larger_than_the_model(rejects, project, model):
    for file in model.glob("*tok*"):
        file.unlink()
    (model / "vocab.txt").write_text(
        (project / "tok-bert/vocab.txt").read_text() + "".join(f"more{i}\n" for i in range(50))
    )
    rejects("fill", model, "the [MASK]", match="the tokenizer has")


# --- recipes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pretrain(rejects, project, tmp_path):
    def run(*options, recipe=None, match=(), change=None):
        path = project / "bert.json"
        if change is not None:
            path = tmp_path / "recipe.json"
            data = json.loads((project / "bert.json").read_text())
            path.write_text(json.dumps(change(data) or data))
        recipe = recipe or path
        return rejects(
            "pretrain", recipe, "--corpus", project / "corpus-bert", "--out", tmp_path / "run", *options, match=match
        )

    return run


SETTINGS = {
    "no equals": ("optimizer.lr", "path=value"),
    "unknown": ("optimzer.lr=1", ["optimzer", "'optimizer'"]),
    "unknown nested": ("optimizer.l=1", ["'l'", "valid: .* lr, "]),
    "unknown in model": ("model.num_layer=1", ["num_layer", "'num_layers'"]),
    "no parts": ("seed.x=1", "seed"),
    "text for a number": ("optimizer.lr=fast", ["optimizer.lr", "fast"]),
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
    "keep_checkpoints": ("keep_checkpoints=0", ["keep_checkpoints", "0"]),
    "steps": ("budget.steps=0", "budget"),
    "negative steps": ("budget.steps=-3", "budget"),
    "micro_batch_tokens": ("micro_batch_tokens=16", "micro_batch_tokens"),
    "no micro_batch_tokens": ("micro_batch_tokens=0", "micro_batch_tokens"),
    "batch_tokens": ("batch_tokens=300", "batch_tokens"),
    "no batch": ("batch_tokens=0", "batch_tokens"),
    "max_len beyond the model": ("max_len=64", "64"),
    "max_len nothing": ("max_len=0", "max_len"),
    "mask_prob": ("objective.mask_prob=1.5", ["mask_prob", "1.5"]),
    "valid_fraction": ("valid_fraction=1.5", ["valid_fraction", "1.5"]),
    "dropout": ("model.dropout=1.5", "1.5"),
    "family": ("family=brt", ["brt", "supported: albert, bert, "]),
    "size": ("size=basse", ["basse", "'base'"]),
    "head of another family": ("family=gpt2", "MaskedLMWithSentencePairs"),
    "negative lr": ("optimizer.lr=-1", "-1"),
    "beta": ("optimizer.beta1=1.5", "1.5"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_set(case, pretrain):
    change, match = SETTINGS[case]
    pretrain("--set", change, match=match)


RECIPES = {
    "unknown key": (lambda r: r.update(sede=1), ["'sede'", "'seed'"]),
    "unknown nested key": (lambda r: r["optimizer"].update(l=1), ["'l'", "optimizer", "valid: .* lr, "]),
    "unknown key in the objective": (lambda r: r["objective"].update(masks=1), ["'masks'", "objective"]),
    "unknown kind": (lambda r: r["objective"].update(kind="MaskedML"), ["MaskedML", "'MaskedLM'"]),
    "missing key": (lambda r: r.pop("family") and None, "family"),
    "a list": (lambda r: [r], "object"),
    "wrong type": (lambda r: r.update(max_len="32"), "max_len"),
    "null": (lambda r: r.update(max_len=None), "max_len"),
    "a list for the model": (lambda r: r.update(model=[1]), "model"),
    "a list in the model": (lambda r: r["model"].update(dim=[1]), "dim"),
    "infinite": (lambda r: r["optimizer"].update(lr=float("inf")), "lr"),
}


@pytest.mark.parametrize("case", RECIPES)
def test_recipe_files(case, pretrain):
    change, match = RECIPES[case]
    pretrain(change=change, match=match)


def test_missing_recipes(pretrain, project, tmp_path):
    pretrain(recipe=tmp_path / "none.json", match=["none.json", "missing"])
    pretrain(recipe="bert-tinny", match=["bert-tinny", "'bert-tiny'"])
    (tmp_path / "bad.json").write_text('{\n"name": "a",\n')
    pretrain(recipe=tmp_path / "bad.json", match=["bad.json", "line"])
    (tmp_path / "empty.json").write_text("")
    pretrain(recipe=tmp_path / "empty.json", match="empty.json")
    (tmp_path / "latin.json").write_bytes(b'{"name": "caf\xe9"}')
    pretrain(recipe=tmp_path / "latin.json", match="latin.json")
    (tmp_path / "folder.json").mkdir()
    pretrain(recipe=tmp_path / "folder.json", match="folder.json")


def test_missing_or_small_corpora(rejects, project, run_cli, tmp_path):
    rejects("pretrain", project / "bert.json", "--corpus", tmp_path / "none", "--out", tmp_path / "run", match="none")
    (tmp_path / "one.txt").write_text("The cat sees the dog.")
    run_cli("prepare", tmp_path / "one.txt", "--tokenizer", project / "tok-bert", "--out", tmp_path / "one")
    rejects("pretrain", project / "bert.json", "--corpus", tmp_path / "one", "--out", tmp_path / "run",
            match="two documents")  # fmt: skip


def test_objective_that_the_tokenizer_does_not_support(rejects, project, tmp_path):
    rejects("pretrain", project / "bert.json", "--corpus", project / "corpus-gpt2", "--out", tmp_path / "run",
            match="cls")  # fmt: skip


def test_resume_of_another_run(rejects, run_cli, project, tmp_path):
    common = ("pretrain", project / "bert.json", "--corpus", project / "corpus-bert", "--out", tmp_path / "run")
    run_cli(*common, "--set", "budget.steps=1")
    rejects(*common, "--set", "budget.steps=1", match="--resume")
    rejects(*common, "--resume", match="budget")
    (tmp_path / "run/recipe.json").write_text("[]")
    rejects(*common, "--resume", match="recipe.json")
