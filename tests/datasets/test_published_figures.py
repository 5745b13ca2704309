"""Compare published figures, cell by cell, with the lectures that show them, if available."""

import json
import re
from pathlib import Path

import pytest

from polyseme.datasets import published

LECTURES = Path(__file__).parents[2].parent / "shared/seeds"
TABLES = json.loads((Path(published.__file__).parent / "published.json").read_text(encoding="utf-8"))
ROWS = [(name, row) for name, table in TABLES.items() for row in table["rows"]]
NOT_IN_LECTURES = ("blimp", "superglue", "bert-miniatures")
LECTURE_ROWS = [(name, row) for name, row in ROWS if name not in NOT_IN_LECTURES and name != "elmo"]
FILES = {"Lecture 07": "000", "Session #3": "001", "Advanced": "002", "CS 533": "003", "deep learning": "004"}
# order of the columns in the lecture, where it differs
ORDER = {"glue-dev": ["mnli", "qnli", "qqp", "rte", "sst-2", "mrpc", "cola", "sts-b"]}
PRINTED = {  # names in the lectures, where ours do not begin with them
    "BERT-large (single, TriviaQA first)": "BERT large (Sgl.+TriviaQA)",
    "BERT-large (ensemble, TriviaQA first)": "BERT large (Ens.+TriviaQA)",
    "RoBERTa, books + wiki, 100K": "RoBERTa with books + wiki",
    "RoBERTa, 160GB, 100K": "RoBERTa + additional data",
    "RoBERTa, 160GB, 300K": "RoBERTa + pretrain longer",
    "RoBERTa, 160GB, 500K": "RoBERTa + pretrain even longer",
    "BERT-large, books + wiki, 1M": "BERT large with books + wiki",
    "XLNet-large, books + wiki, 1M": "XLNet large with books + wiki",
    "XLNet-large, 126GB, 500K": "XLNet large + additional data",
    "MIR-MRC (F-Net, single)": "#1 Single - MIR-MRC (F-Net)",
    "Flair": "Elair",  # misread from the slide
    "Transformer (base)": "Transformer (base model)",
    "LTR & No NSP + BiLSTM": "+ BiLSTM",
}
ELMO_TASKS = {"squad-1.1_f1": "SQuAD", "coreference": "Coref", "conll-2003": "NER"}  # names in the lectures
TWO_COLUMNS = ("XLNet (single model)", "BERT + DAE + AoA (ensemble)", "RoBERTa (single model)")  # of one slide


def plain(text):
    """Reduce a system's name to letters and digits, without the rank before it and the references after it."""
    text = re.sub(r"#\d+ (single|ensemble) - (\w+)", r"\2 (\1)", text, flags=re.IGNORECASE)
    text = re.sub(r"<[^>]+>|\[\d+\]", "", text)
    return re.sub(r"[\W_]+", "", text).lower()


def number(cell):
    cell = cell.split("±")[0].strip()
    if power := re.fullmatch(r"\$([\d.]+) \\cdot 10\^\{(\d+)\}\$", cell):
        return float(f"{power[1]}e{power[2]}")
    match = re.fullmatch(r"(?:<u>)?(\d+(?:\.\d+)?)(?:</u>)?[Mx%]?", cell)
    return None if cell in ("", "-") else float(match[1]) if match else cell


def printed_rows(text):
    """Return the texts of each line of a table, with the name of its group, and its figures."""
    group, rows = "", []
    for line in text.splitlines():
        cells = re.split(r"\t|/(?=\d)", line.replace("_{BASE}", "base").replace("_{LARGE}", "large"))
        values = [number(cell) for cell in cells]
        words = [cell for cell in cells if isinstance(number(cell), str)]
        heads = len(cells) > 1 and isinstance(values[0], str) and not any(c.isdigit() for c in cells[1])
        if heads and (cells[1] or not any(values[1:])):
            group = cells[0]
        if words:
            rows.append(({plain(" ".join(words)), plain(group + " ".join(words))}, values))
            if isinstance(values[0], str):  # the first column may be a label that nothing is carried into
                rows.append(({plain(cells[0])}, values[1:]))
    return rows


def is_printed(system, wanted, rows, exact):
    name = plain(PRINTED.get(system, system).split(" (features of")[0])
    for names, values in rows:
        fits = any(one == name if exact else one.startswith(name) for one in names)
        if fits and any(values[i : i + len(wanted)] == wanted for i in range(len(values))):
            return True
    return False


def test_every_row_has_a_source_and_all_values():
    assert len(ROWS) > 30
    for name, row in ROWS:
        assert row["source"].strip(), row
        assert len(row["values"]) == len(TABLES[name]["columns"]), row


@pytest.fixture(scope="module")
def lectures():
    if not LECTURES.is_dir():
        pytest.skip("needs the lectures")
    texts = {key: next(LECTURES.glob(f"{start}_*")).read_text(encoding="utf-8") for key, start in FILES.items()}
    return {key: Lecture(text) for key, text in texts.items()}


class Lecture(list):
    """The named rows of a lecture; all its letters and digits; and its lines of figures, which may have no name."""

    def __init__(self, text):
        super().__init__(printed_rows(text))
        self.text = plain(text)
        self.numbers = [[number(cell) for cell in line.split("\t")] for line in text.splitlines()]


def sentences(system, values):
    """Yield how a lecture may write the size of a model, or the days of its training."""
    for value, unit in zip(values, ("GPU", "TPU")):
        if value is not None:
            yield f"{system} {value} million"
            yield f"{system}: {value / 1000:g} billion parameters"
            months = {"ULMFiT": "Jan 2018", "GPT": "June 2018", "BERT": "Oct 2018", "GPT-2": "Feb 2019"}
            yield f"{system} {months.get(system)} Training {'~' * (value > 2000)}{value} {unit}"


@pytest.mark.parametrize(("table", "row"), LECTURE_ROWS, ids=[f"{name}-{row['system']}" for name, row in LECTURE_ROWS])
def test_every_figure_is_in_the_lectures_it_names(lectures, table, row):
    named = re.search(r"slides: (.*?)\)?$", row["source"])[1].split("; ")
    shown = [key for key in FILES for name in named if name.startswith(key)]
    assert shown, row["source"]
    values = {name: value for name, value in zip(TABLES[table]["columns"], row["values"])}
    wanted = [values[column] for column in ORDER.get(table, values)]
    if "leaderboard" in row["source"] or table == "glue-dev":
        wanted = [value for value in wanted if value is not None]
    for key in shown:
        if table in ("parameters", "training-days"):  # no table there, but a list
            assert any(plain(text) in lectures[key].text for text in sentences(row["system"], wanted))
        elif row["system"] in TWO_COLUMNS:
            assert any(values[-2:] == wanted for _, values in lectures[key])
        elif table in ("bert-size", "bert-masking"):  # rows without names
            assert any(values[: len(wanted)] == wanted for values in lectures[key].numbers)
        elif table == "bleu":
            assert is_printed(row["system"], wanted[:2], lectures[key], False), (key, wanted)
            lines = [[v for v in values if isinstance(v, float)] for _, values in lectures[key]]
            assert [value for value in wanted if value is not None] in lines
        elif table == "ulmfit":  # two tables side by side
            for side, value in enumerate(wanted):
                pairs = [(plain(str(v[i])), v[i + 1]) for _, v in lectures[key] for i in range(len(v) - 1)]
                assert value is None or any(a.startswith(plain(row["system"])) and b == value for a, b in pairs), side
        else:
            assert is_printed(row["system"], wanted, lectures[key], table == "albert"), (key, wanted)


@pytest.mark.parametrize("column", range(6))
def test_every_figure_of_elmo_is_in_the_lectures(lectures, column):
    """ELMo's table has a row for each task, and its figures follow the name of the previous best system."""
    task, wanted = TABLES["elmo"]["columns"][column], [row["values"][column] for row in TABLES["elmo"]["rows"]]
    for key in ("Advanced", "deep learning"):
        assert is_printed(ELMO_TASKS.get(task, task), wanted, lectures[key], False), key


def test_averages_are_those_of_the_columns():
    """A mistyped figure shows in the average, which is known to 0.1 (and rounded figures to 0.05 each)."""
    num_checked = 0
    for table in published.load_published_tables().values():
        for row in table.rows:
            average = table.average(row.values)
            if average is not None:
                assert average == pytest.approx(row.values["average"], abs=0.1), (table.name, row.system)
                num_checked += 1
    assert num_checked > 20


def test_wrong_figures_and_rows_are_detected(lectures):
    rows = lectures["Session #3"]
    right = [80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7, 74.0]
    assert is_printed("Pre-OpenAI SOTA", right, rows, False)
    assert not is_printed("OpenAI GPT", right, rows, False)
    assert not is_printed("Pre-OpenAI SOTA", [80.1, 80.6, *right[2:]], rows, False)
