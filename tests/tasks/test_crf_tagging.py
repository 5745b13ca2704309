"""Fine-tuning with a CRF for every family; invalid tags in files."""

import random
from inspect import signature

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.inference.prediction import predict, score_encoded
from polyseme.nn.heads.tag_schemes import first_invalid
from polyseme.tasks import load_task
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model
from tests.support.tasks import compute_logits

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare"]


def examples(n=120):
    """Sentences whose entities are pairs of words; only the context tells the first word from the second."""
    draw = random.Random(3)
    sentences = []
    for i in range(n):
        words, tags = [], []
        for _ in range(draw.randint(1, 3)):
            plain, entity = draw.choices(WORDS[:4], k=draw.randint(0, 2)), draw.choices(WORDS[4:], k=2)
            words += [*plain, *entity]
            tags += ["O"] * len(plain) + ["B-A", "I-A"]
        sentences.append(TaggingExample(f"d:{i}", words=tuple(words), tags=tuple(tags)))
    return sentences


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders_by_family = {}
    for name, family in FAMILIES.items():
        kind = family.tokenizer.replace("events", "bpe")
        tokenizer = Tokenizer.train(kind, iter([" ".join(WORDS), *WORDS] * 30), 400).with_cls_position(
            family.cls_position
        )
        usual = {"num_layers": 1, "dim": 16, "num_heads": 2, "vocab_size": tokenizer.vocab_size, "max_len": 96,
                 "dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
        spec = family.model_config(**{k: v for k, v in usual.items() if k in signature(family.trunk_config).parameters})
        folders_by_family[name] = tmp_path_factory.mktemp(name)
        save_model(folders_by_family[name], spec.build(0), tokenizer)
    return folders_by_family


QUICK = ("bert", "gpt2", "t5", "elmo", "flair", "transformer_xl", "word2vec")  # one of each style


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in FAMILIES]
)
def test_every_family(folders, tmp_path, family):
    data = examples(24)
    settings = FinetuneConfig(steps=2, batch_size=8, optimizer=OptimizerConfig(lr=1e-3))
    finetune(folders[family], TaskData(TaggingTask(decoder="crf"), data, data[:8]), tmp_path / "run", settings)
    folder = load_model(tmp_path / "run" / "model")
    assert folder.model.heads["tag"].crf is not None
    assert all(first_invalid(p.tags) is None for p in predict(folder, data))
    task = load_task({}, folder.model.config)
    encoded = task.encode(data[:5], folder.tokenizer, 90)
    for one, (scores, best) in zip(encoded, score_encoded(folder.model, task, encoded)):
        np.testing.assert_allclose(compute_logits(folder.model, task, [one])[0], scores, atol=1e-5)
        assert score_encoded(folder.model, task, [one])[0][1].tolist() == best.tolist()
        np.testing.assert_allclose(np.exp(scores).sum(-1), 1, atol=1e-5)


def test_crf_learns_and_gives_probabilities(folders, tmp_path):
    data = examples()
    settings = FinetuneConfig(epochs=9, batch_size=8, optimizer=OptimizerConfig(lr=1e-2))
    results = finetune(
        folders["bert"], TaskData(TaggingTask(decoder="crf"), data[:90], data[90:]), tmp_path / "run", settings
    )
    assert results["mean"]["f1"] > 0.95
    predictions = predict(load_model(tmp_path / "run" / "model"), data[90:])
    assert all(0.2 < share <= 1 for p in predictions for share in p.probabilities)


def test_invalid_transitions_in_training_are_allowed(folders, tmp_path):
    data = [
        TaggingExample("d:1", words=("cat", "dog"), tags=("O", "I-A")),
        TaggingExample("d:2", words=("cat",), tags=("I-A",)),
    ]
    settings = FinetuneConfig(steps=1)
    finetune(folders["bert"], TaskData(TaggingTask(decoder="crf"), data, data), tmp_path / "run", settings)
    assert not load_model(tmp_path / "run" / "model").model.config.heads["tag"].crf.constrained


def test_only_tagging_has_a_decoder_setting(folders):
    data = [TextExample(f"d:{i}", "cat dog", label="ab"[i % 2]) for i in range(4)]
    with pytest.raises(PolysemeError, match=r"classification has no setting 'decoder'"):
        ClassificationTask.from_examples(data, decoder="crf")


def test_invalid_tags_are_repaired_or_rejected(tmp_path, capsys, cli):
    path = tmp_path / "t.conll"
    path.write_text("New B-P\nYork I-P\n\nin O\nParis I-P\nTexas I-P\n\nDell B-Q\nRome I-P\n", encoding="utf-8")
    examples = TaggingTask.read(path)
    assert [e.tags for e in examples] == [("B-P", "I-P"), ("O", "B-P", "I-P"), ("B-Q", "B-P")]
    output = capsys.readouterr().err
    assert (
        output
        == f"{path}: repaired 2 tags in 2 of 3 sentences with invalid tags, the first: {path}:4: 'I-P' at word 2\n"
    )
    with pytest.raises(
        PolysemeError, match=r"t\.conll:4: 'I-P' at word 2 cannot stand there; 2 of 3 sentences have such"
    ):
        TaggingTask.read(path, strict=True)
    whole = tmp_path / "iob1.conll"
    whole.write_text("in O\nParis I-P\nTexas B-P\n", encoding="utf-8")
    assert TaggingTask.read(whole, strict=True)[0].tags == ("O", "I-P", "B-P")
    answer = cli("finetune", tmp_path, "--task", "tagging", "--train", path, "--dev", path, "--out", "x", "--strict")
    assert answer.status == 2 and "cannot stand there" in answer.err
