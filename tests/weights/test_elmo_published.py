"""ELMo in its published form: against the reference vectors, against a plain loop in numpy, there and back, damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.inputs import Inputs
from polyseme.nn.layers.char_cnn import BOS_CHARACTER, EOS_CHARACTER, words_to_char_ids
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout
from polyseme.weights.elmo_format import read_elmo, write_elmo

h5py = pytest.importorskip("h5py")
FIXTURE = Path(__file__).parents[3] / "shared" / "data" / "elmo-fixture"
TEXTS = ("The cat sat on the mat .", "Zürich – naïve 猫", "a", "antidisestablishmentarianism" * 3 + " x y z", "cat cat")


def lay(folder: Path, **lstm) -> dict[str, np.ndarray]:
    """A random model as others would have written it."""
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
    draw = np.random.default_rng(0)
    shapes = {"char_embed": (261, 4), "CNN_proj/W_proj": (12, 6), "CNN_proj/b_proj": (6,)}
    for i, (width, number) in enumerate(options["char_cnn"]["filters"]):
        shapes |= {f"CNN/W_cnn_{i}": (1, width, 4, number), f"CNN/b_cnn_{i}": (number,)}
    for i in range(2):
        shapes |= {f"CNN_high_{i}/{kind}_{part}": (12, 12)[: 1 + (kind == "W")]
                   for kind in "Wb" for part in ("carry", "transform")}  # fmt: skip
    for way in range(2):
        for layer in range(3):
            cell = f"RNN_{way}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/B": (40,), f"{cell}/W_0": (12, 40), f"{cell}/W_P_0": (10, 6)}
    weights = {name: draw.normal(0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir(exist_ok=True)
    (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
    with h5py.File(folder / "lm_weights.hdf5", "w") as file:
        for name, value in weights.items():
            file[name] = value
    return weights


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(weights: dict[str, np.ndarray], words: list[list[int]], filters: int, layers: int, clips, skip: bool):
    """Each layer of one sentence, the equations one by one: [words, 2 · dim] each."""
    tokens = []
    for codes in words:
        x = weights["char_embed"][codes]
        pooled = []
        for i in range(filters):
            kernel = weights[f"CNN/W_cnn_{i}"][0]
            windows = [np.tensordot(x[j : j + len(kernel)], kernel, 2) for j in range(50 - len(kernel) + 1)]
            pooled.append(np.maximum(np.max(windows, 0) + weights[f"CNN/b_cnn_{i}"], 0))
        y = np.concatenate(pooled)
        for i in range(2):
            high = {k: weights[f"CNN_high_{i}/{k}"] for k in ("W_carry", "b_carry", "W_transform", "b_transform")}
            carry = sigmoid(y @ high["W_carry"] + high["b_carry"])
            y = carry * np.maximum(y @ high["W_transform"] + high["b_transform"], 0) + (1 - carry) * y
        tokens.append(y @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"])
    found = [[np.stack(tokens)] * 2]
    for layer in range(layers):
        said = []
        for way in range(2):
            cell = {k: weights[f"RNN_{way}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{k}"] for k in ("B", "W_0", "W_P_0")}
            hidden, kept, rows = np.zeros(cell["W_P_0"].shape[1]), np.zeros(len(cell["W_P_0"])), []
            for x in found[-1][way][:: 1 - 2 * way]:
                enter, new, forget, leave = np.split(np.concatenate([x, hidden]) @ cell["W_0"] + cell["B"], 4)
                kept = np.clip(sigmoid(forget + 1) * kept + sigmoid(enter) * np.tanh(new), -clips[0], clips[0])
                hidden = np.clip((sigmoid(leave) * np.tanh(kept)) @ cell["W_P_0"], -clips[1], clips[1])
                rows.append(hidden + x if skip and layer else hidden)
            said.append(np.stack(rows[:: 1 - 2 * way]))
        found.append(said)
    return [np.concatenate(both, -1) for both in found]


def codes_of(text: str) -> list[list[int]]:
    """The published scheme, by hand: 258 bytes 259, filled with 260, around the sentence 256 and 257."""
    words = [[256], *(list(word.encode())[:48] for word in text.split()), [257]]
    return [([258, *word, 259] + [260] * 50)[:50] for word in words]


def states(model, texts):
    words = [[BOS_CHARACTER, *text.split(), EOS_CHARACTER] for text in texts]
    tokens, layout = (
        np.concatenate([words_to_char_ids(each) for each in words]),
        PackedLayout.from_lengths([len(each) for each in words]),
    )
    with torch.no_grad():
        layers = model.trunk(
            Inputs(torch.from_numpy(tokens), layout), layers=range(model.config.trunk.num_layers + 1)
        ).layers
    return [[layers[i].split(list(layout.lengths))[j].numpy() for i in sorted(layers)] for j in range(len(texts))]


def test_spelling():
    for text in TEXTS:
        assert (
            words_to_char_ids([BOS_CHARACTER, *text.split(), EOS_CHARACTER]).tolist()
            == (np.array(codes_of(text)) + 1).tolist()
        )


@pytest.mark.parametrize("skip", [False, True])
def test_every_layer_against_a_plain_loop(tmp_path, skip):
    weights = lay(tmp_path, use_skip_connections=skip)
    model = read_elmo(tmp_path)
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    for text, together in zip(TEXTS, states(model, TEXTS)):
        for found, alone, expected in zip(together, states(model, [text])[0],
                                          by_hand(wide, codes_of(text), 3, 3, (0.4, 0.2), skip)):  # fmt: skip
            np.testing.assert_allclose(found, expected, atol=1e-5)
            np.testing.assert_allclose(alone, expected, atol=1e-5)


def test_there_and_back_changes_nothing(tmp_path):
    weights = lay(tmp_path / "a")
    write_elmo(tmp_path / "b", read_elmo(tmp_path / "a"))
    options = [json.loads((tmp_path / name / "options.json").read_text()) for name in "ab"]
    assert options[1] == options[0] | {"lstm": options[0]["lstm"] | {"use_skip_connections": False}}
    with h5py.File(tmp_path / "b" / "weights.hdf5") as file:
        assert all(np.array_equal(file[name][()], value) for name, value in weights.items())
    assert all(torch.equal(a, b) for a, b in zip(*(read_elmo(tmp_path / n).state_dict().values() for n in "ab")))


def test_published_sizes():
    family = FAMILIES["elmo"]
    for size, expected in {"small": 13_593_312, "medium": 28_027_744, "original": 93_600_864}.items():
        with torch.device("meta"):
            model = Model(family.model_config(size, with_heads=False))
        assert sum(p.numel() for p in model.parameters()) == expected == family.num_params[size]


@pytest.mark.skipif(not FIXTURE.is_dir(), reason="the reference vectors are not here")
def test_the_reference_vectors():
    """Of the last layer, made by the published program in batches of three, a sentence of each list at a time: each
    batch goes on from the states of the one before. The first three sentences begin without any."""
    model = read_elmo(FIXTURE)
    lists = json.loads((FIXTURE / "lm_embeddings_sentences.json").read_text())
    expected = []
    for k in range(3):
        with h5py.File(FIXTURE / f"lm_embeddings_{k}.hdf5") as file:
            expected.append([np.concatenate(file[str(i)][()], -1) for i in range(10)])
    memories = {"together": None, 0: None, 1: None, 2: None}
    for i in range(10):
        for who, lanes in {"together": range(3), 0: [0], 1: [1], 2: [2]}.items():
            words = [[BOS_CHARACTER, *lists[k][i].split(), EOS_CHARACTER] for k in lanes]
            layout = PackedLayout.from_lengths([len(each) for each in words])
            tokens = torch.from_numpy(np.concatenate([words_to_char_ids(each) for each in words]))
            with torch.no_grad():
                reading = model.trunk(Inputs(tokens, layout), memory=memories[who], return_memory=True)
            memories[who] = reading.memory
            for k, found in zip(lanes, reading.hidden.split(list(layout.lengths))):
                np.testing.assert_allclose(found[1:-1].numpy(), expected[k][i], atol=1e-5)


@pytest.mark.skipif(not FIXTURE.is_dir(), reason="the reference weights are not here")
def test_the_lower_layers_of_the_reference_model():
    model = read_elmo(FIXTURE)
    with h5py.File(FIXTURE / "lm_weights.hdf5") as file:
        names: list[str] = []
        file.visit(names.append)
        weights = {n: file[n][()].astype(np.float64) for n in names if isinstance(file[n], h5py.Dataset)}
    texts = [texts[0] for texts in json.loads((FIXTURE / "lm_embeddings_sentences.json").read_text())]
    for text, together in zip(texts, states(model, texts)):
        expected = by_hand(weights, codes_of(text), 5, 2, (3, 3), skip=False)
        for found, alone, layer in zip(together, states(model, [text])[0], expected):
            np.testing.assert_allclose(found, layer, atol=1e-5)
            np.testing.assert_allclose(alone, layer, atol=1e-5)


def change(name, value):
    def apply(folder):
        options = json.loads((folder / "options.json").read_text())
        part, key = name.split(".")
        if value is None:
            del options[part][key]
        else:
            options[part][key] = value
        (folder / "options.json").write_text(json.dumps(options))

    return apply


def cut(folder):
    path = folder / "lm_weights.hdf5"
    path.write_bytes(path.read_bytes()[:3000])


def add(folder):
    with h5py.File(folder / "lm_weights.hdf5", "a") as file:
        file["CNN/W_cnn_9"] = np.zeros(3)


BAD = {
    r"lm_weights\.hdf5 is not a whole HDF5 file \(": cut,
    r"Cell0/LSTMCell/W_0' has shape \(12, 40\), which does not fit options\.json$": change("lstm.dim", 11),
    r"lacks 'RNN_0/RNN/MultiRNNCell/Cell3/LSTMCell/W_0', which options\.json asks for": change("lstm.n_layers", 4),
    r"holds 'RNN_0/RNN/\w+/Cell2/LSTMCell/B', which options\.json does not ask for$": change("lstm.n_layers", 2),
    r"holds 'CNN/W_cnn_9', which options\.json does not ask for$": add,
    r"options\.json has no lstm\.dim; ": change("lstm.dim", None),
    r"options\.json: char_cnn\.n_characters is 90, expected 261 or 262$": change("char_cnn.n_characters", 90),
    r"a filter is \[60, 3\], expected its width, 1 to 50": change("char_cnn.filters", [[60, 3]]),
    r"activation is 'rilu', expected one of": change("char_cnn.activation", "rilu"),
    r"holds 0 files \*weights\*\.hdf5, expected one$": lambda folder: (folder / "lm_weights.hdf5").unlink(),
}  # fmt: skip


@pytest.mark.parametrize("says", BAD)
def test_damage_is_told(tmp_path, says):
    lay(tmp_path)
    BAD[says](tmp_path)
    with pytest.raises(PolysemeError, match=says):
        read_elmo(tmp_path)
