"""Task models over frozen features: extraction, cache, scalar mix, training of every network, errors."""

import json
import random

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FeatureNetworkSettings
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.frozen import (
    FEATURE_DEFAULTS,
    MIX_PENALTY,
    FeatureInputs,
    build_model_config,
    train_on_features,
    with_mix_penalty,
)
from polyseme.inference.feature_extraction import FeatureEncoder, extract_features
from polyseme.inference.feature_model import FeatureModel, FeatureReader
from polyseme.inference.prediction import score_encoded
from polyseme.nn.layer_selection import FEATURE_SELECTIONS
from polyseme.nn.layers.frozen_features import (
    FeatureSourceConfig,
    FeatureStore,
    FrozenFeatures,
    FrozenFeaturesConfig,
    ScalarMix,
)
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.feature_network import cross_align
from polyseme.objectives.losses import compute_losses
from polyseme.tasks import TASKS
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.multiple_choice import ChoiceExample
from polyseme.tasks.readers.rows import split_words
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model
from tests.support.cases import supported_args

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare", "mole", "newt"]
SMALL = FeatureNetworkSettings(lstm_dim=16, word_dim=8, dropout=0.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, kind in (("bert", "wordpiece"), ("gpt2", "bpe"), ("elmo", "bpe")):
        family = FAMILIES[name]
        tokenizer = Tokenizer.train(kind, iter([" ".join(WORDS), *WORDS] * 30), 300).with_cls_position(
            family.cls_position
        )
        sizes = {"num_layers": 4, "dim": 32, "num_heads": 2, "vocab_size": tokenizer.vocab_size, "max_len": 24}
        spec = family.model_config(**supported_args(family, **sizes))
        made[name] = tmp_path_factory.mktemp(name)
        save_model(made[name], spec.build(0), tokenizer)
    return made


def examples(kind, n=80):
    draw = random.Random({"pair_classification": "pair", "multiple_choice": "choice"}.get(kind, kind))
    found = []
    for i in range(n):
        words = tuple(draw.choices(WORDS, k=draw.randint(2, 6)))
        other = tuple(draw.choices(WORDS, k=3))
        label = "yes" if "wolf" in other else "no"
        if kind == "tagging":
            tags = tuple("B-A" if w in WORDS[:3] else "O" for w in words)
            found.append(TaggingExample(f"d:{i}", words=words, tags=tags))
        elif kind == "pair_classification":
            found.append(TextExample(f"d:{i}", " ".join(words), " ".join(other), label=label))
        elif kind == "regression":
            found.append(TextExample(f"d:{i}", " ".join(words), label=str(words.count("wolf"))))
        elif kind == "multiple_choice":
            choices = tuple(draw.sample(WORDS, 3))
            found.append(ChoiceExample(f"d:{i}", " ".join(words) + " x", label=str(i % 3), choices=choices))
        else:
            found.append(TextExample(f"d:{i}", " ".join(words), label="yes" if "wolf" in words else "no"))
    return found


@pytest.mark.parametrize("layers", [*FEATURE_SELECTIONS, "3"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "elmo"])
def test_features_are_the_layers_of_the_model(folders, family, layers):
    """In any batch, and for long sentences, compared with each sentence alone."""
    encoder = FeatureEncoder.load(folders[family])
    sentences = [("cat", "dog"), ("wolf",), tuple(WORDS[:5]), ("\u200b", "cat"), ("cat", "dog")]
    found = extract_features(encoder, sentences, layers, None)
    selection, kept = encoder.resolve_layers(layers)
    how = selection.combination
    assert found.shape == (sum(map(len, sentences)), 1 if how == "sum" else len(kept), 32)
    for words, part in zip(sentences, np.split(found, np.cumsum([len(s) for s in sentences])[:-1])):
        ((_, _, ids, rows),) = encoder._split_into_chunks(0, words)
        with torch.no_grad():
            reading = encoder.model.trunk(
                Inputs(torch.from_numpy(ids), PackedLayout.from_lengths([len(ids)])), layers=range(5)
            )
        states = torch.stack([reading.layers[i] for i in kept], 1).numpy()[rows[:, 0]]
        np.testing.assert_allclose(part, states.sum(1, keepdims=True) if how == "sum" else states, atol=1e-5)
    long = extract_features(encoder, [tuple(WORDS * 6)], layers, None)
    assert len(long) == 60 and np.isfinite(long).all()
    if layers == "embeddings" and family == "elmo":
        np.testing.assert_allclose(long[0], long[10], atol=1e-6)  # words alone, however long the sentence


def test_features_are_read_once(folders, tmp_path, monkeypatch):
    encoder, sentences = FeatureEncoder.load(folders["bert"]), [("cat", "dog"), ("wolf",)]
    first = np.array(extract_features(encoder, sentences, "scalar_mix", tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(FeatureEncoder, "extract", lambda *_: pytest.fail("the encoder was asked again"))
        again = extract_features(encoder, sentences, "scalar_mix", tmp_path)
        assert np.array_equal(first, again) and isinstance(again.base, np.memmap)
    (path,) = tmp_path.glob("*.npy")
    for changed in (([("cat", "dog", "wolf")], "scalar_mix"), (sentences, "last"), (sentences, "sum_all")):
        extract_features(encoder, *changed, tmp_path)
    extract_features(FeatureEncoder.load(folders["gpt2"]), sentences, "scalar_mix", tmp_path)
    assert len(list(tmp_path.iterdir())) == 5
    path.write_bytes(path.read_bytes()[:100])  # damaged: read anew
    assert np.array_equal(extract_features(encoder, sentences, "scalar_mix", tmp_path), first)


def test_training_does_not_run_the_encoder(folders, tmp_path, monkeypatch):
    data = examples("tagging", 20)
    asked = []
    monkeypatch.setattr(FeatureEncoder, "extract", lambda *a, read=FeatureEncoder.extract: asked.append(1) or read(*a))
    settings = FEATURE_DEFAULTS.replace(epochs=3.0, network=SMALL)
    for run in "ab":
        train_on_features(
            FeatureInputs([folders["bert"]], cache_dir=tmp_path / "c"),
            TaskData(TaggingTask(), data[:12], data[12:]),
            tmp_path / run,
            settings,
        )
    assert len(asked) == 2  # once for each of two sets, in two runs of three epochs


def test_scalar_mix_by_hand():
    mix = ScalarMix(3).double()
    layers = torch.randn(5, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(mix(layers), layers.mean(1))
    with torch.no_grad():
        mix.scores.copy_(torch.tensor([1.0, -2.0, 0.5]))
        mix.gamma.fill_(2.5)
    shares = np.exp([1.0, -2.0, 0.5]) / np.exp([1.0, -2.0, 0.5]).sum()
    expected = 2.5 * sum(float(s) * layers[:, i] for i, s in enumerate(shares))
    torch.testing.assert_close(mix(layers), expected)


@pytest.mark.parametrize("where", ["input", "output", "both"])
def test_join_positions(where):
    spec = FrozenFeaturesConfig((FeatureSourceConfig(2, 3),), where=where, vocab_size=4, word_dim=5)
    bottom = FrozenFeatures(spec)
    draw = np.random.default_rng(0)
    parts = [draw.normal(size=(n, 2, 3)).astype(np.float32) for n in (4, 2)]
    store = FeatureStore([parts], np.array([0, 1, 2, 3, 0, 1]), np.zeros((4, 50), np.int16), np.array([1, 2, 3, 0]))
    entering, behind = bottom(torch.tensor([5, 0, 3]), store)
    stored = torch.from_numpy(np.concatenate(parts)[[5, 0, 3]]).mean(1)
    words = bottom.word_embeddings.weight[torch.tensor([2, 1, 0])]
    assert torch.equal(entering, words if where == "output" else torch.cat([stored, words], 1))
    assert behind is None if where == "input" else torch.equal(behind, stored)
    assert len(bottom.scalar_mixes) == (2 if where == "both" else 1)


def test_cross_attention_by_hand():
    sizes = (3, 1, 2), (2, 4, 1)
    of_a, of_b = (PackedLayout.from_lengths(lengths) for lengths in sizes)
    a, b = torch.randn(6, 5, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    from_b, from_a = cross_align(a, of_a, b, of_b)
    for one, other, seen, back in zip(*(t.split(s) for t, s in zip((a, b, from_b, from_a), (*sizes, *sizes)))):
        for i, row in enumerate(one):
            weights = torch.tensor([row @ each for each in other]).softmax(0)
            torch.testing.assert_close(seen[i], sum(w * each for w, each in zip(weights, other)))
        for j, row in enumerate(other):
            weights = torch.tensor([row @ each for each in one]).softmax(0)
            torch.testing.assert_close(back[j], sum(w * each for w, each in zip(weights, one)))


CASES = [("tagging", "linear"), ("tagging", "bilstm"), ("classification", "biattentive"), ("classification", "bilstm"),
         ("classification", "bilstm_max"),
         ("classification", "linear"), ("pair_classification", "esim"), ("pair_classification", "biattentive"),
         ("pair_classification", "bilstm_max"), ("multiple_choice", "esim"), ("regression", "biattentive"),
         ("regression", "bilstm_max")]  # fmt: skip


def model_of(folders, kind, name, where="input", n=12):
    data = examples(kind, n)
    task = TASKS[kind].from_examples(data)
    reader = FeatureReader((FeatureEncoder.load(folders["elmo"]),), ("scalar_mix",), {"cat": 1}, None)
    model = build_model_config([task], reader, SMALL.replace(name=name, join_at=where)).build(3)
    (encoded,) = reader.encode(task, (data,), use_labels=True)
    return model, task, encoded


@pytest.mark.parametrize("kind", ["pair_classification", "classification"])
def test_bilstm_max_compares_the_maxima_of_states(folders, kind):
    """Conneau et al. 2017, §3.1: [u; v; |u − v|; u ∘ v], of a text and itself where there is no pair."""
    model, task, encoded = model_of(folders, kind, "bilstm_max")
    trunk, encoder_outputs = model.trunk, []
    trunk.encoder.register_forward_hook(lambda module, inputs, output: encoder_outputs.append(output))
    for example in encoded[:3]:
        inputs = task.collate([example])[0].inputs
        encoder_outputs.clear()
        vector = trunk(inputs).hidden[0]
        u, v = (encoder_outputs * 2)[0].amax(0), (encoder_outputs * 2)[1].amax(0)
        assert len(encoder_outputs) == (2 if kind == "pair_classification" else 1)
        expected = trunk.pair_network.final(torch.cat([u, v, (u - v).abs(), u * v])).tanh()
        torch.testing.assert_close(vector, expected)


@pytest.mark.parametrize("name,dropout", [("bilstm", 0.5), ("bilstm_max", 0.2), ("esim", 0.2)])
def test_dropout_depends_on_the_network(folders, name, dropout):
    task = TASKS["pair_classification"].from_examples(examples("pair_classification", 12))
    reader = FeatureReader((), (), {"cat": 1}, None)
    for value, expected in ((None, dropout), (0.0, 0.0)):
        config = build_model_config([task], reader, SMALL.replace(name=name, dropout=value)).trunk
        assert config.dropout == config.features.dropout == expected


def test_a_wrong_dropout_is_rejected():
    with pytest.raises(PolysemeError, match="dropout is 'half', expected float or None"):
        FeatureNetworkSettings.from_json({"dropout": "half"})


def test_the_biattentive_network_has_a_relu_layer(folders):
    """McCann et al. 2017, §5: between the features and the BiLSTM."""
    model, task, encoded = model_of(folders, "classification", "biattentive")
    trunk = model.trunk
    assert trunk.relu_layer.out_features == trunk.config.lstm_dim == trunk.config.encoder_input_dim
    seen = []
    trunk.encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    score_encoded(model, task, encoded[:2])
    assert seen[0].shape[1] == trunk.config.relu_dim and (seen[0] >= 0).all() and (seen[0] == 0).any()
    assert model_of(folders, "classification", "bilstm")[0].trunk.relu_layer is None


@pytest.mark.parametrize("kind,name", CASES)
def test_batch_equals_single_examples(folders, kind, name):
    model, task, encoded = model_of(folders, kind, name, where="both")
    model.double()
    for one, (scores, best) in zip(encoded, score_encoded(model, task, encoded, max_batch_tokens=20)):
        alone = score_encoded(model, task, [one])[0]
        np.testing.assert_allclose(alone[0], scores, atol=1e-6)
        assert np.array_equal(alone[1], best)


@pytest.mark.parametrize(
    "kind,name", [("tagging", "bilstm"), ("pair_classification", "esim"), ("classification", "biattentive")]
)
def test_micro_batches_sum_with_the_penalty(folders, kind, name):
    model, task, encoded = model_of(folders, kind, name)
    model.double()
    with torch.no_grad():
        model.trunk.features.scalar_mixes["input"].scores.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0, 0.0]))

    def gradients(parts):
        model.zero_grad()
        batches = [task.collate(part)[0] for part in parts]
        count = sum(b.targets[task.head_name].count for b in batches)
        for batch in batches:
            found = with_mix_penalty(0.3)(model, batch)
            assert found[MIX_PENALTY].item() == pytest.approx(0.3 * (0.25 + 1 + 4))
            (found[task.head_name] / count + found[MIX_PENALTY] / len(batches)).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for whole, parts in zip(gradients([encoded]), gradients([encoded[:5], encoded[5:]])):
        torch.testing.assert_close(whole, parts, atol=1e-10, rtol=0)
    assert MIX_PENALTY not in compute_losses(model, task.collate(encoded)[0])


@pytest.mark.parametrize(
    "kind,name",
    [
        ("tagging", "bilstm"),
        ("pair_classification", "bilstm_max"),
        ("pair_classification", "esim"),
        ("classification", "biattentive"),
    ],
)
def test_learns_and_round_trips(folders, tmp_path, kind, name, run_cli):
    data = examples(kind, 64)
    epochs = {"biattentive": 20.0, "bilstm_max": 40.0}.get(name, 8.0)  # of four steps
    settings = FEATURE_DEFAULTS.replace(epochs=epochs, network=SMALL.replace(name=name))
    settings = settings.with_override("optimizer.lr", "1e-2")
    results = train_on_features(
        FeatureInputs([folders["bert"]]),
        TaskData(TASKS[kind]().for_features(), data, data[:30]),
        tmp_path / "run",
        settings,
    )
    assert results["mean"][results["primary_metric"]] > 0.9
    assert sum(
        json.loads((tmp_path / "run/results.json").read_text())["mix_weights"]["input"]["weights"]
    ) == pytest.approx(1, abs=1e-3)
    opened = FeatureModel.load(tmp_path / "run" / "model")
    assert opened.model.config.trunk.network == name
    found = opened.evaluate(data[:30])
    assert found == pytest.approx({n: results["mean"][n] for n in found})
    if kind == "tagging":
        path = tmp_path / "new.conll"
        path.write_text("cat\nwolf\n\nbear\n")
        run_cli("predict", tmp_path / "run/model", "--data", path, "--out", tmp_path / "found.conll")
        assert (tmp_path / "found.conll").read_text() == "cat\tB-A\nwolf\tO\n\nbear\tO\n"


def test_command(folders, tmp_path, run_cli):
    rows = "\n\n".join("\n".join(f"{w}\t{t}" for w, t in zip(e.words, e.tags)) for e in examples("tagging", 12))
    (tmp_path / "t.conll").write_text(rows + "\n")
    files = ("--train", tmp_path / "t.conll", "--dev", tmp_path / "t.conll", "--set", "epochs=1")
    for name in (folders["elmo"], "none"):
        out = tmp_path / f"run-{str(name)[-1]}"
        said = run_cli("finetune", "--features", name, "--task", "tagging", *files, "--out", out,
                    "--set", "network.lstm_dim=8", "--baselines")  # fmt: skip
        assert (
            ("words alone" if name == "none" else "over features") in said
            and "linear" in said
            and (out / "report.html").exists()
        )
    assert len(list((tmp_path / "features").iterdir())) == 1  # one set: train and dev are the same here


@pytest.mark.parametrize(
    "args,match",
    [
        (
            ["M", "--features", "F"],
            "a model to fine-tune, or a network over frozen features .--features, --word-vectors, --network",
        ),
        ([], "a model to fine-tune, or a network over frozen features .--features, --word-vectors, --network"),
        (["M", "--layers", "last"], "--layers, --join-at and --cache-dir apply to frozen models"),
        (
            ["--features", "F", "--from-scratch"],
            "--unfreeze-every, --lm-loss-weight and --keep-checkpoints apply to fine-tuning",
        ),
        (["--features", "F", "--layers", "lst"], "unknown layers 'lst': a layer number or a name; did you mean 'last'"),
        (["--features", "F", "--network", "esim"], "esim does not fit tagging"),
        (["--features", "F", "--network", "biattentive"], "biattentive does not fit tagging"),
        (["--features", "F", "--network", "bilstn"], "network.name is 'bilstn', expected one of"),
        (["--features", "nowhere"], "there is no model folder at nowhere"),
        (["--features", "F", "--set", "predicted_piece=last"], "predicted_piece is 'last', expected auto"),
    ],
)
def test_errors(folders, tmp_path, rejects, args, match):
    (tmp_path / "t.conll").write_text("cat\tO\ndog\tX\n")
    given = [str(folders["bert"]) if a in "MF" and len(a) == 1 else a for a in args]
    files = ("--train", tmp_path / "t.conll", "--dev", tmp_path / "t.conll", "--out", tmp_path / "x")
    rejects("finetune", *given, "--task", "tagging", *files, match=match)


def test_seeds_are_run_as_in_fine_tuning(folders, tmp_path):
    """Early stopping, extra evaluation sets and metrics, predictions, and failed seeds."""
    data, out = examples("classification", 60), tmp_path / "run"
    settings = FEATURE_DEFAULTS.replace(epochs=30.0, patience=1, network=SMALL.replace(name="linear"))
    given = {"extra_metrics": lambda examples, said: {"number": float(len(said))}, "extra_eval": {"more": data[50:]}}
    found = train_on_features(
        FeatureInputs([folders["bert"]]),
        TaskData(ClassificationTask(), data[:40], data[40:50], **given),
        out,
        settings,
        RunOptions(seeds=2),
    )
    assert found["mean"]["number"] == 10 and len(found["extra_eval"]["more"]) == 2
    assert (
        found["num_truncated"] == {"train": 0, "dev": 0}
        and 0 < found["majority_score"] <= 1
        and set(found["failed_seeds"]) <= {0, 1}
    )
    said = json.loads((out / "predictions.json").read_text())
    best = found["best_seed"]
    assert said["predictions"][str(best)] == [p.label for p in FeatureModel.load(out / "model").predict(data[40:50])]
    steps = [json.loads(line)["seed"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert len(steps) < 2 * found["steps"], "neither seed stopped before its last epoch"


def test_missing_words_and_layers(folders, tmp_path):
    encoder = FeatureEncoder.load(folders["bert"])
    with pytest.raises(PolysemeError, match=r"sentence 2 has no words"):
        extract_features(encoder, [("a",), ()], "last", tmp_path)
    small = tmp_path / "small"
    tokenizer = Tokenizer.load(folders["bert"])
    save_model(
        small, FAMILIES["bert"].model_config(num_layers=2, dim=8, num_heads=1, vocab_size=300).build(0), tokenizer
    )
    with pytest.raises(PolysemeError, match=r"needs 4 layers, but the model has 2$"):
        extract_features(FeatureEncoder.load(small), [("a",)], "concat_last_4", tmp_path)
    data = [TextExample("d:1", "cat", label="a"), TextExample("d:2", " ", label="b")]
    with pytest.raises(PolysemeError, match=r"^d:2: a text has no words$"):
        train_on_features(FeatureInputs([small]), TaskData(ClassificationTask(), data, data), None)


def test_changed_encoder_is_rejected(folders, tmp_path):
    tokenizer, data = Tokenizer.load(folders["bert"]), examples("tagging", 6)
    for seed in range(2):
        spec = FAMILIES["bert"].model_config(num_layers=1, dim=8, num_heads=1, vocab_size=tokenizer.vocab_size)
        save_model(tmp_path / "m", spec.build(seed), tokenizer)
        if not seed:
            train_on_features(
                FeatureInputs([tmp_path / "m"]),
                TaskData(TaggingTask(), data, data),
                tmp_path / "run",
                FEATURE_DEFAULTS.replace(steps=1),
            )
    with pytest.raises(PolysemeError, match=r"is not the model that .* was trained over: its hash differs$"):
        FeatureModel.load(tmp_path / "run" / "model")


def test_layer_choices_follow_the_papers():
    assert set(FEATURE_SELECTIONS) == {"embeddings", "last", "second_to_last", "sum_last_4", "sum_all", "scalar_mix",
                           "scalar_mix_last_4", "concat_last_4"}  # fmt: skip
    assert split_words("Don't stop, 42!") == ("Don", "'", "t", "stop", ",", "42", "!")


def test_a_negative_mix_penalty_is_an_error():
    with pytest.raises(PolysemeError, match=r"mix_penalty is -0\.5, expected 0 or more"):
        FeatureNetworkSettings(mix_penalty=-0.5)
