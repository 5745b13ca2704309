"""The laws for trunks that read a source and a target: what `test_laws.py` cannot ask of one stack."""

import numpy as np
import pytest
import torch

from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from tests.support import cases

FAMILIES = [name for name in cases.NAMES if isinstance(cases.tiny_spec(name).trunk, EncoderDecoderConfig)]
SOURCES, TARGETS = (5, 9, 9, 1, 12, 5), (3, 2, 2, 7, 1, 3)


def pairs(device="cpu"):
    return cases.sequences(SOURCES, 0, device), cases.sequences(TARGETS, 1, device)


def read(model, sources, targets, **more):
    source = EncoderInput(torch.cat(sources), layout_of(sources))
    return model.trunk(Inputs(torch.cat(targets), layout_of(targets), source=source), **more)


def layout_of(rows):
    return PackedLayout.from_lengths([len(row) for row in rows], device=rows[0].device)


def test_both_families_are_here():
    assert {"t5", "transformer", "seq2seq"} <= set(FAMILIES)


@pytest.mark.parametrize("device,dtype,tolerance", cases.PLACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_packing_of_both_sides(family, device, dtype, tolerance):
    model = cases.tiny_model(family, dtype, device)
    sources, targets = pairs(device)
    with torch.no_grad():
        together = read(model, sources, targets).hidden.split(list(TARGETS))
        for source, target, found in zip(sources, targets, together):
            torch.testing.assert_close(found, read(model, [source], [target]).hidden, atol=tolerance, rtol=0)
        turned = read(model, sources[::-1], targets[::-1]).hidden.split(list(TARGETS[::-1]))
        for found, again in zip(together, turned[::-1]):
            torch.testing.assert_close(found, again, atol=tolerance, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_packing_of_fixed_shapes(family):
    model = cases.tiny_model(family)
    sources, targets = pairs()
    filled = EncoderInput(
        torch.cat([*sources, torch.zeros(7, dtype=torch.long)]),
        PackedLayout.from_lengths([*SOURCES, 3, 4], num_slots=11, max_seqlen=20),
    )
    layout = PackedLayout.from_lengths([*TARGETS, 5, 1], num_slots=11, max_seqlen=9)
    with torch.no_grad():
        expected = read(model, sources, targets).hidden
        found = model.trunk(
            Inputs(torch.cat([*targets, torch.zeros(6, dtype=torch.long)]), layout, source=filled)
        ).hidden
    torch.testing.assert_close(found[:-6], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("device,dtype,tolerance", cases.PLACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_memory_in_chunks_equals_at_once(family, device, dtype, tolerance):
    """The source is read once; what it gave is part of the memory."""
    model = cases.tiny_model(family, dtype, device)
    sources, targets = cases.sequences((4, 20, 1), 0, device), cases.sequences((7, 12, 4), 5, device)
    with torch.no_grad():
        at_once = read(model, sources, targets).hidden.split([7, 12, 4])
        found, done, memory = [[], [], []], [0, 0, 0], None
        for sizes in ((3, 1, 2), (1, 6, 1), (3, 5, 1)):
            chunk = [row[d : d + n] for row, d, n in zip(targets, done, sizes)]
            if memory is None:
                reading = read(model, sources, chunk, return_memory=True)
            else:
                reading = model.trunk(
                    Inputs(torch.cat(chunk), layout_of(chunk)), memory=memory.detach(), return_memory=True
                )
            for i, part in enumerate(reading.hidden.split(list(sizes))):
                found[i].append(part)
            memory, done = reading.memory, [d + n for d, n in zip(done, sizes)]
    for parts, expected in zip(found, at_once):
        torch.testing.assert_close(torch.cat(parts), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("device,dtype,tolerance", cases.PLACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_causality_of_the_decoder(family, device, dtype, tolerance):
    """A later target changes no earlier state; any token of the source changes all of them, and no other pair's."""
    model = cases.tiny_model(family, dtype, device)
    sources, targets = cases.sequences((8, 5), 0, device), cases.sequences((10, 4), 5, device)
    later = [targets[0].clone(), targets[1]]
    later[0][6] = (later[0][6] + 1) % cases.VOCAB
    other = [sources[0].clone(), sources[1]]
    other[0][7] = (other[0][7] + 1) % cases.VOCAB
    with torch.no_grad():
        before, after, moved = (
            read(model, s, t).hidden for s, t in ((sources, targets), (sources, later), (other, targets))
        )
    torch.testing.assert_close(before[:6], after[:6], atol=tolerance, rtol=0)
    torch.testing.assert_close(before[10:], after[10:], atol=tolerance, rtol=0)
    torch.testing.assert_close(before[10:], moved[10:], atol=tolerance, rtol=0)
    assert ((before - after)[6:10].abs().amax(-1) > 1e-6).all()
    assert ((before - moved)[:10].abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_which_kind_of_trunk_is_in_the_json(family):
    spec = cases.tiny_spec(family)
    data = spec.to_json()
    assert data["trunk"]["kind"] == "EncoderDecoderConfig" and ModelConfig.from_json(data) == spec
    plain = cases.tiny_spec("bert").to_json()
    assert plain["trunk"].pop("kind") == "TransformerConfig"
    assert ModelConfig.from_json(plain) == cases.tiny_spec("bert"), "files of one kind of trunk did not say it"


def test_a_target_needs_a_decoder():
    from polyseme.errors import PolysemeError
    from polyseme.families import FAMILIES as ALL

    spec = ALL["t5"].model_config(num_layers=1, dim=8, num_heads=2, vocab_size=11, has_decoder=False)
    assert not spec.heads
    tokens, layout = torch.arange(3), PackedLayout.from_lengths([3])
    with pytest.raises(PolysemeError, match="no decoder"):
        spec.build(0).trunk(Inputs(tokens, layout, source=EncoderInput(tokens, layout)))
    wrong = ALL["t5"].trunk_config(num_layers=1, dim=8, num_heads=2, vocab_size=11)
    with pytest.raises(PolysemeError, match="cross attention"):
        wrong.replace(decoder=wrong.encoder)


def test_sinusoids_are_the_papers():
    from polyseme.nn.layers.positions import sinusoidal_embedding

    found = sinusoidal_embedding(torch.arange(50), 10, torch.float64).numpy()
    for place in (0, 1, 7, 49):
        for i in range(5):
            angle = place / 10000 ** (2 * i / 10)
            np.testing.assert_allclose(found[place, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)], atol=1e-12)


def test_sizes_of_the_transformer_are_about_the_papers():
    """Table 3 has 65 and 213 million, rounded, at a vocabulary of about 37,000."""
    from polyseme.families import FAMILIES as ALL
    from polyseme.nn.model import Model

    for size, published in (("base", 65e6), ("big", 213e6)):
        with torch.device("meta"):
            count = sum(p.numel() for p in Model(ALL["transformer"].model_config(size)).parameters())
        assert abs(count / published - 1) < 0.04
