"""Attribution: complete for every family, equal to `transformers` and to differences of scores, errors in one line."""

import math
import threading

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import PolysemeError
from polyseme.finetuning.config import FeatureNetworkSettings
from polyseme.finetuning.frozen import build_model_config
from polyseme.inference.feature_extraction import FeatureEncoder
from polyseme.inference.feature_model import FeatureModel, FeatureReader
from polyseme.inference.inspection.attribution import METHODS
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.tagging import TaggingTask
from tests.support.small_models import save_small_model

WORDS = ["the", "old", "cat", "sees", "the", "dog"]
MASKED = "the old [MASK] sees the dog"


@pytest.fixture(scope="module")
def bert(tiny_folders):
    return polyseme.load(tiny_folders["bert"], device="cpu")


@pytest.fixture(scope="module")
def gpt2(tiny_folders):
    return polyseme.load(tiny_folders["gpt2"], device="cpu")


@pytest.fixture(scope="module")
def task_model(tmp_path_factory):
    """Return a function that builds the model of a task, with a head far from its initial weights."""
    folder = tmp_path_factory.mktemp("tasks")

    def build(task, family="bert"):
        path = folder / "-".join([family, task.task_type, getattr(task, "decoder", ""), *getattr(task, "labels", ())])
        return polyseme.load(path if path.exists() else save_small_model(path, family, task), device="cpu")

    return build


def without(index, words=WORDS):
    return " ".join(word for i, word in enumerate(words) if i != index)


def test_integrated_gradients_are_complete_for_every_family(tiny_folders):
    families = []
    for name, folder in tiny_folders.items():
        model = polyseme.load(folder, device="cpu")
        if "attribute" not in model.capabilities:
            continue
        families.append(name)
        mask = model.tokenizer.mask_token if "next" not in model.model.heads else None
        attribution = model.attribute(" ".join(["the old", mask or "cat", "sees the dog"]))
        change = attribution.score - attribution.baseline_score
        assert attribution.completeness_error <= 0.01, name
        assert sum(attribution.scores) == pytest.approx(change, rel=0.01), name
        assert sum(attribution.word_scores) == pytest.approx(change, rel=0.01), name
        assert attribution.words == (*WORDS[:2], mask or "cat", *WORDS[3:]), name
        assert [word is None for word in attribution.word_ids].count(False) >= len(WORDS)
    assert len(families) >= 18 and {"t5", "elmo", "xlnet", "transformer_xl", "ulmfit", "seq2seq"} <= set(families)


def their_gradients(tiny_folders, label, contrast):
    """Return gradient × input and integrated gradients of the tokens, by autograd over `transformers`."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertForMaskedLM.from_pretrained(tiny_folders["bert"]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folders["bert"])
    encoded = tokenizer(MASKED, return_tensors="pt")
    row = encoded["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    labels = tokenizer.convert_tokens_to_ids([label, contrast])
    baseline_ids = torch.full_like(encoded["input_ids"], tokenizer.mask_token_id)
    baseline_ids[0, [0, -1]] = encoded["input_ids"][0, [0, -1]]
    vectors, baseline = (theirs.bert.embeddings(ids).detach() for ids in (encoded["input_ids"], baseline_ids))

    def grad(x):
        x = x.clone().requires_grad_()
        handle = theirs.bert.embeddings.register_forward_hook(lambda *_: x)
        logits = theirs(**encoded).logits[0, row]
        handle.remove()
        return torch.autograd.grad(logits[labels[0]] - logits[labels[1]], x)[0]

    steps = [grad(baseline + (k + 0.5) / 50 * (vectors - baseline)) for k in range(50)]
    integrated = ((vectors - baseline) * torch.stack(steps).mean(0)).sum(-1)[0]
    return (grad(vectors) * vectors).sum(-1)[0].tolist(), integrated.tolist()


def test_gradients_against_transformers(tiny_folders, bert):
    gradient_x_input, integrated = their_gradients(tiny_folders, "cat", "dog")
    for method, expected in (("gradient_x_input", gradient_x_input), ("integrated_gradients", integrated)):
        attribution = bert.attribute(MASKED, "cat", contrast="dog", method=method)
        assert attribution.scores == pytest.approx(expected, abs=2e-4), method


def test_a_linear_model_is_exact(task_model):
    model = task_model(ClassificationTask(labels=("a", "b")), "word2vec")
    attribution = model.attribute("cat dog", "a", contrast="b", baseline="zero")
    vectors = model.model.trunk.token_embeddings.detach()[model.tokenizer.encode("cat dog")]
    head = model.model.heads["classify"]
    assert isinstance(head.config, ClassificationHeadConfig) and head.dense is None
    direction = (head.linear.weight[0] - head.linear.weight[1]).detach()
    assert attribution.scores == pytest.approx((vectors @ direction / 2).tolist(), abs=1e-6)
    products = model.attribute("cat dog", "a", contrast="b", baseline="zero", method="gradient_x_input")
    assert products.scores == pytest.approx(attribution.scores, abs=1e-6)


def test_masks_are_compared_with_fill(bert):
    def log_prob(text, token):
        (mask, *_) = bert.fill(text, top_k=bert.tokenizer.vocab_size)
        return math.log(next(each.probability for each in mask if each.token == token))

    removed = bert.attribute(MASKED, "cat", method="leave_one_out")
    words = MASKED.split()
    assert removed.score == pytest.approx(log_prob(MASKED, "cat"), abs=1e-5)
    for i in (0, 1, 4, 5):
        change = removed.score - log_prob(without(i, words), "cat")
        assert removed.word_scores[i] == pytest.approx(change, abs=1e-5)
    erased = bert.attribute(MASKED, "cat", contrast="dog", method="erasure")
    text = "the old [MASK] sees the [MASK]"
    change = erased.score - (log_prob(text, "cat") - log_prob(text, "dog"))
    assert erased.word_scores[5] == pytest.approx(change, abs=1e-5) and erased.word_scores[2] == 0
    other = bert.attribute(MASKED, "cat", contrast="dog", method="erasure", baseline="unk")
    assert other.word_scores == erased.word_scores and other.baseline_score != erased.baseline_score


def test_pairs_are_read_with_their_segments(bert, task_model):
    model = task_model(PairClassificationTask(labels=("a", "b")))
    attribution = model.attribute("the cat", "a", pair="the old dog", method="leave_one_out")
    for words, text in ((0, ("cat", "the old dog")), (3, ("the cat", "the dog"))):
        change = attribution.score - math.log(model.predict(text).probabilities["a"])
        assert attribution.word_scores[words] == pytest.approx(change, abs=1e-6)
    assert attribution.pair_start == 2
    ids, segments = bert._packed.encode_sequence("the [MASK]", "the old dog")
    ((_, inputs),) = bert._packed.batches([ids], [segments])
    expected = next(bert._packed.log_probs("masked", inputs, torch.tensor([2])))[0, bert.tokenizer.encode("cat")[0]]
    score = bert.attribute("the [MASK]", "cat", pair="the old dog", method="erasure").score
    assert score == pytest.approx(expected.item(), abs=1e-5)


def test_next_tokens_are_compared_with_score(gpt2):
    text, label = " ".join(WORDS[:5]), "dog"

    def log_prob(context):
        return gpt2.score(f"{context} {label}").log_prob - gpt2.score(context).log_prob

    attribution = gpt2.attribute(text, label, method="leave_one_out")
    assert attribution.score == pytest.approx(log_prob(text), abs=1e-4)
    for i in range(1, 5):
        change = attribution.score - log_prob(without(i, WORDS[:5]))
        assert attribution.word_scores[i] == pytest.approx(change, abs=1e-4)


def test_classes_are_compared_with_predict(task_model):
    model = task_model(ClassificationTask(labels=("a", "b", "c")))
    text = " ".join(WORDS)
    attribution = model.attribute(text, "b", method="leave_one_out")
    probability = model.predict(text).probabilities["b"]
    assert attribution.score == pytest.approx(math.log(probability), abs=1e-5)
    for i in range(6):
        change = attribution.score - math.log(model.predict(without(i)).probabilities["b"])
        assert attribution.word_scores[i] == pytest.approx(change, abs=1e-5)
    assert model.attribute(text).label == model.predict(text).label


@pytest.mark.parametrize("method", METHODS)
def test_all_targets(task_model, method):
    labels = ("a", "b")
    tagger = task_model(TaggingTask(labels=("O", "B-X", "I-X")))
    crf = task_model(TaggingTask(labels=("O", "B-X", "I-X"), decoder="crf"))
    cases = [
        (task_model(PairClassificationTask(labels=labels)), ("the cat", "a"), {"pair": "the dog", "contrast": "b"}),
        (task_model(RegressionTask()), ("the cat sees",), {}),
        (tagger, ("the cat sees", "B-X@cat"), {"contrast": "O"}),
        (crf, ("the cat sees", "3"), {}),
        (task_model(ExtractiveQATask()), ("the old cat sees the dog", "old cat"), {"pair": "who sees"}),
    ]
    for model, arguments, options in cases:
        attribution = model.attribute(*arguments, method=method, **options)
        assert (
            len(attribution.words)
            == len(attribution.word_scores)
            == sum(len(text.split()) for text in (arguments[0], options.get("pair", "")))
        )
        assert any(attribution.word_scores) and np.isfinite(attribution.scores).all()
        if method == "integrated_gradients":
            assert attribution.completeness_error <= 0.01


@pytest.mark.parametrize("task,text,label,where", [
    (ClassificationTask(labels=("a", "b")), "the old cat sees", "a", "input"),
    (TaggingTask(labels=("O", "B-X", "I-X"), decoder="crf"), "the old cat", "cat", "both"),
])  # fmt: skip
def test_models_over_features(tiny_folders, task, text, label, where):
    """The features of words are attributed; those of a word that is left out have no part in the network."""
    reader = FeatureReader((FeatureEncoder.load(tiny_folders["elmo"]),), ("scalar_mix",), {"cat": 1}, None)
    settings = FeatureNetworkSettings(name="bilstm", lstm_dim=6, word_dim=4, join_at=where)
    model = FeatureModel(
        tiny_folders["elmo"], build_model_config([task], reader, settings).build(3).eval(), task, reader, {}
    )
    attribution = model.attribute(text, label)
    assert attribution.completeness_error <= 0.01 and attribution.words == tuple(text.split())
    assert attribution.baseline == "zero" and all(attribution.word_scores)
    removed = model.attribute(text, label, method="leave_one_out")
    assert removed.word_scores == model.attribute(text, label, method="erasure").word_scores
    assert removed.score == pytest.approx(attribution.score) and all(removed.word_scores)


def test_the_scores_of_tags_and_numbers_are_those_of_predict(task_model):
    for decoder in ("softmax", "crf"):
        tagger = task_model(TaggingTask(labels=("O", "B-X", "I-X"), decoder=decoder))
        tagging = tagger.predict(("the", "cat", "sees"))
        for number, (tag, probability) in enumerate(zip(tagging.tags, tagging.probabilities), 1):
            attribution = tagger.attribute("the cat sees", str(number), method="erasure")
            assert attribution.label.startswith(f"{tag}@")
            assert attribution.score == pytest.approx(math.log(probability), abs=1e-5)
    regression = task_model(RegressionTask())
    assert regression.attribute("the cat").score == pytest.approx(regression.predict("the cat").number, abs=1e-5)
    answers = task_model(ExtractiveQATask())
    answer = answers.answer("the old cat", "who sees")
    attribution = answers.attribute("the old cat", pair="who sees")
    assert attribution.label == answer.text
    assert attribution.score == pytest.approx(math.log(answer.probability), abs=1e-4)


def test_answers_in_text_are_compared_with_predict(tmp_path):
    task = ClassificationTask(labels=("cat", "dog")).with_text_template("animals", [])
    model = polyseme.load(save_small_model(tmp_path / "t5", "t5", metadata={"task": task.to_json()}), device="cpu")
    attribution = model.attribute("the old cat", "dog", method="leave_one_out")
    assert attribution.words == ("the", "old", "cat") and "animals" not in attribution.words
    assert attribution.score == pytest.approx(math.log(model.predict("the old cat").probabilities["dog"]), abs=1e-4)
    change = attribution.score - math.log(model.predict("the cat").probabilities["dog"])
    assert attribution.word_scores[1] == pytest.approx(change, abs=1e-4)
    assert model.attribute("the old cat", "dog").completeness_error <= 0.01


def test_a_sentinel_is_compared_with_score(tiny_folders):
    t5 = polyseme.load(tiny_folders["t5"], device="cpu")
    sentinel = t5.tokenizer.convert_ids_to_tokens(t5.tokenizer.sentinel_ids[:1])[0]
    words = [token[1:] for token in t5.tokenizer.vocabulary if token[0] == "▁" and token[1:].isalpha()]
    word = next(word for word in words if len(t5.tokenizer.encode(word)) == 1)
    attribution = t5.attribute(f"the old {sentinel} sees the dog", word, method="erasure")
    assert sentinel in attribution.words and attribution.word_scores[attribution.words.index(sentinel)] == 0
    expected = t5.score(f"the old {word} sees the dog", spans=(8, 8 + len(word)))
    assert expected.num_tokens == 1 and attribution.score == pytest.approx(expected.log_prob, abs=1e-4)


def test_the_subject_decides_the_verb():
    """The bundled model knows that the keys are, whatever stands before the verb."""
    model = polyseme.load("mini", device="cpu")
    attribution = model.attribute("The keys to the cabinet [MASK] on the table.", "are", contrast="is")
    assert attribution.completeness_error < 0.01 and attribution.score > 3
    assert attribution.words[np.argmax(attribution.word_scores)] == "keys"


def test_several_texts_masks_and_labels(bert):
    one = bert.attribute(MASKED, "cat")
    two = bert.attribute([MASKED, MASKED], ["cat", "dog"])
    assert two[0] == one and two[1].label == "dog"
    assert [each.label for each in bert.attribute([MASKED] * 2, "cat")] == ["cat", "cat"]
    text = "the [MASK] sees the [MASK]"
    first, second = (bert.attribute(text, f"dog@{number}", method="erasure") for number in (1, 2))
    assert first == bert.attribute(text, "dog", method="erasure") and first.score != second.score
    assert second.score == pytest.approx(
        math.log(next(p.probability for p in bert.fill(text, top_k=400)[1] if p.token == "dog")), abs=1e-5
    )


def test_a_model_is_shared_with_other_threads(bert):
    expected, vectors, stop = bert.embed("the cat"), [], threading.Event()

    def embed():
        while not stop.is_set():
            vectors.append(bert.embed("the cat"))

    thread = threading.Thread(target=embed)
    thread.start()
    for _ in range(5):
        bert.attribute(MASKED, "cat")
    stop.set()
    thread.join()
    assert vectors and all(np.allclose(each, expected, atol=1e-6) for each in vectors)
    assert not bert.model.trunk.embeddings._forward_hooks


def test_bad_input(bert, gpt2, task_model, tiny_folders):
    classifier = task_model(ClassificationTask(labels=("good", "bad")))
    tagger = task_model(TaggingTask(labels=("O", "B-X", "I-X")))
    for model, arguments, options, message in [
        (bert, ("the cat", "dog"), {}, r"there is no \[MASK\] in 'the cat'"),
        (bert, (MASKED, "catdogs"), {}, r"'catdogs' is \d tokens of the model \(.*\), and one is predicted"),
        (bert, (MASKED, "dog@2"), {}, "asks for mask 2, and the text has 1"),
        (bert, (MASKED, "dog"), {"contrast": "catdogs"}, "'catdogs' is"),
        (bert, (MASKED, "dog"), {"method": "erasures"}, "did you mean 'erasure'"),
        (bert, (MASKED, "dog"), {"baseline": "masked"}, "did you mean 'mask'"),
        (bert, (MASKED + " cat" * 60, "dog"), {}, "tokens is longer than the model reads"),
        (bert, ("", "dog"), {}, "no tokens"),
        (bert, ("[MASK]", "dog"), {}, r"no words to attribute 'dog' to: '\[MASK\]'"),
        (bert, (MASKED, "dog"), {"contrast": "dog"}, "are both 'dog'"),
        (gpt2, ("the", "dog"), {"pair": "cat"}, "`pair` has no effect"),
        (gpt2, ("the", "dog"), {"baseline": "mask"}, "no such token; valid: "),
        (classifier, ("the cat", "god"), {}, "the label 'god' was never seen in training; did you mean 'good'"),
        (classifier, ("the cat", "good"), {"contrast": "x"}, "'x' was never seen"),
        (classifier, ("the cat " * 40, "good"), {}, "longer than"),
        (tagger, ("the cat", "B-X@dig"), {}, "'dig' is no word of the text"),
        (tagger, ("the cat", "B-X"), {}, "write B-X@WORD"),
        (tagger, ("the cat", "B-Y@cat"), {}, "did you mean 'B-X'"),
        (task_model(RegressionTask()), ("the cat", "3"), {}, "predicts one number: use 'value'"),
        (task_model(RegressionTask()), ("the cat",), {"contrast": "3"}, "predicts one number"),
        (task_model(ExtractiveQATask()), ("the cat", "dog"), {"pair": "who"}, "'dog' is not in the text"),
        (polyseme.load(tiny_folders["word2vec"]), ("the cat",), {}, "cannot attribute .* which supports encode, embed"),
        (bert, ([MASKED] * 2, ["dog"]), {}, "lengths, 2 and 1"),
    ]:
        with pytest.raises(PolysemeError, match=message):
            model.attribute(*arguments, **options)
