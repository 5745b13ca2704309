"""Lines of a file in bounded memory, held to reading it at once, and formats in windows, held to whole files."""

import random
from itertools import pairwise

import pytest

from polyseme.errors import DataError
from polyseme.io import compression
from polyseme.tasks.classification import Classification, ClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask, SpanAnswer
from polyseme.tasks.readers.rows import iter_lines
from polyseme.tasks.regression import Regression, RegressionTask
from polyseme.tasks.semantic_roles import SemanticRolesTask
from polyseme.tasks.tagging import Tagging, TaggingTask


def read_at_once(content, keep_blank):
    text = content.decode("utf-8-sig")
    if keep_blank:
        lines = text.removesuffix("\n").split("\n")
    else:
        lines = text.rstrip("\r\n").split("\n") if text.strip() else None
    return lines and [line.removesuffix("\r") for line in lines]


@pytest.mark.parametrize("keep_blank", [False, True])
def test_lines_are_those_of_the_whole_file(tmp_path, monkeypatch, keep_blank):
    path, draw = tmp_path / "a.txt", random.Random(1)
    for _ in range(300):
        pieces = draw.choices(["\n", "\r\n", "\r", " ", "a", "é", "\ufeff", "\u2028", "𝄞"], k=draw.randint(0, 12))
        content = "".join(pieces).encode()
        path.write_bytes(content)
        monkeypatch.setattr(compression, "_BLOCK_SIZE", draw.choice([1, 2, 3, 5, 1000]))
        expected = read_at_once(content, keep_blank)
        if expected is None:
            with pytest.raises(DataError, match=r"a\.txt is empty"):
                list(iter_lines(path))
        else:
            assert list(iter_lines(path, keep_blank=keep_blank)) == expected, pieces


@pytest.mark.parametrize("block_size", [1, 2, 7, 1000])
def test_the_line_and_byte_that_are_not_text(tmp_path, monkeypatch, block_size):
    monkeypatch.setattr(compression, "_BLOCK_SIZE", block_size)
    path = tmp_path / "a.txt"
    for content, line, byte in ((b"a\nb\xc3\xa9\n\xff", 3, 6), (b"\n\nab\xc3", 3, 4), (b"\xef\xbb\xbfa\n\xffb", 2, 5)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"a\.txt:{line}: not utf-8 text \(byte {byte} of the file\)"):
            list(iter_lines(path))


def _examples(task, values):
    return task.read(values, needs_labels=False)


CASES = {
    "p.jsonl": (ClassificationTask(labels=("a", "b")), ["x", "y", "z"], Classification("a", {"a": 0.75, "b": 0.25})),
    "p.tsv": (RegressionTask(), ["x", ("y\tt", "pair"), "z"], Regression(1.5)),
    "q.tsv": (ClassificationTask(labels=("a", "b")), ["x", "y", "z"], Classification("a", {"a": 0.75, "b": 0.25})),
    "p.conll": (TaggingTask(labels=("O",)), ["a b", "c d", "e f"], Tagging(("O", "B-X"), (0.5, 0.5))),
    "p.json": (ExtractiveQATask(), [("a é", "b"), ("c", "d"), ("e", "f")], SpanAnswer('a "é"', 0, 3, 0.5, -0.5)),
    "p.props": (SemanticRolesTask(labels=("O",)), [("a b", 0), ("c d", 1), "e f"], Tagging(("O", "B-V"), (0.5, 0.5))),
}
EXPECTED = {
    "p.tsv": "text\tpair\tprediction\nx\t\t1.5\ny t\tpair\t1.5\nz\t\t1.5\n",
    "q.tsv": "text\tprediction\tprobability\tp(a)\tp(b)\n" + "".join(f"{x}\ta\t0.75\t0.75\t0.25\n" for x in "xyz"),
    "p.conll": "a\tO\nb\tB-X\n\nc\tO\nd\tB-X\n\ne\tO\nf\tB-X\n",
    "p.json": '{\n  "1": "a \\"é\\"",\n  "2": "a \\"é\\"",\n  "3": "a \\"é\\""\n}\n',
    "p.props": "a\t*\n-\t(V*)\n\n-\t*\nd\t(V*)\n\n-\n-\n",
}


@pytest.mark.parametrize("name", CASES)
def test_formats_in_windows_are_those_of_whole_files(tmp_path, name):
    task, values, prediction = CASES[name]
    examples, predictions = _examples(task, values), [prediction] * len(values)
    task.write(tmp_path / name, examples, predictions)
    whole = (tmp_path / name).read_text()
    assert whole == EXPECTED.get(name, whole)
    for path, file_format in task.output_formats(tmp_path / name, examples).items():
        for borders in ((0, 1, 3), (0, 2, 3), (0, 1, 2, 3)):
            windows = [file_format.format_window(examples[a:b], predictions[a:b], a) for a, b in pairwise(borders)]
            assert "".join(windows) + file_format.footer == path.read_text()


CONLL = """-DOCSTART- -X- O O

# a comment
EU NNP I-NP I-ORG
# in a sentence
rejects VBZ I-VP O

-DOCSTART-


German JJ I-NP I-MISC \n# NN I-NP O

# the end

"""


def write_tags(path, out, task):
    """Write `T1`, `T2`, … for the words of a file."""
    examples = task.read(path, needs_labels=False)
    names = (f"T{i}" for i in range(1, 1000))
    predictions = [Tagging(tuple(next(names) for _ in e.words), (1.0,) * len(e.words)) for e in examples]
    task.write(out, examples, predictions)
    return out.read_text()


def test_tags_are_written_to_the_lines_of_the_input(tmp_path):
    """Blank lines, comments and document starts stay where they are; the last line here is a word, not a comment."""
    path, task = tmp_path / "a.txt", TaggingTask(labels=("I-ORG", "O"))
    path.write_text(CONLL)
    assert write_tags(path, tmp_path / "p.conll", task) == (
        "-DOCSTART- -X- O O O\n\n# a comment\nEU NNP I-NP I-ORG T1\n# in a sentence\nrejects VBZ I-VP O T2\n\n"
        "-DOCSTART-\n\n\nGerman JJ I-NP I-MISC T3\n# NN I-NP O T4\n\n# the end\n\n"
    )
    tsv = write_tags(path, tmp_path / "p.tsv", task).splitlines()
    assert tsv[3] == "EU\tNNP\tI-NP\tI-ORG\tT1" and len(tsv) == CONLL.count("\n")
    assert TaggingTask.read(tmp_path / "p.conll")[0].tags == ("T1", "T2")
    path.write_text("-DOCSTART-\n\nEU\nrejects")
    assert write_tags(path, tmp_path / "p.txt.conll", task) == "-DOCSTART-\tO\n\nEU\tT1\nrejects\tT2\n"


def test_every_line_of_any_file_is_kept(tmp_path):
    draw, task = random.Random(1), TaggingTask(labels=("O",))
    lines = ["a\tO", "b\tX", "", " ", "# c", "#\tO", "-DOCSTART-", "-DOCSTART-\tO"]
    for _ in range(200):
        rows = ["a\tO", *draw.choices(lines, k=draw.randint(0, 12))]
        draw.shuffle(rows)
        (tmp_path / "a.conll").write_text("".join(f"{row}\n" for row in rows))
        written = write_tags(tmp_path / "a.conll", tmp_path / "p.conll", task).split("\n")[:-1]
        tagged = [read for e in task.read(tmp_path / "a.conll", needs_labels=True) for read in e.words]
        assert len(written) == len(rows)
        assert all(line == row or line.startswith(f"{row}\t") for line, row in zip(written, rows))
        assert sum("\tT" in line for line in written) == len(tagged)
