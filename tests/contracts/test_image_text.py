"""The laws for trunks that read text about images."""

from dataclasses import replace

import pytest
import torch

from polyseme.errors import DataError, UnsupportedError
from polyseme.families import IMAGE_FAMILIES
from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from tests.support.images import REGION_SIZES, VOCAB, layout_of, random_regions, read, tiny_image_model

CASES = [(family, regions) for family in IMAGE_FAMILIES for regions in REGION_SIZES]


def texts(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(VOCAB, (n,), generator=generator) for n in lengths]


@pytest.mark.parametrize("family,regions", CASES)
@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_packing(family, regions, dtype, tolerance):
    model = tiny_image_model(family, regions, dtype)
    images, rows = random_regions(model, 4), texts(3, 6, 1, 3)
    with torch.no_grad():
        together = read(model, images, rows).hidden.split([3, 6, 1, 3])
        for image, row, hidden in zip(images, rows, together):
            torch.testing.assert_close(hidden, read(model, [image], [row]).hidden, atol=tolerance, rtol=0)


@pytest.mark.parametrize("family,regions", CASES)
def test_causality_and_images(family, regions):
    """A later token changes no earlier state; another image changes all states of its own text and no others."""
    model = tiny_image_model(family, regions)
    images, rows = random_regions(model, 2), texts(7, 4)
    later = [rows[0].clone(), rows[1]]
    later[0][5] = (later[0][5] + 1) % VOCAB
    other = [images[0].flip(0) * 0.5, images[1]]
    with torch.no_grad():
        before, after, moved = (read(model, i, t).hidden for i, t in ((images, rows), (images, later), (other, rows)))
    torch.testing.assert_close(before[:5], after[:5], atol=1e-10, rtol=0)
    torch.testing.assert_close(before[7:], after[7:], atol=1e-10, rtol=0)
    torch.testing.assert_close(before[7:], moved[7:], atol=1e-10, rtol=0)
    assert ((before - after)[5:7].abs().amax(-1) > 1e-6).all()
    assert ((before - moved)[:7].abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_the_last_word_is_the_pooled_vector(family):
    model = tiny_image_model(family)
    images, rows = random_regions(model, 2), texts(3, 5)
    with torch.no_grad():
        hidden = read(model, images, rows).hidden
        assert torch.equal(model.trunk.pool(hidden, layout_of(rows)), hidden[[2, 7]])


@pytest.mark.parametrize("family,regions", CASES)
def test_memory(family, regions):
    """Reading a text in chunks, with the image in memory, equals reading it at once."""
    model = tiny_image_model(family, regions)
    images, rows = random_regions(model, 2), texts(6, 5)
    with torch.no_grad():
        at_once = read(model, images, rows).hidden
        first = read(model, images, [row[:3] for row in rows], return_memory=True)
        rest = [row[3:] for row in rows]
        second = model.trunk(Inputs(torch.cat(rest), layout_of(rest)), memory=first.memory, return_memory=True)
    chunks = [torch.cat(pair) for pair in zip(first.hidden.split([3, 3]), second.hidden.split([3, 2]))]
    torch.testing.assert_close(torch.cat(chunks), at_once, atol=1e-10, rtol=0)


def batch_of(images, rows, coverage: float) -> Batch:
    tokens = torch.cat(rows)
    inputs = Inputs(tokens, layout_of(rows), source=EncoderInput(torch.cat(images), layout_of(images)))
    targets = {"next": Targets(torch.arange(len(tokens)), tokens.roll(-1), len(tokens))}
    if coverage:
        nothing = torch.zeros(0, dtype=torch.int64)
        targets["attention_coverage"] = Targets(nothing, nothing, len(rows), coverage)
    return Batch(inputs, targets, len(tokens))


@pytest.mark.parametrize("family,coverage", [("show_attend_tell", 2.0), ("image_transformer", 0.0)])
@pytest.mark.parametrize("regions", ["pixels", "boxes"])
def test_sum(family, coverage, regions):
    """Dividing a batch gives the same summed losses and gradients, of the doubly stochastic penalty too."""
    model = tiny_image_model(family, regions)
    images, rows = random_regions(model, 3), texts(4, 2, 5)

    def losses_and_grads(parts):
        model.zero_grad()
        totals: dict[str, float] = {}
        for images_part, rows_part in parts:
            batch = batch_of(images_part, rows_part, coverage)
            losses = compute_losses(model, relabel(batch))
            sum(losses.values()).backward()
            for name, loss in losses.items():
                totals[name] = totals.get(name, 0.0) + loss.item()
        return totals, [p.grad.clone() for p in model.parameters() if p.grad is not None]

    whole, grads = losses_and_grads([(images, rows)])
    divided, divided_grads = losses_and_grads([(images[:1], rows[:1]), (images[1:], rows[1:])])
    assert whole == pytest.approx(divided, abs=1e-10) and whole["next"] > 0
    assert len(grads) == len(divided_grads) > 10
    for a, b in zip(grads, divided_grads):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def relabel(batch: Batch) -> Batch:
    """Predict each token itself, so that labels do not depend on the neighbors in the batch."""
    labels = replace(batch.targets["next"], labels=batch.inputs.tokens)
    return replace(batch, targets={**batch.targets, "next": labels})


def test_the_penalty_by_hand():
    model = tiny_image_model("show_attend_tell", "boxes")
    images, rows = random_regions(model, 2), texts(4, 2)
    with torch.no_grad():
        losses = compute_losses(model, batch_of(images, rows, 1.0))
        weights = read(model, images, rows).source_attention.split([4, 2])
    expected = sum(((1 - w[:, : len(i)].sum(0)) ** 2).sum() for w, i in zip(weights, images))
    assert float(losses["attention_coverage"]) == pytest.approx(float(expected))
    assert weights[0][:, : len(images[0])].sum(-1).tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("family,regions", CASES)
def test_round_trip_of_the_config(family, regions):
    config = tiny_image_model(family, regions).config
    assert ModelConfig.from_json(config.to_json()) == config
    rebuilt = IMAGE_FAMILIES[family].from_hf_config(IMAGE_FAMILIES[family].to_hf_config(config))
    assert rebuilt == config.trunk


def test_bad_regions_are_errors():
    model = tiny_image_model("show_attend_tell")
    (image,) = random_regions(model, 1)
    tokens, layout = torch.arange(3), PackedLayout.from_lengths([3])
    with pytest.raises(UnsupportedError, match="there is no image"):
        model.trunk(Inputs(tokens, layout))
    with pytest.raises(DataError, match="an image has 5 regions, but the model reads 6"):
        read(model, [image[:5]], [tokens])
    with pytest.raises(DataError, match="the model reads 48 values for each"):
        read(model, [image[:, :7]], [tokens])


def test_weights_of_a_forward_pass_are_those_of_attention_terms():
    """What the decoder returns in a batch equals what is computed for a single image."""
    model = tiny_image_model("show_attend_tell", "boxes")
    images, rows = random_regions(model, 3), texts(4, 2, 5)
    with torch.no_grad():
        together = read(model, images, rows).source_attention.split([4, 2, 5])
        for image, row, weights in zip(images, rows, together):
            inputs = Inputs(row, layout_of([row]), source=EncoderInput(image, layout_of([image])))
            ((name, terms),) = model.trunk.attention_terms(inputs)
            assert name == "cross"
            torch.testing.assert_close(weights[:, : len(image)], terms.weights[0], atol=1e-10, rtol=0)
