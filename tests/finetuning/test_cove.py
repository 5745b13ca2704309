"""Encoders of translation models as frozen features, initialized from word vectors (CoVe)."""

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.inference.feature_extraction import FeatureEncoder, extract_features
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.recipes import get_training_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.warm_start import init_from_model
from polyseme.weights.folder import load_model, save_model
from tests.support.commands import run_cli
from tests.support.text import ANIMALS, task_rows

SENTENCES = [("the", "old", "cat"), ("unseen",), ("dog", "sees", "the", "river", ".")]


@pytest.mark.parametrize("family", ["seq2seq", "transformer", "t5"])
def test_features_are_encoder_states(family, tiny_folders):
    """At their first pieces, with the EOS token that sources end with."""
    encoder, folder = FeatureEncoder.load(tiny_folders[family]), load_model(tiny_folders[family])
    tokenizer, trunk = folder.tokenizer, folder.model.trunk.encoder
    assert encoder.num_layers == 4
    for layers, chosen in (("embeddings", [0]), ("last", [3]), ("scalar_mix", [0, 1, 2, 3])):
        found = extract_features(encoder, SENTENCES, layers, None)
        assert found.shape == (9, len(chosen), 24)
        row = 0
        for words in SENTENCES:
            pieces, of = tokenizer.encode_words(words)
            tokens = torch.tensor([*pieces, tokenizer.special_token_ids.eos])
            with torch.no_grad():
                reading = trunk(Inputs(tokens, PackedLayout.from_lengths([len(tokens)])), layers=chosen)
            for i in range(len(words)):
                expected = [reading.layers[layer][of.index(i)].numpy() for layer in chosen]
                np.testing.assert_allclose(found[row], np.stack(expected), atol=1e-5)
                row += 1


def test_task_over_the_encoder(tiny_folders, tmp_path):
    for seed, part in enumerate(("train", "dev")):
        (tmp_path / f"{part}.tsv").write_text(task_rows("tagging", 12, seed))
    run_cli("finetune", "--features", tiny_folders["seq2seq"], "--task", "tagging", "--train", tmp_path / "train.tsv",
         "--dev", tmp_path / "dev.tsv", "--out", tmp_path / "task", "--layers", "last", "--set", "epochs=1", "--set",
         "network.lstm_dim=8")  # fmt: skip
    assert (tmp_path / "task/report.html").exists()


def test_init_from_word_vectors(tmp_path):
    """Tokens that are words get their vectors, up to a common factor; the others are unchanged."""
    words = Tokenizer.train("words", iter([" ".join(ANIMALS)] * 5), 40)
    vectors = FAMILIES["word2vec"].model_config(dim=12, vocab_size=words.vocab_size, with_heads=False).build(3)
    save_model(tmp_path / "vectors", vectors, words)
    texts = [f"the {animal} and the {animal}" for animal in ANIMALS] * 20
    for side in ("en", "de"):
        (tmp_path / f"text.{side}").write_text("\n".join(f"{text} {i}" for i, text in enumerate(texts)) + "\n")
    run_cli("tokenizer", "train", tmp_path / "text.en", "--kind", "bpe", "--vocab-size", 310, "--out", tmp_path / "tok")
    run_cli("pairs", tmp_path / "text.en", tmp_path / "text.de", "--tokenizer", tmp_path / "tok", "--out",
         tmp_path / "pairs")  # fmt: skip
    recipe = get_training_recipe("seq2seq-tiny").replace(model={"dim": 16, "embedding_dim": 12})
    begun = init_from_model(tmp_path / "vectors", recipe, tmp_path / "pairs").model
    tokenizer = Tokenizer.load(tmp_path / "pairs/tokenizer")
    plain = recipe.model_config(tokenizer.vocab_size).build(recipe.seed)
    found, before = begun.trunk.encoder.token_embeddings.detach(), plain.trunk.encoder.token_embeddings.detach()
    changed = {i for i in range(len(found)) if not torch.equal(found[i], before[i])}
    single = {ids[0]: word for word in ANIMALS if len(ids := tokenizer.encode(f" {word}")) == 1}
    assert len(single) > 3 and changed == set(single)
    table = vectors.trunk.token_embeddings.detach()
    ratios = torch.stack([found[i] / table[words.encode(word)[0]] for i, word in single.items()])
    torch.testing.assert_close(ratios, ratios[0, 0].expand_as(ratios))
    run_cli("pretrain", "seq2seq-tiny", "--corpus", tmp_path / "pairs", "--out", tmp_path / "run", "--init-from",
         tmp_path / "vectors", "--budget", "2steps", "--set", "model.dim=16", "--set", "model.embedding_dim=12",
         "--set", "num_averaged=0")  # fmt: skip
    with pytest.raises(PolysemeError, match="have 12 dimensions, but those of seq2seq-tiny 128"):
        init_from_model(tmp_path / "vectors", get_training_recipe("seq2seq-tiny"), tmp_path / "pairs")
