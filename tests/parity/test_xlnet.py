"""Tiny random XLNets of `transformers`: both streams, memory, segments, heads and gradients agree."""

import pytest
import torch

import polyseme
from polyseme.families import FAMILIES
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.weights.convert import expand_weight_maps, from_published
from tests.support.hf_models import convert_model, randomize

transformers = pytest.importorskip("transformers")

LENGTHS = (7, 3, 12, 12, 1)
XLNET = FAMILIES["xlnet"]


def build_hf_model(head: str, **changes):
    torch.manual_seed(0)
    config = transformers.XLNetConfig(
        vocab_size=99, d_model=32, n_layer=3, n_head=4, d_inner=56, mem_len=changes.pop("mem_len", None), **changes
    )
    return randomize(getattr(transformers, head)(config).eval())


def pad_left(packed: torch.Tensor, layout: PackedLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values padded on the left, as XLNet does, and the mask."""
    max_len = max(layout.lengths)
    values, mask = (
        torch.zeros(len(layout.lengths), max_len, dtype=torch.long),
        torch.zeros(len(layout.lengths), max_len),
    )
    for i, row in enumerate(packed.split(list(layout.lengths))):
        values[i, max_len - len(row) :], mask[i, max_len - len(row) :] = row, 1
    return values, mask


def make_batch(with_segments: bool = True):
    layout = PackedLayout.from_lengths(LENGTHS)
    torch.manual_seed(1)
    tokens = torch.randint(1, 99, (layout.num_tokens,))
    segments = (layout.positions > 4).long() + (layout.positions > 9) if with_segments else None
    return tokens, layout, segments


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"clamp_len": 4}, {"ff_activation": "relu"}])
@pytest.mark.parametrize("with_segments", [True, False])
def test_content_stream_matches(with_segments, changes):
    hf_model = build_hf_model("XLNetLMHeadModel", **changes)
    model = convert_model(hf_model, "xlnet")
    tokens, layout, segments = make_batch(with_segments)
    ids, mask = pad_left(tokens, layout)
    extra_inputs = {"token_type_ids": pad_left(segments, layout)[0]} if with_segments else {}
    with torch.no_grad():
        expected = hf_model(input_ids=ids, attention_mask=mask, output_hidden_states=True, **extra_inputs)
        output = model.trunk(Inputs(tokens, layout, segments), layers=range(4))
        for depth, hidden in enumerate(expected.hidden_states):
            assert_close(output.layers[depth], hidden[mask.bool()])
        assert_close(model.predict("masked", output.hidden, layout), expected.logits[mask.bool()])


@pytest.mark.parametrize("memory", [0, 5, 8])
def test_both_streams_and_gradients_match(memory):
    """A random factorization order per sequence, 3 of 9 tokens predicted, with a preceding chunk in memory."""
    hf_model = build_hf_model("XLNetLMHeadModel", mem_len=memory or None)
    model = convert_model(hf_model, "xlnet")
    torch.manual_seed(2)
    tokens, past = torch.randint(1, 99, (3, 9)), torch.randint(1, 99, (3, 6))
    segments = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2]).expand(3, 9).contiguous()
    order = torch.stack([torch.randperm(9) for _ in range(3)])
    predicted = torch.stack([(row >= 6).nonzero()[:, 0] for row in order])
    # perm_mask is 1 where i must not attend to j; tokens attend to lower ranks, and to themselves in the content stream
    forbidden = (order[:, None, :] >= order[:, :, None]).float()
    mapping = torch.nn.functional.one_hot(predicted, 9).float()
    mems, past_memory = None, None
    layout = PackedLayout.from_lengths([9] * 3)
    if memory:
        mems = hf_model(input_ids=past, use_mems=True).mems
        past_memory = model.trunk(
            Inputs(past.flatten(), PackedLayout.from_lengths([6] * 3)), return_memory=True
        ).memory.detach()
        assert past_memory.layout.lengths == (min(memory, 6),) * 3
    expected = hf_model(
        input_ids=tokens, perm_mask=forbidden, target_mapping=mapping, token_type_ids=segments, mems=mems,
        use_mems=True, output_hidden_states=True,
    )  # fmt: skip
    query_stream = QueryStream(
        order.flatten(), (predicted + 9 * torch.arange(3)[:, None]).flatten(), PackedLayout.from_lengths([3] * 3)
    )
    output = model.trunk(
        Inputs(tokens.flatten(), layout, segments.flatten(), query_stream=query_stream),
        layers=range(4),
        memory=past_memory,
        return_memory=True,
    )
    for depth, (content, query) in enumerate(zip(expected.hidden_states[::2], expected.hidden_states[1::2])):
        actual = output.layers[depth].split([27, 9])
        assert_close(actual[0], content.flatten(0, 1))
        assert_close(actual[1], query.flatten(0, 1))
    for (actual,), expected_value in zip(output.memory.states, expected.mems):
        assert_close(actual.view(3, -1, 32), expected_value.transpose(0, 1))
    labels, rows = tokens.gather(1, predicted).flatten(), 27 + torch.arange(9)
    assert_close(model.predict("masked", output.hidden, layout, rows), expected.logits.flatten(0, 1))
    loss = model.loss("masked", output.hidden, layout, rows, labels)
    expected_value = torch.nn.functional.cross_entropy(expected.logits.flatten(0, 1), labels, reduction="sum")
    assert_close(loss, expected_value)
    loss.backward()
    expected_value.backward()
    expected_grads = from_published(
        XLNET, model.config, {n: p.shape for n, p in model.named_parameters()},
        {n: p.grad for n, p in hf_model.named_parameters()}, "test",
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected_grads[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("head,name", [
    ("XLNetForSequenceClassification", "classify"), ("XLNetForTokenClassification", "tag"),
    ("XLNetForQuestionAnsweringSimple", "span"), ("XLNetForMultipleChoice", "choice"),
])  # fmt: skip
def test_task_heads_match(head, name):
    hf_model = build_hf_model(head)
    model = convert_model(hf_model, "xlnet", (name,))
    tokens, layout, segments = make_batch()
    (ids, mask), (types, _) = pad_left(tokens, layout), pad_left(segments, layout)
    if name == "choice":
        ids, mask, types = ids[None], mask[None], types[None]
    with torch.no_grad():
        hf_output = hf_model(input_ids=ids, attention_mask=mask, token_type_ids=types)
        scores = model.predict(name, model.trunk(Inputs(tokens, layout, segments)).hidden, layout)
    if name == "choice":
        return assert_close(scores[:, 0], hf_output.logits[0])
    expected = torch.stack([hf_output.start_logits, hf_output.end_logits], -1) if name == "span" else hf_output.logits
    assert_close(scores, expected if name == "classify" else expected[mask.bool()])


def test_weight_maps_are_a_bijection():
    hf_model = build_hf_model("XLNetLMHeadModel")
    weight_maps = list(expand_weight_maps(XLNET, convert_model(hf_model, "xlnet").config))
    names, published_names = [r.name for r in weight_maps], [name for r in weight_maps for name in r.published_names]
    assert len(names) == len(set(names)) and len(published_names) == len(set(published_names))
    assert set(published_names) | set(XLNET.tied_weights) == set(hf_model.state_dict())


def test_fill_uses_the_query_stream(tiny_folders):
    """The token at a mask has no effect, and the guesses are those of `transformers` with the same order."""
    model, folder = polyseme.load(tiny_folders["xlnet"], device="cpu"), tiny_folders["xlnet"]
    hf_model = transformers.XLNetLMHeadModel.from_pretrained(folder).eval()
    guesses_per_mask = model.fill("The [MASK] cat sees a [MASK].", top_k=4)
    encoded = model.encode("The [MASK] cat sees a [MASK].")
    positions = [i for i, piece in enumerate(encoded.tokens) if piece == "[MASK]"]
    ids, size = torch.tensor([encoded.input_ids]), len(encoded.input_ids)
    perm_mask = torch.zeros(1, size, size)
    perm_mask[:, :, positions] = 1
    mapping = torch.nn.functional.one_hot(torch.tensor([positions]), size).float()
    with torch.no_grad():
        logits = hf_model(
            ids, perm_mask=perm_mask, target_mapping=mapping, token_type_ids=torch.tensor([encoded.token_type_ids])
        ).logits[0]
    for guesses, row in zip(guesses_per_mask, logits.softmax(-1)):
        best = row.topk(4)
        assert [g.token for g in guesses] == model.tokenizer.convert_ids_to_tokens(best.indices.tolist())
        assert [g.probability for g in guesses] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert encoded.token_type_ids[-1] == 2 and encoded.tokens[-2:] == ["[SEP]", "[CLS]"]
    assert model.score(["The old cat sees."])[0].num_tokens > 3
