"""Networks with pre-trained word vectors, several sources of features, and features between layers."""

import json

import numpy as np
import pytest
import torch

from polyseme.errors import ConfigError, PolysemeError
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FeatureNetworkSettings
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.frozen import (
    FEATURE_DEFAULTS,
    FeatureInputs,
    build_vocabulary,
    init_embeddings,
    resolve_layer_selections,
    train_on_features,
)
from polyseme.inference.feature_model import FeatureModel, resolve_words
from polyseme.inference.word_vectors import WordVectors
from polyseme.nn.layer_selection import FEATURE_SELECTIONS
from polyseme.nn.layers import frozen_features as parts
from polyseme.nn.layers.frozen_features import FeatureSourceConfig, FeatureStore, FrozenFeatures, FrozenFeaturesConfig
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.feature_network import BiLSTM, FeatureNetworkConfig
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model
from polyseme.word_vectors.files import to_model, write_vectors

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare", "mole", "newt"]
SMALL = FeatureNetworkSettings(lstm_dim=16, dropout=0.0)
RUN = FEATURE_DEFAULTS.replace(epochs=12.0, network=SMALL).with_override("optimizer.lr", "1e-2")


def tagged(n=60, seed=0):
    draw = np.random.default_rng(seed)
    found = []
    for i in range(n):
        words = tuple(draw.choice(WORDS, size=draw.integers(2, 7)).tolist())
        tags = tuple("B-A" if word in WORDS[:3] else "O" for word in words)
        found.append(TaggingExample(f"d:{i}", words=words, tags=tags))
    return found


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Vectors of eight words, one of them with a capital; `mole` and `newt` have none."""
    path = tmp_path_factory.mktemp("vectors") / "words.txt"
    words = [*WORDS[:8], "Cat"]
    table = np.random.default_rng(1).normal(size=(len(words), 6)).astype(np.float32)
    write_vectors(path, words, table)
    return path, dict(zip(words, table))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A Transformer, character language models, and word-level language models of either direction."""
    made = {}
    kinds = {"bert": ("bert", "wordpiece", {"num_heads": 2}), "flair": ("flair", "characters", {"char_dim": 5})}
    kinds |= {way: ("rnn_lm", "words", {"direction": way}) for way in ("forward", "backward")}
    for name, (family, kind, given) in kinds.items():
        texts = iter([" ".join(WORDS), *WORDS] * 30)
        tokenizer = Tokenizer.train(kind, texts, 300)
        given = {"num_layers": 4 if name == "bert" else 2, "dim": 16, "vocab_size": tokenizer.vocab_size, **given}
        made[name] = tmp_path_factory.mktemp(name)
        save_model(made[name], FAMILIES[family].model_config(**given).build(0), tokenizer)
    return made


def test_vocabulary_and_initial_vectors(vectors):
    path, known = vectors
    given = WordVectors.load(path)
    words = ["Cat", "cat", "DOG", "mole", "mole", "newt", "Newt", "seal"]
    assert set(build_vocabulary(words, None, False)) == {"cat", "mole", "newt"}
    vocabulary = build_vocabulary(words, given, False)
    assert set(vocabulary) == {"Cat", "cat", "dog", "mole", "newt"}
    assert set(build_vocabulary(words, given, True)) == {"mole", "newt"}
    numbers, more = resolve_words(["Cat", "CAT", "dog", "seal", "Fish", "fish", "NEWT"], vocabulary, given)
    assert [numbers[0], numbers[1], numbers[2], numbers[6]] == [vocabulary[w] for w in ("Cat", "cat", "dog", "newt")]
    assert numbers[3:6].tolist() == [0, 6, 7] and np.array_equal(more, [known["fish"]] * 2)
    table = torch.randn(6, 6)
    before = table.clone()
    init_embeddings(table, vocabulary, given)
    for word, number in vocabulary.items():
        expected = torch.from_numpy(known[word]) if word in known else before[number] * given.vectors.std()
        torch.testing.assert_close(table[number], expected)


def test_pretrained_and_learned_words_by_hand():
    bottom = FrozenFeatures(FrozenFeaturesConfig(vocab_size=3, word_dim=4))
    given = np.arange(8, dtype=np.float32).reshape(2, 4)
    known = np.array([0, 4, 1, 3, 2])
    store = FeatureStore([], np.array([1, 3, 2, 4, 0, 2]), np.zeros((5, 50), np.int16), known, given)
    entering, later = bottom(torch.arange(6), store)
    assert later is None
    table = bottom.word_embeddings.weight
    rows = [torch.from_numpy(given[1]), torch.from_numpy(given[0]), table[1], table[2], table[0], table[1]]
    assert torch.equal(entering, torch.stack(rows))
    entering.sum().backward()
    assert bottom.word_embeddings.weight.grad.sum(1).tolist() == [4.0, 8.0, 4.0]


def store_of(sources, places=7):
    draw = np.random.default_rng(0)
    arrays = [[draw.normal(size=(n, s.num_layers, s.dim)).astype(np.float32) for n in (4, places - 4)] for s in sources]
    return FeatureStore(arrays, np.arange(places), np.zeros((places, 50), np.int16), np.zeros(places, np.int64))


@pytest.mark.parametrize("where", ["input", "output", "both", "between"])
def test_concatenated_sources(where, monkeypatch):
    sources = (FeatureSourceConfig(2, 3), FeatureSourceConfig(2, 5, "side"), FeatureSourceConfig(1, 4))
    bottom = FrozenFeatures(FrozenFeaturesConfig(sources, where, word_dim=2))
    store = store_of(sources)
    for number, mix in enumerate(bottom.scalar_mixes.values()):
        with torch.no_grad():
            mix.scores.copy_(torch.arange(len(mix.scores)) * float(number + 1))
    tokens = torch.tensor([6, 0, 3, 3])
    first, second, third = (torch.from_numpy(np.concatenate(p)[tokens.numpy()]) for p in store.features)
    mixed = {
        name: torch.einsum("l,tld->td", mix.scores.softmax(0), x)
        for (name, mix), x in zip(bottom.scalar_mixes.items(), (first, third) * 2)
    }
    places = {"both": ("input", "output")}.get(where, (where,))
    assert list(mixed) == [name for place in places for name in (place, f"{place}-3")]
    parted = [torch.cat([mixed[p], second.flatten(1), mixed[f"{p}-3"]], 1) for p in places]
    words = bottom.word_embeddings.weight[torch.zeros(4, dtype=torch.long)]
    for moved in (False, True):  # the same from the host and from the device
        monkeypatch.setattr(parts, "fits_on_device", lambda device, size, moved=moved: moved)
        store.device_copies.clear()
        entering, later = bottom(tokens, store)
        assert all((whole is not None) == moved for whole in store.device_copies.values())
        at_input = torch.cat([parted[0], words], 1) if where in ("input", "both") else words
        torch.testing.assert_close(entering, at_input)
        assert later is None if where == "input" else torch.allclose(later, parted[-1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_store_moves_to_the_gpu():
    sources = (FeatureSourceConfig(2, 3), FeatureSourceConfig(1, 4))
    bottom = FrozenFeatures(FrozenFeaturesConfig(sources, "both", word_dim=2))
    store, tokens = store_of(sources), torch.tensor([6, 0, 3, 3])
    here = bottom(tokens, store)
    there = bottom.cuda()(tokens.cuda(), store)
    assert sum(whole is not None for whole in store.device_copies.values()) == 2
    for one, other in zip(here, there):
        torch.testing.assert_close(one, other.cpu())


def test_features_join_between_two_layers():
    """Compared with torch's LSTM, layer by layer and sequence by sequence."""
    torch.manual_seed(0)
    network = BiLSTM(5, 4, num_layers=3, extra_dim=2)
    for part in network.layers.modules():
        if hasattr(part, "initialize"):
            part.initialize(None)
    x, joining, lengths = torch.randn(9, 5), torch.randn(9, 2), [4, 1, 4]
    found = network(x, PackedLayout.from_lengths(lengths), joining)
    for rows, more, said in zip(x.split(lengths), joining.split(lengths), found.split(lengths)):
        for depth, layer in enumerate(network.layers):
            rows = torch.cat([rows, more], 1) if depth == 1 else rows
            peer = torch.nn.LSTM(rows.shape[1], 4, bidirectional=True)
            for cell, end in zip(layer.cells, ("", "_reverse")):
                for name, value in cell.named_parameters():
                    getattr(peer, name + "_l0" + end).data.copy_(value)
            rows = peer(rows[:, None])[0][:, 0]
        torch.testing.assert_close(said, rows, atol=1e-6, rtol=0)


CASES = {
    "words alone": ((), {}, True),
    "frozen words": ((), {"freeze_word_embeddings": True, "use_char_cnn": False}, True),
    "neither": ((), {}, False),
    "two sources": (("flair", "bert"), {"layers": "last,scalar_mix"}, True),
    "taglm": (("forward", "backward"), {"layers": "last", "join_at": "between", "num_layers": 2}, True),
    "flair between": (("flair",), {"join_at": "between", "num_layers": 2}, False),
    "both ends": (("flair", "bert"), {"join_at": "both"}, False),
}


@pytest.mark.parametrize(
    "case",
    [
        "frozen words",
        "neither",
        pytest.param("two sources", marks=pytest.mark.slow),  # as "both ends" has
        "taglm",
        "both ends",
        pytest.param("words alone", marks=pytest.mark.slow),
        pytest.param("flair between", marks=pytest.mark.slow),
    ],
)
def test_learns_and_round_trips(case, models, vectors, tmp_path):
    sources, network, words = CASES[case]
    train, dev = tagged(60), tagged(20, seed=1)
    epochs = 28.0 if "freeze_word_embeddings" in network else 9.0
    settings = RUN.replace(epochs=epochs, network=SMALL.replace(**network))
    found = train_on_features(
        FeatureInputs(
            [models[name] for name in sources], cache_dir=tmp_path / "cache", word_vectors=vectors[0] if words else None
        ),
        TaskData(TaggingTask(decoder="crf"), train, dev),
        tmp_path / "run",
        settings,
    )
    assert found["mean"]["f1"] > 0.9
    opened = FeatureModel.load(tmp_path / "run" / "model")
    assert opened.evaluate(dev) == pytest.approx({n: v for n, v in found["mean"].items() if n in opened.evaluate(dev)})
    if "freeze_word_embeddings" in network:
        assert set(opened.reader.vocabulary) == {"mole", "newt"}
    if words:
        assert found["words"]["vectors"] == str(vectors[0]) and str(vectors[0]) in found["model"]
    mixes = json.loads((tmp_path / "run" / "results.json").read_text()).get("mix_weights", {})
    assert set(mixes) == {"two sources": {"input-2"}, "flair between": {"between"},
                          "both ends": {"input", "input-2", "output", "output-2"}}.get(case, set())  # fmt: skip


@pytest.mark.parametrize("layers", FEATURE_SELECTIONS)
def test_every_layer_selection(layers, models, tmp_path):
    """The rows of BERT's table 7: two BiLSTM layers over features alone."""
    data = tagged(6)
    network = SMALL.replace(layers=layers, word_dim=0, use_char_cnn=False, num_layers=2)
    train_on_features(
        FeatureInputs([models["bert"]]),
        TaskData(TaggingTask(decoder="crf"), data, data),
        tmp_path / "run",
        RUN.replace(steps=1, network=network),
    )
    opened = FeatureModel.load(tmp_path / "run" / "model")
    (source,) = opened.model.config.trunk.features.sources
    number = {"scalar_mix": 5, "scalar_mix_last_4": 4, "concat_last_4": 4}.get(layers, 1)
    assert (source.num_layers, source.join) == (number, "side" if layers == "concat_last_4" else "mix")
    assert opened.model.config.trunk.features.input_dim == source.output_dim == (64 if source.join == "side" else 16)
    assert 0 <= opened.evaluate(data)["f1"] <= 1


def test_layer_norm_makes_the_scale_of_features_irrelevant():
    config = FrozenFeaturesConfig((FeatureSourceConfig(2, 8),), layer_norm=True)
    features, vectors = config.build(), np.random.default_rng(0).normal(size=(5, 2, 8)).astype(np.float32)
    ids = np.zeros(5, np.int64)
    stores = [FeatureStore([[scale * vectors]], ids, np.zeros((1, 4), np.int16), ids) for scale in (1, 400)]
    small, large = (features(torch.arange(5), store)[0] for store in stores)
    torch.testing.assert_close(small, large, atol=1e-4, rtol=0)
    expected = torch.nn.LayerNorm(8, elementwise_affine=False)(torch.from_numpy(vectors)).mean(1)
    torch.testing.assert_close(small, expected)


def test_layer_norm_needs_features(vectors, tmp_path):
    data = tagged(6)
    network = SMALL.replace(layer_norm=True)
    with pytest.raises(ConfigError, match=r"`network\.layer_norm` has no effect without features"):
        train_on_features(
            FeatureInputs(word_vectors=vectors[0]),
            TaskData(TaggingTask(), data, data),
            None,
            RUN.replace(network=network),
        )


def test_unseen_word_has_its_vector(vectors, tmp_path):
    """Tags depend on the vectors, so an unseen word is tagged by its vector."""
    path = tmp_path / "named.bin"
    table = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
    table[:, 0] = np.where(np.arange(40) % 2, 1.0, -1.0)
    words = [f"w{i}" for i in range(40)]
    write_vectors(path, words, table, "binary")
    tags = {word: "X" if i % 2 else "O" for i, word in enumerate(words)}
    draw = np.random.default_rng(0)
    rows = [tuple(draw.choice(words[:30], 5).tolist()) for _ in range(60)]
    data = [TaggingExample(f"d:{i}", words=row, tags=tuple(map(tags.get, row))) for i, row in enumerate(rows)]
    fresh = [TaggingExample("n:1", words=tuple(words[30:]), tags=tuple(map(tags.get, words[30:])))]
    network = SMALL.replace(name="linear", use_char_cnn=False, freeze_word_embeddings=True)
    settings = RUN.replace(network=network, epochs=30.0)
    train_on_features(
        FeatureInputs(word_vectors=path), TaskData(TaggingTask(), data, data[:20]), tmp_path / "run", settings
    )
    assert FeatureModel.load(tmp_path / "run" / "model").evaluate(fresh)["accuracy"] > 0.8
    write_vectors(path, words, table + 1, "binary")
    with pytest.raises(PolysemeError, match=r"named.bin is not .* was trained over: its hash differs$"):
        FeatureModel.load(tmp_path / "run" / "model")
    path.unlink()
    with pytest.raises(
        PolysemeError, match=r"there are no word vectors at .*named\.bin: neither a file nor a model folder"
    ):
        FeatureModel.load(tmp_path / "run" / "model")


def test_vectors_from_a_model_folder(vectors, tmp_path):
    save_model(tmp_path / "m", *to_model(list(vectors[1]), np.stack(list(vectors[1].values()))))
    given = WordVectors.load(tmp_path / "m")
    assert given.dim == 6 and given.path == tmp_path / "m" and given.get_vector("mole") is None
    assert np.array_equal(given.get_vector("cat"), vectors[1]["cat"])
    assert build_vocabulary(["CAT"], given, False) == {"cat": 1}
    made = WordVectors(["a"], np.ones((1, 2), np.float32), oov_embedder=lambda word: np.full(2, len(word) - 3.0))
    assert made.get_vector("four").tolist() == [1, 1] and made.get_vector("two") is None


def conll(path, data):
    path.write_text("\n\n".join("\n".join(f"{w}\t{t}" for w, t in zip(e.words, e.tags)) for e in data) + "\n")
    return path


def test_command_with_all_options(models, vectors, tmp_path, run_cli):
    train, dev = conll(tmp_path / "t.conll", tagged(12)), conll(tmp_path / "d.conll", tagged(8, 1))
    files = ("--task", "tagging", "--train", train, "--dev", dev, "--set", "epochs=1", "--set", "network.lstm_dim=8")
    ways = ("--features", models["forward"], "--features", models["backward"])
    run_cli("finetune", *ways, "--layers", "last", "--join-at", "between", "--word-vectors", vectors[0], *files,
         "--out", tmp_path / "taglm")  # fmt: skip
    trunk = json.loads((tmp_path / "taglm/model/polyseme.json").read_text())["config"]["trunk"]
    assert (
        trunk["num_layers"] == 2 and trunk["features"]["where"] == "between" and len(trunk["features"]["sources"]) == 2
    )
    run_cli("predict", tmp_path / "taglm/model", "--data", tmp_path / "d.conll", "--out", tmp_path / "said.conll")
    assert "f1" in run_cli("evaluate", tmp_path / "taglm/model", "--data", tmp_path / "d.conll")
    said = run_cli(
        "finetune", "--word-vectors", vectors[0], "--freeze-word-embeddings", *files, "--out", tmp_path / "words"
    )
    assert "over word vectors" in said
    assert "words alone" in run_cli("finetune", "--network", "bilstm", *files, "--out", tmp_path / "none")
    run_cli("finetune", *ways, "--layers", "last", "--layers", "embeddings", *files, "--out", tmp_path / "two")


@pytest.mark.parametrize(
    "args,match",
    [
        (["--word-vectors", "nowhere"], "there are no word vectors at nowhere: neither a file nor a model folder"),
        (["--word-vectors", "V", "--set", "network.word_dim=50"], "network.word_dim is 50, but the vectors of"),
        (["--word-vectors", "short.txt"], "line 2: 2 numbers after the word, expected 3"),
        (["--word-vectors", "other.txt"], "has a vector for none of the 10 words of the training examples"),
        (["--word-vectors", "bert"], "is a bert model: its vectors depend on the context; use `embed`"),
        (
            ["--features", "flair", "--join-at", "between", "--set", "network.num_layers=1"],
            "only in a bilstm with num_layers ≥ 2, not in bilstm with num_layers 1",
        ),
        (["--features", "flair", "--join-at", "between", "--network", "linear"], "not in linear with num_layers 2"),
        (["--features", "flair", "--join-at", "betwen"], "network.join_at is 'betwen', expected one of"),
        (["--word-vectors", "V", "--join-at", "between"], "--layers, --join-at and --cache-dir apply to frozen models"),
        (
            ["--word-vectors", "V", "--set", 'network.join_at="between"'],
            "there are no features to join between the layers",
        ),
        (
            ["--features", "flair", "--freeze-word-embeddings"],
            "--freeze-word-embeddings has no effect without --word-vectors",
        ),
        (
            ["bert", "--word-vectors", "V"],
            "a model to fine-tune, or a network over frozen features .--features, --word-vectors",
        ),
        (["--network", "linear"], "a linear model needs features to stand on: name a model, or word vectors"),
        (
            ["--features", "flair", "--layers", "last", "--layers", "sum_all"],
            r"2 choices of layers \(last,sum_all\) for 1 models",
        ),
        (
            ["--features", "flair", "--layers", "embeddings"],
            "the model reads characters, so words have no embeddings; use 'last'",
        ),
    ],
)
def test_option_errors(models, vectors, tmp_path, rejects, monkeypatch, args, match):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("cat 1 2 3\ndog 1 2\n")
    (tmp_path / "other.txt").write_text("chat 1 2 3\nchien 1 2 4\n")
    data = conll(tmp_path / "t.conll", tagged(12))
    given = [vectors[0] if a == "V" else models.get(a, a) for a in args]
    rejects("finetune", *given, "--task", "tagging", "--train", data, "--dev", data, "--out", "x", match=match)


def test_layers_for_each_source():
    assert (
        resolve_layer_selections(FeatureNetworkSettings(), 0) == ()
        and resolve_layer_selections(FeatureNetworkSettings(), 2) == ("scalar_mix",) * 2
    )
    assert resolve_layer_selections(FeatureNetworkSettings(layers="last, sum_all"), 2) == ("last", "sum_all")
    with pytest.raises(PolysemeError, match=r"between layers only in a bilstm with .* not in esim"):
        FeatureNetworkConfig(
            FrozenFeaturesConfig((FeatureSourceConfig(1, 2),), "between", word_dim=3), "esim", num_layers=2
        )
