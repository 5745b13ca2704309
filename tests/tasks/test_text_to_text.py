"""Text-to-text tasks of T5: sources and targets, constrained answers, learning, model folders."""

import dataclasses
import json
import random

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import PolysemeError
from polyseme.evaluation.predict import evaluate, find_models, predict_ensemble
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData, epoch_batches
from polyseme.finetuning.finetune import answers_in_text, finetune
from polyseme.generation.constrained import extract_spans, score_answers
from polyseme.generation.sample import generate_tokens
from polyseme.generation.text import GenerationConfig
from polyseme.inference.prediction import predict, predict_encoded, select_task
from polyseme.objectives.losses import compute_losses
from polyseme.tasks import TASKS, load_task
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.coreference import CoreferenceTask
from polyseme.tasks.extractive_qa import ExtractiveQATask, QuestionExample
from polyseme.tasks.multiple_choice import ChoiceExample
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.tasks.text_templates import T5_TEMPLATES, TextToTextTemplate
from polyseme.tasks.text_to_text import encode_text_target
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear"]
SPOKEN = (
    "text: text1: text2: yes no choice1: choice2: choice3: choice1 choice2 choice3 question: context: classification "
    "pair regression choice which so it is 0.0 0.5 1.0 1.5 2.0 2.5 3 4 6 7 8 9"
)
SHORT = {"pair_classification": "pair", "multiple_choice": "choice", "extractive_qa": "span"}  # seeds of the draws
QUICK = FinetuneConfig(epochs=12, batch_size=16, optimizer=OptimizerConfig(lr=5e-3))
T5 = FAMILIES["t5"]


def examples(kind, n):
    """Examples that one word decides: in a text, as a choice or as the answer; in a pair, one word of each text."""
    draw, examples_of_kind = random.Random(SHORT.get(kind, kind)), []
    for i in range(n):
        one = draw.choice(WORDS)
        text = " ".join([*["so", "it"][: draw.randint(0, 2)], one, *["is"][: draw.randint(0, 1)]])
        if kind == "classification":
            examples_of_kind.append(TextExample(f"d:{i}", text, label="yes" if one < "d" else "no"))
        elif kind == "pair_classification":
            first = draw.choice(["so", "it"])
            examples_of_kind.append(
                TextExample(f"d:{i}", first, one, label="yes" if first == "so" and one < "d" else "no")
            )
        elif kind == "regression":
            examples_of_kind.append(TextExample(f"d:{i}", text, label=str(WORDS.index(one) / 2)))
        elif kind == "multiple_choice":
            right = draw.randrange(2)
            choices = draw.choices(["cat", "dog"], k=2)
            choices[right] = "wolf"
            examples_of_kind.append(ChoiceExample(f"d:{i}", "it", label=str(right), choices=tuple(choices)))
        else:
            examples_of_kind.append(
                QuestionExample(f"d:{i}", text, "which", answers=((one, text.index(one)),), id=str(i))
            )
    return examples_of_kind


def build_folder(path, dim):
    tokenizer = Tokenizer.train("unigram", iter([" ".join(WORDS), *WORDS, SPOKEN] * 30), 200).with_cls_position(
        T5.cls_position
    )
    sizes = {"num_layers": 2, "dim": dim, "num_heads": 2, "dropout": 0.0, "max_len": 48}
    save_model(path, T5.model_config(vocab_size=tokenizer.vocab_size, **sizes).build(0), tokenizer)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return build_folder(tmp_path_factory.mktemp("t5") / "m", 32)


@pytest.fixture(scope="module")
def run(base, tmp_path_factory):
    """A run of two seeds that keeps all models and the checkpoints of the last two epochs."""
    data, out = examples("classification", 140), tmp_path_factory.mktemp("run") / "r"
    train = data[:100] * 3
    settings = QUICK.replace(epochs=3.0)
    results = finetune(
        base,
        TaskData(ClassificationTask(), train, data[100:]),
        out,
        settings,
        RunOptions(seeds=2, keep_seeds=True, keep_checkpoints=2),
    )
    return out, data[100:], results


def text_task(kind, data, name=""):
    return TASKS[kind].from_examples(data).with_text_template(name, data)


# --- sources and targets ---------------------------------------------------------------------------------------------


def render(task, example, tokenizer):
    (one,) = task.codec.encode([example], tokenizer, 100)
    return tokenizer.decode(one.ids), tokenizer.decode(encode_text_target(one)), one


@pytest.mark.parametrize(("name", "kind", "example", "source", "target"), [
    ("glue/mnli", "pair_classification", TextExample("", "cat is", "it is", label="neutral"),
     "mnli hypothesis: it is premise: cat is", "neutral"),
    ("glue/sts-b", "regression", TextExample("", "cat", "dog", label="3.75"),
     "stsb sentence1: cat sentence2: dog", "3.8"),
    ("glue/cola", "classification", TextExample("", "so it is", label="0"), "cola sentence: so it is", "unacceptable"),
    ("superglue/copa", "multiple_choice", ChoiceExample("", "it is", label="1", choices=("cat", "dog")),
     "copa choice1: cat choice2: dog premise: it is", "True"),
    ("", "regression", TextExample("", "cat", label="1.5"), "regression text1: cat", "1.50"),
    ("", "multiple_choice", ChoiceExample("", "it", label="2", choices=("cat", "dog", "fish")),
     "choice choice1: cat choice2: dog choice3: fish text: it", "choice3"),
    ("squad/1.1", "extractive_qa", QuestionExample("", "so red it", "which", answers=(("red", 3),)),
     "question: which context: so red it", "red"),
])  # fmt: skip
def test_examples_as_text(base, name, kind, example, source, target):
    """Texts are those of appendix D of the paper; other tasks are preceded by their name or type."""
    texts = iter([source, target, "premise: hypothesis 0.123456789 True False a b"] * 30)
    tokenizer = Tokenizer.train("unigram", texts, 90)
    other = {"regression": "0.0", "multiple_choice": "0"}.get(kind, "other")
    more = {} if kind == "extractive_qa" else {"label": "1" if kind == "classification" else other}
    labels = [dataclasses.replace(example, **more)]
    source_text, target_text, one = render(text_task(kind, [example, *labels], name), example, tokenizer)
    assert (source_text, target_text) == (source, target)
    assert one.ids.tolist() == [*tokenizer.encode(source), one.text_targets.end_id] and not one.is_truncated


def test_choices_answered_by_their_text():
    """ReCoRD lists the entities without names, and the answer is one of them."""
    form, example = (
        T5_TEMPLATES["superglue/record"],
        ChoiceExample("", "so it is", label="1", choices=("cat", "dog", "cat fish")),
    )
    assert form.render_parts(example) == [
        ("record entities:", "cat"),
        (",", "dog"),
        (",", "cat fish"),
        ("passage:", "so it is"),
    ]
    assert form.choice_answers(example.choices) == ["cat", "dog", "cat fish"]


def test_numbers_are_rounded():
    """Numbers are rounded to 0.2 for STS-B as in the paper, else to about 25 steps of the training range."""
    sts = T5_TEMPLATES["glue/sts-b"]
    assert (
        sts.number_texts[:3] == ["0.0", "0.2", "0.4"] and sts.number_texts[-1] == "5.0" and len(sts.number_texts) == 26
    )
    assert [sts.number_texts[sts.nearest_number_index(x)] for x in (2.57, 2.6, 4.95, 7, -1)] == [
        "2.6",
        "2.6",
        "5.0",
        "5.0",
        "0.0",
    ]
    for low, high, step, first in ((-1, 1, 0.1, "-1.0"), (100, 3000, 100, "100"), (0, 1e-3, 5e-5, "0.00000")):
        data = [TextExample("", "x", label=str(value)) for value in (low, high)]
        form = text_task("regression", data).text_template
        assert form.step == pytest.approx(step) and form.number_texts[0] == first and 15 < len(form.number_texts) < 40
        assert TextToTextTemplate.from_json(form.to_json(), "") == form


def test_which_models_answer_in_text():
    """Tagging, coreference and a T5 without decoder use heads."""
    spec = T5.model_config("tiny")
    bert = FAMILIES["bert"]
    assert not any(answers_in_text(T5, spec.trunk, task) for task in (TaggingTask(), CoreferenceTask()))
    assert answers_in_text(T5, spec.trunk, ClassificationTask())
    assert not answers_in_text(T5, spec.trunk.replace(decoder=None), ClassificationTask())
    assert not answers_in_text(bert, bert.model_config("tiny").trunk, ClassificationTask())


def test_long_examples_are_rejected_or_truncated(base):
    tokenizer = load_model(base).tokenizer
    data = [TextExample("f:1", "cat " * 40, "dog fish", label="yes"), TextExample("f:2", "cat", "dog", label="no")]
    task = text_task("pair_classification", data).codec
    with pytest.raises(PolysemeError, match="1 of 2 examples are longer than 30 tokens, the first at f:1 with"):
        task.encode(data, tokenizer, 30)
    cut, whole = task.encode(data, tokenizer, 30, truncate=True)
    assert cut.is_truncated and not whole.is_truncated and len(cut.ids) == 30
    assert tokenizer.decode(cut.ids).endswith("text2: dog fish")  # the longer text is truncated
    with pytest.raises(PolysemeError, match="max_len 7 leaves no room for text beside the words of 'pair text1:"):
        task.encode(data, tokenizer, 7, truncate=True)


def test_errors(base, tmp_path):
    tokenizer, data = load_model(base).tokenizer, examples("pair_classification", 8)
    with pytest.raises(PolysemeError, match="the answers 'Ω' and 'Ж' are the same tokens to this tokenizer"):
        text_task("classification", [TextExample("", "a", label=x) for x in "ΩЖ"]).codec.encode(
            [TextExample("", "a")], tokenizer, 48
        )
    with pytest.raises(PolysemeError, match="x:1: this task reads pairs, and there is no second text"):
        text_task("pair_classification", data).codec.encode([TextExample("x:1", "cat", label="yes")], tokenizer, 48)
    with pytest.raises(PolysemeError, match="symmetric_pairs adds two states, and a model that answers in text"):
        finetune(base, TaskData(PairClassificationTask(symmetric_pairs=True), data, data), None, QUICK)
    with pytest.raises(PolysemeError, match="lm_loss_weight is for a causal language model, which t5 is not"):
        finetune(base, TaskData(PairClassificationTask(), data, data), None, QUICK.replace(lm_loss_weight=0.5))
    with pytest.raises(PolysemeError, match="has to end in"):
        TextToTextTemplate("cola: {text} is")
    with pytest.raises(PolysemeError, match="the label 'maybe' was never seen in training"):
        text_task("pair_classification", data).codec.encode([TextExample("", "a", "b", label="maybe")], tokenizer, 48)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_cached_scores_match_uncached_ones(base):
    """Answers differ in number and length, and some share prefixes; compare with uncached and single scores."""
    folder = load_model(base)
    model, end, start = (
        folder.model.double(),
        folder.tokenizer.special_token_ids.sep,
        folder.tokenizer.special_token_ids.pad,
    )
    sources = [folder.tokenizer.encode(text) for text in ("cat", "dog it is", "so it is wolf")]
    answers = [[[5, 6, end], [5, 7, 8, end], [end]], [[9, end]], [[5, 6, 7, 8, end], [5, 6, 7, end], [6, end]]]
    prompts = [[start]] * 3
    log_probs = score_answers(model, prompts, answers, sources)
    for mine, afresh in zip(log_probs, score_answers(model, prompts, answers, sources, use_cache=False)):
        np.testing.assert_allclose(mine, afresh, atol=1e-10)
    for i, candidates in enumerate(answers):
        (alone,) = score_answers(model, [[start]], [candidates], [sources[i]])
        np.testing.assert_allclose(log_probs[i], alone, atol=1e-10)
    texts = [[7, 5, 6, 5, 8], [9], [10, 11, 10, 12]]
    stretched = extract_spans(model, prompts, texts, 3, end, sources)
    np.testing.assert_allclose(
        stretched, extract_spans(model, prompts, texts, 3, end, sources, use_cache=False), atol=1e-10
    )
    chances = score_answers(
        model, prompts, [[[*t[s.first : s.last + 1], end], [end]] for s, t in zip(stretched, texts)], sources
    )
    for one, (score, none) in zip(stretched, chances):
        assert 0 <= one.last - one.first < 3
        assert (one.score, one.no_answer_score) == pytest.approx((score, none), abs=1e-10)


@pytest.mark.parametrize("kind", ["classification", "multiple_choice", "regression", "extractive_qa"])
def test_only_candidate_answers_are_predicted(base, kind):
    """Even an untrained model, which would write something else, predicts candidate answers only."""
    folder, data = load_model(base), examples(kind, 12)
    task = text_task(kind, data)
    encoded = list(task.codec.encode(data, folder.tokenizer, 48, use_labels=False))
    predictions = predict_encoded(folder.model, task, data, encoded)
    if kind == "extractive_qa":
        assert all(p.text and p.text == e.context[p.start : p.end] for p, e in zip(predictions, data))
    elif kind == "regression":
        assert {p.number for p in predictions} <= {float(n) for n in task.text_template.number_texts}
    else:
        labels = set(task.labels) if kind == "classification" else {"0", "1"}
        assert {p.label for p in predictions} <= labels and all(set(p.probabilities) == labels for p in predictions)
        free = generate_tokens(
            folder.model,
            [[0]] * 12,
            8,
            sources=[e.ids.tolist() for e in encoded],
            eos_token_ids=[encoded[0].text_targets.end_id],
        )
        known = {tuple(a[:-1].tolist()) for a in encoded[0].text_targets.answer_ids}
        assert not {text.tokens for text in free} & known
    alone = [
        predict_encoded(folder.model, task, [e], task.codec.encode([e], folder.tokenizer, 48))[0] for e in data[:3]
    ]
    assert [p.value for p in alone] == [p.value for p in predictions[:3]]


# a narrower model learns multiple choice more reliably
@pytest.mark.parametrize(
    ("kind", "dim", "epochs"),
    [
        ("pair_classification", 32, 12),
        pytest.param("regression", 32, 12, marks=pytest.mark.slow),
        pytest.param("multiple_choice", 16, 18, marks=pytest.mark.slow),
    ],
)
def test_text_tasks_are_learned(tmp_path, kind, dim, epochs):
    """Classification is learned in `run`, extractive question answering in `test_extractive_qa.py`."""
    data = examples(kind, 160)
    settings = QUICK.replace(epochs=float(epochs))
    results = finetune(
        build_folder(tmp_path / "m", dim), TaskData(TASKS[kind](), data[:120], data[120:]), None, settings
    )
    assert results["mean"][results["primary_metric"]] > 0.95


def test_any_micro_batches_give_the_same_loss(base):
    folder, data = load_model(base), examples("extractive_qa", 12)
    task = text_task("extractive_qa", data)
    encoded = list(task.codec.encode(data, folder.tokenizer, 40))
    sums = []
    for size in (10_000, 40):
        batches, _ = next(epoch_batches(task, encoded, FinetuneConfig(batch_size=12, micro_batch_tokens=size), 0))
        sums.append((sum(compute_losses(folder.model, b)["next"].item() for b in batches),
                     sum(b.targets["next"].count for b in batches)))  # fmt: skip
    assert len(batches) > 3 and sums[0] == pytest.approx(sums[1], rel=1e-5)
    assert sums[0][1] == sum(len(encode_text_target(e)) for e in encoded)


# --- the folder ------------------------------------------------------------------------------------------------------


def test_transformers_gives_the_same_scores(run):
    """The scores of labels and the predictions equal those of `transformers`."""
    transformers = pytest.importorskip("transformers")
    out, dev, results = run
    assert min(row["accuracy"] for row in results["seeds"]) > 0.95
    theirs, info = transformers.T5ForConditionalGeneration.from_pretrained(out / "model", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    folder = load_model(out / "model")
    task = load_task(folder.metadata, folder.model.config)
    assert (
        task.text_template
        and task.task_type == "classification"
        and task.labels == ("no", "yes")
        and not folder.newly_initialized
    )
    best = next(row for row in results["seeds"] if row["seed"] == results["best_seed"])
    assert evaluate(folder, dev) == {name: value for name, value in best.items() if name != "seed"}
    for one, prediction in zip(task.codec.encode(dev[:6], folder.tokenizer, 48), predict(folder, dev[:6])):
        sums = []
        for answer in one.text_targets.answer_ids:
            read = torch.tensor([one.text_targets.start_id, *answer[:-1]])[None]
            with torch.no_grad():
                scores = theirs.eval()(input_ids=torch.tensor(one.ids)[None], decoder_input_ids=read).logits[0]
            sums.append(scores.log_softmax(-1)[torch.arange(len(answer)), torch.tensor(answer)].sum().item())
        shares = np.exp(sums) / np.exp(sums).sum()
        assert list(prediction.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-4)
    (plain,) = polyseme.load(out / "model").predict(["so it bear"])
    assert plain.label == "yes"
    (free,) = polyseme.load(out / "model").generate(
        "classification text: so it bear", GenerationConfig(max_new_tokens=5)
    )
    assert free.text == "yes"


def test_ensembles_over_checkpoints(run, base, tmp_path, run_cli, rejects):
    out, dev, results = run
    models = find_models(out)
    step = results["steps"] // 3
    assert models == [out / f"checkpoints/seed-{s}/step-{n * step}" for s in (0, 1) for n in (2, 3)]
    assert find_models(out / "checkpoints/seed-1") == models[2:] and find_models(models[0]) == [models[0]]
    assert sorted(p.name for p in (out / "checkpoints/seed-0").iterdir()) == sorted(p.name for p in models[:2])
    last, whole = load_model(models[1]), load_model(out / "seeds/0")
    assert all(torch.equal(a, b) for a, b in zip(last.model.state_dict().values(), whole.model.state_dict().values()))
    assert last.metadata["step"] == 3 * step and last.metadata["dev"]["accuracy"] == results["seeds"][0]["accuracy"]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": e.text, "label": e.label}) + "\n" for e in dev))
    record = json.loads(run_cli("evaluate", out, "--ensemble", "--data", tmp_path / "d.jsonl", "--json"))
    assert record["accuracy"] > 0.95 and record["parameters"] == 4 * results["parameters"]
    _, together = predict_ensemble([load_model(path) for path in models], dev)
    shares = [predict(load_model(path), dev[:1])[0].probabilities["yes"] for path in models]
    assert together[0].probabilities["yes"] == pytest.approx(np.mean(shares), abs=1e-6)
    rejects("evaluate", base, "--ensemble", "--data", tmp_path / "d.jsonl", match="--ensemble is for several models")
    files = ("--train", tmp_path / "d.jsonl", "--dev", tmp_path / "d.jsonl") * 2
    rejects("finetune", base, "--task", "a=pair_classification", "--task", "b=pair_classification", *files,
            "--keep-checkpoints", 1, "--out", tmp_path / "x",
            match="--keep-checkpoints are for one task")  # fmt: skip


def test_ensemble_of_text_answers(base, tmp_path):
    data = examples("extractive_qa", 20)
    finetune(
        base,
        TaskData(ExtractiveQATask(), data, data),
        tmp_path / "r",
        QUICK.replace(steps=3),
        RunOptions(seeds=2, keep_seeds=True),
    )
    folders = [load_model(path) for path in find_models(tmp_path / "r")]
    _, predictions = predict_ensemble(folders, data)
    each = [predict(folder, data) for folder in folders]
    for joint, *members in zip(predictions, *each):
        assert joint.text in {one.text for one in members}
    _, twice = predict_ensemble([folders[0], folders[0]], data)
    assert [p.text for p in twice] == [p.text for p in each[0]]
    assert twice[0].null_score_diff == pytest.approx(each[0][0].null_score_diff, abs=1e-6)


def test_several_tasks_share_one_head(base, tmp_path):
    kinds = ("classification", "regression")
    jobs = [TaskData(TASKS[kind](), examples(kind, 20), examples(kind, 6), f"my-{kind}") for kind in kinds]
    tags = [TaggingExample(f"t:{i}", words=("cat", "dog"), tags=("A", "B")) for i in range(6)]
    settings = QUICK.replace(steps=5)
    finetune(base, [*jobs, TaskData(TaggingTask(), tags, tags, "tags")], tmp_path / "r", settings)
    folder = load_model(tmp_path / "r/model")
    assert set(folder.model.heads) == {"next", "tag@tags"}
    for job in jobs:
        one = select_task(folder, job.name)
        assert one.metadata["task"]["text_template"]["template"].startswith(f"{job.name} text")
        results = json.loads((tmp_path / "r/tasks" / job.name / "results.json").read_text())
        assert evaluate(one, job.dev)[results["primary_metric"]] == results["mean"][results["primary_metric"]]
    assert predict(select_task(folder, "tags"), tags)[0].tags


def test_gradual_unfreezing(base):
    """Without a new head, unfreezing starts at the last layer of the decoder."""
    data = examples("pair_classification", 32)
    results = finetune(
        base,
        TaskData(PairClassificationTask(), data, data),
        None,
        QUICK.replace(epochs=4.0, unfreeze_every=0.5, num_frozen_groups=1),
    )
    assert results["steps"] == 8
