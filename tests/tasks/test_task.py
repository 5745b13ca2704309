"""Encoding, batching and decoding of each kind of task."""

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.packing import token_budget_batches
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.objectives.losses import compute_losses
from polyseme.tasks import TASKS, load_task
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from tests.support.cases import supported_args
from tests.support.tasks import compute_logits, to_examples

WORDS = [a + b for a in ("red", "blue", "green", "grey") for b in ("cat", "dog", "fish", "bird", "s", "ish")]
KINDS = {family.name: family.tokenizer.replace("events", "bpe") for family in FAMILIES.values()}


@pytest.fixture(scope="module")
def tokenizers():
    texts = [" ".join(WORDS)] * 20
    kinds = sorted(set(KINDS.values()))
    return {kind: Tokenizer.train(kind, iter(texts), 60 if kind.startswith("unigram") else 300) for kind in kinds}


@pytest.fixture
def wordpiece(tokenizers):
    return tokenizers["wordpiece"]


def text(i, words, label="a", pair=None):
    return TextExample(f"f.tsv:{i}", words, pair, label=label)


SINGLE, TAGS, NUMBER = ClassificationTask(("a", "b")), TaggingTask(("O", "X")), RegressionTask()


def test_labels_of_a_training_set():
    assert ClassificationTask.from_examples([text(1, "x", "b"), text(2, "x", "a"), text(3, "x", "b")]) == SINGLE
    tagged = [TaggingExample("", words=("a", "b", "c"), tags=("X", "Y", "Y"))]
    assert TaggingTask.from_examples(tagged).labels == ("Y", "X")  # the most frequent first
    with pytest.raises(PolysemeError, match=r"has only the label 'a' \(f\.tsv:1 …\): there is nothing to learn"):
        ClassificationTask.from_examples([text(1, "x")])


def test_task_of_a_model():
    trunk = FAMILIES["bert"].trunk_config(1, 8, 1, vocab_size=20)
    spec = FAMILIES["bert"].model_config(num_layers=1, dim=8, num_heads=1, vocab_size=20)
    for name, kind in (("classify", "classification"), ("tag", "tagging")):
        head = FAMILIES["bert"].task_head(name, ("a", "b"), trunk)
        assert load_task({}, spec.replace(heads={name: head}).build().config) == TASKS[kind](("a", "b"))
    assert load_task({}, spec.replace(heads={"classify": ClassificationHeadConfig(())}).build().config) == NUMBER
    model = spec.replace(heads={"classify": ClassificationHeadConfig(("a", "b"))}).build()
    assert (
        load_task({"task": PairClassificationTask(("a", "b")).to_json()}, model.config).task_type
        == "pair_classification"
    )
    with pytest.raises(PolysemeError, match=r"no task head \(its heads: masked, pair\): fine-tune it first"):
        load_task({}, spec.build().config)


def test_texts_and_pairs(wordpiece):
    one, two = SINGLE.encode([text(1, "redcat"), text(2, "redcat", "b", "bluedog")], wordpiece, 64)
    cat, dog = wordpiece.encode("redcat"), wordpiece.encode("bluedog")
    assert one.ids.tolist() == wordpiece.build_inputs_with_special_tokens(cat)[0] and one.target == 0
    ids, segments = wordpiece.build_inputs_with_special_tokens(cat, dog)
    assert (two.ids.tolist(), two.segments.tolist(), two.target) == (ids, segments, 1)
    with pytest.raises(PolysemeError, match=r"f\.tsv:1: this task reads pairs, and there is no second text"):
        PairClassificationTask(("a", "b")).encode([text(1, "redcat")], wordpiece, 64)


def test_a_causal_pair_is_separated(tokenizers):
    bpe = tokenizers["bpe"]
    (one,) = SINGLE.encode([text(1, "redcat", "a", "bluedog")], bpe, 64)
    assert one.ids.tolist() == [*bpe.encode("redcat"), bpe.special_token_ids.eos, *bpe.encode("bluedog")]


def test_words_are_predicted_at_their_first_pieces(tokenizers):
    words = ("redcat", "zz9", "\u200b\u200b", "[MASK]", "blueish")
    for tokenizer in tokenizers.values():
        (one,) = TAGS.encode([TaggingExample("", words=words, tags=("X", "O", "X", "O", "O"))], tokenizer, 64)
        assert len(one.positions) == 5 and (np.diff(one.positions) >= 1).all()
        assert one.target.tolist() == [1, 0, 1, 0, 0]
    wordpiece = tokenizers["wordpiece"]
    (one,) = TAGS.encode([TaggingExample("", words=words)], wordpiece, 64)
    first = [wordpiece.encode(word)[:1] or [wordpiece.special_token_ids.unk] for word in words]
    assert [[one.ids[row]] for row in one.positions] == first
    assert one.target is None


def test_long_examples_are_counted_in_the_error(wordpiece):
    examples = [text(1, "red"), text(2, "redcat " * 30), text(3, "bluedog " * 30)]
    size = len(wordpiece.encode(examples[1].text)) + 2
    message = rf"^2 of 3 examples are longer than 16 tokens, the first at f\.tsv:2 with {size}: truncate"
    with pytest.raises(PolysemeError, match=message):
        SINGLE.encode(examples, wordpiece, 16)
    cut = SINGLE.encode(examples, wordpiece, 16, truncate=True)
    assert [len(e.ids) for e in cut][1:] == [16, 16]
    assert cut[1].ids.tolist() == wordpiece.build_inputs_with_special_tokens(wordpiece.encode(examples[1].text)[:14])[0]
    with pytest.raises(PolysemeError, match="max_len 4 leaves no room"):
        SINGLE.encode(examples, wordpiece, 4)


def test_a_pair_loses_tokens_on_its_longer_side(wordpiece):
    a, b = "redcat " * 20, "bluedog"
    first, second = wordpiece.encode(a), wordpiece.encode(b)
    (one,) = SINGLE.encode([text(1, a, "a", b)], wordpiece, 20, truncate=True)
    assert one.ids.tolist() == wordpiece.build_inputs_with_special_tokens(first[: 17 - len(second)], second)[0]
    (one,) = SINGLE.encode([text(1, a, "a", a)], wordpiece, 20, truncate=True)
    assert one.ids.tolist() == wordpiece.build_inputs_with_special_tokens(first[:9], first[:8])[0]


def test_truncated_words_get_a_tag(wordpiece):
    example = TaggingExample("", words=("redcat",) * 10, tags=("X",) * 10)
    (one,) = TAGS.encode([example], wordpiece, 8, truncate=True)
    assert len(one.ids) == 8 and len(one.positions) == len(one.target) < 10
    prediction = TAGS.decode_one(np.tile([[0.0, 9.0]], (len(one.positions), 1)), example)
    assert prediction.tags == ("X",) * len(one.positions) + ("O",) * (10 - len(one.positions))
    assert prediction.probabilities[-1] is None and prediction.probabilities[0] > 0.99
    assert TaggingTask(("N", "V")).decode_one(np.zeros((0, 2)).reshape(0, 2), example).tags == ("N",) * 10


def test_unseen_label(wordpiece):
    message = r"^f\.tsv:4: the label 'bb' was never seen in training; did you mean 'b'\?$"
    with pytest.raises(PolysemeError, match=message):
        SINGLE.encode([text(4, "red", "bb")], wordpiece, 16)
    with pytest.raises(PolysemeError, match=r"the label 'Y' was never seen in training; valid: O, X$"):
        TAGS.encode([TaggingExample("f:1", words=("red",), tags=("Y",))], wordpiece, 16)
    assert SINGLE.encode([text(4, "red", "bb")], wordpiece, 16, use_labels=False)[0].target is None


def test_a_batch_is_sorted_by_length(wordpiece):
    sizes = (3, 1, 2, 1)
    examples = [TaggingExample("", words=("redcat",) * n, tags=("X",) + ("O",) * (n - 1)) for n in sizes]
    encoded = TAGS.encode(examples, wordpiece, 64)
    batch, order = TAGS.collate(encoded)
    assert order == [1, 3, 2, 0] and list(batch.inputs.layout.lengths) == sorted(batch.inputs.layout.lengths)
    targets = batch.targets["tag"]
    assert (batch.inputs.tokens[targets.rows] == encoded[0].ids[1]).all()
    assert targets.labels.tolist() == [1, 1, 1, 0, 1, 0, 0] and targets.count == 7
    batch, _ = SINGLE.collate(SINGLE.encode([text(1, "red", None), text(2, "blue", "b")], wordpiece, 64))
    assert sorted(batch.targets["classify"].labels.tolist()) == [IGNORE_INDEX, 1]
    assert batch.targets["classify"].count == 1


def test_decoding_gives_every_probability():
    prediction = SINGLE.decode_one(np.array([[1000.0, 1001.0]]), text(1, "x"))
    assert prediction.label == "b" and sum(prediction.probabilities.values()) == pytest.approx(1)
    assert prediction.probabilities["a"] == pytest.approx(1 / (1 + np.e))


def test_batches_hold_every_example_once():
    lengths = [5, 1, 9, 3, 3, 30]
    batches = list(token_budget_batches(lengths, 9))
    assert sorted(i for part in batches for i in part) == list(range(6))
    assert all(sum(lengths[i] for i in part) <= 9 or len(part) == 1 for part in batches)


@pytest.mark.parametrize(
    "family,kind",
    [
        pytest.param(family, kind, marks=[pytest.mark.slow] * (kind == "regression" and family not in ("bert", "t5")))
        for family in FAMILIES  # regression reads what classification reads
        for kind in ("classification", "regression", "tagging")
    ],
)
def test_batched_equals_single(tokenizers, family, kind):
    """The packing law for task models."""
    tokenizer = tokenizers[KINDS[family]].with_cls_position(FAMILIES[family].cls_position)
    task = {task.task_type: task for task in (SINGLE, TAGS, NUMBER)}[kind]
    draw = np.random.default_rng(0)
    chosen = [tuple(draw.choice(WORDS, size=draw.integers(1, 9))) for _ in range(20)]
    examples = [TaggingExample("", w) if kind == "tagging" else TextExample("", " ".join(w)) for w in chosen]
    sizes = {"num_layers": 2, "dim": 16, "num_heads": 2, "vocab_size": tokenizer.vocab_size, "max_len": 80}
    sizes["num_buckets"] = 50
    spec = FAMILIES[family].model_config(**supported_args(FAMILIES[family], **sizes))
    head = FAMILIES[family].task_head(task.head_name, task.output_labels, spec.trunk)
    model = spec.replace(heads={task.head_name: head}).build(0).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    encoded = task.encode(examples, tokenizer, 80)
    together = compute_logits(model, task, encoded, max_batch_tokens=50)
    for one, logits in zip(encoded, together):
        np.testing.assert_allclose(compute_logits(model, task, [one])[0], logits, atol=1e-6)
        assert len(logits) == task.num_rows(one)


def test_regression_loss_is_squared_error(wordpiece):
    """The loss is a sum with a count for any micro-batches; unlabeled examples do not count."""
    spec = FAMILIES["bert"].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=wordpiece.vocab_size, max_len=64)
    head = FAMILIES["bert"].task_head("classify", (), spec.trunk)
    model = spec.replace(heads={"classify": head}).build(0).double().eval()
    examples = [text(i, word, label) for i, (word, label) in enumerate(zip(WORDS, ["1.5", "-2", None, "-100", "0"]))]
    encoded = NUMBER.encode(examples, wordpiece, 64)
    batch, _ = NUMBER.collate(encoded)
    assert batch.targets["classify"].count == 4 and batch.targets["classify"].labels.dtype == torch.float32
    total = compute_losses(model, batch)["classify"]
    guesses = [compute_logits(model, NUMBER, [e])[0][0, 0] for e in encoded]
    expected = sum((g - float(e.label)) ** 2 for g, e in zip(guesses, examples) if e.label is not None)
    assert total.item() == pytest.approx(expected, rel=1e-5)
    parts = [NUMBER.collate(encoded[:2])[0], NUMBER.collate(encoded[2:])[0]]
    whole, split = [], []
    for gradients, batches in ((whole, [batch]), (split, parts)):
        model.zero_grad()
        sum(compute_losses(model, b)["classify"] for b in batches).backward()
        gradients += [p.grad for p in model.parameters() if p.grad is not None]
    assert all(g.isfinite().all() for g in whole)
    for a, b in zip(whole, split, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)
    assert NUMBER.decode_one(np.array([[2.5]]), examples[0]).number == 2.5
    with pytest.raises(PolysemeError, match=r"only the label '1'"):
        RegressionTask.from_examples([text(1, "x", "1")])


def test_plain_values_as_examples():
    spec = FAMILIES["bert"].model_config(num_layers=1, dim=8, num_heads=1, vocab_size=20)
    single = spec.replace(heads={"classify": ClassificationHeadConfig(("a", "b"))}).build()
    tags = spec.replace(heads={"tag": ClassificationHeadConfig(("a", "b"), "tokens")}).build()
    examples = to_examples(["a b", ("c", "d")], single)
    assert [(e.text, e.pair) for e in examples] == [("a b", None), ("c", "d")]
    assert [e.words for e in to_examples(["a b", ["c", "d"]], tags)] == [("a", "b"), ("c", "d")]
    for bad in ("", 3, [], ["a", ""], ["a", "b", "c"]):
        with pytest.raises(PolysemeError, match=r"^example 1 "):
            to_examples([bad], single)
