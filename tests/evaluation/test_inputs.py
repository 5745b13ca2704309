"""One input convention: files of every format, `PATH::name=value`, columns that are remembered and carried through."""

import csv
import gzip
import io
import json
import sys

import numpy as np
import pytest

import polyseme
from polyseme import PolysemeError
from polyseme.evaluation.text_rows import open_texts
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.multiple_choice import MultipleChoiceTask
from polyseme.tasks.readers.rows import Columns
from polyseme.tasks.tagging import TaggingTask
from tests.support.small_models import save_small_model

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = [
    {"id": 7, "review": "the cat, sees", "stars": "a", "note": "x"},
    {"id": 3, "review": 'the "old" dog', "stars": "b", "note": ""},
    {"id": 5, "review": "the bird\nsat", "stars": "a", "note": "é\t1"},
]
TEXTS = [row["review"] for row in ROWS]
TASK = ClassificationTask(labels=("a", "b"))


class Piped(io.TextIOWrapper):
    def __init__(self, content: bytes):
        super().__init__(io.BytesIO(content))


def to_csv(rows, delimiter=","):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerows([list(rows[0]), *(row.values() for row in rows)])
    return file.getvalue()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "r.csv").write_text(to_csv(ROWS))
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "r.csv.gz").write_bytes(gzip.compress(to_csv(ROWS).encode()))
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "r.parquet")
    (tmp_path / "odd").write_text(to_csv(ROWS))
    return tmp_path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_small_model(folder / "plain", "bert", TASK)
    save_small_model(folder / "reviews", "bert", TASK, {"columns": {"text": "review", "label": "stars"}})
    save_small_model(folder / "gpt2", "gpt2")
    return folder


FORMATS = ["r.csv::", "r.jsonl::", "r.csv.gz::", "r.parquet::", "odd::format=csv,"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_any_format(files, name):
    examples = ClassificationTask.read(f"{files}/{name}text=review,label=stars")
    assert [(e.text, e.label) for e in examples] == [(row["review"], row["stars"]) for row in ROWS]
    texts = open_texts(f"{files}/{name}text=review")
    assert [row.text for row in texts.source] == TEXTS and texts.names == list(ROWS[0]) and texts.id_column == "id"
    assert [row.row["note"] for row in texts.source] == [row["note"] for row in ROWS]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Piped(b"one\ntwo\n"))
    assert [row.text for row in open_texts("-").source] == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", Piped(to_csv(ROWS).encode()))
    examples = ClassificationTask.read("-::format=csv,text=review,label=stars")
    assert [e.label for e in examples] == ["a", "b", "a"]


def test_default_columns(tmp_path):
    (tmp_path / "a.tsv").write_text("id\ttext\n1\tx\n")
    (tmp_path / "b.csv").write_text("review\nx\n")
    (tmp_path / "c.csv").write_text("1,x\n2,y\n")
    (tmp_path / "d.txt").write_text("x\ny\n")
    (tmp_path / "e::text=q").write_text("x\n")
    (tmp_path / "f.tsv").write_bytes("text\ncaf\u00e9\n".encode("latin-1"))
    for spec, expected in (
        ("a.tsv", ["x"]), ("b.csv", ["x"]), ("c.csv::header=false,text=2", ["x", "y"]), ("d.txt", ["x", "y"]),
        ("e::text=q", ["x"]), ("f.tsv::encoding=latin-1", ["caf\u00e9"]),
    ):  # fmt: skip
        assert [row.text for row in open_texts(tmp_path / spec).source] == expected, spec
        if spec != "e::text=q":
            read = ClassificationTask.read(f"{tmp_path}/{spec}", needs_labels=False)
            assert [e.text for e in read] == expected, spec


@pytest.mark.parametrize(
    ("spec", "columns", "message"),
    [
        ("r.csv", {}, r"r\.csv:1: there is no column 'text'; valid: .*review.* \(choose with .*r\.csv::text=COLUMN\)"),
        ("r.csv::text=reviews", {}, "there is no column 'reviews'; did you mean 'review'?"),
        ("r.jsonl", {}, "there is no key 'text'; valid: "),
        ("r.csv::txt=review", {}, "there is no option 'txt' here; did you mean 'text'?"),
        ("r.csv::text=review", {"text": "note"}, "text is 'review', but `text_column` is 'note': leave out one"),
        ("r.csv::header=true", {"has_header": False}, "header is 'true', but `header` is 'false'"),
        ("r.csv::text=review,pair=note", {}, "`pair` has no effect on "),
        ("r.jsonl::header=false", {}, "`header` has no effect on JSON lines"),
        ("r.parquet::encoding=latin-1", {}, "`encoding` has no effect on Parquet"),
        ("r.csv::format=text,text=review", {}, "`text` has no effect on lines of text"),
        ("r.csv::format=cvs", {}, "format is 'cvs'; did you mean 'csv'?"),
        ("r.csv::header=maybe", {}, "header is 'maybe', expected true or false"),
    ],
)
def test_a_wrong_spec_is_an_error(files, spec, columns, message):
    for read in (lambda: ClassificationTask.read(files / spec, Columns(**columns), needs_labels=False),
                 lambda: open_texts(files / spec, columns=Columns(**columns))):  # fmt: skip
        with pytest.raises(PolysemeError, match=message) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_tasks_with_lists(tmp_path):
    words, tags = ["the", "cat"], ["O", "B-X"]
    parquet.write_table(pa.Table.from_pylist([{"tokens": words, "ner": tags}]), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("tokens,ner\nthe cat,O B-X\n")
    for name in ("t.parquet", "t.csv"):
        (example,) = TaggingTask.read(f"{tmp_path}/{name}::text=tokens,label=ner")
        assert (example.words, example.tags) == (tuple(words), tuple(tags))
    (tmp_path / "t.conll").write_text("the\tO\n")
    with pytest.raises(PolysemeError, match="`text` has no effect on CoNLL columns"):
        TaggingTask.read(f"{tmp_path}/t.conll::text=tokens")
    parquet.write_table(pa.Table.from_pylist([{"text": "x", "choices": words, "label": 1}]), tmp_path / "c.parquet")
    (tmp_path / "c.csv").write_text('text,choices,label\nx,"[""the"", ""cat""]",1\n')
    for name in ("c.parquet", "c.csv"):
        (choice,) = MultipleChoiceTask.read(tmp_path / name)
        assert choice.choices == ("the", "cat") and choice.label == "1"
    squad = {"context": "the cat sat", "question": "who?", "answers": {"text": ["cat"], "answer_start": [4]}}
    parquet.write_table(pa.Table.from_pylist([squad]), tmp_path / "q.parquet")
    assert ExtractiveQATask.read(tmp_path / "q.parquet")[0].answers == (("cat", 4),)
    (tmp_path / "p.csv").write_text("a,b,label\nx,y,1\n")
    assert PairClassificationTask.read(f"{tmp_path}/p.csv::text=a,pair=b")[0].pair == "y"


def test_the_model_folder_remembers_columns(files, models, cli, run_cli, tmp_path):
    assert "examples" in run_cli("evaluate", models / "reviews", "--data", files / "r.csv")
    predictions = polyseme.predict(models / "reviews", files / "r.jsonl")
    assert predictions == polyseme.predict(models / "plain", f"{files}/r.csv::text=review")
    (files / "other.csv").write_text("text,note\nthe cat,x\n")
    absent = cli("predict", models / "reviews", "--data", files / "other.csv", "--out", files / "p.csv")
    assert absent.status == 0
    assert absent.err.strip().endswith("no column 'review', the text of fine-tuning: reading 'text' instead")
    assert len(absent.err.splitlines()) == 1
    assert [row.text for row in open_texts(files / "r.csv", models / "reviews").source] == TEXTS
    files_of_run = {"train": f"{files}/r.csv::text=review,label=stars", "dev": str(files / "r.parquet")}
    run = polyseme.finetune(models / "plain", "classification", **files_of_run, out=tmp_path / "run", epochs=1.0)
    metadata = json.loads((run.model / "polyseme.json").read_text())["metadata"]
    assert metadata["columns"] == {"text": "review", "label": "stars"}


def read_rows(path):
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with open(path, newline="") as file:
        delimiter, quoting = (",", csv.QUOTE_MINIMAL) if path.suffix == ".csv" else ("\t", csv.QUOTE_NONE)
        return list(csv.DictReader(file, delimiter=delimiter, quoting=quoting))


@pytest.mark.parametrize("source", ["r.csv", "r.jsonl", "r.parquet"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_columns_are_carried_through(files, models, run_cli, source, suffix):
    out = files / f"out{suffix}"
    run_cli("predict", models / "reviews", "--data", files / source, "--out", out)
    rows = read_rows(out)
    expected = [{name: str(value) for name, value in row.items()} for row in ROWS]
    if suffix == ".tsv":
        expected = [{name: value.replace("\n", " ").replace("\t", " ") for name, value in e.items()} for e in expected]
    assert [{name: str(row[name]) for name in ROWS[0]} for row in rows] == expected
    predictions = polyseme.predict(models / "plain", TEXTS)
    assert [row["prediction"] for row in rows] == [p.label for p in predictions]
    shares = [p.probabilities[p.label] for p in predictions]
    assert [float(row["probability"]) for row in rows] == pytest.approx(shares, abs=1e-6)
    if suffix in (".csv", ".tsv"):
        assert list(rows[0]) == [*ROWS[0], "prediction", "probability", "p(a)", "p(b)"]
    else:
        assert list(rows[0]) == [*ROWS[0], "prediction", "probability", "probabilities"]


def test_text_files_and_collisions(files, models, run_cli, rejects):
    run_cli("predict", models / "reviews", "--data", files / "r.csv", "--out", files / "out.txt")
    assert (files / "out.txt").read_text().split() == [p.label for p in polyseme.predict(models / "plain", TEXTS)]
    table = to_csv([{"text": "the cat", "prediction": "mine", "log_prob": "theirs"}])
    (files / "t.csv").write_text(table)
    run_cli("predict", models / "plain", "--data", files / "t.csv", "--out", files / "p.csv")
    (row,) = read_rows(files / "p.csv")
    assert row["prediction"] == "mine" and row["polyseme_prediction"] in ("a", "b")
    run_cli("score", models / "gpt2", "--data", files / "t.csv", "--out", files / "s.csv")
    (row,) = read_rows(files / "s.csv")
    assert row["log_prob"] == "theirs" and float(row["polyseme_log_prob"]) < 0 and int(row["num_tokens"]) > 1
    for command in (("predict", models / "plain"), ("score", models / "gpt2"), ("embed", models / "gpt2")):
        endings = r"\.npz, \.jsonl" if command[0] == "embed" else r"\.csv, \.tsv, \.jsonl, \.parquet, \.txt"
        rejects(
            *command, "--data", files / "t.csv", "--out", files / "x.doc", match=f"written as {endings}.*not '.doc'"
        )


@pytest.mark.parametrize("spec", ["r.csv::text=review", "r.jsonl::text=review", "r.parquet::text=review"])
def test_last_words_carry_columns(files, tiny_folders, run_cli, rejects, spec):
    run_cli("score", tiny_folders["gpt2"], "--last-words", files / spec, "--out", files / "out.jsonl")
    rows = [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()]
    assert [row["word"] for row in rows] == ["sees", "dog", "bird\nsat"], "words are divided by spaces"
    assert [row["note"] for row in rows] == [row["note"] for row in ROWS] and list(rows[0])[:4] == list(ROWS[0])
    assert list(rows[0])[4:] == ["log_prob", "is_correct", "word"]
    (files / "lambada.csv").write_text("context,continuation,source\nthe old,cat,book\n")
    run_cli("score", tiny_folders["gpt2"], "--last-words", files / "lambada.csv", "--out", files / "out.csv")
    header, row = (files / "out.csv").read_text().splitlines()
    assert header == "context,continuation,source,log_prob,is_correct,word" and row.startswith("the old,cat,book,-")
    rejects("score", tiny_folders["gpt2"], "--last-words", files / "r.csv", match="no column 'text'.*::text=COLUMN")


def test_a_header_is_not_a_text(files, models, run_cli):
    """The header and ids of a CSV file used to be embedded and scored."""
    spec = f"{files}/r.csv::text=review"
    expected = polyseme.load(models / "gpt2").embed(TEXTS)
    run_cli("embed", models / "gpt2", "--data", spec, "--out", files / "v.npz")
    arrays = np.load(files / "v.npz")
    assert np.allclose(arrays["vectors"], expected) and arrays["id"].tolist() == ["7", "3", "5"]
    run_cli("embed", models / "gpt2", "--data", f"{files}/r.parquet::text=review", "--out", files / "w.npz")
    assert np.load(files / "w.npz")["id"].tolist() == [7, 3, 5]
    for suffix in (".jsonl", ".parquet"):
        run_cli("embed", models / "gpt2", "--data", spec, "--out", files / f"v{suffix}")
        rows = read_rows(files / f"v{suffix}")
        assert np.allclose([row["vector"] for row in rows], expected) and rows[1]["note"] == ""
    printed = run_cli("score", models / "gpt2", "--data", spec, "--json").splitlines()
    assert [json.loads(line)["text"] for line in printed] == TEXTS
    assert len(run_cli("generate", models / "gpt2", "--data", spec, "--max-new-tokens", 1, "--json").splitlines()) == 3
