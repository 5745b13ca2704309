"""Continuous batching: requests join and leave a running batch; what they get is what they get alone."""

import asyncio
from collections import deque

import pytest

from polyseme.errors import DataError
from polyseme.generation.config import GenerationConfig
from polyseme.generation.continuous import ContinuousBatch
from polyseme.serve.api.responses import GeneratedResult, TokenEvent
from polyseme.serve.batching.continuous import ContinuousRequests
from polyseme.serve.batching.fixed import FixedRequests
from polyseme.serve.batching.generation import TextGeneration
from polyseme.serve.batching.scheduler import GenerationScheduler

PROMPT = "The old cat"
OPTIONS = [
    {},
    {"do_sample": True, "temperature": 0.8, "seed": 3},
    {"do_sample": True, "temperature": 1.5, "top_k": 20, "top_p": 0.9, "seed": 1, "num_return_sequences": 3},
    {"repetition_penalty": 1.5},
    {"do_sample": True, "top_p": 0.7, "seed": 9},
]


class InlineLoop:
    """An event loop that calls at once."""

    def is_closed(self):
        return False

    def call_soon_threadsafe(self, function):
        function()


def start(model, texts=(PROMPT,), stop=(), num_top_tokens=0, **options):
    config = GenerationConfig(**{"max_new_tokens": 8, **options})
    generation = TextGeneration(model._text_generator, texts, config, stop=stop, num_top_tokens=num_top_tokens)
    generation.loop, generation.is_streamed, generation.keeps_events = InlineLoop(), True, num_top_tokens > 0
    return generation


def events_of(generation):
    events = []
    while not generation.events.empty():
        events.append(generation.events.get_nowait())
    return events


def results_of(generation):
    return [event for event in events_of(generation) if isinstance(event, GeneratedResult)]


def run_all(scheduler, queue, arrivals=()):
    """Run the steps of a scheduler; `arrivals` are the generations that arrive before each step."""
    arrivals, sizes = deque(arrivals), []
    while queue or scheduler.batches or arrivals:
        queue.extend(arrivals.popleft() if arrivals else ())
        scheduler.admit(queue)
        sizes.append(scheduler.num_generations)
        scheduler.step()
    return sizes


@pytest.mark.parametrize("name", ["gpt2", "ngram", "t5"])
def test_requests_that_join_get_what_they_get_alone(models, name):
    model = models[name]
    options = [{**each, "max_new_tokens": 4 + 2 * i} for i, each in enumerate(OPTIONS)] * 2
    generations = [start(model, [PROMPT, f"The dog {i}"], **each) for i, each in enumerate(options)]
    sizes = run_all(GenerationScheduler("test", 1 << 14), deque(), [[each] for each in generations])
    assert max(sizes) > 3
    for i, (generation, each) in enumerate(zip(generations, options)):
        expected = [t for texts in model.generate([PROMPT, f"The dog {i}"], **each) for t in texts]
        results = results_of(generation)
        assert [tuple(result.tokens) for result in results] == [text.tokens for text in expected]
        assert [result.text for result in results] == [text.text for text in expected]
        assert [result.score for result in results] == pytest.approx([text.score for text in expected], abs=1e-5)


def test_all_requests_share_one_batch_and_rows_are_reused(models):
    generations = [start(models["gpt2"], max_new_tokens=20 if i == 0 else 3, seed=i, do_sample=True) for i in range(6)]
    scheduler, num_rows = GenerationScheduler("test", 2 * 64), []
    queue = deque(generations)
    while queue or scheduler.batches:
        scheduler.admit(queue)
        scheduler.step()
        num_rows += [len(batch.batch.rows) for batch in scheduler.batches]
        assert len(scheduler.batches) <= 1
    assert max(num_rows) == 2 and len(num_rows) <= 20, "short texts take turns in the second row"
    assert all(len(results_of(each)) == 1 for each in generations)


def test_a_request_with_more_texts_than_rows_gets_them_one_by_one(models):
    texts = [f"The cat {i}" for i in range(7)]
    first, second = start(models["gpt2"], texts, max_new_tokens=5), start(models["gpt2"], max_new_tokens=5)
    scheduler, queue = GenerationScheduler("test", 3 * 64), deque([first, second])
    scheduler.admit(queue)
    assert list(queue) == [second]
    run_all(scheduler, queue)
    expected = [text for (text,) in models["gpt2"].generate(texts, max_new_tokens=5)]
    assert [result.text for result in results_of(first)] == [text.text for text in expected]
    assert len(results_of(second)) == 1


def test_a_cancelled_request_frees_its_rows_at_once(models):
    long, other = start(models["gpt2"], [PROMPT] * 3, max_new_tokens=40), start(models["gpt2"], max_new_tokens=6)
    scheduler = GenerationScheduler("test", 1 << 14)
    scheduler.admit(deque([long, other]))
    scheduler.step()
    (requests,) = scheduler.batches
    assert len(requests.batch.rows) == 4
    long.cancel()
    scheduler.step()
    assert len(requests.batch.rows) == 1 and requests.members == [other]
    run_all(scheduler, deque())
    assert results_of(other)[0].text == models["gpt2"].generate(PROMPT, max_new_tokens=6)[0].text
    assert not results_of(long)


def test_a_failing_request_does_not_harm_others(models, monkeypatch):
    good, bad, late = (start(models["gpt2"], [text], max_new_tokens=6) for text in ("The dog", "The cat", PROMPT))
    join = ContinuousBatch.join

    def failing_join(batch, requests):
        if any(request.prompt == bad.prompt_ids[0] for request in requests):
            raise DataError("no cats")
        return join(batch, requests)

    monkeypatch.setattr(ContinuousBatch, "join", failing_join)
    broken = start(models["gpt2"], ["The river"], max_new_tokens=6)
    broken.sequences[0].decoder.push = lambda token: 1 / 0
    run_all(GenerationScheduler("test", 1 << 14), deque(), [[good, bad, broken], [], [late]])
    for generation, text in ((good, "The dog"), (late, PROMPT)):
        assert results_of(generation)[0].text == models["gpt2"].generate(text, max_new_tokens=6)[0].text
    (error, end), (division, _) = events_of(bad), events_of(broken)
    assert isinstance(error, DataError) and end is None and isinstance(division, ZeroDivisionError)


def test_without_memory_for_more_rows_a_request_waits(models, monkeypatch):
    running, late = start(models["gpt2"], max_new_tokens=6), start(models["gpt2"], ["The dog"], max_new_tokens=4)
    join = ContinuousBatch.join

    def small_join(batch, requests):
        if batch.rows:
            raise MemoryError
        return join(batch, requests)

    monkeypatch.setattr(ContinuousBatch, "join", small_join)
    run_all(GenerationScheduler("test", 1 << 14), deque(), [[running], [late]])
    assert results_of(running)[0].text == models["gpt2"].generate(PROMPT, max_new_tokens=6)[0].text
    assert results_of(late)[0].text == models["gpt2"].generate("The dog", max_new_tokens=4)[0].text


def test_a_failed_step_reaches_all_and_the_next_request_works(models, monkeypatch):
    first, second = start(models["gpt2"]), start(models["gpt2"])
    scheduler = GenerationScheduler("test", 1 << 14)
    with monkeypatch.context() as patch:
        patch.setattr(ContinuousBatch, "sample", lambda batch: 1 / 0)
        run_all(scheduler, deque([first]))
    assert isinstance(events_of(first)[0], ZeroDivisionError) and not scheduler.batches
    run_all(scheduler, deque([second]))
    assert len(results_of(second)) == 1


def test_an_error_in_a_fixed_batch_reaches_its_own_request(models, monkeypatch):
    good, bad = start(models["t5"], max_new_tokens=4), start(models["t5"], ["The dog"], max_new_tokens=4)
    run = FixedRequests._run

    def failing_run(requests):
        if bad in requests.members:
            raise DataError("no dogs")
        yield from run(requests)

    monkeypatch.setattr(FixedRequests, "_run", failing_run)
    sizes = run_all(GenerationScheduler("test", 1 << 14), deque([good, bad]))
    assert sizes[:2] == [2, 2] and len(results_of(good)) == 1 and isinstance(events_of(bad)[0], DataError)


def test_stop_strings_and_events_of_requests_in_one_batch(models):
    whole = models["gpt2"].generate(PROMPT, max_new_tokens=12)[0].text
    stop = whole[5:7]
    stopped, plain = start(models["gpt2"], stop=[stop], max_new_tokens=12), start(models["gpt2"], max_new_tokens=12)
    tops = start(models["gpt2"], [PROMPT, "The dog"], num_top_tokens=2, max_new_tokens=5)
    run_all(GenerationScheduler("test", 1 << 14), deque(), [[plain], [stopped, tops]])
    *_, result, end = events_of(stopped)
    assert result.text == whole[: whole.index(stop)] and result.finish_reason == "stop" and end is None
    *tokens, result, end = events_of(plain)
    assert "".join(event.text for event in tokens) == result.text == whole
    assert [event.token_id for event in tokens][: len(result.tokens)] == result.tokens
    *tokens, first, second, end = events_of(tops)
    assert all(isinstance(event, TokenEvent) and len(event.top_tokens) == 2 for event in tokens)
    assert [event.index for event in tokens[:4]] == [0, 1, 0, 1], "a stream has the tokens of each step in order"
    assert all(event.top_tokens[0].log_prob == pytest.approx(event.log_prob, abs=1e-6) for event in tokens)
    assert first.token_events and second.token_events and end is None


def test_events_reach_the_loop_of_the_request(models):
    async def stream():
        generation = start(models["gpt2"], max_new_tokens=4)
        generation.loop = asyncio.get_running_loop()
        requests = ContinuousRequests(generation, 1 << 14)
        while await asyncio.to_thread(requests.step):
            pass
        return [await asyncio.wait_for(generation.events.get(), 5) for _ in range(len(generation.sequences[0].events))]

    assert all(isinstance(event, TokenEvent) for event in asyncio.run(stream()))
