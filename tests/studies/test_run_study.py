"""Running a study: rows, resumption after a kill, failures, and what is rejected before anything is written."""

import contextlib
import json
import shutil
from statistics import fmean

import pytest

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.studies import corpora, jobs, measurement, plan, runner, scheduler, transfer
from polyseme.studies.base import Study
from polyseme.studies.jobs import Job
from polyseme.studies.measurement import ArmModel
from polyseme.studies.metrics import METRICS as METRICS_BY_NAME
from polyseme.studies.metrics import read_task_data
from polyseme.studies.plan import StudyOptions, StudyPlan
from polyseme.studies.runner import run_study
from polyseme.tasks.classification import ClassificationTask
from tests.support.runs import Killed
from tests.support.studies import FINETUNE, TINY, arm, study_json

METRICS = ("valid_loss", "valid_accuracy", "pseudo_bits_per_character", "bits_per_character", "blimp", "cola")
TIMES = {"date", "train_seconds", "wall_seconds", "seconds"}


@pytest.fixture
def run(project, study_data, tmp_path):
    """Run a study of these arms in `tmp_path / name`, with few steps."""

    def run_arms(name, *arms, study=None, **options):
        study = Study.from_json(study or study_json(*arms))
        names = options.get("metrics", study.metrics)
        finetune = (
            FINETUNE if any(name in METRICS_BY_NAME and METRICS_BY_NAME[name].kind == "task" for name in names) else {}
        )
        reads_text = any(name in METRICS_BY_NAME and METRICS_BY_NAME[name].kind == "likelihood" for name in names)
        held_out = {"held_out": study_data / "held-out.txt"} if reads_text else {}
        options = {**held_out, "finetune": finetune, "overrides": TINY, **options}
        seeds, budget = options.pop("seeds", 1), options.pop("budget", "3steps")
        out = tmp_path / name
        return run_study(study, project / "corpus-bert", study_data, out, budget, seeds, StudyOptions(**options))

    return run_arms


def rows(out):
    """Return all rows of a study and the values of their examples, without what is measured by a clock."""

    def strip(value):
        return {k: strip(v) for k, v in value.items() if k not in TIMES} if isinstance(value, dict) else value

    return {str(p.relative_to(out)): strip(json.loads(p.read_text())) for p in sorted(out.glob("arms/*/seed-*.json"))}


def test_a_killed_study_continues_with_the_same_rows(run, tmp_path, monkeypatch):
    study = study_json(metrics=METRICS)
    status = run("whole", study=study, seeds=2)
    assert (status.num_done, status.num_rows, status.errors) == (4, 4, {})
    measure, num_calls = jobs.measure_arm, 0

    def kill_at_the_third(*args):
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise Killed
        return measure(*args)

    monkeypatch.setattr(jobs, "measure_arm", kill_at_the_third)
    with pytest.raises(Killed):
        run("killed", study=study, seeds=2)
    assert len(list((tmp_path / "killed").glob("arms/*/seed-?.json"))) == 1
    assert run("killed", study=study, seeds=2).is_complete
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert not list((tmp_path / "whole").rglob("*.safetensors")), "models are deleted"
    check_rows(tmp_path / "whole")


def fail_if(condition):
    if condition:
        raise ConfigError("scikit-learn is missing")


def test_simple_models_are_measured_once_on_the_same_examples(run, study_data, tmp_path, monkeypatch):
    run("out", arm("bert"), study=study_json(arm("bert"), metrics=["cola", "sst-2", "blimp"]), max_examples=40)
    baselines = json.loads((tmp_path / "out/baselines.json").read_text())
    data = read_task_data(METRICS_BY_NAME["sst-2"], study_data, 40)
    labels = [example.label for example in data.train]
    share = fmean(example.label == max(set(labels), key=labels.count) for example in data.dev)
    assert baselines.keys() == {"cola", "sst-2"} and baselines["sst-2"]["trivial"] == pytest.approx(share)
    assert baselines["cola"]["trivial"] == 0.0, "Matthews' correlation of one answer"
    assert (
        baselines["sst-2"]["linear"]
        == data.task.fit(data.train).baseline_metrics("linear", data.train, data.dev)["accuracy"]
    )
    monkeypatch.setattr(measurement, "read_task_data", None)
    measurement.measure_baselines(StudyPlan.read(tmp_path / "out"))
    monkeypatch.undo()
    (tmp_path / "out/baselines.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(ClassificationTask, "check_baseline", lambda self, name: fail_if(name == "linear"))
        measurement.measure_baselines(StudyPlan.read(tmp_path / "out"))
    assert not (tmp_path / "out/baselines.json").exists(), "what failed is tried again"
    measurement.measure_baselines(StudyPlan.read(tmp_path / "out"))
    assert json.loads((tmp_path / "out/baselines.json").read_text()) == baselines


def test_measurements_are_kept_if_the_model_is_lost(run, tmp_path, monkeypatch):
    study, measured, measure = study_json(arm("bert"), metrics=METRICS), [], ArmModel.measure
    assert run("whole", study=study).is_complete

    def stop_at_blimp(self, metric):
        if metric.name == "blimp":
            raise Killed
        return measure(self, metric)

    monkeypatch.setattr(ArmModel, "measure", stop_at_blimp)
    with pytest.raises(Killed):
        run("killed", study=study)
    shutil.rmtree(tmp_path / "killed/arms/bert/seed-0")
    page = runner.rewrite_pages(tmp_path / "killed").with_suffix(".md").read_text()
    row = json.loads((tmp_path / "killed/arms/bert/seed-0.partial.json").read_text())
    assert "0 of 1 runs are done" in page and f"| {row['metrics']['valid_loss']['value']:.3f} |" in page
    monkeypatch.setattr(ArmModel, "measure", lambda self, metric: measured.append(metric.name) or measure(self, metric))
    assert run("killed", study=study).is_complete and measured == ["blimp", "cola"]
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert "runs are done" not in (tmp_path / "killed/report.md").read_text()


def check_rows(out):
    """Check that the metrics of a row are those of its examples."""
    row = json.loads((out / "arms/nsp/seed-1.json").read_text())
    metrics, folder = row["metrics"], out / "arms/nsp"
    assert list(metrics) == [name for name in METRICS if name != "bits_per_character"], (
        "a masked model has no likelihood"
    )
    assert row["steps"] == 3 and row["recipe"]["seed"] == 1 and row["is_void"] and row["parameters"] > 0
    assert 0 < row["non_embedding_parameters"] < row["parameters"]
    assert metrics["valid_loss"]["value"] == row["valid"]["masked"]
    pairs = json.loads((folder / metrics["blimp"]["items"]).read_text())
    groups = [[p for p, g in zip(pairs["points"], pairs["groups"]) if g == i] for i in (0, 1)]
    assert metrics["blimp"]["value"] == pytest.approx(fmean(map(fmean, groups)))
    text = json.loads((folder / metrics["pseudo_bits_per_character"]["items"]).read_text())
    assert metrics["pseudo_bits_per_character"]["value"] == pytest.approx(
        sum(text["bits"]) / sum(text["characters"]), 1e-4
    )
    answers = json.loads((folder / metrics["cola"]["items"]).read_text())
    task = ClassificationTask.from_json(answers["task"])
    assert metrics["cola"]["value"] == task.score(answers["gold"], answers["predictions"][0])[answers["metric"]]
    assert json.loads((out / "lr.json").read_text())["nsp"]["lr"] == row["lr"]
    assert metrics["cola"]["finetune"]["lr"] == transfer.FINETUNE_OPTIMIZER.lr


def test_a_failed_arm_is_recorded_and_retried(run, tmp_path, monkeypatch, caplog):
    study = study_json(arm("good"), arm("bad"))
    pretrain = jobs.run_pretraining

    def fail(recipe, corpus, folder):
        if folder.parent.name == "bad" and folder.name == "seed-0":
            raise RuntimeError("no luck\ntoday")
        return pretrain(recipe, corpus, folder)

    monkeypatch.setattr(jobs, "run_pretraining", fail)
    status = run("out", study=study, seeds=2)
    assert status.num_done == 3 and status.errors == {"bad, seed 0": "RuntimeError: no luck today"}
    monkeypatch.setattr(jobs, "run_pretraining", pretrain)
    assert run("out", study=study, seeds=2, arms=["good"]).errors == status.errors
    assert run("out", study=study, seeds=2, time_limit=1.0).errors == {}, "it was not tried again, and did not fail"
    assert run("out", study=study, seeds=2).is_complete


def test_an_arm_may_use_the_model_of_another(run, tmp_path):
    frozen = {"name": "frozen", "from_arm": "bert", "transfer": "features", "transfer_options": {"layers": "last"}}
    study = study_json(arm("bert"), frozen, metrics=("valid_loss", "blimp", "sst-2"))
    assert run("out", study=study, finetune=FINETUNE).is_complete
    bert, features = (
        json.loads((tmp_path / f"out/arms/{name}/seed-0.json").read_text()) for name in ("bert", "frozen")
    )
    assert bert["recipe"] == features["recipe"] and not (tmp_path / "out/arms/frozen/lr.json").exists()
    assert list(bert["metrics"]) == ["valid_loss", "blimp", "sst-2"] and "blimp" not in features["metrics"]
    rates = [row["metrics"]["sst-2"]["finetune"]["lr"] for row in (bert, features)]
    assert rates == [transfer.FINETUNE_OPTIMIZER.lr, transfer.FEATURE_DEFAULTS.optimizer.lr]


def test_only_chosen_arms_run_and_models_can_be_kept(run, tmp_path):
    assert run("out", arms=["mlm"], keep_models=True).num_done == 1
    assert (tmp_path / "out/arms/mlm/seed-0/model/model.safetensors").is_file()
    assert run("out", keep_models=True).is_complete


def test_a_study_with_other_settings_is_rejected(run, tmp_path, monkeypatch):
    run("out")
    with pytest.raises(ConfigError, match="budget was '3steps', now '4steps'; repeat that call"):
        run("out", budget="4steps")
    with pytest.raises(ConfigError, match="seeds was"):
        run("out", seeds=[1, 0])
    with pytest.raises(ConfigError, match=r"study.arms.mlm.recipe was 'bert-tiny', now 'roberta-tiny'"):
        run("out", arm("nsp"), arm("mlm", "roberta-tiny", overrides={"objective": "MaskedLM"}))
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="transfer_version was 5, now 6"):
        patch.setattr(plan, "TRANSFER_VERSION", 6)
        run("out")
    assert run("out", study=study_json() | {"title": "Another title"}).is_complete, "texts may change"
    before = rows(tmp_path / "out")
    assert run("out", seeds=2).num_done == 4, "seeds may be added"
    assert before.items() < rows(tmp_path / "out").items()


def test_rows_of_a_study_are_measured_on_the_same_data(run, study_data, tmp_path):
    metrics = ("pseudo_bits_per_character",)
    run("out", study=study_json(metrics=metrics))
    (tmp_path / "other.txt").write_text((study_data / "held-out.txt").read_text().replace("The", "A"))
    with pytest.raises(ConfigError, match=r"inputs.held_out was"):
        run("out", study=study_json(metrics=metrics), held_out=tmp_path / "other.txt", seeds=2)
    tiny = {name: value for name, value in TINY.items() if name != "max_len"}
    arms = arm("long", overrides={"max_len": 32}), arm("short", overrides={"max_len": 28})
    run("lengths", study=study_json(arms[0], metrics=metrics), overrides=tiny)
    with pytest.raises(ConfigError, match=r"inputs.passage_tokens was 28, now 24"):
        run("lengths", study=study_json(*arms, metrics=metrics), overrides=tiny)


def test_what_a_kill_leaves_of_a_search_is_removed(run, tmp_path):
    folder = tmp_path / "out/arms/nsp"
    run("out", arms=["nsp"])
    (folder / "search-0.5/model").mkdir(parents=True)
    assert run("out").is_complete and not (folder / "search-0.5").exists()


def test_damaged_rows_are_named(run, tmp_path):
    run("out")
    for content in ("{}", '{"arm": "nsp", "seed": "0", "recipe": {}, "is_void": false, "metrics": {}}'):
        (tmp_path / "out/arms/nsp/seed-0.json").write_text(content)
        with pytest.raises(DataError, match=r"seed-0\.json is damaged"):
            run("out")


def test_an_arm_without_a_row_may_change(run, tmp_path):
    run("out", arms=["mlm"])
    arms = [arm(name, overrides={"objective": "MaskedLM"}) for name in ("nsp", "mlm")]
    (tmp_path / "out/arms/nsp").mkdir()
    (tmp_path / "out/arms/nsp/lr.json").write_text('{"lr": 1e-9}')
    with pytest.raises(ConfigError, match="budget was"):
        run("out", *arms, budget="4steps")
    assert (tmp_path / "out/arms/nsp/lr.json").is_file(), "nothing is deleted before all is checked"
    assert run("out", *arms).is_complete
    row = json.loads((tmp_path / "out/arms/nsp/seed-0.json").read_text())
    assert row["recipe"]["objective"]["kind"] == "MaskedLM" and row["lr"] > 1e-9


def test_arms_that_use_the_model_of_a_changed_arm_are_measured_again(run, tmp_path):
    frozen = {"name": "frozen", "from_arm": "bert", "transfer": "features", "transfer_options": {"layers": "last"}}
    run("out", study=study_json(arm("bert"), frozen, arm("other"), metrics=("sst-2",)), arms=["other"])
    old = {"arm": "frozen", "seed": 0, "is_unfinished": True, "metrics": {"sst-2": {"value": -1.0}}, "warnings": []}
    path = tmp_path / "out/arms/frozen/seed-0.partial.json"
    path.parent.mkdir()
    path.write_text(json.dumps(old))
    changed = arm("bert", overrides={"objective": "MaskedLM"})
    assert run("out", study=study_json(changed, frozen, arm("other"), metrics=("sst-2",))).is_complete
    assert json.loads((path.parent / "seed-0.json").read_text())["metrics"]["sst-2"]["value"] >= 0


def test_what_was_chosen_for_training_stays_if_the_transfer_changes(run, tmp_path, monkeypatch):
    run("out", arms=["mlm"])
    nsp, mlm = study_json()["arms"]
    folder = tmp_path / "out/arms/nsp"
    folder.mkdir()
    (folder / "lr.json").write_text('{"lr": 1e-9}')
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(jobs, "measure_arm", kill)
        run("out")
    (folder / "seed-0.partial.json").write_text('{"metrics": {"valid_loss": {"value": 1.0}}}')
    monkeypatch.setattr(jobs, "pretrain", None)  # the trained model stays, too
    assert run("out", nsp | {"transfer_options": {"epochs": 2.0}}, mlm).is_complete
    row = json.loads((folder / "seed-0.json").read_text())
    assert row["lr"] == 1e-9 and row["metrics"]["valid_loss"]["value"] > 1.0


def kill(*args):
    raise Killed


def asked_of(name, metric, *arms):
    """Return a study that compares an arm with the first one by its only metric."""
    question = {"text": "?", "arm": name, "reference": "a", "metric": metric, "predicted": "higher", "source": "none"}
    return study_json(*arms, metrics=(metric,), questions=[question])


@pytest.mark.parametrize(
    "options,message",
    [
        (
            {"metrics": ["wic", "cola", "trec"]},
            r"lacks the data of 2 metrics \(wic: wic; trec: trec\).*`metrics`: cola",
        ),
        ({"metrics": ["blimpp"]}, "did you mean 'blimp'"),
        ({"arms": ["nps"]}, "did you mean 'nsp'"),
        ({"overrides": {"model.dims": 3}}, "no arm of the study tiny has the setting 'model.dims'"),
        ({"overrides": {"seed": 3}}, "seed cannot be overridden"),
        ({"seeds": [1_000_003]}, "which the learning-rate search uses"),
        ({"budget": "soon"}, "a budget is a time"),
        ({"budget": "0steps"}, "a budget is a time"),
        ({"finetune": {"epochs": 1}}, "`finetune` has no effect: no arm of the study tiny"),
        ({"metrics": ["cola"], "finetune": {"lrr": 1}}, "the arm nsp: unknown key 'lrr'.*did you mean 'lr'"),
        ({"study": study_json(arm("a", overrides={"seed": 5}))}, "seed cannot be overridden"),
        ({"study": study_json(arm("a", tokenizer="bppe"))}, "arm a: unknown tokenizer kind 'bppe'; did you mean 'bpe'"),
        (
            {"study": study_json(arm("a", transfer="features", transfer_options={"layer": 1}), metrics=("cola",))},
            "the arm a: unknown key 'layer'",
        ),
        (
            {"study": asked_of("b", "valid_loss", arm("a"), {"name": "b", "from_arm": "a"})},
            "the arm b by valid_loss: it uses the model of a",
        ),
        ({"study": asked_of("b", "cola", arm("a"), arm("b", transfer="none"))}, "the arm b by cola: its `transfer`"),
        ({"study": asked_of("a", "valid_loss", arm("a"))}, "compares the arm a with itself"),
        ({"study": asked_of("b", "cola", arm("a"), arm("b", "ngram-3"))}, "the arm b by cola: it is an n-gram model"),
        ({"metrics": ["valid_loss"], "held_out": "one.txt"}, "`held_out` has no effect: no metric of the study tiny"),
        ({"search_fraction": 0.0}, "search_fraction"),
        ({"metrics": ["cola"], "finetune": {"epochs": -1}}, "the arm nsp: there is nothing to do in .* -1 epochs"),
        (
            {"study": study_json(arm("a", transfer_options={"target_epochs": 2}), metrics=("cola",))},
            "the arm a: unknown key 'target_epochs'",
        ),
        (
            {"study": study_json(arm("a", transfer="features", transfer_options={"layers": "lst"}), metrics=("cola",))},
            "the arm a: unknown layers 'lst'",
        ),
        ({"metrics": ["bits_per_character"], "held_out": "one.txt"}, "one.txt has no three sentences in a row"),
    ],
)
def test_wrong_options_are_rejected_before_anything_is_written(run, tmp_path, options, message):
    if "held_out" in options:
        options = options | {"held_out": tmp_path / "one.txt"}
        options["held_out"].write_text("The cat sat.\n")
    with pytest.raises((ConfigError, DataError, UnsupportedError), match=message):
        run("out", **options)
    assert not (tmp_path / "out").exists()


def test_chosen_epochs_have_no_minimum_of_steps(run, tmp_path, monkeypatch):
    configs, finetune = [], transfer.finetune
    monkeypatch.setattr(transfer, "finetune", lambda *args: configs.append(args[3]) or finetune(*args))
    run("out", arm("bert"), study=study_json(arm("bert"), metrics=("cola",)), finetune={"epochs": 0.1})
    assert [(config.epochs, config.min_steps) for config in configs] == [(0.1, 0)]


def test_the_dev_examples_of_mrpc_are_part_of_its_data(study_data, tmp_path):
    metric = METRICS_BY_NAME["mrpc"]
    names = [path.name for path in metric.find_files(study_data)]
    assert names == ["msr_paraphrase_train.txt", "dev_ids.tsv"] and not metric.is_missing(study_data, None)
    (tmp_path / "glue/MRPC").mkdir(parents=True)
    (tmp_path / "glue/MRPC/msr_paraphrase_train.txt").touch()
    assert metric.is_missing(tmp_path, None), "the file of its dev examples is missing"


def test_a_time_budget_becomes_steps_that_are_fixed(run, tmp_path, monkeypatch):
    from polyseme.studies import calibration

    monkeypatch.setattr(calibration, "TIMED_STEPS", 10)
    assert run("out", arm("bert"), study=None, budget="1s", arms=()).is_complete
    facts = json.loads((tmp_path / "out/calibration.json").read_text())["bert"]
    row = json.loads((tmp_path / "out/arms/bert/seed-0.json").read_text())
    assert facts["steps"] == row["steps"] == max(int(1 / facts["seconds_per_step"]), 1) and facts["device"] == "cpu"


def test_no_job_is_started_that_cannot_end_in_time(run, tmp_path):
    run("out", arms=["mlm"])
    times = {"pretrain nsp": 1000.0, "search nsp": 1000.0, "search mlm": 5.0}  # those of another arm say nothing
    runner.write_json(tmp_path / "out/times.json", {"seconds": times})
    status = run("out", time_limit=500.0)
    assert status.num_done == 1 and status.is_stopped
    assert run("out", time_limit=3000.0).is_complete


@pytest.fixture
def ended(monkeypatch):
    """Run jobs as if several did at a time, the last that is ready first; return those that have ended.

    The end of a job is noticed only after the next one that is ready.
    """
    ended = []

    class InOrder(runner.Scheduler):
        is_local = False

        def run(self, jobs_left, is_ready=lambda job: True):
            pending, unnoticed = list(jobs_left), []
            while (ready := [job for job in pending if is_ready(job)]) or unnoticed:
                if ready:
                    pending.remove(ready[-1])  # the first seed as late as possible
                    jobs.run_job(self.plan, ready[-1])
                    ended.append(ready[-1])
                    unnoticed.append(ready[-1])
                if len(unnoticed) == 2 or not ready:
                    while unnoticed:
                        self.on_end(unnoticed.pop(0), "", 1.0)

    monkeypatch.setattr(runner, "Scheduler", InOrder)
    return ended


def test_rows_are_trained_as_soon_as_their_rate_is_known(run, ended, tmp_path, monkeypatch):
    arms = arm("bert"), arm("counts", "ngram-5", transfer="none")
    with monkeypatch.context() as patch:
        patch.setattr(runner, "Scheduler", scheduler.Scheduler)
        assert run("whole", *arms, seeds=3).is_complete
    assert run("parallel", *arms, seeds=3, jobs=3).is_complete
    bert = [job.kind for job in ended if job.arm == "bert"]
    assert bert[:2] == ["search", "pretrain"] and bert.count("pretrain") == bert.count("measure") == 3
    assert [job.kind for job in ended if job.arm == "counts"] == ["pretrain", "measure"], "n-grams are counted once"
    assert ended[0].arm == "counts", "the others do not wait for it"
    assert rows(tmp_path / "parallel") == rows(tmp_path / "whole")
    assert not list((tmp_path / "parallel").rglob("*.safetensors")), "models are deleted"


def test_what_questions_need_is_measured_first(run, ended, tmp_path):
    asked = {"text": "?", "arm": "b", "reference": "a", "metric": "sst-2", "predicted": "higher", "source": ""}
    study = study_json(arm("a"), arm("b"), metrics=["valid_loss", "cola", "sst-2"], questions=[asked])
    assert run("out", study=study, jobs=2).is_complete
    metrics = [job.metric for job in reversed(ended) if job.kind == "measure"]  # the last that is ready runs first
    assert metrics == ["sst-2", "", "cola"] * 2


def test_each_task_is_measured_by_a_job_of_its_own(run, ended, tmp_path, monkeypatch):
    frozen = {"name": "frozen", "from_arm": "bert", "transfer": "features", "transfer_options": {"layers": "last"}}
    study = study_json(arm("bert"), frozen, metrics=("blimp", "sst-2", "cola"))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "Scheduler", scheduler.Scheduler)
        assert run("whole", study=study, seeds=2).is_complete
    assert run("parallel", study=study, seeds=2, jobs=2).is_complete
    assert len([job for job in ended if job.kind == "measure" and job.metric]) == 8
    assert rows(tmp_path / "parallel") == rows(tmp_path / "whole")
    assert not list((tmp_path / "parallel").rglob("transfer/*")), "features are deleted after each task"


def test_a_row_that_was_measured_but_not_finished_is_finished(run, ended, tmp_path):
    assert run("out", jobs=2, seeds=2).is_complete
    whole, folder = rows(tmp_path / "out"), tmp_path / "out/arms/mlm"
    row = json.loads((folder / "seed-1.json").read_text())
    (folder / "seed-1.partial.json").write_text(json.dumps(row | {"is_unfinished": True}))
    (folder / "seed-1.json").unlink()
    ended.clear()
    assert run("out", jobs=2, seeds=2).is_complete and not ended
    assert rows(tmp_path / "out") == whole


def test_other_metrics_of_a_row_are_kept_if_one_fails(run, ended, tmp_path, monkeypatch):
    study, measure = study_json(arm("bert"), metrics=("blimp", "sst-2", "cola")), ArmModel.measure

    def fail(self, metric):
        if metric.name == "sst-2":
            raise DataError("no luck")
        return measure(self, metric)

    def run_job(plan, job, run_job=jobs.run_job):
        with contextlib.suppress(DataError):
            run_job(plan, job)

    with monkeypatch.context() as patch:
        patch.setattr(ArmModel, "measure", fail)
        patch.setattr(jobs, "run_job", run_job)
        assert run("out", study=study, jobs=2).num_done == 0
    row = json.loads((tmp_path / "out/arms/bert/seed-0.partial.json").read_text())
    assert row["metrics"].keys() == {"blimp", "cola"}
    ended.clear()
    assert run("out", study=study, jobs=2).is_complete
    assert ended == [Job("measure", "bert", 0, "sst-2")], "the model is still there"


def test_a_corpus_that_fails_is_the_error_of_its_arms_alone(run, ended, tmp_path, monkeypatch):
    arms = arm("bert"), *(arm(name, "gpt2-tiny", tokenizer="bpe") for name in ("gpt-2", "gpt-2b"))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "Scheduler", scheduler.Scheduler)
        patch.setattr(corpora, "prepare", lambda *args: fail_if(True))
        status = run("out", *arms, seeds=2)
    assert status.num_done == 2
    assert status.errors == {f"{a}, seed {s}": "scikit-learn is missing" for a in ("gpt-2", "gpt-2b") for s in (0, 1)}
    monkeypatch.setattr(corpora, "_train_tokenizer", None)  # that of the first call is used
    assert run("out", *arms, seeds=2, jobs=2).is_complete
    assert [job.arm for job in ended if job.kind == "prepare"] == ["gpt-2"], "once, for both arms"
    shutil.rmtree(tmp_path / "out/corpora")
    monkeypatch.setattr(corpora, "open_sources", None)
    assert run("out", *arms, seeds=2).is_complete, "finished arms need no text"


def test_ngrams_are_counted_once(run, tmp_path, monkeypatch):
    train, calls = jobs.train_ngram, []
    monkeypatch.setattr(jobs, "train_ngram", lambda *args: calls.append(args) or train(*args))
    study = study_json(arm("counts", "ngram-5", transfer="none"), metrics=("bits_per_character", "blimp"))
    assert run("out", study=study, seeds=3, overrides={}).is_complete and len(calls) == 1
    folder = tmp_path / "out/arms/counts"
    first, last = (json.loads((folder / f"seed-{i}.json").read_text()) for i in (0, 2))
    assert last["metrics"]["blimp"]["items"] == "seed-2.blimp.json" and last["seed"] == 2
    assert last["metrics"]["blimp"]["value"] == first["metrics"]["blimp"]["value"]
    assert (folder / "seed-2.blimp.json").read_bytes() == (folder / "seed-0.blimp.json").read_bytes()


def test_a_search_without_held_out_documents_says_so(run, tmp_path):
    study = study_json(arm("mlm", overrides={"objective": "MaskedLM"}), lr_factors=[0.5, 1.0])
    status = run("out", study=study, overrides=TINY | {"valid_fraction": 0.0})
    assert "no documents are held out that show its loss: hold out more (`valid_fraction`)" in str(status.errors)
