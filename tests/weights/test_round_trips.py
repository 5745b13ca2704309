"""Round trips of folders with unusual heads, of configs, and of recipes."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from polyseme.families import FAMILIES
from polyseme.nn.model import ModelConfig
from polyseme.recipes import RECIPES
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import load_model
from tests.support.hf_models import ENCODER_DECODERS, assert_same_outputs, load_hf_model, randomize, round_trip

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ENCODER_DECODERS])
def test_two_task_heads_with_one_published_name(family, tiny_folders, tmp_path):
    """If two heads share a published name, one of them is saved in polyseme.safetensors."""
    family_spec, folder = FAMILIES[family], load_model(tiny_folders[family])
    trunk = folder.model.config.trunk
    labels = {"classify": ("x", "y", "z"), "tag": ("O", "B")}
    heads = {name: family_spec.task_head(name, head_labels, trunk) for name, head_labels in labels.items()}
    for order in (["classify", "tag"], ["tag", "classify"]):
        model = ModelConfig(family, trunk, {h: heads[h] for h in order}).build(seed=1)
        randomize(model)
        path = tmp_path / order[0]
        round_trip(model, folder.tokenizer, path)
        unpublished = load_file(path / "polyseme.safetensors") if (path / "polyseme.safetensors").exists() else {}
        classify, tag = (
            {t for r in family_spec.head_weight_maps.get(h, ()) for t in r.published_names} for h in ("classify", "tag")
        )
        assert all(n.startswith("heads.") for n in unpublished) and bool(unpublished) == bool(classify & tag or not tag)
        config = json.loads((path / "config.json").read_text())
        name = config["architectures"][0]
        if not hasattr(transformers, name):
            continue
        hf_model, problems = load_hf_model(getattr(transformers, name), path)
        assert not problems.get("missing_keys") and not problems.get("mismatched_keys"), problems
        head = family_spec.architectures[name][0]
        assert [hf_model.config.id2label[i] for i in range(len(heads[head].labels))] == list(heads[head].labels)
        assert_same_outputs(model, hf_model, [head])


def test_pretraining_and_task_heads_together(tiny_folders, tmp_path):
    folder = load_model(tiny_folders["bert"])
    config = folder.model.config
    tag = FAMILIES["bert"].task_head("tag", ("O", "B", "I"), config.trunk)
    model = config.replace(heads={**config.heads, "tag": tag}).build(seed=2)
    randomize(model)
    round_trip(model, folder.tokenizer, tmp_path / "model")
    hf_model, problems = load_hf_model(transformers.BertForPreTraining, tmp_path / "model")
    assert not problems.get("missing_keys")
    assert_same_outputs(model, hf_model, ["masked", "pair"])


@pytest.mark.parametrize("num_segments", [0, 1, 3])
def test_other_numbers_of_segments(num_segments, tiny_folders, tmp_path):
    folder = load_model(tiny_folders["bert"])
    config = folder.model.config
    embeddings = config.trunk.embeddings.replace(num_segments=num_segments)
    model = config.replace(trunk=config.trunk.replace(embeddings=embeddings)).build(seed=2)
    round_trip(model, folder.tokenizer, tmp_path / "model")


@pytest.mark.parametrize("family", list(FAMILIES))
def test_metadata_round_trip_and_overwriting(family, tiny_folders, tmp_path):
    folder = load_model(tiny_folders[family])
    metadata = {"recipe": {"a": [1, 2.5, None, "ü"]}, "results": {"b": True}}
    assert round_trip(folder.model, folder.tokenizer, tmp_path / "model", metadata).metadata == metadata
    if family == "bert":
        assert round_trip(folder.model, folder.tokenizer, tmp_path / "model").metadata == {}
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_config_round_trip(family):
    family_spec = FAMILIES[family]
    for size in family_spec.sizes:
        config = family_spec.model_config(size)
        assert family_spec.from_hf_config(json.loads(json.dumps(family_spec.to_hf_config(config)))) == config.trunk
        assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("line", (Path(__file__).parent / "hf_configs.json").read_text().splitlines()[1:-1])
def test_config_json_is_as_recorded(line):
    """Keys, values and order of `config.json` are those of earlier versions."""
    name, recorded = line.removesuffix(",").split(": ", 1)
    family, _, size = json.loads(name).partition("-")
    assert json.dumps(FAMILIES[family].to_hf_config(FAMILIES[family].model_config(size))) == recorded


@pytest.mark.parametrize("name", list(RECIPES))
def test_recipe_round_trip(name):
    recipe = RECIPES[name]()
    assert recipe.name == name
    restored = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert restored == recipe and restored.to_json() == recipe.to_json()
    recipe.check().model_config(1000)
