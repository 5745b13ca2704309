"""The recipe `best`: what it derives from a budget, a corpus and a device, and the ledger behind it."""

import json
import logging

import pytest

import polyseme
from polyseme.errors import ConfigError
from polyseme.recipes import get_training_recipe
from polyseme.recipes.best import ComputeDevice, derive_recipe
from polyseme.recipes.launch import resolve_arguments
from polyseme.recipes.ledger import LEDGER, SpeedrunSettings, read_measurements, read_rows
from polyseme.train.recipe import BudgetConfig, Recipe

H200 = ComputeDevice("gpu", "NVIDIA H200", 1.0, 140.0)
DEVICES = {
    "one thread": ComputeDevice("cpu", "1 CPU thread", 1.0),
    "two threads": ComputeDevice("cpu", "2 CPU threads", 1.55),
    "64 threads, two ranks": ComputeDevice("cpu", "64 CPU threads", 27.0, num_ranks=2),
    "small GPU": ComputeDevice("gpu", "a GPU of 8 GB", 0.05, 8.0),
    "H200": H200,
    "six GPUs": ComputeDevice("gpu", "NVIDIA A100", 2.5, 40.0, num_ranks=6),
    "100 ranks": ComputeDevice("cpu", "1 CPU thread", 100.0, num_ranks=100),
    "eight H200s": ComputeDevice("gpu", "NVIDIA H200", 8.0, 140.0, num_ranks=8),
}
MINUTES = (1, 3, 5, 10, 25, 60)


def derive(minutes, corpus_tokens, device):
    return derive_recipe(BudgetConfig(minutes=minutes), corpus_tokens, device)


def count_weights(recipe):
    """Weights of the blocks, by the usual estimate."""
    return 12 * recipe.model["num_layers"] * recipe.model["dim"] ** 2


# --- what is derived -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_every_derived_recipe_is_valid(device):
    for minutes in (0.1, *MINUTES, 600):
        for corpus_tokens in (1, 50_000, 20_000_000, 10**10):
            recipe = derive(minutes, corpus_tokens, DEVICES[device]).check()
            assert recipe.name == "best" and recipe.budget.minutes == minutes
            assert recipe.batch_tokens // recipe.micro_batch_tokens % DEVICES[device].num_ranks == 0
            assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
            assert recipe.compile == (DEVICES[device].kind == "gpu")
    recipe.model_config(8192)  # builds the model on the meta device


def test_the_derivation_has_the_batch_of_the_recipe():
    recipe = derive(10, 10**9, ComputeDevice("gpu", "NVIDIA H200", 3.0, 140.0, num_ranks=3))
    assert f"{recipe.batch_tokens:,} tokens per step" in recipe.derivation[0] and recipe.batch_tokens % 3 == 0


@pytest.mark.parametrize("device", DEVICES)
def test_models_grow_with_the_budget_and_the_corpus(device):
    by_budget = [count_weights(derive(minutes, 10**10, DEVICES[device])) for minutes in MINUTES]
    by_corpus = [count_weights(derive(60, tokens, DEVICES[device])) for tokens in (10**5, 10**6, 10**7, 10**8, 10**9)]
    assert by_budget == sorted(by_budget) and by_corpus == sorted(by_corpus)


def test_ten_minutes_have_a_larger_model_than_one():
    assert count_weights(derive(10, 10**10, H200)) > count_weights(derive(1, 10**10, H200))


def test_text_that_is_read_often_gets_dropout():
    assert derive(10, 10**9, H200).model["dropout"] == 0
    assert derive(10, 10**5, H200).model["dropout"] == 0.1


def test_little_memory_has_small_micro_batches():
    sizes = [derive(10, 10**9, ComputeDevice("gpu", "", 1.0, gb)).micro_batch_tokens for gb in (6, 12, 24, 80)]
    assert sizes == [8192, 16384, 32768, 65536]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal,batch", [(0.5, 131_072), (0.25, 2048), (1.0, 2048)])
def test_hybrid_models_have_batches_of_both_kinds_in_a_step(device, causal, batch):
    settings = SpeedrunSettings(family="gpt-bert", causal=causal, batch=batch, max_len=48)
    sizes = DEVICES[device].divide_batch(batch, settings.max_len, settings.objective.min_micro_batches)
    fields = {"batch_tokens": sizes[0], "micro_batch_tokens": sizes[1], "budget": BudgetConfig(steps=10)}
    settings.build_recipe("best", DEVICES[device].kind == "gpu", **fields).check()
    assert sizes[0] // sizes[1] % DEVICES[device].num_ranks == 0
    assert f"{100 * causal:g} % of the batches left to right" in str(settings)


def test_the_derivation_names_settings_measurement_and_length():
    settings, measurement, length = derive(12, 10**8, H200).derivation
    assert "12 layers of 512" in settings and "30 % masked" in settings
    assert "measured for 10 min of NVIDIA H200 (2026-" in measurement and "BLiMP 75.9" in measurement
    assert length.startswith("12m on NVIDIA H200") and "epochs of the corpus" in length


@pytest.mark.parametrize(
    "minutes,corpus_tokens,reason",
    [
        (10, 10**9, " bits per character"),
        (0.5, 10**9, "; no shorter time was measured"),
        (12, 10**9, "; no longer time up to 12 min was measured"),
        (12, 10**7, "; models of longer times would read the corpus more than 40 times"),
    ],
)
def test_another_time_than_the_measured_one_is_explained(minutes, corpus_tokens, reason):
    assert derive(minutes, corpus_tokens, H200).derivation[1].endswith(reason)


# --- the ledger ------------------------------------------------------------------------------------------------------


def write_ledger(path, *rows):
    defaults = {"seed": 0, "tokens": 100, "blimp": 0.6, "held_out_bits_per_character": 1.0, "date": "2026-11-16"}
    rows = [defaults | {"device": "NVIDIA H200", "jobs": 1, "threads": 1} | row for row in rows]
    path.write_text(json.dumps({"groups": [{"kind": "arms", "rows": rows}, {"kind": "glue", "rows": [{}]}]}))
    return path


def test_the_best_row_of_each_time_is_the_mean_of_its_seeds(tmp_path):
    small, large = {"size": "4x128"}, {"size": "8x256"}
    rows = [
        {"budget": "10 min", "settings": small, "blimp": 0.7},
        {"budget": "10 min", "settings": large, "blimp": 0.9, "seed": 0},
        {"budget": "10 min", "settings": large, "blimp": 0.6, "seed": 1, "date": "2026-11-17"},
        {"budget": "20 s alone", "settings": small, "jobs": 4},
        {"budget": "5 min", "settings": small, "jobs": 2},  # shared the GPU
        {"budget": "5 min", "settings": small | {"family": "gpt2"}},
        {"budget": "3 min", "settings": small, "device": "cpu", "threads": 2, "held_out_bits_per_character": 2.0},
        {"budget": "3 min", "settings": large, "device": "cpu", "threads": 2, "blimp": 0.5},
    ]
    ledger = write_ledger(tmp_path / "ledger.json", *rows)
    by_minutes = read_measurements("gpu", ledger)
    assert list(by_minutes) == [1.0, 10.0]
    first, second = by_minutes[10.0]
    assert (first.settings.size, first.num_seeds, first.blimp, first.date) == ("8x256", 2, 0.75, "2026-11-17")
    assert second.settings.size == "4x128"
    ((minutes, (chosen, _)),) = read_measurements("cpu", ledger).items()
    assert chosen.settings.size == "8x256" and minutes == pytest.approx(3 * 1.55, rel=0.01)


def test_rows_of_the_ledger_are_complete():
    fields = SpeedrunSettings().to_json().keys() - {"kind"}
    for row in read_rows():
        assert row["settings"].keys() == fields and row["steps"] > 0 and row["parameters"] > 0
        assert row["date"] >= "2026-11-15" and 0 < row["blimp"] < 1
    assert read_measurements("cpu") and read_measurements("gpu")


def test_the_page_of_the_ledger_is_current(monkeypatch):
    monkeypatch.syspath_prepend(str(LEDGER.parents[3] / "benchmarks"))
    import speedrun

    assert speedrun.PAGE.read_text() == speedrun.page()


# --- runs ------------------------------------------------------------------------------------------------------------

TINY = {"model": {"num_layers": 1, "dim": 16, "num_heads": 2}, "batch_tokens": 512, "micro_batch_tokens": 512}


def test_a_run_records_why_and_resumes_with_its_shape(project, tmp_path, caplog, rejects):
    corpus, out = project / "corpus-bert", tmp_path / "run"
    caplog.set_level(logging.INFO)
    run = polyseme.pretrain("best", corpus, out, budget="3s", valid_fraction=0.1, **TINY)
    assert run.num_steps > 1 and caplog.text.count("best: ") == 3
    record, results = (json.loads((out / name).read_text()) for name in ("recipe.json", "results.json"))
    assert record["recipe"]["name"] == "best" and record["recipe"]["model"]["dim"] == 16
    assert results["derivation"] == record["recipe"]["derivation"] and "epochs" in results["derivation"][2]
    page = (out / "report.html").read_text()
    assert results["derivation"][1] in page and "model.num_layers" in page
    arguments = resolve_arguments("best", None, out, {"budget": "60m"}, resume=True)
    saved = Recipe.from_json(record["recipe"])
    assert arguments.recipe == saved.replace(budget=BudgetConfig(minutes=60.0))


def test_what_best_cannot_derive_from(project, tmp_path, rejects):
    command = ("pretrain", "best", "--corpus", project / "corpus-bert", "--out", tmp_path / "run")
    reason = "the recipe best is derived from a time of 1m to 60m, such as 10m"
    rejects(*command, match=f"--budget is missing: {reason}")
    rejects(*command, "--budget", "500steps", match=f"--budget is 500steps: {reason}")
    rejects(*command, "--set", "budget.tokens=1000", match=f"--budget is 1000tokens: {reason}")
    rejects(*command, "--budget", "3s", "--set", "model.num_layer=3", match="unknown key 'num_layer' in model")
    rejects("pretrain", "best", "--budget", "1m", "--out", tmp_path / "run", match="--corpus is missing")
    with pytest.raises(ConfigError, match="'best' is derived from a corpus and a budget"):
        get_training_recipe("best")


def test_any_way_to_set_the_budget(project, tmp_path):
    for overrides in ({"budget": "3m"}, {"budget.minutes": 3}, {"budget": {"minutes": 3}}, {"minutes": 3}):
        recipe = resolve_arguments("best", project / "corpus-bert", tmp_path / "run", overrides).recipe
        assert recipe.budget == BudgetConfig(minutes=3.0)
