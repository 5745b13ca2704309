"""Buffers that stay from call to call; without a GPU the steps over them run plainly, with one they are replayed."""

import pytest
import torch

from polyseme.generation import cuda_graph as stage
from polyseme.generation import session as writing
from polyseme.generation.beam import beam_search
from polyseme.generation.config import GREEDY, SamplingConfig
from polyseme.generation.sample import generate_tokens, stream_tokens
from tests.support import cases

FAMILIES = ["gpt", "gpt2", "t5", "transformer"]
EOS = {3, 7, 11, 30, 41, 50}


def texts(family, seed=0):
    prompts = [row.tolist() for row in cases.sequences((5, 2, 7, 2, 3), seed)]
    sources = [row.tolist() for row in cases.sequences((4, 9, 4, 6, 1), seed + 1)]
    return prompts, sources if family in ("t5", "transformer") else None


@pytest.fixture
def staged(monkeypatch):
    """As on a GPU, but for the recording itself."""
    monkeypatch.setattr(writing, "uses_cuda_graphs", lambda device: True)
    monkeypatch.setattr(stage, "MAX_GRAPHS", 0)
    monkeypatch.setattr(stage, "CAPACITY_STEP", 16)
    stage._DECODERS.clear()


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_the_same_on_a_stage(family, staged):
    model = cases.tiny_model(family)
    for seed in (0, 3):  # other texts in the same buffers
        prompts, sources = texts(family, seed)
        for how in (GREEDY, SamplingConfig(1.3, seed=2)):
            found, plain = (generate_tokens(model, prompts, 12, how, sources, EOS, use_cache=c) for c in (True, False))
            assert [w.tokens for w in found] == [w.tokens for w in plain]
        found, plain = (beam_search(model, prompts, 8, 3, 1.0, 2, sources, EOS, use_cache=c) for c in (True, False))
        assert [t.tokens for f in found for t in f.hypotheses] == [t.tokens for f in plain for t in f.hypotheses]
    assert len(stage._DECODERS) == 1


def test_a_stage_stays_while_it_fits(staged):
    model = cases.tiny_model("gpt2")
    prompts, _ = texts("gpt2")
    generate_tokens(model, prompts, 8)
    first = stage._DECODERS[model]
    generate_tokens(model, prompts[:2], 6)
    assert stage._DECODERS[model] is first and first.memory.capacity == 16
    generate_tokens(model, prompts, 20)
    second = stage._DECODERS[model]
    assert second is not first and second.memory.capacity == 32, "never more than the model has places for"
    assert generate_tokens(model, [[1, 2]], 30)[0].tokens and stage._DECODERS[model] is second


def test_two_texts_at_once_do_not_meet(staged):
    model = cases.tiny_model("gpt2")
    prompts, _ = texts("gpt2")
    alone = [generate_tokens(model, [p], 8)[0].tokens for p in prompts[:2]]
    both = [stream_tokens(model, [p], 8) for p in prompts[:2]]
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
            kept, afresh = (writing.start_session(model, prompts, sources, 5, 20, use_cache=c) for c in (True, False))
            for n in range(8):
                tokens = torch.tensor([n, 3, 5, 9, n + 1], device="cuda")
                chosen = [1, 0, 2, 3, 4] if n == 4 and sources is None else None
                for each in (kept, afresh):
                    each.advance(tokens, chosen)
                close = 1e-4 if dtype == torch.float32 else 0.25
                torch.testing.assert_close(kept.scores, afresh.scores, atol=close, rtol=0.05)
        del kept
        if dtype == torch.float32:
            found, again = (
                generate_tokens(model, prompts, 12, GREEDY, sources, EOS, use_cache=c) for c in (True, False)
            )
            assert [w.tokens for w in found] == [w.tokens for w in again]
            found, again = (beam_search(model, prompts, 8, 3, 1.0, 2, sources, EOS, use_cache=c) for c in (True, False))
            assert [t.tokens for f in found for t in f.hypotheses] == [t.tokens for f in again for t in f.hypotheses]
    assert stage._DECODERS[model].graphs.graphs
