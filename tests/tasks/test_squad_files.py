"""Files of SQuAD 1.1 and 2.0 with their oddities; also real files, if available."""

import gzip
import json
from pathlib import Path

import pytest

from polyseme.errors import PolysemeError
from polyseme.tasks.extractive_qa import ExtractiveQATask, count_bad_offsets

REAL = Path(__file__).parents[2].parent / "shared/data/squad-shifts"
CONTEXT = "  Ada Lovelace (1815\u20131852) wrote \U0001f600 notes on the Analytical Engine.\n"


def squad(*questions, context=CONTEXT):
    return {"version": "v2.0", "data": [{"title": "A", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def question_record(id_, *answers, **more):
    answer_records = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id_, "question": f" What about {id_}? ", "answers": answer_records, **more}


def write(path, content):
    data = json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["dev-v2.0.json", "dev-v2.0.json.gz"])
def test_distributed_format(tmp_path, name):
    at = CONTEXT.index("notes")
    plausible = {"plausible_answers": [{"text": "Ada", "answer_start": 2}]}
    content = squad(
        question_record("a", ("notes", at), ("wrote \U0001f600 notes", at - 8), is_impossible=False),
        question_record("b", is_impossible=True, **plausible),
        question_record("c", ("notes", at - 1), ("Ada", 2)),
        question_record("d", ("Engine", 0), ("", 3), ("1815", -5)),
    )
    examples = ExtractiveQATask.read(write(tmp_path / name, content))
    assert [e.id for e in examples] == list("abcd") and all(e.context == CONTEXT for e in examples)
    assert examples[0].gold == ("notes", "wrote \U0001f600 notes") and examples[1].gold == ()
    assert examples[0].question == " What about a? "
    assert examples[2].valid_answers == [("Ada", 2)] and examples[3].valid_answers == []
    assert count_bad_offsets(examples) == (4, 1)
    assert [e.id for e in examples if e.is_trainable] == ["a", "b", "c"]


def test_errors_name_the_location(tmp_path, capsys):
    good = question_record("a", ("notes", CONTEXT.index("notes")))
    cases = {
        r"f\.json:1: malformed JSON": "{",
        r"f\.json: malformed JSON: Exceeds the limit": '{"data": ' + "9" * 5000 + "}",
        r"f\.json: there is no key 'data'; did you mean 'date'\?": {"date": []},
        r"data\[0\]: paragraphs is 'x', not a list": {"data": [{"paragraphs": "x"}]},
        r"data\[0\], paragraphs\[0\]: there is no key 'qas'": {"data": [{"paragraphs": [{"context": "x"}]}]},
        r"paragraphs\[0\]: context is ' ', not a text": squad(good, context=" "),
        r"qas\[0\], question b: it has no answer and is not marked as impossible": squad(question_record("b")),
        r"question c, answers\[0\]: the answer is \"\{'text'": squad(question_record("c", ("x", "1"))),
        r"question d: question is '', not a text": squad(question_record("d", ("x", 1)) | {"question": ""}),
        r"holds no examples": {"data": []},
    }
    for message, content in cases.items():
        path = tmp_path / "f.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(PolysemeError, match=message):
            ExtractiveQATask.read(path)
    with pytest.raises(PolysemeError, match=f"^{tmp_path / 'none.json'} is missing$"):
        ExtractiveQATask.read(tmp_path / "none.json")
    write(tmp_path / "f.json", squad(good, question_record("b")))
    assert [e.id for e in ExtractiveQATask.read(tmp_path / "f.json", skip_bad=True)] == ["a"]
    assert "skipped 1 bad of 2 rows" in capsys.readouterr().err
    examples = ExtractiveQATask.read(tmp_path / "f.json", needs_labels=False)
    assert [e.answers is None for e in examples] == [False, True]


@pytest.mark.parametrize("name,rows", [("new_wiki", 7936), ("nyt", 10056), ("amazon_reviews", 9877)])
def test_real_files(name, rows):
    path = REAL / f"{name}_v1.0.json.gz"
    if not path.is_file():
        pytest.skip("the real files are not here")
    examples = ExtractiveQATask.read(path)
    assert len(examples) == rows and len({e.id for e in examples}) == rows
    num_answers = sum(len(e.answers) for e in examples)
    wrong, lost = count_bad_offsets(examples)
    assert wrong <= 0.04 * num_answers and lost <= 0.04 * rows
    assert (wrong > 0.01 * num_answers) == (name == "amazon_reviews")
    for example in [e for e in examples if e.is_trainable][::97]:
        for text, at in example.valid_answers:
            assert example.context[at : at + len(text)] == text


@pytest.mark.parametrize(
    "answers,expected",
    [
        ({"text": ["Paris"], "answer_start": [21]}, (("Paris", 21),)),  # as `datasets` stores SQuAD
        ({"text": ["Paris"]}, (("Paris", 14),)),
        ({"text": "Paris"}, (("Paris", 14),)),
        ({"text": [], "answer_start": []}, ()),
        ([{"text": "Paris", "answer_start": 21}, {"text": "Anna"}], (("Paris", 21), ("Anna", 0))),
        (["Paris", "Rome"], (("Paris", 14), ("Rome", -1))),
        ("Paris", (("Paris", 14),)),
        ('["Paris"]', (("Paris", 14),)),
        ([], ()),
        ("", None),
        (None, None),
        (5, r"answers is '5', not a list of texts"),
        ([5], r"answers\[0\] is '5', not a text"),
        ([""], r"answers\[0\] is an empty text"),
        ([{"answer_start": 2}], r"answers\[0\] is 'None', not a text"),
        ([{"text": "Paris", "answer_start": "x"}], r"answer_start of answers\[0\] is 'x', not a number of characters"),
    ],
)
def test_answers_of_records(answers, expected):
    record = {"context": "Anna lives in Paris. Paris is nice.", "question": "Where?", "answers": answers, "id": None}
    if isinstance(expected, str):
        with pytest.raises(PolysemeError, match=expected):
            ExtractiveQATask.from_value(record, "example 1")
        return
    example = ExtractiveQATask.from_value(record, "example 1")
    assert example.answers == expected and example.id == "example 1"
    if expected is None:
        with pytest.raises(PolysemeError, match="example 1: there is no answer"):
            ExtractiveQATask.from_value(record, "example 1", needs_labels=True)


def test_a_bad_paragraph_can_be_skipped(tmp_path, capsys):
    good = question_record("a", ("notes", CONTEXT.index("notes")))
    content = squad(good)
    paragraphs = content["data"][0]["paragraphs"]
    paragraphs[:0] = [{"qas": [good]}, {"context": "x"}, "x"]
    content["data"].insert(0, {"title": "B"})
    path = write(tmp_path / "f.json", content)
    assert [e.id for e in ExtractiveQATask.read(path, skip_bad=True)] == ["a"]
    assert "skipped 4 bad of 5 rows, the first" in capsys.readouterr().err
    with pytest.raises(PolysemeError, match=r"data\[0\]: there is no key 'paragraphs'"):
        ExtractiveQATask.read(path)


def test_no_answer_at_its_offset_leaves_nothing_to_learn():
    record = {"context": "Anna lives in Paris.", "question": "Where?", "answers": ["Rome"]}
    with pytest.raises(PolysemeError, match=r"no answer .* is at its offset in the context \(example 1 …\)"):
        ExtractiveQATask.from_examples([ExtractiveQATask.from_value(record, "example 1")])


def test_a_repeated_id_cannot_be_written_as_json(tmp_path):
    examples = ExtractiveQATask.read(
        write(tmp_path / "f.json", squad(question_record("a"), question_record("a"))), needs_labels=False
    )
    task = ExtractiveQATask()
    with pytest.raises(PolysemeError, match=r"another question has the id 'a', and \.json has one answer for each id"):
        task.output_formats(tmp_path / "out.json", examples)
    assert task.output_formats(tmp_path / "out.jsonl", examples)
