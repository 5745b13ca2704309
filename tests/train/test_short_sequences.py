"""Shorter sequences in the first steps of a run, as in BERT's pre-training."""

import pytest

from polyseme.corpus.sampling import DataPosition
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.objectives.packing import SpecialIds
from polyseme.recipes import get_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.budget import plan_steps
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, ShortSequencesConfig
from polyseme.train.streams import open_streams
from tests.support.runs import STEPS, assert_same, prepare_text, pretrain_killed, tiny_recipe

SHORT = ShortSequencesConfig(max_len=12, fraction=0.67, batch_tokens=256)  # 6 of 9 steps


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_text(tmp_path_factory.mktemp("short"))


def open_stream(corpus, recipe, num_first_steps=0):
    special_ids = SpecialIds.from_tokenizer(Tokenizer.load(corpus / "tokenizer"))
    stream = open_streams(recipe, Corpus.open(corpus), special_ids)[0]
    stream.num_first_steps = num_first_steps
    return stream


def read_steps(stream, position, start_step, num_steps):
    steps = zip(range(num_steps), stream.steps(position, start_step), strict=False)
    return [(batches, next_position) for _, (batches, next_position) in steps]


def longest(batches):
    return max(max(batch.inputs.layout.lengths) for batch in batches)


def test_lengths_and_batches_change_at_the_switch(corpus):
    stream = open_stream(corpus, tiny_recipe("bert").replace(short_sequences=SHORT), 6)
    steps = read_steps(stream, DataPosition(), 0, STEPS)
    assert [longest(batches) <= 12 for batches, _ in steps] == [True] * 6 + [False] * 3
    assert [len(batches) for batches, _ in steps] == [1] * 6 + [2] * 3  # 256 tokens, then 512


def test_the_long_samples_are_those_of_a_run_without_short_ones(corpus):
    recipe = tiny_recipe("bert")
    whole = read_steps(open_stream(corpus, recipe), DataPosition(), 0, 3)
    stream = open_stream(corpus, recipe.replace(short_sequences=SHORT), 6)
    phased = read_steps(stream, DataPosition(), 0, 9)[6:]
    for (batches, position), (expected, expected_position) in zip(phased, whole, strict=True):
        assert position == expected_position
        assert [b.inputs.tokens.tolist() for b in batches] == [b.inputs.tokens.tolist() for b in expected]


@pytest.mark.parametrize("start", [2, 5, 6, 7])
def test_a_run_continues_at_any_step(corpus, start):
    stream = open_stream(corpus, tiny_recipe("bert").replace(short_sequences=SHORT), 6)
    steps = read_steps(stream, DataPosition(), 0, 9)
    continued = read_steps(stream, steps[start - 1][1], start, 9 - start)
    for (batches, position), (expected, expected_position) in zip(continued, steps[start:], strict=True):
        assert position == expected_position
        assert [b.inputs.tokens.tolist() for b in batches] == [b.inputs.tokens.tolist() for b in expected]


@pytest.mark.parametrize("kill_after", [4, 6, 8])
def test_a_killed_run_resumes_exactly_across_the_switch(corpus, tmp_path, kill_after):
    recipe = tiny_recipe("bert").replace(short_sequences=SHORT)
    pretrain(recipe, corpus, tmp_path / "whole")
    pretrain_killed(recipe, corpus, tmp_path / "killed", kill_after)
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_a_compiled_run_has_two_shapes(corpus):
    stream = open_stream(corpus, tiny_recipe("bert", compile=True).replace(short_sequences=SHORT), 6)
    steps = read_steps(stream, DataPosition(), 0, 9)
    shapes = [{(len(b.inputs.tokens), len(b.inputs.layout.cu_seqlens)) for b in batches} for batches, _ in steps]
    assert len(set.union(*shapes[:6])) == len(set.union(*shapes[6:])) == 1
    assert shapes[0] != shapes[-1]


@pytest.mark.slow
def test_a_compiled_run_resumes_exactly_across_the_switch(corpus, tmp_path):
    recipe = tiny_recipe("bert", compile=True).replace(short_sequences=SHORT)
    pretrain(recipe, corpus, tmp_path / "whole")
    pretrain_killed(recipe, corpus, tmp_path / "killed", kill_after=6)
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_a_budget_of_tokens_counts_both_lengths(corpus):
    recipe = tiny_recipe("bert").replace(short_sequences=SHORT, budget=BudgetConfig(tokens=40_000))
    stream = open_stream(corpus, recipe)
    num_steps = plan_steps(recipe, stream)
    stream.num_first_steps = SHORT.count_steps(num_steps)
    steps = read_steps(stream, DataPosition(), 0, num_steps)
    assert sum(b.num_tokens for batches, _ in steps for b in batches) == pytest.approx(40_000, rel=0.03)


@pytest.mark.parametrize("short", [SHORT, ShortSequencesConfig()])
@pytest.mark.parametrize("num_tokens", [1, 3_000, 9_000])
def test_a_budget_of_tokens_may_end_in_the_batch_warmup(corpus, short, num_tokens):
    recipe = tiny_recipe("bert").replace(
        short_sequences=short,
        budget=BudgetConfig(tokens=num_tokens),
        batch_tokens=2048,
        batch_warmup_steps=100,
    )
    stream = open_stream(corpus, recipe)
    num_steps = plan_steps(recipe, stream)
    stream.num_first_steps = short.count_steps(num_steps)
    counts = [sum(b.num_tokens for b in batches) for batches, _ in read_steps(stream, DataPosition(), 0, num_steps)]
    assert sum(counts[:-1]) <= 1.03 * num_tokens and sum(counts) >= 0.97 * num_tokens


def test_bert_has_the_lengths_of_its_paper():
    for name in ("bert-base", "bert-large", "bert-multilingual"):
        short = get_recipe(name).check().short_sequences
        assert (short.max_len, short.count_steps(1_000_000), short.batch_tokens) == (128, 900_000, 256 * 128)
    assert not get_recipe("spanbert-large").short_sequences.max_len


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"short_sequences": SHORT.replace(max_len=32)}, "max_len is 32, expected less than max_len 32"),
        ({"short_sequences": SHORT.replace(batch_tokens=300)}, "batch_tokens 300 is not a multiple"),
        ({"budget": BudgetConfig(minutes=1.0)}, "the budget is 60s, a part of which cannot have short sequences"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(corpus, tmp_path, changes, message):
    recipe = tiny_recipe("bert").replace(**{"short_sequences": SHORT} | changes)
    with pytest.raises(ConfigError, match=message):
        pretrain(recipe, corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_streams_have_no_short_sequences(corpus, tmp_path):
    recipe = tiny_recipe("rnn_lm").replace(short_sequences=SHORT)
    with pytest.raises(ConfigError, match="StreamingCausalLM reads one stream of text"):
        recipe.model_config(120)
