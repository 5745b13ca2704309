"""The laws of the design, over every family. Law 5 (resume) is in test_resume.py."""

import pytest
import torch

from polyseme.nn.model import ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.losses import compute_losses
from polyseme.weights.convert import from_published, to_published
from tests.support import cases
from tests.support.ranks import run_ranks


@pytest.mark.parametrize("device,dtype,tolerance", cases.PLACES)
@pytest.mark.parametrize("family", cases.NAMES)
def test_packing_alone_equals_among_neighbours(family, device, dtype, tolerance):
    model = cases.tiny_model(family, dtype, device)
    rows = cases.sequences(cases.LENGTHS, device=device)
    layout = PackedLayout.from_lengths(cases.LENGTHS, device=device)
    with torch.no_grad():
        together = model.trunk(Inputs(torch.cat(rows), layout, cases.segments_of(layout, family))).hidden
        pooled = model.trunk.pool(together, layout)
        for i, (row, found) in enumerate(zip(rows, together.split(list(cases.LENGTHS)))):
            one = PackedLayout.from_lengths([len(row)], device=device)
            alone = model.trunk(Inputs(row, one, cases.segments_of(one, family))).hidden
            torch.testing.assert_close(found, alone, atol=tolerance, rtol=0)
            torch.testing.assert_close(pooled[i : i + 1], model.trunk.pool(alone, one), atol=tolerance, rtol=0)


@pytest.mark.parametrize("family", cases.NAMES)
def test_packing_of_a_fixed_shape_changes_nothing(family):
    model = cases.tiny_model(family)
    rows = cases.sequences(cases.LENGTHS)
    plain, filled = (
        PackedLayout.from_lengths(cases.LENGTHS),
        PackedLayout.from_lengths([*cases.LENGTHS, 4], num_slots=11, max_seqlen=20),
    )
    with torch.no_grad():
        expected = model.trunk(Inputs(torch.cat(rows), plain)).hidden
        found = model.trunk(Inputs(torch.cat([*rows, torch.zeros(4, dtype=torch.long)]), filled)).hidden
    torch.testing.assert_close(found[:-4], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("device,dtype,tolerance", cases.PLACES)
@pytest.mark.parametrize("family", cases.CAUSAL)
def test_memory_in_chunks_equals_at_once(family, device, dtype, tolerance):
    model = cases.tiny_model(family, dtype, device)
    rows = cases.sequences((7, 12, 4), device=device)
    with torch.no_grad():
        at_once = model.trunk(
            Inputs(torch.cat(rows), PackedLayout.from_lengths([7, 12, 4], device=device))
        ).hidden.split([7, 12, 4])
        memory, found = None, [[], [], []]
        done = [0, 0, 0]
        for sizes in ((3, 1, 2), (1, 6, 1), (3, 5, 1)):
            chunk = [row[d : d + n] for row, d, n in zip(rows, done, sizes)]
            reading = model.trunk(
                Inputs(torch.cat(chunk), PackedLayout.from_lengths(sizes, device=device)),
                memory=memory,
                return_memory=True,
            )
            for i, part in enumerate(reading.hidden.split(list(sizes))):
                found[i].append(part)
            memory, done = reading.memory, [d + n for d, n in zip(done, sizes)]
    for parts, expected in zip(found, at_once):
        torch.testing.assert_close(torch.cat(parts), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("device,dtype,tolerance", cases.PLACES)
@pytest.mark.parametrize("family", cases.NAMES)
def test_sum_any_micro_batches_give_the_same_gradient(family, device, dtype, tolerance):
    model = cases.tiny_model(family, dtype, device)
    rows = cases.sequences(cases.LENGTHS)
    whole = cases.gradients(model, [cases.training_batch(model, rows)])
    for cut in ((1, 2, 3), (4, 2)):  # two ranks, below, take each sequence alone
        parts, at = [], 0
        for n in cut:
            parts.append(cases.training_batch(model, rows[at : at + n]))
            at += n
        for name, found in cases.gradients(model, parts).items():
            torch.testing.assert_close(found, whole[name], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("family", cases.NAMES)
def test_sum_a_step_without_targets_is_zero_not_nan(family):
    model = cases.tiny_model(family)
    batch = cases.training_batch(model, cases.sequences((4, 3)))
    for targets in batch.targets.values():
        object.__setattr__(targets, "rows", targets.rows[:0])
        object.__setattr__(targets, "labels", targets.labels[:0])
        object.__setattr__(targets, "count", 0)
    assert all((g == 0).all() for g in cases.gradients(model, [batch]).values())


def test_sum_two_ranks_give_the_same_gradient(tmp_path):
    """Real processes under gloo, each with every other bin of the step, as the order hands them out."""
    families = [name for name in cases.NAMES if name not in cases.VARIANTS]

    def save_gradients(rank):
        torch.distributed.init_process_group("gloo")
        for family in families:
            model = cases.tiny_model(family)
            rows = cases.sequences(cases.LENGTHS)[rank::2]
            batches = [cases.training_batch(model, [row]) for row in rows]
            torch.save(cases.gradients(model, batches), tmp_path / f"{family}-{rank}.pt")

    assert run_ranks(save_gradients, timeout=120.0)[0] == [0, 0]
    for family in families:
        model = cases.tiny_model(family)
        rows = cases.sequences(cases.LENGTHS)
        expected = cases.gradients(model, [cases.training_batch(model, [row]) for row in rows])
        for rank in range(2):
            found = torch.load(tmp_path / f"{family}-{rank}.pt")
            for name, gradient in expected.items():
                torch.testing.assert_close(found[name], gradient, atol=1e-10, rtol=0)


@pytest.mark.parametrize("family", cases.NAMES)
def test_round_trip_of_specs(family):
    fam = cases.family_of(family)
    for spec in (cases.tiny_spec(family), *(fam.model_config(size) for size in fam.sizes)):
        assert ModelConfig.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("family", cases.NAMES)
def test_round_trip_of_weights(family):
    """Every tensor has its place, but those of heads that are here alone."""
    model, fam = cases.tiny_model(family), cases.family_of(family)
    ours = tuple(f"heads.{name}." for name in model.heads if name not in fam.head_weight_maps)
    state = {name: t for name, t in model.state_dict().items() if not name.startswith(ours)}
    theirs, left = to_published(fam, model.config, state)
    assert not left
    shapes = {name: t.shape for name, t in state.items()}
    back = from_published(fam, model.config, shapes, theirs, "test")
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("device,dtype,tolerance", cases.PLACES)
@pytest.mark.parametrize("family", cases.NAMES)
def test_causality(family, device, dtype, tolerance):
    """A future token changes no past output of a causal trunk; it does change a bidirectional one."""
    model = cases.tiny_model(family, dtype, device)
    row = cases.sequences((10,), device=device)[0]
    other = row.clone()
    other[6] = (row[6] + 1) % cases.VOCAB
    with torch.no_grad():
        before, after = (
            model.trunk(Inputs(r, PackedLayout.from_lengths([10], device=device))).hidden[:6] for r in (row, other)
        )
    if model.config.trunk.causal:
        torch.testing.assert_close(before, after, atol=tolerance, rtol=0)
    else:
        assert ((before - after).abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("family", cases.NAMES)
def test_recomputing_changes_no_gradient(family):
    """Blocks that run again backwards draw the same dropout and give the same bits."""
    rows = cases.sequences(cases.LENGTHS)
    found = []
    for recompute in (False, True):
        model = cases.tiny_spec(family, 0.3).build(seed=1).double().train()
        model.trunk.set_gradient_checkpointing(recompute)
        torch.manual_seed(5)
        sum(compute_losses(model, cases.training_batch(model, rows)).values()).backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found))
