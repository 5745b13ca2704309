"""An engineer with a labeled CSV: from the file to a model that ships, with the mistakes of a first hour.

The columns have names of their own, texts contain commas, quotes and line breaks, and every row has an id.
"""

import csv
import json
import random

import numpy as np
import pytest

import polyseme
from tests.support.project import tiny_recipe
from tests.support.text import sentence

COLUMNS = "::text=review,label=sentiment"


def write_reviews(path, num_rows, seed, is_labeled=True):
    """Write reviews as a shop exports them; the good ones are splendid."""
    rng = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["order", "review", "stars", *(["sentiment"] if is_labeled else [])])
        for number in range(num_rows):
            is_good = number % 2 == 0
            review = f'{sentence(rng)}\nIt is "{"splendid" if is_good else "dreadful"}", really.'
            label = ["good" if is_good else "bad"] if is_labeled else []
            writer.writerow([f"A-{number:03}", review, 5 if is_good else 1, *label])


def read_csv(path):
    """Read a CSV file with the standard library."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def shop(tmp_path_factory, run_cli):
    """The files of the shop, and what the commands of the guide make of them."""
    folder = tmp_path_factory.mktemp("shop")
    write_reviews(folder / "train.csv", 60, seed=1)
    write_reviews(folder / "dev.csv", 20, seed=2)
    write_reviews(folder / "new.csv", 7, seed=3, is_labeled=False)
    write_reviews(folder / "all.csv", 200, seed=4, is_labeled=False)
    texts = f"{folder}/all.csv::text=review"
    run_cli("tokenizer", "train", texts, "--vocab-size", 200, "--out", folder / "tokenizer")
    run_cli("prepare", texts, "--tokenizer", folder / "tokenizer", "--out", folder / "corpus", "--dedup", "none")
    (folder / "recipe.json").write_text(json.dumps(tiny_recipe("bert")))
    run_cli("pretrain", folder / "recipe.json", "--corpus", folder / "corpus", "--out", folder / "run")
    run_cli(
        "finetune", folder / "run", "--task", "classification", "--train", f"{folder}/train.csv{COLUMNS}",
        "--dev", f"{folder}/dev.csv", "--out", folder / "task", "--baselines", "--seeds", "7,11", "--set", "epochs=14",
    )  # fmt: skip
    return folder


def test_the_result_says_whether_the_model_is_worth_it(shop):
    results = json.loads((shop / "task/results.json").read_text())
    assert [row["seed"] for row in results["seeds"]] == [7, 11]
    assert results["baselines"]["linear"]["accuracy"] > 0.9
    assert "lr" in results["chosen"], "the learning rate that was chosen is recorded"
    page = (shop / "task/report.html").read_text()
    for part in ("linear", "Confusion", "Calibration", "Next steps"):
        assert part in page


def test_predictions_keep_ids_order_and_every_column(shop, run_cli, tmp_path):
    rows = read_csv(shop / "new.csv")
    for suffix in ("csv", "tsv", "jsonl", "parquet"):
        run_cli("predict", shop / "task", "--data", shop / "new.csv", "--out", tmp_path / f"p.{suffix}")
    predictions = read_csv(tmp_path / "p.csv")
    assert [{name: row[name] for name in rows[0]} for row in predictions] == rows
    assert {row["prediction"] for row in predictions} <= {"good", "bad"}
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines] == [row["prediction"] for row in predictions]
    parquet = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "p.parquet").to_pylist()
    assert [row["order"] for row in parquet] == [row["order"] for row in rows]
    python = polyseme.predict(shop / "task", shop / "new.csv")
    assert [each.label for each in python] == [row["prediction"] for row in predictions]


def test_scores_and_vectors_of_a_table(shop, run_cli, tmp_path):
    """A header and ids are no texts, and the task model remembers the column."""
    rows = read_csv(shop / "new.csv")
    run_cli("score", shop / "run", "--data", f"{shop}/new.csv::text=review", "--out", tmp_path / "s.csv")
    assert [row["order"] for row in read_csv(tmp_path / "s.csv")] == [row["order"] for row in rows]
    run_cli("embed", shop / "task", "--data", f"{shop}/new.csv::id=order", "--out", tmp_path / "v.npz")
    stored = np.load(tmp_path / "v.npz")
    assert len(stored["vectors"]) == len(rows)
    model = polyseme.load(shop / "task")
    expected = model.embed([row["review"] for row in rows])
    np.testing.assert_allclose(stored["vectors"], expected, atol=1e-6)
    assert model.embed("cat").shape == expected[0].shape, "a string is one text"


def test_search(shop, run_cli):
    output = run_cli(
        "search", f"{shop}/new.csv::text=review,id=order", "a splendid bear", "--model", shop / "run", "--top-k", 3
    )
    assert "A-" in output and len(output.strip().splitlines()) >= 4
    hits = polyseme.search(shop / "run", [row["review"] for row in read_csv(shop / "new.csv")], "a bear", top_k=2)
    assert [hit.rank for hit in hits] == [1, 2]


def test_what_ships(shop, run_cli):
    """The folder explains itself, and `transformers` opens it."""
    card = (shop / "task/model/README.md").read_text()
    assert card.startswith("---\n") and "text-classification" in card and "transformers" in card
    assert "intact" in run_cli("verify", shop / "task/model")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(shop / "task/model")
    assert sorted(model.config.id2label.values()) == ["bad", "good"]


@pytest.mark.parametrize(
    ("command", "match"),
    [
        ("predict {}/task --data {}/train.csv::text=reviews --out p.csv", "no column 'reviews'.*did you mean 'review'"),
        ("score {}/run --data {}/new.csv", "no column 'text'.*order, review, stars"),
        ("predict {}/task --data {}/new.csv --out p.xlsx", r"\.csv"),
        ("predict bert-base-uncased --data {}/new.csv --out p.csv", "nothing is downloaded"),
        (
            "prepare {}/all.csv {}/new.csv --text-column review --tokenizer {}/tokenizer --out {}/corpus --dedup none",
            "source",
        ),
        ("finetune {}/run --task classification --train {}/train.csv --dev {}/dev.csv --out t", "no column 'text'"),
        ("search {}/new.csv::text=review --model {}/run", "QUERY"),
        ("embed {}/task --data {}/new.csv --out v.doc", r"\.npz"),
    ],
)
def test_mistakes_cost_one_line(command, match, shop, rejects, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rejects(*(word.replace("{}", str(shop)) for word in command.split()), match=match)
