"""SQuAD's files, 1.1 and 2.0, with their oddities; real ones where they are there."""

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


def asked(id_, *answers, **more):
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id_, "question": f" What about {id_}? ", "answers": given, **more}


def write(path, content):
    data = json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["dev-v2.0.json", "dev-v2.0.json.gz"])
def test_a_file_as_it_is_distributed(tmp_path, name):
    at = CONTEXT.index("notes")
    plausible = {"plausible_answers": [{"text": "Ada", "answer_start": 2}]}
    content = squad(
        asked("a", ("notes", at), ("wrote \U0001f600 notes", at - 8), is_impossible=False),
        asked("b", is_impossible=True, **plausible),
        asked("c", ("notes", at - 1), ("Ada", 2)),
        asked("d", ("Engine", 0), ("", 3), ("1815", -5)),
    )
    found = ExtractiveQATask.read(write(tmp_path / name, content))
    assert [e.id for e in found] == list("abcd") and all(e.context == CONTEXT for e in found)
    assert found[0].gold == ("notes", "wrote \U0001f600 notes") and found[1].gold == ()
    assert found[0].question == " What about a? "
    assert found[2].valid_answers == [("Ada", 2)] and found[3].valid_answers == []
    assert count_bad_offsets(found) == (4, 1)
    assert [e.id for e in ExtractiveQATask().trainable(found)] == ["a", "b", "c"]


def test_mistakes_are_named(tmp_path, capsys):
    good = asked("a", ("notes", CONTEXT.index("notes")))
    cases = {
        r"f\.json:1: malformed JSON": "{",
        r"f\.json: there is no key 'data'; did you mean 'date'\?": {"date": []},
        r"data 0: paragraphs is 'x', not a list": {"data": [{"paragraphs": "x"}]},
        r"data 0, paragraph 0: there is no key 'qas'": {"data": [{"paragraphs": [{"context": "x"}]}]},
        r"paragraph 0: the context is ' ', not a text": squad(good, context=" "),
        r"paragraph 0, question b: it has no answer and is not marked as impossible": squad(asked("b")),
        r"paragraph 0, question c: the answer is \"\{'text'": squad(asked("c", ("x", "1"))),
        r"paragraph 0, question d: the question is '', not a text": squad(asked("d", ("x", 1)) | {"question": ""}),
        r"holds no examples": {"data": []},
    }
    for message, content in cases.items():
        path = tmp_path / "f.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(PolysemeError, match=message):
            ExtractiveQATask.read(path)
    write(tmp_path / "f.json", squad(good, asked("b")))
    assert [e.id for e in ExtractiveQATask.read(tmp_path / "f.json", skip_bad=True)] == ["a"]
    assert "skipped 1 bad of 2 rows" in capsys.readouterr().err
    found = ExtractiveQATask.read(tmp_path / "f.json", needs_labels=False)
    assert [e.answers is None for e in found] == [False, True]


@pytest.mark.parametrize("name,rows", [("new_wiki", 7936), ("nyt", 10056), ("amazon_reviews", 9877)])
def test_real_files(name, rows):
    path = REAL / f"{name}_v1.0.json.gz"
    if not path.is_file():
        pytest.skip("the real files are not here")
    found = ExtractiveQATask.read(path)
    assert len(found) == rows and len({e.id for e in found}) == rows
    said = sum(len(e.answers) for e in found)
    wrong, lost = count_bad_offsets(found)
    assert wrong <= 0.04 * said and lost <= 0.04 * rows
    assert (wrong > 0.01 * said) == (name == "amazon_reviews")
    for example in ExtractiveQATask().trainable(found)[::97]:
        for text, at in example.valid_answers:
            assert example.context[at : at + len(text)] == text
