"""`verify` notices one flipped bit in any file of every kind of folder, and a file that is missing."""

import random
import shutil
from pathlib import Path

import pytest

from tests.faults.harness import run_with_fault
from tests.faults.test_interrupted import start
from tests.faults.writers import WRITERS, Inputs
from tests.support.commands import cli

FLIPS = 12  # for each file, in the long version
# The command that writes each kind of folder.
FOLDERS = {
    "tokenizer": "tokenizer train",
    "corpus": "prepare",
    "appended corpus": "prepare --append",
    "pairs": "pairs",
    "run": "pretrain bert",
    "n-gram run": "pretrain ngram",
    "task run": "finetune",
    "multi-task run": "finetune multi-task",
    "feature run": "finetune --features",
    "n-gram model": "arpa import",
    "word vectors": "vectors import",
}


@pytest.fixture(scope="session")
def build_folder(inputs: Inputs, tmp_path_factory):
    """Write a folder of a kind."""
    writers, parent = {writer.name: writer for writer in WRITERS}, tmp_path_factory.mktemp("flips")

    def build(kind: str) -> Path:
        writer = writers[FOLDERS[kind]]
        out = start(writer, inputs, parent / kind)
        result, _ = run_with_fault(writer.args(inputs, out), out.parent)
        assert result.status == 0, result.err
        return out

    return build


def check_flips(folder: Path, num_flips: int) -> int:
    """Flip bits of every file, one at a time; return the number of flips."""
    assert cli("verify", folder).status == 0, cli("verify", folder).err
    rng, missed, total = random.Random(folder.name), [], 0
    files = (p for p in folder.rglob("*") if p.is_file() and "tensorboard" not in p.parts)
    for file in sorted(p for p in files if p.name != "README.md"):  # documentation, which users edit
        content = file.read_bytes()
        if not content:
            continue
        for bit in rng.sample(range(8 * len(content)), min(num_flips, 8 * len(content))):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            file.write_bytes(changed)
            result = cli("verify", folder)
            total += 1
            if result.status != 2 or "Traceback" in result.err or len(result.err.splitlines()) != 1:
                missed.append(f"{file.relative_to(folder)} bit {bit}: status {result.status} {result.err[-300:]}")
        file.unlink()
        is_foreign = file.name == "SHA256SUMS" and (folder / "tokenizer.json").exists()  # as from another tool
        if cli("verify", folder).status != 2 and not is_foreign:
            missed.append(f"{file.relative_to(folder)} is missing")
        file.write_bytes(content)
    assert not missed, "\n".join(missed)
    assert cli("verify", folder).status == 0
    return total


@pytest.mark.parametrize("name", ["tok-bert", "corpus-bert", "run-bert", "run-classification"])
def test_flipped_bits(name, project, tmp_path):
    assert check_flips(shutil.copytree(project / name, tmp_path / name), 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLDERS)
def test_many_flipped_bits(kind, build_folder):
    assert check_flips(build_folder(kind), FLIPS)


@pytest.mark.slow
def test_flipped_bits_in_every_family(tiny_folders, tmp_path):
    for family, folder in tiny_folders.items():
        assert check_flips(shutil.copytree(folder, tmp_path / family), 2)
