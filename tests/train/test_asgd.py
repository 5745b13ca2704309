"""NT-ASGD: SGD until the validation loss stops falling, then an average of the weights."""

import random

import pytest
import torch
from safetensors.torch import load_file

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.recipes import RECIPES
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import pretrain as module
from polyseme.train.optimizer import (
    OptimizerConfig,
    load_optimizer_state_dict,
    optimizer_state_dict,
    set_lr,
    swap_averaged_weights,
)
from polyseme.train.pretrain import pretrain
from tests.support.runs import STEPS, Killed, assert_same, checkpoint_tensors, prepare_text, tiny_recipe


def model_and_optimizer(**changes):
    model = FAMILIES["gpt2"].model_config(num_layers=1, dim=8, num_heads=2, vocab_size=20, max_len=8).build(seed=0)
    spec = OptimizerConfig(lr=0.5, name="nt_asgd", **changes)
    return model, spec.build(model, model.trunk.layer_groups())


def step(model, optimizer, seed):
    draw = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=draw)
    optimizer.step()


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_a_step_is_sgd_with_decay_of_matrices():
    model, optimizer = model_and_optimizer(weight_decay=0.1)
    before = weights(model)
    set_lr(optimizer, 0.25)
    step(model, optimizer, 1)
    for name, p in model.named_parameters():
        decay = 0.1 if p.ndim > 1 else 0.0
        expected = before[name] - 0.25 * (p.grad + decay * before[name])
        torch.testing.assert_close(p.detach(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("patience", [0, 2, 5])
def test_the_trigger_is_that_of_the_paper(patience):
    """Compare with a plain version of algorithm 1: validations count from 0; only those before the last n matter."""
    draw = torch.Generator().manual_seed(patience)
    for _ in range(30):
        losses = torch.rand(20, generator=draw).tolist()
        logs, trigger = [], None
        for t, v in enumerate(losses):
            if trigger is None and t > patience and v > min(logs[: t - patience]):
                trigger = t
            logs.append(v)
        _, optimizer = model_and_optimizer(patience=patience)
        found = None
        for t, v in enumerate(losses):
            optimizer.report_validation_loss(v)
            if found is None and optimizer.num_averaged:
                found = t
        assert found == trigger


def test_the_mean_of_all_weights_since_the_trigger():
    model, optimizer = model_and_optimizer(patience=0)
    step(model, optimizer, 0)
    optimizer.report_validation_loss(1.0)
    step(model, optimizer, 1)
    with swap_averaged_weights(optimizer):  # there is none yet
        pass
    optimizer.report_validation_loss(2.0)  # worse: the mean begins with the weights as they are
    seen = [weights(model)]
    for seed in range(2, 7):
        step(model, optimizer, seed)
        seen.append(weights(model))
        optimizer.report_validation_loss(0.0)  # no matter any more
    with swap_averaged_weights(optimizer):
        for name, p in model.named_parameters():
            expected = torch.stack([each[name].double() for each in seen]).mean(0)
            torch.testing.assert_close(p.detach().double(), expected, atol=1e-6, rtol=0)
    assert all(torch.equal(p, seen[-1][name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("late", [False, True])
def test_state_there_and_back(late):
    """A restored optimizer continues like one that was never saved, before the trigger and after it."""
    found = []
    for stops in (False, True):
        model, optimizer = model_and_optimizer(patience=1)
        for seed, loss in enumerate([3.0, 2.0, 2.5, 3.5, 9.0, 9.0]):
            step(model, optimizer, seed)
            optimizer.report_validation_loss(loss)
            if stops and seed == (4 if late else 1):
                state = {name: t.clone() for name, t in optimizer_state_dict(optimizer, model).items()}
                held = model.state_dict()
                model, optimizer = model_and_optimizer(patience=1)
                model.load_state_dict(held)
                load_optimizer_state_dict(optimizer, model, state)
        assert optimizer.num_averaged == 3 and len(optimizer.valid_losses) == 4
        with swap_averaged_weights(optimizer):
            found.append(weights(model))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_it_needs_something_held_out():
    recipe = RECIPES["gpt2-tiny"]().replace(optimizer=OptimizerConfig(name="nt_asgd"), valid_fraction=0.0)
    with pytest.raises(PolysemeError, match="valid_fraction is 0"):
        recipe.check()
    with pytest.raises(PolysemeError, match="supports adamw, stable_adamw"):
        FinetuneConfig(optimizer=OptimizerConfig(name="nt_asgd")).validate()


def test_a_corpus_of_one_document_is_rejected(tmp_path):
    recipe = tiny_recipe("rnn_lm").replace(optimizer=OptimizerConfig(name="nt_asgd"))
    with pytest.raises(PolysemeError, match="the corpus is too small to hold out any"):
        pretrain(recipe, prepare_text(tmp_path, "words", num_documents=1), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.json").exists()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("asgd"), random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 5))) for _ in range(60)]
    sentences = [" ".join(draw.choices(words, k=6)).capitalize() + "." for _ in range(480)]
    text = folder / "text.txt"
    text.write_text("\n\n".join(" ".join(sentences[i : i + 12]) for i in range(0, 480, 12)))
    prepare(
        [text],
        Tokenizer.train("bpe", iter([text.read_text()]), 330),
        folder / "corpus",
        PrepareConfig(split="blank", num_workers=1),
    )
    return folder / "corpus"


def test_killed_in_the_middle_of_a_stream(corpus, tmp_path, monkeypatch):
    """Before the trigger and behind it: what was measured, the means and the memory go on.

    The rate is so high that the loss gets worse at once; a stretch's length, and with it the rate, is drawn.
    """
    plain = tiny_recipe("ulmfit")
    optim = plain.optimizer.replace(name="nt_asgd", lr=1000.0, patience=1)
    averaging = plain.replace(optimizer=optim, eval_every=1, batch_tokens=256)
    pretrain(averaging, corpus, tmp_path / "whole")
    real = module.train

    def killed(run, data):
        for report in real(run, data):
            yield report
            if report.step in (3, 8) and report.step > run.start_step + 1:
                raise Killed

    monkeypatch.setattr(module, "train", killed)
    for resume in (False, True):
        with pytest.raises(Killed):
            pretrain(averaging, corpus, tmp_path / "killed", resume=resume)
    monkeypatch.setattr(module, "train", real)
    pretrain(averaging, corpus, tmp_path / "killed", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "killed")
    state = checkpoint_tensors(tmp_path / "whole")
    measured, count = state["optimizer//valid_losses"], int(state["optimizer//num_averaged"])
    assert 3 <= len(measured) < 7 and count == STEPS - len(measured) + 1
    assert any(name.startswith("memory/") for name in state)
    mean = state["optimizer/trunk.embeddings.tokens.weight/average"]
    saved = load_file(tmp_path / "whole" / "model" / "model.safetensors")["trunk.embeddings.tokens.weight"]
    assert torch.equal(saved, mean) and not torch.equal(saved, state["model/trunk.embeddings.tokens.weight"])
