"""Buffers that stay from call to call; without a GPU the steps over them run plainly, with one they are replayed."""

import pytest
import torch

from polyseme.generation import cuda_graph as stage
from polyseme.generation import session as writing
from polyseme.generation.beam import beam
from polyseme.generation.sample import GREEDY, Sampling, sample, stream
from tests.contracts import cases

FAMILIES = ["gpt", "gpt2", "t5", "transformer"]
EOS = {3, 7, 11, 30, 41, 50}


def texts(family, seed=0):
    prompts = [row.tolist() for row in cases.sequences((5, 2, 7, 2, 3), seed)]
    sources = [row.tolist() for row in cases.sequences((4, 9, 4, 6, 1), seed + 1)]
    return prompts, sources if family in ("t5", "transformer") else None


@pytest.fixture
def staged(monkeypatch):
    """As on a GPU, but for the recording itself."""
    monkeypatch.setattr(writing, "records", lambda device: True)
    monkeypatch.setattr(stage, "MOST", 0)
    monkeypatch.setattr(stage, "STEP", 16)
    stage._STAGES.clear()


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_the_same_on_a_stage(family, staged):
    model = cases.tiny_model(family)
    for seed in (0, 3, 5):  # other texts in the same buffers
        prompts, sources = texts(family, seed)
        for how in (GREEDY, Sampling(1.3, seed=2)):
            found, plain = (sample(model, prompts, 12, how, sources, EOS, cached=c) for c in (True, False))
            assert [w.tokens for w in found] == [w.tokens for w in plain]
        found, plain = (beam(model, prompts, 8, 3, 1.0, 2, sources, EOS, cached=c) for c in (True, False))
        assert [t.tokens for f in found for t in f.texts] == [t.tokens for f in plain for t in f.texts]
    assert len(stage._STAGES) == 1


def test_a_stage_stays_while_it_fits(staged):
    model = cases.tiny_model("gpt2")
    prompts, _ = texts("gpt2")
    sample(model, prompts, 8)
    first = stage._STAGES[model]
    sample(model, prompts[:2], 6)
    assert stage._STAGES[model] is first and first.memory.columns == 16
    sample(model, prompts, 20)
    second = stage._STAGES[model]
    assert second is not first and second.memory.columns == 32, "never more than the model has places for"
    assert sample(model, [[1, 2]], 30)[0].tokens and stage._STAGES[model] is second


def test_two_texts_at_once_do_not_meet(staged):
    model = cases.tiny_model("gpt2")
    prompts, _ = texts("gpt2")
    alone = [sample(model, [p], 8)[0].tokens for p in prompts[:2]]
    both = [stream(model, [p], 8) for p in prompts[:2]]
    found = [[], []]
    for _ in range(8):
        for i, steps in enumerate(both):
            found[i] += [token for _, token, _ in next(steps)]
    assert [tuple(f) for f in found] == alone


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_replayed_steps_give_the_same_texts(family, dtype):
    """Against reading everything anew; in bf16 the scores are compared, for near ties may fall otherwise."""
    plain = cases.tiny_model(family, torch.float32).cuda()
    model = plain.to(dtype)
    for seed in (0, 3, 5):
        prompts, sources = texts(family, seed)
        with torch.inference_mode():
            kept, afresh = (writing.begin(model, prompts, sources, 5, 20, cached=c) for c in (True, False))
            for n in range(8):
                tokens = torch.tensor([n, 3, 5, 9, n + 1], device="cuda")
                chosen = [1, 0, 2, 3, 4] if n == 4 and sources is None else None
                for each in (kept, afresh):
                    each.go(tokens, chosen)
                close = 1e-4 if dtype == torch.float32 else 0.25
                torch.testing.assert_close(kept.scores, afresh.scores, atol=close, rtol=0.05)
        del kept
        if dtype == torch.float32:
            found, again = (sample(model, prompts, 12, GREEDY, sources, EOS, cached=c) for c in (True, False))
            assert [w.tokens for w in found] == [w.tokens for w in again]
            found, again = (beam(model, prompts, 8, 3, 1.0, 2, sources, EOS, cached=c) for c in (True, False))
            assert [t.tokens for f in found for t in f.texts] == [t.tokens for f in again for t in f.texts]
    assert stage._STAGES[model].recordings
