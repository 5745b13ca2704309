"""Commands about images: a whole walk on a few images, and bad input in one line."""

import json

import numpy as np
import pytest

from polyseme.images.files import encode_png
from tests.support.commands import cli, run_cli
from tests.support.images import write_corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images, their corpus, and the run of a captioner that has hardly learned."""
    folder = tmp_path_factory.mktemp("images")
    write_corpus(folder)
    options = ["--set", "dim=16", "--set", "batch_tokens=512", "--set", "micro_batch_tokens=512"]
    for name in ("show-attend-tell-tiny", "image-transformer-tiny"):
        size = ["--set", "model.dim=16", "--set", "model.conv_dim=2"]
        run_cli("pretrain", name, "--corpus", folder / "corpus", "--out", folder / name, "--budget", "2steps",
                *size, *options[2:])  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def answerer(folder):
    """A model that answers questions, fine-tuned for two steps."""
    rows = [
        {"image": f"shapes/train/{i:06d}.png", "question": "is there a shape?", "answer": ("no", "yes")[i % 2]}
        for i in range(8)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_cli("finetune", folder / "image-transformer-tiny", "--task", "visual_qa", "--train", folder / "questions.jsonl",
            "--dev", folder / "questions.jsonl", "--out", folder / "vqa", "--set", "steps=2")  # fmt: skip
    return folder / "vqa"


def test_caption(folder):
    image = folder / "shapes/train/000001.png"
    for name in ("show-attend-tell-tiny", "image-transformer-tiny"):
        assert run_cli("caption", folder / name, "--image", image).count("\n") == 1
        assert 'model.caption("image.png").text' in (folder / name / "model/README.md").read_text()
    two = run_cli("caption", folder / name, "--image", image, "--image", image, "--num-beams", 2)
    assert two.count(str(image)) == 2
    (row,) = json.loads(run_cli("caption", folder / name, "--image", image, "--json"))
    assert row["image"] == str(image) and row["log_prob"] < 0
    metrics = json.loads(run_cli("caption", folder / name, "--data", folder / "shapes/test.jsonl", "--json"))
    assert metrics["images"] == 8 and 0 <= metrics["pointing_accuracy"] <= 1


def test_explain(folder):
    image, page = folder / "shapes/train/000001.png", folder / "page.html"
    run_cli("explain", folder / "image-transformer-tiny", "--image", image, "--out", page)
    assert "Where patches look" in page.read_text() and (folder / "page-words.svg").exists()
    record = json.loads((folder / "page.json").read_text())
    assert np.sum(record["attention"], axis=-1).tolist() == pytest.approx([1.0] * len(record["words"]), abs=1e-2)
    text = run_cli("explain", folder / "show-attend-tell-tiny", "--image", image)
    assert "row" in text and "column" in text


def test_ask(answerer, folder):
    image = folder / "shapes/train/000001.png"
    answer = run_cli("ask", answerer, "is there a shape?", "--image", image)
    assert answer.split("\n")[0] in ("no", "yes") and "probability 0." in answer
    parsed = json.loads(run_cli("ask", answerer, "is there a shape?", "--image", image, "--json"))
    assert sum(parsed["probabilities"].values()) == pytest.approx(1)
    assert "accuracy" in run_cli("evaluate", answerer, "--data", folder / "questions.jsonl")


def error_of(*args) -> str:
    """Run a command that fails, and return its one line."""
    result = cli(*args)
    *log, error = result.err.splitlines()
    assert result.status == 2 and error.startswith("error: ") and "Traceback" not in result.err, (log, result)
    return error


def test_bad_input_is_one_line(folder, answerer, tmp_path):
    model, image = folder / "show-attend-tell-tiny", folder / "shapes/train/000001.png"
    broken, small = tmp_path / "broken.png", tmp_path / "small.png"
    broken.write_bytes(image.read_bytes()[:60])
    small.write_bytes(encode_png(np.zeros((32, 40, 3), np.uint8)))
    assert "no image" in error_of("caption", model, "--image", tmp_path / "none.png")
    assert str(broken) in error_of("caption", model, "--image", broken)
    assert f"{small} has 40 × 32 pixels, expected 64 × 64" in error_of("caption", model, "--image", small)
    assert "either --image" in error_of("caption", model)
    assert "either --context" in error_of("ask", answerer, "what?", "--image", image, "--context", image)
    assert "describe images" in error_of("caption", answerer, "--image", image)
    assert "answer questions about images" in error_of("ask", model, "what?", "--image", image)
    assert "describe images" in error_of("caption", "mini", "--image", image)
    texts = write(tmp_path / "t.tsv", "text\tlabel\na\tb\nc\td\n")
    assert "reads text about images" in error_of("finetune", model, "--task", "classification", "--train", texts,
        "--dev", texts, "--out", tmp_path / "c")  # fmt: skip
    assert "needs a model that reads images" in error_of("finetune", "mini", "--task", "visual_qa", "--train",
        folder / "questions.jsonl", "--dev", folder / "questions.jsonl", "--out", tmp_path / "v")  # fmt: skip
    assert not (tmp_path / "c").exists() and not (tmp_path / "v").exists()


def write(path, text):
    path.write_text(text)
    return path


def test_bad_corpora_are_one_line(folder, tmp_path):
    tokenizer, table = folder / "corpus/tokenizer", tmp_path / "captions.jsonl"
    prepare = ("images", "prepare", table, "--tokenizer", tokenizer, "--out", tmp_path / "corpus")
    image = str(folder / "shapes/train/000001.png")
    (tmp_path / "small.png").write_bytes(encode_png(np.zeros((32, 40, 3), np.uint8)))
    rows = [{"image": image, "caption": "a red square"}, {"image": "small.png", "caption": "a red square"}]
    write(table, "".join(json.dumps(row) + "\n" for row in rows))
    assert "small.png has 40 × 32 pixels, expected 64 × 64" in error_of(*prepare)
    assert "patches of 7 × 7 do not divide" in error_of(*prepare, "--patch-size", 7)
    write(table, json.dumps({"image": "none.png", "caption": "a"}) + "\n")
    assert "none.png" in error_of(*prepare)
    write(table, json.dumps({"picture": image, "caption": "a"}) + "\n")
    assert "no key 'image'" in error_of(*prepare)
    write(table, json.dumps({"image": image, "caption": " "}) + "\n")
    assert "the caption is empty" in error_of(*prepare)
    np.savez(tmp_path / "regions.npz", features=np.ones((1, 4, 3), np.float32), names=["other.png"])
    write(table, json.dumps({"image": image, "caption": "a"}) + "\n")
    assert "has no regions of" in error_of(*prepare, "--features", tmp_path / "regions.npz")
    assert "--patch-size has no effect" in error_of(*prepare, "--features", tmp_path / "regions.npz", "--patch-size", 4)
    assert not (tmp_path / "corpus").exists()
    train = ("pretrain", "--corpus", folder / "corpus", "--out", tmp_path / "run")
    assert "reads text, but the corpus has images" in error_of(train[0], "transformer-tiny", *train[1:])
    coverage = ("--set", "objective.attention_coverage=1")
    assert "set it to 0" in error_of(train[0], "image-transformer-tiny", *train[1:], *coverage)
    assert not (tmp_path / "run").exists()


def test_features(folder, tmp_path):
    """A captioner over features of any network; without them an image cannot be described."""
    names = [f"{i:06d}.png" for i in range(40)]
    features = np.random.default_rng(0).normal(size=(40, 6, 5)).astype(np.float32)
    np.savez(tmp_path / "f.npz", features=features, names=names, grid=[2, 3])
    tokenizer = folder / "corpus/tokenizer"
    run_cli("images", "prepare", folder / "shapes/train.jsonl", "--tokenizer", tokenizer, "--out", tmp_path / "corpus",
            "--features", tmp_path / "f.npz")  # fmt: skip
    run_cli("pretrain", "show-attend-tell-tiny", "--corpus", tmp_path / "corpus", "--out", tmp_path / "run", "--budget",
            "1steps", "--set", "model.dim=8", "--set", "objective.attention_coverage=1")  # fmt: skip
    image = folder / "shapes/train/000003.png"
    assert run_cli("caption", tmp_path / "run", "--image", image, "--features", tmp_path / "f.npz")
    assert "6 vectors of 5 on a grid of 2 × 3" in error_of("caption", tmp_path / "run", "--image", image)
    np.savez(tmp_path / "g.npz", features=features[:, :4], names=names)
    assert "but the model reads" in error_of(
        "caption", tmp_path / "run", "--image", image, "--features", tmp_path / "g.npz"
    )
