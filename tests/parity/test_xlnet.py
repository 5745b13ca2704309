"""Tiny random XLNets of `transformers`, opened here: both streams, memory, segments, heads and gradients agree."""

import pytest
import torch

import polyseme
from polyseme.families import FAMILIES
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import PackedLayout
from polyseme.weights.convert import expand_weight_maps, from_published

transformers = pytest.importorskip("transformers")

LENGTHS = (7, 3, 12, 12, 1)
XLNET = FAMILIES["xlnet"]


def tiny(head: str, **changes):
    torch.manual_seed(0)
    config = transformers.XLNetConfig(
        vocab_size=99, d_model=32, n_layer=3, n_head=4, d_inner=56, mem_len=changes.pop("mem_len", None), **changes
    )
    theirs = getattr(transformers, head)(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return theirs


def ours(theirs, *heads: str) -> Model:
    trunk = XLNET.from_hf_config(theirs.config.to_dict())
    known, labels = XLNET.pretraining_heads(trunk), ("LABEL_0", "LABEL_1")
    labelled = {"choice": ("score",)}
    spec = ModelConfig(
        "xlnet", trunk, {h: known.get(h) or XLNET.task_head(h, labelled.get(h, labels), trunk) for h in heads}
    )
    model = spec.build().eval()
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    model.load_state_dict(from_published(XLNET, spec, shapes, theirs.state_dict(), "test"))
    return model


def padded(packed: torch.Tensor, layout: PackedLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded on the left, as XLNet is, and the mask."""
    longest = max(layout.lengths)
    values, mask = (
        torch.zeros(len(layout.lengths), longest, dtype=torch.long),
        torch.zeros(len(layout.lengths), longest),
    )
    for i, row in enumerate(packed.split(list(layout.lengths))):
        values[i, longest - len(row) :], mask[i, longest - len(row) :] = row, 1
    return values, mask


def batch(segmented: bool = True):
    layout = PackedLayout.from_lengths(LENGTHS)
    torch.manual_seed(1)
    tokens = torch.randint(1, 99, (layout.num_tokens,))
    segments = (layout.positions > 4).long() + (layout.positions > 9) if segmented else None
    return tokens, layout, segments


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"clamp_len": 4}, {"ff_activation": "relu"}])
@pytest.mark.parametrize("segmented", [True, False])
def test_content_stream(segmented, changes):
    theirs = tiny("XLNetLMHeadModel", **changes)
    model = ours(theirs, "masked")
    tokens, layout, segments = batch(segmented)
    ids, mask = padded(tokens, layout)
    extra = {"token_type_ids": padded(segments, layout)[0]} if segmented else {}
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask, output_hidden_states=True, **extra)
        reading = model.trunk(Inputs(tokens, layout, segments), layers=range(4))
        for depth, hidden in enumerate(expected.hidden_states):
            close(reading.layers[depth], hidden[mask.bool()])
        close(model.predict("masked", reading.hidden, layout), expected.logits[mask.bool()])


@pytest.mark.parametrize("memory", [0, 5, 8])
def test_both_streams_and_gradients(memory):
    """An order of factorisation drawn for each sequence, 3 of 9 places predicted; before it, a chunk to remember."""
    theirs = tiny("XLNetLMHeadModel", mem_len=memory or None)
    model = ours(theirs, "masked")
    torch.manual_seed(2)
    tokens, past = torch.randint(1, 99, (3, 9)), torch.randint(1, 99, (3, 6))
    segments = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2]).expand(3, 9).contiguous()
    order = torch.stack([torch.randperm(9) for _ in range(3)])
    predicted = torch.stack([(row >= 6).nonzero()[:, 0] for row in order])
    # theirs: 1 where i must not see j; a place sees lower ranks, and its own content only in the content stream
    forbidden = (order[:, None, :] >= order[:, :, None]).float()
    mapping = torch.nn.functional.one_hot(predicted, 9).float()
    mems, kept = None, None
    layout = PackedLayout.from_lengths([9] * 3)
    if memory:
        mems = theirs(input_ids=past, use_mems=True).mems
        kept = model.trunk(
            Inputs(past.flatten(), PackedLayout.from_lengths([6] * 3)), return_memory=True
        ).memory.detach()
        assert kept.layout.lengths == (min(memory, 6),) * 3
    expected = theirs(
        input_ids=tokens, perm_mask=forbidden, target_mapping=mapping, token_type_ids=segments, mems=mems,
        use_mems=True, output_hidden_states=True,
    )  # fmt: skip
    queries = QueryStream(
        order.flatten(), (predicted + 9 * torch.arange(3)[:, None]).flatten(), PackedLayout.from_lengths([3] * 3)
    )
    reading = model.trunk(
        Inputs(tokens.flatten(), layout, segments.flatten(), query_stream=queries),
        layers=range(4),
        memory=kept,
        return_memory=True,
    )
    for depth, (content, query) in enumerate(zip(expected.hidden_states[::2], expected.hidden_states[1::2])):
        found = reading.layers[depth].split([27, 9])
        close(found[0], content.flatten(0, 1))
        close(found[1], query.flatten(0, 1))
    for (found,), other in zip(reading.memory.states, expected.mems):
        close(found.view(3, -1, 32), other.transpose(0, 1))
    values, rows = tokens.gather(1, predicted).flatten(), 27 + torch.arange(9)
    close(model.predict("masked", reading.hidden, layout, rows), expected.logits.flatten(0, 1))
    loss = model.loss("masked", reading.hidden, layout, rows, values, -100)
    other = torch.nn.functional.cross_entropy(expected.logits.flatten(0, 1), values, reduction="sum")
    close(loss, other)
    loss.backward()
    other.backward()
    gradients = from_published(
        XLNET, model.config, {n: p.shape for n, p in model.named_parameters()},
        {n: p.grad for n, p in theirs.named_parameters()}, "test",
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("head,name", [
    ("XLNetForSequenceClassification", "classify"), ("XLNetForTokenClassification", "tag"),
    ("XLNetForQuestionAnsweringSimple", "span"), ("XLNetForMultipleChoice", "choice"),
])  # fmt: skip
def test_label_heads(head, name):
    theirs = tiny(head)
    model = ours(theirs, name)
    tokens, layout, segments = batch()
    (ids, mask), (types, _) = padded(tokens, layout), padded(segments, layout)
    if name == "choice":
        ids, mask, types = ids[None], mask[None], types[None]
    with torch.no_grad():
        found = theirs(input_ids=ids, attention_mask=mask, token_type_ids=types)
        scores = model.predict(name, model.trunk(Inputs(tokens, layout, segments)).hidden, layout)
    if name == "choice":
        return close(scores[:, 0], found.logits[0])
    expected = torch.stack([found.start_logits, found.end_logits], -1) if name == "span" else found.logits
    close(scores, expected if name == "classify" else expected[mask.bool()])


def test_the_table_is_a_bijection():
    theirs = tiny("XLNetLMHeadModel")
    rules = list(expand_weight_maps(XLNET, ours(theirs, "masked").config))
    mine, others = [r.name for r in rules], [name for r in rules for name in r.published_names]
    assert len(mine) == len(set(mine)) and len(others) == len(set(others))
    assert set(others) | set(XLNET.tied_weights) == set(theirs.state_dict())


def test_masks_are_filled_by_the_query_stream(tiny_folders):
    """What stands at a mask does not matter, and the guesses are those of `transformers` under the same order."""
    ours, folder = polyseme.load(tiny_folders["xlnet"], device="cpu"), tiny_folders["xlnet"]
    theirs = transformers.XLNetLMHeadModel.from_pretrained(folder).eval()
    found = ours.fill("The [MASK] cat sees a [MASK].", top_k=4)
    encoded = ours.encode("The [MASK] cat sees a [MASK].")
    places = [i for i, piece in enumerate(encoded["tokens"]) if piece == "[MASK]"]
    ids, size = torch.tensor([encoded["input_ids"]]), len(encoded["input_ids"])
    hidden = torch.zeros(1, size, size)
    hidden[:, :, places] = 1
    mapping = torch.nn.functional.one_hot(torch.tensor([places]), size).float()
    with torch.no_grad():
        logits = theirs(
            ids, perm_mask=hidden, target_mapping=mapping, token_type_ids=torch.tensor([encoded["token_type_ids"]])
        ).logits[0]
    for guesses, row in zip(found, logits.softmax(-1)):
        best = row.topk(4)
        assert [g.token for g in guesses] == ours.tokenizer.convert_ids_to_tokens(best.indices.tolist())
        assert [g.probability for g in guesses] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert encoded["token_type_ids"][-1] == 2 and encoded["tokens"][-2:] == ["[SEP]", "[CLS]"]
    assert ours.score(["The old cat sees."])[0].num_tokens > 3
