"""Captions of generated shapes with colors and shapes that were never seen together, and easy-VQA.

    python benchmarks/vision.py captions --work WORK --seeds 3
    python benchmarks/vision.py vqa --work WORK --easy-vqa FOLDER --network squeezenet_v1.0.npz --transfer --seeds 3
    python benchmarks/vision.py page

FOLDER holds what PyPI's `easy-vqa` distributes (its folder `data`, or the folder around it). WORK gets the images, the
corpora and the runs. Each row is saved in docs/results/vision.json when it is done, and the same command continues from
there. `page` writes docs/results/vision.md from the rows. With `--transfer`, models for questions also start from
captioners of shapes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import header
from vision_page import write_page

import polyseme
from polyseme.corpus.captions import prepare_captions
from polyseme.datasets.catalog import DATASETS
from polyseme.evaluation.captions import evaluate_captions
from polyseme.images.files import read_image
from polyseme.images.shapes import write_shapes
from polyseme.images.squeezenet import write_features
from polyseme.io.json import read_json, write_json

RESULTS = Path(__file__).parents[1] / "docs/results"
# recipe and overrides of each captioner; the first of a recipe is its default
CAPTIONERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM, attention": ("show-attend-tell-tiny", {}),
    "LSTM, doubly stochastic penalty 1": ("show-attend-tell-tiny", {"objective": {"attention_coverage": 1.0}}),
    "LSTM, no word dropout": ("show-attend-tell-tiny", {"objective": {"word_dropout": 0.0}}),
    "Transformer": ("image-transformer-tiny", {}),
    "Transformer, no word dropout": ("image-transformer-tiny", {"objective": {"word_dropout": 0.0}}),
}
VQA_MODELS = {"LSTM, attention": "show-attend-tell-tiny", "Transformer": "image-transformer-tiny"}
VQA_SETTINGS = {"epochs": 4.0, "batch_size": 64, "lr": 2e-3}
LINEAR_GRID = 8  # an image is this many rows and columns of mean colors to the linear model
FEATURE_GRID = 7
BASE_IMAGES = 100  # of the corpus of a model whose sizes and vocabulary are used alone


class Rows:
    """The rows of docs/results/vision.json; each is saved when it is added."""

    def __init__(self, path: Path):
        self.path = path
        self.content = read_json(path) if path.exists() else {"rows": []}
        self.keys = {row["key"] for row in self.content["rows"]}

    def add(self, key: str, start: float, **row: Any) -> None:
        row |= {"minutes": round((time.perf_counter() - start) / 60, 2), "machine": header("").strip()}
        self.content["rows"].append({"key": key, **row})
        self.keys.add(key)
        write_json(self.path, self.content)
        print(self.content["rows"][-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["captions", "vqa", "page"])
    parser.add_argument("--work", type=Path, default=Path("runs/vision"))
    parser.add_argument("--easy-vqa", type=Path)
    parser.add_argument("--network", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--images", type=int, default=16_000)
    parser.add_argument("--steps", type=int, default=0, help="of each captioner; default: the recipe's")
    parser.add_argument("--only", help="run one row")
    parser.add_argument("--transfer", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS / "vision.json")
    args = parser.parse_args()
    rows = Rows(args.results)
    if args.command == "page":
        write_page(rows.content["rows"], args.results.with_suffix(".md"))
    elif args.command == "captions":
        run_captions(rows, args)
    else:
        run_vqa(rows, args)


def prepare_shapes(args: argparse.Namespace, num_images: int, questions: list[Any] | None = None) -> tuple[Path, Path]:
    """Write generated images and their corpus once; the tokenizer knows the words of questions, too."""
    shapes = args.work / f"shapes-{num_images}"
    corpus = args.work / f"corpus-{num_images}{'-questions' if questions else ''}"
    args.work.mkdir(parents=True, exist_ok=True)
    if not shapes.exists():
        write_shapes(shapes, num_images)
    if not corpus.exists():
        texts = [json.loads(line)["caption"] for line in (shapes / "train.jsonl").read_text().splitlines()]
        texts += [example.text for example in questions or ()]
        tokenizer = polyseme.Tokenizer.train("words", texts, vocab_size=1000)
        prepare_captions([str(shapes / "train.jsonl")], tokenizer, corpus)
    return shapes, corpus


def train_captioner(name: str, seed: int, corpus: Path, work: Path, steps: int) -> Path:
    """Train a captioner, or continue; return its run folder."""
    recipe, overrides = CAPTIONERS[name]
    out = work / f"{name.replace(', ', '-').replace(' ', '-')}-{corpus.name}-{steps}-{seed}"
    if not (out / "results.json").exists():
        if (out / "recipe.json").exists():
            polyseme.pretrain(out=out, resume=True)
        else:
            budget = f"{steps}steps" if steps else None
            polyseme.pretrain(recipe, corpus, out=out, budget=budget, seed=seed, **overrides)
    return out


def run_captions(rows: Rows, args: argparse.Namespace) -> None:
    """Train each captioner, and evaluate it on seen and on unseen pairs."""
    shapes, corpus = prepare_shapes(args, args.images)
    for seed in range(args.seeds):
        for name in CAPTIONERS:
            key = f"captions/{name}/{args.images}/{args.steps}/{seed}"
            if key in rows.keys or args.only not in (None, name):
                continue
            start = time.perf_counter()
            run = train_captioner(name, seed, corpus, args.work, args.steps)
            model = polyseme.load(run)
            metrics = {
                split: evaluate_captions(model, shapes / f"{split}.jsonl", max_new_tokens=16)
                for split in ("valid", "test")
            }
            results = read_json(run / "results.json")
            facts = {"parameters": results["parameters"], "steps": results["steps"], "images": args.images}
            facts["training_minutes"] = round(60 * results["device_hours"], 2)
            rows.add(key, start, kind="captions", model=name, seed=seed, **facts, **metrics)


def run_vqa(rows: Rows, args: argparse.Namespace) -> None:
    """Measure baselines and models on the test questions of easy-VQA."""
    train, test = (DATASETS["easy-vqa"].read_split(args.easy_vqa, split) for split in ("train", "dev"))
    if "vqa/linear" not in rows.keys and args.only in (None, "linear"):
        run_baselines(rows, train, test)
    for seed in range(args.seeds):
        for name in VQA_MODELS:
            for is_scratch in (True, False)[: 1 + args.transfer]:
                label = f"{name}, {'from scratch' if is_scratch else 'after captions of shapes'}"
                if f"vqa/{label}/{seed}" in rows.keys or args.only not in (None, label):
                    continue
                start = time.perf_counter()
                _, corpus = prepare_shapes(args, BASE_IMAGES if is_scratch else args.images, train)
                base = train_captioner(name, seed, corpus, args.work, 1 if is_scratch else args.steps)
                finetune(rows, label, seed, base, start, args, from_scratch=is_scratch)
        if args.network is not None and args.only in (None, "SqueezeNet"):
            run_features(rows, seed, train, args)


def finetune(rows: Rows, label: str, seed: int, base: Path, start: float, args: Any, **options: Any) -> None:
    """Fine-tune a model on easy-VQA and add its accuracy on the test questions."""
    out = args.work / f"vqa-{label.replace(', ', '-').replace(' ', '-')}-{seed}"
    settings = {**VQA_SETTINGS, **options, "seeds": [seed], "data": args.easy_vqa}
    result = polyseme.finetune(base / "model", "easy-vqa", out=out, **settings)
    rows.add(f"vqa/{label}/{seed}", start, kind="vqa", model=label, seed=seed, accuracy=result.mean["accuracy"])


def run_features(rows: Rows, seed: int, questions: list[Any], args: argparse.Namespace) -> None:
    """Fine-tune a model on frozen features of SqueezeNet instead of pixels; its weights start at random."""
    label = "LSTM, frozen SqueezeNet features"
    if f"vqa/{label}/{seed}" in rows.keys:
        return
    start, features = time.perf_counter(), args.work / "squeezenet.npz"
    images = [Path(folder) for folder in sorted((args.easy_vqa).rglob("images")) if folder.is_dir()]
    paths = [path for folder in images for path in sorted(folder.glob("*.png"))]
    if not features.exists():
        write_features(args.network, paths, features, FEATURE_GRID)
    base = args.work / f"captioner-features-{seed}"
    if not base.exists():  # a model to start from at random: its tokenizer and sizes
        table, corpus = args.work / f"features-{seed}.jsonl", args.work / f"corpus-features-{seed}"
        rows_of_table = [{"image": str(path.resolve()), "caption": "a shape"} for path in paths[:64]]
        table.write_text("".join(json.dumps(row) + "\n" for row in rows_of_table))
        tokenizer = polyseme.Tokenizer.load(prepare_shapes(args, BASE_IMAGES, questions)[1] / "tokenizer")
        prepare_captions([str(table)], tokenizer, corpus, features=features)
        polyseme.pretrain("show-attend-tell-tiny", corpus, out=base, budget="1steps", seed=seed)
    finetune(rows, label, seed, base, start, args, from_scratch=True, region_file=str(features))


def run_baselines(rows: Rows, train: list[Any], test: list[Any]) -> None:
    """Add the accuracy of logistic regression on the question alone, and on question and colors of the image."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    counter = CountVectorizer(ngram_range=(1, 2), binary=True).fit([example.text for example in train])
    words = [counter.transform([example.text for example in part]) for part in (train, test)]
    cache: dict[str, np.ndarray] = {}

    def colors(path: str) -> np.ndarray:
        if path not in cache:
            image = read_image(path).astype(np.float32) / 255
            size = image.shape[0] // LINEAR_GRID
            cache[path] = image.reshape(LINEAR_GRID, size, LINEAR_GRID, size, 3).mean((1, 3)).ravel()
        return cache[path]

    images = [csr_matrix(np.stack([colors(example.image) for example in part])) for part in (train, test)]
    labels = [[example.label for example in part] for part in (train, test)]
    for name, features in (
        ("question only, linear", words),
        ("question and image, linear", [hstack(pair).tocsr() for pair in zip(words, images)]),
    ):
        start = time.perf_counter()
        model = LogisticRegression(max_iter=300).fit(features[0], labels[0])
        accuracy = float(model.score(features[1], labels[1]))
        rows.add(
            "vqa/linear" if "image" in name else "vqa/question",
            start,
            kind="vqa",
            model=name,
            seed=0,
            accuracy=accuracy,
        )


if __name__ == "__main__":
    main()
