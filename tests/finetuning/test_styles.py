"""Every task is learned by a model of every style: BERT, GPT, T5, and a recurrent one by its frozen features.

Most combinations are in `test_finetune.py` and `tests/tasks/`; the rest is here, most of it with `-m slow`."""

import random

import pytest

from polyseme.families import FAMILIES
from polyseme.finetuning.config import FeatureNetworkSettings, FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, FeatureInputs, train_on_features
from polyseme.tasks import TASKS
from polyseme.tasks.extractive_qa import QuestionExample
from polyseme.tasks.multiple_choice import ChoiceExample
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import save_model
from tests.support.cases import supported_args

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare"]
SHORT = {"pair_classification": "pair", "multiple_choice": "choice", "extractive_qa": "span"}  # seeds of the draws
QUICK = FinetuneConfig(epochs=5, batch_size=16, optimizer=OptimizerConfig(lr=5e-3))
FEATURES = FEATURE_DEFAULTS.replace(
    epochs=6.0, network=FeatureNetworkSettings(lstm_dim=16, word_dim=0, dropout=0.0, layers="scalar_mix")
)
REGRESSION = FEATURES.replace(epochs=12.0).with_override("optimizer.lr", "3e-3")


def examples(kind, n=240):
    """Return examples whose label depends on one word: of the text, of the second text, or of a choice."""
    draw, found = random.Random(SHORT.get(kind, kind)), []
    for i in range(n):
        words = draw.choices(WORDS, k=draw.randint(3, 6))
        other = draw.choices(WORDS, k=3)
        text, seen = " ".join(words), "wolf" in words
        if kind == "classification":
            found.append(TextExample(f"d:{i}", text, label="yes" if seen else "no"))
        elif kind == "pair_classification":
            found.append(TextExample(f"d:{i}", text, " ".join(other), label="yes" if "wolf" in other else "no"))
        elif kind == "regression":
            indices = sorted(map(WORDS.index, words))  # two of them, which max pooling can select
            found.append(TextExample(f"d:{i}", text, label=str((indices[0] + indices[-1]) / 8 - 1)))
        elif kind == "tagging":
            found.append(
                TaggingExample(f"d:{i}", words=tuple(words), tags=tuple("B-X" if w > "d" else "O" for w in words))
            )
        elif kind == "multiple_choice":
            right = draw.randrange(3)
            choices = [draw.choice([w for w in WORDS if w != "wolf"]) for _ in range(3)]
            choices[right] = "wolf"
            found.append(ChoiceExample(f"d:{i}", text, label=str(right), choices=tuple(choices)))
        else:
            words = [w for w in words if w != "wolf"]
            words.insert(draw.randint(0, len(words)), "wolf")
            at = sum(len(w) + 1 for w in words[: words.index("wolf")])
            found.append(QuestionExample(f"d:{i}", " ".join(words), "which", answers=(("wolf", at),), id=str(i)))
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name in ("gpt2", "t5", "elmo"):
        family = FAMILIES[name]
        kind = "bpe" if name == "elmo" else family.tokenizer
        texts = iter([" ".join(WORDS), *WORDS] * 30)
        tokenizer = Tokenizer.train(kind, texts, 300 if kind == "bpe" else 60).with_cls_position(family.cls_position)
        sizes = {"num_layers": 2, "dim": 32, "num_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
        sizes |= {"vocab_size": tokenizer.vocab_size, "max_len": 40}
        made[name] = tmp_path_factory.mktemp(name) / "m"
        save_model(made[name], family.model_config(**supported_args(family, **sizes)).build(0), tokenizer)
    return made


@pytest.mark.parametrize(
    ("family", "kind"),
    [("gpt2", "pair_classification"), ("t5", "tagging"), pytest.param("elmo", "extractive_qa", marks=pytest.mark.slow)],
)
def test_fine_tuned(folders, family, kind):
    data = examples(kind, 340 if kind == "pair_classification" else 240)
    settings = QUICK.replace(epochs=8.0) if kind == "pair_classification" else QUICK
    results = finetune(folders[family], TaskData(TASKS[kind](), data[:-50], data[-50:]), None, settings)
    assert results["mean"][results["primary_metric"]] > 0.95


@pytest.mark.parametrize(
    "kind",
    [
        "tagging",
        pytest.param("classification", marks=pytest.mark.slow),
        pytest.param("pair_classification", marks=pytest.mark.slow),
        pytest.param("regression", marks=pytest.mark.slow),
        pytest.param("multiple_choice", marks=pytest.mark.slow),
    ],
)
def test_over_recurrent_features(folders, kind):
    data = examples(kind, 340 if kind == "pair_classification" else 240)
    results = train_on_features(
        FeatureInputs([folders["elmo"]]),
        TaskData(TASKS[kind](), data[:-50], data[-50:]),
        None,
        REGRESSION if kind == "regression" else FEATURES.with_override("optimizer.lr", "1e-2"),
    )
    assert results["mean"][results["primary_metric"]] > 0.95
