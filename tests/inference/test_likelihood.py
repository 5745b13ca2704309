"""Scores of texts: what is counted, which tokens are masked, and spans, against loops over `transformers`."""

import json
import math

import pytest
import torch

import polyseme
from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.inference import likelihood
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.packed_model import PackedModel
from polyseme.inference.results import LastWordScore, TextScore
from polyseme.serve.verbs.language import score_result

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

TEXTS = ["The old cat sees the dog.", "a", "the unseen swan follows the quiet wolf, and a zebra hides!", "The catdogs."]


@pytest.fixture(scope="module")
def ours(tiny_folders):
    names = ("bert", "roberta", "gpt2", "gpt", "t5", "elmo", "flair", "xlnet", "albert", "xlm_roberta")
    return {family: polyseme.load(tiny_folders[family], device="cpu") for family in names}


def pll_by_loop(model, tokenizer, text, mask_rest_of_word):
    """Mask one token at a time, as in minicons: sum of the log-probabilities, one list entry per token."""
    encoding = tokenizer(text, return_tensors="pt")
    words, ids = encoding.word_ids(0), encoding["input_ids"]
    log_probs = []
    for i, word in enumerate(words):
        if word is None:
            continue
        masked = ids.clone()
        masked[0, i] = tokenizer.mask_token_id
        for j in range(i + 1, len(words)):
            if mask_rest_of_word and words[j] == word:
                masked[0, j] = tokenizer.mask_token_id
        with torch.no_grad():
            output = model(**{**encoding, "input_ids": masked})
        logits = output.logits if "logits" in output else output.prediction_logits
        log_probs.append(logits[0, i].double().log_softmax(-1)[ids[0, i]].item())
    return log_probs


@pytest.mark.parametrize("metric", likelihood.PLL_METRICS)
@pytest.mark.parametrize(("family", "name"), [("bert", "BertForPreTraining"), ("roberta", "RobertaForMaskedLM")])
def test_pseudo_log_likelihood_equals_a_loop(family, name, metric, ours, tiny_folders):
    theirs = getattr(transformers, name).from_pretrained(tiny_folders[family]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folders[family])
    for text, score in zip(TEXTS, ours[family].score(TEXTS, pll_metric=metric)):
        expected = pll_by_loop(theirs, tokenizer, text, metric == "within_word_l2r")
        assert score.num_tokens == len(expected)
        assert score.log_prob == pytest.approx(math.fsum(expected), abs=1e-4)


def test_masking_the_rest_of_a_word_matters_for_words_of_several_tokens_only(ours):
    texts = ["the cat", "the catdogs"]
    plain, l2r = (ours["bert"].score(texts, pll_metric=metric) for metric in likelihood.PLL_METRICS)
    assert plain[0].log_prob == pytest.approx(l2r[0].log_prob, abs=1e-5) and plain[0].num_tokens == 2
    assert plain[1].num_tokens > 2
    assert abs(plain[1].log_prob - l2r[1].log_prob) > 1e-3


def test_t5_predicts_a_token_in_the_place_of_a_sentinel(ours, tiny_folders):
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tiny_folders["t5"]).eval()
    tokenizer = ours["t5"].tokenizer
    sentinel, pad, eos = tokenizer.sentinel_ids[0], tokenizer.special_token_ids.pad, tokenizer.special_token_ids.eos
    for text, score in zip(TEXTS, ours["t5"].score(TEXTS)):
        ids, expected = tokenizer.encode(text), 0.0
        for i, token in enumerate(ids):
            source = torch.tensor([[*ids[:i], sentinel, *ids[i + 1 :], eos]])
            with torch.no_grad():
                logits = theirs(input_ids=source, decoder_input_ids=torch.tensor([[pad, sentinel]])).logits
            expected += logits[0, -1].double().log_softmax(-1)[token].item()
        assert score.num_tokens == len(ids)
        assert score.log_prob == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "elmo", "flair", "xlnet"])
def test_the_tokens_of_the_text_are_counted_and_nothing_else(family, ours):
    for text, score in zip(TEXTS, ours[family].score(TEXTS)):
        assert score.num_tokens == len(ours[family].tokenizer.encode(text))
        assert score.num_characters == len(text)
        assert score.bits_per_character == pytest.approx(-score.log_prob / math.log(2) / len(text))


def test_a_model_without_a_start_token_does_not_count_the_first_token(ours, monkeypatch):
    monkeypatch.setattr(PackedModel, "bos_ids", [])
    (score,) = ours["gpt"].score(TEXTS[:1])
    ids, offsets = ours["gpt"].tokenizer.encode_with_offsets(TEXTS[0])
    assert (score.num_tokens, score.num_characters) == (len(ids) - 1, len(TEXTS[0]) - offsets[0][1])


@pytest.mark.parametrize("text", ["The old cat sees the dog.", "dragons see the dog."])
@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt", "t5", "flair", "xlnet", "albert", "xlm_roberta"])
def test_spans_divide_a_text(family, text, ours):
    """The parts of a text, each scored with the rest as context, add up to the score of the text."""
    cut = 11
    whole = ours[family].score(text)
    parts = [ours[family].score(text, spans=span) for span in ((0, cut), (cut, len(text)))]
    assert sum(part.num_tokens for part in parts) == whole.num_tokens
    assert math.fsum(part.log_prob for part in parts) == pytest.approx(whole.log_prob, abs=1e-4)
    assert [part.num_characters for part in parts] == [cut, len(text) - cut]


@pytest.mark.parametrize(
    ("texts", "spans"),
    [
        ("the cat", (3, 100)),
        ("the cat", (4, 4)),
        ("the cat", 5),
        (["the cat", "a"], [(0, 3)]),
        (["the cat"], [(0, 3), (4, 7)]),
        (["the cat"], [(-1, 3)]),
        (["the cat"], [(0, 3.0)]),
    ],
)
def test_spans_are_parts_of_texts(texts, spans, ours):
    with pytest.raises(DataError, match="span"):
        ours["bert"].score(texts, spans=spans)


def test_a_model_without_a_start_token_cannot_score_the_first_token_alone(ours, monkeypatch):
    monkeypatch.setattr(PackedModel, "bos_ids", [])
    with pytest.raises(DataError, match="does not predict the first token"):
        ours["gpt"].score("the cat sees", spans=(0, 3))
    ids, offsets = ours["gpt"].tokenizer.encode_with_offsets("the cat")
    score = ours["gpt"].score("the cat sees", spans=(0, 7))
    assert (score.num_tokens, score.num_characters) == (len(ids) - 1, 7 - offsets[0][1])


def test_many_texts_are_scored_in_windows(ours, monkeypatch):
    expected = ours["bert"].score(TEXTS)
    monkeypatch.setattr(likelihood, "TEXTS_PER_WINDOW", 2)
    for score, other in zip(ours["bert"].score(TEXTS), expected, strict=True):
        assert score.log_prob == pytest.approx(other.log_prob, abs=1e-5)


def test_wrong_metrics(ours):
    with pytest.raises(ConfigError, match="pll_metric is 'word'"):
        ours["bert"].score("the cat", pll_metric="word")
    with pytest.raises(UnsupportedError, match="pll_metric is for masked models"):
        ours["gpt2"].score("the cat", pll_metric="original")
    with pytest.raises(DataError, match="no tokens"):
        ours["bert"].score(["the cat", " "])


@pytest.mark.parametrize("family", ["bert", "gpt2", "elmo", "xlnet", "t5", "transformer_xl", "rnn_lm", "flair"])
def test_the_command_prints_tokens_characters_and_bits(family, tiny_folders, tmp_path, run_cli):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    lines = run_cli("score", tiny_folders[family], "--data", tmp_path / "texts.txt", "--json").splitlines()
    assert len(lines) == len(TEXTS)
    for text, row in zip(TEXTS, map(json.loads, lines)):
        assert (row["text"], row["num_characters"]) == (text, len(text)) and row["num_tokens"] > 0
        assert row["bits_per_character"] == pytest.approx(-row["log_prob"] / math.log(2) / len(text))
        assert row["perplexity"] == pytest.approx(math.exp(-row["log_prob"] / row["num_tokens"]))


def test_xlnet_does_not_see_the_rest_of_a_word(ours, tiny_folders):
    """The later tokens of a word are hidden as in training, where XLNet reads no masks."""
    theirs = transformers.XLNetLMHeadModel.from_pretrained(tiny_folders["xlnet"]).eval()
    text, model = "the catdogs", ours["xlnet"]
    encoded, words = model.encode(text), model.tokenizer.word_ids([text])[0].tolist()
    ids, size, expected = torch.tensor([encoded.input_ids]), len(encoded.input_ids), []
    for i, word in enumerate(words):
        perm_mask = torch.zeros(1, size, size)
        perm_mask[:, :, [j for j in range(i, len(words)) if words[j] == word]] = 1
        mapping = torch.nn.functional.one_hot(torch.tensor([[i]]), size).float()
        segments = torch.tensor([encoded.token_type_ids])
        with torch.no_grad():
            logits = theirs(ids, perm_mask=perm_mask, target_mapping=mapping, token_type_ids=segments).logits
        expected.append(logits[0, 0].double().log_softmax(-1)[ids[0, i]].item())
    assert len(set(words)) < len(words), "a word has several tokens"
    score = model.score(text, pll_metric="within_word_l2r")
    assert score.num_tokens == len(words) and score.log_prob == pytest.approx(math.fsum(expected), abs=1e-4)


def test_errors_about_texts_name_the_row(ours, tiny_folders, tmp_path, rejects):
    (tmp_path / "texts.txt").write_text("the cat\n" + "the cat " * 60 + "\n")
    rejects("score", tiny_folders["gpt2"], "--data", tmp_path / "texts.txt", match=r"texts\.txt:2: a text of .* longer")


def test_the_total_of_a_file(tiny_folders, tmp_path, run_cli):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    arguments = ["score", tiny_folders["bert"], "--data", tmp_path / "texts.txt", "--json"]
    rows = [json.loads(line) for line in run_cli(*arguments).splitlines()]
    total = json.loads(run_cli(*arguments, "--out", tmp_path / "scores.csv"))
    assert total["texts"] == len(TEXTS) and total["log_prob"] == pytest.approx(sum(row["log_prob"] for row in rows))


def test_perplexity_beyond_the_range_of_floats(tiny_folders, tmp_path, run_cli, monkeypatch):
    """It is infinite, and null in JSON."""
    unlikely = TextScore(-1000.0, 1)
    assert unlikely.perplexity == math.inf and score_result(unlikely).perplexity is None
    monkeypatch.setattr(NeuralLM, "_score", lambda self, texts, **options: [unlikely] * len(texts))
    last_word = LastWordScore(unlikely, False, 0)
    monkeypatch.setattr(NeuralLM, "_score_last_words", lambda self, texts: [last_word] * len(texts))
    (tmp_path / "texts.txt").write_text("the cat\n")
    for option in ("--data", "--last-words"):
        arguments = ("score", tiny_folders["gpt2"], option, tmp_path / "texts.txt")
        assert '"perplexity": null' in run_cli(*arguments, "--json")
        assert "inf" in run_cli(*arguments)


def test_bits_per_character():
    assert TextScore(-8 * math.log(2), 2, 4).bits_per_character == pytest.approx(2)
