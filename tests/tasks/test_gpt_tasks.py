"""Multiple choice, symmetric pairs, special tokens around texts, and the auxiliary language-model loss of GPT."""

import dataclasses
import json
import random

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.evaluation.predict import evaluate
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData, epoch_batches
from polyseme.finetuning.finetune import finetune
from polyseme.inference.prediction import predict
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.packing import pad_to_bucket
from polyseme.tasks import load_task
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.multiple_choice import ChoiceExample, MultipleChoiceTask
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.weights.folder import load_model, save_model
from tests.support.tasks import baseline_metrics, compute_logits, to_examples

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare", "mole", "newt", "seal", "swan"]
SMALL = {"num_layers": 2, "dim": 32, "num_heads": 2, "max_len": 48, "dropout": 0.0, "attention_dropout": 0.0}
QUICK = FinetuneConfig(epochs=7, batch_size=16, optimizer=OptimizerConfig(lr=3e-3))
CHOICE = MultipleChoiceTask()


def questions(n=200, seed=0):
    """Questions with two to four choices; the one with the wolf is correct."""
    draw = random.Random(seed)
    examples = []
    for i in range(n):
        size = draw.randint(2, 4)
        right = draw.randrange(size)
        others = [w for w in WORDS if w != "wolf"]
        choices = [" ".join(draw.choices(others, k=draw.randint(1, 4))) for _ in range(size)]
        choices[right] += " wolf"
        examples.append(ChoiceExample(f"q:{i}", draw.choice(WORDS), label=str(right), choices=tuple(choices)))
    return examples


def pairs(n=120, seed=1):
    draw = random.Random(seed)
    examples = []
    for i in range(n):
        first, second = (" ".join(draw.choices(WORDS, k=3)) for _ in range(2))
        alike = "yes" if ("wolf" in first) == ("wolf" in second) else "no"
        examples.append(TextExample(f"p:{i}", first, second, label=alike))
    return examples


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders_by_family = {}
    for family, kind in {"bert": "wordpiece", "gpt": "bpe", "gpt2": "bpe"}.items():
        tokenizer = Tokenizer.train(kind, iter([" ".join(WORDS), *WORDS] * 30), 300)
        spec = FAMILIES[family].model_config(vocab_size=tokenizer.vocab_size, **SMALL)
        folders_by_family[family] = tmp_path_factory.mktemp(family)
        save_model(folders_by_family[family], spec.build(0), tokenizer)
    return folders_by_family


@pytest.mark.parametrize("family", ["bert", pytest.param("gpt", marks=pytest.mark.slow), "gpt2"])
def test_choices_are_learned_and_transformers_loads_the_model(family, folders, tmp_path):
    data = questions()
    settings = QUICK.replace(lm_loss_weight=0.0 if family == "bert" else 0.1)
    results = finetune(
        folders[family], TaskData(MultipleChoiceTask(), data[:160], data[160:]), tmp_path / "r", settings
    )
    assert results["primary_metric"] == "accuracy" and results["mean"]["accuracy"] > 0.95
    folder = load_model(tmp_path / "r/model")
    assert folder.newly_initialized == [] and evaluate(folder, data[160:]) == results["mean"]
    names = {"bert": "BertForMultipleChoice", "gpt": "OpenAIGPTDoubleHeadsModel", "gpt2": "GPT2DoubleHeadsModel"}
    theirs, info = getattr(transformers, names[family]).from_pretrained(tmp_path / "r/model", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    task = load_task(folder.metadata, folder.model.config)
    encoded = task.encode(data[160:170], folder.tokenizer, 48)
    for one, scores in zip(encoded, compute_logits(folder.model, task, encoded)):
        ends = np.cumsum(one.sequence_lengths)[:-1]
        for ids, segments, score in zip(*(np.split(a, ends) for a in (one.ids, one.segments)), scores[:, 0]):
            inputs = {"input_ids": torch.tensor(ids)[None, None]}
            if family == "bert":
                inputs["token_type_ids"] = torch.tensor(segments)[None, None]
            with torch.no_grad():
                output = theirs.eval()(**inputs)
            expected = output.logits if family == "bert" else output.mc_logits
            assert expected.item() == pytest.approx(float(score), abs=1e-5)
    CHOICE.write(tmp_path / "p.jsonl", data[160:], predict(folder, data[160:]))
    again = MultipleChoiceTask.read(f"{tmp_path}/p.jsonl::label=prediction")
    assert [(e.text, e.choices) for e in again] == [(e.text, e.choices) for e in data[160:]]
    assert sum(a.label == b.label for a, b in zip(again, data[160:])) / 40 == results["mean"]["accuracy"]
    with pytest.raises(PolysemeError, match=r"written as \.csv, .*, not '\.doc'"):
        CHOICE.write(tmp_path / "p.doc", data[160:], predict(folder, data[160:]))
    (plain,) = predict(folder, to_examples([("cat", ["dog fish", "bird wolf"])], folder.model))
    assert plain.label == "1" and sum(plain.probabilities.values()) == pytest.approx(1)
    with pytest.raises(PolysemeError, match=r"example 1 is 'cat': a text and a list of choices is needed"):
        to_examples(["cat"], folder.model)


def test_sequences_of_choices(folders):
    tokenizer = load_model(folders["bert"]).tokenizer
    example = ChoiceExample("", "cat", label="1", choices=("dog", "fish bird wolf", "dog"))
    (one,) = CHOICE.encode([example], tokenizer, 48)
    wrapped = [
        tokenizer.build_inputs_with_special_tokens(tokenizer.encode("cat"), tokenizer.encode(c))
        for c in example.choices
    ]
    assert one.ids.tolist() == [i for ids, _ in wrapped for i in ids]
    assert one.segments.tolist() == [i for _, segments in wrapped for i in segments]
    other = ChoiceExample("", "swan", choices=("dog", "cat"))
    batch, order = CHOICE.collate(CHOICE.encode([example, other], tokenizer, 48))
    assert order == [1, 0] and list(batch.inputs.layout.lengths) == sorted(batch.inputs.layout.lengths)
    targets = batch.targets["choice"]
    assert targets.count == 1 and targets.labels.tolist() == [-100, -100, 3, 3, 3]
    parts = batch.inputs.tokens.split(list(batch.inputs.layout.lengths))
    swan, build = tokenizer.encode("swan"), tokenizer.build_inputs_with_special_tokens
    expected = [*(build(swan, tokenizer.encode(c))[0] for c in other.choices), *(ids for ids, _ in wrapped)]
    assert [parts[i].tolist() for i in targets.rows] == expected
    with pytest.raises(PolysemeError, match="1 of 1 examples are longer than 6 tokens"):
        CHOICE.encode([example], tokenizer, 6)
    assert max(CHOICE.encode([example], tokenizer, 6, truncate=True)[0].sequence_lengths) == 6


def test_choice_loss_is_cross_entropy_per_question():
    """Compare with torch, question by question: different sizes, one unlabeled, large scores."""
    head = ClassificationHeadConfig(("score",)).build(3).double()
    states = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    scale = torch.tensor([1.0, 1, 1, 1, 1, 900, 900, 1, 1])[:, None]
    values = torch.tensor([1, 1, 1, -100, -100, 6, 6, 8, 8])
    loss_sum = head.loss(states * scale, torch.zeros(0), values)
    scores = head(states * scale, torch.zeros(0))[:, 0].float()
    groups = (slice(0, 3), 1), (slice(5, 7), 1), (slice(7, 9), 1)
    expected = sum(torch.nn.functional.cross_entropy(scores[None, s], torch.tensor([i])) for s, i in groups)
    torch.testing.assert_close(loss_sum, expected)
    gradients = [torch.autograd.grad(loss, states, retain_graph=True)[0] for loss in (loss_sum, expected)]
    torch.testing.assert_close(*gradients)
    assert (gradients[0][3:5] == 0).all()


# --- special tokens --------------------------------------------------------------------------------------------------


def test_new_special_tokens_get_ids_after_the_vocabulary(folders, tmp_path):
    before = load_model(folders["gpt"])
    size = before.tokenizer.vocab_size
    data = pairs()
    finetune(
        folders["gpt"],
        TaskData(PairClassificationTask(), data[:80], data[80:]),
        tmp_path / "r",
        QUICK.replace(steps=1, num_frozen_groups=1),
    )
    after = load_model(tmp_path / "r/model")
    assert after.tokenizer.vocab_size == after.model.config.trunk.embeddings.vocab_size == size + 3
    assert after.tokenizer.convert_ids_to_tokens([size, size + 1, size + 2]) == ["<start>", "<delimiter>", "<extract>"]
    tables = [f.model.trunk.token_embeddings for f in (before, after)]
    assert torch.equal(tables[0], tables[1][:size]) and (tables[1][size:].std(1) > 0).all()
    cat, dog = (after.tokenizer.encode(w) for w in ("cat", "dog"))
    (one,) = PairClassificationTask(("a", "b")).encode([TextExample("", "cat", "dog", label="a")], after.tokenizer, 48)
    assert one.ids.tolist() == [size, *cat, size + 1, *dog, size + 2]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "r/model")
    assert theirs("cat", "dog")["input_ids"] == one.ids.tolist()
    assert (
        theirs("cat")["input_ids"] == after.tokenizer.build_inputs_with_special_tokens(cat)[0] == [size, *cat, size + 2]
    )
    # a second fine-tuning adds no tokens
    finetune(
        tmp_path / "r/model",
        TaskData(PairClassificationTask(), data[:80], data[80:]),
        tmp_path / "again",
        QUICK.replace(steps=1),
    )
    assert load_model(tmp_path / "again/model").tokenizer.hash == after.tokenizer.hash


@pytest.mark.parametrize("family", ["bert", "gpt", "gpt2"])
def test_symmetric_pairs_add_both_orders(family, folders, tmp_path):
    data = pairs()
    settings = QUICK.replace(steps=30, lm_loss_weight=0.0)
    finetune(
        folders[family],
        TaskData(PairClassificationTask(symmetric_pairs=True), data[:80], data[80:]),
        tmp_path / "r",
        settings,
    )
    folder = load_model(tmp_path / "r/model")
    task = load_task(folder.metadata, folder.model.config)
    assert task.symmetric_pairs
    turned = [TextExample(e.location, e.pair, e.text, label=e.label) for e in data]
    for one, other in zip(predict(folder, data[:9]), predict(folder, turned[:9])):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    plain = PairClassificationTask(task.labels)
    sides = [compute_logits(folder.model, plain, plain.encode(d, folder.tokenizer, 48)) for d in (data[:9], turned[:9])]
    assert np.abs(np.array(sides[0]) - np.array(sides[1])).max() > 1e-4
    logits = compute_logits(folder.model, task, task.encode(data[:9], folder.tokenizer, 48))
    linear_head = folder.model.heads["classify"].linear
    bias = 0.0 if linear_head.bias is None else linear_head.bias.detach().numpy()
    expected = np.array(sides).sum(0) - bias  # the head is linear, so adding states adds scores
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    with pytest.raises(PolysemeError, match="multiple_choice has no setting 'symmetric_pairs'"):
        MultipleChoiceTask.from_examples(questions(5), symmetric_pairs=True)
    with pytest.raises(PolysemeError, match="there is no second text"):
        task.encode([TextExample("x:1", "cat")], folder.tokenizer, 48)


# --- the auxiliary loss ----------------------------------------------------------------------------------------------


def run_step(model, batches):
    optim = OptimizerConfig(lr=0.0, max_grad_norm=0.0)
    run = TrainState(
        model, optim.build(model, model.trunk.layer_groups()), optim, ScheduleConfig(), 1, torch.device("cpu")
    )
    (report,) = train(run, [(batches, None)])
    return report, {n: p.grad.clone() for n, p in model.named_parameters()}


def double_model(folder, task, *extra):
    fam, spec = FAMILIES[folder.model.config.family], folder.model.config
    heads = {task.head_name: fam.task_head(task.head_name, task.output_labels, spec.trunk).replace(dropout=0.0)}
    return spec.replace(heads=heads | {n: spec.heads[n] for n in extra}).build(3).double()


@pytest.mark.parametrize("kind", ["pair", "both", "choice"])
def test_auxiliary_loss_weight_and_sum_law(kind, folders):
    """The gradient is the task's plus λ times the language model's, for any micro-batches."""
    folder = load_model(folders["gpt2"])
    task = CHOICE if kind == "choice" else PairClassificationTask(("no", "yes"), symmetric_pairs=kind == "both")
    data = task.encode(questions(12) if kind == "choice" else pairs(12), folder.tokenizer, 48)
    model = double_model(folder, task, "next")
    settings = FinetuneConfig(batch_size=12, lm_loss_weight=0.5)
    (whole,), _ = next(epoch_batches(task, data, settings, 0))
    whole = whole.for_trunk(model.config.trunk)
    report, gradient = run_step(model, [whole])
    targets = whole.targets["next"]
    assert targets.weight == 0.5 and targets.count == whole.inputs.layout.num_tokens - len(whole.inputs.layout.lengths)
    model.zero_grad()
    parts = {name: value / whole.targets[name].count for name, value in compute_losses(model, whole).items()}
    assert report.loss == pytest.approx({name: part.item() for name, part in parts.items()}, rel=1e-5)
    (parts[task.head_name] + 0.5 * parts["next"]).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(gradient[name], p.grad, atol=1e-7, rtol=1e-6)
    cut, _ = next(epoch_batches(task, data, settings.replace(micro_batch_tokens=40), 0))
    cut = [batch.for_trunk(model.config.trunk) for batch in cut]
    assert len(cut) > 2
    filled = [pad_to_bucket(batch.to("cpu"), 48) for batch in cut]  # as for CUDA graphs
    for name, other_gradient in [*run_step(model, cut)[1].items(), *run_step(model, filled)[1].items()]:
        torch.testing.assert_close(other_gradient, gradient[name], atol=1e-7, rtol=1e-6)


def test_every_token_but_the_first_is_predicted(folders):
    folder = load_model(folders["gpt2"])
    task = ClassificationTask(("no", "yes"))
    data = task.encode(
        [TextExample("", "cat dog", label="no"), TextExample("", "swan", label="yes")], folder.tokenizer, 48
    )
    ((batch,), _) = next(epoch_batches(task, data, FinetuneConfig(lm_loss_weight=0.5), 0))
    rows, values = batch.targets["next"].rows.tolist(), batch.targets["next"].labels.tolist()
    at = 0
    for length in batch.inputs.layout.lengths:
        inner = [i - at for i in rows if at <= i < at + length]
        assert inner == list(range(length - 1))
        at += length
    assert values == [int(batch.inputs.tokens[i + 1]) for i in rows]


def test_a_classifier_with_auxiliary_loss_is_still_a_classifier(folders, tmp_path):
    data = pairs()
    results = finetune(
        folders["gpt"],
        TaskData(PairClassificationTask(), data[:80], data[80:]),
        tmp_path / "r",
        QUICK.replace(lm_loss_weight=0.5),
    )
    rows = [json.loads(line) for line in (tmp_path / "r/log.jsonl").read_text().splitlines()]
    assert set(rows[0]["loss"]) == {"classify", "next"} and rows[-1]["loss"]["next"] < rows[0]["loss"]["next"]
    theirs, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "r/model", output_loading_info=True
    )
    assert type(theirs).__name__ == "OpenAIGPTForSequenceClassification"
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert evaluate(load_model(tmp_path / "r/model"), data[80:])["accuracy"] == results["mean"]["accuracy"]


@pytest.mark.parametrize(
    "family,task,dataset,weight,has_both_orders",
    [
        ("gpt", PairClassificationTask(), "", 0.5, False),  # whose pairs may have an order
        ("gpt", PairClassificationTask(), "glue/mrpc", 0.5, True),
        ("gpt", PairClassificationTask(symmetric_pairs=False), "glue/mrpc", 0.5, False),
        ("gpt", PairClassificationTask(), "glue/rte", 0.5, False),
        ("gpt", RegressionTask(), "", 0.5, True),
        ("gpt2", PairClassificationTask(), "glue/mrpc", None, False),
        ("bert", RegressionTask(), "", None, False),
    ],
)
def test_defaults_are_those_of_the_papers(family, task, dataset, weight, has_both_orders, folders, tmp_path):
    """Radford et al. 2018: λ 0.5 (§4.1), and both orders of a pair where neither comes first (§3.3)."""
    data = [dataclasses.replace(e, label=str(int(e.label == "yes"))) for e in pairs(12)]
    finetune(folders[family], TaskData(task, data, data, dataset_name=dataset), tmp_path / "r", QUICK.replace(steps=1))
    row = json.loads((tmp_path / "r/log.jsonl").read_text().splitlines()[0])
    chosen = json.loads((tmp_path / "r/results.json").read_text())["chosen"]
    assert ("next" in row["loss"]) == bool(weight) and chosen.get("lm_loss_weight", {}).get("value") == weight
    folder = load_model(tmp_path / "r/model")
    assert load_task(folder.metadata, folder.model.config).symmetric_pairs is has_both_orders


def test_the_defaults_can_be_turned_off(folders, tmp_path, run_cli):
    rows = "".join(f"{e.text}\t{e.pair}\t{int(e.label == 'yes')}\n" for e in pairs(12))
    (tmp_path / "pairs.tsv").write_text("text\tpair\tlabel\n" + rows)
    files = ("--train", tmp_path / "pairs.tsv", "--dev", tmp_path / "pairs.tsv", "--set", "steps=1")
    off = ("--lm-loss-weight", 0, "--no-symmetric-pairs")
    for name, flags in {"on": (), "off": off}.items():
        run_cli("finetune", folders["gpt"], "--task", "regression", *files, "--out", tmp_path / name, *flags)
        folder = load_model(tmp_path / name / "model")
        assert load_task(folder.metadata, folder.model.config).symmetric_pairs is (name == "on")
        assert ("next" in (tmp_path / name / "log.jsonl").read_text()) is (name == "on")


def test_one_batch_can_be_overfitted(folders):
    folder = load_model(folders["gpt"])
    data = CHOICE.encode(questions(8, seed=4), folder.tokenizer, 48)
    model = folder.model.config.replace(
        heads={**folder.model.config.heads, "choice": FAMILIES["gpt"].task_head("choice", ("score",), None)}
    ).build(0)
    (batch,), _ = next(epoch_batches(CHOICE, data, FinetuneConfig(batch_size=8, lm_loss_weight=0.5), 0))
    batch = batch.for_trunk(model.config.trunk)
    optim = OptimizerConfig(lr=3e-3, weight_decay=0.0)
    run = TrainState(model, optim.build(model, []), optim, ScheduleConfig("constant"), 150, torch.device("cpu"))
    last = list(train(run, [([batch], None)] * 150))[-1]
    assert last.loss["choice"] < 0.05 and last.loss["next"] < 1.6  # the first word of a text is unpredictable


def test_bad_settings(folders, tmp_path):
    data = pairs()
    with pytest.raises(PolysemeError, match="lm_loss_weight is for a causal language model, which bert is not"):
        finetune(
            folders["bert"],
            TaskData(PairClassificationTask(), data, data),
            None,
            FinetuneConfig(steps=1, lm_loss_weight=0.5),
        )
    with pytest.raises(PolysemeError, match=r"lm_loss_weight is -1\.0, expected 0 or more"):
        FinetuneConfig(lm_loss_weight=-1.0).validate()


# --- files -----------------------------------------------------------------------------------------------------------


def test_reading_choices(tmp_path):
    rows = [
        {"text": "a b", "choices": ["x", "y"], "label": 1}, {"prompt": "c", "choices": ["x", "y", "z"], "label": "z"},
        {"text": "d", "choices": ["2", "0", "1"], "label": "0"}, {"text": "e", "choices": ["x", "y"], "label": "0"},
    ]  # fmt: skip
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = MultipleChoiceTask.read(tmp_path / "q.jsonl")
    assert [(e.text, e.label) for e in examples] == [("a b", "1"), ("c", "2"), ("d", "1"), ("e", "0")]
    for row, message in {
        '{"text": "a", "choices": ["x"], "label": 0}': "there is one choice",
        '{"text": "a", "choices": ["x", "y"]}': "there is no key 'label'",
        '{"text": "a", "choices": ["x", "y"], "label": null}': r"the label \(label\) is missing",
        '{"text": "a", "choices": ["x", "y"], "label": 2}': "the label is '2': one of the choices is needed, or 0 to 1",
        '{"text": "a", "choices": ["x", "y"], "label": "w"}': "the label is 'w'",
        '{"text": "a", "choices": ["x", "y"], "label": true}': "the label is 'True'",
        '{"text": "a", "choices": "x", "label": 0}': "choices is 'x', not a list",
        '{"text": "a", "choices": ["x", ""], "label": 0}': "choices.1. is an empty text",
        '{"choices": ["x", "y"], "label": 0}': "there is no key 'text'",
    }.items():
        (tmp_path / "bad.jsonl").write_text(row + "\n")
        with pytest.raises(PolysemeError, match=message) as caught:
            MultipleChoiceTask.read(tmp_path / "bad.jsonl")
        assert "bad.jsonl:1" in str(caught.value) and "\n" not in str(caught.value)
    (tmp_path / "q.tsv").write_text("text\tlabel\na\tb\n")
    with pytest.raises(PolysemeError, match=r"multiple_choice reads \.jsonl, \.ndjson"):
        MultipleChoiceTask.read(tmp_path / "q.tsv")


def test_baselines_of_choices():
    data = questions(200)
    blind, surface = (
        baseline_metrics(MultipleChoiceTask, name, data[:150], data[150:])["accuracy"]
        for name in ("majority", "linear")
    )
    assert blind < 0.7 and surface > 0.9
