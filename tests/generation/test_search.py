"""Searches held to their definitions: exhaustive search, scores from scratch, `transformers`."""

import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.generation.beam import beam_search, fast_topk
from polyseme.generation.config import GREEDY, SamplingConfig
from polyseme.generation.sample import generate_tokens
from polyseme.generation.session import generation_head, is_seq2seq
from polyseme.ngram.trie import NgramTrie, NgramVocab
from polyseme.nn.model import build_meta
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from tests.support import cases
from tests.support import toy_ngram as toy

EOS = 3
NETWORKS = [name for name in cases.NAMES if generation_head(build_meta(cases.tiny_spec(name)))]
WRITERS = [*NETWORKS, "ngram"]


def without_variants(names):
    """Select the families; the memory law (tests/contracts) covers their variants."""
    cases_of_names = [pytest.param(name, marks=[pytest.mark.slow] * (name in cases.VARIANTS)) for name in names]
    return pytest.mark.parametrize("family", cases_of_names)


def texts(family, number=4, seed=0):
    """Prompts, and sources for those that need them."""
    if family == "ngram":
        sentences = toy.random_sentences(seed)
        return counted(sentences), [[toy.BOS, *each[: i + 1]] for i, each in enumerate(sentences[:number])], None
    model = cases.tiny_model(family)
    prompts = [row.tolist() for row in cases.sequences((5, 2, 7, 2)[:number], seed)]
    sources = [row.tolist() for row in cases.sequences((4, 9, 4, 6)[:number], seed + 1)]
    return model, prompts, sources if is_seq2seq(model) else None


def counted(sentences, words=toy.VOCAB):
    """A model of trigrams; what is mapped stays when the files are gone."""
    with tempfile.TemporaryDirectory() as work:
        return toy.estimate_toy(sentences, 3, Path(work), words)


def near(family):
    """The adaptive softmax works in float32, and n-grams, which keep float32, add up to one as nearly."""
    return {"transformer_xl": 1e-6, "ngram": 1e-5}.get(family, 1e-9)


def one(sources, i):
    return None if sources is None else [sources[i]]


def log_probability(model, prompt, written, source=None):
    """Of a text behind its prompt, read at once."""
    if isinstance(model, NgramTrie):
        return float(model.log10_probs(np.array([*prompt, *written]))[len(prompt) :].sum()) * math.log(10)
    row = torch.tensor([*prompt, *written])
    layout = PackedLayout.from_lengths([len(row)])
    layout = layout.as_causal() if model.config.trunk.is_hybrid else layout
    places = torch.arange(len(prompt) - 1, len(row) - 1)
    with torch.inference_mode():
        if generation_head(model) == "masked":
            return sum(float(_streamed(model, row[: n + 1]).log_softmax(-1)[row[n + 1]]) for n in places.tolist())
        encoder_input = None
        if source is not None:
            encoder_input = EncoderInput(torch.tensor(source), PackedLayout.from_lengths([len(source)]))
        last = model.trunk(Inputs(row, layout, source=encoder_input)).hidden
        scores = model.predict("next", last, layout, places).log_softmax(-1)
    return float(scores.gather(1, row[len(prompt) :, None]).sum())


def _streamed(model, row):
    """What a query stream says of the token behind a text, by the paper's own mask, without memory."""
    from polyseme.nn.attention.relative import QueryStream

    tokens, n = torch.cat([row, torch.tensor([0])]), len(row)
    queries = QueryStream(torch.arange(n + 1), torch.tensor([n]), PackedLayout.from_lengths([1]))
    layout = PackedLayout.from_lengths([n + 1])
    last = model.trunk(Inputs(tokens, layout, query_stream=queries)).hidden
    return model.predict("masked", last, layout, torch.tensor([n + 1]))[0]


def test_which_families_write():
    plain = {"gpt", "gpt2", "transformer_xl", "xlnet", "t5", "transformer", "seq2seq", "music"}
    assert plain <= set(WRITERS) and "bert" not in WRITERS


@without_variants(NETWORKS)
def test_with_and_without_cache(family):
    model, prompts, sources = texts(family)
    for how in (GREEDY, SamplingConfig(seed=4)):
        with_cache, without = (
            generate_tokens(model, prompts, 9, how, sources, {EOS}, use_cache=c) for c in (True, False)
        )
        assert [w.tokens for w in with_cache] == [w.tokens for w in without]
        assert [w.score for w in with_cache] == pytest.approx([w.score for w in without], abs=1e-9)
    small = model.float()
    found, again = (generate_tokens(small, prompts, 9, GREEDY, sources, {EOS}, use_cache=c) for c in (True, False))
    assert [w.score for w in found] == pytest.approx([w.score for w in again], abs=1e-5 * 20)


@pytest.mark.parametrize("family", WRITERS)
def test_scores_are_log_probabilities_from_scratch(family):
    model, prompts, sources = texts(family)
    for i, found in enumerate(beam_search(model, prompts, 6, 3, 0.6, 3, sources, {EOS})):
        assert len(found.hypotheses) == 3
        for text in found.hypotheses:
            written = [*text.tokens, *[EOS] * text.is_finished]
            expected = log_probability(model, prompts[i], written, sources and sources[i])
            assert text.score == pytest.approx(expected, abs=near(family))
            assert text.normalized_score == pytest.approx(text.score / len(written) ** 0.6)
        assert [t.normalized_score for t in found.hypotheses] == sorted(
            (t.normalized_score for t in found.hypotheses), reverse=True
        )
    for i, text in enumerate(generate_tokens(model, prompts, 6, SamplingConfig(0.7, seed=1), sources, {EOS})):
        written = [*text.tokens, *[EOS] * text.is_finished]
        expected = log_probability(model, prompts[i], written, sources and sources[i])
        assert text.score == pytest.approx(expected, abs=near(family))


@without_variants(WRITERS)
def test_together_equals_alone(family):
    model, prompts, sources = texts(family)
    uneven = False
    for how in (
        GREEDY,
        SamplingConfig(1.3, top_k=20, seed=16),
        SamplingConfig(1.0, top_p=0.8, repetition_penalty=1.4, seed=2),
    ):
        together = generate_tokens(model, prompts, 12, how, sources, {EOS, 7, 11, 30, 41})
        uneven |= len({len(w.tokens) for w in together}) > 1
        for i, found in enumerate(together):
            (alone,) = generate_tokens(model, [prompts[i]], 12, how, one(sources, i), {EOS, 7, 11, 30, 41})
            assert found.tokens == alone.tokens and found.score == pytest.approx(alone.score, abs=1e-9)
    assert uneven, "some end before others"
    together = beam_search(model, prompts, 8, 4, 1.0, 2, sources, {EOS, 7, 11})
    for i, found in enumerate(together):
        (alone,) = beam_search(model, [prompts[i]], 8, 4, 1.0, 2, one(sources, i), {EOS, 7, 11})
        assert [t.tokens for t in found.hypotheses] == [t.tokens for t in alone.hypotheses]


@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("family", ["gpt2", "transformer", "seq2seq", "xlnet", "ngram"])
def test_a_beam_of_one_is_greedy(family, penalty):
    model, prompts, sources = texts(family)
    for eos in ({EOS}, {EOS, 7, 11, 30, 41, 50, 55}):
        greedy = generate_tokens(model, prompts, 10, GREEDY, sources, eos)
        found = beam_search(model, prompts, 10, 1, penalty, 1, sources, eos)
        assert [f.hypotheses[0].tokens for f in found] == [g.tokens for g in greedy]


def of_four_words(family):
    """The last of them ends a text."""
    if family == "ngram":
        rng = np.random.default_rng(1)
        words = NgramVocab(5, bos_id=4, eos_id=3, is_predicted=np.arange(5) < 4)
        return counted([rng.choice(3, rng.integers(1, 6), p=[0.5, 0.3, 0.2]).tolist() for _ in range(60)], words)
    sizes = {"num_layers": 1, "dim": 8, "num_heads": 2, "vocab_size": 4, "max_len": 16, "dropout": 0.0}
    spec = FAMILIES[family].model_config(**cases.supported_args(FAMILIES[family], **sizes))
    model = spec.build(3).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())).double())
    return model


@pytest.mark.parametrize("family,penalty,offset", [
    pytest.param(family, *lengths, marks=[pytest.mark.slow] * (family in ("transformer", "seq2seq") and any(lengths)))
    for family in ("gpt2", "transformer", "seq2seq", "ngram")
    for lengths in ((0.0, 0), (1.0, 0), (2.0, 0), (-1.0, 0), (0.6, 5))
])  # fmt: skip
def test_a_beam_as_wide_as_the_space_is_exhaustive_search(family, penalty, offset):
    model = of_four_words(family)
    sources = [[1, 2, 3], [2]] if family != "ngram" and is_seq2seq(model) else None
    prompts, eos, max_new_tokens = [[1, 2], [0]], 3, 4
    search = 300, penalty, 5, sources, {eos}
    for i, found in enumerate(beam_search(model, prompts, max_new_tokens, *search, length_offset=offset)):
        expected = []
        for length in range(1, max_new_tokens + 1):
            for text in itertools.product(range(4), repeat=length):
                if eos in text[:-1] or (length < max_new_tokens and text[-1] != eos):
                    continue
                score = log_probability(model, prompts[i], text, sources and sources[i])
                divisor = (offset + length) ** penalty / (offset + 1) ** penalty  # Wu et al. 2016, equation 14
                expected.append((score / divisor, tuple(t for t in text if t != eos)))
        expected.sort(reverse=True)
        assert [t.tokens for t in found.hypotheses] == [text for _, text in expected[:5]]
        assert [t.normalized_score for t in found.hypotheses] == pytest.approx(
            [value for value, _ in expected[:5]], abs=near(family)
        )


@pytest.mark.parametrize("penalty,offset", [(0.0, 0), (0.7, 0), (1.0, 0), (2.0, 0), (-0.5, 0), (0.6, 5)])
def test_stopping_early_changes_nothing(penalty, offset):
    model, prompts, _ = texts("gpt2")
    ends = {token for found in beam_search(model, prompts, 6, 3) for token in found.hypotheses[0].tokens[:3]}
    for best in (3, 1):
        early, late = (
            beam_search(model, prompts, 10, 3, penalty, best, None, ends, stop_early=e, length_offset=offset)
            for e in (True, False)
        )
        for a, b in zip(early, late):
            assert [t.tokens for t in a.hypotheses] == [t.tokens for t in b.hypotheses]
    assert any(len(a.nodes) < len(b.nodes) for a, b in zip(early, late)) or penalty > 1, "nothing was saved"


def test_patience_stops_when_so_many_have_ended():
    """It is what fewer steps give: the tree is a part of the whole one, and all that has ended in it is there."""
    model, prompts, _ = texts("gpt2")
    ends = {token for found in beam_search(model, prompts, 6, 3) for token in found.hypotheses[0].tokens[:3]}
    whole = beam_search(model, prompts, 12, 3, 2.0, 3, None, ends, stop_early=False)
    hasty, patient = (beam_search(model, prompts, 12, 3, 2.0, 3, None, ends, patience=p) for p in (1.0, 100.0))
    assert any(len(a.nodes) < len(b.nodes) for a, b in zip(hasty, whole))
    for few, many, all_ in zip(hasty, patient, whole):
        begun = [node[:2] for node in all_.nodes[: len(few.nodes)]]
        assert [node[:2] for node in few.nodes] == begun, "the same search, left off"
        assert [t.tokens for t in many.hypotheses] == [t.tokens for t in all_.hypotheses]
        assert len(few.hypotheses) == 3 and few.hypotheses[0].normalized_score <= all_.hypotheses[0].normalized_score
    for wrong in (-1.0, math.nan):
        with pytest.raises(PolysemeError, match="patience"):
            beam_search(model, prompts, 3, patience=wrong)


@pytest.mark.parametrize("size", [5, 640, 3000, 3008])
def test_the_highest_are_those_of_a_sort(size):
    scores = torch.randn(7, size, generator=torch.Generator().manual_seed(size))
    scores[0], scores[1, 3:], scores[2, :-1] = scores[0].sort().values, -math.inf, -math.inf
    for number in (1, 4, 10):
        values, which = fast_topk(scores, number)
        expected = scores.sort(-1, descending=True)
        assert torch.equal(values, expected.values[:, :number]) and torch.equal(scores.gather(1, which), values)
        assert all(len(set(row)) == len(row) for row in which.tolist())
        assert torch.equal(which[[0, 3, 4, 5, 6]], expected.indices[[0, 3, 4, 5, 6], :number])


def test_what_has_ended_is_never_opened_again():
    model, prompts, _ = texts("gpt2")
    ends = {token for found in beam_search(model, prompts, 6, 3) for token in found.hypotheses[0].tokens[:3]}
    for found in beam_search(model, prompts, 8, 4, 1.0, 4, None, ends):
        closed = {i for i, node in enumerate(found.nodes) if node.token in ends}
        assert closed and not closed & {node.parent for node in found.nodes}
        assert all(not set(text.tokens) & ends for text in found.hypotheses)
        for node in found.nodes:  # a score only falls
            assert node.score <= (found.nodes[node.parent].score if node.parent >= 0 else 0)


def test_banned_tokens_are_never_written():
    model, prompts, _ = texts("gpt2")
    plain = generate_tokens(model, prompts, 8)
    banned = {w.tokens[0] for w in plain} | {w.tokens[3] for w in plain}
    for written in (
        *generate_tokens(model, prompts, 8, suppress_tokens=banned),
        *generate_tokens(model, prompts, 8, SamplingConfig(), suppress_tokens=banned),
    ):
        assert not banned & set(written.tokens)
    for found in beam_search(model, prompts, 8, 3, suppress_tokens=banned):
        assert not banned & set(found.hypotheses[0].tokens)


@pytest.mark.parametrize("search", ["sample", "beam"])
def test_more_than_the_model_has_places_for_is_refused(search):
    run = generate_tokens if search == "sample" else beam_search
    model, prompts, _ = texts("gpt2")
    assert len(run(model, [prompts[0]], 27)) == 1
    with pytest.raises(
        PolysemeError, match="prompt of 5 tokens and 28 new ones make 33, and the model has 32 positions"
    ):
        run(model, [prompts[0]], 28)
    other = cases.tiny_model("transformer")
    with pytest.raises(PolysemeError, match="has 32 positions"):
        run(other, [[1]], 32, sources=[[1, 2]])
    with pytest.raises(PolysemeError, match="source of 40 tokens is longer"):
        run(other, [[1]], 3, sources=[[1] * 40])
    with pytest.raises(PolysemeError, match="each prompt needs one"):
        run(other, [[1]], 3)
    with pytest.raises(PolysemeError, match="has no source"):
        run(model, [[1]], 3, sources=[[1]])
    with pytest.raises(PolysemeError, match="cannot generate"):
        run(cases.tiny_model("bert"), [[1]], 3)
    with pytest.raises(PolysemeError, match="has no tokens"):
        run(model, [[]], 3)
    with pytest.raises(PolysemeError, match="less than 1"):
        run(model, [[1]], 0)
    assert run(model, [], 3) == []
    ngrams, prompts, _ = texts("ngram")
    assert (
        len(run(ngrams, [prompts[0], []], 60)) == 2
    )  # no places, so no end of them; words behind nothing are likely too
    with pytest.raises(PolysemeError, match="has no source"):
        run(ngrams, prompts[:1], 3, sources=[[1]])
    for token in (-1, 40):
        with pytest.raises(PolysemeError, match=f"the token id {token}, expected 0 to 39"):
            run(ngrams, [[5, token]], 3)
    endless, prompts, _ = texts("music")  # relative places: no end
    assert len(run(endless, [prompts[0]], 60)) == 1


@pytest.mark.parametrize(
    "numbers",
    [
        {"num_beams": 0},
        {"num_beams": 2, "num_return_sequences": 3},
        {"length_penalty": math.nan},
        {"length_offset": -1.0},
    ],
)
def test_beams_that_cannot_be(numbers):
    model, prompts, _ = texts("gpt2", 1)
    with pytest.raises(PolysemeError):
        beam_search(model, prompts, 3, **numbers)


@pytest.mark.parametrize(
    "numbers",
    [
        {"temperature": -1.0},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"repetition_penalty": 0.0},
        {"temperature": math.nan},
    ],
)
def test_samplings_that_cannot_be(numbers):
    with pytest.raises(PolysemeError, match=next(iter(numbers))):
        SamplingConfig(**numbers)
