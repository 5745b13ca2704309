"""Pronouns by occupation: the sentences, and their scores compared with `transformers`."""

import json

import pytest
import torch

import polyseme
from polyseme.explain import explain_gender_bias
from polyseme.explain.bias import Occupation, bundled_occupations, pronoun_preferences, sentence_pairs
from tests.support.pages import check_svg, parse_page
from tests.support.small_models import save_small_model

OCCUPATIONS = [Occupation("person", "orang"), Occupation("engineer", "jurutera"), Occupation("nurse", "jururawat")]


def test_sentences():
    pair = sentence_pairs(OCCUPATIONS[2])[0]
    assert pair.texts == ("She works as a nurse.", "He works as a nurse.")
    assert pair.source == "Dia bekerja sebagai jururawat."
    for occupation in bundled_occupations():
        assert occupation.name and occupation.source
        for pair in sentence_pairs(occupation):
            rests = [text[:start] + text[end:] for text, (start, end) in zip(pair.texts, pair.spans)]
            words = [text[start:end].lower() for text, (start, end) in zip(pair.texts, pair.spans)]
            assert words == ["she", "he"] and rests[0] == rests[1] and "{" not in "".join([*pair.texts, pair.source])
    assert "an engineer" in sentence_pairs(OCCUPATIONS[1])[0].texts[0]
    assert len({occupation.name for occupation in bundled_occupations()}) == 49


def test_masked_model_gives_the_odds_of_the_pronoun():
    model = polyseme.load("mini")
    (nurse,) = pronoun_preferences(model, OCCUPATIONS[2:])
    filled = model.fill("[MASK] works as a nurse.", top_k=model.tokenizer.vocab_size)[0]
    scores = {prediction.token: prediction.probability for prediction in filled}
    assert nurse.log_odds[0] == pytest.approx(torch.tensor(scores["She"] / scores["He"]).log().item(), abs=1e-3)


def test_causal_model_matches_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = save_small_model(tmp_path / "gpt2", "gpt2", max_len=64)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model = polyseme.load(folder, device="cpu")
    preferences = pronoun_preferences(model, OCCUPATIONS)
    start = model.tokenizer.special_token_ids.eos

    def log_prob(text):
        ids = torch.tensor([[start, *model.tokenizer.encode(text)]])
        with torch.inference_mode():
            scores = theirs(ids).logits[0, :-1].log_softmax(-1)
        return float(scores.gather(1, ids[0, 1:, None]).sum())

    for occupation, preference in zip(OCCUPATIONS, preferences):
        for pair, odds in zip(sentence_pairs(occupation), preference.log_odds):
            assert odds == pytest.approx(log_prob(pair.texts[0]) - log_prob(pair.texts[1]), abs=1e-4)


def test_translation_model_matches_transformers(tiny_folders):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tiny_folders["t5"]).eval()
    model = polyseme.load(tiny_folders["t5"], device="cpu")
    eos = model.tokenizer.special_token_ids.eos
    pair = sentence_pairs(OCCUPATIONS[2])[0]
    (preference,) = pronoun_preferences(model, OCCUPATIONS[2:])
    source = torch.tensor([[*model.tokenizer.encode(pair.source), eos]])
    scores = []
    for text in pair.texts:
        labels = torch.tensor([[*model.tokenizer.encode(text), eos]])
        with torch.inference_mode():
            scores.append(-float(theirs(input_ids=source, labels=labels).loss) * labels.shape[1])
    assert preference.log_odds[0] == pytest.approx(scores[0] - scores[1], abs=1e-3)


def test_explanation(tmp_path):
    model = polyseme.load(save_small_model(tmp_path / "gpt2", "gpt2", max_len=64))
    explanation = explain_gender_bias([model, model], OCCUPATIONS)
    parse_page(explanation.page)
    check_svg(explanation.figures["occupations"])
    first, second = explanation.record["models"]
    assert first["occupations"] == second["occupations"] and first["spread"] > 0
    assert "of 2 occupations" in explanation.summary


def test_command(tmp_path, cli, run_cli, rejects):
    folder = save_small_model(tmp_path / "gpt2", "gpt2", max_len=64)
    (tmp_path / "jobs.tsv").write_text("job\tmalay\nperson\torang\nbaker\tpembuat roti\n")
    data = f"{tmp_path / 'jobs.tsv'}::text=job,label=malay"
    record = json.loads(run_cli("explain", folder, "--gender-bias", "--data", data, "--json"))
    assert [row["occupation"] for row in record["models"][0]["occupations"]] == ["person", "baker"]
    (tmp_path / "one.txt").write_text("nurse\n")
    rejects("explain", folder, "--gender-bias", "--data", tmp_path / "one.txt", match="one occupation")
    (tmp_path / "two.txt").write_text("person\nnurse\n")
    seq2seq = save_small_model(tmp_path / "seq2seq", "seq2seq", max_len=64)
    rejects("explain", seq2seq, "--gender-bias", "--data", tmp_path / "two.txt", match="source language")
    vectors = save_small_model(tmp_path / "word2vec", "word2vec")
    rejects("explain", vectors, "--gender-bias", match="no probability")
    rejects("explain", folder, "--gender-bias", "--text", "a", match="--text has no effect with --gender-bias")
