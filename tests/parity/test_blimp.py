"""Accuracy on minimal pairs equals that of a loop over `transformers`, paradigm by paradigm."""

import itertools
import random

import pytest

import polyseme
from polyseme.datasets.minimal_pairs import MinimalPair
from polyseme.evaluation.minimal_pairs import evaluate_minimal_pairs

pytest.importorskip("transformers")
from tests.parity import blimp_loop

NOUNS, VERBS = ("cat", "dog", "old wolf", "quiet swan", "zebra"), (("sees", "see"), ("follows", "follow"))
WORDS = ["the", "old", "quiet", "cat", "dog", "wolf", "swan", "zebra", "sees", "follows", "hides", "and", "too"]
RNG = random.Random(0)
PARADIGMS = {
    "agreement": [(f"The {a} {v} the {b}.", f"The {a} {w} the {b}.") for a in NOUNS for b in NOUNS for v, w in VERBS],
    "order": [(f"The {a} hides, and the {b} too!", f"The {a} hides, the and {b} too!") for a in NOUNS for b in NOUNS],
    "same": [("the cat sees", "the cat sees")],  # a tie
    "shuffled": [tuple(" ".join(RNG.sample(WORDS, 6)) for _ in range(2)) for _ in range(20)],
}


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert", "gpt2"])
def test_accuracy_equals_the_loop(family, tiny_folders):
    pairs = [MinimalPair(*pair, name) for name, paradigm in PARADIGMS.items() for pair in paradigm]
    result = evaluate_minimal_pairs(polyseme.load(tiny_folders[family], device="cpu"), pairs)
    expected = blimp_loop.accuracies(tiny_folders[family], PARADIGMS)
    assert result.paradigms == expected
    assert 0 < result.paradigms["shuffled"] < 1 and result.paradigms["same"] == 0.5 and result.num_ties == 1


def test_the_loop_scores_as_we_do(tiny_folders):
    """Scores agree, not only the signs of their differences."""
    import transformers

    texts = list(itertools.chain(*PARADIGMS["agreement"][:6]))
    for family, auto in (("bert", "AutoModelForMaskedLM"), ("gpt2", "AutoModelForCausalLM")):
        folder = tiny_folders[family]
        theirs = getattr(transformers, auto).from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        expected = blimp_loop.score(theirs, tokenizer, texts, family == "bert")
        scores = polyseme.load(folder, device="cpu").score(texts)
        assert [score.log_prob for score in scores] == pytest.approx(expected, abs=1e-4)
