"""Coreference: candidate spans, pruning, loss, packing, segments, and models that learn the task."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import PolysemeError
from polyseme.evaluation.predict import evaluate, predict_ensemble
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FeatureNetworkSettings, FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, FeatureInputs, train_on_features
from polyseme.inference.feature_model import FeatureModel
from polyseme.inference.prediction import predict
from polyseme.nn.heads.coreference import CoreferenceHeadConfig, select_non_crossing
from polyseme.objectives.losses import compute_losses
from polyseme.tasks.coreference import CoreferenceTask, make_document
from polyseme.tasks.readers.conll2012 import format_conll
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model
from tests.support.cases import supported_args
from tests.support.commands import cli
from tests.support.tasks import baseline_metrics

WOMEN, MEN = ["Ann", "Eve", "Mary Lee"], ["Bob", "Tom", "Mr Hill"]
SMALL = CoreferenceHeadConfig(
    max_span_width=3, top_span_ratio=0.8, max_antecedents=8, hidden_dim=24, feature_dim=8, dropout=0.0
)


def documents(n, seed=0, most=4):
    """Documents about a woman and a man, named or referred to by a pronoun; a single mention is in no cluster."""
    draw, examples = random.Random(seed), []
    for i in range(n):
        people = {"she": draw.choice(WOMEN), "he": draw.choice(MEN)}
        chains: dict[str, list[tuple[int, int]]] = {"she": [], "he": []}
        text: list[list[str]] = []
        for _ in range(draw.randint(2, most)):
            words: list[str] = []
            for more in (["saw"], ["."]) if draw.random() < 0.4 else (["left", "."],):
                who = draw.choice(["she", "he"])
                mention = [who] if chains[who] and draw.random() < 0.5 else people[who].split()
                first = sum(map(len, text)) + len(words)
                chains[who].append((first, first + len(mention) - 1))
                words += [*mention, *more]
            text.append(words)
        clusters = tuple(sorted(tuple(chain) for chain in chains.values() if len(chain) > 1))
        examples.append(replace(make_document(text, f"d{i}"), clusters=clusters))
    return examples


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders_by_family = {}
    lines = [" ".join(e.words) for e in documents(40, 9)] * 5
    for name in ("bert", "gpt2", "t5", "elmo"):
        family = FAMILIES[name]
        tokenizer = Tokenizer.train(family.tokenizer, iter(lines), 60 if name == "t5" else 300).with_cls_position(
            family.cls_position
        )
        sizes = {"num_layers": 2, "dim": 32, "num_heads": 2, "vocab_size": tokenizer.vocab_size, "max_len": 40}
        free = {"dropout": 0.0, "attention_dropout": 0.0} if name != "elmo" else {}
        spec = family.model_config(
            **supported_args(family, **sizes), **free, **({"init_std": 0.1} if name == "bert" else {})
        )
        folders_by_family[name] = tmp_path_factory.mktemp(name)
        save_model(folders_by_family[name], spec.build(0), tokenizer)
    return folders_by_family


def load_with_head(folders, dtype=torch.float64, family="bert", spec=SMALL):
    folder = load_model(folders[family], heads={"coreference": spec})
    folder.model.to(dtype)
    return folder, CoreferenceTask(head=spec)


def select_states(folder, task, encoded):
    batch, order = task.collate(encoded)
    last = folder.model.trunk(batch.inputs).hidden
    head = folder.model.heads["coreference"]
    return (
        head,
        head.select_states(last, batch.inputs.layout, batch.targets["coreference"].rows, folder.model.trunk.pool),
        last,
        order,
    )


@torch.no_grad()
def test_candidates_match_the_paper(folders):
    """Candidates are all spans of a sentence: first and last token, attention-weighted tokens, width."""
    folder, task = load_with_head(folders)
    (example,) = documents(1, 3)
    encoded = task.encode([example], folder.tokenizer, 40)
    head, words, last, _ = select_states(folder, task, encoded)
    starts, ends, spans, _ = head._enumerate_candidates(words)
    expected = []
    begin = 0
    for size in example.document.sentence_lengths:
        expected += [(a, b) for a in range(begin, begin + size) for b in range(a, min(a + 3, begin + size))]
        begin += size
    assert list(zip(starts.tolist(), ends.tolist())) == expected
    rows = encoded[0].positions
    for (a, b), span in zip(expected, spans):
        tokens = last[rows[a, 0] : rows[b, 1] + 1]
        attended = (head.token_attention(tokens).softmax(0) * tokens).sum(0)
        width = head.width_embeddings.weight[b - a]
        assert torch.allclose(span, torch.cat([tokens[0], tokens[-1], attended, width]), atol=1e-10)


def test_selected_spans_do_not_cross():
    draw = np.random.default_rng(0)
    for _ in range(50):
        starts = draw.integers(0, 12, 30)
        ends = starts + draw.integers(0, 5, 30)
        scores = draw.random(30)
        selected = select_non_crossing(starts, ends, scores, 8)
        spans = [(starts[i], ends[i]) for i in selected]
        assert not any(a < c <= b < d for a, b in spans for c, d in spans)
        left = [i for i in range(30) if i not in selected and (len(selected) < 8 or scores[i] > scores[selected].min())]
        for i in left:  # each of them crosses a better one
            better = [(a, b) for j, (a, b) in zip(selected, spans) if scores[j] > scores[i]]
            a, b = starts[i], ends[i]
            assert any(c < a <= d < b or a < c <= b < d for c, d in better)


@torch.no_grad()
def test_loss_matches_plain_loops(folders):
    """The loss is −log of the probability of true antecedents plus that of mention detection, by plain loops."""
    spec = SMALL.replace(top_span_ratio=0.5, detection_weight=0.25, genres=("bc",))
    folder, task = load_with_head(folders, spec=spec)
    (example,) = documents(1, 5, most=6)
    encoded = task.encode([example], folder.tokenizer, 40)
    head, words, _, _ = select_states(folder, task, encoded)
    starts, ends, spans, worth = head._enumerate_candidates(words)
    true = {mention: i for i, cluster in enumerate(example.clusters) for mention in cluster}
    names = list(zip(starts.tolist(), ends.tolist()))
    expected = 0.0
    for name, value in zip(names, worth.tolist()):
        expected += 0.25 * np.log1p(np.exp(-value if name in true else value))
    selected = select_non_crossing(starts.numpy(), ends.numpy(), worth.numpy(), int(0.5 * len(example.words)))
    for place, i in enumerate(selected):
        choices = [
            (0.0, names[i] not in true or not any(true.get(names[j]) == true[names[i]] for j in selected[:place]))
        ]
        for nearer, j in enumerate(reversed(selected[:place])):
            distance = int(np.searchsorted([1, 2, 3, 4, 5, 8, 16, 32, 64], nearer + 1, side="right")) - 1
            features = [
                head.distance_embeddings.weight[distance],
                head.speaker_embeddings.weight[1],
                head.genre_embeddings.weight[0],
            ]
            pair = torch.cat([spans[i], spans[j], spans[i] * spans[j], *features])
            value = worth[i] + worth[j] + head.coarse_bilinear(spans[i]) @ spans[j] + head.pair_scorer(pair)[0]
            same = names[i] in true and true[names[i]] == true.get(names[j])
            choices.append((value.item(), same))
        choices = [choices[0], *sorted(choices[1:], reverse=True)]
        assert len(choices) <= 9, "all antecedents fit, so none is passed over"
        values = np.array([value for value, _ in choices])
        right = np.array([is_right for _, is_right in choices])
        expected += np.log(np.exp(values).sum()) - np.log(np.exp(values[right]).sum())
    batch, _ = task.collate(encoded)
    assert batch.targets["coreference"].count == int(0.5 * len(example.words))
    assert compute_losses(folder.model.eval(), batch)["coreference"].item() == pytest.approx(expected, abs=1e-9)


def test_batched_equals_single(folders):
    """Losses are sums over documents, and clusters do not depend on the batch, even with several segments."""
    folder, task = load_with_head(folders)
    model = folder.model.eval()
    examples = [replace(e, document=replace(e.document, genre="bc")) for e in documents(6, 7, most=12)]
    encoded = task.encode(examples, folder.tokenizer, 24)
    assert max(len(e.lengths) for e in encoded) > 1
    batch, order = task.collate(encoded)
    together = compute_losses(model, batch)["coreference"]
    together.backward()
    gradient = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    alone = 0.0
    for one in encoded:
        loss = compute_losses(model, task.collate([one])[0])["coreference"]
        loss.backward()
        alone += loss.item()
    assert together.item() == pytest.approx(alone, abs=1e-9)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(parameter.grad, gradient[name], atol=1e-9), name
    head, words, _, order = select_states(folder, task, encoded)
    each = [head.decode_clusters(select_states(folder, task, [one])[1])[0] for one in encoded]
    assert head.decode_clusters(words) == [each[i] for i in order]


def test_segments_end_at_sentence_ends_if_possible(folders):
    tokenizer = load_model(folders["bert"]).tokenizer
    example = make_document([["Ann", "saw", "Bob", "."]] * 9 + [["he", "left"] * 20 + ["."]], "here")
    (encoded,) = CoreferenceTask(head=SMALL).encode([example], tokenizer, 16)
    assert sum(encoded.lengths) == len(encoded.ids) and max(encoded.lengths) <= 16
    begins = np.searchsorted(np.cumsum(encoded.lengths), encoded.positions[:, 0], side="right")
    for segment in range(len(encoded.lengths)):
        (words,) = np.nonzero(begins == segment)
        if words[-1] < 36:
            assert (words[-1] + 1) % 4 == 0
    pieces = [tokenizer.encode(word) for word in example.words]
    assert [encoded.ids[a : b + 1].tolist() for a, b in encoded.positions[:, :2]] == [list(p) for p in pieces]
    long = make_document([["h" + "e" * 40]], "there")
    with pytest.raises(PolysemeError, match=r"there: the word 'heee.* tokens, and 14 are read"):
        CoreferenceTask(head=SMALL).encode([long], tokenizer, 16)
    (cut,) = CoreferenceTask(head=SMALL).encode([long], tokenizer, 16, truncate=True)
    assert cut.is_truncated and len(cut.ids) == 16


def test_unreachable_mentions_are_counted():
    wide = replace(make_document([["a", "b", "c", "d"], ["e"]], "x"), clusters=(((0, 3), (1, 1)), ((3, 4), (0, 2))))
    assert CoreferenceTask(head=SMALL).unreachable_mentions([wide]) == [2, 4]


@pytest.mark.parametrize(
    "family", ["bert", pytest.param("gpt2", marks=pytest.mark.slow), pytest.param("t5", marks=pytest.mark.slow)]
)
def test_every_model_style_learns_coreference(folders, family, tmp_path):
    settings = FinetuneConfig(steps=130, batch_size=8, optimizer=OptimizerConfig(lr=3e-3))
    train, dev = documents(240), documents(40, 1)
    results = finetune(folders[family], TaskData(CoreferenceTask(head=SMALL), train, dev), tmp_path / "run", settings)
    assert results["mean"]["f1"] > 0.95 and results["primary_metric"] == "f1"
    assert results["unreachable_mentions"]["dev"][0] == 0 and results["majority_score"] == 0.0
    folder = load_model(tmp_path / "run" / "model")
    assert evaluate(folder, dev)["f1"] == pytest.approx(results["mean"]["f1"], abs=1e-9)
    if family == "bert":
        check_commands(tmp_path, folder, dev)


def check_commands(tmp_path, folder, dev):
    gold = tmp_path / "dev.conll"
    gold.write_text("".join(format_conll(e.document, e.clusters) for e in dev))
    answer = cli("evaluate", tmp_path / "run" / "model", "--data", gold, "--json")
    assert json.loads(answer.out)["f1"] > 0.95
    answer = cli("predict", tmp_path / "run" / "model", "--data", gold, "--out", tmp_path / "said.conll")
    assert answer.status == 0 and "40 predictions" in answer.out
    expected = "".join(format_conll(e.document, p.clusters) for e, p in zip(dev, predict(folder, dev)))
    assert (tmp_path / "said.conll").read_text() == expected
    answer = cli("predict", tmp_path / "run" / "model", "--data", gold, "--out", tmp_path / "said.doc")
    assert answer.status == 2 and "written as .conll, .csv" in answer.err
    bad = tmp_path / "bad.conll"
    bad.write_text(gold.read_text().replace("(0", "0)", 1))
    settings = ["--set", "steps=2", "--set", "task.head.max_span_width=3", "--set", "task.head.hidden_dim=8"]
    for train, status, expected in ((gold, 0, "ceaf_f1"), (bad, 2, "closes a mention of 0 that was never opened")):
        paths = ("--train", train, "--dev", gold, "--out", tmp_path / f"again{status}")
        answer = cli("finetune", tmp_path / "run" / "model", "--task", "coreference", *paths, *settings, "--baselines")
        assert answer.status == status and expected in answer.out + answer.err
    model = polyseme.load(tmp_path / "run" / "model")
    (prediction,) = model.predict([[["Ann", "left", "."], ["she", "left", "."]]])
    assert prediction.clusters == (((0, 0), (3, 3)),)
    with pytest.raises(PolysemeError, match="a list of sentences of words"):
        model.predict(["Ann left"])
    with pytest.raises(PolysemeError, match="cannot be averaged for coreference: no ensemble"):
        predict_ensemble([folder, folder], dev)


@pytest.mark.slow
def test_network_over_frozen_features_learns_coreference(folders, tmp_path):
    network = FeatureNetworkSettings(lstm_dim=24, word_dim=16, dropout=0.0)
    settings = FEATURE_DEFAULTS.replace(steps=160, batch_size=8, network=network)
    train, dev = documents(240), documents(40, 1)
    results = train_on_features(
        FeatureInputs([folders["elmo"]]), TaskData(CoreferenceTask(head=SMALL), train, dev), tmp_path / "run", settings
    )
    assert results["mean"]["f1"] > 0.95
    assert FeatureModel.load(tmp_path / "run" / "model").evaluate(dev)["f1"] == pytest.approx(
        results["mean"]["f1"], abs=1e-9
    )


def test_network_that_does_not_fit_is_an_error(folders):
    with pytest.raises(PolysemeError, match="biattentive does not fit coreference"):
        train_on_features(
            FeatureInputs([folders["elmo"]]),
            TaskData(CoreferenceTask(head=SMALL), documents(8), documents(4, 1)),
            None,
            FEATURE_DEFAULTS.with_override("network.name", "biattentive"),
        )


def test_baselines_and_errors(folders):
    train, dev = documents(60), documents(20, 1)
    assert baseline_metrics(CoreferenceTask, "majority", train, dev)["f1"] == 0.0
    assert 0.3 < baseline_metrics(CoreferenceTask, "linear", train, dev)["f1"] < 0.95
    none = [replace(e, clusters=()) for e in train]
    with pytest.raises(PolysemeError, match="no mentions"):
        finetune(folders["bert"], TaskData(CoreferenceTask(), none, dev), None)
    with pytest.raises(PolysemeError, match=r"max_span_width is 0"):
        CoreferenceTask().with_override("head.max_span_width", "0")
