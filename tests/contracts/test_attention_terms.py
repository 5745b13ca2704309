"""The attention that models report is the attention that they use, for every family that has any."""

import pytest
import torch

from polyseme.nn.attention.multihead import BaseAttention
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.trunks.recurrent import RecurrentDecoder
from tests.support import cases

FAMILIES = [name for name in cases.NAMES if cases.tiny_spec(name).trunk.has_attention]
WITH_MEMORY = ["gpt2", "gpt", "gpt-bert", "music", "transformer_xl", "xlnet"]


def single(length, family, seed=0):
    """Return one sequence, with a longer source if the family takes one."""
    (row,), layout = cases.sequences((length,), seed), PackedLayout.from_lengths([length])
    if not cases.tiny_spec(family).trunk.has_source:
        return Inputs(row, layout, cases.segments_of(layout, family))
    (source,) = cases.sequences((length + 4,), seed + 1)
    return Inputs(row, layout, source=EncoderInput(source, PackedLayout.from_lengths([length + 4])))


def record_attended(trunk, run):
    """Return what reaches the output projection of each attention layer while `run` is called, [queries, …]."""
    attended, hooks = [], []
    for module in trunk.modules():
        if isinstance(module, BaseAttention):
            hooks.append(module.out.register_forward_pre_hook(lambda _, args: attended.append(args[0])))
        if isinstance(module, RecurrentDecoder) and module.combine is not None:
            hooks.append(module.combine.register_forward_pre_hook(lambda _, args: attended.append(args[0])))
    run()
    for hook in hooks:
        hook.remove()
    return attended


def check(trunk, inputs, memory=None):
    with torch.no_grad():
        expected = record_attended(trunk, lambda: trunk(inputs, memory=memory))
        layers = list(trunk.attention_terms(inputs, memory))
    assert len(layers) == len(expected) > 0
    for (_, terms), attended in zip(layers, expected):
        heads = terms.attended.transpose(0, 1).flatten(1)
        attended = attended[:, : heads.shape[1]]  # a recurrent decoder appends its states
        torch.testing.assert_close(heads, attended, atol=1e-10, rtol=0)
        torch.testing.assert_close(terms.weights.sum(-1), torch.ones_like(terms.weights[..., 0]))
        assert (terms.weights >= 0).all()
    return layers


def test_families_with_attention():
    names = {cases.CASES[name][0] for name in FAMILIES}
    expected = {"albert", "bert", "distilbert", "gpt", "gpt-bert", "gpt2", "modernbert", "music", "roberta", "seq2seq"}
    assert names == expected | {"spanbert", "t5", "transformer", "transformer_xl", "xlnet"}


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_times_values_is_what_the_layer_outputs(family):
    model = cases.tiny_model(family)
    layers = check(model.trunk, single(9, family))
    names = [name for name, _ in layers]
    if cases.family_of(family).name in ("t5", "transformer"):
        assert names == ["encoder"] * 3 + ["decoder", "cross"] * 3
    else:
        assert names == (["cross"] if family.startswith("seq2seq") else ["self"] * 3)


def test_a_window_and_causal_attention_have_zeros():
    modernbert = [terms for _, terms in check(cases.tiny_model("modernbert").trunk, single(9, "modernbert"))]
    distance = (torch.arange(9) - torch.arange(9)[:, None]).abs()
    is_local = [bool((terms.weights[:, distance > 2] == 0).all()) for terms in modernbert]
    assert is_local == [False, True, False]
    hybrid, inputs = cases.tiny_model("gpt-bert").trunk, single(9, "gpt-bert")
    causal_inputs = Inputs(inputs.tokens, inputs.layout.as_causal(), inputs.segments)
    for given, is_causal in ((inputs, False), (causal_inputs, True)):
        for _, terms in check(hybrid, given):
            assert bool((terms.weights.triu(1) == 0).all()) == is_causal


@pytest.mark.parametrize("family", WITH_MEMORY)
def test_keys_in_memory_come_first(family):
    trunk = cases.tiny_model(family).trunk
    with torch.no_grad():
        memory = trunk(single(5, family), return_memory=True).memory
    for _, terms in check(trunk, single(4, family, seed=7), memory):
        assert terms.weights.shape[1:] == (4, 9)
