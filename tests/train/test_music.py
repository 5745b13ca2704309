"""Music: the same corpus, loop and heads as for text; positions beyond training; generated music."""

import importlib
import json
from pathlib import Path

import pytest
import torch

import polyseme
from polyseme.cli.music import sample_events
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.recipes import get_training_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import pretrain
from polyseme.weights.folder import load_model, read_model_config, save_model
from tests.support.folders import remove_polyseme_files

LENGTH = 48


@pytest.fixture(scope="module")
def harness():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        return importlib.import_module("music")


@pytest.fixture(scope="module")
def runs(harness, tmp_path_factory):
    """Train two models on pieces that repeat a motif of three notes, with events as words."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("music")
    lines = [" ".join(harness.compose(seed, LENGTH - 1, 3, (0,))) for seed in range(400)]
    (folder / "pieces.txt").write_text("\n".join(lines) + "\n")
    prepare(
        [folder / "pieces.txt"], Tokenizer.load("events"), folder / "corpus", PrepareConfig(split="line", num_workers=1)
    )
    for positions in ("relative", "learned"):
        recipe = get_training_recipe("music-tiny").replace(
            size="", max_len=LENGTH, batch_tokens=1536, micro_batch_tokens=1536,
            model={"num_layers": 1, "dim": 32, "num_heads": 2, "max_len": 4 * LENGTH, "max_distance": 24,
                   "positions": positions, "dropout": 0.0, "attention_dropout": 0.0},
        )  # fmt: skip
        for path, value in (("budget.steps", "130"), ("optimizer.lr", "0.02"), ("schedule.warmup", "10")):
            recipe = recipe.with_override(path, value)
        pretrain(recipe, folder / "corpus", folder / positions)
    torch.set_num_threads(threads)
    return folder


def test_relative_places_reach_beyond_training(runs, harness):
    """Relative positions keep their loss at two and four times the training length; absolute positions do not."""
    tokenizer = Tokenizer.load("events")
    pieces = [tokenizer.encode(" ".join(harness.compose(9000 + seed, 4 * LENGTH, 3, (0,)))) for seed in range(16)]
    borders = [0, 12, LENGTH, 2 * LENGTH, 4 * LENGTH]
    found = {}
    for positions in ("relative", "learned"):
        model = load_model(runs / positions / "model").model
        found[positions] = harness.loss_by_position(model, pieces, tokenizer.special_token_ids.bos, borders)
    relative, learned = found["relative"], found["learned"]
    assert relative[1] < 1 < relative[0] and max(relative[2:]) < relative[1] + 0.25
    assert min(learned[2:]) > learned[1] + 1.5


def test_a_piece_by_heart(runs, harness):
    """The model continues a motif, beyond its maximum length, reproducibly, with and without a cache."""
    opened = polyseme.load(runs / "relative/model", device="cpu")
    begun = harness.compose(9100, 24, 3, (0,))
    long = opened.max_len + 40
    found = sample_events(opened, begun, long, temperature=0.0)
    assert found == sample_events(opened, begun, long, temperature=0.0, seed=7) and len(found) == long
    right = opened.tokenizer.encode(" ".join(harness.compose(9100, LENGTH, 3, (0,))))
    assert sum(a == b for a, b in zip(found, right)) >= LENGTH - 3
    tokens = torch.tensor([opened.tokenizer.special_token_ids.bos, *found[: opened.max_len - 1]])
    layout = PackedLayout.from_lengths([len(tokens)])
    with torch.no_grad():
        scores = opened.model.predict("next", opened.model.trunk(Inputs(tokens, layout)).hidden, layout)
    scores[:, [0, 1, 3]] = -torch.inf
    assert scores[len(begun) :].argmax(-1).tolist() == found[len(begun) : opened.max_len]
    drawn = [sample_events(opened, begun, 80, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and not opened.tokenizer.all_special_ids & set(drawn[0])


def test_an_lstm_on_the_same_events_plays_too(runs, harness):
    """The same corpus, loop and command; the memory is a recurrent state, so the length of a piece is not limited."""
    recipe = get_training_recipe("performance_rnn-tiny").replace(
        max_len=LENGTH, batch_tokens=768, micro_batch_tokens=768, eval_every=1000, save_every=1000,
        model={"num_layers": 1, "dim": 48, "dropout": 0.0, "max_len": 64},
    )  # fmt: skip
    for path, value in (("budget.steps", "45"), ("optimizer.lr", "0.03"), ("schedule.warmup", "5")):
        recipe = recipe.with_override(path, value)
    results = pretrain(recipe, runs / "corpus", runs / "lstm")
    assert results["valid"]["next"] < 2.5, "a fifth of the choices a uniform guess has"
    opened = polyseme.load(runs / "lstm/model", device="cpu")
    begun = harness.compose(9100, 24, 3, (0,))
    found = sample_events(opened, begun, 100, temperature=0.0)
    tokens = torch.tensor([opened.tokenizer.special_token_ids.bos, *found[:63]])
    layout = PackedLayout.from_lengths([64])
    with torch.no_grad():
        scores = opened.model.predict("next", opened.model.trunk(Inputs(tokens, layout)).hidden, layout)
    scores[
        :, [token for token in opened.tokenizer.all_special_ids if token != opened.tokenizer.special_token_ids.eos]
    ] = -torch.inf
    assert scores[len(begun) :].argmax(-1).tolist() == found[len(begun) : 64]


def test_what_cannot_be_played(runs, harness):
    learned = polyseme.load(runs / "learned/model", device="cpu")
    assert len(sample_events(learned, [], learned.max_len, 0.0)) <= learned.max_len
    with pytest.raises(PolysemeError, match="max_len is 193, and the model has positions for 192 events"):
        sample_events(learned, [], 193)
    with pytest.raises(PolysemeError, match="20 events, which leaves none to add up to max_len 20"):
        sample_events(learned, harness.compose(0, 20), 20)
    with pytest.raises(PolysemeError, match="temperature is -1"):
        sample_events(learned, [], 20, -1)


def test_both_places_are_one_family(tmp_path):
    """A folder without `polyseme.json` is loaded from `config.json`, which names its kind of positions."""
    for positions in ("relative", "learned"):
        spec = FAMILIES["music"].model_config("tiny", positions=positions, max_len=64)
        assert ModelConfig.from_json(spec.to_json()) == spec
        model = spec.build(seed=0)
        save_model(tmp_path / positions, model, Tokenizer.load("events"))
        remove_polyseme_files(tmp_path / positions)
        assert read_model_config(tmp_path / positions)[0] == spec
        again = load_model(tmp_path / positions).model.state_dict()
        assert all(torch.equal(t, again[name]) for name, t in model.state_dict().items())
    names = set(again) ^ set(load_model(tmp_path / "relative").model.state_dict())
    assert names == {
        "trunk.embeddings.positions.weight",
        *(f"trunk.blocks.{i}.attention.distance.weight" for i in (0, 1)),
    }
    config = json.loads((tmp_path / "relative/config.json").read_text())
    assert config["positions"] == "relative" and config["max_distance"] == 256
    with pytest.raises(PolysemeError, match="max_distance is 0, expected 1 or more"):
        FAMILIES["music"].model_config("tiny", max_distance=0)


def test_the_command(runs, harness, run_cli, rejects, tmp_path):
    pytest.importorskip("mido")
    from polyseme.corpus.sources.midi import events_to_notes, notes_to_events, read_notes, write_notes

    begun = harness.compose(9200, 24, 3, (0,))
    write_notes(tmp_path / "begun.mid", events_to_notes(begun))
    model = runs / "relative/model"
    said = run_cli("music", model, "--out", tmp_path / "a.mid", "--max-len", 60, "--primer", tmp_path / "begun.mid")
    assert "a.mid: " in said and "notes" in said
    assert notes_to_events(read_notes(tmp_path / "a.mid"))[:24] == begun[:24]
    run_cli("music", model, "--out", tmp_path / "b.mid", "--max-len", 60, "--primer", tmp_path / "begun.mid")
    assert (tmp_path / "a.mid").read_bytes() == (tmp_path / "b.mid").read_bytes()
    rejects("music", model, "--out", tmp_path / "a.mid", match="already exists")
    rejects("music", model, "--out", tmp_path / "c.mid", "--primer", tmp_path / "no.mid", match="is missing")


def test_a_model_of_text_does_not_play(tiny_folders, rejects, tmp_path):
    pytest.importorskip("mido")
    rejects("music", tiny_folders["gpt2"], "--out", tmp_path / "c.mid", match="generates text, not music")
