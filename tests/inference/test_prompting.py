"""Choosing between answers: against plain scores of whole texts, and against `transformers`, prompt by prompt."""

import json
from unittest import mock

import numpy as np
import pytest
import torch

import polyseme
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.scoring import format_prompt
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.text.importers import import_vocabulary
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import load_model, save_model

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

QUESTIONS = [
    ("The old cat sees", ["the dog.", "a quiet wolf in the forest", "fish"]),
    ("The", ["cat", "unseen swan", "cat"]),
    ("The old cat sees the small newt:", ["yes", "no"]),
    ("The old cat sees the small newt: ", ["yes", " no"]),
    ("a", ["zebra"] * 2),
]
SHOTS = [("The dog sees", "a swan"), ("The newt hears", "the grey bear")]


@pytest.fixture(scope="module")
def ours(tiny_folders):
    return {name: polyseme.load(tiny_folders[name], device="cpu") for name in ("bert", "gpt", "gpt2")}


def joined(prompt, choice):
    return f"{prompt.rstrip()} {choice.lstrip()}"


@pytest.mark.parametrize("family", ["gpt", "gpt2"])
def test_an_answer_is_worth_its_text_less_its_prompt(family, ours):
    """log P(answer | prompt) = log P(prompt, answer) − log P(prompt), as `score` has them for whole texts."""
    model = ours[family]
    for (prompt, choices), found in zip(QUESTIONS, model.rank_choices(*zip(*QUESTIONS))):
        (before,) = model.score([prompt.rstrip()])
        wholes = model.score([joined(prompt, c) for c in choices])
        for whole, score, value in zip(wholes, found.scores, found.normalized_scores):
            assert score.log_prob == value == pytest.approx(whole.log_prob - before.log_prob, abs=1e-4)
            assert score.num_tokens == whole.num_tokens - before.num_tokens
        assert found.best_index == int(np.argmax(found.normalized_scores))
        assert model.rank_choices(prompt, choices) == found or model.rank_choices(
            prompt, choices
        ).normalized_scores == pytest.approx(found.normalized_scores, abs=1e-4)


@pytest.mark.parametrize("family", ["gpt", "gpt2"])
@pytest.mark.parametrize("normalise", ["none", "length", "unconditional"])
def test_against_transformers(family, normalise, ours, tiny_folders):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tiny_folders[family]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folders[family])

    def chance(prompt, choice):
        start, whole = (tokenizer(t)["input_ids"] for t in (prompt.rstrip(), joined(prompt, choice)))
        ids = [tokenizer.bos_token_id, *whole]
        with torch.no_grad():
            chances = theirs(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        picked = [chances[i, ids[i + 1]].item() for i in range(len(start), len(whole))]
        return sum(picked), len(picked)

    shots = [("The dog", "swan")]
    found = ours[family].rank_choices(
        *zip(*QUESTIONS), shots=shots, template="Q: {text}\nA: {answer}", normalization=normalise, context="A: "
    )
    shown = "".join(f"Q: {text}\nA: {answer}\n\n" for text, answer in shots)
    for (text, choices), answer in zip(QUESTIONS, found):
        for choice, value in zip(choices, answer.normalized_scores):
            total, count = chance(f"{shown}Q: {text}\nA: ", choice)
            if normalise == "length":
                total /= count
            elif normalise == "unconditional":
                total -= chance("A:", choice)[0]
            assert value == pytest.approx(total, abs=1e-4)


def test_company_changes_nothing_and_what_is_shared_is_read_once(ours, tiny_folders):
    questions = [
        (f"the {a} cat {b}", ["the dog", "a swan", "fish fish"]) for a in ("old", "grey") for b in ("sees", "a")
    ]
    together = ours["gpt2"].rank_choices(*zip(*questions), shots=SHOTS)
    small = NeuralLM(load_model(tiny_folders["gpt2"]), "cpu", max_batch_tokens=16)
    for question, found, other in zip(questions, together, small.rank_choices(*zip(*questions), shots=SHOTS)):
        alone = ours["gpt2"].rank_choices(*question, shots=SHOTS)
        assert found.normalized_scores == pytest.approx(alone.normalized_scores, abs=1e-4)
        assert found.normalized_scores == pytest.approx(other.normalized_scores, abs=1e-4)
    sizes = []
    trunk = ours["gpt2"].model.trunk
    with mock.patch.object(trunk, "forward", side_effect=trunk.forward, autospec=False) as read:
        ours["gpt2"].rank_choices(*zip(*questions), shots=SHOTS)
        sizes = [call.args[0].tokens.numel() for call in read.call_args_list]
    tokenizer = ours["gpt2"].tokenizer
    prompts = [len(tokenizer.encode(format_prompt(t, "{text} {answer}", SHOTS).rstrip())) for t, _ in questions]
    answers = [len(tokenizer.encode(f" {c}")) for _, choices in questions for c in choices]
    # the shots are read once; of a prompt only its own words, and its last token again with each answer
    assert len(sizes) == 3 and sizes[0] > 20
    assert sum(sizes) <= max(prompts) + sum(p - sizes[0] for p in prompts) + sum(answers) < sum(prompts) * 3


def test_memory_of_chosen_sequences():
    spec = FAMILIES["gpt2"].model_config(num_layers=2, dim=16, num_heads=2, vocab_size=30, max_len=32)
    trunk = spec.build(0).double().eval().trunk
    rows = [torch.arange(n) for n in (3, 5, 2)]
    with torch.no_grad():
        layout = PackedLayout.from_lengths([3, 5, 2])
        memory = trunk(Inputs(torch.cat(rows), layout), return_memory=True).memory.select([2, 0, 2])
        assert memory.layout.lengths == (2, 3, 2)
        found = trunk(Inputs(torch.tensor([7, 8, 9, 4]), PackedLayout.from_lengths([1, 1, 2])), memory=memory).hidden
        for part, row, more in zip(found.split([1, 1, 2]), (rows[2], rows[0], rows[2]), ([7], [8], [9, 4])):
            whole = torch.cat([row, torch.tensor(more)])
            expected = trunk(Inputs(whole, PackedLayout.from_lengths([len(whole)]))).hidden[len(row) :]
            torch.testing.assert_close(part, expected, atol=1e-10, rtol=0)


def test_a_vocabulary_without_marks(tmp_path):
    """GPT's own: no token opens a text, so its first one is free and a prompt is needed."""
    letters = [*"abcdefghijklmnopqrstuvwxyz."]
    vocab = {p: i for i, p in enumerate([*letters, *(x + "</w>" for x in letters), "th", "the</w>", "<unk>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\n")
    tokenizer = Tokenizer(*import_vocabulary([tmp_path / "vocab.json", tmp_path / "merges.txt"]))
    assert tokenizer.special_token_ids.bos is None and tokenizer.special_token_ids.eos is None
    spec = FAMILIES["gpt"].model_config(num_layers=2, dim=16, num_heads=2, vocab_size=len(vocab), max_len=32)
    save_model(tmp_path / "m", spec.build(0), tokenizer)
    model = polyseme.load(tmp_path / "m", device="cpu")
    (whole,) = model.score(["the cat"])
    assert whole.num_tokens == len(tokenizer.encode("the cat")) - 1
    found = model.rank_choices("the", ["cat", "dog"])
    assert found.normalized_scores[0] == pytest.approx(whole.log_prob, abs=1e-5) and found.scores[0].num_tokens == 3
    with pytest.raises(PolysemeError, match="is a single token, and there is no token before it"):
        model.score(["the"])
    assert model.rank_choices("the the", ["cat", "dog"]).scores[0].num_tokens == 3


def test_templates():
    assert format_prompt("x", "{text} = {answer}", [("a", "b"), ("{text}", "d")]) == "a = b\n\n{text} = d\n\nx = "
    assert format_prompt("法国的首都是", "{text}{answer}", [("a", "b")]) == "ab\n\n法国的首都是"
    for bad in ("{text}", "{answer}", "{answer} {text}", "{text} {answer}!", ""):
        with pytest.raises(PolysemeError, match=r"has to hold \{text\} and end in \{answer\}"):
            format_prompt("x", bad, [])


def test_mistakes(ours):
    for message, (family, prompt, choices, options) in {
        "normalization is 'len'; did you mean 'length'": ("gpt2", "a", ["b", "c"], {"normalization": "len"}),
        "expected a list of choices, not str 'b'": ("gpt2", "a", "b", {}),
        r"choices is \[\], expected a list": ("gpt2", "a", [], {}),
        "the choice '' has no tokens": ("gpt2", "a", ["b", ""], {}),
        "is longer than the model reads": ("gpt2", "the cat " * 40, ["b", "c"], {}),
    }.items():
        with pytest.raises(PolysemeError, match=message) as caught:
            ours[family].rank_choices(prompt, choices, **options)
        assert "\n" not in str(caught.value)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    rows = [{"prompt": text, "choices": choices, "label": 0} for text, choices in QUESTIONS[:3]]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shots = [{"text": t, "choices": ["x", a], "label": a} for t, a in SHOTS]
    (tmp_path / "shots.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shots))
    return tmp_path


def test_score_choices(files, ours, tiny_folders, run_cli):
    said = run_cli("score", tiny_folders["gpt2"], "--choices", files / "q.jsonl", "--json").splitlines()
    expected = ours["gpt2"].rank_choices(*zip(*QUESTIONS[:3]))
    for line, found in zip(said, expected):
        row = json.loads(line)
        assert row["best_index"] == found.best_index and row["label"] == 0
        assert row["normalized_scores"] == pytest.approx(found.normalized_scores, abs=1e-4)
    accuracy = sum(f.best_index == 0 for f in expected) / 3
    assert json.loads(said[-1]) == {"accuracy": accuracy, "questions": 3, "num_shots": 0}
    options = (
        "--num-shots",
        2,
        "--examples",
        files / "shots.jsonl",
        "--template",
        r"{text}\n{answer}",
        "--normalization",
        "length",
    )
    plain = run_cli("score", tiny_folders["gpt2"], "--choices", files / "q.jsonl", *options).splitlines()
    assert len(plain) == 4 and plain[-1].startswith("accuracy: ") and plain[-1].endswith("(3 questions, 2 shots)")
    order = [SHOTS, SHOTS[::-1]]
    ranked = [
        ours["gpt2"].rank_choices(
            *zip(*QUESTIONS[:3]), shots=shots, template="{text}\n{answer}", normalization="length"
        )
        for shots in order
    ]
    values = [[f.normalized_scores[f.best_index] for f in results] for results in ranked]
    assert [float(line.split()[0]) for line in plain[:3]] in [pytest.approx(v, abs=1e-3) for v in values]


def test_bad_commands(files, tiny_folders, rejects):
    model, questions, shots = tiny_folders["gpt2"], files / "q.jsonl", files / "shots.jsonl"
    rejects("score", model, match="give --data with texts to score, --choices")
    rejects("score", model, "--data", questions, "--choices", questions, match="give --data")
    rejects("score", model, "--data", questions, "--num-shots", 1, match="--num-shots has no effect")
    for option, value in (("normalization", "length"), ("template", "{text}"), ("context", "x"), ("seed", 3)):
        rejects("score", model, "--data", questions, f"--{option}", value, match=f"--{option} has no effect without")
    context, unconditional = ("--context", "x"), "--context has no effect without --normalization unconditional"
    for options in (context, (*context, "--normalization", "length")):
        rejects("score", model, "--choices", questions, *options, match=unconditional)
    rejects("score", model, "--choices", questions, "--seed", 0, match="--seed has no effect without --num-shots")
    rejects("score", model, "--choices", questions, "--num-shots", 1, match="go together")
    rejects("score", model, "--choices", questions, "--examples", shots, match="go together")
    rejects("score", model, "--choices", questions, "--num-shots", 9, "--examples", shots, match="holds 2 examples")
    shot = ("--num-shots", 1, "--examples", shots)
    rejects("score", model, "--choices", questions, *shot, "--out", shots, match=r"shots\.jsonl is the input")
    same = ("--num-shots", 3, "--examples", questions)
    rejects("score", model, "--choices", questions, *same, match="is among the shots")
    rejects("score", model, "--choices", questions, "--template", "{text}", match="has to hold")
    rejects("score", model, "--choices", questions, "--normalization", "no", match="normalization is 'no'")
    rejects("score", model, "--choices", files / "none.jsonl", match="none.jsonl")
    rejects("score", tiny_folders["t5"], "--choices", questions, match="cannot rank choices")
    (files / "header.csv").write_text("text,choices\n")
    for option in ("data", "last-words", "choices"):
        empty = ("score", model, f"--{option}", files / "header.csv")
        rejects(*empty, match=r"header\.csv holds no (texts|examples)")
        rejects(*empty, "--out", files / "scores.csv", match=r"header\.csv holds no (texts|examples)")
    (files / "bad.jsonl").write_text('{"text": "a", "choices": "b"}\n')
    rejects("score", model, "--choices", files / "bad.jsonl", match=r"bad\.jsonl:1: choices is 'b'")
