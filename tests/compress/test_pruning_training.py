"""Pruning with training: masks that stay, schedules, rewinding, gates, and the comparisons of the command."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file

from polyseme.compress import prune
from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.gates import HeadGates
from polyseme.compress.pruning.masks import GradualMasks, WeightMasks
from polyseme.compress.pruning.structure import list_heads
from polyseme.compress.pruning.task_retraining import TaskRetraining
from polyseme.errors import UnsupportedError
from polyseme.finetuning.training import SeedTraining
from polyseme.inference.load import load_neural
from polyseme.objectives.losses import compute_losses
from tests.support import cases

LABELS = {"a good cat": "yes", "the bad dog": "no", "good old milk": "yes", "bad cold milk": "no"}
TRAIN = [{"text": text, "label": label} for text, label in LABELS.items()] * 4
DEV = TRAIN[:4]


@pytest.fixture(scope="module")
def retraining(tiny_folders) -> TaskRetraining:
    return build_retraining(tiny_folders["bert"])


def build_retraining(folder, **options) -> TaskRetraining:
    options = {"steps": 6, "batch_size": 4, "lr": 0.01, **options}
    return TaskRetraining.read(load_neural(folder), {"data": TRAIN, "dev": DEV}, "classification", 1, options)


def hidden_weights(model) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in WeightMasks(model).weights])


def equal(model, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))


def test_a_data_set_has_training_and_dev_examples(tiny_folders, glue):
    network = load_neural(tiny_folders["bert"])
    retraining = TaskRetraining.read(network, {"data": glue, "dev": None}, "glue/sst-2", [3, 5], {"epochs": 1})
    assert retraining.metric == "accuracy" and retraining.seeds == [3, 5]
    settings = retraining.describe()
    assert (
        settings["train_examples"] > 1 and settings["dev_examples"] > 1 and settings["steps"] == retraining.total_steps
    )


def test_removed_weights_stay_zero_and_the_others_are_trained_as_usual(retraining):
    masks = WeightMasks(retraining.build(0))
    masks.prune(masks.total // 2)
    expected = copy.deepcopy(masks.model)
    retraining.train_masked(masks, 0)
    zeros = torch.cat([mask.flatten() for mask in masks.is_removed])
    assert int(zeros.sum()) == masks.total // 2
    weights = hidden_weights(masks.model)
    assert not weights[zeros].any() and weights[~zeros].all()

    # the same steps in a loop of their own
    training = SeedTraining(retraining.start(expected, 0).experiment, 0)
    state, config = training.state, retraining.experiment.config
    expected.train()
    for step, ((batch,), _) in zip(range(6), retraining.experiment.batches(0, 6, 0, expected.config.trunk)):
        torch.default_generator.manual_seed(step << 12)
        for group in state.optimizer.param_groups:
            group["lr"] = config.optimizer.lr * config.schedule.lr_factor(step, 6)
        (loss,) = compute_losses(expected, batch).values()
        state.optimizer.zero_grad()
        (loss / torch.tensor(4.0)).backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), config.optimizer.max_grad_norm)
        state.optimizer.step()
        for weight, mask in zip(WeightMasks(expected).weights, masks.is_removed):
            weight.data[mask] = 0
    assert equal(masks.model, expected)
    plain = retraining.train(retraining.build(0), 0)
    assert not equal(plain, expected) and equal(plain, retraining.train_masked(WeightMasks(retraining.build(0)), 0))


def test_weights_are_removed_along_a_cubic_curve(retraining):
    config = PruningConfig(weights=0.8, schedule="gradual", strategy="magnitude")
    counts = [config.gradual_count(1000, step, 100) for step in range(101)]
    assert counts[10] == 0 and counts[40] == round(1000 * (1 - 0.5**3)) and counts[70] == counts[100] == 1000
    assert counts == sorted(counts)
    masks = WeightMasks(retraining.build(0))
    gradual = GradualMasks(masks, config, 6)
    previous, sizes = torch.zeros(masks.total, dtype=torch.bool), []

    def after_step(model, step):
        nonlocal previous
        gradual.after_step(step)
        zeros = hidden_weights(model) == 0
        assert not (previous & ~zeros).any()  # a removed weight never returns
        previous = zeros
        sizes.append(int(zeros.sum()))

    model = retraining.train(masks.model, 0, after_step)
    assert sizes == [config.gradual_count(round(0.8 * masks.total), step, 6) for step in range(1, 7)]
    assert sizes[0] < sizes[2] < sizes[-1] == round(0.8 * masks.total)
    again, _ = retraining.prune(config, 0)
    assert equal(again, model)


def test_iterative_pruning_rewinds_to_a_step_of_the_first_training(retraining):
    config = PruningConfig(weights=0.5, schedule="iterative", rounds=1, rewind_step=2, strategy="magnitude")
    pruned, record = retraining.prune(config, 0)
    assert [row["removed"] for row in record["rounds"]] == [0, record["removed"]]

    first = retraining.start(retraining.build(0), 0)
    steps = first.steps()
    next(steps), next(steps)
    early = copy.deepcopy(first.checkpoint())
    assert len(list(steps)) == 4
    masks = WeightMasks(first.model)
    masks.prune(record["removed"])  # the smallest of the weights at the end
    second = retraining.start(first.model, 0, lambda model, step: masks.apply())
    second.restore(early)
    masks.apply()
    assert torch.equal(hidden_weights(first.model) == 0, torch.cat([mask.flatten() for mask in masks.is_removed]))
    assert len(list(second.steps())) == 4 and equal(pruned, second.model)
    assert PruningConfig(weights=0.9, schedule="iterative").iterative_counts(1000)[:2] == [189, 342]
    assert len(PruningConfig(weights=0.9, schedule="iterative").iterative_counts(1000)) == 11


def test_gates_have_the_effect_of_scaled_output_columns():
    model = cases.tiny_model("bert").eval()
    batch = cases.training_batch(model, cases.sequences((5, 9)))
    gates = HeadGates(list_heads(model), num_removed=5)
    with torch.no_grad():
        for i, logits in enumerate(gates.logits):
            logits.copy_(torch.tensor([-5.0, 0.3 * i, 5.0]))
        with gates.attached(model):
            expected = batch.forward(model).hidden
            assert torch.equal(expected, batch.forward(model).hidden)
            model.train()
            assert not torch.equal(batch.forward(model).hidden, batch.forward(model).hidden)
            model.eval()
        assert (batch.forward(model).hidden - expected).abs().max() > 1e-4  # detached
        gates.fold(model)
        assert (batch.forward(model).hidden - expected).abs().max() < 1e-10
    assert not model.trunk.blocks[0].attention.out.weight[:, :8].any()  # closed
    gates.requires_grad_(False)
    gates.logits[0].fill_(0.5)  # the probability of a gate above 0, by samples
    samples = torch.stack([gates.values(gates.logits[0], is_random=True) for _ in range(2000)])
    gates.num_open = 0
    for logits in gates.logits[1:]:
        logits.fill_(-50.0)
    assert gates.penalty().item() / 3 == pytest.approx(float((samples > 0).float().mean()), abs=0.02)


def test_heads_are_removed_by_gates(tiny_folders):
    retraining = build_retraining(tiny_folders["bert"], steps=60)
    config = PruningConfig(heads=4.0, strategy="gates", gate_penalty=1.0)
    pruned, record = retraining.prune(config, 0)
    assert record["removed"] == 4 and sum(map(len, record["by_sublayer"].values())) == 4
    logits = torch.tensor(list(record["importance"].values()))
    assert (logits < 2).any() and logits.flatten().sort().values[3] < logits.flatten().sort().values[4]
    again, _ = retraining.prune(config, 0)
    assert equal(pruned, again)


def test_layers_have_different_numbers_of_heads(tiny_folders, tmp_path):
    """The most important heads of all layers stay; such a model is saved, loaded, generates and is fine-tuned."""
    network = load_neural(tiny_folders["gpt2"])
    with torch.no_grad():
        network.model.trunk.blocks[1].attention.out.weight[:, :16] *= 1e-6
    changed = network.save(tmp_path / "changed")
    uneven = prune(changed, heads=2, data=["the cat sat on the mat"], out=tmp_path / "uneven", curve=False)
    smaller = load_neural(uneven.out)
    assert [b.attention.config.num_heads for b in smaller.model.trunk.blocks] == [3, 1, 3]
    before, after = (load_neural(path).generate("the cat", max_new_tokens=8) for path in (changed, uneven.out))
    assert [each.text for each in after] == [each.text for each in before]
    with pytest.raises(UnsupportedError, match="from 1 to 3 heads in a layer"):
        smaller.attention("the cat")
    model = build_retraining(uneven.out).train(build_retraining(uneven.out).build(0), 0)
    assert [b.attention.config.num_heads for b in model.trunk.blocks] == [3, 1, 3]


def test_prune_command_with_training(run_cli, project, tmp_path):
    model, out = project / "run-classification/model", tmp_path / "gradual"
    files = ["--data", project / "classification-train.tsv", "--dev", project / "classification-dev.tsv"]
    options = ["--weights", 0.5, "--schedule", "gradual", "--random", "--from-scratch", "--seeds", 2]
    settings = ["--set", "steps=3", "--json", "--out", out]
    record = json.loads(run_cli("prune", model, *options, *files, *settings))
    rows = {row["measure"]: row for row in record["rows"]}
    names = ["accuracy", "accuracy, random weights", "accuracy, from scratch"]
    assert list(rows)[-4:] == ["nonzero weights", *names]
    assert all(rows[name]["after_std"] is not None for name in names)
    assert record["steps"] == 3 and record["seeds"] == [0, 1] and len(record["scores"]["from scratch"]) == 2
    points = record["curve"]["points"]
    assert points[0]["label"] == "original" and sum(point["chosen"] for point in points) == 1 and len(points) > 5
    tensors = load_file(out / "model.safetensors")
    num_zeros = sum(int((t == 0).sum()) for name, t in tensors.items() if t.ndim == 2 and ".layer." in name)
    assert num_zeros >= record["removed"] > 0
    assert "accuracy" in run_cli("evaluate", out, "--data", project / "classification-dev.tsv")
    assert "million nonzero parameters" in (out / "compression.html").read_text()


def test_a_language_model_is_trained_further(run_cli, project, tmp_path):
    """With all schedules; the weights that stay return to those of the folder if they are rewound to step 0."""
    files = ["--corpus", project / "corpus-bert", "--budget", "4steps", "--json"]
    options = ["--weights", 0.5, "--schedule", "iterative", "--rounds", 2, "--random", "--no-curve"]
    record = json.loads(run_cli("prune", project / "run-bert/model", *options, *files, "--out", tmp_path / "lm"))
    assert [row["measure"] for row in record["rows"]][-2:] == ["valid masked", "valid masked, random weights"]
    assert record["steps"] == 4 and len(record["rounds"]) == 3
    assert record["rounds"][0]["score"] == record["scores"]["dense"][0]
    zeros = hidden_weights(load_neural(tmp_path / "lm").model) == 0
    assert int(zeros.sum()) == record["removed"]
    options = ["--set", "optimizer.lr=1e-12", "--set", "optimizer.weight_decay=0", "--out", tmp_path / "rewound"]
    run_cli("prune", project / "run-bert/model", "--weights", 0.5, "--schedule", "iterative", *files, *options)
    before, after = (
        hidden_weights(load_neural(path).model) for path in (project / "run-bert/model", tmp_path / "rewound")
    )
    assert torch.allclose(before[after != 0], after[after != 0], atol=1e-6)


def test_rejected_training(rejects, project, tiny_folders, tmp_path):
    train, dev = project / "classification-train.tsv", project / "classification-dev.tsv"
    model, files = project / "run-classification/model", ["--data", train, "--dev", dev]

    def check(*options, match, model=model):
        rejects("prune", model, *options, "--out", tmp_path / "out", match=match)

    check("--weights", 0.5, "--schedule", "gradual", match="the --schedule gradual trains the model: pass --data")
    check("--heads", 1, "--strategy", "gates", match="by gates needs --data")
    check("--heads", 1, "--schedule", "gradual", *files, match="heads are removed at once")
    check("--weights", 0.5, "--rounds", 2, *files, match="--rounds and --rewind-step are for the --schedule iterative")
    check("--weights", 0.5, "--data", dev, "--epochs", 1, match="--epochs has no effect without training")
    check("--weights", 0.5, "--data", train, "--seeds", 2, match="--dev is missing")
    check("--weights", 0.5, "--from-scratch", match="--from-scratch has no effect without training")
    check("--layers", 1, "--uniform", match="--uniform has no effect on layers")
    check("--weights", 0.5, *files, "--set", "patience=2", match="patience")
    check("--weights", 0.5, *files, model=tiny_folders["bert"], match="pass the --task that it is fine-tuned for")
    check("--weights", 0.5, "--corpus", project / "corpus-bert", "--dev", dev, match="pass one of them")
    language_model, corpus = project / "run-bert/model", ["--corpus", project / "corpus-bert"]
    check("--weights", 0.5, *corpus, "--budget", "1m", model=language_model, match="--budget is 60s.*500steps")
    check("--weights", 0.5, "--corpus", project / "corpus-gpt2", model=language_model, match="another vocabulary")
    check("--weights", 0.5, "--budget", "5steps", model=language_model, match="--budget has no effect without training")
    late = ["--schedule", "iterative", "--rewind-step", 9, "--set", "steps=3"]
    check("--weights", 0.5, *late, *files, match="--rewind-step is 9, but there are 3 training steps")
