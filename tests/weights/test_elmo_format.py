"""ELMo's published format: reference vectors, a numpy reference, round trips, damaged files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.inference.feature_extraction import hash_model_files
from polyseme.nn.layers.char_cnn import BOS_CHARACTER, EOS_CHARACTER, words_to_char_ids
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.weights.elmo_format import read_elmo, write_elmo
from polyseme.weights.folder import load_model

h5py = pytest.importorskip("h5py")
FIXTURE = Path(__file__).parents[3] / "shared" / "data" / "elmo-fixture"
TEXTS = ("The cat sat on the mat .", "Zürich – naïve 猫", "a", "antidisestablishmentarianism" * 3 + " x y z", "cat cat")


def write_random_model(folder: Path, **lstm) -> dict[str, np.ndarray]:
    """Write a random model in the published format."""
    options = {
        "lstm": {"cell_clip": 0.4, "proj_clip": 0.2, "n_layers": 3, "projection_dim": 6, "dim": 10, **lstm},
        "char_cnn": {
            "embedding": {"dim": 4},
            "filters": [[1, 3], [3, 5], [7, 4]],
            "n_highway": 2,
            "n_characters": 262,
            "max_characters_per_token": 50,
            "activation": "relu",
        },
    }
    rng = np.random.default_rng(0)
    shapes = {"char_embed": (261, 4), "CNN_proj/W_proj": (12, 6), "CNN_proj/b_proj": (6,)}
    for i, (width, count) in enumerate(options["char_cnn"]["filters"]):
        shapes |= {f"CNN/W_cnn_{i}": (1, width, 4, count), f"CNN/b_cnn_{i}": (count,)}
    for i in range(2):
        shapes |= {f"CNN_high_{i}/{kind}_{part}": (12, 12)[: 1 + (kind == "W")]
                   for kind in "Wb" for part in ("carry", "transform")}  # fmt: skip
    for direction in range(2):
        for layer in range(3):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/B": (40,), f"{cell}/W_0": (12, 40), f"{cell}/W_P_0": (10, 6)}
    weights = {name: rng.normal(0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir(exist_ok=True)
    (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
    with h5py.File(folder / "lm_weights.hdf5", "w") as file:
        for name, value in weights.items():
            file[name] = value
    return weights


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference_layers(
    weights: dict[str, np.ndarray],
    words: list[list[int]],
    num_filters: int,
    num_layers: int,
    clips,
    use_skip_connections: bool,
):
    """Compute each layer of one sentence, [words, 2 · dim], by the equations."""
    tokens = []
    for char_ids in words:
        x = weights["char_embed"][char_ids]
        pooled = []
        for i in range(num_filters):
            kernel = weights[f"CNN/W_cnn_{i}"][0]
            windows = [np.tensordot(x[j : j + len(kernel)], kernel, 2) for j in range(50 - len(kernel) + 1)]
            pooled.append(np.maximum(np.max(windows, 0) + weights[f"CNN/b_cnn_{i}"], 0))
        y = np.concatenate(pooled)
        for i in range(2):
            highway = {k: weights[f"CNN_high_{i}/{k}"] for k in ("W_carry", "b_carry", "W_transform", "b_transform")}
            carry = sigmoid(y @ highway["W_carry"] + highway["b_carry"])
            y = carry * np.maximum(y @ highway["W_transform"] + highway["b_transform"], 0) + (1 - carry) * y
        tokens.append(y @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"])
    layers_per_direction = [[np.stack(tokens)] * 2]
    for layer in range(num_layers):
        outputs = []
        for direction in range(2):
            cell = {
                k: weights[f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{k}"] for k in ("B", "W_0", "W_P_0")
            }
            hidden, cell_state, rows = np.zeros(cell["W_P_0"].shape[1]), np.zeros(len(cell["W_P_0"])), []
            for x in layers_per_direction[-1][direction][:: 1 - 2 * direction]:
                input_gate, candidate, forget_gate, output_gate = np.split(
                    np.concatenate([x, hidden]) @ cell["W_0"] + cell["B"], 4
                )
                cell_state = np.clip(
                    sigmoid(forget_gate + 1) * cell_state + sigmoid(input_gate) * np.tanh(candidate),
                    -clips[0],
                    clips[0],
                )
                hidden = np.clip((sigmoid(output_gate) * np.tanh(cell_state)) @ cell["W_P_0"], -clips[1], clips[1])
                rows.append(hidden + x if use_skip_connections and layer else hidden)
            outputs.append(np.stack(rows[:: 1 - 2 * direction]))
        layers_per_direction.append(outputs)
    return [np.concatenate(directions, -1) for directions in layers_per_direction]


def reference_char_ids(text: str) -> list[list[int]]:
    """The published scheme: 258, bytes, 259, padded with 260; 256 and 257 around the sentence."""
    words = [[256], *(list(word.encode())[:48] for word in text.split()), [257]]
    return [([258, *word, 259] + [260] * 50)[:50] for word in words]


def compute_layers(model, texts):
    words = [[BOS_CHARACTER, *text.split(), EOS_CHARACTER] for text in texts]
    tokens, layout = (
        np.concatenate([words_to_char_ids(sentence) for sentence in words]),
        PackedLayout.from_lengths([len(sentence) for sentence in words]),
    )
    with torch.no_grad():
        layers = model.trunk(
            Inputs(torch.from_numpy(tokens), layout), layers=range(model.config.trunk.num_layers + 1)
        ).layers
    return [[layers[i].split(list(layout.lengths))[j].numpy() for i in sorted(layers)] for j in range(len(texts))]


def test_char_ids_match_the_published_scheme():
    for text in TEXTS:
        assert (
            words_to_char_ids([BOS_CHARACTER, *text.split(), EOS_CHARACTER]).tolist()
            == (np.array(reference_char_ids(text)) + 1).tolist()
        )


@pytest.mark.parametrize("use_skip_connections", [False, True])
def test_layers_match_a_numpy_reference(tmp_path, use_skip_connections):
    weights = write_random_model(tmp_path, use_skip_connections=use_skip_connections)
    model = read_elmo(tmp_path)
    float64_weights = {name: value.astype(np.float64) for name, value in weights.items()}
    for text, batched in zip(TEXTS, compute_layers(model, TEXTS)):
        char_ids = reference_char_ids(text)
        expected_layers = reference_layers(float64_weights, char_ids, 3, 3, (0.4, 0.2), use_skip_connections)
        for actual, single, expected in zip(batched, compute_layers(model, [text])[0], expected_layers):
            np.testing.assert_allclose(actual, expected, atol=1e-5)
            np.testing.assert_allclose(single, expected, atol=1e-5)


def test_round_trip_preserves_weights_and_options(tmp_path):
    weights = write_random_model(tmp_path / "a")
    write_elmo(tmp_path / "b", read_elmo(tmp_path / "a"))
    options = [json.loads((tmp_path / name / "options.json").read_text()) for name in "ab"]
    assert options[1] == options[0] | {"lstm": options[0]["lstm"] | {"use_skip_connections": False}}
    with h5py.File(tmp_path / "b" / "weights.hdf5") as file:
        assert all(np.array_equal(file[name][()], value) for name, value in weights.items())
    assert all(torch.equal(a, b) for a, b in zip(*(read_elmo(tmp_path / n).state_dict().values() for n in "ab")))


def test_published_parameter_counts():
    family = FAMILIES["elmo"]
    for size, expected in {"small": 13_593_312, "medium": 28_027_744, "original": 93_600_864}.items():
        with torch.device("meta"):
            model = Model(family.model_config(size, with_heads=False))
        assert sum(p.numel() for p in model.parameters()) == expected == family.num_params[size]


@pytest.mark.skipif(not FIXTURE.is_dir(), reason="needs the reference vectors")
def test_published_reference_vectors_match():
    """Last layer as computed by the published program in batches of three, one sentence of each list at a time.

    States are carried over from batch to batch; the first three sentences start without any.
    """
    model = read_elmo(FIXTURE)
    lists = json.loads((FIXTURE / "lm_embeddings_sentences.json").read_text())
    expected = []
    for stream in range(3):
        with h5py.File(FIXTURE / f"lm_embeddings_{stream}.hdf5") as file:
            expected.append([np.concatenate(file[str(i)][()], -1) for i in range(10)])
    memories = {"together": None, 0: None, 1: None, 2: None}
    for i in range(10):
        for name, streams in {"together": range(3), 0: [0], 1: [1], 2: [2]}.items():
            words = [[BOS_CHARACTER, *lists[stream][i].split(), EOS_CHARACTER] for stream in streams]
            layout = PackedLayout.from_lengths([len(sentence) for sentence in words])
            tokens = torch.from_numpy(np.concatenate([words_to_char_ids(sentence) for sentence in words]))
            with torch.no_grad():
                output = model.trunk(Inputs(tokens, layout), memory=memories[name], return_memory=True)
            memories[name] = output.memory
            for stream, actual in zip(streams, output.hidden.split(list(layout.lengths))):
                np.testing.assert_allclose(actual[1:-1].numpy(), expected[stream][i], atol=1e-5)


@pytest.mark.skipif(not FIXTURE.is_dir(), reason="needs the reference weights")
def test_lower_layers_of_the_reference_model_match():
    model = read_elmo(FIXTURE)
    with h5py.File(FIXTURE / "lm_weights.hdf5") as file:
        names: list[str] = []
        file.visit(names.append)
        weights = {n: file[n][()].astype(np.float64) for n in names if isinstance(file[n], h5py.Dataset)}
    texts = [texts[0] for texts in json.loads((FIXTURE / "lm_embeddings_sentences.json").read_text())]
    for text, batched in zip(texts, compute_layers(model, texts)):
        expected = reference_layers(weights, reference_char_ids(text), 5, 2, (3, 3), use_skip_connections=False)
        for actual, single, layer in zip(batched, compute_layers(model, [text])[0], expected):
            np.testing.assert_allclose(actual, layer, atol=1e-5)
            np.testing.assert_allclose(single, layer, atol=1e-5)


def change_option(name, value):
    def apply(folder):
        options = json.loads((folder / "options.json").read_text())
        part, key = name.split(".")
        if value is None:
            del options[part][key]
        else:
            options[part][key] = value
        (folder / "options.json").write_text(json.dumps(options))

    return apply


def truncate_weights(folder):
    path = folder / "lm_weights.hdf5"
    path.write_bytes(path.read_bytes()[:3000])


def add_tensor(folder):
    with h5py.File(folder / "lm_weights.hdf5", "a") as file:
        file["CNN/W_cnn_9"] = np.zeros(3)


DAMAGES = {
    r"lm_weights\.hdf5 is not a valid HDF5 file \(": truncate_weights,
    r"Cell0/LSTMCell/W_0' of shape \(12, 40\) does not match options\.json$": change_option("lstm.dim", 11),
    r"has no 'RNN_0/RNN/MultiRNNCell/Cell3/LSTMCell/W_0', which options\.json requires": change_option(
        "lstm.n_layers", 4
    ),
    r"has a tensor 'RNN_0/RNN/\w+/Cell2/LSTMCell/B' that options\.json does not describe$": change_option(
        "lstm.n_layers", 2
    ),
    r"has a tensor 'CNN/W_cnn_9' that options\.json does not describe$": add_tensor,
    r"options\.json has no lstm\.dim; ": change_option("lstm.dim", None),
    r"options\.json: char_cnn\.n_characters is 90, expected 261 or 262$": change_option("char_cnn.n_characters", 90),
    r"filters contains \[60, 3\]; expected a width, 1 to 50": change_option("char_cnn.filters", [[60, 3]]),
    r"activation is 'rilu', expected one of": change_option("char_cnn.activation", "rilu"),
    r"has 1 \*options\.json and 0 \*weights\*\.hdf5 files, expected one of each$": lambda folder: (
        folder / "lm_weights.hdf5"
    ).unlink(),
}  # fmt: skip


@pytest.mark.parametrize("message", DAMAGES)
def test_damaged_folders_are_rejected(tmp_path, message):
    write_random_model(tmp_path)
    DAMAGES[message](tmp_path)
    with pytest.raises(PolysemeError, match=message):
        read_elmo(tmp_path)


PUBLISHED_NAME = "elmo_2x1024_128_2048cnn_1xhighway"


@pytest.fixture
def published(tmp_path) -> Path:
    """A folder with one model under the names of AllenNLP's release."""
    folder = tmp_path / "elmo"
    write_random_model(folder)
    (folder / "options.json").rename(folder / f"{PUBLISHED_NAME}_options.json")
    (folder / "lm_weights.hdf5").rename(folder / f"{PUBLISHED_NAME}_weights.hdf5")
    return folder


def test_released_names_by_folder_or_file(published, tmp_path):
    write_random_model(tmp_path / "plain")
    plain = polyseme.load(tmp_path / "plain")
    expected = plain.embed(list(TEXTS))
    assert plain.capabilities == ("embed",) and expected.shape == (len(TEXTS), 12)
    paths = [published, published / f"{PUBLISHED_NAME}_options.json", published / f"{PUBLISHED_NAME}_weights.hdf5"]
    for path in paths:
        assert polyseme.verify(path).kind == "model"
        np.testing.assert_array_equal(polyseme.load(path).embed(list(TEXTS)), expected)
    assert hash_model_files(paths[1]) == hash_model_files(paths[2]) == hash_model_files(published)
    words = polyseme.load(published).embed(TEXTS[0], granularity="word", layers="all")
    assert words.shape == (7, 4, 12)
    np.testing.assert_allclose(words[:, 3].mean(0), expected[0], atol=1e-6)


def test_one_of_several_models_of_a_folder(published):
    """PubMed's weights share the options of another model; two models need a file."""
    weights = published / f"{PUBLISHED_NAME}_weights.hdf5"
    (published / f"{PUBLISHED_NAME}_weights_PubMed_only.hdf5").write_bytes(weights.read_bytes())
    (published / "elmo_pt_options.json").write_text("{}")
    assert read_elmo(weights).config == read_elmo(published / f"{PUBLISHED_NAME}_weights_PubMed_only.hdf5").config
    for path in (published, published / f"{PUBLISHED_NAME}_options.json"):
        with pytest.raises(
            PolysemeError, match=r"has 2 .* and 2 .* files, expected one of each; pass a file of one model"
        ):
            polyseme.load(path)


def test_what_elmo_cannot_do(published):
    with pytest.raises(PolysemeError, match=r"cannot score texts: it is an elmo model .*, which supports embed"):
        polyseme.load(published).score("a")
    with pytest.raises(PolysemeError, match="published format, which is frozen: pass it as `features`"):
        load_model(published)
    with pytest.raises(PolysemeError, match="the text has no words: ' '"):
        polyseme.load(published).embed([" "])
