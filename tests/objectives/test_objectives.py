"""Inputs and labels of each objective, bound to a corpus."""

import numpy as np
import pytest
import torch

from polyseme.corpus.sampling import ShuffledSampler
from polyseme.errors import PolysemeError
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.masked_lm import MaskedLM, SpanMaskedLM
from polyseme.objectives.packing import SpecialIds, StaticShape
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from tests.support.corpora import (
    BERT,
    CLS,
    GPT2,
    MASK,
    SEP,
    SIZE,
    MemoryCorpus,
    all_ids,
    bind,
    halves,
    numbered_corpus,
    random_corpus,
    split_sequences,
    unmasked_tokens,
)

SPECS = [
    *(
        MaskedLM(),
        MaskedLM(mask_unit="word", mask_prob=0.3),
        MaskedLMWithSentencePairs(),
        MaskedLMWithSentencePairs(mask_unit="word"),
        CausalLM(),
    ),
    *(MaskedLM(cross_documents=True), MaskedLM(cross_documents=True, mask_unit="word")),
    *(MaskedLMWithSentencePairs(mask_unit="ngram", pair_task="sop"), SpanMaskedLM()),
    *(CausalLM(direction="backward"), CausalLM(direction="both")),
]
NAMES = [
    f"{type(s).__name__}-{getattr(s, 'mask_unit', '')}{'-across' * getattr(s, 'cross_documents', False)}"
    f"{getattr(s, 'direction', '')}"
    for s in SPECS
]
MASKED = [spec for spec in SPECS if not isinstance(spec, CausalLM)]


@pytest.mark.parametrize("spec", SPECS, ids=NAMES)
def test_json_and_back(spec):
    assert type(spec).from_json(spec.to_json()) == spec


@pytest.mark.parametrize("spec", SPECS, ids=NAMES)
def test_alone_equals_packed(spec):
    bound = bind(spec)
    ids = np.random.default_rng(0).permutation(len(bound))[:60]
    batch = bound.batch(ids, epoch=3)
    starts = batch.inputs.layout.cu_seqlens.numpy()
    for place in range(0, 60, 7):
        alone = bound.batch(ids[[place]], epoch=3)
        low, high = starts[place], starts[place + 1]
        assert torch.equal(alone.inputs.tokens, batch.inputs.tokens[low:high])
        if batch.inputs.segments is not None:
            assert torch.equal(alone.inputs.segments, batch.inputs.segments[low:high])
        for name, own in alone.targets.items():
            rows, first, last = batch.targets[name].rows, low, high
            if name == "pair":
                first, last = place, place + 1
            at = rows.view(len(rows), -1)[:, 0]
            inside = (at >= first) & (at < last)
            moved = first * torch.tensor([1, 1, 0]) if name == "boundary" else first  # the last column is a place
            assert torch.equal(rows[inside] - moved, own.rows)
            assert torch.equal(batch.targets[name].labels[inside], own.labels)


@pytest.mark.parametrize("spec", SPECS, ids=NAMES)
def test_lengths_are_those_of_the_batch(spec):
    bound = bind(spec)
    for epoch in (0, 5):
        batch = bound.batch(all_ids(bound), epoch)
        assert tuple(bound.lengths(all_ids(bound), epoch).tolist()) == batch.inputs.layout.lengths
        assert max(batch.inputs.layout.lengths) <= bound.max_len == 64
        assert batch.num_tokens == batch.inputs.layout.num_tokens == len(batch.inputs.tokens)


@pytest.mark.parametrize("spec", SPECS, ids=NAMES)
def test_fixed_shape(spec):
    bound = bind(spec)
    shape = bound.static_shape(1000)
    order = ShuffledSampler(bound, 1000, max_samples=shape.max_samples)
    for found, after in order.micro_batches():
        if after.epoch:
            break
        exact, fixed = bound.batch(found.sample_ids, 0), bound.batch(found.sample_ids, 0, shape)
        real = exact.num_tokens
        assert fixed.num_tokens == real and fixed.inputs.tokens.shape == (1000,) == fixed.inputs.layout.positions.shape
        assert torch.equal(fixed.inputs.tokens[:real], exact.inputs.tokens)
        lengths = fixed.inputs.layout.lengths
        assert lengths[: len(exact.inputs.layout.lengths)] == exact.inputs.layout.lengths
        assert sum(lengths) == 1000 and max(lengths) <= fixed.inputs.layout.max_seqlen == 64
        assert (
            fixed.inputs.layout.cu_seqlens.shape == (shape.num_sequences + 1,)
            and fixed.inputs.layout.cu_seqlens[-1] == 1000
        )
        if exact.inputs.segments is not None:
            assert torch.equal(fixed.inputs.segments[:real], exact.inputs.segments) and fixed.inputs.segments.shape == (
                1000,
            )
        for name, target in fixed.targets.items():
            own, cap = exact.targets[name], shape.num_sequences if name == "pair" else shape.num_predictions
            assert target.rows.shape == (cap, *own.rows.shape[1:]) and target.labels.shape == (cap,)
            assert target.count == own.count == int((target.labels != IGNORE_INDEX).sum()) == len(own.rows)
            assert torch.equal(target.rows[: own.count], own.rows) and not target.rows[own.count :].any()
            assert torch.equal(target.labels[: own.count], own.labels)


def test_the_cap_drops_targets_and_says_so():
    bound = bind(MaskedLM(mask_prob=0.5))
    fixed = bound.batch(np.arange(5), 0, StaticShape(400, 20, 64, num_predictions=10))
    assert fixed.targets["masked"].count == 10 and len(fixed.targets["masked"].rows) == 10
    with pytest.raises(ValueError, match="do not fit"):
        bound.batch(np.arange(5), 0, StaticShape(100, 20, 64, num_predictions=10))
    with pytest.raises(ValueError, match="do not fit"):
        bound.batch(np.arange(5), 0, StaticShape(400, 6, 64, num_predictions=10))


@pytest.mark.parametrize("spec", MASKED, ids=[name for name in NAMES if "Causal" not in name])
def test_rates_and_specials(spec):
    bound = bind(spec)
    batch = bound.batch(all_ids(bound), 0)
    target, before = batch.targets["masked"], unmasked_tokens(batch)
    ordinary = int((before >= 5).sum())
    clumps = {"token": 1, "word": 3, "ngram": 5, "span": 10}[spec.mask_unit]
    assert abs(target.count / ordinary - spec.mask_prob) < 5 * np.sqrt(clumps * spec.mask_prob / ordinary)
    assert (target.labels >= 5).all()
    shares = [(batch.inputs.tokens[target.rows] == MASK), (batch.inputs.tokens[target.rows] == target.labels)]
    fates = target.count / (5 if spec.mask_unit == "span" else 1)  # a span has one fate
    assert np.allclose([s.float().mean() for s in shares], [0.8, 0.1], atol=5 * 0.4 / np.sqrt(fates))
    for sequence in split_sequences(batch):
        assert sequence[0] == CLS and sequence[-1] == SEP
        marks = (sequence == SEP).sum()
        assert marks == (2 if isinstance(spec, MaskedLMWithSentencePairs) else 1) or getattr(
            spec, "cross_documents", False
        )


def test_masked_lm_reads_the_corpus_whole():
    corpus, vocabulary = numbered_corpus([[30, 20, 40], [200], [5]])
    bound = MaskedLM().bind(corpus, vocabulary, 64, 0)
    read = np.concatenate([s[1:-1] for s in split_sequences(bound.batch(all_ids(bound), 0))])
    assert np.array_equal(read - 5, np.arange(corpus.num_tokens))
    assert bound.batch(all_ids(bound), 0).inputs.layout.lengths == (52, 42, 64, 64, 64, 16, 7)
    assert bound.batch(all_ids(bound), 0).inputs.segments is None


def test_words_are_whole_even_where_a_sample_cuts_one():
    corpus, vocabulary = numbered_corpus([[300], [300]])
    corpus.words[:] = np.arange(600) % 3 == 0
    bound = MaskedLM(mask_unit="word", mask_prob=0.5).bind(corpus, vocabulary, 66, 0)
    batch = bound.batch(all_ids(bound), 0)
    chosen = np.zeros(batch.num_tokens, dtype=bool)
    chosen[batch.targets["masked"].rows] = True
    before, sequence = unmasked_tokens(batch), np.repeat(np.arange(len(bound)), batch.inputs.layout.lengths)
    words = (before - 5) // 3 + 1000 * sequence
    inner = before >= 5
    for word in np.unique(words[inner]):
        assert len(set(chosen[inner & (words == word)])) == 1


def test_masks_are_new_each_epoch_or_come_back():
    dynamic, static, ten = (bind(MaskedLM(num_static_masks=n)) for n in (0, 1, 3))
    ids = np.arange(100)

    def look(bound, epoch):
        return bound.batch(ids, epoch).inputs.tokens.tolist()

    assert len({tuple(look(dynamic, e)) for e in range(6)}) == 6
    assert len({tuple(look(static, e)) for e in range(6)}) == 1
    assert [look(ten, e) == look(ten, e + 3) for e in range(3)] == [True] * 3
    assert len({tuple(look(ten, e)) for e in range(6)}) == 3
    pairs = bind(MaskedLMWithSentencePairs(num_static_masks=1))
    assert look(pairs, 0) == look(pairs, 4) and look(bind(MaskedLMWithSentencePairs()), 0) != look(
        bind(MaskedLMWithSentencePairs()), 1
    )


@pytest.mark.parametrize("max_len", [24, 64, 128])
def test_pairs(max_len):
    rng = np.random.default_rng(2)
    corpus, vocabulary = numbered_corpus([rng.integers(3, 45, rng.integers(1, 30)).tolist() for _ in range(150)])
    bound = MaskedLMWithSentencePairs().bind(corpus, vocabulary, max_len, 5)
    batch = bound.batch(all_ids(bound), 0)
    borders, closing, following = set(corpus.sentence_offsets.tolist()), [0, 0], 0
    for a, b, label in halves(batch):
        assert len(a) and len(b) and len(a) + len(b) + 3 <= max_len
        for part in (a, b):
            assert (np.diff(part) == 1).all() and len(set(corpus.document_of[part])) == 1
        same = corpus.document_of[a[0]] == corpus.document_of[b[0]]
        assert same == (label == 0)
        if label == 0:
            assert b[0] == a[-1] + 1
            following += 1
        closing[label] += int(b[-1]) + 1 in borders
    share = 1 - following / len(bound)
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(bound))
    if max_len > 24:
        ended = closing[0] / following, closing[1] / (len(bound) - following)
        assert abs(ended[0] - ended[1]) < 0.06, "how B ends does not tell whether it is random"
    segments = np.split(batch.inputs.segments.numpy(), np.cumsum(batch.inputs.layout.lengths)[:-1])
    for (a, b, _), segment in zip(halves(batch), segments):
        assert segment.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert torch.equal(batch.targets["pair"].rows, torch.arange(len(bound)))


def test_lengths_do_not_tell_which_pairs_are_random():
    bound = bind(MaskedLMWithSentencePairs(), random_corpus(400, 60, seed=3), max_len=128)
    _, lengths, random = bound.plan_pairs(all_ids(bound), 0)
    several = np.diff(bound.samples.first_units) > 1
    for part in (lengths[:, 0], lengths[:, 1], lengths.sum(axis=1)):
        means = [part[several & (random == r)].mean() for r in (False, True)]
        assert abs(means[0] / means[1] - 1) < 0.08


def test_a_document_of_one_sentence_gets_a_random_b():
    corpus, vocabulary = numbered_corpus([[10], [10, 10, 10, 10]] * 60)
    bound = MaskedLMWithSentencePairs(short_seq_prob=0.0).bind(corpus, vocabulary, 64, 0)
    labels = bound.batch(all_ids(bound), 0).targets["pair"].labels.numpy()
    assert labels[::2].all() and not labels[1::2].any(), "the other half is left to the true ones"


def test_one_in_ten_is_short():
    corpus = random_corpus(600, 60, longest=12, seed=4)
    for short in (0.0, 0.1):
        bound = bind(MaskedLMWithSentencePairs(short_seq_prob=short), corpus, max_len=128)
        table = bound.samples
        last = np.append(table.document_ids[1:] != table.document_ids[:-1], True)
        lengths, aims = table.lengths[~last], table.target_lengths[~last]
        assert abs((aims < 125).mean() - short * 124 / 124) < 5 * np.sqrt(0.09 / len(aims))
        assert (lengths[aims == 125] > 125 - 12).all()
        drawn = aims[aims < 125]
        assert not len(drawn) or (drawn.min() < 20 and 50 < drawn.mean() < 77)
        assert (lengths[aims < 125] <= np.maximum(drawn, 22)).all()


def test_random_b_over_epochs_reaches_everywhere():
    corpus, vocabulary = numbered_corpus([[6] * 8] * 10)
    bound = MaskedLMWithSentencePairs(short_seq_prob=0.0, random_next_prob=1.0).bind(corpus, vocabulary, 27, 0)
    starts = {int(b[0]) for epoch in range(40) for _, b, _ in halves(bound.batch(all_ids(bound), epoch))}
    assert starts == set(range(0, 480, 6))


def test_causal_lm_predicts_everything_once():
    documents = [[30, 20, 50], [1], [63], [64], [65]]
    corpus = MemoryCorpus(documents)
    bound = bind(CausalLM(), corpus)
    batch = bound.batch(all_ids(bound), 0)
    target = batch.targets["next"]
    sizes = [sum(d) for d in documents]
    ends = np.cumsum(sizes)
    assert torch.equal(target.rows, torch.arange(batch.num_tokens)) and target.count == batch.num_tokens
    assert np.array_equal(target.labels.numpy(), np.insert(corpus.tokens, ends, 0))
    assert np.array_equal(batch.inputs.tokens.numpy(), np.insert(corpus.tokens, ends - sizes, 0))
    assert batch.inputs.layout.lengths == (64, 37, 2, 64, 64, 1, 64, 2)
    inside = batch.inputs.layout.positions.numpy()[1:] > 0
    assert (batch.inputs.tokens.numpy()[1:][inside] == target.labels.numpy()[:-1][inside]).all()


def test_backward_and_both_predict_what_forward_does_from_the_other_side():
    """Backward, tokens and labels are swapped; in both directions, all tokens of a sequence but one are predicted."""
    corpus = random_corpus()
    forward, backward = (bind(CausalLM(direction=way), corpus) for way in ("forward", "backward"))
    ahead, behind = (bound.batch(all_ids(bound), 0) for bound in (forward, backward))
    assert torch.equal(ahead.inputs.tokens, behind.targets["previous"].labels)
    assert torch.equal(behind.inputs.tokens, ahead.targets["next"].labels)
    found = bind(CausalLM(direction="both"), corpus)
    batch = found.batch(all_ids(found), 0)
    later, earlier = batch.targets["next"], batch.targets["previous"]
    assert torch.equal(batch.inputs.tokens[later.rows + 1], later.labels)
    assert torch.equal(batch.inputs.tokens[earlier.rows - 1], earlier.labels)
    firsts, lasts = batch.inputs.layout.first_indices, batch.inputs.layout.last_indices
    assert set(later.rows.tolist()) == set(range(len(batch.inputs.tokens))) - set(lasts.tolist())
    assert set(earlier.rows.tolist()) == set(range(len(batch.inputs.tokens))) - set(firsts.tolist())
    assert later.count == earlier.count == ahead.targets["next"].count


def test_causal_lm_without_marks():
    """Each token except the first of its document is predicted once, from the tokens before it."""
    documents = [[30, 20, 50], [1], [63], [64], [2], [65]]
    corpus = MemoryCorpus(documents)
    bound = CausalLM(add_bos_eos=False).bind(corpus, BERT, 63, 0)
    batch = bound.batch(all_ids(bound), 0)
    sizes = np.array([sum(d) for d in documents])
    ends = np.cumsum(sizes)
    assert np.array_equal(batch.targets["next"].labels.numpy(), np.delete(corpus.tokens, ends - sizes))
    assert np.array_equal(batch.inputs.tokens.numpy(), np.delete(corpus.tokens, ends - 1))
    assert batch.inputs.layout.lengths == (63, 36, 62, 63, 1, 63, 1)


def test_bos_is_used_where_there_is_one():
    bound = CausalLM().bind(MemoryCorpus([[3], [3]]), SpecialIds(SIZE, frozenset([1, 2]), bos=1, eos=2), 64, 0)
    batch = bound.batch(all_ids(bound), 0)
    assert batch.inputs.tokens[[0, 4]].tolist() == [1, 1] and batch.targets["next"].labels[[3, 7]].tolist() == [2, 2]


def test_mistakes_are_told():
    with pytest.raises(PolysemeError, match="two documents"):
        bind(MaskedLMWithSentencePairs(), MemoryCorpus([[5, 5], []]))
    with pytest.raises(PolysemeError, match="two sentences"):
        bind(MaskedLMWithSentencePairs(), MemoryCorpus([[5], [5]]))
    with pytest.raises(PolysemeError, match="no text"):
        bind(MaskedLM(), MemoryCorpus([[]]))
    with pytest.raises(PolysemeError, match="mask token"):
        MaskedLM().bind(random_corpus(), SpecialIds(SIZE, frozenset(), cls=1, sep=2), 64, 0)
    with pytest.raises(PolysemeError, match="eos token"):
        CausalLM().bind(random_corpus(), SpecialIds(SIZE, frozenset(), cls=1), 64, 0)
    assert (
        BERT.require_bos_eos(""),
        GPT2.require_bos_eos(""),
        SpecialIds(9, frozenset(), eos=3, sep=1).require_bos_eos(""),
    ) == (
        (CLS, SEP),
        (0, 0),
        (3, 3),
    )
    with pytest.raises(PolysemeError, match="max_len is 2"):
        bind(MaskedLM(), max_len=2)
    with pytest.raises(PolysemeError, match=r"mask_prob is 1\.5"):
        MaskedLM(mask_prob=1.5)
    with pytest.raises(PolysemeError, match="mask_unit is 'word'"):
        SpanMaskedLM(mask_unit="word")
    with pytest.raises(PolysemeError, match="expected one of 'token', 'word', 'ngram', 'span'"):
        MaskedLM.from_json({"mask_unit": "syllable"})
