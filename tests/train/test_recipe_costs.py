"""What a recipe costs, computed without allocating the model: against published numbers, and against real training."""

import json
import re

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import polyseme
from polyseme.errors import ConfigError
from polyseme.families import FAMILIES
from polyseme.nn.model import build_meta
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.recipes import RECIPES, get_recipe
from polyseme.recipes.describe import describe_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import memory
from polyseme.train.memory import DeviceMemory, check_fits, estimate_memory
from polyseme.train.optimizer import optimizer_state_dict
from polyseme.train.pretrain import build_train_state
from tests.support.stored_corpus import store
from tests.support.text import documents

PUBLISHED = [
    (family.name, size) for family in FAMILIES.values() for size in {**family.num_params, **family.paper_params}
]


@pytest.mark.parametrize("family,size", PUBLISHED)
def test_every_published_size_has_a_recipe_with_its_parameters(family, size):
    recipes = [name for name, recipe in RECIPES.items() if (recipe().family, recipe().size) == (family, size)]
    assert recipes, f"{family} {size} has no recipe"
    recipe = get_recipe(recipes[0]).check()
    config = recipe.model_config(FAMILIES[family].model_config(size, with_heads=False).trunk.embeddings.vocab_size)
    num_params = sum(p.numel() for p in build_meta(config).trunk.parameters())
    if size in FAMILIES[family].num_params:
        assert num_params == FAMILIES[family].num_params[size]
    else:
        rounded = FAMILIES[family].paper_params[size]
        assert num_params == pytest.approx(float(rounded[:-1]) * {"M": 1e6, "B": 1e9}[rounded[-1]], rel=0.035)


def test_gpt3_is_described_without_allocating_it():
    description = polyseme.describe_recipe("gpt3-175b")
    assert description.flops == pytest.approx(3.14e23, rel=0.02)  # Brown et al. 2020, appendix D
    assert description.num_tokens == 300e9 and not description.fits
    assert description.memory.weights == 4 * description.num_trained_parameters


def test_a_run_may_end_while_its_batches_grow():
    recipe = get_recipe("modernbert-base")
    first, last, warmup = recipe.micro_batch_tokens, recipe.batch_tokens, recipe.batch_warmup_steps
    for num_steps in (1, 100, warmup):
        described = describe_recipe(recipe.with_override("budget", f"{num_steps}steps"))
        num_tokens = sum(first + (last - first) * step / warmup for step in range(num_steps))
        assert described.num_tokens == pytest.approx(num_tokens, rel=0.02)
        assert describe_recipe(recipe.with_override("budget", f"{num_tokens}tokens")).num_steps <= num_steps


@pytest.mark.parametrize("name", ["bert-tiny", "best"])
def test_optimizer_state_is_exact(name):
    recipe = get_recipe(name).replace(model={"num_layers": 2, "dim": 64, "num_heads": 2}, compile=False)
    config = recipe.model_config(200)
    state = build_train_state(recipe, config, torch.device("cpu"))
    for p in state.model.parameters():
        p.grad = torch.ones_like(p)
    state.optimizer.step()
    tensors = {name: t for name, t in optimizer_state_dict(state.optimizer, state.model).items() if t.ndim}
    expected = sum(t.numel() for t in tensors.values())
    assert recipe.optimizer.count_state(build_meta(config)) == expected


CASES = {  # with and without attention kernels that keep scores, with biases, with two stacks, recurrent
    "bert": {"dropout": 0.1, "attention_dropout": 0.1},
    "gpt2": {"dropout": 0.0, "attention_dropout": 0.0},
    "t5": {"dropout": 0.1},
    "transformer": {"dropout": 0.1},
}


@pytest.mark.parametrize("family", CASES)
def test_activations_are_those_that_autograd_keeps(family, monkeypatch):
    monkeypatch.setattr(memory, "BACKWARD_BUFFERS", 0)
    config = FAMILIES[family].model_config("tiny", vocab_size=100, **CASES[family])
    model, lengths = config.build(0).train(), [48] * 6
    layout, tokens = PackedLayout.from_lengths(lengths), torch.randint(0, 100, (sum(lengths),))
    source = EncoderInput(tokens, layout) if config.trunk.has_source else None
    weights, storages = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def save(tensor):
        storages.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage())
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        model.trunk(Inputs(tokens, layout, source=source))
    real = sum(storage.nbytes() for address, storage in storages.items() if address not in weights)
    inputs = memory._build_meta_inputs(6, 48, 48 if source else 0)
    assert memory._count_saved_bytes(build_meta(config).train().trunk, inputs, False, False) == pytest.approx(
        real, rel=0.05
    )


def test_a_gpu_keeps_half_as_much_and_no_scores():
    recipe = get_recipe("bert-base")
    model = build_meta(recipe.model_config(30522))
    cpu, gpu = (estimate_memory(recipe, model, is_gpu) for is_gpu in (False, True))
    assert gpu.activations < cpu.activations / 3
    assert gpu.weights == 1.5 * cpu.weights and gpu.optimizer_state == cpu.optimizer_state
    checkpointed = estimate_memory(recipe.replace(gradient_checkpointing=True), build_meta(model.config), True)
    assert checkpointed.activations < gpu.activations / 5


def test_a_recipe_that_cannot_fit_stops_before_anything_is_written(tmp_path, monkeypatch):
    tokenizer = Tokenizer.train("wordpiece", iter(documents(30)), 120)
    corpus = store(tmp_path / "corpus", tokenizer, documents(30))
    device = DeviceMemory("this machine", 1 << 20, False)
    monkeypatch.setattr(DeviceMemory, "detect", classmethod(lambda cls: device))
    with pytest.raises(
        ConfigError, match=r"bert-tiny does not fit into memory: .* and this machine has 1 MiB"
    ) as error:
        polyseme.pretrain("bert-tiny", corpus, out=tmp_path / "run", budget="1steps")
    assert "\n" not in str(error.value) and not list((tmp_path / "run").glob("*.json"))


def test_micro_batches_that_are_too_large_for_a_machine_are_named_before_it_ends_the_run(caplog, monkeypatch):
    recipe = get_recipe("bert-tiny").replace(batch_tokens=1 << 15, micro_batch_tokens=1 << 15)
    model = recipe.model_config(1000)
    num_bytes = estimate_memory(recipe, build_meta(model), False).total
    for size, is_gpu, is_warned in (
        (num_bytes, False, False),
        (num_bytes // 3, True, False),
        (num_bytes // 3, False, True),
    ):
        device = DeviceMemory("this machine", size, is_gpu)
        monkeypatch.setattr(DeviceMemory, "detect", classmethod(lambda cls, device=device: device))
        check_fits(recipe, model)
        assert bool(caplog.messages) == is_warned
    advised = recipe.replace(micro_batch_tokens=int(re.search(r"to (\d+)$", caplog.messages[0])[1]))
    assert estimate_memory(advised, build_meta(model), False).total <= num_bytes // 3
    assert recipe.batch_tokens % advised.micro_batch_tokens == 0


def test_the_command_prints_what_a_recipe_costs(run_cli, rejects):
    said = run_cli("recipes", "--describe", "gpt2-xl")
    assert "1,557,611,200 without heads (published: 1,557,611,200)" in said and "fits here" in said
    row = json.loads(run_cli("recipes", "--describe", "word2vec-tiny", "--json"))
    assert row["flops"] is None and row["memory"]["gradients"] == 0 and row["fits"]
    assert "depends on the speed" in run_cli("recipes", "--describe", "elmo-small")
    rejects("recipes", "--describe", "bert-tiny", "--family", "bert", match="no effect")
    rejects("recipes", "--describe", "ngram-3", match="counts n-grams")
