"""Cross-view training: views and losses by hand, gradients, packing, order, resume, several tasks, errors."""

import itertools
import json
import random
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import ConfigError, DataError, PolysemeError, UnsupportedError
from polyseme.finetuning import runner
from polyseme.finetuning.config import CrossViewSettings, FeatureNetworkSettings
from polyseme.finetuning.cross_view import CROSS_VIEW, MAX_SENTENCE_WORDS, UnlabeledText
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.frozen import (
    FEATURE_DEFAULTS,
    FeatureInputs,
    build_experiment,
    build_reader,
    train_on_features,
)
from polyseme.finetuning.training import SeedTraining
from polyseme.nn.packing import tree_leaves
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from tests.support.commands import cli
from tests.support.runs import folder_bytes, freeze_times, run_with_kills

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare"]
NETWORK = FeatureNetworkSettings("bilstm", lstm_dim=6, num_layers=2, word_dim=5, dropout=0.0, use_char_cnn=False)


def sentences(count, seed=0):
    draw = random.Random(seed)
    return [draw.choices(WORDS, k=draw.randint(1, 5)) for _ in range(count)]


def tagged(count, seed=1, tags="AB"):
    rows = enumerate(sentences(count, seed))
    return [TaggingExample(f"t:{i}", tuple(w), tuple("O" if x > "e" else tags[x > "c"] for x in w)) for i, w in rows]


def task_data(decoder="softmax", name="", tags="AB"):
    return TaskData(TaggingTask(decoder=decoder), tagged(24, 1, tags), tagged(8, 2, tags), name)


def config(unlabeled_dropout=0.0, **changes):
    cross_view = CrossViewSettings(unlabeled_batch_size=8, unlabeled_dropout=unlabeled_dropout)
    return FEATURE_DEFAULTS.replace(batch_size=8, epochs=1.0, network=NETWORK, cross_view=cross_view).replace(**changes)


def build(data, text, **changes):
    """Return an experiment and its unlabeled side."""
    inputs, settings = FeatureInputs(unlabeled=UnlabeledText.from_sentences(text)), config(**changes)
    experiment = build_experiment(inputs, data, settings, build_reader(inputs, data, settings))
    return experiment, experiment.unlabeled.__self__


def log_softmax(x):
    return x - x.exp().sum(-1, keepdim=True).log()


def brute_force_marginals(crf, emissions):
    """Return the log marginals of each word by enumerating all tag sequences."""
    transitions, start, end = crf.constrained_transitions(emissions)
    n, num_tags = emissions.shape
    totals = torch.zeros(n, num_tags, dtype=torch.float64)
    for path in itertools.product(range(num_tags), repeat=n):
        score = start[path[0]] + end[path[-1]] + sum(emissions[i, tag] for i, tag in enumerate(path))
        score = score + sum(transitions[a, b] for a, b in itertools.pairwise(path))
        for i, tag in enumerate(path):
            totals[i, tag] += score.exp()
    return (totals / totals[0].sum()).log()


def loss_by_hand(model, vectors, decoder):
    """Return the loss of one sentence of word vectors, from torch's own LSTM and the equations of the paper."""
    states = []
    x = vectors
    for layer in model.trunk.encoder.layers:
        lstm = torch.nn.LSTM(x.shape[1], 6, bidirectional=True).double()
        for cell, suffix in zip(layer.cells, ("", "_reverse")):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(lstm, f"{name}_l0{suffix}").data.copy_(getattr(cell, name))
        x = lstm(x[:, None])[0][:, 0]
        states.append(x)
    head, views, zero = model.heads["tag"], model.heads[CROSS_VIEW], torch.zeros(6, dtype=torch.float64)
    scores = states[1] @ head.linear.weight.T + head.linear.bias
    target = brute_force_marginals(head.crf, scores) if decoder == "crf" else log_softmax(scores)
    forward, backward, total, n = states[0][:, :6], states[0][:, 6:], 0.0, len(vectors)
    for i in range(n):
        inputs = (forward[i], backward[i], forward[i - 1] if i else zero, backward[i + 1] if i + 1 < n else zero)
        for h, hidden, linear in zip(inputs, views.hidden, views.linear):
            q = log_softmax((hidden.weight @ h + hidden.bias).relu() @ linear.weight.T + linear.bias)
            total += (target[i].exp() * (target[i] - q)).sum()
    return total.detach()


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_views_and_losses_by_hand(decoder):
    text = [["cat", "dog", "wolf"], ["bear"], ["fish", "cat"]]
    experiment, cross_view = build([task_data(decoder)], text)
    model = experiment.build(0).double().train()
    if decoder == "crf":
        torch.nn.init.normal_(model.heads["tag"].crf.transitions)
    (batch,) = next(cross_view.batches(0))
    assert batch.counts() == {CROSS_VIEW: 6} and sorted(batch.inputs.layout.lengths) == [1, 2, 3]
    loss = cross_view.compute_losses(model, batch)[CROSS_VIEW]
    vectors = model.trunk.features(batch.inputs.tokens, batch.inputs.features)[0]
    parts = vectors.split(batch.inputs.layout.lengths)
    expected = sum(loss_by_hand(model, part, decoder) for part in parts)
    torch.testing.assert_close(loss.detach(), expected, rtol=0, atol=1e-10)
    assert expected > 0.1 and model.training


def test_gradients_reach_only_the_views_and_the_first_layer():
    experiment, cross_view = build([task_data()], sentences(12), network=NETWORK.replace(use_char_cnn=True))
    model = experiment.build(0).train()
    (batch,) = next(cross_view.batches(0))
    cross_view.compute_losses(model, batch)[CROSS_VIEW].backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert not [name for name in with_gradient if name.startswith(("heads.tag", "trunk.encoder.layers.1"))]
    prefixes = ("trunk.features.", "trunk.encoder.layers.0.", f"heads.{CROSS_VIEW}.")
    assert with_gradient == {name for name, _ in model.named_parameters() if name.startswith(prefixes)}


def test_targets_are_predicted_without_dropout_and_learned_with_it(monkeypatch):
    network = NETWORK.replace(dropout=0.5)
    experiment, cross_view = build([task_data()], sentences(12), network=network, unlabeled_dropout=0.25)
    model = experiment.build(0).train()
    (batch,) = next(cross_view.batches(0))
    targets, states, rates = [], [], set()
    loss_fn = model.loss

    def record(*arguments):
        states.append(arguments[1])
        targets.append(arguments[4])
        rates.update(layer.p for layer in model.modules() if isinstance(layer, torch.nn.Dropout))
        return loss_fn(*arguments)

    monkeypatch.setattr(model, "loss", record)
    for _ in range(2):
        cross_view.compute_losses(model, batch)
    assert torch.equal(*targets) and not torch.equal(*states) and not targets[0].requires_grad
    hidden = model.eval().trunk(batch.inputs).hidden
    torch.testing.assert_close(targets[0], model.predict("tag", hidden, batch.inputs.layout).log_softmax(-1))
    assert rates == {0.25} and model.trunk.dropout.p == 0.5


def test_loss_does_not_depend_on_the_batch():
    """Law 1 and law 3: the loss and its gradient are sums over sentences, in any micro-batches."""
    gradients, losses = [], []
    for max_tokens in (1000, 7, 1):
        experiment, cross_view = build([task_data("crf")], sentences(9, 3), micro_batch_tokens=max_tokens)
        model = experiment.build(0).double().train()
        batches = [next(cross_view.batches(0)), next(cross_view.batches(0, 1))]
        total = sum(cross_view.compute_losses(model, batch)[CROSS_VIEW] for step in batches for batch in step)
        total.backward()
        losses.append(total.detach())
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        assert sum(batch.counts()[CROSS_VIEW] for step in batches for batch in step) == sum(map(len, sentences(9, 3)))
    assert len(batches[0]) == 8
    for other in (1, 2):
        torch.testing.assert_close(losses[other], losses[0], rtol=0, atol=1e-10)
        torch.testing.assert_close(gradients[other], gradients[0], rtol=0, atol=1e-10)


def test_every_epoch_reads_all_sentences_in_another_order():
    text = UnlabeledText.from_sentences(sentences(50))
    epochs = [np.concatenate([text.sample(8, 0, 7 * epoch + step) for step in range(7)]) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert text.sample(8, 0, 3).tolist() != text.sample(8, 1, 3).tolist()


def test_labeled_and_unlabeled_steps_alternate_and_continue_anywhere():
    data = [task_data(name="a"), task_data(name="b", tags="XY")]
    experiment, _ = build(data, sentences(30), epochs=2.0)
    total = experiment.config.total_steps(experiment.num_examples)
    assert total == 2 * 2 * 2 * 3  # two epochs of three batches of two tasks, and as many unlabeled ones
    steps = [batches for batches, _ in experiment.batches(0, total)]
    assert [tuple(batches[0].targets) == (CROSS_VIEW,) for batches in steps] == [False, True] * (total // 2)
    for num_done in (1, 2, 7, 8):
        rest = [batches for batches, _ in experiment.batches(0, total, num_done)]
        assert len(rest) == total - num_done
        for old, new in zip(steps[num_done:], rest):
            assert all(map(torch.equal, tree_leaves(old[0].inputs), tree_leaves(new[0].inputs)))


def several_tasks(out, text_seed=5):
    """Two tasks and two seeds with dropout."""
    text = sentences(40, text_seed)
    data = [task_data("crf", "a"), task_data(name="b", tags="XY")]
    inputs = FeatureInputs(unlabeled=UnlabeledText.from_sentences(text))
    return train_on_features(inputs, data, out, config(network=NETWORK.replace(dropout=0.3)), RunOptions(2))


def test_killed_run_ends_with_the_same_bytes(tmp_path, monkeypatch):
    freeze_times(monkeypatch)
    several_tasks(tmp_path / "whole")
    assert run_with_kills(partial(several_tasks, tmp_path / "run"), growth=16) > 2
    assert folder_bytes(tmp_path / "whole") == folder_bytes(tmp_path / "run")


@pytest.mark.parametrize("num_steps", [3, 4])
def test_training_continues_from_a_checkpoint_of_either_kind_of_step(num_steps):
    experiment, _ = build([task_data()], sentences(30), network=NETWORK.replace(dropout=0.3))
    whole, first, second = (SeedTraining(experiment, 0) for _ in range(3))
    list(whole.steps())
    with closing(first.steps()) as steps:
        list(itertools.islice(steps, num_steps))
    second.restore(first.checkpoint())
    list(second.steps())
    assert second.step == whole.step == 6
    for a, b in zip(whole.model.state_dict().values(), second.model.state_dict().values()):
        assert torch.equal(a, b)


def test_unfinished_run_with_other_text_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "evaluate_seed", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(runner, "SAVE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        several_tasks(tmp_path / "run")
    with pytest.raises(ConfigError, match="other settings: unlabeled was"):
        several_tasks(tmp_path / "run", 6)


def test_several_tasks_are_learned_and_loaded(tmp_path):
    data = {name: {"train": tagged(60, 1, tags), "dev": tagged(20, 2, tags)} for name, tags in zip("ab", ("AB", "XY"))}
    files = {split: {name: each[split] for name, each in data.items()} for split in ("train", "dev")}
    tasks = {"a": "tagging", "b": "tagging"}
    settings = {"epochs": 15.0, "lr": 1e-2, "dropout": 0.1, "lstm_dim": 16}
    run = polyseme.finetune(None, tasks, **files, out=tmp_path / "run", cross_view=sentences(200, 7), **settings)
    assert min(run.mean.values()) > 0.95
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [CROSS_VIEW in row["loss"] for row in log] == [False, True] * (len(log) // 2)
    model = polyseme.load(run.model, task="b")
    assert model.predict(("bear", "cat", "wolf")).tags == ("X", "Y", "O")
    assert [*model.model.heads] == ["tag"]
    saved = json.loads((run.model / "polyseme.json").read_text())["config"]["heads"]
    assert sorted(saved) == ["tag@a", "tag@b"]
    assert polyseme.evaluate(run.model, tagged(20, 3), task="a").metrics["accuracy"] > 0.9
    with pytest.raises(PolysemeError, match="a, b: choose one"):
        polyseme.load(run.model).predict(["cat"])
    with pytest.raises(DataError, match="no task 'c'"):
        polyseme.load(run.model, task="c")
    assert polyseme.verify(run.model)


def test_text_is_split_into_sentences_and_words(tmp_path):
    (tmp_path / "a.txt").write_text("Anna doesn't sing. It's Bob's well-known song!\n\nWe saw 3 of them")
    text = UnlabeledText.read([tmp_path / "a.txt"])
    parts = np.split(np.array(text.words)[text.word_ids], text.offsets[1:-1])
    assert [" ".join(part) for part in parts] == [
        "Anna does n't sing .",
        "It 's Bob 's well - known song !",
        "We saw 3 of them",
    ]
    assert UnlabeledText.from_sentences([["a"] * 300]).offsets.tolist() == [0, MAX_SENTENCE_WORDS]
    assert UnlabeledText.read([["a", "b"], [], ("c",)]).offsets.tolist() == [0, 2, 3]
    assert UnlabeledText.read([["a", "b"]]).hash != UnlabeledText.read([["a"], ["b"]]).hash


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cross_view": [["a"], "b c"]}, "'b c': pass files, or sentences as lists of words"),
        ({"cross_view": []}, "no sentence"),
        ({"cross_view": [["a"]], "network": "linear"}, "'linear', expected bilstm"),
        ({"cross_view": [["a"]], "features": "mini"}, "mini sees all of it, so leave the model out"),
        ({"cross_view": [["a"]], "model": "mini"}, "mini sees all of it, so leave the model out"),
        ({"network": "bilstm", "unlabeled_weight": 2.0}, "unlabeled_weight"),
        ({"cross_view": [["a"]], "unlabeled_batch_size": 0}, "unlabeled_batch_size is 0"),
    ],
)
def test_bad_calls(options, message, tmp_path):
    model = options.pop("model", None) if "model" in options else None
    with pytest.raises(PolysemeError, match=message):
        polyseme.finetune(model, "tagging", train=tagged(8), dev=tagged(4), out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_other_tasks_are_rejected(tmp_path):
    examples = [TextExample(f"d:{i}", "a cat", label="yn"[i % 2]) for i in range(8)]
    data = replace(task_data(), task=ClassificationTask(), train=examples, dev=examples)
    with pytest.raises(UnsupportedError, match="for tagging, and classification does not tag"):
        build([data], sentences(4))


def test_command_line(tmp_path):
    (tmp_path / "text.txt").write_text("A cat sat. A dog ran.\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    for name, count in (("train", 16), ("dev", 4)):
        rows = "\n".join("".join(f"{w}\t{t}\n" for w, t in zip(e.words, e.tags)) for e in tagged(count))
        (tmp_path / f"{name}.conll").write_text(rows)
    files = ["--task", "tagging", "--train", tmp_path / "train.conll", "--dev", tmp_path / "dev.conll"]
    small = ["--out", tmp_path / "run", "--set", "steps=2", "--set", "lstm_dim=4"]
    bad = cli("finetune", *files, *small, "--cross-view", tmp_path / "empty.txt")
    assert (
        bad.status == 2
        and "has no sentence" in bad.err
        and bad.err.count("\n") == 1
        and not (tmp_path / "run").exists()
    )
    done = cli("finetune", *files, *small, "--cross-view", tmp_path / "text.txt")
    assert done.status == 0 and "words alone" in done.out
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results["unlabeled"] == {"sentences": 2, "words": 8} and results["features"]["num_layers"] == 2
