"""What precedes a text: the token that preceded texts in the training of a family."""

import pytest

from polyseme.families import FAMILIES, text_start_id
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.recipes import RECIPES


@pytest.mark.parametrize(
    "family,boundaries,expected",
    [("gpt2", (1, 2), 1), ("bert", (1, 2), 1), ("rnn_lm", (1, 2), 2), ("xlnet", (1, 2), 2), ("rnn_lm", (1, None), 1),
     ("gpt", (None, None), None), ("a family of one's own", (1, 2), 1)],
)  # fmt: skip
def test_the_start_of_a_text(family, boundaries, expected):
    assert text_start_id(family, boundaries) == expected


def test_families_trained_on_streams_start_after_the_end_of_a_text():
    """In a stream, eos stands between two texts, and no text has a start token."""
    streaming = {recipe().family for recipe in RECIPES.values() if isinstance(recipe().objective, StreamingCausalLM)}
    assert streaming | {"xlnet"} == {name for name, family in FAMILIES.items() if family.text_start == "eos"}
