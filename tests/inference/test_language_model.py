"""What a model answers, against `transformers` on the same weights or against the plainest loop that could."""

import json
import math
import random

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import ConfigError, PolysemeError
from polyseme.families import FAMILIES
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.layer_selection import LAYER_SELECTIONS
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.weights.folder import load_model

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

TEXTS = [
    "The old cat sees the dog.", "a", "the unseen swan follows the quiet wolf in the forest, and a zebra hides!",
    "The dog.", "the small newt", "A grey seal leads the loud bird in the garden.", "the dog.", "fish fish fish",
]  # fmt: skip
PAIRS = [("The old cat sees.", "A dog follows the cat."), ("a", "b"), ("the swan", "unseen zebras: 12!")]


@pytest.fixture(scope="module")
def ours(tiny_folders):
    return {family: polyseme.load(folder, device="cpu") for family, folder in tiny_folders.items()}


@pytest.fixture(scope="module")
def theirs(tiny_folders):
    names = {f: json.loads((p / "config.json").read_text())["architectures"][0] for f, p in tiny_folders.items()}
    names["t5"] = "T5EncoderModel"
    known = {f: getattr(transformers, name) for f, name in names.items() if hasattr(transformers, name)}
    return {f: cls.from_pretrained(tiny_folders[f]).eval() for f, cls in known.items()}


@pytest.fixture(scope="module")
def tokenizers(tiny_folders):
    return {f: transformers.AutoTokenizer.from_pretrained(p) for f, p in tiny_folders.items()}


# --- fill and next ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["the [MASK] sees a dog", "[MASK]", "the [MASK] cat [MASK] the [MASK][MASK]."])
def test_fill(text, ours, theirs, tokenizers):
    given = tokenizers["bert"](text, return_tensors="pt")
    with torch.no_grad():
        logits = theirs["bert"](**given).prediction_logits[0]
    rows = (given["input_ids"][0] == tokenizers["bert"].mask_token_id).nonzero()[:, 0]
    found = ours["bert"].fill(text, top_k=7)
    assert len(found) == len(rows) == text.count("[MASK]")
    for guesses, row in zip(found, rows):
        best = logits[row].softmax(-1).topk(7)
        assert [g.token for g in guesses] == tokenizers["bert"].convert_ids_to_tokens(best.indices.tolist())
        assert [g.probability for g in guesses] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_fill_all_of_the_vocabulary(ours):
    (found,) = ours["bert"].fill("the [MASK]", top_k=10**6)
    assert len(found) == ours["bert"].tokenizer.vocab_size
    assert sum(g.probability for g in found) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("a,b", PAIRS)
def test_next_sentence(a, b, ours, theirs, tokenizers):
    with torch.no_grad():
        logits = theirs["bert"](**tokenizers["bert"](a, b, return_tensors="pt")).seq_relationship_logits[0]
    assert ours["bert"].next_sentence(a, b) == pytest.approx(logits.softmax(-1)[0].item(), abs=1e-5)


# --- score -----------------------------------------------------------------------------------------------------------


def test_score_of_a_causal_model(ours, theirs, tokenizers):
    scores = ours["gpt2"].score(TEXTS)
    tokenizer = tokenizers["gpt2"]
    for text, score in zip(TEXTS, scores):
        ids = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]
        with torch.no_grad():
            logits = theirs["gpt2"](input_ids=torch.tensor([ids])).logits[0]
        each = logits[:-1].double().log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])
        assert score.num_tokens == len(ids) - 1
        assert score.log_prob == pytest.approx(each.sum().item(), rel=1e-5, abs=1e-4)
        assert score.perplexity == pytest.approx(math.exp(-each.mean().item()), rel=1e-4)


def test_score_of_a_masked_model(ours, theirs, tokenizers):
    """Salazar et al. 2020: mask one token at a time, sum over all but those the template adds."""
    scores = ours["bert"].score(TEXTS)
    tokenizer = tokenizers["bert"]
    for text, score in zip(TEXTS, scores):
        given = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
        special = given.pop("special_tokens_mask")[0]
        ids, total, count = given["input_ids"], 0.0, 0
        for place in range(ids.shape[1]):
            token = ids[0, place].item()
            if special[place]:
                continue
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = theirs["bert"](**{**given, "input_ids": masked}).prediction_logits[0, place]
            total += logits.double().log_softmax(-1)[token].item()
            count += 1
        assert score.num_tokens == count
        assert score.log_prob == pytest.approx(total, rel=1e-5, abs=1e-4)


PAIRED = [
    f for f in FAMILIES if isinstance(FAMILIES[f].model_config().trunk, EncoderDecoderConfig)
]  # no text alone is scored, except by T5, which fills sentinels
TABLES = [f for f in FAMILIES if isinstance(FAMILIES[f].model_config().trunk, StaticEmbeddingTrunkConfig)]  # no text is


@pytest.mark.parametrize("family", [f for f in FAMILIES if f == "t5" or f not in (*PAIRED, *TABLES)])
def test_scores_do_not_depend_on_company(family, ours, tiny_folders):
    together = ours[family].score(TEXTS)
    small = NeuralLM(load_model(tiny_folders[family]), "cpu", max_batch_tokens=16)
    for text, score, other in zip(TEXTS, together, small.score(TEXTS)):
        (alone,) = ours[family].score([text])
        assert alone.num_tokens == score.num_tokens == other.num_tokens
        assert alone.log_prob == pytest.approx(score.log_prob, abs=1e-5 * score.num_tokens)
        assert other.log_prob == pytest.approx(score.log_prob, abs=1e-5 * score.num_tokens)
    assert ours[family].score([]) == []


@pytest.mark.parametrize("family", PAIRED)
def test_what_makes_no_sense_of_two_texts_is_told(family, ours):
    if family != "t5":
        with pytest.raises(PolysemeError, match=r"cannot score texts: it is a .* which supports encode, generate"):
            ours[family].score(TEXTS)
    with pytest.raises(PolysemeError, match="cannot rank choices"):
        ours[family].rank_choices("the", ["cat", "dog"])
    with pytest.raises(PolysemeError, match="cannot fill masks"):
        ours[family].fill("the [MASK]")


def test_a_causal_text_as_long_as_the_model(ours):
    model = ours["gpt2"]
    room = model.max_len
    text = " the" * room
    assert len(model.tokenizer.encode(text)) == room
    (score,) = model.score([text])
    assert score.num_tokens == room
    with pytest.raises(PolysemeError, match="longer"):
        model.score([text + " the"])


# --- embed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", list(FAMILIES))
def test_embed_keeps_the_order(family, ours, tiny_folders):
    texts = TEXTS * 2
    random.Random(1).shuffle(texts)
    model = NeuralLM(load_model(tiny_folders[family]), "cpu", max_batch_tokens=40)
    for per in ("token", "word", "text"):
        found = model.embed(texts, granularity=per)
        assert len(found) == len(texts)
        alone = {text: ours[family].embed([text], granularity=per)[0] for text in TEXTS}
        for text, vectors in zip(texts, found):
            np.testing.assert_allclose(vectors, alone[text], atol=1e-5)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_embed_every_layer(family, ours, theirs, tokenizers):
    if family not in theirs:
        pytest.skip("transformers has no such family")
    model, depth = ours[family], 3
    every = model.embed(TEXTS, "all", "token")
    for text, vectors in zip(TEXTS, every):
        with torch.no_grad():
            states = theirs[family](
                **tokenizers[family](text, return_tensors="pt"), output_hidden_states=True
            ).hidden_states
        np.testing.assert_allclose(vectors, torch.stack(states, 2)[0].numpy(), atol=2e-5)
    for i, text in enumerate(TEXTS[:3]):
        expected = {
            "embeddings": every[i][:, 0], "last": every[i][:, 3], "second_to_last": every[i][:, 2],
            "sum_all": every[i][:, 1:].sum(1), "all": every[i],
        }  # fmt: skip
        for name in set(LAYER_SELECTIONS) - set(expected):
            with pytest.raises(ConfigError, match=r"needs 4 layers, but the model has 3|a task learns"):
                model.embed([text], name)
        for name, value in expected.items():
            np.testing.assert_allclose(model.embed([text], name, "token")[0], value, atol=1e-5)
            mean = model.embed([text], name, "text")[0]
            np.testing.assert_allclose(mean, value.mean(0), atol=1e-5)
        for number in range(depth + 1):
            np.testing.assert_array_equal(model.embed([text], number)[0], model.embed([text], str(number))[0])


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_word_is_the_mean_of_its_pieces(family, ours):
    model = ours[family]
    text = "the catfish unseendog"
    tokens, words = (model.embed([text], granularity=per)[0] for per in ("token", "word"))
    pieces = model.encode(text).tokens
    kind = FAMILIES[family].tokenizer
    if kind == "wordpiece":
        starts = [i for i, p in enumerate(pieces) if not p.startswith(("##", "["))] + [len(pieces) - 1]
    elif kind.startswith("unigram"):
        starts = [i for i, p in enumerate(pieces) if p.startswith("▁")]
        starts.append(next(i for i, p in enumerate(pieces) if p in ("[SEP]", "</s>")))
    elif kind == "characters":
        spaces = [i for i, p in enumerate(pieces) if p == " "]  # each is a word of its own
        starts = sorted([1, *spaces, *(i + 1 for i in spaces), len(pieces) - 1])
    elif kind == "words":
        assert len(pieces) == len(tokens) == len(words) == 3 and np.array_equal(tokens, words)
        return
    else:
        lead = int(pieces[0] == "<s>")
        starts = [lead, *(i for i, p in enumerate(pieces) if p.startswith("Ġ")), len(pieces) - lead]
    number = 5 if kind == "characters" else 3
    assert len(starts) == number + 1 and len(words) == number and len(pieces) == len(tokens) > 5
    for word, begin, end in zip(words, starts, starts[1:]):
        np.testing.assert_allclose(word, tokens[begin:end].mean(0), atol=1e-5)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_embed_long_texts(family, ours):
    model = ours[family]
    long = "the cat " * 40
    with pytest.raises(PolysemeError, match="longer"):
        model.embed(["the cat", long])
    cut = model.embed(["the cat", long], granularity="token", truncate=True)
    assert len(cut[1]) == model.max_len
    np.testing.assert_allclose(cut[0], model.embed(["the cat"], granularity="token")[0], atol=1e-5)


# --- encode ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", list(FAMILIES))
def test_encode_equals_auto_tokenizer(family, ours, tokenizers):
    for args in [(t,) for t in TEXTS] + PAIRS:
        found = ours[family].encode(*args)
        expected = tokenizers[family](*args, return_token_type_ids=True)
        assert found.input_ids == expected["input_ids"]
        assert found.token_type_ids == expected["token_type_ids"]
        assert found.attention_mask == expected["attention_mask"]
        assert found.tokens == tokenizers[family].convert_ids_to_tokens(expected["input_ids"])


def test_encode_reads_specials_and_embed_does_not(ours):
    assert ours["bert"].encode("a [MASK] b").tokens[2] == "[MASK]"
    assert len(ours["bert"].embed(["a [MASK] b"], granularity="token")[0]) > 5


# --- predict ---------------------------------------------------------------------------------------------------------


def test_predict(project):
    texts = ["the cat sees the fish", "the swan"]
    found = polyseme.load(project / "run-classification/model", device="cpu").predict(texts)
    assert len(found) == 2 and all(
        set(p.probabilities) == {"land", "water"} and p.label in p.probabilities for p in found
    )
    pairs = polyseme.load(project / "run-pair_classification/model", device="cpu").predict([("the cat", "a fish")])
    assert len(pairs) == 1 and set(pairs[0].probabilities) == {"no", "yes"}
    tags = polyseme.load(project / "run-tagging/model", device="cpu").predict([["the", "cat", "sees"], "the dog"])
    assert [len(p.tags) for p in tags] == [3, 2] and {t for p in tags for t in p.tags} <= {"O", "B-A"}
    with pytest.raises(PolysemeError, match="example 2"):
        polyseme.load(project / "run-classification/model", device="cpu").predict(["a cat", ""])


def test_nothing_asked_is_nothing_answered(ours, project):
    for family, model in ours.items():
        assert family in (*PAIRED, *TABLES) or model.score([]) == []
        assert len(model.embed([])) == 0 and len(model.embed([], granularity="token")) == 0
    assert polyseme.load(project / "run-classification/model", device="cpu").predict([]) == []


# --- the padded view -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(3, 1, 5), (4,), (2, 2, 2), (1, 7, 0, 2), (5, 5, 1, 1, 1)])
def test_pad_and_unpad_are_inverse(lengths):
    layout = PackedLayout.from_lengths(lengths)
    for packed in (
        torch.arange(layout.num_tokens),
        torch.randn(layout.num_tokens, 3),
        torch.randn(layout.num_tokens, 2, 4),
    ):
        padded = layout.pad(packed, -9)
        assert padded.shape == (len(lengths), max(lengths), *packed.shape[1:]) and padded.dtype == packed.dtype
        assert torch.equal(layout.unpad(padded), packed)
        assert torch.equal(layout.pad(layout.unpad(padded), -9), padded)
        assert (padded[~layout.attention_mask()] == -9).all()
        begin = 0
        for row, n in zip(padded, lengths):
            assert torch.equal(row[:n], packed[begin : begin + n])
            begin += n
    assert layout.attention_mask().sum(1).tolist() == list(lengths)


def test_means_of_sequences():
    """Each its own mean, an empty one and an empty slot 0; halves are summed in float32."""
    packed = torch.arange(20, dtype=torch.float64).view(10, 2)
    found = PackedLayout.from_lengths((1, 7, 0, 2), num_slots=6).mean_pool(packed)
    expected = [[0, 1], [8, 9], [0, 0], [17, 18], [0, 0], [0, 0]]
    assert torch.equal(found, torch.tensor(expected, dtype=torch.float64))
    many = PackedLayout.from_lengths([5000]).mean_pool(torch.ones(5000, 1, dtype=torch.bfloat16))
    assert many.dtype == torch.bfloat16 and many.item() == 1


def test_the_padded_view_is_that_of_other_tools(ours, tokenizers):
    found = [ours["bert"].encode(text) for text in TEXTS]
    layout = PackedLayout.from_lengths([len(f.input_ids) for f in found])
    expected = tokenizers["bert"](TEXTS, padding=True, return_tensors="pt")
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        packed = torch.tensor([v for f in found for v in getattr(f, name)])
        assert torch.equal(layout.pad(packed), expected[name])
        assert torch.equal(layout.unpad(expected[name]), packed)
