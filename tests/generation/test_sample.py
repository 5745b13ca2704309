"""Draws follow the distribution and nothing else; streaming; the cache is as large as arithmetic says."""

import numpy as np
import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.generation.beam import beam_search
from polyseme.generation.config import GREEDY, SamplingConfig
from polyseme.generation.sample import generate_tokens, sample_tokens, stream_tokens
from polyseme.generation.session import is_seq2seq, start_session
from tests.support import cases
from tests.support import toy_ngram as toy


def chi_square(counts, shares):
    """In units of its own deviation, above its mean; about 0 ± 1 if the counts follow the shares."""
    expected = shares * counts.sum()
    used = expected > 5
    statistic = float(((counts - expected)[used] ** 2 / expected[used]).sum())
    degrees = int(used.sum()) - 1
    return (statistic - degrees) / np.sqrt(2 * degrees)


@pytest.mark.parametrize(
    "how", [SamplingConfig(seed=3), SamplingConfig(0.5, seed=3), SamplingConfig(1.5, 9, 0.9, seed=4)]
)
def test_frequencies_follow_the_distribution(how):
    """The copies of one prompt are many draws from what the model thinks comes next."""
    model = cases.tiny_model("gpt2", torch.float32)
    number = 4000
    with torch.inference_mode():
        scores = start_session(model, [[4, 5, 6]], None, 1, 4).scores
        exact = torch.linspace(0, 1 - 1e-6, 20_000, dtype=torch.float64)
        shares = torch.bincount(sample_tokens(scores.expand(len(exact), -1), how, exact), minlength=cases.VOCAB) / len(
            exact
        )
    found = generate_tokens(model, [[4, 5, 6]] * number, 2, how, sample_indices=range(number))
    counts = np.bincount([w.tokens[0] for w in found], minlength=cases.VOCAB)
    assert abs(chi_square(counts, shares.numpy())) < 4
    assert not counts[shares.numpy() == 0].any()
    # the second token is drawn anew: behind the same first one it differs from copy to copy
    first = counts.argmax()
    assert len({w.tokens[1] for w in found if w.tokens[0] == first}) > 2


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_follow_counts(temperature, tmp_path):
    """Of n-grams the distribution is known from elsewhere: a bigram that was seen, and the start of a sentence."""
    model = toy.estimate_toy(toy.random_sentences(0), 3, tmp_path)
    for prompt in ([toy.BOS], toy.random_sentences(0)[0][:2]):
        shares = toy.next_token_probs(model, np.array([[-1, *prompt][-2:]]))[0] ** (1 / temperature)
        found = generate_tokens(
            model, [prompt] * 4000, 1, SamplingConfig(temperature, seed=2), sample_indices=range(4000)
        )
        counts = np.bincount([w.tokens[0] for w in found], minlength=toy.SIZE)
        assert (
            abs(chi_square(counts, shares / shares.sum())) < 4 < chi_square(counts, np.roll(shares, 1) / shares.sum())
        )
        assert not counts[~toy.IS_PREDICTED].any()


def test_a_seed_is_a_text_whatever_the_batch():
    model = cases.tiny_model("gpt2")
    prompts = [row.tolist() for row in cases.sequences((5, 2, 7))]
    how = SamplingConfig(1.2, seed=11)
    alone = [generate_tokens(model, [p], 10, how, eos_token_ids={3})[0].tokens for p in prompts]
    among = generate_tokens(model, [prompts[1], prompts[2], prompts[0], prompts[1]], 10, how, eos_token_ids={3})
    assert [w.tokens for w in among] == [alone[1], alone[2], alone[0], alone[1]]
    copies = generate_tokens(model, [prompts[0]] * 3, 10, how, eos_token_ids={3}, sample_indices=[0, 1, 2])
    assert copies[0].tokens == alone[0] and len({w.tokens for w in copies}) == 3
    assert (
        generate_tokens(model, [prompts[0]], 10, SamplingConfig(1.2, seed=12), eos_token_ids={3})[0].tokens != alone[0]
    )
    assert generate_tokens(model, [prompts[0]], 10, SamplingConfig(0.0, seed=1)) == generate_tokens(
        model, [prompts[0]], 10, GREEDY
    )


def test_no_temperature_is_greedy_and_a_low_one_nearly():
    model = cases.tiny_model("gpt2")
    prompts = [row.tolist() for row in cases.sequences((5, 2, 7))]
    greedy = [w.tokens for w in generate_tokens(model, prompts, 8)]
    for how in (SamplingConfig(1e-3, seed=1), SamplingConfig(top_k=1, seed=1), SamplingConfig(top_p=1e-9, seed=1)):
        assert [w.tokens for w in generate_tokens(model, prompts, 8, how)] == greedy


def test_tokens_come_as_they_are_made():
    """Of a stream that is left off, no further token is made."""
    model = cases.tiny_model("gpt2")
    prompts = [row.tolist() for row in cases.sequences((5, 2))]
    whole = generate_tokens(model, prompts, 6)
    calls = []
    hook = model.trunk.register_forward_hook(lambda *_: calls.append(1))
    steps = stream_tokens(model, prompts, 6)
    for n in range(3):
        for sequence, token, score in next(steps):
            assert token == whole[sequence].tokens[n] and score <= 0
        assert len(calls) == n + 1
    steps.close()
    hook.remove()


@pytest.mark.parametrize("family", ["gpt2", "gpt", "t5", "transformer"])
def test_memory_is_what_arithmetic_says_and_is_written_in_place(family):
    model = cases.tiny_model(family, torch.float32)
    prompts = [[5, 6, 7], [8, 9, 1]]
    sources = [[4, 5, 6, 7], [2, 3]] if family in ("t5", "transformer") else None
    with torch.inference_mode():
        writing = start_session(model, prompts, sources, 2, 20)
        memory, width, layers = writing.memory, 24, 3
        kept = 2 * 20 + (2 * 4 if sources else 0)  # targets; sources, the longest of which has 4
        assert (
            sum(t.nbytes for pair in (*memory.states, *memory.cross_kv) for t in pair) == kept * layers * 2 * width * 4
        )
        places = [t.data_ptr() for pair in memory.states for t in pair]
        before = [t[:, :3].clone() for pair in memory.states for t in pair]
        for token in range(5):
            writing.advance(torch.tensor([token, token + 1]))
        assert [t.data_ptr() for pair in memory.states for t in pair] == places
        assert all(torch.equal(t[:, :3], old) for (t, old) in zip((t for p in memory.states for t in p), before))
        assert memory.lengths.tolist() == [8, 8]
        writing.advance(torch.tensor([4, 4]), [1, 1])  # one row twice: only the row that changes is copied
        first, second = memory.states[0][0][:2, :8]
        assert torch.equal(first, second)


def test_prompts_of_several_lengths_and_rows_that_move():
    """Taking rows in any order, more or fewer of them, is reading those texts."""
    for family in ("gpt2", "t5", "transformer", "seq2seq", "transformer_xl", "xlnet"):
        model = cases.tiny_model(family)
        sources = [[4, 5, 6, 7], [2, 3], [9]] if is_seq2seq(model) else None
        prompts = [[5, 6, 7], [8], [9, 1]]
        with torch.inference_mode():
            moving, afresh = (start_session(model, prompts, sources, 6, 20, use_cache=c) for c in (True, False))
            for tokens, chosen in (
                ([1, 2, 3], None),
                ([4, 5, 6, 7, 8, 9], [0, 0, 1, 1, 2, 2]),
                ([4, 5, 6, 7, 8, 9], [1, 0, 2, 2, 5, 5]),
                ([7, 8, 3, 1], [1, 1, 5, 4]),
                ([7, 8], [2, 3]),
            ):
                for each in (moving, afresh):
                    each.advance(torch.tensor(tokens), chosen)
                torch.testing.assert_close(moving.scores, afresh.scores, atol=1e-6, rtol=0)


def test_what_has_ended_does_not_change_what_goes_on(monkeypatch):
    """On a GPU rows that have ended stay for a while; a text must not depend on them."""
    from polyseme.generation.session import _StaticCacheSession

    model = cases.tiny_model("gpt2")
    prompts = [row.tolist() for row in cases.sequences((5, 2, 7, 3, 6))]
    how = SamplingConfig(1.5, repetition_penalty=2.0, seed=3)
    alone = [generate_tokens(model, [p], 12, how, eos_token_ids={3, 4, 5, 6})[0].tokens for p in prompts]
    assert len(set(map(len, alone))) > 1
    monkeypatch.setattr(_StaticCacheSession, "should_compact", lambda self, num_rows, num_active: False)
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2], [2, 4, 0, 1, 3], [4, 3, 1, 0, 2], [1, 0, 3, 2, 4]):
        among = generate_tokens(model, [prompts[i] for i in order], 12, how, eos_token_ids={3, 4, 5, 6})
        assert [w.tokens for w in among] == [alone[i] for i in order]


def test_each_sequence_may_have_a_limit_of_its_own():
    model = cases.tiny_model("gpt2")
    prompts = [row.tolist() for row in cases.sequences((5, 2, 7))]
    for each in (
        generate_tokens(model, prompts, [3, 9, 1]),
        [f.hypotheses[0] for f in beam_search(model, prompts, [3, 9, 1], 3)],
    ):
        assert [len(w.tokens) for w in each] == [3, 9, 1]
    alone = [beam_search(model, [p], limit, 3)[0].hypotheses[0].tokens for p, limit in zip(prompts, (3, 9, 1))]
    assert [f.hypotheses[0].tokens for f in beam_search(model, prompts, [3, 9, 1], 3)] == alone
    with pytest.raises(PolysemeError, match="less than 1"):
        generate_tokens(model, prompts, [3, 0, 1])
