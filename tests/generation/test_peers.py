"""Greedy and beam outputs against `generate` of `transformers`, token for token, on tiny random weights."""

import itertools

import pytest
import torch

from polyseme.generation.beam import beam_search
from polyseme.generation.config import GREEDY, SamplingConfig
from polyseme.generation.sample import generate_tokens

transformers = pytest.importorskip("transformers")

PAD = 0


def peer(family):
    """Random weights large enough that texts differ and some end."""
    torch.manual_seed(3)
    if family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=41, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1,
            pad_token_id=PAD,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.T5Config(
            vocab_size=41, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=PAD,
            pad_token_id=PAD, eos_token_id=1, feed_forward_proj="relu" if family == "t5" else "gated-gelu",
            tie_word_embeddings=family == "t5",
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 if family == "gpt2" else 0.25))
    return model.double().eval()


@pytest.fixture(scope="module", params=["gpt2", "t5", "t5 v1.1"])
def both(request):
    """Their model, ours with the same weights, and texts of several lengths."""
    from polyseme.families import FAMILIES
    from polyseme.nn.model import ModelConfig
    from polyseme.weights.convert import from_published

    family = request.param
    theirs = peer(family)
    fam = FAMILIES[family.partition(" ")[0]]
    state = dict(theirs.state_dict())
    trunk = fam.from_hf_config(theirs.config.to_dict() | {"tensors": tuple(state)})
    spec = ModelConfig(fam.name, trunk, fam.pretraining_heads(trunk))
    mine = spec.build(0).double().eval()
    shapes = {name: t.shape for name, t in mine.state_dict().items()}
    mine.load_state_dict(from_published(fam, spec, shapes, state, "test"))
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(2, 41, (n,), generator=generator).tolist() for n in (3, 9, 1, 6, 6)]
    prompts, sources = prompts_of(theirs, rows)
    free = generate_tokens(
        mine, prompts, 12, GREEDY, sources
    )  # what ends a text, such that texts end at several lengths
    return theirs, mine, rows, sorted({1, free[0].tokens[3], free[1].tokens[6], free[2].tokens[-1]})


def asked(theirs, rows, eos, **how):
    """Their texts behind each prompt, one by one, cut at the end mark."""
    found = []
    for row in rows:
        tokens = torch.tensor([row])
        out = theirs.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12, eos_token_id=eos, **how
        )
        begin = 1 if theirs.config.is_encoder_decoder else len(row)
        for text in out[:, begin:].tolist():
            found.append(tuple(itertools.takewhile(lambda token: token not in eos, text)))
    return found


def prompts_of(theirs, rows):
    return ([[PAD]] * len(rows), rows) if theirs.config.is_encoder_decoder else (rows, None)


def test_greedy(both):
    theirs, mine, rows, eos = both
    prompts, sources = prompts_of(theirs, rows)
    found = generate_tokens(mine, prompts, 12, GREEDY, sources, eos)
    assert [w.tokens for w in found] == asked(theirs, rows, eos, do_sample=False, num_beams=1)


def test_greedy_with_a_penalty_on_repetition(both):
    theirs, mine, rows, eos = both
    prompts, sources = prompts_of(theirs, rows)
    found = generate_tokens(mine, prompts, 12, SamplingConfig(0.0, repetition_penalty=1.5), sources, eos)
    assert [w.tokens for w in found] == asked(theirs, rows, eos, do_sample=False, num_beams=1, repetition_penalty=1.5)


@pytest.mark.parametrize("width,penalty", [(2, 1.0), (4, 0.0), (3, 2.0), (5, -0.5)])
def test_beam(both, width, penalty):
    theirs, mine, rows, eos = both
    prompts, sources = prompts_of(theirs, rows)
    found = beam_search(mine, prompts, 12, width, penalty, width, sources, eos)
    expected = asked(
        theirs, rows, eos, do_sample=False, num_beams=width, length_penalty=penalty, num_return_sequences=width,
        early_stopping="never",
    )  # fmt: skip
    assert [text.tokens for f in found for text in f.hypotheses] == expected
    assert len({len(tokens) for tokens in expected}) > 1, "texts end at several lengths"
    if penalty <= 0:  # there the peer's usual way to stop is safe too
        again = asked(theirs, rows, eos, do_sample=False, num_beams=width, length_penalty=penalty)
        assert [f.hypotheses[0].tokens for f in found] == again


@pytest.mark.parametrize(
    "how", [SamplingConfig(0.7, 5), SamplingConfig(1.3, 0, 0.6), SamplingConfig(0.9, 12, 0.8), SamplingConfig(2.0)]
)
def test_what_may_be_drawn_is_what_they_leave(how):
    """The probabilities behind temperature, top-k and top-p are theirs."""
    from polyseme.generation.sample import sample_tokens

    scores = torch.randn(1, 41, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 2
    left = transformers.TemperatureLogitsWarper(how.temperature)(None, scores)
    if how.top_k:
        left = transformers.TopKLogitsWarper(how.top_k)(None, left)
    if how.top_p < 1:
        left = transformers.TopPLogitsWarper(how.top_p)(None, left)
    number = 200_000
    chances = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    tokens = torch.cat([sample_tokens(scores.expand(len(part), -1), how, part) for part in chances.split(20_000)])
    shares = torch.bincount(tokens, minlength=41) / number
    torch.testing.assert_close(shares.double(), left.softmax(-1)[0], atol=2 / number, rtol=0)
