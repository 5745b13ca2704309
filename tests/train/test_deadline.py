"""Deadlines: the steps that fit into the minutes of a run."""

import math

import pytest

from polyseme.objectives.masked_lm import MaskedLM
from polyseme.train.budget import Deadline, Overhead
from polyseme.train.streams import BatchStream
from tests.support.corpora import BERT, random_corpus


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr("polyseme.train.budget.time.perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize("each,total", [(1.0, 100), (1.015, 100), (0.97, 100), (2.0, 50), (0.5, 200), (30.0, 10)])
def test_a_deadline_counts_the_steps_that_fit(each, total, clock):
    """A hundred steps of a second, checked after ten: a speed that nearly fits changes nothing."""
    deadline = Deadline(end_time=100.0, start_step=0, total_steps=200, is_calibrated=True)
    assert not deadline.should_check(9) and deadline.should_check(10)
    clock[0] = 10 * each
    assert deadline.replan_steps(10, 100) == total
    assert not deadline.should_check(14) and deadline.should_check(20)


def test_the_plan_does_not_follow_every_change_of_speed(clock):
    """Ten steps take 10 s and 40 s in turn, 25 s in the mean: plans stay close to 400 steps."""
    deadline, plans, total = Deadline(1000.0, 0, 400, is_calibrated=True), [], 400
    for check in range(1, 36):
        clock[0] += 10.0 if check % 2 else 40.0
        plans.append(total := deadline.replan_steps(10 * check, total))
    assert all(360 <= plan <= 440 for plan in plans[10:])


def test_validating_and_saving_are_no_part_of_the_speed(clock):
    """Ten steps of a second and 30 s of validation: later steps take a second each, and validation its own time."""
    deadline = Deadline(200.0, 0, 200, {"validate": Overhead(50, steps=5.0)}, is_calibrated=True)
    clock[0] = 4.0
    with deadline.measure("validate"):
        clock[0] += 30.0
    clock[0] += 6.0
    assert deadline.replan_steps(10, 300) == 10 + int((160 - 30) / (1 + 30 / 50))
    assert not Deadline(math.inf, 0, 10).should_check(10)


def test_calibration_starts_with_the_second_step(clock, capsys):
    """The first step compiles; a validation that was not measured yet is estimated in steps."""
    deadline = Deadline(100.0, 0, 1000, {"validate": Overhead(1000, steps=10.0)})
    assert [step for step in range(1, 30) if deadline.should_check(step)][:5] == [1, 2, 4, 8, 16]
    clock[0] = 40.0
    assert deadline.replan_steps(1, 1000) == 1000
    clock[0] = 41.0
    assert deadline.replan_steps(2, 1000) == 2 + int((59 - 10) / 1.01)
    deadline.log_plan(2, "100s")
    clock[0] = 42.0
    assert deadline.replan_steps(4, 50) == 4 + int((58 - 5) / 0.505)
    deadline.log_plan(4, "100s")
    clock[0] = 44.05
    deadline.log_plan(8, "100s" if deadline.replan_steps(8, 108) == 108 else "changed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "1 steps/s after step 2: the budget of 100s is planned as 50 steps" and len(lines) == 2
    late = Deadline(100.0, 0, 1000)
    clock[0] = 101.0
    assert late.replan_steps(1, 1000) == 1


def test_a_deadline_in_the_batch_warmup_is_kept(clock):
    """Batches grow from 1 to 10 micro-batches over 1000 steps; a micro-batch takes a second, and time ends at 200."""
    bound = MaskedLM().bind(random_corpus(documents=2), BERT, 16)
    sampler = bound.build_sampler(16, 10, batch_warmup_steps=1000)
    stream = BatchStream(bound, sampler)
    deadline = Deadline(200.0, 0, 5000, batch_warmup_steps=1000, stream=stream)
    total, step = 5000, 0
    while step < total:
        clock[0] += sampler.num_micro_batches(step)
        step += 1
        if deadline.should_check(step):
            deadline.total_steps = total = deadline.replan_steps(step, total)
    assert clock[0] == pytest.approx(200, rel=0.05)


# --- the plan of a run -----------------------------------------------------------------------------------------------
