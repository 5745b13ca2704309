"""Distillation of every family, and of pairs of families that share a vocabulary."""

import json

import pytest
import torch

from polyseme.compress.distillation import distill
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.distillation import Distillation, DistillationLoss
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.weights.folder import load_model
from tests.support import cases
from tests.support.text import documents

LANGUAGE_MODELS = [
    *("bert", "roberta", "albert", "spanbert", "distilbert", "modernbert", "gpt", "gpt2", "transformer_xl", "xlnet"),
    *("t5", "rnn_lm", "ulmfit", "elmo"),
]


@pytest.fixture(scope="module")
def corpora(tiny_folders, tmp_path_factory):
    """Return a function that prepares text with the tokenizer of a family."""
    folder, corpora = tmp_path_factory.mktemp("corpora"), {}
    (folder / "text.txt").write_text("\n\n".join(documents(40)))

    def corpus(family):
        if family not in corpora:
            tokenizer = load_model(tiny_folders[family]).tokenizer
            config = PrepareConfig(split="blank", dedup="none")
            corpora[family] = prepare([folder / "text.txt"], tokenizer, folder / family, config).path
        return corpora[family]

    return corpus


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
def test_every_language_model_can_be_distilled(family, tiny_folders, corpora, tmp_path):
    """The student has two of three layers, or one of two stacks each, and fewer parameters unless they are shared."""
    compressed = distill(tiny_folders[family], corpora(family), out=tmp_path / "run", budget="2steps")
    recipe = json.loads((tmp_path / "run/recipe.json").read_text())["recipe"]
    assert recipe["objective"]["kind"] == "Distillation" and recipe["model"]["num_layers"] == 2
    rows = {row.measure: row for row in compressed.rows}
    assert rows["parameters"].after < rows["parameters"].before or family == "albert"
    assert any(name.startswith("valid ") for name in rows)
    assert load_model(tmp_path / "run/model").model.config.trunk.num_layers == 2
