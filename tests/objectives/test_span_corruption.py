"""Span corruption and translation: sources, targets, and that no token is lost."""

import itertools

import numpy as np
import pytest
import torch

from polyseme.corpus.sampling import ShuffledSampler
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.packing import Inputs
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.objectives.losses import compute_losses
from polyseme.objectives.packing import SpecialIds
from polyseme.objectives.span_corruption import SpanCorruption, random_segmentation
from polyseme.objectives.translation import ParallelText, Translation
from polyseme.rng import RandomStream, derive_sample_keys
from tests.support.cases import supported_args
from tests.support.corpora import SIZE, MemoryCorpus, random_corpus

PAD, EOS, UNK = range(3)
SENTINELS = tuple(SIZE + 99 - i for i in range(100))
T5 = SpecialIds(SIZE + 100, frozenset([PAD, EOS, UNK, *SENTINELS]), eos=EOS, pad=PAD, sentinels=SENTINELS)


def bind(spec=None, corpus=None, max_len=64, seed=1, vocabulary=T5):
    return (spec or SpanCorruption()).bind(corpus or random_corpus(), vocabulary, max_len, seed)


def split_sequences(tokens, layout):
    return [part.tolist() for part in tokens[: sum(layout.lengths)].split(list(layout.lengths))]


def sides(batch):
    """Return source, decoder input and labels of each sample, as lists."""
    values = batch.targets["next"].labels
    return zip(
        split_sequences(batch.inputs.source.values, batch.inputs.source.layout),
        split_sequences(batch.inputs.tokens, batch.inputs.layout),
        split_sequences(values, batch.inputs.layout),
    )


def rebuild(source, target):
    """Return the text, with each sentinel of the source replaced by its span in the target."""
    spans, current = {}, None
    assert target[-1] == EOS and source[-1] == EOS
    for token in target[:-1]:
        if token in SENTINELS:
            current = token
            spans[current] = []
        else:
            spans[current].append(token)
    text = []
    for token in source[:-1]:
        text += spans.pop(token) if token in SENTINELS else [token]
    assert list(spans.values()) == [[]], "one sentinel closes the target"
    return text


@pytest.mark.parametrize(
    "spec", [SpanCorruption(), SpanCorruption(0.5, 2.0), SpanCorruption(0.3, 10.0), SpanCorruption(0.0)]
)
@pytest.mark.parametrize("max_len", [4, 9, 64])
def test_source_and_target_rebuild_the_text(spec, max_len):
    corpus = random_corpus(60 if max_len == 64 else 15, seed=3)
    bound = bind(spec, corpus, max_len)
    for epoch in (0, 3):
        ids = np.arange(len(bound))
        batch = bound.batch(ids, epoch)
        order = ids[np.lexsort((bound.target_lengths[ids], bound.source_lengths[ids]))]
        for i, (source, given, target) in zip(order, sides(batch)):
            start, length = bound.samples.starts[i], bound.samples.lengths[i]
            assert rebuild(source, target) == corpus.tokens[start : start + length].tolist()
            assert given == [PAD, *target[:-1]], "the decoder reads what it has to write, one place behind"
            marks = [token for token in source if token in SENTINELS]
            assert marks == list(SENTINELS[: len(marks)]), "sentinels in falling ids, each once"
            assert [token for token in target if token in SENTINELS] == list(SENTINELS[: len(marks) + 1])
            assert len(source) <= max_len and len(target) <= max_len
    texts = [tuple(source) for epoch in (0, 1) for source, _, _ in sides(bound.batch(np.arange(40), epoch))]
    assert max_len < 64 or len(set(texts)) > 70, "each epoch takes out other spans"


def test_how_much_goes_is_fixed_by_the_length():
    spec = SpanCorruption()
    assert [int(v[0]) for v in spec.count_noise(np.array([568]))] == [85, 28]
    assert [int(v[0]) for v in spec.output_lengths(np.array([568]))] == [512, 115]
    lengths = np.arange(1, 4000)
    taken, spans = spec.count_noise(lengths)
    assert (taken >= 1).all() and (spans >= 1).all() and (spans <= taken).all()
    assert (lengths - taken >= spans - 1).all(), "a stretch that stays between two spans"
    assert abs(taken[1000:] / lengths[1000:] - 0.15).max() < 1e-3 and abs(taken[1000:] / spans[1000:] - 3).max() < 0.03
    bound = bind(max_len=512, corpus=MemoryCorpus([[3000]]))
    assert bound.samples.lengths[0] == 568 and bound.source_lengths[0] == 512, "a source fills max_len"


def test_all_cuts_are_as_likely():
    """There are ten divisions of 6 tokens into 3 segments."""
    number = 40_000
    found = random_segmentation(
        derive_sample_keys(0, 0, np.arange(number)),
        np.full(number, 6),
        np.full(number, 3),
        RandomStream.CORRUPTION_GAPS,
    ).reshape(-1, 3)
    assert (found.sum(1) == 6).all() and (found >= 1).all()
    ways = [(a, b, 6 - a - b) for a, b in itertools.product(range(1, 5), repeat=2) if a + b < 6]
    counts = np.array([(found == way).all(1).sum() for way in ways])
    assert counts.sum() == number and (abs(counts / number - 0.1) < 5 * np.sqrt(0.09 / number)).all()


def test_spans_are_everywhere_alike():
    """Of 12 tokens, two adjacent ones are removed: eleven positions, including both ends."""
    corpus = MemoryCorpus([[12]] * 8000)
    bound = bind(SpanCorruption(0.15, 3.0), corpus)
    places = [next(i for i, t in enumerate(s) if t in SENTINELS) for s, _, _ in sides(bound.batch(np.arange(8000), 0))]
    shares = np.bincount(places, minlength=11) / 8000
    assert len(shares) == 11 and (abs(shares - 1 / 11) < 5 * np.sqrt(1 / 11 / 8000)).all()


def test_a_sample_does_not_depend_on_its_company():
    bound = bind()
    together = bound.batch(np.random.default_rng(0).permutation(len(bound))[:80], 2)
    known = {tuple(source): (given, target) for source, given, target in sides(together)}
    found = 0
    for i in range(len(bound)):
        ((source, given, target),) = sides(bound.batch(np.array([i]), 2))
        if tuple(source) in known:
            assert known[tuple(source)] == (given, target)
            found += 1
    assert found == 80


@pytest.mark.parametrize("micro_batch_tokens", [300, 1000])
def test_fixed_shape(micro_batch_tokens):
    bound = bind()
    shape = bound.static_shape(micro_batch_tokens)
    order = ShuffledSampler(bound, micro_batch_tokens, max_samples=shape.max_samples)
    seen = 0
    for found, after in order.micro_batches():
        if after.epoch:
            break
        exact, fixed = bound.batch(found.sample_ids, 0), bound.batch(found.sample_ids, 0, shape)
        seen += len(found.sample_ids)
        assert list(sides(exact)) == list(sides(fixed))[: len(found.sample_ids)]
        assert fixed.num_tokens == exact.num_tokens == len(exact.inputs.tokens) + len(exact.inputs.source.values)
        assert fixed.inputs.tokens.shape == (shape.num_tokens,) and fixed.inputs.source.values.shape == (
            shape.source.num_tokens,
        )
        for layout, wanted in ((fixed.inputs.layout, shape), (fixed.inputs.source.layout, shape.source)):
            assert layout.cu_seqlens.shape == (wanted.num_sequences + 1,) and layout.cu_seqlens[-1] == wanted.num_tokens
            assert min(layout.lengths) > 0 and max(layout.lengths) <= layout.max_seqlen == wanted.max_seqlen
        assert len(fixed.inputs.layout.lengths) == len(fixed.inputs.source.layout.lengths), "a source for every filler"
        target = fixed.targets["next"]
        assert target.rows.shape == target.labels.shape == (shape.num_predictions,)
        assert target.count == exact.targets["next"].count == int((target.labels != IGNORE_INDEX).sum())
    assert seen > 0.8 * len(bound)
    with pytest.raises(ValueError, match="do not fit"):
        bound.batch(np.arange(len(bound)), 0, shape)


def test_mistakes_are_told():
    with pytest.raises(PolysemeError, match="needs 5 sentinels, and the tokenizer has none"):
        bind(vocabulary=SpecialIds(SIZE, frozenset(), eos=1))
    few = SpecialIds(SIZE + 100, frozenset(), eos=1, sentinels=SENTINELS[:3])
    with pytest.raises(PolysemeError, match="and the tokenizer has 3: train it with more sentinels"):
        bind(vocabulary=few)
    with pytest.raises(PolysemeError, match="sep token"):
        bind(vocabulary=SpecialIds(SIZE + 100, frozenset(), sentinels=SENTINELS))
    with pytest.raises(PolysemeError, match="max_len is 3"):
        bind(max_len=3)
    with pytest.raises(PolysemeError, match=r"noise_density is 1\.5"):
        SpanCorruption(noise_density=1.5)
    with pytest.raises(PolysemeError, match="2 sources and 1 targets"):
        ParallelText.from_ids([[5], [6]], [[7]])
    with pytest.raises(PolysemeError, match="pair 2 has 9 tokens"):
        Translation().bind(ParallelText.from_ids([[5], [6] * 3], [[7], [6] * 8]), T5, 8)
    for spec in (SpanCorruption(0.2, 4.0), Translation(0.0)):
        assert type(spec).from_json(spec.to_json()) == spec


# --- translation, and that both can be learned ------------------------------------------------------------------------


def parallel(count=40, seed=0):
    """Return a toy language: other ids, in reverse order."""
    rng = np.random.default_rng(seed)
    sources = [rng.integers(5, 50, rng.integers(1, 9)).tolist() for _ in range(count)]
    return sources, [[token + 45 for token in reversed(text)] for text in sources]


VOCABULARY = SpecialIds(100, frozenset([0]), bos=0, eos=0)


def test_translation_is_taught_by_the_truth():
    sources, targets = parallel()
    bound = Translation().bind(ParallelText.from_ids(sources, targets), VOCABULARY, 16)
    batch = bound.batch(np.arange(40), 0)
    pairs = {(*s, 0): [*t, 0] for s, t in zip(sources, targets)}
    for source, given, target in sides(batch):
        assert target == pairs[tuple(source)] and given == [0, *target[:-1]]
    assert batch.targets["next"].label_smoothing == 0.1 and batch.to("cpu").targets["next"].label_smoothing == 0.1


def test_label_smoothing_is_a_sum_over_targets():
    """Compare with the definition, and sum over micro-batches."""
    model = (
        FAMILIES["transformer"].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=100).build(0).double().eval()
    )
    bound = Translation(0.2).bind(ParallelText.from_ids(*parallel()), VOCABULARY, 16)
    whole, *parts = (bound.batch(ids, 0) for ids in (np.arange(40), np.arange(7), np.arange(7, 40)))
    with torch.no_grad():
        last = model.trunk(Inputs(whole.inputs.tokens, whole.inputs.layout, source=whole.inputs.source)).hidden
        chances = model.predict("next", last, whole.inputs.layout).log_softmax(-1)
        values = whole.targets["next"].labels
        right = chances.gather(1, values[:, None]).sum()
        expected = -(0.8 * right + 0.2 * chances.mean(-1).sum())
        found = compute_losses(model, whole)["next"]
        assert sum(compute_losses(model, part)["next"] for part in parts).item() == pytest.approx(
            found.item(), abs=1e-4
        )
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(  # test_translation.py and test_seq2seq_runs.py train the others
    "family",
    ["t5", pytest.param("transformer", marks=pytest.mark.slow), pytest.param("seq2seq", marks=pytest.mark.slow)],
)
def test_one_batch_can_be_learned_by_heart(family):
    torch.manual_seed(0)
    if family == "t5":
        corpus = MemoryCorpus([[30, 20]] * 6)
        corpus.tokens = corpus.tokens % 80 + 5
        vocabulary = SpecialIds(100, frozenset(), eos=EOS, pad=PAD, sentinels=tuple(range(99, 85, -1)))
        bound = bind(corpus=corpus, vocabulary=vocabulary)
    else:
        bound = Translation(label_smoothing=0.0).bind(ParallelText.from_ids(*parallel(12)), VOCABULARY, 16)
    sizes = supported_args(FAMILIES[family], num_layers=2, dim=32, num_heads=2, vocab_size=100, dropout=0.0)
    model = FAMILIES[family].model_config(**sizes).build(0)
    batch = bound.batch(np.arange(len(bound)), 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    count = batch.targets["next"].count
    for _ in range(80 if family == "transformer" else 150):
        optimizer.zero_grad()
        loss = compute_losses(model, batch)["next"] / count
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
