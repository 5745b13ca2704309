"""Long texts processed with a memory, compared with sliding windows."""

import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.evaluation.context_length import evaluate_segments, evaluate_sliding_window, with_memory_len
from polyseme.nn.packing import Inputs, PackedLayout
from tests.support import cases

TEXT = cases.sequences((26,), seed=4)[0]


def whole(model) -> float:
    layout = PackedLayout.from_lengths([25])
    with torch.no_grad():
        last = model.trunk(Inputs(TEXT[:-1], layout)).hidden
        return float(model.loss("next", last, layout, torch.arange(25), TEXT[1:])) / 25


@pytest.mark.parametrize("segment", [1, 4, 25, 40])
def test_with_all_in_sight_every_way_of_reading_is_one(segment):
    model = cases.tiny_model("transformer_xl")
    assert evaluate_segments(model, TEXT, segment, memory_len=30).loss == pytest.approx(whole(model), rel=1e-6)
    for stride in (1, 4, 7):
        found = evaluate_sliding_window(model, TEXT, 30, batch_size=3, stride=stride)
        assert found.loss == pytest.approx(whole(model), rel=1e-6) and found.num_tokens == 25
    assert evaluate_sliding_window(cases.tiny_model("gpt2"), TEXT, 30).loss == pytest.approx(
        whole(cases.tiny_model("gpt2"))
    )


def test_a_shorter_memory_sees_less_and_is_the_same_for_any_segment():
    """With one layer and a memory of n, the context of a token does not depend on segment boundaries."""
    model = cases.tiny_model("transformer_xl")
    shallow = model.config.replace(trunk=model.config.trunk.replace(layer_to_block=(0,))).build(seed=1).double().eval()
    found = [evaluate_segments(shallow, TEXT, segment, memory_len=5).loss for segment in (1, 3, 25)]
    assert found[1:] == pytest.approx(found[:1] * 2, rel=1e-6) and found[0] != pytest.approx(whole(shallow))
    assert found[0] == pytest.approx(evaluate_sliding_window(shallow, TEXT, 6).loss, rel=1e-6)


def test_weights_are_shared_and_others_have_no_memory():
    model = cases.tiny_model("transformer_xl")
    other = with_memory_len(model, 7)
    assert other.config.trunk.memory_len == 7
    assert other.heads["next"].clusters.weight.data_ptr() == model.heads["next"].clusters.weight.data_ptr()
    with pytest.raises(PolysemeError, match="gpt2 has no memory"):
        with_memory_len(cases.tiny_model("gpt2"), 7)
