"""Word in Context by layer."""

import json

import numpy as np
import pytest

from polyseme.explain import wic_by_layer
from polyseme.explain.words.wic import choose_threshold, read_wic, wilson_interval
from polyseme.inference.word_vectors import WordVectors

ROWS = [
    ("cat\tN\t1-0\tthe cat sat\tcats ran", "F"),
    ("dog\tN\t1-1\ta dog sat\tthe dog ran", "T"),
    ("dog\tN\t0-2\tdog food\tsee the dog", "T"),
    ("cat\tN\t0-1\tcat food\tthe cats", "F"),
]


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "dev"):
        (tmp_path / split).mkdir()
        (tmp_path / split / f"{split}.data.txt").write_text("".join(f"{row}\n" for row, _ in ROWS))
        (tmp_path / split / f"{split}.gold.txt").write_text("".join(f"{label}\n" for _, label in ROWS))
    return tmp_path


def test_positions_are_those_of_words(folder):
    examples = read_wic(folder, "train")
    words = [[text[slice(*span)] for text, span in zip(e.texts, e.spans)] for e in examples]
    assert words == [["cat", "cats"], ["dog", "dog"], ["dog", "dog"], ["cat", "cats"]]
    assert [example.is_same for example in examples] == [False, True, True, False]


def test_word_vectors_tell_only_forms_apart(folder):
    words = ["cat", "cats", "dog", "the"]
    examples = read_wic(folder, "train")
    (layer,) = wic_by_layer(WordVectors(words, np.eye(4, dtype=np.float32)), examples, examples)
    assert layer.accuracy == 1 and 0 < layer.threshold < 1
    (layer,) = wic_by_layer(WordVectors(words, np.ones((4, 3), np.float32)), examples, examples)
    assert layer.accuracy == layer.train_accuracy == 0.5


def test_threshold_matches_a_loop():
    rng = np.random.default_rng(0)
    labels = rng.random(60) < 0.5
    cosines = (rng.random(60) + 0.3 * labels).round(2)
    threshold, accuracy = choose_threshold(cosines, labels)
    assert ((cosines >= threshold) == labels).mean() == pytest.approx(accuracy)
    assert accuracy == pytest.approx(max(((cosines >= t) == labels).mean() for t in cosines))


def test_wilson_interval():
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 10)[0] == pytest.approx(0, abs=1e-9)


def test_command(run_cli, tiny_folders, folder, tmp_path):
    arguments = ("explain", tiny_folders["bert"], tiny_folders["gpt2"], "--wic", folder)
    record = json.loads(run_cli(*arguments, "--json"))
    assert [len(model["layers"]) for model in record["models"]] == [4, 4] and record["num_dev"] == 4
    printed = run_cli(*arguments, "--out", tmp_path / "wic.html")
    assert "the best in training of 4 layers" in printed and (tmp_path / "wic-wic.svg").exists()


def test_bad_data_is_one_line(rejects, tiny_folders, folder):
    def reject(match):
        rejects("explain", tiny_folders["bert"], "--wic", folder, match=match)

    gold = folder / "dev/dev.gold.txt"
    gold.write_text("T\nF\nT\nX\n")
    reject("dev.data.txt:4: the label is 'X', neither T nor F")
    gold.write_text("T\n")
    reject("has 4 lines, but .* has 1")
    gold.unlink()
    reject("there is no .*dev.gold.txt: expected the folder of Word in Context")
    (folder / "train/train.data.txt").write_text("cat\tN\t9-0\tthe cat\tcats\n" * 4)
    reject("train.data.txt:1: position 9 of 2 words")
