"""Tasks as prompts: templates, metrics and the command."""

import json

import pytest

from polyseme.errors import PolysemeError
from polyseme.evaluation.prompting import (
    PROMPTS_DIR,
    PromptQuestion,
    PromptTemplate,
    answer_questions,
    evaluate_answers,
    exact_match,
    load_prompt_template,
    read_questions,
    rouge_l,
    sample_shots,
    token_f1,
)


def test_builtin_prompts():
    names = {path.stem for path in PROMPTS_DIR.glob("*.json")}
    assert names == {"question", "cloze", "summary", "translation"}
    for name in names:
        assert load_prompt_template(name).name == name and PromptTemplate.from_json(
            load_prompt_template(name).to_json()
        ) == load_prompt_template(name)
    with pytest.raises(PolysemeError, match="summary"):
        load_prompt_template("sumary")


def test_rendering_and_answers():
    prompt = load_prompt_template("question").replace(instruction="Answer.")
    shots = [PromptQuestion({"question": "1 + 1?"}, ("2", "two"))]
    text = prompt.render(PromptQuestion({"question": "who?"}, ("me",)), shots)
    assert text == "Answer.\n\nQ: 1 + 1?\nA:2\n\nQ: who?\nA:"
    tricky = PromptQuestion({"text": "a {answer} in {text}"}, ("x",))
    assert load_prompt_template("summary").render(tricky) == "a {answer} in {text}\nTL;DR:"
    questions = [PromptQuestion({"question": q}, ("",)) for q in "abc"]
    answers = answer_questions(lambda prompts, most: [" Paris\nQ: more", "\n", "Rome"], prompt, questions)
    assert answers == ["Paris", "", "Rome"]


def test_metrics():
    assert exact_match("The Cat.", "cat") == 1 and exact_match("cats", "cat") == 0
    assert token_f1("the black cat", "a black dog") == pytest.approx(0.5)
    assert rouge_l("the cat sat on it", "the cat on it sat") == pytest.approx(0.8)
    assert token_f1("", "x") == rouge_l("", "x") == 0 and token_f1("the", "a") == 1
    questions = [PromptQuestion({}, ("Paris", "paris, France")), PromptQuestion({}, ("Rome",))]
    results = evaluate_answers(load_prompt_template("question"), ["Paris France", "Oslo"], questions)
    assert results["exact_match"] == 0.5 and results["f1"] == 0.5
    results = evaluate_answers(load_prompt_template("translation"), ["ein Hund läuft am Strand", "x"], [
        PromptQuestion({}, ("ein Hund läuft am Strand",)), PromptQuestion({}, ("y",))])  # fmt: skip
    assert 0 < results["bleu"] <= 100 and "version" in results["bleu_signature"]


def test_shots_are_never_questions():
    known = [PromptQuestion({"text": str(i)}, ("a",)) for i in range(6)]
    drawn = sample_shots(known, 3, 0, known[:3])
    assert not set(q.fields["text"] for q in drawn) & {"0", "1", "2"} and drawn == sample_shots(known, 3, 0, known[:3])
    with pytest.raises(PolysemeError, match="4 shots are more than the 3"):
        sample_shots(known, 4, 0, known[:3])


def test_prompt_command(project, run_cli, rejects, tmp_path):
    rows = [{"text": f"The old cat sees {i}.", "answer": ["the dog", "a dog"]} for i in range(4)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[2:]))
    (tmp_path / "mine.json").write_text(
        json.dumps({"name": "mine", "template": "{text}:{answer}", "max_new_tokens": 4})
    )
    model = project / "run-gpt2/model"
    output = run_cli(
        "prompt", model, "--prompt", tmp_path / "mine.json", "--data", tmp_path / "d.jsonl", "--json"
    ).splitlines()
    assert len(output) == 3 and json.loads(output[-1])["questions"] == 2
    output = run_cli("prompt", model, "--prompt", tmp_path / "mine.json", "--data", tmp_path / "d.jsonl",
                     "--num-shots", 1, "--examples", tmp_path / "e.jsonl")  # fmt: skip
    assert "match: " in output and "1 shots" in output
    rejects("prompt", model, "--prompt", "question", "--data", tmp_path / "d.jsonl", match="no key 'question'")
    rejects("prompt", model, "--prompt", "none", "--data", tmp_path / "d.jsonl", match="no prompt 'none'")
    rejects(
        "prompt", model, "--prompt", "summary", "--data", tmp_path / "d.jsonl", "--num-shots", 1, match="--examples"
    )
    (tmp_path / "bad.json").write_text(json.dumps({"name": "x", "template": "{answer} {text}"}))
    rejects("prompt", model, "--prompt", tmp_path / "bad.json", "--data", tmp_path / "d.jsonl", match="has to end in")
    (tmp_path / "n.jsonl").write_text('{"text": "x", "answer": 3}\n')
    rejects("prompt", model, "--prompt", tmp_path / "mine.json", "--data", tmp_path / "n.jsonl", match="are texts")
    with pytest.raises(PolysemeError, match="malformed"):
        (tmp_path / "n.jsonl").write_text("{")
        read_questions(tmp_path / "n.jsonl", load_prompt_template("summary"))
