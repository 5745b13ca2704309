"""Gaps that masked models fill: cloze questions and last words, against `transformers` on the same weights."""

import json

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import PolysemeError
from polyseme.inference.scoring import candidate_spans, mask_span

transformers = pytest.importorskip("transformers")
QUESTIONS = [
    ("the old [MASK] sees the dog.", ["cat", "unseen", "swan"]),
    ("the quiet ____ in the forest", ["zebra hides", "wolf"]),
    ("the small _ leads", ["newt", "frog"]),
    ("It was @placeholder who hears", ["bird", "bear"]),
    ("the loud bird follows the", ["hare", "mole"]),
]


@pytest.fixture(scope="module")
def ours(tiny_folders):
    names = ("bert", "roberta", "albert", "xlnet", "gpt2", "t5")
    return {name: polyseme.load(tiny_folders[name], device="cpu") for name in names}


@pytest.mark.parametrize("normalise", ["none", "length"])
def test_choices_in_a_gap_against_transformers(tiny_folders, ours, normalise):
    theirs = transformers.BertForMaskedLM.from_pretrained(tiny_folders["bert"]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folders["bert"])
    found = ours["bert"].rank_choices(*zip(*QUESTIONS), normalization=normalise)
    for (text, choices), choice in zip(QUESTIONS, found):
        for gap in ("____", "_", "@placeholder"):
            text = text.replace(gap, "[MASK]")
        text = text if "[MASK]" in text else f"{text} [MASK]"
        for answer, score, value in zip(choices, choice.scores, choice.normalized_scores):
            pieces = tokenizer(answer, add_special_tokens=False)["input_ids"]
            given = tokenizer(text.replace("[MASK]", " ".join(["[MASK]"] * len(pieces))), return_tensors="pt")
            with torch.no_grad():
                chances = theirs(**given).logits[0].double().log_softmax(-1)
            rows = (given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
            expected = sum(chances[row, piece].item() for row, piece in zip(rows, pieces, strict=True))
            assert score.log_prob == pytest.approx(expected, abs=1e-4) and score.num_tokens == len(pieces)
            assert value == pytest.approx(expected / (len(pieces) if normalise == "length" else 1), abs=1e-4)
        assert choice.best_index == int(np.argmax(choice.normalized_scores))


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "xlnet"])
def test_company_changes_nothing(ours, family):
    texts = [(text.replace("[MASK]", "_"), choices) for text, choices in QUESTIONS]
    together = ours[family].rank_choices(*zip(*texts))
    for question, found in zip(texts, together):
        alone = ours[family].rank_choices(*question)
        assert alone.normalized_scores == pytest.approx(found.normalized_scores, abs=1e-4)


def test_last_words_of_a_masked_model(ours, tmp_path, tiny_folders, run_cli):
    model = ours["bert"]
    texts = [("The old cat sees the", "dog"), ("The wolf hears the bird in the", "zebra"), ("the " * 60, "wolf")]
    found = model.score_last_words(texts)
    for (context, word), one in list(zip(texts, found))[:2]:
        choice = model.rank_choices(context, [word])
        assert one.score.log_prob == pytest.approx(choice.scores[0].log_prob, abs=1e-4) and one.num_truncated == 0
    assert found[2].num_truncated == len(model.tokenizer.encode("the " * 60 + "wolf")) - (model.max_len - 2)
    for one, (context, _) in zip(found, texts[:2]):
        masks = " ".join(["[MASK]"] * one.score.num_tokens)
        best = [guesses[0].token for guesses in model.fill(f"{context} {masks}", top_k=1)]
        said = model.tokenizer.decode([model.tokenizer.backend.token_to_id(piece) for piece in best])
        again = model.score_last_words([(context, said)])[0] if said.strip() else None
        assert again is None or again.score.num_tokens != one.score.num_tokens or again.is_correct
    (tmp_path / "l.txt").write_text("".join(f"{a} {b}\n" for a, b in texts[:2]))
    told = json.loads(run_cli("score", tiny_folders["bert"], "--last-words", tmp_path / "l.txt", "--json"))
    assert told["texts"] == 2 and told["accuracy"] == sum(one.is_correct for one in found[:2]) / 2
    (tmp_path / "q.jsonl").write_text(
        json.dumps({"text": "the old [MASK]", "choices": ["cat", "dog"], "label": 1}) + "\n"
    )
    assert "accuracy: " in run_cli("score", tiny_folders["bert"], "--choices", tmp_path / "q.jsonl")


@pytest.mark.parametrize("size", [8, 12, 20])
def test_what_is_too_long_keeps_its_gap(ours, size):
    tokenizer = ours["bert"].tokenizer
    for before, after in (("the cat " * 9, ""), ("", " the cat" * 9), ("the cat " * 5, " the dog" * 5)):
        gap = mask_span(tokenizer, before, "wolf", after, size)
        whole = tokenizer.encode(before + "wolf" + after)
        assert len(gap.ids) == size and gap.num_truncated == len(whole) - (size - 2)
        assert [gap.ids[i] for i in gap.positions] == tokenizer.encode("wolf")
        assert gap.ids[1:-1].tolist() in [whole[i : i + size - 2] for i in range(len(whole))]


def test_mistakes(ours):
    bert = ours["bert"]
    for message, (prompt, choices, options) in {
        "there are 2 gaps in 'the _ sees a _ ', and one answer": ("the _ sees a _", ["b"], {}),
        "the answer ' ' has no tokens": ("the _", ["b", " "], {}),
        r"choices is \[\], expected a list of answers": ("the _", [], {}),
        "longer than the model reads": ("the cat _ " + "sees " * 80, ["b"], {}),
        "normalization is 'unconditional'; valid: length, none": ("_", ["b"], {"normalization": "unconditional"}),
    }.items():
        with pytest.raises(PolysemeError, match=message) as caught:
            bert.rank_choices(prompt, choices, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(PolysemeError, match="alone is longer than the model reads"):
        mask_span(bert.tokenizer, "", "wolf " * 30, "", 12)
    with pytest.raises(PolysemeError, match="cannot rank choices"):
        ours["t5"].rank_choices("the _", ["b"])
    assert [len(gap.positions) for gap in candidate_spans(bert.tokenizer, "snake_case is _", ["cat"], 40)] == [1]


def test_a_last_word_without_a_context(ours):
    gpt2 = ours["gpt2"]
    (alone,) = gpt2.score_last_words([("", "cat")])
    assert alone.num_truncated == 0 and alone.score.log_prob == pytest.approx(gpt2.score(" cat").log_prob, abs=1e-4)
    with pytest.raises(PolysemeError, match="alone is longer than the model reads"):
        gpt2.score_last_words([("the", "cat" * 200)])
    assert ours["bert"].score_last_words([("", "cat")])[0].score.num_tokens == 1
