"""Streaming LM: every token is predicted once per epoch, and each lane continues from step to step."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from polyseme.corpus.sampling import DataPosition, StreamSampler
from polyseme.errors import PolysemeError
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import SegmentExtra, SegmentState
from polyseme.objectives.losses import compute_losses, evaluate_batch
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.train.recipe import Recipe
from polyseme.train.streams import BatchStream
from tests.support import cases
from tests.support.corpora import GPT2, MemoryCorpus, all_ids

DOCUMENTS = [[30, 20, 50], [1], [], [63], [64], [65]]


def bind(documents=DOCUMENTS, max_len=16):
    corpus = MemoryCorpus([d for d in documents])
    return corpus, StreamingCausalLM().bind(corpus, GPT2, max_len, 0)


def test_the_stream_is_every_document_between_marks():
    corpus, bound = bind()
    batch = bound.batch(all_ids(bound), 0)
    borders = np.cumsum([0, *(sum(d) for d in DOCUMENTS if d)])
    stream = np.insert(corpus.tokens, borders, 0)
    read = len(bound) * 16
    assert len(stream) - 1 - read < 16
    assert np.array_equal(batch.inputs.tokens.numpy(), stream[:read])
    assert np.array_equal(batch.targets["next"].labels.numpy(), stream[1 : read + 1])
    assert batch.inputs.layout.lengths == (16,) * len(bound)
    some = bound.batch(np.array([7, 2]), 3)
    assert np.array_equal(some.inputs.tokens.numpy(), np.concatenate([stream[112:128], stream[32:48]]))


def test_lanes_go_on_and_any_place_is_reached():
    _, bound = bind([[40] * 20], 16)
    order = StreamSampler(bound, 64, 2)
    assert (order.num_streams, order.stream_length) == (8, len(bound) // 8 * 16) and order.fill_ratio() == 1
    each = order.stream_length // 16
    steps = list(itertools.islice(order.steps(), 2 * each))
    for lane in range(8):
        seen = [np.concatenate([b.sample_ids for b in bins])[lane] for bins, _ in steps[:each]]
        assert seen == list(range(lane * order.stream_length, (lane + 1) * order.stream_length, 16))
    assert [b.starts_epoch for bins, _ in steps for b in bins] == ([True] * 2 + [False] * 2 * (each - 1)) * 2
    for at in (0, 3, each - 1, each + 1):
        bins, after = next(order.steps(steps[at - 1][1] if at else DataPosition()))
        assert (
            all(np.array_equal(a.sample_ids, b.sample_ids) for a, b in zip(bins, steps[at][0]))
            and after == steps[at][1]
        )
    parts = [next(order.steps(DataPosition(), rank, 2))[0] for rank in range(2)]
    assert [np.array_equal(part[0].sample_ids, whole.sample_ids) for part, whole in zip(parts, steps[0][0])] == [
        True,
        True,
    ]
    with pytest.raises(PolysemeError, match="does not exist"):
        next(order.steps(DataPosition(0, 0, each)))
    with pytest.raises(PolysemeError, match="fewer than"):
        StreamSampler(bound, 64, len(bound) + 1)


def test_text_shorter_than_a_segment_is_rejected():
    with pytest.raises(PolysemeError, match=r"the text has 15 tokens .* fewer than max_len, 16"):
        bind([[5], [8]])
    assert len(bind([[5], [9]])[1]) == 1


def test_short_segments_are_no_longer_than_the_model_reads():
    bound = StreamingCausalLM(bptt_std=0.2).bind(MemoryCorpus([[50] * 40]), GPT2, 3, 3)
    assert np.diff(bound.cuts(1800, 0)).max() <= bound.config.max_input_len(3) == 4


def test_drawn_lengths_tile_every_lane_and_follow_the_law():
    """Segments are near max_len, or near half of it in one step of twenty, equal in all lanes, new in each epoch."""
    corpus = MemoryCorpus([[50] * 4000])
    bound = StreamingCausalLM(bptt_std=5.0).bind(corpus, GPT2, 70, 3)
    order = StreamSampler(bound, 140)
    lengths = np.diff(order.segment_offsets(0))
    assert (
        order.segment_offsets(0)[0] == 0
        and order.segment_offsets(0)[-1] == order.stream_length
        and not np.array_equal(lengths, order.segment_offsets(1))
    )
    usual, short = lengths[lengths > 55], lengths[lengths <= 55][:-1]
    assert len(usual) > 1000 and abs(usual.mean() - 69.5) < 0.5 and abs(usual.std() - 5) < 0.4
    assert 0.03 < len(short) / len(lengths) < 0.07 and abs(short.mean() - 34.5) < 2
    data, read, spent = BatchStream(bound, order, None), [], []
    for (batch,), after in data.steps(DataPosition()):
        read.append(batch.inputs.tokens.view(2, -1))
        assert batch.lr_scale == pytest.approx(batch.inputs.layout.max_seqlen / 70)
        spent.append(batch.inputs.layout.max_seqlen)
        if after.epoch:
            break
    assert spent == lengths.tolist()
    whole = bound.segment_batch(np.array([0, order.stream_length]), order.stream_length)
    assert torch.equal(torch.cat(read, dim=1).flatten(), whole.inputs.tokens)
    bins, after = next(order.steps(DataPosition(0, 0, 17)))
    assert bins[0].segment_length == lengths[17] and bins[0].sample_ids.tolist() == [
        lengths[:17].sum(),
        order.stream_length + lengths[:17].sum(),
    ]
    assert after == DataPosition(0, 0, 18) and not bins[0].starts_epoch


def test_backwards_each_token_predicts_the_one_before_it():
    corpus, bound = bind([[40] * 20])
    back = StreamingCausalLM(direction="backward").bind(corpus, GPT2, 16, 0)
    data, read, asked = BatchStream(back, StreamSampler(back, 32), None), [], []
    for (batch,), after in data.steps(DataPosition()):
        read.insert(0, batch.inputs.tokens.view(2, -1))
        asked.insert(0, batch.targets["previous"].labels.view(2, -1))
        if after.epoch:
            break
    tokens, values = torch.cat(read, dim=1).flip(0), torch.cat(asked, dim=1).flip(0)  # the lanes too run backwards
    forward = bound.segment_batch(np.array([0, back.stream_end // 2]), back.stream_end // 2)
    assert torch.equal(values.flatten(), forward.inputs.tokens)
    assert torch.equal(tokens.flatten(), forward.targets["next"].labels)


@pytest.mark.parametrize("spread", [0.0, 3.0])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_what_a_recurrent_model_carries_is_its_whole_past(direction, spread):
    """Losses of a lane in consecutive segments are those of the whole lane."""
    name = "rnn_lm" if direction == "forward" else "rnn_lm rnn backward dense"
    model = cases.tiny_model(name)
    corpus = MemoryCorpus([[30, 33]])
    corpus.tokens = corpus.tokens % cases.VOCAB
    bound = StreamingCausalLM(bptt_std=spread, direction=direction).bind(corpus, GPT2, 8, 0)
    data, total = BatchStream(bound, StreamSampler(bound, 16), None), 0.0
    for batches, after in data.steps(DataPosition()):
        with torch.no_grad():
            total += float(sum(compute_losses(model, batches[0]).values()))
        if after.epoch:
            break
    length = data.sampler.stream_length
    whole = bound.segment_batch(np.array([0, length]), length)
    with torch.no_grad():
        expected = float(sum(compute_losses(model, whole).values()))
    assert total == pytest.approx(expected, rel=1e-6)


def test_a_row_of_batches_is_the_whole_read_at_once():
    """With a memory that covers everything, losses of consecutive segments are those of whole lanes."""
    model = cases.tiny_model("transformer_xl")
    corpus, bound = bind([[30, 33]], 8)
    corpus.tokens = corpus.tokens % cases.VOCAB
    data = BatchStream(bound, StreamSampler(bound, 16), None)
    carry_total = 0.0
    for batches, after in data.steps(DataPosition()):
        with torch.no_grad():
            carry_total += float(sum(compute_losses(model, batches[0]).values()))
        if after.epoch:
            break
    length = data.sampler.stream_length
    whole = bound.segment_batch(np.array([0, length]), length)
    layout = PackedLayout.from_lengths([length] * 2)
    with torch.no_grad():
        last = model.trunk(Inputs(whole.inputs.tokens, layout)).hidden
        expected = model.loss("next", last, layout, whole.targets["next"].rows, whole.targets["next"].labels)
    assert carry_total == pytest.approx(float(expected), rel=1e-6)


def test_the_memory_has_no_gradient_and_a_new_epoch_none():
    model = cases.tiny_model("transformer_xl")
    _, bound = bind([[50, 30]], 8)
    batch = bound.batch(np.array([0, 3]), 0)
    target, carry = batch.targets["next"], SegmentState()
    batch = replace(
        batch,
        inputs=replace(batch.inputs, tokens=batch.inputs.tokens % cases.VOCAB),
        targets={"next": replace(target, labels=target.labels % cases.VOCAB)},
        extra=SegmentExtra(carry),
    )
    first = evaluate_batch(model, batch)["next"]
    assert carry.memory.layout.lengths == (8, 8) and not any(
        t.requires_grad for part in carry.memory.states for t in part
    )
    assert evaluate_batch(model, batch)["next"] != first
    batch = replace(batch, extra=SegmentExtra(carry, starts_fresh=True))
    assert evaluate_batch(model, batch)["next"] == first
    sum(compute_losses(model, batch).values()).backward()
    assert not any(t.requires_grad for part in carry.memory.states for t in part)


def test_overfits_one_batch():
    model = cases.tiny_spec("transformer_xl").build(seed=0)
    _, bound = bind([[50, 30]], 8)
    batch = bound.batch(np.arange(6), 0)
    tokens, values = batch.inputs.tokens % cases.VOCAB, batch.targets["next"].labels % cases.VOCAB
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    rows = torch.arange(4, len(tokens))
    for _ in range(80):
        last = model.trunk(Inputs(tokens, batch.inputs.layout)).hidden
        loss = model.loss("next", last, batch.inputs.layout, rows, values[4:]) / len(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3


@pytest.mark.parametrize("changes,says", [
    ({"family": "gpt2", "objective": StreamingCausalLM()}, "needs a memory of fixed size, which gpt2"),
    ({"family": "bert", "objective": PermutationLM()}, "PermutationLM needs a query stream, which bert does not have"),
    ({"family": "transformer_xl", "objective": StreamingCausalLM(), "batch_warmup_steps": 5},
     "batch_warmup_steps is 5"),
    ({"family": "transformer_xl", "objective": StreamingCausalLM(), "compile": True}, "set it to false"),
    ({"family": "xlnet", "objective": MaskedLM()},
     "xlnet predicts tokens by its query stream, which MaskedLM does not"),
    ({"family": "xlnet", "objective": StreamingCausalLM()}, "needs a head 'next', which xlnet does not have"),
])  # fmt: skip
def test_recipes_that_do_not_fit_are_told(changes, says):
    with pytest.raises(PolysemeError, match=says):
        Recipe(name="test", **changes).model_config(100)
