"""Eight threads share a loaded model: each call keeps its state to itself, so results equal those of one thread."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import polyseme
from polyseme.finetuning.config import FeatureNetworkSettings
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, FeatureInputs, train_on_features
from polyseme.tasks.tagging import TaggingExample, TaggingTask

NUM_THREADS = 8
TEXTS = [f"the {noun} sees {count} {other}" for noun in ("cat", "dog", "fish") for count in ("a", "the", "the old")
         for other in ("bird", "wolf", "dog")]  # fmt: skip


def check_threads(call, inputs):
    """Call a function from many threads, twice for each input, and compare with one thread."""
    expected = [call(each) for each in inputs]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # so that even short calls overlap
    try:
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            assert list(pool.map(call, inputs * 2)) == expected * 2
    finally:
        sys.setswitchinterval(interval)


@pytest.fixture(scope="module")
def feature_model(tiny_folders, tmp_path_factory):
    words = [tuple(text.split()) for text in TEXTS]
    examples = [TaggingExample(f"d:{i}", words=row, tags=tuple(w[0] for w in row)) for i, row in enumerate(words)]
    out = tmp_path_factory.mktemp("features") / "run"
    network = FeatureNetworkSettings(lstm_dim=8, word_dim=4)
    config = FEATURE_DEFAULTS.replace(steps=20, network=network)
    data = TaskData(TaggingTask(), examples, examples[:4])
    train_on_features(FeatureInputs([tiny_folders["bert"]]), data, out, config)
    return polyseme.load(out / "model")


def test_feature_model(feature_model):
    check_threads(feature_model.predict, [[tuple(text.split()[: 2 + i % 4])] for i, text in enumerate(TEXTS)])
    assert len({str(feature_model.predict([tuple(text.split())])) for text in TEXTS}) > 1, "texts differ in their tags"


def test_no_call_leaves_anything_in_a_feature_model(feature_model):
    before = {name: dict(vars(part)) for name, part in feature_model.model.named_modules()}
    feature_model.predict([("the", "cat")])
    assert {name: dict(vars(part)) for name, part in feature_model.model.named_modules()} == before


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet", "elmo"])
def test_embed(family, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    check_threads(lambda text: model.embed(text, granularity="token").tolist(), TEXTS[::2])
    check_threads(lambda text: model.embed([text, "a dog"]).tolist(), TEXTS[::2])


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_fill(family, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    mask = model.tokenizer.mask_token
    check_threads(lambda text: model.fill(f"{text} {mask} the {mask}", top_k=3), TEXTS)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 1}, {"num_beams": 2}])
@pytest.mark.parametrize("family", ["gpt2", "t5", "transformer_xl"])
def test_generate(family, options, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    check_threads(lambda text: model.generate(text, max_new_tokens=4, **options), TEXTS[::3])


def test_one_text_gives_one_result_and_a_list_gives_a_list(tiny_folders):
    bert = polyseme.load(tiny_folders["bert"], device="cpu")
    first, second = TEXTS[:3], TEXTS[3:6]
    assert bert.encode(first) == [bert.encode(text) for text in first]
    assert bert.encode(first, second) == [bert.encode(*pair) for pair in zip(first, second)]
    assert bert.next_sentence(first, second) == [bert.next_sentence(*pair) for pair in zip(first, second)]
    with pytest.raises(ValueError, match="different lengths, 3 and 2"):
        bert.encode(first, second[:2])
