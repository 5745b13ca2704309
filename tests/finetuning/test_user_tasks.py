"""A user-defined task and data set, passed as objects: fine-tune, load, predict and evaluate."""

import json
import random

import pytest

import polyseme
from polyseme.errors import PolysemeError
from polyseme.evaluation.predict import evaluate
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.tasks import TASKS, load_task
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, save_model
from tests.support.toy_dataset import REVIEWS
from tests.support.toy_task import Stars, StarTask

WORDS = {1: "bad", 2: "fair", 3: "good"}
FILLER = ["the", "film", "was", "so", "it"]


def lay(folder):
    draw = random.Random(0)
    for name, size in (("train", 120), ("dev", 30)):
        rows = []
        for _ in range(size):
            stars = draw.choice([1, 2, 3])
            words = draw.choices(FILLER, k=4)
            words.insert(draw.randrange(5), WORDS[stars])
            rows.append("*" * stars + " " + " ".join(words))
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text("\n".join(rows))
    return folder


def test_user_task_without_registration(tmp_path):
    tokenizer = Tokenizer.train("wordpiece", iter([" ".join([*FILLER, *WORDS.values()])] * 30), 120)
    config = FAMILIES["bert"].model_config(
        num_layers=1, dim=32, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=24, dropout=0.0
    )
    save_model(tmp_path / "base", config.build(0), tokenizer)
    train, dev = REVIEWS.read(lay(tmp_path / "reviews"))
    data = TaskData(
        StarTask(),
        train,
        dev,
        primary_metric=REVIEWS.metric,
        extra_metrics=REVIEWS.extra_metrics,
        dataset_name="reviews",
    )
    settings = FinetuneConfig(epochs=10, optimizer=OptimizerConfig(lr=5e-3))
    results = finetune(tmp_path / "base", data, tmp_path / "run", settings, RunOptions(seeds=2, keep_seeds=True))
    assert results["mean"]["closeness"] > 0.95 and 0 < results["mean"]["best"] < 1 and results["task"] == "stars"
    assert json.loads((tmp_path / "run/predictions.json").read_text())["gold"] == [e.stars for e in dev]

    model = polyseme.load(tmp_path / "run/model", tasks=[StarTask])
    answers = model.predict([e.text for e in dev])
    assert all(isinstance(answer, Stars) and 1 <= answer.expected <= 3 for answer in answers) and "stars" not in TASKS
    said = json.loads((tmp_path / "run/predictions.json").read_text())["predictions"][str(results["best_seed"])]
    assert [answer.stars for answer in answers] == said
    folder = load_model(tmp_path / "run/model")
    task = load_task(folder.metadata, folder.model.config, [StarTask])
    assert task == StarTask(max_stars=3)
    seeds = {seed["seed"]: seed for seed in results["seeds"]}
    found = evaluate(folder, dev, task, extra_metrics=REVIEWS.extra_metrics)
    assert found == {k: v for k, v in seeds[results["best_seed"]].items() if k != "seed"}
    task.write(tmp_path / "p.jsonl", dev, model.predict(dev))
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == len(dev)
    with pytest.raises(PolysemeError, match="there is no task 'StarTask'"):
        polyseme.load(tmp_path / "run/model").predict(["good"])
