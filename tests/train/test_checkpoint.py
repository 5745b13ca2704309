"""Checkpoints: the newest intact one is loaded; damaged ones are reported, and never removed."""

import re
import shutil

import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.train.checkpoint import Checkpoint, average_checkpoints, load_checkpoint, save_checkpoint


def checkpoint(step):
    return Checkpoint(
        step, {"model": {"a": torch.full((3,), float(step))}}, {"total_steps": 20, "position": {"epoch": 0}}
    )


def test_keep_and_latest(tmp_path):
    for step in (8, 9, 10, 11):
        save_checkpoint(tmp_path, checkpoint(step), keep_checkpoints=2)
        assert (tmp_path / "LATEST").read_text().strip() == f"step-{step}"
        assert load_checkpoint(tmp_path).step == step
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step-10", "step-11"]
    found = load_checkpoint(tmp_path)
    assert found.state == checkpoint(11).state
    assert torch.equal(found.tensors["model"]["a"], torch.full((3,), 11.0))


def test_the_newest_whole_checkpoint_is_found(tmp_path, capsys):
    assert load_checkpoint(tmp_path) is None
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, checkpoint(step), keep_checkpoints=3)
    (tmp_path / "step-3/state.json").write_text("{")
    assert load_checkpoint(tmp_path).step == 2
    weights = tmp_path / "step-2/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    capsys.readouterr()
    assert load_checkpoint(tmp_path).step == 1
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2 and re.search(r"step-3, which is damaged: state.json is not valid JSON", warnings[0])
    assert re.search(r"step-2, which is damaged: model.safetensors does not match its hash", warnings[1])
    (tmp_path / ".step-4.part").mkdir()
    (tmp_path / "step-x").mkdir()
    assert load_checkpoint(tmp_path).step == 1


def damage(tmp_path, *steps):
    for step in steps:
        (tmp_path / f"step-{step}" / "model.safetensors").write_bytes(b"damaged")


def test_without_an_intact_checkpoint_there_is_an_error(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, checkpoint(step), keep_checkpoints=3)
    damage(tmp_path, 1, 2)
    both = r"step-2: model.safetensors does not match its hash; step-1: .*: restore one, or start in another folder"
    with pytest.raises(PolysemeError, match=both):
        load_checkpoint(tmp_path)
    with pytest.raises(PolysemeError, match=both):
        average_checkpoints(torch.nn.Linear(1, 1), tmp_path, 2)
    for step in (1, 2):
        shutil.rmtree(tmp_path / f"step-{step}")
    with pytest.raises(PolysemeError, match=r"LATEST names 'step-2', which is missing"):
        load_checkpoint(tmp_path)
    (tmp_path / "LATEST").write_bytes(b"\xffstep")
    with pytest.raises(PolysemeError, match=r"LATEST names"):
        load_checkpoint(tmp_path)
    (tmp_path / "LATEST").unlink()
    assert load_checkpoint(tmp_path) is None


def test_a_missing_newest_checkpoint_gets_a_warning(tmp_path, capsys):
    for step in (1, 2):
        save_checkpoint(tmp_path, checkpoint(step), keep_checkpoints=3)
    shutil.rmtree(tmp_path / "step-2")
    assert load_checkpoint(tmp_path).step == 1
    assert "LATEST names 'step-2', which is missing" in capsys.readouterr().err


def test_damaged_checkpoints_are_never_removed_and_do_not_count(tmp_path):
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, checkpoint(step), keep_checkpoints=4)
    damage(tmp_path, 1, 3, 4)
    save_checkpoint(tmp_path, checkpoint(4), keep_checkpoints=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step-1", "step-2", "step-3", "step-4",
                                                          "step-4.damaged"]  # fmt: skip
    damage(tmp_path, 4)
    save_checkpoint(tmp_path, checkpoint(4), keep_checkpoints=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step-1", "step-3", "step-4", "step-4.damaged",
                                                          "step-4.damaged1"]  # fmt: skip


@pytest.mark.parametrize("content", ["[]", "5", "{}", '{"hash": 1}', "null", '{"hash": "x", "sha256": []}'])
def test_any_state_file_that_is_not_ours_is_damage(tmp_path, content):
    save_checkpoint(tmp_path, checkpoint(1), keep_checkpoints=1)
    (tmp_path / "step-1" / "state.json").write_text(content)
    with pytest.raises(PolysemeError, match=r"step-1: state.json"):
        load_checkpoint(tmp_path)


def test_saving_a_step_again_replaces_it(tmp_path):
    save_checkpoint(tmp_path, checkpoint(3), keep_checkpoints=1)
    changed = Checkpoint(3, {"model": {"a": torch.zeros(3)}}, {})
    save_checkpoint(tmp_path, changed, keep_checkpoints=1)
    assert torch.equal(load_checkpoint(tmp_path).tensors["model"]["a"], torch.zeros(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step-3"]
