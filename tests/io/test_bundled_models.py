"""Models that come with the package: by name wherever a model is expected, after a model of that name in the folder."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import polyseme
from polyseme.io import model_path
from polyseme.io.model_path import BUNDLED_MODELS, list_bundled, resolve_model

ROOT = Path(polyseme.__file__).parents[2]
MAX_BYTES = 16_000_000


@pytest.fixture
def bundled(tiny_folders, tmp_path, monkeypatch):
    """A small bundled model, `tiny`, in read-only files, and an empty current folder."""
    folder = shutil.copytree(tiny_folders["bert"], tmp_path / "models" / "tiny")
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr(model_path, "BUNDLED_MODELS", tmp_path / "models")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield folder
    folder.chmod(0o755)


def test_a_name_is_a_model(bundled, tiny_folders, tmp_path):
    model = polyseme.load("tiny")
    assert model.path == bundled and polyseme.list_models() == {"tiny": ""}
    assert model.fill("the [MASK]", top_k=1) == polyseme.load(tiny_folders["bert"]).fill("the [MASK]", top_k=1)
    assert polyseme.Tokenizer.load("tiny").hash == model.tokenizer.hash
    assert polyseme.verify("tiny").kind == "model"
    rows = [{"text": "good one", "label": "a"}, {"text": "bad one", "label": "b"}] * 2
    run = polyseme.finetune("tiny", "classification", train=rows, dev=rows, out="task", epochs=1)
    assert polyseme.load(run.model).predict("good one").label in "ab"
    assert sorted(path.name for path in bundled.iterdir()) == sorted(p.name for p in tiny_folders["bert"].iterdir())


def test_a_model_in_the_current_folder_comes_first(bundled, tiny_folders):
    shutil.copytree(tiny_folders["gpt2"], "tiny")
    assert "generate" in polyseme.load("tiny").capabilities
    shutil.rmtree("tiny")
    shutil.copytree(tiny_folders["gpt2"], "tiny/model")  # a run
    assert resolve_model("tiny") == Path("tiny/model")
    shutil.rmtree("tiny")
    Path("tiny").mkdir()  # a folder without a model
    assert resolve_model("tiny") == bundled
    Path("tiny/recipe.json").write_text("{}")
    with pytest.raises(polyseme.ModelError, match="no model yet"):
        resolve_model("tiny")


@pytest.mark.parametrize("name", ["tinny", "x/tiny", "tiny/x", "", "..", "/tiny"])
def test_other_names_are_paths(name, bundled):
    assert resolve_model(name) == Path(name)
    with pytest.raises(polyseme.PolysemeError):
        polyseme.load(name or "no such folder")


def test_commands_take_the_name(bundled, run_cli):
    assert "tiny is in" in run_cli("models") and '"name": "tiny"' in run_cli("models", "--json")
    assert "[CLS]" in run_cli("encode", "tiny", "the cat")
    assert "int8" in run_cli("convert", "tiny", "--out", "small", "--dtype", "int8")


def test_mini_is_small_complete_and_packaged(tmp_path):
    """The wheel contains what is needed to load it, with license and card."""
    folder = BUNDLED_MODELS / "mini"
    assert [path.name for path in list_bundled()] == ["mini"]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES
    assert polyseme.verify("mini") == polyseme.verify(folder) and not polyseme.verify(folder).edited_cards
    card = (folder / "README.md").read_text()
    for heading in ("Intended use", "Training data", "Benchmarks", "Contamination", "Limits", "License"):
        assert f"\n## {heading}\n" in card
    assert "\nlicense: " in card and "Attribution-ShareAlike" in (folder / "LICENSE").read_text()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["polyseme"]
    packaged = {path for pattern in patterns for path in BUNDLED_MODELS.parent.glob(pattern)}
    assert packaged >= set(folder.iterdir())
    assert "CC-BY-SA-3.0" in settings["project"]["license"]


def test_listing_models_imports_nothing_heavy():
    code = "import sys, polyseme; assert polyseme.list_models(); print({'torch', 'numpy'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "set()\n"
