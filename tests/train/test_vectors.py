"""Word vectors of every family: words in the same contexts have similar vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import polyseme
from polyseme.cli.main import app
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.errors import PolysemeError
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.inference.word_vectors import WordVectors
from polyseme.objectives.word2vec import Word2Vec
from polyseme.recipes import get_training_recipe
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import load_model

ANIMALS, TOOLS = ("cat", "dog", "fox", "hen", "cow", "pig"), ("saw", "axe", "hammer", "drill", "file", "plane")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Write a text in which animals eat and sleep, and tools cut and lie; nothing else distinguishes them."""
    folder = tmp_path_factory.mktemp("vectors")
    draw = np.random.default_rng(0)
    lines = []
    for _ in range(1500):
        one, verbs, place = (
            (draw.choice(ANIMALS), ("eats", "sleeps", "breathes"), ("barn", "grass", "stable"))
            if draw.random() < 0.5
            else (draw.choice(TOOLS), ("cuts", "breaks", "rusts"), ("box", "bench", "drawer"))
        )
        lines.append(f"the {one} {draw.choice(verbs)} and {draw.choice(verbs)} in the {draw.choice(place)}")
    (folder / "text.txt").write_text("\n".join(lines))
    tokenizer = Tokenizer.train("words", lines, 100)
    prepare([folder / "text.txt"], tokenizer, folder / "corpus", PrepareConfig(split="line", dedup="none"))
    return folder / "corpus"


def small(name: str, **objective: object) -> Recipe:
    recipe = get_training_recipe(name)
    recipe = (
        recipe.with_override("model.dim", "16")
        .with_override("valid_fraction", "0.02")
        .with_override("budget.steps", "100")
        .with_override("optimizer.words_per_update", "64")
    )
    if recipe.family == "fasttext":
        recipe = recipe.with_override("model.num_buckets", "200")
    rate = 0.2 if recipe.optimizer.name == "sparse_sgd" else 0.1
    given = {"subsample_threshold": 0.0, **objective} if isinstance(recipe.objective, Word2Vec) else objective
    return recipe.replace(
        objective=recipe.objective.replace(**given),
        optimizer=recipe.optimizer.replace(lr=rate, count_damping=1.0),  # so few words are all frequent ones
        **{"max_len": 32, "micro_batch_tokens": 512, "batch_tokens": 512, "save_every": 1000, "eval_every": 1000},
    )


def apart(vectors: WordVectors) -> bool:
    """Return whether each word is nearer to the mean of its own group than to that of the other."""
    kinds = [np.stack([vectors.vector(word) for word in kind]) for kind in (ANIMALS, TOOLS)]
    means = [kind.mean(0) for kind in kinds]
    return all((kind @ means[i] > kind @ means[1 - i]).all() for i, kind in enumerate(kinds))


RUNS = [
    ("word2vec-tiny", {}),
    ("word2vec-tiny", {"loss": "hierarchical_softmax"}),
    ("cbow-tiny", {}),
    pytest.param("cbow-tiny", {"loss": "hierarchical_softmax"}, marks=pytest.mark.slow),
    ("fasttext-tiny", {}),
    ("glove-tiny", {}),
]


@pytest.mark.parametrize("name,objective", RUNS, ids=lambda x: str(x))
def test_words_of_a_kind_come_together(name: str, objective: dict, corpus: Path, tmp_path: Path) -> None:
    results = pretrain(small(name, **objective), corpus, tmp_path / "run")
    assert all(np.isfinite(value) for value in results["valid"].values()) and results["tokens"] > 0
    vectors = WordVectors.load(tmp_path / "run" / "model")
    assert apart(vectors) and "<unk>" not in vectors.words
    if name == "fasttext-tiny":
        assert "hammer" in [word for word, _ in vectors.neighbors("hammers", 5)]
    else:
        with pytest.raises(PolysemeError, match=r"'hammers' is not in the vocabulary of .*; similar: hammer$"):
            vectors.neighbors("hammers")
    if name == "glove-tiny":  # the sum of both tables
        state = load_model(tmp_path / "run" / "model").model.state_dict()
        assert list(state) == ["trunk.embeddings.tokens.weight"]


def test_similarity_does_not_look_for_words_near_those_it_lacks(monkeypatch) -> None:
    """Looking for close matches of one word takes as long as thousands of pairs."""
    monkeypatch.setattr("difflib.get_close_matches", lambda *_, **__: pytest.fail("looked"))
    vectors = WordVectors(["a", "b", "c"], np.eye(3, dtype=np.float32) + 0.1)
    found = vectors.evaluate_similarity([("a", "b", 1.0), ("b", "c", 2.0), ("a", "spoon", 3.0)])
    assert (found.num_answerable, found.num_pairs) == (2, 3)


def test_as_a_trunk_it_serves_every_task(corpus: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    pretrain(small("fasttext-tiny"), corpus, tmp_path / "run")
    folder = tmp_path / "run" / "model"
    model = polyseme.load(folder)
    found = model.embed(["the cat", "the saw cuts"], "all")
    assert found.shape == (2, 1, 16) and model.embed(["the cat"], "last", "word")[0].shape == (2, 16)
    with pytest.raises(PolysemeError, match="'second_to_last' needs 2 layers, but the model has 0"):
        model.embed(["the cat"], "second_to_last", "word")
    words = [(word, "animal" if word in ANIMALS else "tool") for word in (*ANIMALS, *TOOLS)]
    data = [TextExample(f"d:{i}", f"the {word} in the {place}", label=label)
            for i, (word, label) in enumerate(words * 4) for place in ("box", "barn")]  # fmt: skip
    spec = FinetuneConfig(epochs=20, batch_size=16, optimizer=OptimizerConfig(lr=1e-2))
    results = finetune(folder, TaskData(ClassificationTask(), data, data[:24]), tmp_path / "task", spec)
    assert results["mean"]["accuracy"] > 0.9
    assert polyseme.load(tmp_path / "task" / "model").predict(["the fox in the box"])[0].label == "animal"
    monkeypatch.chdir(tmp_path)
    for form in ("text", "binary", "glove"):
        assert not app(
            ["vectors", "export", str(folder), "--out", f"v.{form}", "--format", form], standalone_mode=False
        )
        assert WordVectors.load(f"v.{form}").neighbors("cat", 3) == WordVectors.load(folder).neighbors("cat", 3)
    assert not app(["vectors", "import", "v.binary", "--out", "again"], standalone_mode=False)
    assert not app(["neighbors", "again", "cat", "--json"], standalone_mode=False)
    assert '"cosine"' in capsys.readouterr().out
    Path("pairs.txt").write_text("cat dog 9\ncat saw 1\naxe saw 8\n")
    Path("questions.txt").write_text(": kinds\ncat dog saw axe\ncat dog saw spoon\n")
    assert not app(["similarity", "again", "--data", "pairs.txt"], standalone_mode=False)
    assert not app(["analogy", "again", "--data", "questions.txt", "--cosmul"], standalone_mode=False)
    assert "total" in capsys.readouterr().out
    with pytest.raises(
        PolysemeError, match=r"cannot show attention: it is a table of .* word vectors.*, which supports encode, embed"
    ):
        model.attention("the cat")
    with pytest.raises(PolysemeError, match=r"cannot show attention.*supports .*predict"):
        polyseme.load(tmp_path / "task" / "model").attention("the cat")


def test_many_terms_of_a_row_count_less() -> None:
    """With `count_damping`, a sum of n gradients is divided by 1 + n · lr · count_damping."""
    from polyseme.nn.layers.embeddings import SparseRowGrad
    from polyseme.train.loop import TrainState
    from polyseme.train.optimizer import ScheduleConfig
    from polyseme.train.sparse_step import SparseStepExecutor

    spec = get_training_recipe("word2vec-tiny").replace(model={"dim": 3}).model_config(10)
    model, optim = spec.build(0), OptimizerConfig(name="sparse_sgd", lr=0.1, count_damping=2.0)
    run = TrainState(model, optim.build(model, []), optim, ScheduleConfig(), 1, torch.device("cpu"))
    table = model.trunk.embeddings.tokens.weight
    before = table.detach().clone()
    ids, rows = torch.tensor([1, 4, 1]), torch.ones(3, 3)
    work = SparseStepExecutor(run)
    work.lr.fill_(0.1)
    with torch.no_grad():
        work._apply_grad(SparseRowGrad(table, ids, rows, torch.tensor([3.0, 1.0, 2.0])))
    moved = (table - before).detach()[:, 0]
    assert moved[1].item() == pytest.approx(-0.1 * 2 / (1 + 5 * 0.1 * 2), rel=1e-5)
    assert moved[4].item() == pytest.approx(-0.1 / (1 + 0.1 * 2), rel=1e-5) and not moved[[0, 2, 3]].any()


def test_threads_come_back_when_a_run_ends_or_is_left() -> None:
    """Word vectors are trained on one thread; the number of threads is restored afterwards."""
    from polyseme.train.loop import TrainState, train
    from polyseme.train.optimizer import ScheduleConfig
    from polyseme.train.sparse_step import SparseStepExecutor

    spec = get_training_recipe("word2vec-tiny").replace(model={"dim": 3}).model_config(10)
    model, optim = spec.build(0), OptimizerConfig(name="sparse_sgd")

    def steps():
        raise KeyboardInterrupt
        yield

    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = TrainState(model, optim.build(model, []), optim, ScheduleConfig(), 3, torch.device("cpu"))
        with pytest.raises(KeyboardInterrupt):
            next(train(run, steps()))
        assert torch.get_num_threads() == 2
        work = SparseStepExecutor(run)
        assert torch.get_num_threads() == 1
        work.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)


@pytest.mark.parametrize("change,said", [
    (("optimizer.name", "adamw"),
     "optimizer.name is 'adamw', but Word2Vec is trained by 'sparse_sgd' or 'sparse_adagrad'"),
    (("compile", "true"), "compile is true, which word2vec does not support: set it to false"),
    (("family", "bert"), "needs a head 'negative_sampling', which bert does not have"),
    (("objective.window", "0"), "window is 0"),
])  # fmt: skip
def test_recipes_that_cannot_be(change: tuple[str, str], said: str) -> None:
    with pytest.raises(PolysemeError, match=said):
        recipe = get_training_recipe("word2vec-tiny").with_override(*change)
        (recipe.replace(size="tiny") if change[0] == "family" else recipe).model_config(100)
