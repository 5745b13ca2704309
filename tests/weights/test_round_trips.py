"""Folders, configs and recipes, there and back, of models with other heads than they were published with."""

import json

import pytest
from safetensors.torch import load_file

from polyseme.families import FAMILIES
from polyseme.nn.model import ModelConfig
from polyseme.recipes import RECIPES
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import load_model
from tests.weights.test_folder import PAIRED, assert_same, opened, randomise, round_trip

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in PAIRED])
def test_both_label_heads(family, tiny_folders, tmp_path):
    """Two heads, one published name: the one without a place of its own goes to polyseme.safetensors."""
    fam, folder = FAMILIES[family], load_model(tiny_folders[family])
    trunk = folder.model.config.trunk
    labels = {"classify": ("x", "y", "z"), "tag": ("O", "B")}
    heads = {name: fam.task_head(name, found, trunk) for name, found in labels.items()}
    for order in (["classify", "tag"], ["tag", "classify"]):
        model = ModelConfig(family, trunk, {h: heads[h] for h in order}).build(seed=1)
        randomise(model)
        path = tmp_path / order[0]
        round_trip(model, folder.tokenizer, path)
        left = load_file(path / "polyseme.safetensors") if (path / "polyseme.safetensors").exists() else {}
        classify, tag = (
            {t for r in fam.head_weight_maps.get(h, ()) for t in r.published_names} for h in ("classify", "tag")
        )
        assert all(n.startswith("heads.") for n in left) and bool(left) == bool(classify & tag or not tag)
        config = json.loads((path / "config.json").read_text())
        name = config["architectures"][0]
        if not hasattr(transformers, name):
            continue
        theirs, trouble = opened(getattr(transformers, name), path)
        assert not trouble.get("missing_keys") and not trouble.get("mismatched_keys"), trouble
        head = fam.architectures[name][0]
        assert [theirs.config.id2label[i] for i in range(len(heads[head].labels))] == list(heads[head].labels)
        assert_same(model, theirs, [head])


def test_pretraining_and_label_heads_together(tiny_folders, tmp_path):
    folder = load_model(tiny_folders["bert"])
    spec = folder.model.config
    tag = FAMILIES["bert"].task_head("tag", ("O", "B", "I"), spec.trunk)
    model = spec.replace(heads={**spec.heads, "tag": tag}).build(seed=2)
    randomise(model)
    round_trip(model, folder.tokenizer, tmp_path / "model")
    theirs, trouble = opened(transformers.BertForPreTraining, tmp_path / "model")
    assert not trouble.get("missing_keys")
    assert_same(model, theirs, ["masked", "pair"])


@pytest.mark.parametrize("num_segments", [0, 1, 3])
def test_other_numbers_of_segments(num_segments, tiny_folders, tmp_path):
    folder = load_model(tiny_folders["bert"])
    spec = folder.model.config
    embeddings = spec.trunk.embeddings.replace(num_segments=num_segments)
    model = spec.replace(trunk=spec.trunk.replace(embeddings=embeddings)).build(seed=2)
    round_trip(model, folder.tokenizer, tmp_path / "model")


@pytest.mark.parametrize("family", list(FAMILIES))
def test_notes_and_overwriting(family, tiny_folders, tmp_path):
    folder = load_model(tiny_folders[family])
    notes = {"recipe": {"a": [1, 2.5, None, "ü"]}, "results": {"b": True}}
    assert round_trip(folder.model, folder.tokenizer, tmp_path / "model", notes).metadata == notes
    assert round_trip(folder.model, folder.tokenizer, tmp_path / "model").metadata == {}
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_config_there_and_back(family):
    fam = FAMILIES[family]
    for size in fam.sizes:
        spec = fam.model_config(size)
        assert fam.from_hf_config(json.loads(json.dumps(fam.to_hf_config(spec)))) == spec.trunk
        assert ModelConfig.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("name", list(RECIPES))
def test_recipes_there_and_back(name):
    recipe = RECIPES[name]()
    assert recipe.name == name
    again = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert again == recipe and again.to_json() == recipe.to_json()
    recipe.check().model_config(1000)
