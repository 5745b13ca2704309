"""Extractive question answering: windows and offsets, best span, threshold, and models that learn the task."""

import json
import random
import tracemalloc

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import PolysemeError
from polyseme.evaluation.predict import evaluate
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.inference.prediction import predict, predict_encoded
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.packing import pad_to_bucket
from polyseme.tasks import load_task
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.extractive_qa import ExtractiveQATask, QuestionExample, SpanAnswer, find_best_threshold
from polyseme.tasks.windows import best_span
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model
from tests.support.cases import supported_args
from tests.support.tasks import baseline_metrics, compute_logits

ANIMALS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare"]
COLOURS = ["red", "blue", "green", "grey"]
SPAN = ExtractiveQATask()
TOKENIZERS = {family.name: family.tokenizer.replace("events", "bpe") for family in FAMILIES.values()}


@pytest.fixture(scope="module")
def tokenizers():
    words = [*ANIMALS, *COLOURS, "so it is .", "which animal colour"]
    tokenizers_by_kind = {}
    for kind in sorted(set(TOKENIZERS.values())):
        more = ["question: context:"] if kind == "unigram" else []  # written by T5
        texts = iter([" ".join(words), *words, *more] * 30)
        tokenizers_by_kind[kind] = Tokenizer.train(kind, texts, 120 if kind.startswith("unigram") else 300)
    return tokenizers_by_kind


def questions(n, seed=0, none=0.0, more=24):
    draw, examples = random.Random(seed), []
    for i in range(n):
        words = draw.choices(["so", "it", "is", "."], k=draw.randint(4, 4 + more))
        asked = draw.choice(["animal", "colour"])
        there = {"animal": draw.choice(ANIMALS), "colour": draw.choice(COLOURS)}
        if draw.random() < none:
            del there[asked]
        for word in there.values():
            words.insert(draw.randint(0, len(words)), word)
        right = there.get(asked)
        context = " ".join(words)
        answers = ((right, sum(len(w) + 1 for w in words[: words.index(right)])),) if right else ()
        examples.append(QuestionExample(f"q{i}", context, f"which {asked}", answers=answers, id=f"id{i}"))
    return examples


def build_folder(family, tokenizers, path):
    tokenizer = tokenizers[TOKENIZERS[family]].with_cls_position(FAMILIES[family].cls_position)
    spec = FAMILIES[family].model_config(
        num_layers=2, dim=32, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=40, dropout=0.0,
        attention_dropout=0.0, **({"init_std": 0.1} if family == "bert" else {}),
    )  # fmt: skip
    save_model(path, spec.build(0), tokenizer)
    return path


def target_text(window, example):
    """Return the text of a window's target."""
    first, last = (int(np.flatnonzero(window.positions == row)[0]) for row in window.target)
    return example.context[window.offsets[first, 0] : window.offsets[last, 1]]


@pytest.mark.parametrize("kind", sorted(set(TOKENIZERS.values())))
def test_windows_cover_the_context_with_correct_offsets(tokenizers, kind):
    draw, sizes = random.Random(kind), [24, 32, 40] if kind != "characters" else [48, 64, 80]
    for example in questions(30, 1, 0.2, 80):
        task = ExtractiveQATask(doc_stride=draw.choice([3, 9, 128]))
        encoded = list(task.encode([example], tokenizers[kind], draw.choice(sizes)))
        assert max(len(w.ids) for w in encoded) <= sizes[-1] and all(
            w.example_index == 0 and not w.is_truncated for w in encoded
        )
        ids = tokenizers[kind].encode(example.context)
        seen = set()
        for window in encoded:
            assert len(window.positions) == len(window.offsets)
            place = next(
                i
                for i in range(len(ids))
                if ids[i : i + len(window.positions)] == window.ids[window.positions].tolist()
            )
            seen |= set(range(place, place + len(window.positions)))
        assert seen == set(range(len(ids))), "every token of the context is in a window"
        held = [w for w in encoded if w.target[0] != w.null_position]
        assert bool(held) == bool(example.answers)
        assert all(target_text(w, example).strip() == example.answers[0][0] for w in held)


def test_answer_across_a_window_edge_is_found(tokenizers):
    tokenizer = tokenizers["wordpiece"]
    words = ["so", "it"] * 60
    for at in range(0, 110):
        text = " ".join([*words[:at], "red", "cat", "blue", "dog", *words[at:]])
        example = QuestionExample("e", text, "which animal", answers=(("red cat blue dog", text.index("red")),))
        encoded = list(SPAN.encode([example], tokenizer, 24))
        whole = [w for w in encoded if w.target[0] != w.null_position]
        assert whole and all(target_text(w, example) == "red cat blue dog" for w in whole)
        scores = []
        for window in encoded:
            window_scores = np.zeros((len(window.ids), 2))
            if window.target[0] != window.null_position:
                window_scores[window.target[0], 0] = window_scores[window.target[1], 1] = 5
            scores.append(window_scores)
        (answer,) = SPAN.merge_windows([(0, best_span(w, s, 30)) for w, s in zip(encoded, scores)], [example])
        assert answer.text == text[answer.start : answer.end] == "red cat blue dog"


def test_best_span_by_hand():
    """Five context tokens after a question, offsets with gaps; an answer has at most two tokens."""
    offsets = np.array([[0, 2], [3, 6], [6, 7], [8, 10], [11, 14]])
    window = EncodedExample(np.zeros(9, int), np.zeros(9, int), np.arange(3, 8), None, offsets=offsets, null_position=0)
    scores = np.zeros((9, 2))
    scores[3, 0], scores[7, 1] = 9, 9  # too far apart
    scores[2] = scores[8] = 50  # no part of the context
    scores[4, 0], scores[5, 1] = 4, 3
    scores[6, 0], scores[4, 1] = 8, 8  # ends before it starts
    example = QuestionExample("e", "ab cde,fg hij.", "?")
    (prediction,) = SPAN.merge_windows([(0, best_span(window, scores, 2))], [example])
    # 9 alone (token 3) and 9 (token 7) tie with the pair 8+9 = tokens 6 and 7
    assert (prediction.text, prediction.start, prediction.end) == ("fg hij", 8, 14) or prediction.text == "ab cde"
    values = {(i, j): scores[3 + i, 0] + scores[3 + j, 1] for i in range(5) for j in range(i, min(i + 2, 5))}
    best = max(values, key=values.get)
    assert (prediction.start, prediction.end) == (offsets[best[0], 0], offsets[best[1], 1])
    assert prediction.null_score_diff == pytest.approx(-values[best])
    share = np.exp(scores[3 + best[0], 0] + scores[3 + best[1], 1]) / np.exp(scores).sum(0).prod()
    assert prediction.probability == pytest.approx(share)
    (none,) = SPAN.replace(null_score_diff_threshold=-100.0).merge_windows(
        [(0, best_span(window, scores, 2))], [example]
    )
    assert none.text == "" and none.null_score_diff == prediction.null_score_diff


def test_best_threshold_is_optimal():
    draw = random.Random(0)
    for _ in range(60):
        texts = ["a cat sat", "a dog ran"]
        examples = [
            QuestionExample("", draw.choice(texts), "?", answers=draw.choice([(), (("cat sat", 2),), (("dog", 2),)]))
            for _ in range(draw.randint(1, 9))
        ]
        answers = [
            SpanAnswer("", 2, draw.choice([5, 9]), 0.5, draw.choice([-2.0, -1.0, 0.5, 0.5, 3.0])) for _ in examples
        ]

        def f1(threshold, examples=examples, answers=answers):
            from polyseme.tasks.metrics.standard import squad_scores

            texts_above = [
                "" if a.null_score_diff > threshold else e.context[a.start : a.end] for e, a in zip(examples, answers)
            ]
            return squad_scores([e.gold for e in examples] + [()], [*texts_above, ""])[1].sum()

        best = find_best_threshold(
            [*examples, QuestionExample("", "x", "?", answers=())], [*answers, SpanAnswer("", 0, 1, 0.5, 9e9)]
        )
        assert f1(best) == pytest.approx(max(f1(t) for t in (-9, -1.5, -0.5, 0.7, 9)))


def test_loss_is_cross_entropy_for_any_micro_batches(tokenizers):
    tokenizer = tokenizers["wordpiece"]
    spec = FAMILIES["bert"].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=64)
    head = FAMILIES["bert"].task_head("span", SPAN.output_labels, spec.trunk)
    model = spec.replace(heads={"span": head}).build(0).double().eval()
    encoded = list(SPAN.encode(questions(7, 3, 0.3), tokenizer, 64))
    batch, order = SPAN.collate(encoded)
    assert batch.targets["span"].count == 7 and order == sorted(range(7), key=lambda i: len(encoded[i].ids))
    expected = 0.0
    for one, scores in zip(encoded, compute_logits(model, SPAN, encoded)):
        pair = torch.tensor(scores).T.double()
        expected += torch.nn.functional.cross_entropy(pair, torch.tensor(one.target)).item()  # the mean of the two
    assert compute_losses(model, batch)["span"].item() == pytest.approx(expected, rel=1e-5)
    parts = [
        SPAN.collate(encoded[:3])[0],
        SPAN.collate(encoded[3:])[0],
    ]
    assert sum(compute_losses(model, b)["span"].item() for b in parts) == pytest.approx(expected, rel=1e-5)
    filled = pad_to_bucket(batch, 64)
    assert (
        filled.targets["span"].labels.shape[1] == 2 and filled.inputs.layout.num_tokens > batch.inputs.layout.num_tokens
    )
    assert compute_losses(model, filled)["span"].item() == pytest.approx(expected, rel=1e-5)


CASES = [
    pytest.param(("bert", 0.0), id="bert"),
    pytest.param(("gpt2", 0.3), id="gpt2"),
    pytest.param(("t5", 0.3), id="t5", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=CASES)
def trained(request, tokenizers, tmp_path_factory):
    family, none = request.param
    data = questions(460, 5, none, 10)
    base = build_folder(family, tokenizers, tmp_path_factory.mktemp("base") / "m")
    out = tmp_path_factory.mktemp("run") / "run"
    settings = FinetuneConfig(epochs=7, optimizer=OptimizerConfig(lr=3e-3))
    wrong = QuestionExample("w", "so red", "which colour", answers=(("red", 1),), id="w")
    results = finetune(base, TaskData(ExtractiveQATask(), [*data[:400], wrong], data[400:]), out, settings)
    return family, none, data[400:], out, results


def test_extractive_qa_is_learned(trained):
    _, none, _, out, results = trained
    assert results["mean"]["f1"] > 0.95 and results["primary_metric"] == "f1"
    assert ("no_answer_accuracy" in results["mean"]) == bool(none)
    assert results["train_examples"] == 400 and results["bad_offsets"] == {"train": (1, 1), "dev": (0, 0)}
    threshold = load_model(out / "model").metadata["task"]["null_score_diff_threshold"]
    assert (threshold is None) == (not none)


def test_a_saved_model_gives_the_same_answers(trained, tmp_path):
    _, _, dev, out, results = trained
    folder = load_model(out / "model")
    assert evaluate(folder, dev) == {k: v for k, v in results["seeds"][0].items() if k != "seed"}
    predictions = predict(folder, dev)
    one = polyseme.load(out / "model").answer(dev[3].context, dev[3].question)
    assert one.text == predictions[3].text and one.null_score_diff == pytest.approx(
        predictions[3].null_score_diff, abs=1e-4
    )
    SPAN.write(tmp_path / "p.json", dev, predictions)
    assert json.loads((tmp_path / "p.json").read_text()) == {e.id: p.text for e, p in zip(dev, predictions)}
    assert json.loads((tmp_path / "p.null_odds.json").read_text())[dev[0].id] == predictions[0].null_score_diff
    SPAN.write(tmp_path / "p.jsonl", dev, predictions)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [row["prediction"] for row in rows] == [p.value for p in predictions] and rows[0]["question"] == dev[
        0
    ].question


def test_transformers_loads_the_model(trained):
    transformers = pytest.importorskip("transformers")
    family, _, dev, out, _ = trained
    if family == "t5":
        pytest.skip("its class there has a decoder")
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(out / "model").eval()
    folder = load_model(out / "model")
    encoded = list(SPAN.encode(dev[:5], folder.tokenizer, 40))
    for window, ours in zip(encoded, compute_logits(folder.model, SPAN, encoded)):
        extra = {"token_type_ids": torch.tensor(window.segments)[None]} if family == "bert" else {}
        with torch.no_grad():
            output = theirs(input_ids=torch.tensor(window.ids)[None], **extra)
        expected = torch.stack([output.start_logits[0], output.end_logits[0]], -1)
        np.testing.assert_allclose(ours, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_batched_equals_single_and_folders_round_trip(tokenizers, family, tmp_path):
    tokenizer = tokenizers[TOKENIZERS[family]].with_cls_position(FAMILIES[family].cls_position)
    sizes = {"num_layers": 2, "dim": 16, "num_heads": 2, "max_len": 32}
    spec = FAMILIES[family].model_config(**supported_args(FAMILIES[family], **sizes), vocab_size=tokenizer.vocab_size)
    head = FAMILIES[family].task_head("span", SPAN.output_labels, spec.trunk)
    save_model(tmp_path / "m", spec.replace(heads={"span": head}).build(3), tokenizer, {"task": SPAN.to_json()})
    folder = load_model(tmp_path / "m")
    assert not folder.newly_initialized and load_task(folder.metadata, folder.model.config) == SPAN
    examples = questions(6, 7, 0.2, 60)
    encoded = list(SPAN.encode(examples, folder.tokenizer, 32))
    assert len(encoded) > 6
    together = predict_encoded(folder.model, SPAN, examples, encoded)
    for i, example in enumerate(examples):
        (alone,) = predict_encoded(folder.model, SPAN, [example], SPAN.encode([example], folder.tokenizer, 32))
        assert alone.null_score_diff == pytest.approx(together[i].null_score_diff, abs=1e-5)


def test_memory_does_not_grow_with_the_document(tokenizers):
    """Windows are generated one by one; the tokens of a document are never all in memory."""
    tokenizer = tokenizers["wordpiece"]
    peaks = []
    for words in (20_000, 100_000):
        text = "so it is . " * (words // 4)
        at = len(text)
        example = QuestionExample("e", text + "red fish", "which colour", answers=(("red", at),))
        tracemalloc.start()
        last = None
        for window in SPAN.encode([example], tokenizer, 40):
            last = window
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert target_text(last, example) == "red" and tuple(last.offsets[last.target - last.positions[0]][0]) == (
            at,
            at + 3,
        )
    assert peaks[1] < 1.5 * peaks[0]


def test_baselines_and_errors(tokenizers, trained):
    data = questions(40, 9, 0.2)
    # most questions have an answer of one word, so the baseline always answers with the first word
    first_words = [e.context.split()[0].strip(".") for e in data]
    correct = [word == (e.gold[0] if e.gold else "") for word, e in zip(first_words, data)]
    assert 0 < sum(correct) < 40
    assert baseline_metrics(ExtractiveQATask, "majority", data, data)["f1"] == pytest.approx(sum(correct) / 40)
    context = "the capital of France is Paris today when it was cold"
    seeking = [QuestionExample("", context, "What is the capital of France ?", answers=(("Paris today", 25),))]
    assert (
        baseline_metrics(ExtractiveQATask, "linear", seeking, seeking)["f1"]
        > baseline_metrics(ExtractiveQATask, "majority", seeking, seeking)["f1"]
    )
    with pytest.raises(PolysemeError, match="has no answers"):
        ExtractiveQATask.from_examples([QuestionExample("e", "x", "y", answers=())])
    with pytest.raises(PolysemeError, match="the question has 40 tokens, and 17 are read: truncate"):
        list(SPAN.encode([QuestionExample("e", "so", "so it " * 20)], tokenizers["wordpiece"], 40))
    (cut,) = SPAN.encode([QuestionExample("e", "so", "so it " * 20)], tokenizers["wordpiece"], 40, truncate=True)
    assert cut.is_truncated and cut.target is None
    with pytest.raises(PolysemeError, match="max_len 6 leaves no room"):
        list(SPAN.encode(data, tokenizers["wordpiece"], 6))
    with pytest.raises(PolysemeError, match=r"doc_stride is 0"):
        ExtractiveQATask().with_override("doc_stride", "0")
    model = polyseme.load(trained[3] / "model")
    for bad in (("", "x"), ("x", ""), ("x", 3)):
        with pytest.raises(
            PolysemeError, match=r"^example 1 .*: a context and a question is needed|^expected a question, not int 3"
        ):
            model.answer(*bad)
    with pytest.raises(
        PolysemeError, match=r"predictions of extractive_qa are written as \.json, \.csv, .*, not '\.doc'"
    ):
        SPAN.write(trained[3] / "p.doc", data, predict(model.folder, data))
