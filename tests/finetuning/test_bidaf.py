"""Extractive question answering over frozen features: the equations of BiDAF, windows of words, training."""

import json
import random

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FeatureNetworkSettings
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.frozen import (
    FEATURE_DEFAULTS,
    FeatureInputs,
    build_model_config,
    train_on_features,
)
from polyseme.inference.feature_extraction import FeatureEncoder
from polyseme.inference.feature_model import FeatureModel, FeatureReader
from polyseme.inference.prediction import score_encoded
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.feature_network import ESIM, BiDAF, attention_flow
from polyseme.objectives.losses import compute_losses
from polyseme.tasks.classification import PairClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask, QuestionExample
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model

ANIMALS, COLOURS = ["cat", "dog", "fish", "bird", "wolf"], ["red", "blue", "green", "grey"]
SMALL = FeatureNetworkSettings(lstm_dim=16, word_dim=16, dropout=0.0, use_char_cnn=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    words = [*ANIMALS, *COLOURS, "so it is .", "which animal colour"]
    tokenizer = Tokenizer.train("wordpiece", iter([" ".join(words), *words] * 30), 200)
    path = tmp_path_factory.mktemp("bert")
    spec = FAMILIES["bert"].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=24)
    save_model(path, spec.build(0), tokenizer)
    return path


def questions(n, seed=0, none=0.0, more=16):
    draw, found = random.Random(seed), []
    for i in range(n):
        words = draw.choices(["so", "it", "is,", "(is)"], k=draw.randint(4, 4 + more))
        asked = draw.choice(["animal", "colour"])
        there = {"animal": draw.choice(ANIMALS), "colour": draw.choice(COLOURS)}
        if draw.random() < none:
            del there[asked]
        for word in there.values():
            words.insert(draw.randint(0, len(words)), word)
        context, right = "  ".join(words), there.get(asked)
        given = ((right, sum(len(w) + 2 for w in words[: words.index(right)])),) if right else ()
        found.append(QuestionExample(f"q{i}", context, f"which {asked}?", answers=given, id=f"id{i}"))
    return found


def test_attention_flow_equals_a_loop():
    sizes, dim = ((3, 1, 5), (2, 4, 1)), 6
    of_h, of_u = (PackedLayout.from_lengths(lengths) for lengths in sizes)
    h, u, w = (torch.randn(n, dim, dtype=torch.float64) for n in (9, 7, 3))
    w = w.flatten()
    found = attention_flow(h, of_h, u, of_u, w).split(sizes[0])
    for context, question, g in zip(h.split(sizes[0]), u.split(sizes[1]), found):
        scores = [[float(w @ torch.cat([a, b, a * b])) for b in question] for a in context]
        looked = torch.tensor([max(row) for row in scores], dtype=torch.float64).softmax(0)
        whole = sum(share * row for share, row in zip(looked, context))
        for t, row in enumerate(context):
            weights = torch.tensor(scores[t], dtype=torch.float64).softmax(0)
            seen = sum(weight * each for weight, each in zip(weights, question))
            torch.testing.assert_close(g[t], torch.cat([row, seen, row * seen, row * whole]), atol=1e-12, rtol=0)


def test_esim_comparison_equals_a_loop():
    """Chen et al. 2017, (11) to (15): attention, difference, product and projection, the input of the BiLSTM."""
    sizes, part = ((3, 1), (2, 4)), ESIM(3, 0.0).double()
    of_a, of_b = (PackedLayout.from_lengths(lengths) for lengths in sizes)
    a, b = torch.randn(4, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64)
    given = []
    part.compose.register_forward_hook(lambda _, args, __: given.append(args[0]))
    part(a, of_a, b, of_b)
    for mine, theirs, of_mine, of_theirs, found in ((a, b, *sizes, given[0]), (b, a, *sizes[::-1], given[1])):
        rows = iter(found)
        for one, other in zip(mine.split(of_mine), theirs.split(of_theirs)):
            for row in one:
                weights = torch.tensor([float(row @ each) for each in other], dtype=torch.float64).softmax(0)
                seen = sum(weight * each for weight, each in zip(weights, other))
                compared = torch.cat([row, seen, row - seen, row * seen])
                expected = (part.project.weight @ compared + part.project.bias).clamp(min=0)
                torch.testing.assert_close(next(rows), expected, atol=1e-12, rtol=0)


def test_bidaf_output():
    """The output is [G; M; M²] for the words of the context."""
    part, (of_h, of_u) = BiDAF(3, 0.0).double(), (PackedLayout.from_lengths([4, 2]), PackedLayout.from_lengths([2, 3]))
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    h, u = torch.randn(6, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    g = attention_flow(h, of_h, u, of_u, part.similarity.weight[0])
    m = part.modeling(g, of_h)
    torch.testing.assert_close(part(h, of_h, u, of_u), torch.cat([g, m, part.end_encoder(m, of_h)], 1))
    assert part(h, of_h, u, of_u).shape == (6, 36)


def model_of(folder, data, name, window=12):
    task = ExtractiveQATask.from_examples(data, doc_stride=5)
    reader = FeatureReader((FeatureEncoder.load(folder),), ("scalar_mix",), {"so": 1}, None, window)
    model = build_model_config([task], reader, SMALL.replace(name=name, join_at="both")).build(3).double()
    (encoded,) = reader.encode(task, (data,), use_labels=True)
    return model, task, encoded


@pytest.mark.parametrize("name", ["bidaf", "bilstm"])
def test_batch_equals_single_examples(folder, name):
    data = questions(8, 1, 0.3, 30)
    model, task, encoded = model_of(folder, data, name)
    if name == "bidaf":
        torch.nn.init.normal_(model.trunk.pair_network.no_answer)
    assert len(encoded) > 8
    total = 0.0
    for one, (scores, _) in zip(encoded, score_encoded(model, task, encoded, max_batch_tokens=60)):
        np.testing.assert_allclose(score_encoded(model, task, [one])[0][0], scores, atol=1e-10)
        rivals = torch.from_numpy(scores[one.candidate_positions])
        places = [one.candidate_positions.tolist().index(row) for row in one.target]
        total -= sum(float(rivals[:, i].log_softmax(0)[at]) for i, at in enumerate(places)) / 2
    batch = task.collate(encoded)[0]
    assert float(compute_losses(model, batch)["span"].detach()) == pytest.approx(total, abs=1e-4)
    assert batch.targets["span"].count == len(encoded)


def test_windows_of_words_map_back_to_characters(folder):
    data = questions(20, 2, 0.2, 60)
    task = ExtractiveQATask.from_examples(data, doc_stride=5)
    reader = FeatureReader((), (), {}, None, 12)
    (encoded,) = reader.encode(task, (data,), use_labels=True)
    store = encoded[0].features
    spelled = dict.fromkeys(e.example_index for e in encoded)
    for window in encoded:
        example, n = data[window.example_index], len(window.positions)
        assert n <= 12 and window.null_position == n and window.segments.tolist() == [0] * n + [1] * 3
        assert window.ids[n:].tolist() == list(range(window.ids[n], window.ids[n] + 3))
        words = [example.context[a:b] for a, b in window.offsets]
        assert all(word.strip() == word and word for word in words)
        if window.target[0] != window.null_position:
            first, last = window.target
            assert example.context[window.offsets[first, 0] : window.offsets[last, 1]] == example.answers[0][0]
            spelled[window.example_index] = True
    assert [bool(found) for found in spelled.values()] == [bool(e.answers) for e in data]
    assert len(store.word_ids) < sum(len(e.ids) for e in encoded), "windows share the places of their words"
    same = [QuestionExample("a", data[0].context, "which animal?", answers=()), data[0]]
    (both,) = reader.encode(task, (same,), use_labels=True)
    assert both[0].ids[0] == both[-1].ids[0] or len(both) > 2


@pytest.mark.parametrize("source", ["bert", pytest.param("none", marks=pytest.mark.slow)])
def test_learns_and_round_trips(folder, tmp_path, source, run_cli):
    data = questions(200, 3, 0.25, 8)
    settings = FEATURE_DEFAULTS.replace(epochs=11.0, network=SMALL, max_len=14).with_override("optimizer.lr", "1e-2")
    given = [folder] if source == "bert" else []
    found = train_on_features(
        FeatureInputs(given),
        TaskData(ExtractiveQATask(doc_stride=7), data[:160], data[160:]),
        tmp_path / "run",
        settings,
    )
    assert found["mean"]["f1"] > 0.95 and found["bad_offsets"] == {"train": (0, 0), "dev": (0, 0)}
    opened = FeatureModel.load(tmp_path / "run/model")
    assert opened.model.config.trunk.network == "bidaf" and opened.task.null_score_diff_threshold is not None
    assert opened.evaluate(data[160:])["f1"] == pytest.approx(found["mean"]["f1"])
    long = "so  it is, " * 400
    (said,) = opened.predict([QuestionExample("x", f"{long}(wolf) {long}", "which animal?", id="x")])
    assert (said.start, said.end) == (len(long) + 1, len(long) + 5)
    asked = {"context": "so it is, (is) green so it", "qas": [{"id": "7", "question": "which colour?"}]}
    (tmp_path / "q.json").write_text(json.dumps({"data": [{"paragraphs": [asked]}]}))
    run_cli("predict", tmp_path / "run/model", "--data", tmp_path / "q.json", "--out", tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == {"7": "green"}
    (tmp_path / "c.txt").write_text(asked["context"])
    assert run_cli("ask", tmp_path / "run/model", "which colour?", "--context", tmp_path / "c.txt").startswith(
        "green\n"
    )


def test_errors(folder):
    data = questions(4)
    wrong = [QuestionExample("q9", "so it is", "which colour?", answers=(("blue", 1),))]
    for name, says in (("linear", "linear does not fit extractive_qa"), ("esim", "esim does not fit extractive_qa")):
        with pytest.raises(PolysemeError, match=says):
            train_on_features(
                FeatureInputs([folder]),
                TaskData(ExtractiveQATask(), data, data),
                None,
                FEATURE_DEFAULTS.replace(network=SMALL.replace(name=name)),
            )
    with pytest.raises(PolysemeError, match="bidaf does not fit pair_classification"):
        pairs = [TextExample(f"{i}", "a b", "c", label="xy"[i % 2]) for i in range(4)]
        train_on_features(
            FeatureInputs([folder]),
            TaskData(PairClassificationTask(), pairs, pairs),
            None,
            FEATURE_DEFAULTS.replace(network=SMALL.replace(name="bidaf")),
        )
    settings = FEATURE_DEFAULTS.replace(steps=1, network=SMALL)
    found = train_on_features(FeatureInputs([folder]), TaskData(ExtractiveQATask(), data + wrong, data), None, settings)
    assert found["bad_offsets"]["train"] == (1, 1) and found["train_examples"] == 4
    with pytest.raises(PolysemeError, match="there is no label"):
        train_on_features(
            FeatureInputs([folder]),
            TaskData(ExtractiveQATask(), data, [QuestionExample("q", "so it", "which?")]),
            None,
            settings,
        )


def test_command(tmp_path, run_cli):
    paragraphs = [
        {"context": e.context, "qas": [{"id": e.id, "question": e.question, "is_impossible": not e.answers,
                                     "answers": [{"text": t, "answer_start": at} for t, at in e.answers]}]}
        for e in questions(12, 6, 0.5)
    ]  # fmt: skip
    (tmp_path / "q.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    files = ("--train", tmp_path / "q.json", "--dev", tmp_path / "q.json", "--set", "steps=2")
    for name in ("auto", "bilstm"):
        given = ("finetune", "--features", "none", "--network", name, "--task", "extractive_qa", *files)
        said = run_cli(*given, "--out", tmp_path / name, "--set", "network.lstm_dim=8", "--set", "max_len=10")
        assert ("over features" in said or "words alone" in said) and "has_answer_f1" in said
        said = run_cli("evaluate", tmp_path / name / "model", "--data", tmp_path / "q.json")
        assert said.startswith("12 examples, ") and "\nexact: " in said
