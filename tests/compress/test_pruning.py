"""Pruning: what is removed and by which criterion, the law that pruning nothing changes nothing, and the command."""

import json

import pytest
import torch

from polyseme.compress.examples import LanguageModelExamples, read_examples
from polyseme.compress.pruning.config import STRATEGIES, PruningConfig
from polyseme.compress.pruning.importance import gradient_importance
from polyseme.compress.pruning.select import prune_model
from polyseme.compress.pruning.structure import (
    list_stacks,
    select_heads,
    select_layers,
    select_units,
    zero_heads,
)
from polyseme.errors import UnsupportedError
from polyseme.families import FAMILIES
from polyseme.inference.load import load_neural
from polyseme.nn.model import Model
from polyseme.objectives.losses import compute_losses
from tests.support import cases
from tests.support.text import documents

TRANSFORMERS = ["bert", "gpt2", "albert", "albert sharing ffn", "modernbert", "gpt-bert", "transformer", "t5", "xlnet"]


def outputs(model: Model) -> dict[str, torch.Tensor]:
    """Return the hidden states and the summed loss of each head on a batch."""
    batch = cases.training_batch(model, cases.sequences((5, 9, 1)))
    with torch.no_grad():
        return {**compute_losses(model, batch), "hidden": batch.forward(model).hidden}


def differences(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def supports(name: str, part: str) -> bool:
    try:
        list_stacks(cases.tiny_spec(name))
    except UnsupportedError:
        return part == "weights"
    has_shared_bias = name in ("xlnet", "transformer_xl", "music")
    return not (part == "heads" and has_shared_bias)


def test_pruning_nothing_changes_no_output():
    for name in [*FAMILIES, "albert sharing ffn", "bert causal"]:
        if name in (*cases.RENAMED, "word2vec", "fasttext", "glove"):  # the last have no layers
            continue
        model = cases.tiny_model(name)
        expected = outputs(model)
        for part in STRATEGIES:
            config = PruningConfig(**{part: 0.0}, strategy="random")
            if not supports(name, part):
                with pytest.raises(UnsupportedError, match=f"of {model.config.family} models cannot be pruned"):
                    prune_model(model, config, None)
                continue
            pruned, record = prune_model(model, config, None)
            assert pruned.config == model.config and record["removed"] == 0
            assert differences(outputs(pruned), expected) == 0, name  # not one bit


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_removed_units_and_heads_are_those_that_add_nothing(name):
    """Physical removal gives the outputs of a model of the same shape whose removed parts are zero."""
    model = cases.tiny_model(name)
    for part in ("ffn", "heads") if supports(name, "heads") else ("ffn",):
        pruned, record = prune_model(model, PruningConfig(**{part: 1.0}, strategy="random"), None)
        assert record["removed"] and sum(p.numel() for p in pruned.parameters()) < sum(
            p.numel() for p in model.parameters()
        )
        if part == "heads":
            padded, _ = prune_model(model, PruningConfig(heads=1.0, strategy="random", pad=True), None)
            assert padded.config == model.config
            assert differences(outputs(pruned), outputs(padded)) < 1e-10 < differences(outputs(pruned), outputs(model))


def test_units_are_removed_by_norm():
    model = cases.tiny_model("modernbert")  # gated
    with torch.no_grad():
        for block in model.trunk.blocks:
            block.ffn.down.weight[:, [3, 7]] *= 1e-14
    pruned, _ = prune_model(model, PruningConfig(ffn=2.0).resolve(has_data=False), None)
    assert {block.ffn.ffn_dim for block in pruned.config.trunk.block_configs} == {38}
    assert differences(outputs(pruned), outputs(model)) < 1e-10


def test_layers():
    model = cases.tiny_model("gpt2")
    blocks = [block.attention.qkv.weight for block in model.trunk.blocks]

    def kept(**options) -> list[int]:
        pruned, record = prune_model(model, PruningConfig(**options), None)
        weights = [block.attention.qkv.weight for block in pruned.trunk.blocks]
        indices = [next(i for i, old in enumerate(blocks) if torch.equal(old, new)) for new in weights]
        assert record["removed_layers"] == {"trunk": [i + 1 for i in range(3) if i not in indices]}
        return indices

    assert kept(layers=1.0, strategy="top") == [0, 1]
    assert kept(layers=2.0, strategy="alternate") == [1]
    assert kept(layers=0.67, strategy="top") == [0]
    shared, _ = prune_model(cases.tiny_model("albert"), PruningConfig(layers=1.0, strategy="top"), None)
    assert shared.config.trunk.layer_to_block == (0, 0) and len(shared.trunk.blocks) == 1
    both, _ = prune_model(cases.tiny_model("t5"), PruningConfig(layers=1.0, strategy="top"), None)
    assert both.config.trunk.encoder.num_layers == both.config.trunk.decoder.num_layers == 2
    outputs(both)
    first, _ = prune_model(cases.tiny_model("modernbert"), PruningConfig(layers=2.0, strategy="random"), None)
    assert first.config.trunk.block_configs[0].skip_attention_pre_norm  # its input is normalized already


def test_layers_by_loss(tiny_folders):
    """Compare with brute force; a layer that adds nothing changes no loss."""
    network = load_neural(tiny_folders["gpt2"])
    with torch.no_grad():
        for part in (network.model.trunk.blocks[1].attention.out, network.model.trunk.blocks[1].ffn.down):
            part.weight.zero_()
            part.bias.zero_()
    examples = LanguageModelExamples(network, documents(4, seed=3))
    choices = [[1, 2], [0, 2], [0, 1]]  # without the first, second, third
    losses = [examples.mean_loss(select_layers(network.model, {"trunk.": kept}), range(4)) for kept in choices]
    assert losses[1] == pytest.approx(examples.mean_loss(network.model, range(4)), rel=1e-6)
    _, record = prune_model(network.model, PruningConfig(layers=1.0).resolve(has_data=True), examples)
    assert record["losses"] == [min(losses)] and len(set(losses)) == 3
    assert record["removed_layers"] == {"trunk": [losses.index(min(losses)) + 1]}


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_importance_is_the_derivative_of_a_gate(name):
    """Compare with brute force: scale each head by 1 ± ε, and remove heads whose effect is small."""
    model = cases.tiny_model(name)
    rows = cases.sequences((6, 9))
    names = ["trunk.blocks.0.attention"] if name == "albert" else [f"trunk.blocks.{i}.attention" for i in range(3)]
    with torch.no_grad():
        for each in names:
            model.get_submodule(each).out.weight.mul_(1e-4)

    def loss(model: Model, indices) -> torch.Tensor:
        hidden = cases.training_batch(model, [rows[i] for i in indices]).forward(model).hidden  # float64, as no loss is
        return (hidden * torch.linspace(-1, 2, hidden.numel()).view_as(hidden)).sum()

    def losses() -> list[float]:
        with torch.no_grad():
            return [float(loss(model, [i])) for i in range(2)]

    importance = gradient_importance(model, dict.fromkeys(names, 3), "out", loss, range(2))
    for each in names:
        weight, expected, removed = model.get_submodule(each).out.weight, [], []
        for head in range(3):
            columns, gates = slice(8 * head, 8 * head + 8), {}
            for gate in (0.99, 1.01, 0.0):
                original = weight.data.clone()
                weight.data[:, columns] *= gate
                gates[gate] = losses()
                weight.data.copy_(original)
            full = losses()
            expected.append(sum(abs(b - a) / 0.02 for a, b in zip(gates[0.99], gates[1.01])) / 2)
            removed.append(sum(abs(a - b) for a, b in zip(gates[0.0], full)) / 2)
        assert importance[each].tolist() == pytest.approx(expected, rel=1e-4)
        assert importance[each].tolist() == pytest.approx(removed, rel=0.05)


def test_least_important_heads_are_removed(tiny_folders):
    network = load_neural(tiny_folders["bert"])
    with torch.no_grad():
        network.model.trunk.blocks[1].attention.out.weight[:, 8:16] *= 1e-9
    examples = read_examples(network, documents(3))
    _, record = prune_model(network.model, PruningConfig(heads=1.0).resolve(True), examples)
    assert record["by_sublayer"] == {f"trunk.blocks.{i}.attention": [1] * (i == 1) for i in range(3)}
    config = PruningConfig(heads=1.0, uniform=True).resolve(True)
    pruned, record = prune_model(network.model, config, examples)
    assert record["by_sublayer"]["trunk.blocks.1.attention"] == [1] and record["removed"] == 3
    assert pruned.config.trunk.block.attention.num_heads == 2 and pruned.config.trunk.block.attention.head_dim == 8
    kept = {f"trunk.blocks.{i}.attention": [0, 1, 2] for i in range(3)}
    assert select_heads(network.model, kept).config == zero_heads(network.model, kept).config == network.model.config
    assert select_units(network.model, {}).config == network.model.config


def test_smallest_weights_are_removed():
    model = cases.tiny_model("bert")
    pruned, record = prune_model(model, PruningConfig(weights=0.25, strategy="magnitude"), None)
    weights, zeroed = (
        torch.cat([m.weight.flatten() for m in each.trunk.blocks.modules() if isinstance(m, torch.nn.Linear)])
        for each in (model, pruned)
    )
    assert record == {"removed": round(0.25 * len(weights)), "total": len(weights)}
    assert int((zeroed == 0).sum()) == record["removed"]
    assert weights[zeroed == 0].abs().max() <= weights[zeroed != 0].abs().min()


# --- the command -----------------------------------------------------------------------------------------------------


def test_prune_command(run_cli, project, tmp_path):
    model, data = project / "run-classification/model", project / "classification-dev.tsv"
    out = tmp_path / "heads"
    printed = run_cli("prune", model, "--heads", 0.5, "--data", data, "--random", "--out", out)
    lines = printed.splitlines()
    assert lines[0].split() == ["measure", "before", "after", "ratio"]
    assert [line.split("  ")[0] for line in lines[1:6]] == [
        "megabytes", "parameters", "ms per text", "accuracy", "accuracy, random heads",
    ]  # fmt: skip
    assert lines[6] == f"Removed 2 of 4 heads of {model} by importance." and "CPU, 1 thread" in lines[7]
    assert lines[8] == f"{out}; see {out}/compression.html" and (out / "compression.html").is_file()
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "bert-pruned" and config["architectures"] == []
    assert "transformers" not in (out / "README.md").read_text().split("## ")[1]
    run_cli("verify", out)
    assert load_neural(out).predict(["the cat"])
    record = json.loads(run_cli("prune", out, "--layers", 1, "--json", "--out", tmp_path / "layers"))
    assert record["removed_layers"] == {"trunk": [2]} and record["strategy"] == "top"
    assert {row["measure"]: row["ratio"] for row in record["rows"]}["parameters"] < 1
    metadata = json.loads((tmp_path / "layers/polyseme.json").read_text())["metadata"]
    assert [each["part"] for each in metadata["pruning"]] == ["heads", "layers"] and "task" in metadata


def test_rejected_commands(rejects, project, tiny_folders, tmp_path):
    bert, out, texts = tiny_folders["bert"], tmp_path / "out", tmp_path / "texts.txt"
    texts.write_text("\n".join(documents(3)))
    empty = tmp_path / "empty.txt"
    empty.write_text("")

    def check(model, *options, match):
        rejects("prune", model, *options, "--out", out, match=match)

    check(bert, match="choose one of --layers, --heads, --ffn and --weights")
    check(bert, "--heads", 1, "--ffn", 2, match="--heads and --ffn")
    check(bert, "--heads", 1, match="needs --data")
    check(bert, "--heads", 3, "--uniform", "--data", texts, match="removes 3 of 3 heads of a layer")
    check(bert, "--heads", 7, "--data", texts, match="removes 7 of 9 heads: keep one in each of 3 layers")
    check(bert, "--layers", 1.5, match="--layers is 1.5")
    check(bert, "--layers", -1, match="--layers is -1")
    check(bert, "--layers", 1, "--strategy", "norm", match="layers are pruned by loss, alternate, top, random")
    check(bert, "--layers", 1, "--random", match="--random has no effect without --data")
    check(bert, "--layers", 1, "--pad", match="--pad has no effect")
    check(bert, "--layers", 1, "--max-examples", 3, match="--max-examples has no effect on the strategy top")
    check(
        bert,
        "--heads",
        1,
        "--data",
        texts,
        "--set",
        "gate_penalty=1",
        match="`gate_penalty` has no effect on the strategy importance",
    )
    check(bert, "--heads", 1, "--data", texts, "--dev", texts, "--budget", "3steps", match="--dev, set --epochs")
    check(bert, "--layers", 1, "--corpus", out, "--epochs", 3, match="--corpus, set --budget")
    check(bert, "--layers", 1, "--data", empty, match="empty")
    check(bert, "--layers", 1, "--data", texts, "--task", "glue/sts-b", match="--task has no effect")
    check(tiny_folders["rnn_lm"], "--layers", 1, match="no Transformer layers")
    check(tiny_folders["xlnet"], "--heads", 1, "--strategy", "random", match="relative positions have weights for all")
    check(tiny_folders["t5"], "--layers", 1, "--data", texts, match="leave --data out")
    rejects("prune", bert, "--layers", 1, "--out", project.path, match="already exists")
