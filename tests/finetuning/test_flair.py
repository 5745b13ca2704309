"""Flair: character language models, and the features of words compared with a loop over characters."""

import numpy as np
import pytest
import torch

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.inference.feature_extraction import FeatureEncoder, extract_features
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.recipes import get_training_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import pretrain
from polyseme.weights.folder import save_model
from tests.support.text import documents

SENTENCES = [("The", "old", "cat"), ("a",), ("sees", ",", "naïve", "\u200b", "x9"), tuple("abcdefg")]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train("characters", iter(documents(60)), 60)


def folder_of(path, tokenizer, **given):
    spec = FAMILIES["flair"].model_config(**{"dim": 10, "char_dim": 6, "vocab_size": tokenizer.vocab_size} | given)
    save_model(path, spec.build(0), tokenizer)
    return FeatureEncoder.load(path)


def by_hand(encoder, words, depth):
    """Run the cells over the characters of a sentence; return the state at the boundary of each word."""
    model, vocabulary = encoder.model, {piece: i for i, piece in enumerate(encoder.tokenizer.vocabulary)}
    text = ["[CLS]", *" ".join(words), "[SEP]"]
    ids = torch.tensor([vocabulary.get(c, vocabulary["[UNK]"]) for c in text])
    found = []
    for stack, (way,) in zip(model.trunk.stacks, encoder.stacks):
        x = model.trunk.embeddings.tokens.weight.detach()[ids].double()
        for layer in list(stack)[:depth]:
            cell = layer.cells[0]
            w_ih, w_hh = cell.weight_ih.detach().double(), cell.weight_hh.detach().double()
            bias = (cell.bias_ih + cell.bias_hh).detach().double()
            hidden, inner, states = torch.zeros(cell.hidden_dim).double(), torch.zeros(cell.hidden_dim).double(), {}
            for place in range(len(text)) if way == "forward" else reversed(range(len(text))):
                enter, forget, new, leave = (w_ih @ x[place] + w_hh @ hidden + bias).chunk(4)
                inner = forget.sigmoid() * inner + enter.sigmoid() * new.tanh()
                hidden = leave.sigmoid() * inner.tanh()
                states[place] = hidden
            x = torch.stack([states[place] for place in range(len(text))])
        at, rows = 1, []
        for word in words:
            rows.append(x[at + len(word)] if way == "forward" else x[at - 1])
            at += len(word) + 1
        found.append(torch.stack(rows))
    return torch.cat(found, dim=-1).numpy()


@pytest.mark.parametrize("direction", ["both", "forward", "backward"])
@pytest.mark.parametrize("num_layers,layers", [(1, "scalar_mix"), (2, "last"), (2, "scalar_mix")])
def test_features_equal_a_loop(tokenizer, tmp_path, direction, num_layers, layers):
    encoder = folder_of(tmp_path, tokenizer, direction=direction, num_layers=num_layers)
    found = extract_features(encoder, SENTENCES, layers, None)
    depths = [num_layers] if layers == "last" else range(1, num_layers + 1)
    expected = np.stack([np.concatenate([by_hand(encoder, s, d) for s in SENTENCES]) for d in depths], 1)
    assert found.shape == expected.shape == (16, len(depths), 20 if direction == "both" else 10)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_long_sentence_is_split(tokenizer, tmp_path):
    """The first part ends with the space after its last word; each part starts from a new state."""
    words = ("cat", "sees", "dog", "fish")
    encoder = folder_of(tmp_path, tokenizer, max_len=12)
    found = extract_features(encoder, [words], "last", None)
    assert len(found) == 4 and np.isfinite(found).all()
    stretches = [(first, ids.tolist(), rows.tolist()) for _, first, ids, rows in encoder._split_into_chunks(0, words)]
    assert [first for first, *_ in stretches] == [0, 2]
    assert tokenizer.decode(stretches[0][1]) == "cat sees " and stretches[0][2] == [[4, 0], [9, 4]]
    assert stretches[1][2] == [[4, 0], [9, 4]] and len(stretches[1][1]) == 10
    long = extract_features(encoder, [("a" * 40, "cat")], "last", None)  # longer than the model reads: it is cut
    assert len(long) == 2 and np.isfinite(long).all()


@pytest.mark.parametrize("direction,row", [("forward", -1), ("backward", 0)])
def test_unidirectional_model_over_pieces(tmp_path, direction, row):
    """A forward model has read a word at its last piece, a backward model at its first."""
    pieces = Tokenizer.train("bpe", iter(documents(60)), 270)
    spec = FAMILIES["rnn_lm"].model_config(num_layers=1, dim=8, vocab_size=pieces.vocab_size, direction=direction)
    save_model(tmp_path, spec.build(0), pieces)
    encoder, words = FeatureEncoder.load(tmp_path), ("forest", "meadow", "cat")
    ids, of = pieces.encode_words(words)
    assert len(ids) > 5
    with torch.no_grad():
        states = encoder.model.trunk(Inputs(torch.tensor(ids), PackedLayout.from_lengths([len(ids)]))).hidden.numpy()
    expected = [states[[i for i, word in enumerate(of) if word == n][row]] for n in range(3)]
    np.testing.assert_allclose(extract_features(encoder, [words], "last", None)[:, 0], expected, atol=1e-6)


def test_unsupported_layers(tokenizer, tmp_path):
    encoder = folder_of(tmp_path / "a", tokenizer)
    with pytest.raises(PolysemeError, match="reads characters, so words have no embeddings"):
        encoder.resolve_layers("embeddings")
    with pytest.raises(PolysemeError, match=r"'second_to_last' needs 2 layers, but the model has 1$"):
        encoder.resolve_layers("second_to_last")
    pieces = Tokenizer.train("bpe", iter(documents(20)), 270)
    spec = FAMILIES["ulmfit"].model_config(num_layers=2, dim=8, hidden_dim=12, vocab_size=pieces.vocab_size)
    save_model(tmp_path / "b", spec.build(0), pieces)
    uneven = FeatureEncoder.load(tmp_path / "b")
    assert uneven.layer_dims == [8, 12, 8] and uneven.resolve_layers("second_to_last")[1] == [1]
    with pytest.raises(PolysemeError, match=r"'scalar_mix' have \[8, 12, 8\] dimensions"):
        uneven.resolve_layers("scalar_mix")


def test_trains_both_character_directions(tokenizer, tmp_path, run_cli):
    (tmp_path / "text.txt").write_text("\n".join(documents(150)) + "\n")
    prepare([tmp_path / "text.txt"], tokenizer, tmp_path / "corpus", PrepareConfig(split="line", num_workers=1))
    recipe = get_training_recipe("flair-tiny").replace(size="", model={"dim": 48, "char_dim": 16, "dropout": 0.0})
    for path, value in (("budget.steps", "60"), ("optimizer.lr", "0.02"), ("schedule.warmup", "5"),
                        ("valid_fraction", "0.1"), ("batch_tokens", "1024"),
                        ("micro_batch_tokens", "1024"), ("max_len", "60")):  # fmt: skip
        recipe = recipe.with_override(path, value)
    results = pretrain(recipe, tmp_path / "corpus", tmp_path / "run")
    assert results["valid"]["next"] < 2.0 and results["valid"]["previous"] < 2.0  # blind over 30 letters: 2.8
    import polyseme

    model = polyseme.load(tmp_path / "run" / "model")
    better, worse = (s.log_prob for s in model.score(["The old cat", "Tac dlo ehT"]))
    assert better > worse
    found = extract_features(FeatureEncoder.load(tmp_path / "run" / "model"), SENTENCES[:2], "last", None)
    assert found.shape == (4, 1, 96)
