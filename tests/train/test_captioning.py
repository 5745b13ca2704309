"""Captioners: word dropout is for training alone, and a run that is killed resumes exactly."""

import random

import numpy as np
import pytest
import torch

from polyseme.corpus.store import Corpus
from polyseme.objectives.captioning import Captioning
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.packing import SpecialIds
from polyseme.recipes import RECIPES
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import pretrain as module
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig
from tests.support.images import write_corpus
from tests.support.runs import STEPS, Killed, assert_same


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("captions"))


def tiny_recipe(name: str):
    recipe = RECIPES[name]()
    objective = recipe.objective.replace(attention_coverage=0.5 * name.startswith("show"))
    return recipe.replace(
        model={"dim": 8, "conv_dim": 2, "dropout": 0.1},
        objective=objective,
        batch_tokens=1024,
        micro_batch_tokens=512,
        budget=BudgetConfig(steps=STEPS),
        valid_fraction=0.1,
        eval_every=4,
        save_every=2,
        log_every=1,
    )


@pytest.mark.parametrize("name", ["show-attend-tell-tiny", "image-transformer-tiny"])
def test_killed_and_resumed(name, corpus, tmp_path, monkeypatch):
    recipe = tiny_recipe(name)
    pretrain(recipe, corpus, tmp_path / "whole")
    real, last_step = module.train, random.Random(name).randint(1, STEPS - 1)

    def killed(state, batches):
        for report in real(state, batches):
            if report.step == last_step:
                raise Killed
            yield report

    monkeypatch.setattr(module, "train", killed)
    with pytest.raises(Killed):
        pretrain(recipe, corpus, tmp_path / "killed")
    monkeypatch.setattr(module, "train", real)
    pretrain(recipe, corpus, tmp_path / "killed", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_word_dropout(corpus):
    """In training, previous words are replaced, each image independently of its batch; labels never are."""
    opened, tokenizer = Corpus.open(corpus), Tokenizer.load(corpus / "tokenizer")
    special_ids = SpecialIds.from_tokenizer(tokenizer)
    builder = Captioning(word_dropout=0.5).bind(opened, special_ids, 32)
    plain = Captioning().bind(opened, special_ids, 32)
    batch, without = (each.batch(np.arange(20), 0) for each in (builder, plain))
    assert torch.equal(batch.inputs.tokens, without.inputs.tokens)
    dropped = batch.extra.prepare(None, batch).inputs.tokens
    is_dropped, firsts = dropped != without.inputs.tokens, batch.inputs.layout.first_indices
    assert 0.3 < is_dropped.float().mean() < 0.6 and not is_dropped[firsts].any()
    assert set(dropped[is_dropped].tolist()) == {special_ids.eos}
    assert torch.equal(batch.targets["next"].labels, without.targets["next"].labels)
    alone = builder.batch(np.array([7]), 0)
    place = batch.inputs.layout.lengths  # the seventh image has the same words dropped in any batch
    parts = dict(zip(sorted(range(20), key=lambda i: (builder.target_lengths[i], i)), dropped.split(list(place))))
    assert torch.equal(parts[7], alone.extra.prepare(None, alone).inputs.tokens)


def test_regions_of_a_batch_are_those_of_its_images(corpus):
    opened = Corpus.open(corpus)
    train, valid = opened.split(0.2)
    special_ids = SpecialIds.from_tokenizer(Tokenizer.load(corpus / "tokenizer"))
    builder = Captioning().bind(valid, special_ids, 32)
    batch = builder.batch(np.array([2]), 0)
    images = np.load(corpus / "regions.npy")
    image = images[valid.document_ids[2]]
    patch = image[8:16, 16:24]  # the second row of patches, third column
    assert np.array_equal(batch.inputs.source.values[8 + 2].numpy(), patch.ravel())
    model = tiny_recipe("show-attend-tell-tiny").model_config(100, regions=builder.format).build(0)
    assert compute_losses(model, batch)["next"] > 0 and len(train.document_ids) == 32
