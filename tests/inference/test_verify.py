"""`verify` and `load` notice every changed, missing and added file of every kind of folder."""

import json
import random
import shutil
from pathlib import Path

import pytest

import polyseme
from polyseme.errors import PolysemeError
from polyseme.inference.verify import verify
from polyseme.io.hashes import HASHES_FILE, README_FILE
from tests.support.folders import copy_unhashed

FOLDERS = {
    "corpus": "corpus-bert",
    "tokenizer": "tok-bert",
    "model": "run-bert/model",
    "run": "run-bert",
    "task run": "run-classification",
}


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position // 8] ^= 1 << position % 8
    path.write_bytes(bytes(content))


def hashed_files(folder: Path) -> list[Path]:
    """Files that a flipped bit damages: all but events of TensorBoard, cards and hidden ones."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != README_FILE)
    return [p for p in files if "tensorboard" not in p.parts and not p.name.startswith(".")]


@pytest.fixture(params=[*FOLDERS, "n-grams", "features"])
def folder(request, project, tmp_path, run_cli):
    target = tmp_path / "copy"
    if request.param == "n-grams":
        polyseme.pretrain("ngram-3", project / "corpus-bert", target, order=2)
    elif request.param == "features":
        files = {split: project / f"classification-{split}.tsv" for split in ("train", "dev")}
        features = [str(project / "run-bert/model")]
        polyseme.finetune(None, "classification", **files, out=target, features=features, epochs=1.0)
    else:
        shutil.copytree(project / FOLDERS[request.param], target)
    return target


def test_a_flipped_bit_in_any_file_is_noticed(folder):
    assert verify(folder).has_hashes
    rng = random.Random(0)
    for path in hashed_files(folder):
        content = path.read_bytes()
        flip_bit(path, rng.randrange(8 * len(content)))
        with pytest.raises(PolysemeError):
            verify(folder)
        path.write_bytes(content)
    verify(folder)


@pytest.mark.parametrize("name", [HASHES_FILE, "tokenizer.json", "config.json"])
def test_every_bit_of_small_files_matters(name, project, tmp_path):
    """The case of a hexadecimal digit, white space and escapes are content, too."""
    folder = shutil.copytree(project / "run-bert/model", tmp_path / "copy")
    path = folder / name
    content = path.read_bytes()
    for position in random.Random(0).sample(range(8 * len(content)), 60):
        flip_bit(path, position)
        with pytest.raises(PolysemeError, match="restore it"):
            polyseme.Tokenizer.load(folder) if name == "tokenizer.json" else polyseme.load(folder)
        path.write_bytes(content)


def test_missing_and_added_files_are_noticed(project, tmp_path, rejects):
    folder = shutil.copytree(project / "run-bert/model", tmp_path / "copy")
    (folder / "README.md").write_text("notes do no harm")
    verify(folder)
    (folder / "special_tokens_map.json").rename(folder / "README.txt")
    rejects("verify", folder, match="special_tokens_map.json is missing")
    (folder / "README.txt").rename(folder / "special_tokens_map.json")
    (folder / "merges.txt").write_text("a b\n")
    rejects("verify", folder, match=["merges.txt was added", "--update"])
    rejects("fill", folder, "the [MASK]", match="merges.txt was added")
    (folder / "merges.txt").unlink()
    (folder / HASHES_FILE).unlink()
    rejects("verify", folder, match=[f"{HASHES_FILE} is missing", "--update"])


def test_an_edited_config_is_accepted_on_request(project, tmp_path, rejects, run_cli):
    folder = shutil.copytree(project / "run-bert/model", tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"note": "mine"}))
    rejects("fill", folder, "the [MASK]", match=["config.json was changed", "polyseme verify --update"])
    (folder / "config.json").write_text("{")
    rejects("verify", folder, "--update", match="config.json")  # not if it cannot be loaded
    (folder / "config.json").write_text(json.dumps(config | {"note": "mine"}))
    assert "intact" in run_cli("verify", folder, "--update")
    polyseme.load(folder)


def test_folders_of_other_tools_have_no_hashes(project, tmp_path, run_cli):
    folder = copy_unhashed(project / "run-bert/model", tmp_path / "copy")
    (folder / "polyseme.json").unlink()
    assert "contains no hashes" in run_cli("verify", folder)
    assert not verify(folder).has_hashes
    tokenizer = copy_unhashed(project / "tok-bert", tmp_path / "tok")
    assert "contains no hashes" in run_cli("verify", tokenizer)
    assert verify(tokenizer, update=True).has_hashes


def test_a_tokenizer_saved_before_a_model_of_another_tool(project, tmp_path):
    """The record of a tokenizer says nothing about weights written next to it."""
    polyseme.Tokenizer.load(project / "tok-bert").save(tmp_path / "copy")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(project / "run-bert/model" / name, tmp_path / "copy" / name)
    assert not verify(tmp_path / "copy").has_hashes


def test_large_weights_are_hashed_on_request(project, tmp_path, monkeypatch):
    folder = shutil.copytree(project / "run-bert/model", tmp_path / "copy")
    flip_bit(folder / "model.safetensors", 8 * ((folder / "model.safetensors").stat().st_size - 4))
    monkeypatch.setattr("polyseme.io.hashes.MAX_HASHED_WEIGHT_BYTES", 1000)
    polyseme.load(folder)
    with pytest.raises(PolysemeError, match=r"model\.safetensors was changed"):
        polyseme.load(folder, verify=True)
