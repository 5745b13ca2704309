"""The CRF against all paths, one by one."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from polyseme.nn.heads.crf import CRF, FORBIDDEN_SCORE, ChainLayout, CRFConfig
from polyseme.nn.heads.tag_schemes import allowed_transitions, extract_entities, first_invalid, repair_tags

IOB = ("O", "B-X", "I-X", "B-Y", "I-Y")
LENGTHS = (3, 1, 0, 5, 3, 2)


def made(labels, constrained, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    crf = CRF(CRFConfig(constrained), labels).double()
    with torch.no_grad():
        for p in crf.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * scale)
    scores = torch.randn(sum(LENGTHS), len(labels), generator=generator, dtype=torch.float64) * scale
    return crf, scores


def score_of(crf, scores, path):
    """One path's score by hand; None if it takes a barred step."""
    steps, first, last = crf.transitions.detach(), crf.start_transitions.detach(), crf.end_transitions.detach()
    legal = allowed_transitions(IOB) if crf.config.constrained else np.ones((len(first) + 1,) * 2, dtype=bool)
    around = len(first)
    if not (legal[around, path[0]] and legal[path[-1], around] and all(legal[s] for s in pairwise(path))):
        return None
    total = first[path[0]] + last[path[-1]] + sum(scores[i, tag] for i, tag in enumerate(path))
    return float(total + sum(steps[a, b] for a, b in pairwise(path)))


def by_hand(crf, scores):
    """(log partition, best path, marginals) over every path of one sentence."""
    tags = len(crf.start_transitions)
    known = {path: score_of(crf, scores, path) for path in product(range(tags), repeat=len(scores))}
    known = {path: value for path, value in known.items() if value is not None}
    whole = np.logaddexp.reduce(list(known.values()))
    shares = np.zeros((len(scores), tags))
    for path, value in known.items():
        shares[np.arange(len(path)), path] += np.exp(value - whole)
    return whole, max(known, key=known.get), shares


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_partition_best_path_and_marginals_of_all_paths(constrained, scale):
    crf, scores = made(IOB, constrained, scale=scale)
    chains = ChainLayout.from_lengths(LENGTHS)
    with torch.no_grad():
        whole, best, shares = (
            crf.log_partition(scores, chains),
            crf.decode(scores, chains),
            crf.log_marginals(scores, chains),
        )
    sentences = [part for part in scores.split(LENGTHS) if len(part)]
    expected = [by_hand(crf, part) for part in sentences]
    rank = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    np.testing.assert_allclose(whole, [expected[i][0] for i in rank], atol=1e-10)
    assert best.tolist() == [tag for _, path, _ in expected for tag in path]
    np.testing.assert_allclose(shares.exp(), np.concatenate([e[2] for e in expected]), atol=1e-10)


@pytest.mark.parametrize("constrained", [False, True])
def test_loss_and_its_gradient(constrained):
    crf, scores = made(IOB, constrained)
    chains = ChainLayout.from_lengths(LENGTHS)
    values = torch.tensor([0, 1, 2, 3, 1, 2, 2, 0, 3, 3, 4, 0, -100, 1])  # the last sentence is not known
    expected = 0.0
    for part, path in zip(scores.split(LENGTHS)[:-1], values.split(LENGTHS)[:-1]):
        if len(part):
            expected += by_hand(crf, part)[0] - score_of(crf, part, tuple(path.tolist()))
    assert crf.loss(scores, chains, values, -100).item() == pytest.approx(expected, abs=1e-10)
    scores.requires_grad_()
    inputs = (scores, crf.transitions, crf.start_transitions, crf.end_transitions)
    assert torch.autograd.gradcheck(lambda *_: crf.loss(scores, chains, values, -100), inputs)
    crf.loss(scores, chains, values, -100).backward()
    assert (scores.grad[-2:] == 0).all()
    true = torch.nn.functional.one_hot(values[:12], 5)
    shares = crf.log_marginals(scores, chains).exp().detach()[:12]
    torch.testing.assert_close(scores.grad[:12], shares - true)  # what the paper's gradient is


def test_no_answer_takes_a_barred_step():
    crf, scores = made(IOB, True, scale=50.0)
    with torch.no_grad():
        crf.transitions[0, 2] = 60.0  # I-X behind O is what it would like best
    for part in crf.decode(scores, ChainLayout.from_lengths(LENGTHS)).split(LENGTHS):
        assert first_invalid([IOB[i] for i in part]) is None


def test_together_equals_alone_and_nothing_is_zero():
    crf, scores = made(IOB, True)
    together = crf.log_marginals(scores, ChainLayout.from_lengths(LENGTHS)).split(LENGTHS)
    for part, found in zip(scores.split(LENGTHS), together):
        torch.testing.assert_close(
            crf.log_marginals(part, ChainLayout.from_lengths([len(part)])), found, atol=1e-12, rtol=0
        )
    nothing, none = ChainLayout.from_lengths([0, 0]), torch.zeros(0, dtype=torch.long)
    assert crf.loss(scores[:0], nothing, none, -100).item() == 0
    assert len(crf.decode(scores[:0], nothing)) == len(crf.log_marginals(scores[:0], nothing)) == 0


def test_in_single_precision_barred_steps_have_no_share():
    crf, scores = made(IOB, True)
    shares = crf.float().log_marginals(scores.float(), ChainLayout.from_lengths(LENGTHS)).exp()
    assert (
        shares[0, 2] == shares[0, 4] == 0 and crf.constrained_transitions(scores.float())[0][0, 2] < FORBIDDEN_SCORE / 2
    )


@pytest.mark.parametrize(
    "tags,place",
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
def test_what_may_follow_what(tags, place):
    assert first_invalid(tags.split()) == place


def test_mending_keeps_the_entities():
    files = {
        "IOB2": (["O I-X I-X O B-Y", "B-X I-Y", "B-X I-X"], ["O B-X I-X O B-Y", "B-X B-Y", "B-X I-X"]),
        "IOBES": (["B-X E-X", "B-X O I-Y E-Y", "S-X"], ["B-X E-X", "S-X O B-Y E-Y", "S-X"]),
        "BILOU": (["B-X L-X U-Y", "L-X"], ["B-X L-X U-Y", "U-X"]),
        "IOB1": (["I-X I-X B-X O I-Y"], ["I-X I-X B-X O I-Y"]),
        "words": (["NOUN VERB I-X"], ["NOUN VERB I-X"]),
    }
    for before, after in files.values():
        found = repair_tags([tags.split() for tags in before])
        assert [" ".join(tags) for tags in found] == after
        assert [extract_entities(tags.split()) for tags in before] == [extract_entities(tags) for tags in found]
