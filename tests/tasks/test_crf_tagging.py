"""Tags chosen together: `finetune` with a CRF, for every family; broken tags in files."""

import random
from inspect import signature

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.evaluation.predict import compute_logits, compute_logits_and_labels, predict
from polyseme.families import FAMILIES
from polyseme.finetuning.finetune import FinetuneConfig, finetune
from polyseme.nn.heads.tag_schemes import first_invalid
from polyseme.tasks.examples import Example, read_examples
from polyseme.tasks.task import Task
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare"]


def examples(n=120):
    """Words in pairs are entities; what a word is inside one, its neighbours alone tell."""
    draw = random.Random(3)
    found = []
    for i in range(n):
        words, tags = [], []
        for _ in range(draw.randint(1, 3)):
            plain, both = draw.choices(WORDS[:4], k=draw.randint(0, 2)), draw.choices(WORDS[4:], k=2)
            words += [*plain, *both]
            tags += ["O"] * len(plain) + ["B-A", "I-A"]
        found.append(Example(f"d:{i}", words=tuple(words), tags=tuple(tags)))
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, family in FAMILIES.items():
        kind = family.tokenizer.replace("events", "bpe")
        tokenizer = Tokenizer.train(kind, iter([" ".join(WORDS), *WORDS] * 30), 400).with_cls_position(
            family.cls_position
        )
        usual = {"num_layers": 1, "dim": 16, "num_heads": 2, "vocab_size": tokenizer.vocab_size, "max_len": 96,
                 "dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
        spec = family.model_config(**{k: v for k, v in usual.items() if k in signature(family.trunk_config).parameters})
        made[name] = tmp_path_factory.mktemp(name)
        save_model(made[name], spec.build(0), tokenizer)
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(folders, tmp_path, family):
    data = examples(24)
    settings = FinetuneConfig(steps=2, batch_size=8, tag_decoder="crf", optimizer=OptimizerConfig(lr=1e-3))
    finetune(folders[family], "tagging", data, data[:8], tmp_path / "run", settings)
    folder = load_model(tmp_path / "run" / "model")
    assert folder.model.heads["tag"].crf is not None
    assert all(first_invalid(p.tags) is None for p in predict(folder, data))
    task = Task.from_model(folder.model)
    encoded = task.encode(data[:5], folder.tokenizer, 90)
    for one, (scores, best) in zip(encoded, compute_logits_and_labels(folder.model, task, encoded)):
        np.testing.assert_allclose(compute_logits(folder.model, task, [one])[0], scores, atol=1e-5)
        assert compute_logits_and_labels(folder.model, task, [one])[0][1].tolist() == best.tolist()
        np.testing.assert_allclose(np.exp(scores).sum(-1), 1, atol=1e-5)


def test_it_learns_and_says_how_sure_it_is(folders, tmp_path):
    data = examples()
    settings = FinetuneConfig(epochs=12, batch_size=8, tag_decoder="crf", optimizer=OptimizerConfig(lr=1e-2))
    results = finetune(folders["bert"], "tagging", data[:90], data[90:], tmp_path / "run", settings)
    assert results["mean"]["f1"] > 0.95
    found = predict(load_model(tmp_path / "run" / "model"), data[90:])
    assert all(0.2 < share <= 1 for p in found for share in p.tag_probabilities)


def test_tags_that_break_the_rules_in_training_are_not_barred(folders, tmp_path):
    data = [Example("d:1", words=("cat", "dog"), tags=("O", "I-A")), Example("d:2", words=("cat",), tags=("I-A",))]
    settings = FinetuneConfig(steps=1, tag_decoder="crf")
    finetune(folders["bert"], "tagging", data, data, tmp_path / "run", settings)
    assert not load_model(tmp_path / "run" / "model").model.config.heads["tag"].crf.constrained


def test_a_crf_is_for_tags(folders):
    data = [Example(f"d:{i}", "cat dog", label="ab"[i % 2]) for i in range(4)]
    with pytest.raises(PolysemeError, match=r"the tag_decoder crf is for tagging, not for classification$"):
        finetune(folders["bert"], "classification", data, data, None, FinetuneConfig(steps=1, tag_decoder="crf"))


def test_broken_tags_are_mended_and_counted_or_refused(tmp_path, capsys, cli):
    path = tmp_path / "t.conll"
    path.write_text("New B-P\nYork I-P\n\nin O\nParis I-P\nTexas I-P\n\nDell B-Q\nRome I-P\n", encoding="utf-8")
    found = read_examples(path, "tagging")
    assert [e.tags for e in found] == [("B-P", "I-P"), ("O", "B-P", "I-P"), ("B-Q", "B-P")]
    said = capsys.readouterr().err
    assert said == f"{path}: mended 2 tags in 2 of 3 sentences with broken tags, the first: {path}:4: 'I-P' at word 2\n"
    with pytest.raises(
        PolysemeError, match=r"t\.conll:4: 'I-P' at word 2 cannot stand there; 2 of 3 sentences have such"
    ):
        read_examples(path, "tagging", strict=True)
    whole = tmp_path / "iob1.conll"
    whole.write_text("in O\nParis I-P\nTexas B-P\n", encoding="utf-8")
    assert read_examples(whole, "tagging", strict=True)[0].tags == ("O", "I-P", "B-P")
    answer = cli("finetune", tmp_path, "--task", "tagging", "--train", path, "--dev", path, "--out", "x", "--strict")
    assert answer.status == 2 and "cannot stand there" in answer.err
