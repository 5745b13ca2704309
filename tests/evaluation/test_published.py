"""Published tables with our results next to them: runs, benchmarks, studies, printed results, rows of one's own."""

import json
import math
import statistics

import pytest

import polyseme
from polyseme.cli.completion import PUBLISHED_TABLES
from polyseme.datasets.catalog import DATASETS
from polyseme.datasets.published import DEV_NOTE, PARAMETERS, format_published, load_published_tables
from polyseme.errors import ConfigError, DataError
from polyseme.evaluation.benchmarks import BENCHMARKS, benchmark_table

TABLES = load_published_tables()


def write_run(folder, data, seeds, **more):
    """Write the results of a fine-tuning run; `seeds` are the metrics of each seed, the first metric the primary."""
    folder.mkdir(parents=True, exist_ok=True)
    mean = {name: statistics.fmean(seed[name] for seed in seeds) for name in seeds[0]}
    rows = [{"seed": i, **seed} for i, seed in enumerate(seeds)]
    results = {"task": "classification", "data": data, "model": "base/model", "primary_metric": next(iter(mean))}
    results |= {"seeds": rows, "mean": mean, "failed_seeds": [], "parameters": 4_400_000, **more}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def write_json(path, content):
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def cola(tmp_path):
    return write_run(tmp_path / "cola", "glue/cola", [{"matthews": 0.30}, {"matthews": 0.34}])


def test_columns_name_data_sets_and_metrics_that_exist():
    for table in TABLES.values():
        assert set(table.score_columns) <= set(table.columns), table.name
        for spec in table.score_columns.values():
            assert spec.dataset in (*DATASETS, PARAMETERS, "blimp", "valid_loss"), spec
        assert {name for group in table.average_of for name in group} <= set(table.score_columns)
        assert table.split in ("dev", "test", "")
    assert TABLES["glue"].score_columns["mrpc"].metric == DATASETS["glue/mrpc"].metric
    assert set(PUBLISHED_TABLES) == set(TABLES) == set(polyseme.list_published_tables())


def test_a_run_is_a_row_with_mean_deviation_and_split(tmp_path):
    run = write_run(tmp_path / "mine", "glue/mrpc", [{"f1": 0.8, "accuracy": 0.7}, {"f1": 0.9, "accuracy": 0.8}])
    (row,) = polyseme.published_table("glue", run).measured
    assert (row.system, row.split, row.num_seeds) == ("mine", "dev", {"mrpc": 2})
    assert row.values == {"mrpc": pytest.approx(85.0)} and row.std == {"mrpc": pytest.approx(7.07, abs=0.01)}
    (row,) = polyseme.published_table("glue-dev", [run]).measured
    assert row.values == {"mrpc": pytest.approx(75.0)}, "the metric of this table is accuracy"
    _, rows, notes = format_published(polyseme.published_table("glue", run))
    assert rows[-1][:2] == ["mine (ours, 2 seeds)", "dev"] and "85.0 ± 7.1" in rows[-1]
    assert rows[0][1] == "test" and notes[0] == DEV_NOTE
    assert DEV_NOTE not in format_published(polyseme.published_table("glue-dev", run))[2]


def test_a_benchmark_is_one_row_with_its_average(tmp_path):
    folder = tmp_path / "bench"
    for name, spec in TABLES["glue"].score_columns.items():
        if name != "mnli-mm":
            extra = {"extra_eval": {"mnli-mm": [0.7]}} if name == "mnli" else {}
            write_run(folder / name, spec.dataset, [{spec.metric: 0.6}], **extra)
    (row,) = polyseme.published_table("glue", folder).measured
    assert row.system == "bench" and row.values["mnli-mm"] == pytest.approx(70)
    assert row.values["average"] == pytest.approx((8 * 60 + 70) / 9)
    assert list(row.values) == list(TABLES["glue"].columns)
    (folder / "rte/results.json").unlink()
    assert "average" not in polyseme.published_table("glue", folder).measured[0].values


def test_runs_of_one_model_share_a_row_and_features_have_their_own(tmp_path):
    runs = [write_run(tmp_path / "a", "glue/cola", [{"matthews": 0.3}], chosen_on_dev=["the best of 2 epochs"])]
    runs += [write_run(tmp_path / "b", "glue/sst-2", [{"accuracy": 0.9}])]
    (row,) = polyseme.published_table("glue", runs).measured
    assert row.system == "base/model" and set(row.values) == {"cola", "sst-2"}
    assert len(row.notes) == 1 and row.notes[0].startswith("a: ") and "the best of 2 epochs" in row.notes[0]
    tags = [{"f1": 0.9, "accuracy": 0.99}]
    runs = [
        write_run(tmp_path / "fine", "conll-2003", tags),
        write_run(tmp_path / "f", "conll-2003", tags, features="x"),
    ]
    rows = polyseme.published_table("bert-masking", runs).measured
    assert [list(row.values) for row in rows] == [["conll-2003"], ["conll-2003_features"]]


def test_error_rates_sizes_and_multitask_runs(tmp_path):
    run = write_run(tmp_path / "trec", "trec-6", [{"accuracy": 0.96}])
    (row,) = polyseme.published_table("ulmfit", run).measured
    assert row.values == {"trec-6": pytest.approx(4.0)} and row.split == "test"
    (run / "model").mkdir()
    (row,) = polyseme.published_table("parameters", run / "model").measured
    assert row.values == {"millions": 4.4} and row.split == ""
    write_run(tmp_path / "multi/tasks/one", "glue/cola", [{"matthews": 0.1}])
    write_run(tmp_path / "multi/tasks/two", "glue/rte", [{"accuracy": 0.6}])
    (row,) = polyseme.published_table("glue", tmp_path / "multi").measured
    assert row.system == "multi" and set(row.values) == {"cola", "rte"}


def test_arms_of_a_study(tmp_path):
    arms = [{"name": "bert", "transfer": "finetune"}, {"name": "gpt", "transfer": "features"}]
    write_json(tmp_path / "study.json", {"study": {"arms": arms}, "limits": {"sst-2": {"train": 10_000}}})
    for arm, value, is_void, kind in (("bert", 0.3, False, "SpanMaskedLM"), ("gpt", 0.1, True, "CausalLM")):
        (tmp_path / "arms" / arm).mkdir(parents=True)
        for seed in (1, 2):
            metrics = {
                "cola": {"value": value * seed, "metric": "matthews"},
                "valid_loss": {"value": math.log(5.0), "metric": "loss"},
                "blimp": {"value": 0.7, "metric": "accuracy", "paradigms": {f"p{i}": 0.7 for i in range(67)}},
            }
            content = {"arm": arm, "seed": seed, "metrics": metrics, "parameters": 10, "is_void": is_void}
            content["recipe"] = {"objective": {"kind": kind}}
            write_json(tmp_path / f"arms/{arm}/seed-{seed}.json", content)
            write_json(tmp_path / f"arms/{arm}/seed-{seed}.cola.json", {"points": []})
    rows = polyseme.published_table("bert-miniatures", tmp_path).measured
    assert [row.system for row in rows] == [f"{tmp_path.name}/bert", f"{tmp_path.name}/gpt (features)"]
    assert rows[0].values == {"cola": pytest.approx(45)} and rows[0].num_seeds == {"cola": 2}
    assert rows[0].notes[0].endswith("in examples: sst-2: train 10,000") and len(rows[0].notes) == 1
    assert "word-frequency plateau" in rows[1].notes[1]
    (row,) = polyseme.published_table("bert-size", tmp_path).measured
    assert row.system.endswith("/bert") and row.values == {"perplexity": pytest.approx(5.0)}, "of masked tokens only"
    notes = format_published(polyseme.published_table("bert-miniatures", tmp_path))[2]
    assert sum("10,000" in note for note in notes) == 1, "said once"
    assert polyseme.published_table("blimp", tmp_path).measured[0].values == {"accuracy": 70}
    write_json(tmp_path / "arms/bert/seed-3.json", {"arm": "bert", "seed": 3, "error": "no luck"})
    rows = polyseme.published_table("bert-miniatures", tmp_path).measured
    assert rows[0].num_seeds == {"cola": 2} and any("bert: 1 of 3 seeds failed" in note for note in rows[0].notes)
    write_json(tmp_path / "arms/gpt/seed-2.json", {"metrics": {}})
    with pytest.raises(DataError, match=r"seed-2\.json is damaged"):
        polyseme.published_table("blimp", tmp_path)


def test_printed_results(tmp_path):
    paradigms = {f"p{i}": 0.6 for i in range(67)}
    pairs = {"model": "runs/gpt/model", "task": "blimp", "accuracy": 0.6, "phenomena": {"binding": 0.5}}
    pairs |= {"paradigms": paradigms, "pll_metric": None, "normalization": "length"}
    (row,) = polyseme.published_table("blimp", write_json(tmp_path / "blimp.json", [pairs])).measured
    assert (row.system, row.values) == ("gpt", {"accuracy": 60, "binding": 50})
    assert row.notes == ("gpt: normalization length",)
    for model, system in ((".", "blimp"), ("model", "model"), ("models/bert", "bert")):
        write_json(tmp_path / "blimp.json", pairs | {"model": model})
        assert polyseme.published_table("blimp", tmp_path / "blimp.json").measured[0].system == system
    for change in ({"task": "minimal-pairs"}, {"paradigms": {"p1": 0.6}}):
        with pytest.raises(DataError, match="expected blimp with its 67"):
            polyseme.published_table("blimp", write_json(tmp_path / "blimp.json", pairs | change))
    content = {"dataset": "glue/cola", "examples": 9, "parameters": 5, "accuracy": 0.8, "matthews": 0.5}
    (row,) = polyseme.published_table("glue", write_json(tmp_path / "mine.json", content)).measured
    assert (row.system, row.values, row.split) == ("mine", {"cola": 50}, "dev")
    own = {"system": "server", "split": "test", "values": {"cola": 38.0, "average": 73}}
    table = polyseme.published_table("glue", write_json(tmp_path / "own.json", own))
    assert table.measured[0].values == own["values"] and DEV_NOTE not in format_published(table)[2]
    assert format_published(table)[1][-1][0] == "server (ours)"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"values": {"cola": 1}}, "split is None, expected dev or test"),
        ({"split": "dev", "values": {"colla": 1}}, "glue has no column 'colla'; did you mean 'cola'"),
        ({"split": "dev", "values": {"cola": "1"}}, "cola is '1', expected a number"),
        ({"split": "dev", "values": {"cola": float("nan")}}, "cola is nan, expected a number"),
        ({"split": "dev", "values": {"cola": 1}, "system": ["a"]}, r"system is \['a'\], expected the name"),
        ({"split": "dev", "values": {}}, "values is .* expected numbers by column"),
        ({"accuracy": 0.5}, "no result of `evaluate` on a named data set"),
        ([{"accuracy": 0.5, "phenomena": 3}], "no result of `evaluate`"),
        ({"dataset": ["glue/cola"], "matthews": 0.5}, "no result of `evaluate`"),
        ({"dataset": "glue/cola", "matthews": float("nan")}, "no score that glue shows"),
        (3, "no result of `evaluate`"),
        ([], "x.json holds no results"),
        ({"dataset": "imdb", "accuracy": 0.5}, "no score that glue shows; it has scores on imdb; .*ulmfit"),
    ],
)
def test_bad_files(content, match, tmp_path):
    with pytest.raises((ConfigError, DataError), match=match):
        polyseme.published_table("glue", write_json(tmp_path / "x.json", content))


def test_bad_paths_and_names(tmp_path, cola):
    (tmp_path / "study").mkdir()
    write_json(tmp_path / "study/study.json", {})
    (tmp_path / "CoLA.tsv").write_text("index\tprediction\n")
    for paths, match in [
        (tmp_path / "nowhere", "there is no run at .*nowhere"),
        (tmp_path / "CoLA.tsv", "a submission has predictions and no scores"),
        (tmp_path / "study", "no finished arm"),
        ([cola, cola], "given twice"),
    ]:
        with pytest.raises((ConfigError, DataError), match=match):
            polyseme.published_table("glue", paths)
    with pytest.raises(
        ConfigError, match=r"has no score that squad-1\.1 shows; it has scores on glue/cola; .*glue-dev"
    ):
        polyseme.published_table("squad-1.1", cola)
    with pytest.raises(ConfigError, match="did you mean 'albert'"):
        polyseme.published_table("albret")
    with pytest.raises(ConfigError, match="name the table first"):
        polyseme.published_table(str(cola))


def test_command(cola, run_cli, rejects):
    assert "glue-ensembles" in run_cli("published")
    table = run_cli("published", "glue", cola)
    assert "BERT-large" in table and "cola (ours, 2 seeds)" in table and "Devlin et al. 2019, table 1" in table
    lines = run_cli("published", "glue", cola, "--markdown").splitlines()
    assert lines[1].count("---") == lines[0].count("|") - 1 == 13 and lines[-1].startswith("- 2: Devlin")
    content = json.loads(run_cli("published", "glue", cola, "--json"))
    assert (
        content["measured"][0]["values"] == {"cola": pytest.approx(32)} and content["rows"][0]["values"]["mnli"] == 80.6
    )
    assert json.loads(run_cli("published", "--json"))["swag"] == TABLES["swag"].description
    rejects("published", "glue", "--json", "--markdown", match="exclude each other")
    rejects("published", "glue-ensemble", match="did you mean 'glue-ensembles'")


def test_wide_tables_are_transposed(run_cli):
    lines = run_cli("published", "superglue").splitlines()
    assert lines[2].startswith("superglue") and "Human" in lines[2] and any(line.startswith("boolq") for line in lines)


def test_a_benchmark_shows_published_means_of_two_metrics():
    """CB, MultiRC and ReCoRD have two metrics each, whose mean counts."""
    tasks = BENCHMARKS["superglue"].tasks
    summary = {"mean": dict.fromkeys(tasks, 50.0), "average": 50.0, "std": {}}
    header, rows = benchmark_table("superglue", summary)
    bert = next(row for row in rows if row[0] == "BERT-large")
    assert bert[header.index("cb")] == "79.7" and bert[header.index("avg")] == "69.0" and "" not in bert[1:-1]
