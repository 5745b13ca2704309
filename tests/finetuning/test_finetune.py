"""Fine-tuning end to end on tiny models: it learns, is reproducible, and `transformers` opens the result."""

import json
import random

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.evaluation.predict import evaluate
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData, epoch_batches
from polyseme.finetuning.finetune import finetune
from polyseme.inference.prediction import predict
from polyseme.tasks import TASKS, load_task
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.readers.columns import Columns
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model
from tests.support.cases import supported_args
from tests.support.tasks import compute_logits

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare", "mole", "newt", "seal", "swan"]
MARKED = ("wolf", "bear", "frog")
TOKENIZERS = {family.name: family.tokenizer.replace("events", "bpe") for family in FAMILIES.values()}
QUICK = FinetuneConfig(epochs=8, batch_size=16, optimizer=OptimizerConfig(lr=3e-3))


def examples(kind, n=240):
    draw = random.Random({"pair_classification": "pair", "multiple_choice": "choice"}.get(kind, kind))
    found = []
    for i in range(n):
        words = tuple(draw.choices(WORDS, k=draw.randint(3, 7)))
        if kind == "tagging":
            tags = tuple("B-A" if w in MARKED else "O" for w in words)
            found.append(TaggingExample(f"d:{i}", words=words, tags=tags))
        elif kind == "regression":  # texts, and pairs whose second text says nothing
            number = sum(map(WORDS.index, words)) / len(words) / 4 - 1
            found.append(
                TextExample(f"d:{i}", " ".join(words), "cat dog" if i % 3 == 0 else None, label=f"{number:.3f}")
            )
        else:
            other = " ".join(draw.choices(WORDS, k=4)) if kind == "pair_classification" else None
            seen = "wolf" in (other.split() if other else words)
            found.append(TextExample(f"d:{i}", " ".join(words), other, label="yes" if seen else "no"))
    return found


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Use one thread: models this small spend more time on synchronization than on computation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for family, kind in TOKENIZERS.items():
        tokenizer = Tokenizer.train(kind, iter([" ".join(WORDS), *WORDS] * 30), 400).with_cls_position(
            FAMILIES[family].cls_position
        )
        sizes = supported_args(
            FAMILIES[family], num_layers=2, dim=32, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=48,
            dropout=0.05, attention_dropout=0.0, num_buckets=50,
        )  # fmt: skip
        spec = FAMILIES[family].model_config(**sizes)
        made[family] = tmp_path_factory.mktemp(family)
        save_model(made[family], spec.build(0), tokenizer)
    return made


CASES = [
    ("bert", "classification"),
    ("bert", "pair_classification"),
    ("bert", "tagging"),
    ("bert", "regression"),
    ("gpt2", "classification"),
    ("gpt2", "tagging"),
    ("modernbert", "classification"),
]
# The laws and `test_crf_tagging.py::test_every_family` cover these families, and BERT the task.
CASES += [pytest.param(case, marks=pytest.mark.slow)
          for case in (("gpt2", "regression"), ("transformer_xl", "tagging"), ("xlnet", "classification"))]  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def trained(request, folders, tmp_path_factory):
    family, kind = request.param
    data = examples(kind)
    out = tmp_path_factory.mktemp("run") / "run"
    results = finetune(folders[family], TaskData(TASKS[kind](), data[:180], data[180:]), out, QUICK)
    return family, kind, data[180:], out, results


def test_learns(trained):
    _, kind, _, out, results = trained
    assert results["mean"][results["primary_metric"]] > 0.95
    assert results["steps"] == 96 and results["task"] == kind and results["std"][results["primary_metric"]] is None
    assert next(iter(results["mean"])) == results["primary_metric"]
    assert json.loads((out / "results.json").read_text()) == results
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 97)) and rows[0]["seed"] == 0


def test_saved_model_gives_the_same_predictions(trained):
    _, kind, dev, out, results = trained
    folder = load_model(out / "model")
    assert load_task(folder.metadata, folder.model.config).task_type == kind and folder.newly_initialized == []
    found = evaluate(folder, dev)
    assert found == {k: v for k, v in results["seeds"][0].items() if k != "seed"}
    predictions = predict(folder, dev)
    (alone,) = predict(folder, dev[7:8])
    if kind == "tagging":
        assert alone.tags == predictions[7].tags
        np.testing.assert_allclose(alone.probabilities, predictions[7].probabilities, atol=1e-6)
    elif kind == "regression":
        assert alone.number == alone.value == pytest.approx(predictions[7].number, abs=1e-5)
    else:
        assert alone.label == predictions[7].label
        assert alone.probabilities == pytest.approx(predictions[7].probabilities, abs=1e-6)


def test_transformers_opens_it(trained):
    transformers = pytest.importorskip("transformers")
    family, kind, dev, out, _ = trained
    if family == "transformer_xl":
        pytest.skip("transformers has it no more")
    name = "TokenClassification" if kind == "tagging" else "SequenceClassification"
    theirs = getattr(transformers, f"AutoModelFor{name}").from_pretrained(out / "model").eval()
    folder = load_model(out / "model")
    task = load_task(folder.metadata, folder.model.config)
    assert tuple(theirs.config.id2label[i] for i in range(len(task.output_labels))) == task.output_labels
    assert kind != "regression" or (theirs.config.num_labels, theirs.config.problem_type) == (1, "regression")
    encoded = task.encode(dev[:12], folder.tokenizer, 48)
    ours = compute_logits(folder.model, task, encoded)
    batch, order = task.collate(encoded)
    ids, mask = (
        batch.inputs.layout.pad(batch.inputs.tokens, folder.tokenizer.special_token_ids.pad),
        batch.inputs.layout.attention_mask().long(),
    )
    extra = {"token_type_ids": batch.inputs.layout.pad(batch.inputs.segments)} if family == "bert" else {}
    lengths = list(batch.inputs.layout.lengths)
    with torch.no_grad():
        if family == "xlnet":  # which pads on the left: here one by one
            each = zip(batch.inputs.tokens.split(lengths), batch.inputs.segments.split(lengths))
            expected = torch.cat([theirs(input_ids=t[None], token_type_ids=s[None]).logits for t, s in each])
        else:
            expected = theirs(input_ids=ids, attention_mask=mask, **extra).logits
    if kind == "tagging":
        expected = batch.inputs.layout.unpad(expected)[batch.targets["tag"].rows]
    np.testing.assert_allclose(np.concatenate([ours[i] for i in order]), expected.numpy(), atol=1e-5)


def test_written_predictions_can_be_read(trained, tmp_path):
    _, kind, dev, out, _ = trained
    folder = load_model(out / "model")
    found, task = predict(folder, dev), load_task(folder.metadata, folder.model.config)
    for ending in (".jsonl", ".tsv", *((".conll",) if kind == "tagging" else ())):
        task.write(tmp_path / f"p{ending}", dev, found)
        has_names = kind != "tagging" or ending == ".jsonl"
        again = TASKS[kind].read(tmp_path / f"p{ending}", Columns(label="prediction") if has_names else Columns())
        assert [e.words if kind == "tagging" else (e.text, e.pair) for e in again] == [
            e.words if kind == "tagging" else (e.text, e.pair) for e in dev
        ]
        written = [str(p.number) if kind == "regression" else p.value for p in found]
        assert [e.gold for e in again] == written
    suffixes = r"(\.tsv, \.conll, \.iob, \.bio, )?\.csv, (\.tsv, )?\.jsonl, \.parquet, \.txt, not '\.xls'"
    with pytest.raises(PolysemeError, match=rf"p\.xls: predictions of {kind} are written as {suffixes}"):
        task.write(tmp_path / "p.xls", dev, found)
    assert not (tmp_path / "p.xls").exists()


def weights(folder):
    return load_model(folder / "model").model.state_dict()


def test_seed_determines_everything(folders, tmp_path):
    data = examples("tagging", 60)
    short = QUICK.replace(epochs=2.0)
    for name in ("a", "b"):
        finetune(
            folders["bert"], TaskData(TaggingTask(), data, data[:20]), tmp_path / name, short, RunOptions(seeds=[3])
        )
    finetune(folders["bert"], TaskData(TaggingTask(), data, data[:20]), tmp_path / "c", short, RunOptions(seeds=[4]))
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)


def test_several_seeds(folders, tmp_path):
    data = examples("classification", 60)
    short = QUICK.replace(steps=6)
    found = finetune(
        folders["bert"], TaskData(ClassificationTask(), data, data[:30]), tmp_path / "r", short, RunOptions(seeds=3)
    )
    values = [run["accuracy"] for run in found["seeds"]]
    assert [run["seed"] for run in found["seeds"]] == [0, 1, 2]
    assert found["mean"]["accuracy"] == pytest.approx(np.mean(values))
    assert found["std"]["accuracy"] == pytest.approx(np.std(values, ddof=1))
    assert found["best_seed"] == int(np.argmax(values))
    folder = load_model(tmp_path / "r" / "model")
    assert evaluate(folder, data[:30])["accuracy"] == max(values)
    assert folder.metadata["selection"].startswith(f"seed {found['best_seed']}: the best accuracy")


def test_from_scratch_and_frozen_groups(folders, tmp_path):
    data = examples("classification", 40)
    still = QUICK.replace(steps=2, num_frozen_groups=2)
    for name, scratch in (("old", False), ("new", True)):
        finetune(
            folders["bert"],
            TaskData(ClassificationTask(), data, data),
            tmp_path / name,
            still,
            RunOptions(from_scratch=scratch, seeds=[5]),
        )
    before = load_model(folders["bert"]).model.state_dict()
    old, new = weights(tmp_path / "old"), weights(tmp_path / "new")
    frozen = [n for n in before if n.startswith(("trunk.embeddings.", "trunk.blocks.0."))]
    assert frozen and all(torch.equal(before[n], old[n]) for n in frozen)
    assert not torch.equal(before["trunk.blocks.1.ffn.up.weight"], old["trunk.blocks.1.ffn.up.weight"])
    assert not torch.equal(before["trunk.embeddings.tokens.weight"], new["trunk.embeddings.tokens.weight"])


def test_every_epoch_reads_every_example_once(folders):
    task = ClassificationTask(("no", "yes"))
    data = task.encode(examples("classification", 21), load_model(folders["bert"]).tokenizer, 48)
    settings = FinetuneConfig(batch_size=8, micro_batch_tokens=24)
    stream = epoch_batches(task, data, settings, seed=0)
    epochs = [[next(stream) for _ in range(3)] for _ in range(2)]
    for number, epoch in enumerate(epochs):
        lengths = sorted(n for batches, _ in epoch for b in batches for n in b.inputs.layout.lengths)
        assert lengths == sorted(len(e.ids) for e in data)
        assert all(cursor[0] == number for _, cursor in epoch)
        assert all(b.inputs.layout.num_tokens <= 24 for batches, _ in epoch for b in batches)
    first, second = (torch.cat([b.inputs.tokens for batches, _ in e for b in batches]).tolist() for e in epochs)
    assert first != second


def test_errors_in_config_and_data(folders, tmp_path):
    data = examples("classification", 20)

    def go(
        train=data, dev=data, out=None, kind="classification", folder=folders["bert"], seeds=1, primary="", **changes
    ):
        settings = FinetuneConfig(steps=1).replace(**changes)
        finetune(
            folder, TaskData(TASKS[kind](), train, dev, primary_metric=primary), out, settings, RunOptions(seeds=seeds)
        )

    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "results.json").write_text("{}")
    odd = [TextExample("dev:9", "cat", label="maybe")]
    for message, options in {
        "already holds results.json": {"out": tmp_path / "used"},
        "dev:9: the label 'maybe' was never seen": {"dev": odd},
        "dev:8: there is no label": {"dev": [TextExample("dev:8", "cat")]},
        "has no labels": {"kind": "tagging", "train": [TaggingExample("t", ("a",))] * 2},
        "has only the label": {"train": [e for e in data if e.label == "no"]},
        "20 of 20 examples are longer than 6 tokens": {"max_len": 6, "train": [long(e) for e in data]},
        r"max_len 99 is longer than the model reads \(48\)": {"max_len": 99},
        "cannot freeze 9 groups: the model has 4": {"num_frozen_groups": 9},
        "batch_size is 0": {"batch_size": 0},
        "nothing to do": {"steps": 0, "epochs": 0.0},
        "`seeds` is 0, expected 1 to 10,000": {"seeds": 0},
        "there is no metric 'acuracy'; did you mean 'accuracy'": {"primary": "acuracy"},
        "d:0: the label 'no' is not a number": {"kind": "regression"},
        "there is no model folder at": {"folder": tmp_path / "none"},
        "not finite": {"optimizer": OptimizerConfig(lr=1e30), "steps": 9},
    }.items():
        with pytest.raises(PolysemeError, match=message) as caught:
            go(**options)
        assert "\n" not in str(caught.value)
    with pytest.raises(PolysemeError, match="the model has no task head"):
        predict(load_model(folders["bert"]), data)


def long(example):
    return TextExample(example.location, example.text + " cat dog fish bird wolf bear", label=example.label)


def test_truncation_is_the_same_in_training_and_prediction(folders, tmp_path):
    data = [long(e) for e in examples("classification", 30)]
    settings = FinetuneConfig(steps=1, max_len=8, truncate=True)
    finetune(folders["bert"], TaskData(ClassificationTask(), data, data), tmp_path / "r", settings)
    folder = load_model(tmp_path / "r" / "model")
    assert len(predict(folder, data)) == 30
    with pytest.raises(PolysemeError, match="30 of 30 examples are longer than 8 tokens"):
        predict(folder, data, truncate=False)
    assert len(predict(folder, data, max_len=48, truncate=False)) == 30
