"""CRF compared with an enumeration of all tag sequences; tag schemes."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from polyseme.nn.heads.crf import CRF, FORBIDDEN_SCORE, ChainLayout, CRFConfig
from polyseme.nn.heads.tag_schemes import allowed_transitions, extract_entities, first_invalid, repair_tags

IOB = ("O", "B-X", "I-X", "B-Y", "I-Y")
LENGTHS = (3, 1, 0, 5, 3, 2)


def make_crf(labels, constrained, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    crf = CRF(CRFConfig(constrained), labels).double()
    with torch.no_grad():
        for p in crf.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * scale)
    emissions = torch.randn(sum(LENGTHS), len(labels), generator=generator, dtype=torch.float64) * scale
    return crf, emissions


def path_score(crf, emissions, path):
    """Return the score of one tag sequence, or None if it has a forbidden transition."""
    transitions, start, end = crf.transitions.detach(), crf.start_transitions.detach(), crf.end_transitions.detach()
    allowed = allowed_transitions(IOB) if crf.config.constrained else np.ones((len(start) + 1,) * 2, dtype=bool)
    boundary = len(start)
    if not (allowed[boundary, path[0]] and allowed[path[-1], boundary] and all(allowed[s] for s in pairwise(path))):
        return None
    total = start[path[0]] + end[path[-1]] + sum(emissions[i, tag] for i, tag in enumerate(path))
    return float(total + sum(transitions[a, b] for a, b in pairwise(path)))


def enumerate_paths(crf, emissions):
    """Return (log partition, best sequence, marginals) over all tag sequences of one sentence."""
    num_tags = len(crf.start_transitions)
    path_scores = {path: path_score(crf, emissions, path) for path in product(range(num_tags), repeat=len(emissions))}
    path_scores = {path: score for path, score in path_scores.items() if score is not None}
    log_partition = np.logaddexp.reduce(list(path_scores.values()))
    marginals = np.zeros((len(emissions), num_tags))
    for path, score in path_scores.items():
        marginals[np.arange(len(path)), path] += np.exp(score - log_partition)
    return log_partition, max(path_scores, key=path_scores.get), marginals


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_partition_best_path_and_marginals_match_enumeration(constrained, scale):
    crf, emissions = make_crf(IOB, constrained, scale=scale)
    layout = ChainLayout.from_lengths(LENGTHS)
    with torch.no_grad():
        log_partition, best_tags, log_marginals = (
            crf.log_partition(emissions, layout),
            crf.decode(emissions, layout),
            crf.log_marginals(emissions, layout),
        )
    sentences = [sentence for sentence in emissions.split(LENGTHS) if len(sentence)]
    expected = [enumerate_paths(crf, sentence) for sentence in sentences]
    rank = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    np.testing.assert_allclose(log_partition, [expected[i][0] for i in rank], atol=1e-10)
    assert best_tags.tolist() == [tag for _, path, _ in expected for tag in path]
    np.testing.assert_allclose(log_marginals.exp(), np.concatenate([e[2] for e in expected]), atol=1e-10)


@pytest.mark.parametrize("constrained", [False, True])
def test_loss_and_gradient_match_enumeration(constrained):
    crf, emissions = make_crf(IOB, constrained)
    layout = ChainLayout.from_lengths(LENGTHS)
    labels = torch.tensor([0, 1, 2, 3, 1, 2, 2, 0, 3, 3, 4, 0, -100, 1])  # the last sentence is ignored
    expected = 0.0
    for sentence, tags in zip(emissions.split(LENGTHS)[:-1], labels.split(LENGTHS)[:-1]):
        if len(sentence):
            expected += enumerate_paths(crf, sentence)[0] - path_score(crf, sentence, tuple(tags.tolist()))
    assert crf.loss(emissions, layout, labels, -100).item() == pytest.approx(expected, abs=1e-10)
    emissions.requires_grad_()
    inputs = (emissions, crf.transitions, crf.start_transitions, crf.end_transitions)
    assert torch.autograd.gradcheck(lambda *_: crf.loss(emissions, layout, labels, -100), inputs)
    crf.loss(emissions, layout, labels, -100).backward()
    assert (emissions.grad[-2:] == 0).all()
    one_hot_labels = torch.nn.functional.one_hot(labels[:12], 5)
    marginals = crf.log_marginals(emissions, layout).exp().detach()[:12]
    torch.testing.assert_close(emissions.grad[:12], marginals - one_hot_labels)


def test_decoding_uses_no_forbidden_transition():
    crf, emissions = make_crf(IOB, True, scale=50.0)
    with torch.no_grad():
        crf.transitions[0, 2] = 60.0  # prefers I-X after O
    for tags in crf.decode(emissions, ChainLayout.from_lengths(LENGTHS)).split(LENGTHS):
        assert first_invalid([IOB[i] for i in tags]) is None


def test_batched_matches_single_and_empty_has_zero_loss():
    crf, emissions = make_crf(IOB, True)
    batched = crf.log_marginals(emissions, ChainLayout.from_lengths(LENGTHS)).split(LENGTHS)
    for sentence, actual in zip(emissions.split(LENGTHS), batched):
        torch.testing.assert_close(
            crf.log_marginals(sentence, ChainLayout.from_lengths([len(sentence)])), actual, atol=1e-12, rtol=0
        )
    empty_layout, no_labels = ChainLayout.from_lengths([0, 0]), torch.zeros(0, dtype=torch.long)
    assert crf.loss(emissions[:0], empty_layout, no_labels, -100).item() == 0
    assert len(crf.decode(emissions[:0], empty_layout)) == len(crf.log_marginals(emissions[:0], empty_layout)) == 0


def test_forbidden_transitions_have_zero_probability_in_float32():
    crf, emissions = make_crf(IOB, True)
    marginals = crf.float().log_marginals(emissions.float(), ChainLayout.from_lengths(LENGTHS)).exp()
    assert (
        marginals[0, 2] == marginals[0, 4] == 0
        and crf.constrained_transitions(emissions.float())[0][0, 2] < FORBIDDEN_SCORE / 2
    )


@pytest.mark.parametrize(
    "tags,expected",
    [
        ("O B-X I-X I-X O", None),
        ("I-X O", 0),
        ("O B-X I-Y", 2),
        ("O I-X", 1),
        ("B-X B-X I-X", None),
        ("S-X B-Y E-Y", None),
        ("B-Y E-Y B-X", 3),
        ("B-X S-X", 1),
        ("B-X L-X U-X", None),
        ("NOUN VERB I-X", None),
    ],
)
def test_first_invalid_tag(tags, expected):
    assert first_invalid(tags.split()) == expected


def test_repair_preserves_entities():
    cases = {
        "IOB2": (["O I-X I-X O B-Y", "B-X I-Y", "B-X I-X"], ["O B-X I-X O B-Y", "B-X B-Y", "B-X I-X"]),
        "IOBES": (["B-X E-X", "B-X O I-Y E-Y", "S-X"], ["B-X E-X", "S-X O B-Y E-Y", "S-X"]),
        "BILOU": (["B-X L-X U-Y", "L-X"], ["B-X L-X U-Y", "U-X"]),
        "IOB1": (["I-X I-X B-X O I-Y"], ["I-X I-X B-X O I-Y"]),
        "words": (["NOUN VERB I-X"], ["NOUN VERB I-X"]),
    }
    for before, after in cases.values():
        repaired = repair_tags([tags.split() for tags in before])
        assert [" ".join(tags) for tags in repaired] == after
        assert [extract_entities(tags.split()) for tags in before] == [extract_entities(tags) for tags in repaired]
