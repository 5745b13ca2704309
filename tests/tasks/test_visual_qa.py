"""Visual question answering: examples, batches, resuming, and the data set easy-VQA."""

import json
from functools import partial

import numpy as np
import pytest

import polyseme
from polyseme.datasets.catalog import DATASETS
from polyseme.errors import DataError, UnsupportedError
from polyseme.families import IMAGE_FAMILIES
from polyseme.images.files import encode_png
from polyseme.images.regions import RegionFormat
from polyseme.tasks.visual_qa import ImageQuestion, VisualQATask
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model
from tests.support.runs import folder_bytes, freeze_times, run_with_kills

QUESTIONS = ("is it dark?", "what is it?", "is there a shape in the image?")
GRID = {"num_rows": 2, "num_columns": 2, "patch_size": 4, "feature_dim": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Dark and bright images of 8 × 8 pixels, questions, and an untrained model of each family."""
    folder, rng = tmp_path_factory.mktemp("vqa"), np.random.default_rng(0)
    (folder / "images").mkdir()
    rows = []
    for i in range(12):
        pixels = rng.integers(0, 60, (8, 8, 3)) + 190 * (i % 2)
        (folder / f"images/{i}.png").write_bytes(encode_png(pixels.astype(np.uint8)))
        answer = ("yes", "no")[i % 2]
        rows.append({"image": f"images/{i}.png", "question": QUESTIONS[i % 3], "answer": answer})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = Tokenizer.train("words", list(QUESTIONS) * 3, 40)
    for name, family in IMAGE_FAMILIES.items():
        sizes = {"dim": 16, "vocab_size": tokenizer.vocab_size, "max_len": 20, "conv_dim": 4, **GRID}
        sizes |= {"num_layers": 1, "num_heads": 2} if name == "image_transformer" else {}
        save_model(folder / name, family.model_config(**sizes).build(0), tokenizer)
    return folder


@pytest.mark.parametrize("name", IMAGE_FAMILIES)
def test_dark_and_bright_images_are_told_apart(name, folder, tmp_path):
    train = folder / "train.jsonl"
    run = polyseme.finetune(
        folder / name, "visual_qa", train=train, dev=train, out=tmp_path / "run", steps=60, lr=1e-2, baselines=True
    )
    assert run.mean["accuracy"] == 1.0 and set(run.baselines) == {"majority", "question_only"}
    model = polyseme.load(run.model)
    assert model.capabilities == ("encode", "predict", "answer_image")
    image = str(folder / "images/4.png")
    answer = model.answer_image(image, "is it dark?")
    (same,) = model.predict([{"image": image, "question": "is it dark?"}])
    assert answer.label == same.label == "yes" and answer.probabilities == same.probabilities
    together = model.predict([(str(folder / f"images/{i}.png"), QUESTIONS[i % 3]) for i in range(6)])
    assert together[4].probabilities["yes"] == pytest.approx(
        model.answer_image(image, QUESTIONS[1]).probabilities["yes"], abs=1e-5
    )
    with pytest.raises(UnsupportedError, match="cannot describe images"):
        model.caption(image)


def test_killed_run_ends_with_the_same_bytes(folder, tmp_path, monkeypatch):
    freeze_times(monkeypatch)
    train, options = folder / "train.jsonl", {"steps": 3, "batch_size": 4}

    def call(out):
        return polyseme.finetune(
            folder / "show_attend_tell", "visual_qa", train=train, dev=train, out=out, seeds=2, **options
        )

    call(tmp_path / "whole")
    assert run_with_kills(partial(call, tmp_path / "run"), growth=16) > 2
    whole, resumed = (folder_bytes(tmp_path / name) for name in ("whole", "run"))
    assert not [name for name, content in whole.items() if resumed[name] != content]


def test_a_batch_has_the_regions_of_each_question(folder):
    task = VisualQATask(labels=("no", "yes"), regions=RegionFormat(2, 2, 4))
    examples = task.read(folder / "train.jsonl")[:3]
    encoded = list(task.encode(examples, Tokenizer.load(folder / "show_attend_tell"), 20))
    batch, order = task.collate(encoded)
    lengths = [len(encoded[i].ids) for i in order]
    assert list(batch.inputs.layout.lengths) == lengths == sorted(lengths)
    for rank, i in enumerate(order):
        assert np.array_equal(batch.inputs.source.values[4 * rank : 4 * rank + 4].numpy(), encoded[i].regions)
        assert batch.targets["classify"].labels[rank] == task.label_id(examples[i].label)


def test_bad_examples(folder):
    task = VisualQATask(labels=("no", "yes"), regions=RegionFormat(4, 2, 4))
    with pytest.raises(DataError, match=r"images/0\.png has 8 × 8 pixels, expected 8 × 16"):
        list(task.encode(task.read(folder / "train.jsonl"), Tokenizer.load(folder / "show_attend_tell"), 20))
    with pytest.raises(DataError, match="there is no key 'image'"):
        task.read([{"question": "what?", "answer": "yes"}])
    with pytest.raises(DataError, match="an image and a question are needed"):
        task.read(["what?"], needs_labels=False)


def test_easy_vqa(folder, tmp_path):
    """The layout of PyPI's package, version 1.0: a list of questions, and a folder of numbered images."""
    for split in ("train", "test"):
        (tmp_path / "data" / split).mkdir(parents=True)
        rows = [["what is the red shape?", "triangle", 0], ["is there a circle?", "no", 7]]
        (tmp_path / "data" / split / "questions.json").write_text(json.dumps(rows))
    train, test = DATASETS["easy-vqa"].read(tmp_path)
    assert isinstance(train[1], ImageQuestion) and train[1].label == "no" and len(test) == 2
    assert train[1].image == str(tmp_path / "data/train/images/7.png")
    (tmp_path / "data/train/questions.json").write_text('[["what?", 3]]')
    with pytest.raises(
        DataError, match=r"questions\.json:1: .* is not a question, an answer and the number of an image"
    ):
        DATASETS["easy-vqa"].read(tmp_path)
