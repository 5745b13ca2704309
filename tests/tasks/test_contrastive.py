"""Contrastive learning: the loss by its formula, exact gradients in parts, the choice of positives, whole runs."""

import csv
import json
import math

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import ConfigError, DataError
from polyseme.families import FAMILIES
from polyseme.nn.heads.embedding import EmbeddingHeadConfig
from polyseme.objectives.batch import NO_EXTRA
from polyseme.objectives.losses import compute_losses
from polyseme.tasks.contrastive import ContrastiveTask, TripletExample
from polyseme.tasks.metrics.retrieval import alignment, rank_positives, retrieval_metrics, uniformity
from polyseme.weights.folder import load_model

ANIMALS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare"]
TEXTS = [f"the {name} sat" for name in ANIMALS]
PAIRS = [(f"the {name} sat", f"a {name} ran") for name in ANIMALS]


def formula(vectors, labels, temperature):
    """Return the loss written as loops: equal texts are not negatives of each other."""
    total = 0.0
    for i, row in enumerate(labels):
        logits = {}
        for j, other in enumerate(labels):
            for column in range(1, len(other)):
                is_negative = other[column] not in (-1, row[0], row[1]) and not (column == 1 and other[0] == row[0])
                if (i, 1) == (j, column) or is_negative:
                    logits[j, column] = float(vectors[i, 0] @ vectors[j, column]) / temperature
        total += math.log(sum(map(math.exp, logits.values()))) - logits[i, 1]
    return total


@pytest.mark.parametrize("labels", [
    [[0, 1], [2, 3], [4, 5]],
    [[0, 1], [2, 1], [0, 5]],  # equal positives, equal texts
    [[0, 0], [1, 1], [0, 0]],  # the same text read twice
    [[0, 1, 2], [3, 4, -1], [5, 6, 1]],  # hard negatives, of which one is missing and one is another's positive
    [[0, 1, 0], [3, 0, 4], [5, 6, 5]],
])  # fmt: skip
def test_loss_is_cross_entropy_over_texts_that_differ(labels):
    head = EmbeddingHeadConfig(temperature=0.2).build(4)
    torch.manual_seed(0)
    table = torch.nn.functional.normalize(torch.randn(8, 4, dtype=torch.float64), dim=-1)
    vectors = table[torch.tensor(labels).clamp(min=0)]
    loss = head.loss(vectors, None, torch.tensor(labels))
    assert float(loss) == pytest.approx(formula(vectors, labels, 0.2), abs=1e-12)


def examples(texts):
    return [ContrastiveTask.from_value(text, f"e:{i}") for i, text in enumerate(texts)]


@pytest.mark.parametrize("family", ["bert", "xlnet", "t5", "elmo"])
def test_gradient_in_parts_equals_that_of_one_batch(tiny_folders, family):
    folder = load_model(tiny_folders[family])
    task = ContrastiveTask(positives="pairs")
    heads = task.heads(FAMILIES[family], folder.model.config.trunk)
    model = load_model(tiny_folders[family], heads=heads).model.double().eval()
    triplets = examples([*PAIRS, ("the cat sat on the big dog", "a cat", "the wolf sat"), PAIRS[0]])
    encoded = list(task.encode(triplets, folder.tokenizer, 40))
    (whole,), (parts,) = task.collate_step(encoded, 10_000), task.collate_step(encoded, 20)
    assert whole.extra is NO_EXTRA
    assert parts.extra.max_tokens == 20
    assert len(list(parts.inputs.split(20))) > 3
    gradients = []
    for batch in (whole, parts):
        model.zero_grad()
        loss = compute_losses(model, batch.for_trunk(model.config.trunk))[task.head_name]
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert len(gradients[0]) == len(gradients[1]) > 3
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_dropout_is_the_same_when_parts_are_recomputed(tiny_folders):
    task, folder = ContrastiveTask(positives="dropout"), load_model(tiny_folders["bert"])
    heads = task.heads(FAMILIES["bert"], folder.model.config.trunk)
    model = load_model(tiny_folders["bert"], heads=heads).model.train()
    (batch,) = task.collate_step(list(task.encode(examples(TEXTS), folder.tokenizer, 40)), 20)
    gradients = []
    for run_trunk in (
        lambda: batch.forward(model).hidden,
        lambda: torch.cat([model.trunk(part).hidden for part in batch.inputs.split(20)]),
    ):
        model.zero_grad()
        torch.manual_seed(0)
        targets = batch.targets["embed"]
        model.loss("embed", run_trunk(), batch.inputs.layout, targets.rows, targets.labels).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients):
        assert torch.equal(one, other)


def test_positives_are_chosen_by_the_training_examples():
    labeled = [TripletExample(f"e:{i}", *pair, label=str(i)) for i, pair in enumerate(PAIRS)]
    assert ContrastiveTask().fit(examples(PAIRS)).positives == "pairs"
    unsupervised = ContrastiveTask().fit(examples([*TEXTS, TEXTS[0]]))
    assert unsupervised.positives == "dropout"
    assert [e.text for e in unsupervised.training_examples(examples([*TEXTS, TEXTS[0]]))] == TEXTS
    assert len(ContrastiveTask(positives="dropout").training_examples(examples(PAIRS))) == 2 * len(PAIRS)
    assert len(ContrastiveTask(min_score=5).training_examples(labeled)) == 3
    assert [e.label for e in ContrastiveTask(positive_label="2", positives="pairs").training_examples(labeled)] == ["2"]
    with pytest.raises(DataError, match="label '0': positive_label or min_score"):
        ContrastiveTask().fit(labeled)
    with pytest.raises(DataError, match="1 of 9 training examples have no pair, the first at e:8"):
        ContrastiveTask().fit(examples([*PAIRS, "a text"]))
    with pytest.raises(ConfigError, match="temperature is 0"):
        ContrastiveTask(temperature=0.0).fit(examples(PAIRS))
    with pytest.raises(DataError, match="0 positive pairs"):
        ContrastiveTask(min_score=100).fit(labeled)
    with pytest.raises(DataError, match="no pair"):
        ContrastiveTask(positives="pairs").fit(examples(TEXTS))


def test_model_must_fit_the_settings():
    bert, xlnet = FAMILIES["bert"], FAMILIES["xlnet"]
    trunk = bert.model_config(num_layers=1, dim=8, num_heads=1, vocab_size=20, max_len=8, dropout=0.0,
                              attention_dropout=0.0).trunk  # fmt: skip
    with pytest.raises(ConfigError, match="the model has none"):
        ContrastiveTask(positives="dropout").heads(bert, trunk)
    with pytest.raises(ConfigError, match="xlnet do not start with it"):
        ContrastiveTask(pooling="cls").heads(xlnet, trunk)


def test_retrieval_metrics():
    queries = np.array([[1.0, 0], [0, 1], [0.6, 0.8]])
    texts = np.array([[1.0, 0], [0.8, 0.6], [1, 0]])
    assert rank_positives(queries, texts, ["a", "b", "a"]).tolist() == [1, 1, 2]
    assert rank_positives(queries, texts, ["a", "b", "c"]).tolist() == [2, 1, 3]  # a tie counts against it
    assert retrieval_metrics(np.array([1, 2, 20])) == {
        "mrr": pytest.approx((1 + 0.5 + 0.05) / 3), "recall@1": pytest.approx(1 / 3), "recall@10": pytest.approx(2 / 3)
    }  # fmt: skip
    assert alignment(np.stack([queries[:1], texts[1:2]])) == pytest.approx(0.04 + 0.36)
    corners = np.array([[[1.0, 0], [0, 1]], [[-1, 0], [0, -1]]])
    expected = (4 * math.exp(-4) + 2 * math.exp(-8)) / 6
    assert uniformity(corners) == pytest.approx(math.log(expected))


def write_csv(path, header, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


SCORED = [(a, b, 5.0 if i == j else 0.0) for i, (a, _) in enumerate(PAIRS) for j, (_, b) in enumerate(PAIRS)]


def test_run_improves_the_vectors_and_other_tools_open_them(tmp_path, tiny_folders, run_cli):
    train = write_csv(
        tmp_path / "train.csv", ["text", "pair", "negative"], [(*p, TEXTS[i - 1]) for i, p in enumerate(PAIRS)]
    )
    dev = write_csv(tmp_path / "dev.csv", ["text", "pair", "label"], SCORED)
    output = run_cli(
        "finetune", tiny_folders["bert"], "--task", "contrastive", "--train", train, "--dev", dev, "--out",
        tmp_path / "run", "--set", "steps=12", "--set", "optimizer.lr=3e-3", "--set", "micro_batch_tokens=40",
    )  # fmt: skip
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert set(results["before"]) == {"spearman", "pearson", "alignment", "uniformity"}
    assert results["after"] == results["mean"]
    assert results["after"]["spearman"] > results["before"]["spearman"] + 0.1
    assert "before training" in output
    model = polyseme.load(tmp_path / "run/model")
    vectors = model.embed(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    prediction = model.predict(PAIRS[0])
    assert prediction.value == pytest.approx(float(vectors[0] @ model.embed(PAIRS[0][1])), abs=1e-5)


def test_texts_without_pairs_are_learned_with_dropout(tmp_path, tiny_folders):
    run = polyseme.finetune(
        tiny_folders["bert"], ContrastiveTask(pooling="cls"), train=TEXTS, dev=PAIRS, out=tmp_path / "run", steps=2
    )
    assert run.primary_metric == "mrr"
    assert ContrastiveTask().fit_model(run.model).pooling == "cls"
    assert ContrastiveTask().fit_model(tiny_folders["bert"]).pooling == "mean"
    assert run.details["positives"] == "dropout"
    token_vectors = polyseme.load(run.model).embed(TEXTS[0], granularity="token")[0]
    first = token_vectors / np.linalg.norm(token_vectors)
    np.testing.assert_allclose(polyseme.load(run.model).embed(TEXTS[0]), first, atol=1e-6)


def test_dev_examples_are_pairs(tmp_path, tiny_folders):
    def run(dev):
        polyseme.finetune(tiny_folders["bert"], "contrastive", train=TEXTS, dev=dev, out=tmp_path / "run", steps=1)

    with pytest.raises(DataError, match="dev examples are pairs"):
        run(TEXTS)
    some = [{"text": "a", "pair": "b", "label": "1"}, {"text": "a", "pair": "b"}]
    with pytest.raises(DataError, match="1 of 2 dev pairs have no score"):
        run(some)
    assert not (tmp_path / "run").exists()
