"""Families and objectives from outside the package, passed as objects."""

import json

import pytest
import torch

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.errors import ConfigError, PolysemeError
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.weights.folder import load_model
from tests.plugins.toy_family import BAG
from tests.plugins.toy_objective import CopyTokens

DOCUMENTS = [
    f"the {a} cat saw a {b} dog. it ran to the {b} tree." for a in ("red", "old", "shy") for b in ("big", "wet")
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "text.txt").write_text("\n\n".join(DOCUMENTS * 10))
    tokenizer = Tokenizer.train("wordpiece", iter(DOCUMENTS), 80)
    prepare([folder / "text.txt"], tokenizer, folder / "corpus", PrepareConfig(split="blank", dedup="none"))
    return folder / "corpus"


def recipe(**changes) -> Recipe:
    settings = {
        "name": "toy", "family": "bag", "objective": CopyTokens(every=2), "max_len": 16, "batch_tokens": 128,
        "micro_batch_tokens": 64, "budget": BudgetConfig(steps=6), "optimizer": OptimizerConfig(lr=1e-2),
        "valid_fraction": 0.1, "save_every": 3, "log_every": 1,
    }  # fmt: skip
    return Recipe(**settings | changes)


def test_a_family_and_an_objective_as_objects(corpus, tmp_path):
    out = tmp_path / "run"
    results = pretrain(recipe(), corpus, out, families=(BAG,))
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    losses = [row["loss"]["next"] for row in rows if "loss" in row]
    assert results["steps"] == 6 and losses[-1] < losses[0]
    folder = load_model(out / "model", families=(BAG,))
    assert folder.model.config.trunk == recipe().model_config(folder.tokenizer.vocab_size, families=(BAG,)).trunk
    tokens = torch.tensor(folder.tokenizer.encode("the cat saw a dog"))
    hidden = folder.model.trunk(Inputs(tokens, PackedLayout.from_lengths([len(tokens)]))).hidden
    assert hidden.shape == (len(tokens), 16)
    pretrain(recipe(), corpus, out, resume=True, families=(BAG,))
    with pytest.raises(PolysemeError, match="kind 'BagTrunkConfig'"):
        load_model(out / "model")


def test_a_recipe_with_a_new_objective_is_read_back():
    saved = recipe().to_json()
    assert Recipe.from_json(saved, config_types=(CopyTokens,)) == recipe()
    with pytest.raises(ConfigError, match="kind 'CopyTokens'"):
        Recipe.from_json(saved)


def test_checks_of_the_base_classes_apply():
    with pytest.raises(ConfigError, match="family 'bag' is not supported; supported: albert, bert, "):
        recipe().model_config(80)
    with pytest.raises(ConfigError, match="MaskedLM needs a trunk that reads both sides"):
        recipe(objective=MaskedLM()).model_config(80, families=(BAG,))
    trunk = BAG.model_config().build(0).trunk
    inputs = Inputs(torch.arange(4), PackedLayout.from_lengths([4]))
    with pytest.raises(PolysemeError, match="does not support memory"):
        trunk(inputs, return_memory=True)
    with pytest.raises(PolysemeError, match="does not support segments"):
        trunk(Inputs(inputs.tokens, inputs.layout, torch.zeros(4, dtype=torch.long)))
