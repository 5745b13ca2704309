"""Readers of examples: all formats, plain and compressed, and the errors for bad input."""

import gzip
import json
import lzma
import re

import pytest

from polyseme.errors import PolysemeError
from polyseme.finetuning.api import find_task_type
from polyseme.tasks.classification import ClassificationTask, PairClassificationTask
from polyseme.tasks.readers.rows import Columns
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.tagging import TaggingTask

TABLE = 'id\tsentence\tlabel\n1\ta "good film\t1\n2\ta bad one\t0\n'


def write(path, content, encoding="utf-8"):
    data = content.encode(encoding)
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".xz":
        data = lzma.compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_table(tmp_path, ending):
    path = write(tmp_path / f"d.tsv{ending}", TABLE)
    examples = ClassificationTask.read(path, Columns(text="sentence"))
    assert [(e.location, e.text, e.label) for e in examples] == [
        (f"{path}:2", 'a "good film', "1"),
        (f"{path}:3", "a bad one", "0"),
    ]


def test_table_without_header_with_crlf_and_byte_order_mark(tmp_path):
    path = write(tmp_path / "cola.tsv", "\ufeffgj04\t1\t\tThe sailors rode.\r\nc-05\t0\t*\tThe rode.\r\n\r\n")
    examples = ClassificationTask.read(path, Columns(text="4", label="2", has_header=False))
    assert [(e.text, e.label) for e in examples] == [("The sailors rode.", "1"), ("The rode.", "0")]


def test_pair_and_missing_labels(tmp_path):
    path = write(tmp_path / "t.txt", "a\tb\nfirst\tsecond\n")
    (example,) = PairClassificationTask.read(path, Columns(text="a", pair="b"), needs_labels=False)
    assert (example.text, example.pair, example.label) == ("first", "second", None)


def test_numbers_with_one_text_or_two(tmp_path):
    path = write(tmp_path / "t.tsv", "text\tpair\tscore\na\tb\t-2.50\nc\td\t3e1\n")
    examples = RegressionTask.read(path, Columns(label="score"))
    assert [(e.text, e.pair, e.label, e.gold) for e in examples] == [
        ("a", "b", "-2.50", "-2.50"),
        ("c", "d", "3e1", "3e1"),
    ]
    path = write(tmp_path / "one.jsonl", '{"text": "a", "label": 0}\n{"text": "b", "pair": "c", "label": 1.5}\n')
    assert [(e.pair, e.label) for e in RegressionTask.read(path)] == [(None, "0"), ("c", "1.5")]
    path = write(tmp_path / "one.tsv", "text\nab\n")
    assert RegressionTask.read(path, needs_labels=False)[0].pair is None
    with pytest.raises(PolysemeError, match=r"there is no column 'second'"):  # asked for by name
        RegressionTask.read(path, Columns(pair="second"), needs_labels=False)


def test_a_csv_has_tabs_or_quoted_commas(tmp_path):
    tabs = write(tmp_path / "t.csv", "text\tlabel\na, b\tx\n")
    commas = write(tmp_path / "c.csv", 'text,label\n"a, ""b""\nc",x\nd,y\n')
    assert ClassificationTask.read(tabs)[0].text == "a, b"
    examples = ClassificationTask.read(commas)
    assert [(e.text, e.label, e.location) for e in examples] == [
        ('a, "b"\nc', "x", f"{commas}:2"),
        ("d", "y", f"{commas}:4"),
    ]


def test_other_encoding_and_line_separators_inside_a_line(tmp_path):
    path = write(tmp_path / "t.tsv", "text\tlabel\ncafé\u0085x\ty\n", "latin-1")
    assert ClassificationTask.read(path, Columns(encoding="latin-1"))[0].text == "café\u0085x"


@pytest.mark.parametrize("encoding", ["UTF_8", "utf8", "U8", "utf-8-sig"])
def test_every_name_of_utf_8_drops_the_byte_order_mark(tmp_path, encoding):
    path = write(tmp_path / "t.tsv", "text\tlabel\na\tb\n", "utf-8-sig")
    assert ClassificationTask.read(path, Columns(encoding=encoding))[0].text == "a"


def test_json_lines(tmp_path):
    path = write(tmp_path / "t.jsonl", '{"text": "a", "label": 1}\n\n{"text": "b", "label": true}\n')
    assert [e.label for e in ClassificationTask.read(path)] == ["1", "true"]
    rows = [{"words": ["A", "b"], "tags": ["B-X", "O"]}, {"words": ["c"], "tags": ["O"]}]
    path = write(tmp_path / "w.jsonl.gz", "".join(json.dumps(r) + "\n" for r in rows))
    examples = TaggingTask.read(path)
    assert [(e.words, e.tags) for e in examples] == [(("A", "b"), ("B-X", "O")), (("c",), ("O",))]


@pytest.mark.parametrize("name", ["t.conll", "t.iob", "t.bio", "t.txt", "t.tsv", "t", "t.conll.xz"])
def test_columns(tmp_path, name):
    path = write(
        tmp_path / name,
        "# sent_id = 3\n-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\n\n# NN I-NP O\n1 CD I-NP O\n",
    )
    examples = TaggingTask.read(path)
    assert [(e.words, e.tags) for e in examples] == [
        (("EU", "rejects"), ("B-ORG", "O")),
        (("#", "1"), ("O", "O")),
    ]
    assert examples[1].location == f"{path}:8"


def test_tab_columns_keep_spaces_and_tags_are_optional(tmp_path):
    path = write(tmp_path / "t.conll", "New York\tB\n\u00a0\tO\n")
    assert TaggingTask.read(path)[0].words == ("New York", "\u00a0")
    path = write(tmp_path / "w.conll", "# said so\n#tag\nb\n\nc\n")
    examples = TaggingTask.read(path, needs_labels=False)
    assert [(e.words, e.tags) for e in examples] == [(("#tag", "b"), None), (("c",), None)]


BAD = [
    ("t.tsv", "", "classification", r"t\.tsv is empty$"),
    ("t.tsv", "\n \n", "classification", r"t\.tsv is empty$"),
    ("t.tsv", "text\tlabel\n", "classification", r"holds no examples$"),
    (
        "t.tsv",
        "txet\tlabel\na\tb\n",
        "classification",
        r"t\.tsv:1: there is no column 'text'; did you mean 'txet'\? \(choose with .*::text=COLUMN\)$",
    ),
    (
        "t.tsv",
        "text\tgold\na\tb\n",
        "classification",
        r"t\.tsv:1: there is no column 'label'; valid: gold, text \(choose with .*::label=COLUMN\)$",
    ),
    ("t.tsv", "text\tlabel\na\tb\nc\n", "classification", r"t\.tsv:3: 1 columns, but the first line has 2$"),
    ("t.tsv", "text\tlabel\n \tb\n", "classification", r"t\.tsv:2: text is an empty text$"),
    ("t.tsv", "text\tlabel\na\t\n", "classification", r"t\.tsv:2: the label \(label\) is missing$"),
    ("t.tsv", "text\tlabel\na\t \n", "classification", r"t\.tsv:2: the label \(label\) is missing$"),
    ("t.jsonl", '{"text": "a", "label": NaN}\n', "classification", r"t\.jsonl:1: the label \(label\) is missing$"),
    ("t.tsv", "text\tpair\tlabel\na\t\tb\n", "pair_classification", r"t\.tsv:2: pair is an empty text$"),
    ("t.csv", 'text,label\n"a" b,c\n', "classification", r"t\.csv:2: unexpected ' b,c' after a closing quote$"),
    ("t.jsonl", '{"text": "a", "label": "b"}\n{"text": \n', "classification", r"t\.jsonl:2: malformed JSON"),
    ("t.jsonl", "[1]\n", "classification", r"t\.jsonl:1: expected a JSON object, found '\[1\]'$"),
    (
        "t.jsonl",
        '{"txt": "a"}\n',
        "classification",
        r"t\.jsonl:1: there is no key 'text'; did you mean 'txt'\?$",
    ),
    ("t.jsonl", '{"text": 3, "label": "b"}\n', "classification", r"t\.jsonl:1: text is '3', not a text$"),
    (
        "t.jsonl",
        '{"text": "\\ud800", "label": "b"}\n',
        "classification",
        r"t\.jsonl:1: text holds half a surrogate",
    ),
    (
        "t.jsonl",
        '{"text": "a", "label": null}\n',
        "classification",
        r"t\.jsonl:1: the label \(label\) is missing$",
    ),
    (
        "t.jsonl",
        '{"text": "a", "label": [1]}\n',
        "classification",
        r"t\.jsonl:1: label is '\[1\]', not a label$",
    ),
    (
        "t.jsonl",
        '{"words": ["a"], "tags": []}\n',
        "tagging",
        r"t\.jsonl:1: tags is '\[\]', not a list of texts$",
    ),
    ("t.jsonl", '{"words": ["a"], "tags": ["O", "O"]}\n', "tagging", r"t\.jsonl:1: 1 words but 2 tags$"),
    (
        "t.jsonl",
        '{"words": ["a", ""], "tags": ["O", "O"]}\n',
        "tagging",
        r"t\.jsonl:1: words\[1\] is an empty text$",
    ),
    ("t.jsonl", '{"words": ["a"]}\n', "tagging", r"t\.jsonl:1: there is no key 'tags'; valid: words$"),
    ("t.conll", "a O\nb\n", "tagging", r"t\.conll:2: there is no tag beside 'b'$"),
    ("t.conll", "a O\nb x O\n", "tagging", r"t\.conll:2: 3 columns, but the first row has 2$"),
    ("t.conll", "a\tO\n\tO\n", "tagging", r"t\.conll:2: the word is empty$"),
    ("t.conll", "a\tO\n", "classification", r"reads \.txt, .*, not '\.conll': choose its format with .*::format=NAME$"),
    ("t.tsv", "text\tlabel\na\thigh\n", "regression", r"t\.tsv:2: the label 'high' is not a number$"),
    ("t.tsv", "text\tlabel\na\t1\nb\tnan\n", "regression", r"t\.tsv:3: the label 'nan' is not a number$"),
    ("t.tsv", "text\tlabel\na\t1_000\n", "regression", r"t\.tsv:2: the label '1_000' is not a number$"),
    ("t.jsonl", '{"text": "a", "label": true}\n', "regression", r"t\.jsonl:1: the label 'true' is not a number$"),
    ("t.tsv", "a\tb\n", "tegging", r"there is no task 'tegging'; did you mean 'tagging'\?$"),
]


@pytest.mark.parametrize("name,content,kind,message", BAD)
def test_bad_input_gives_a_one_line_error(tmp_path, name, content, kind, message):
    path = write(tmp_path / name, content)
    with pytest.raises(PolysemeError, match=message) as caught:
        find_task_type(kind).read(path)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(PolysemeError, match=r"none\.tsv is missing$"):
        ClassificationTask.read(tmp_path / "none.tsv")
    with pytest.raises(PolysemeError, match=r"cannot read .*: Is a directory"):
        TaggingTask.read(tmp_path)
    path = write(tmp_path / "t.tsv", "text\tlabel\na\tb\ncafé\tb\n", "latin-1")
    with pytest.raises(PolysemeError, match=r"t\.tsv:3: not utf-8 text \(byte 18 of the file\)$"):
        ClassificationTask.read(path)
    for encoding in ("utf-9", "base64", "undefined", "rot13", "a\0"):
        with pytest.raises(PolysemeError, match=r"there is no encoding '"):
            ClassificationTask.read(path, Columns(encoding=encoding))
    for ending in (".gz", ".xz"):
        path = write(tmp_path / f"t.tsv{ending}", TABLE * 50)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(PolysemeError, match=r"is truncated"):
            ClassificationTask.read(path, Columns(text="sentence"))
        path.write_bytes(b"text\tlabel\na\tb\n")
        with pytest.raises(PolysemeError, match=re.escape(f"is not a valid {ending} file")):
            ClassificationTask.read(path)


def test_a_damaged_parquet_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    path = write(tmp_path / "t.parquet", "abc")
    with pytest.raises(PolysemeError, match=r"t\.parquet is not a valid Parquet file: "):
        ClassificationTask.read(path)


def test_column_numbers(tmp_path):
    path = write(tmp_path / "t.tsv", "a\tb\n")
    for name in ("text", "0", "3"):
        with pytest.raises(PolysemeError, match=f"text is a column number from 1 to 2, not '{name}'"):
            ClassificationTask.read(path, Columns(text=name, label="2", has_header=False))


def test_skip_bad_counts_and_reports(tmp_path, capsys):
    path = write(tmp_path / "t.tsv", "text\tlabel\na\tb\nc\n\tb\nd\te\n")
    examples = ClassificationTask.read(path, skip_bad=True)
    assert [e.text for e in examples] == ["a", "d"]
    output = capsys.readouterr().err
    assert output == f"{path}: skipped 2 bad of 4 rows, the first: {path}:3: 1 columns, but the first line has 2\n"
    path = write(tmp_path / "t.conll", "a O\nb\n\nc O\n")
    assert [e.words for e in TaggingTask.read(path, skip_bad=True)] == [("c",)]
    path = write(tmp_path / "b.tsv", "text\tlabel\na\n")
    with pytest.raises(PolysemeError, match=r"holds no examples but 1 bad rows$"):
        ClassificationTask.read(path, skip_bad=True)


def test_lines_of_skipped_sentences_stay(tmp_path):
    """Predictions of a file in columns have all its lines, also those of bad sentences: first, inside, and last."""
    content = "# top\na\tX\n\nbad\n\n-DOCSTART-\tO\n\nc\tX\nd\tX\n\nalso bad one\n\n"
    (tmp_path / "f.conll").write_text(content)
    examples = TaggingTask.read(tmp_path / "f.conll", needs_labels=False, skip_bad=True)
    assert [e.words for e in examples] == [("a",), ("c", "d")]
    lines = "".join(e.source.with_column(["T"] * len(e.words), "O") for e in examples)
    assert lines == content.replace("\tX", "\tX\tT").replace("\tO", "\tO\tO")
    (tmp_path / "f.conll").write_text("a\tX\n\tY\n\nb\tX\n")
    (example,) = TaggingTask.read(tmp_path / "f.conll", needs_labels=False, skip_bad=True)
    assert example.source.with_column(["T"], "O") == "a\tX\n\tY\n\nb\tX\tT\n"


def test_a_bad_quote_costs_one_row(tmp_path, capsys):
    rows = ['"one, ""quoted""",a', '"two" x,a', "three,b", '"four', 'lines",b', '"unclosed,a', "five,b"]
    path = write(tmp_path / "t.csv", "\n".join(["text,label", *rows]) + "\n")
    with pytest.raises(PolysemeError, match=r"t\.csv:3: unexpected ' x,a' after a closing quote$"):
        ClassificationTask.read(path)
    examples = ClassificationTask.read(path, skip_bad=True)
    assert [(e.text, e.label, e.location) for e in examples] == [
        ('one, "quoted"', "a", f"{path}:2"),
        ("three", "b", f"{path}:4"),
        ("four\nlines", "b", f"{path}:5"),
        ("five", "b", f"{path}:8"),
    ]
    assert "skipped 2 bad of 6 rows" in capsys.readouterr().err
