"""The parts of training: schedules, optimizer, loop, prefetch, cost, checkpoints, budgets."""

import json
import math
import re
import threading
import time

import pytest
import torch

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.train import pretrain as module
from polyseme.train.budget import Deadline, Overhead, Segment, StepPlan
from polyseme.train.checkpoint import load_checkpoint
from polyseme.train.loop import TrainState, count_parameters, count_training_flops, prefetch, train
from polyseme.train.optimizer import (
    OptimizerConfig,
    ScheduleConfig,
    load_optimizer_state_dict,
    optimizer_state_dict,
    set_lr,
)
from polyseme.train.pretrain import pretrain, try_compile
from polyseme.train.recipe import BudgetConfig, Recipe, ShortSequencesConfig
from polyseme.train.step import BF16WorkingCopy
from tests.support.cases import supported_args
from tests.support.runs import tiny_recipe

# --- schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine", "inverse_sqrt"])
def test_warm_up(shape):
    for warmup in (0.1, 100):  # a share of the run, or steps
        schedule = ScheduleConfig(shape, warmup)
        assert schedule.lr_factor(0, 1000) == pytest.approx(0.01)
        assert schedule.lr_factor(49, 1000) == pytest.approx(0.5)
        assert schedule.lr_factor(99, 1000) == 1
        assert schedule.lr_factor(100, 1000) == pytest.approx(1, rel=0.006)
        steps = [schedule.lr_factor(i, 1000) for i in range(1000)]
        assert max(steps) == 1 and min(steps) > 0
        assert steps[99:] == sorted(steps[99:], reverse=True)


def test_linear():
    schedule = ScheduleConfig("linear", 100)
    assert schedule.lr_factor(550, 1000) == pytest.approx(0.5)
    assert schedule.lr_factor(999, 1000) == pytest.approx(1 / 900)
    assert schedule.lr_factor(1000, 1000) == 0
    assert ScheduleConfig("linear", 100, min_lr_ratio=0.2).lr_factor(550, 1000) == pytest.approx(0.6)
    assert ScheduleConfig("linear", 100, min_lr_ratio=0.2).lr_factor(5000, 1000) == pytest.approx(0.2)


def test_cosine():
    schedule = ScheduleConfig("cosine", 100, min_lr_ratio=0.1)
    assert schedule.lr_factor(550, 1000) == pytest.approx(0.55)
    assert schedule.lr_factor(325, 1000) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert schedule.lr_factor(1000, 1000) == pytest.approx(0.1)


def test_inverse_square_root():
    """Vaswani et al. 2017, equation 3: min(step^-0.5, step · warmup^-1.5), with steps from 1, over its peak."""
    schedule = ScheduleConfig("inverse_sqrt", 100)
    for step in (1, 50, 100, 101, 400, 10_000):
        expected = min(step**-0.5, step * 100**-1.5) / 100**-0.5
        assert schedule.lr_factor(step - 1, 10_000) == pytest.approx(expected)
    assert schedule.lr_factor(399, 10_000) == pytest.approx(0.5)


@pytest.mark.parametrize("cut_frac,ratio", [(0.1, 32), (0.25, 8)])
def test_slanted_triangle(cut_frac, ratio):
    """Howard and Ruder 2018, equation 3; theirs are cut_frac 0.1 and ratio 32."""
    total = 1000
    cut = math.floor(total * cut_frac)
    schedule = ScheduleConfig("slanted", cut_frac, slanted_ratio=ratio)
    assert ScheduleConfig("slanted", 0.1) == ScheduleConfig("slanted", 0.1, slanted_ratio=32)
    for t in range(total):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
        assert schedule.lr_factor(t, total) == pytest.approx((1 + p * (ratio - 1)) / ratio)


def test_the_shortest_runs_have_a_rate():
    for shape in ("constant", "linear", "cosine", "inverse_sqrt", "slanted"):
        for total in (1, 2, 3):
            assert all(0 < ScheduleConfig(shape).lr_factor(i, total) <= 1 for i in range(total))


# --- the optimizer ---------------------------------------------------------------------------------------------------


def tiny(family="bert", **changes):
    usual = {"num_layers": 2, "dim": 8, "num_heads": 2, "ffn_dim": 16, "hidden_dim": 12, "vocab_size": 11,
             "max_len": 16, "dropout": 0.0, "attention_dropout": 0.0, "num_buckets": 9}  # fmt: skip
    return FAMILIES[family].model_config(**supported_args(FAMILIES[family], **usual), **changes).build(seed=0)


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_decay_touches_matrices_only(family, layer_decay):
    model = tiny(family)
    optimizer = OptimizerConfig(weight_decay=0.01, layer_decay=layer_decay).build(model, model.trunk.layer_groups())
    decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))
    for name, p in model.named_parameters():
        plain = name.endswith("bias") or re.search(r"norm|before|after|biases|bias_", name)
        assert decays[id(p)] == (0.0 if plain else 0.01), name


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_heads_may_have_a_rate_of_their_own(layer_decay):
    model = tiny()
    optimizer = OptimizerConfig(layer_decay=layer_decay, head_lr_scale=20.0).build(model, model.trunk.layer_groups())
    set_lr(optimizer, 1e-5)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert [rates[id(p)] for p in model.heads.parameters()] == pytest.approx(
        [2e-4] * len(list(model.heads.parameters()))
    )
    assert max(rates[id(p)] for p in model.trunk.parameters()) == pytest.approx(1e-5 * layer_decay)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_layer_decay(family):
    model = tiny(family)
    groups = model.trunk.layer_groups()
    optimizer = OptimizerConfig(layer_decay=0.5).build(model, groups)
    set_lr(optimizer, 0.8)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert all(rates[id(p)] == pytest.approx(0.8) for p in model.heads.parameters())
    levels = [{rates[id(p)] for p in group} for group in groups]
    assert all(len(level) == 1 for level in levels)
    flat = [level.pop() for level in levels]
    assert flat == pytest.approx([0.8 * 0.5 ** (len(groups) - i) for i in range(len(groups))])
    even = OptimizerConfig().build(model, groups)
    set_lr(even, 0.8)
    assert {g["lr"] for g in even.param_groups} == {0.8}


def test_optimizer_state_there_and_back():
    model, other = tiny(), tiny()
    batches = [batch_of(model)]
    run = training(model)
    list(train(run, iter([(batches, None)] * 3)))
    state = optimizer_state_dict(run.optimizer, model)
    fresh = OptimizerConfig().build(other, other.trunk.layer_groups())
    load_optimizer_state_dict(fresh, other, state)
    again = optimizer_state_dict(fresh, other)
    assert state.keys() == again.keys() and state
    assert all(torch.equal(state[k], again[k]) for k in state)


# --- the loop --------------------------------------------------------------------------------------------------------


def batch_of(model, lengths=(3, 5)):
    layout = PackedLayout.from_lengths(lengths)
    rows = torch.tensor([1, 4])
    targets = {}
    for name in model.config.heads:
        where = torch.arange(len(lengths)) if name == "pair" else rows
        targets[name] = Targets(where, torch.tensor([0, 1]), 2)
    tokens = torch.arange(layout.num_tokens) % 11
    return Batch(Inputs(tokens, layout), targets, layout.num_tokens)


def training(model, total=3, **changes):
    spec = OptimizerConfig(**changes)
    optimizer = spec.build(model, model.trunk.layer_groups())
    return TrainState(model, optimizer, spec, ScheduleConfig("constant", 0), total, torch.device("cpu"))


@pytest.mark.parametrize("clip", [0.25, 0.0])
def test_clipping(clip):
    model = tiny()
    run = training(model, total=1, max_grad_norm=clip)
    (report,) = train(run, iter([([batch_of(model)], None)]))
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    assert report.grad_norm > 0.25
    assert norm == pytest.approx(clip or report.grad_norm, rel=1e-4)


def test_reports():
    model = tiny()
    batches = [batch_of(model), batch_of(model, (5, 4))]
    reports = list(train(training(model, total=3, lr=0.01), iter([(batches, i) for i in range(9)])))
    assert [r.step for r in reports] == [1, 2, 3] and [r.position for r in reports] == [0, 1, 2]
    assert all(r.tokens == 17 and r.lr == 0.01 and set(r.loss) == {"masked", "pair"} for r in reports)
    assert all(r.flops == sum(count_training_flops(model, b) for b in batches) for r in reports)
    assert sum(reports[-1].loss.values()) < sum(reports[0].loss.values())


def test_a_loss_that_is_not_finite_changes_nothing():
    model = tiny()
    before = {n: p.clone() for n, p in model.named_parameters()}
    run = training(model)
    run.loss_fn = lambda m, b: {
        "masked": m.trunk.token_embeddings.sum() * float("nan"),
        "pair": m.trunk.token_embeddings.sum(),
    }
    with pytest.raises(PolysemeError, match="not finite"):
        list(train(run, iter([([batch_of(model)], None)])))
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize("tokens", [1, 1300, 4000])
def test_a_budget_in_tokens(tokens, project, tmp_path):
    """Bins are not quite full, so a budget in tokens takes a few more steps than tokens / batch_tokens."""
    recipe = Recipe.from_json(json.loads((project / "bert.json").read_text()) | {"budget": {"tokens": tokens}})
    found = pretrain(recipe, project / "corpus-bert", tmp_path / "run")
    assert load_checkpoint(tmp_path / "run/checkpoints").step == found["steps"] >= math.ceil(tokens / 512)
    assert abs(found["tokens"] - tokens) <= 512 and found["tokens"] > tokens - 128


# --- prefetch --------------------------------------------------------------------------------------------------------


def wait_for_threads(count):
    deadline = time.monotonic() + 5
    while threading.active_count() > count and time.monotonic() < deadline:
        time.sleep(0.01)
    return threading.active_count()


def test_prefetch_keeps_order_and_ends():
    before = threading.active_count()
    assert list(prefetch(range(200))) == list(range(200))
    assert list(prefetch([])) == []
    assert wait_for_threads(before) == before


def test_prefetch_passes_exceptions_on():
    def items():
        yield 1
        yield 2
        raise KeyError("third")

    before = threading.active_count()
    found = []
    with pytest.raises(KeyError, match="third"):
        for item in prefetch(items()):
            found.append(item)
    assert found == [1, 2] and wait_for_threads(before) == before


def test_prefetch_left_early_ends_its_thread_and_runs_only_a_little_ahead():
    made = []

    def items():
        for i in range(10**9):
            made.append(i)
            yield i

    before = threading.active_count()
    stream = prefetch(items(), buffer_size=2)
    assert next(stream) == 0
    time.sleep(0.15)
    assert len(made) <= 5
    stream.close()
    assert wait_for_threads(before) == before


# --- cost ------------------------------------------------------------------------------------------------------------


def test_training_flops_by_hand():
    """2 layers, dim 8, ffn 16, vocabulary 11, sequences of 3 and 5, two masked tokens, two pairs: 6 per weight."""
    model = tiny("bert")
    matrices = 2 * (3 * 8 * 8 + 8 * 8 + 8 * 16 + 16 * 8)  # query, key, value; out; up; down
    attention = 2 * 3 * (2 * 8 * 3 * 3 + 2 * 8 * 3 * 3 + 2 * 8 * 5 * 5 + 2 * 8 * 5 * 5)  # scores, sums; thrice
    masked = 2 * (8 * 8 + 8 * 11)
    pair = 2 * (8 * 8 + 8 * 2)  # the pooler's matrix, and the head's
    assert count_training_flops(model, batch_of(model)) == 6 * matrices * 8 + attention + 6 * (masked + pair)


def test_training_flops_of_a_causal_model():
    model = tiny("gpt2")
    matrices = 2 * (4 * 8 * 8 + 2 * 8 * 16)
    attention = 2 * 3 * (4 * 8 * 3 * 3 + 4 * 8 * 5 * 5) // 2
    assert count_training_flops(model, batch_of(model)) == 6 * matrices * 8 + attention + 6 * 2 * 8 * 11


def test_training_flops_of_blocks_that_differ():
    """A gated layer has three matrices; in the second block a query attends to 3 of 5 tokens."""
    model = tiny("modernbert", global_every=2, window=1)
    matrices = 2 * (4 * 8 * 8 + 3 * 8 * 16)
    attention = 3 * 4 * 8 * (3 * 3 + 5 * 5) + 3 * 4 * 8 * (3 * 3 + 5 * 3)
    assert count_training_flops(model, batch_of(model)) == 6 * matrices * 8 + attention + 6 * 2 * (8 * 8 + 8 * 11)


def test_training_flops_ignore_filler():
    model = tiny("gpt2")
    batch = batch_of(model)
    layout = PackedLayout.from_lengths((3, 5), num_slots=6, max_seqlen=16)
    assert count_training_flops(
        model, Batch(Inputs(batch.inputs.tokens, layout), batch.targets, 8)
    ) == count_training_flops(model, batch)


def test_num_parameters():
    model = tiny("gpt2")
    block = 8 * 24 + 24 + 8 * 8 + 8 + 8 * 16 + 16 + 16 * 8 + 8 + 4 * 8
    assert count_parameters(model) == 11 * 8 + 16 * 8 + 2 * block + 2 * 8


def test_without_a_compiler_one_line_and_eager(monkeypatch, capsys):
    def broken(function):
        raise RuntimeError("no C++ compiler found\nand much more")

    monkeypatch.setattr(torch, "compile", broken)
    assert try_compile(compute_losses, torch.device("cpu")) is compute_losses
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no C++ compiler found" in said


@pytest.mark.parametrize(
    "family,changes,expected",
    [
        ("bert", {}, False),
        ("bert", {"short_sequences": ShortSequencesConfig(max_len=12)}, True),
        ("gpt-bert", {}, True),
    ],
)
def test_two_shapes_have_a_graph_each(family, changes, expected, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "try_compile", lambda fn, device, has_several: seen.append(has_several) or fn)
    recipe = tiny_recipe(family, compile=True).replace(**changes)
    module.build_train_state(recipe, recipe.model_config(100), torch.device("cpu"))
    assert seen == [expected]


@pytest.mark.parametrize(
    "text,expected",
    [
        ("20m", BudgetConfig(minutes=20)),
        ("1h30m", BudgetConfig(minutes=90)),
        ("90s", BudgetConfig(minutes=1.5)),
        ("500steps", BudgetConfig(steps=500)),
        ("1e9tokens", BudgetConfig(tokens=10**9)),
    ],
)
def test_a_budget_in_words(text, expected):
    assert BudgetConfig.parse(text) == expected


@pytest.mark.parametrize("text", ["", "20", "m", "0m", "20 m", "-3m", "1.2.3m", "1e999steps", "esteps", "20x"])
def test_a_budget_that_is_none(text):
    with pytest.raises(PolysemeError, match="a budget is a time such as 20m"):
        BudgetConfig.parse(text)


@pytest.mark.parametrize(
    "path,value,told",
    [
        ("keep_checkpoints", "0", "keep_checkpoints is 0, expected 1 or more"),
        ("num_averaged", "-1", "num_averaged is -1, expected 0 or more"),
        ("valid_fraction", "1", r"valid_fraction is 1\.0, expected at least 0 and less than 1"),
        ("budget.steps", "-1", r"budget\.steps is -1, expected at least 0"),
        ("budget.steps", "0", "the budget is empty"),
        ("optimizer.lr", "0", r"optimizer\.lr is 0\.0, expected more than 0"),
        ("schedule.warmup", "-5", r"schedule\.warmup is -5\.0, expected 0 or more"),
        ("schedule.min_lr_ratio", "-1", r"schedule\.min_lr_ratio is -1\.0, expected 0 or more"),
        ("schedule.min_lr_ratio", "7", r"schedule\.min_lr_ratio is 7\.0, expected a value from 0 to 1"),
        ("objective.keep_token_prob", "-0.1", r"objective\.keep_token_prob is -0\.1, expected a value from 0 to 1"),
        ("micro_batch_tokens", "8", "micro_batch_tokens 8 is smaller than max_len 128"),
        ("batch_tokens", "20000", "batch_tokens 20000 is not a multiple of micro_batch_tokens 16384"),
    ],
)
def test_numbers_of_a_recipe_that_cannot_be(path, value, told):
    recipe = Recipe("r", "bert").check()
    with pytest.raises(PolysemeError, match=f"^{told}"):
        recipe.with_override(path, value).check()


def test_another_vocabulary_than_that_of_the_corpus_is_rejected():
    recipe = Recipe("r", "bert", size="tiny", model={"vocab_size": 77})
    assert recipe.model_config(77) == recipe.replace(model={}).model_config(77)
    with pytest.raises(PolysemeError, match=r"^model\.vocab_size is 77, expected 100, which the corpus determines"):
        recipe.model_config(100)


def test_a_budget_setting_replaces_that_of_the_recipe(capsys):
    recipe = Recipe("r", "bert", budget=BudgetConfig(steps=1000))
    timed = recipe.with_override("budget.minutes", "7")
    assert timed.budget == BudgetConfig(minutes=7) and timed.check().budget.is_wall_clock
    assert capsys.readouterr().err == "budget.minutes=7 replaces budget.steps=1000\n"
    assert timed.with_override("budget.steps", "30").budget == BudgetConfig(steps=30)
    assert timed.with_override("budget", "30steps").budget == BudgetConfig(steps=30)
    assert capsys.readouterr().err == "budget.steps=30 replaces budget.minutes=7\n"
    assert timed.with_override("budget.minutes", "8").budget == BudgetConfig(minutes=8)
    assert timed.with_override("budget.steps", "0").budget == BudgetConfig(minutes=7)
    assert capsys.readouterr().err == "", "nothing was replaced"
    with pytest.raises(PolysemeError, match=r"budget\.steps=4 and budget\.minutes=1 both limit the run"):
        BudgetConfig(steps=4, minutes=1.0)


@pytest.mark.parametrize("text", ["20m", "90m", "90s", "5s", "500steps", "1000000000tokens"])
def test_a_budget_is_shown_as_it_is_read(text):
    assert str(BudgetConfig.parse(text)) == text


@pytest.mark.parametrize("seconds,each,others", [(60, 0.5, []), (100, 0.1, [(2, 50), (5, 200)]), (7, 0.3, [(1, 4)])])
def test_steps_fill_the_time_and_no_more(seconds, each, others):
    def spent(steps):
        return steps * each + sum(cost * (steps / every + 1) for cost, every in others)

    deadline = Deadline(100.0, 0, 10, {str(every): Overhead(every, cost) for cost, every in others})
    steps = deadline.count_fitting_steps(seconds, each)
    assert steps > 1 and spent(steps) <= seconds + 1e-9 < spent(steps + 1) + 1e-9
    assert deadline.count_fitting_steps(0.01, each) == 0


def test_gradients_of_the_copy_replace_or_add():
    """A parameter that a micro-batch does not use keeps no gradient of an earlier step."""
    model = FAMILIES["bert"].model_config("tiny", vocab_size=50).build(seed=0)
    half = BF16WorkingCopy(model)
    weights = list(zip(model.parameters(), half.copy_weights_from_master().parameters()))
    for fresh, scale, expected in ((True, 1.0, 1.0), (False, 2.0, 3.0), (True, 4.0, 4.0)):
        for _, h in weights:
            h.grad = torch.full_like(h, scale)
        half.copy_grads_to_master(fresh)
        assert all(h.grad is None and (p.grad == expected).all() for p, h in weights)
    weights[0][1].grad = torch.ones_like(weights[0][1])
    half.copy_grads_to_master(is_first=True)
    assert (weights[0][0].grad == 1).all() and all((p.grad == 0).all() for p, _ in weights[1:])


def rates(plan, schedule, num_steps):
    """Return the factor of the learning rate at every step of a plan."""
    state = TrainState(*[None] * 3, schedule, 0, None)
    factors = []
    for step in range(num_steps):
        plan.apply(state, schedule, step)
        assert step < state.total_steps
        length = (state.schedule_end or state.total_steps) - state.schedule_start
        factors.append(state.schedule.lr_factor(step - state.schedule_start, length))
    return factors


@pytest.mark.parametrize("warmup", [0.1, 20])
@pytest.mark.parametrize("shape", ["linear", "cosine", "slanted", "constant", "inverse_sqrt"])
def test_an_extended_run(shape, warmup):
    schedule = ScheduleConfig(shape, warmup)
    plan = StepPlan((Segment(0, 100),))
    longer = plan.extend(100, 200, schedule)
    before, after = rates(plan, schedule, 100), rates(longer, schedule, 200)
    assert longer.total_steps == 200 and longer.end_steps == {100, 200} and after[:100] == before
    if schedule.depends_on_length:  # it warms up and decays again
        assert max(after[100:]) == pytest.approx(1, abs=0.02) and after[100] < 0.2 and after[199] < 0.1
        assert after[100:].index(max(after[100:])) <= 11, "the warm-up has at most a tenth of the added steps"
    else:
        assert after == rates(StepPlan((Segment(0, 100), Segment(100, 200, schedule_end=100))), schedule, 200)
        assert after[100] == pytest.approx(after[99], rel=0.01)
    assert StepPlan.from_json(json.loads(json.dumps(longer.to_json())), "recipe.json") == longer


def test_a_run_that_is_extended_before_its_end():
    schedule, plan = ScheduleConfig("linear", 10), StepPlan((Segment(0, 100),))
    longer = plan.extend(40, 200, schedule)
    assert (
        rates(longer, schedule, 200)
        == rates(plan, schedule, 40) + rates(StepPlan((Segment(0, 200),)), schedule, 200)[40:]
    )
    assert longer.end_steps == {200}
    for rows in ([], None, [{"step": 1}], [{"step": 0, "total_steps": "a"}], 3, [3]):
        with pytest.raises(PolysemeError, match="not the recipe of a run"):
            StepPlan.from_json(rows, "recipe.json")
