"""Distillation: initialization of the student, loss terms, and runs."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from polyseme.compress.distillation import distill_lm, with_distillation
from polyseme.compress.student import build_student_recipe, derive_recipe, init_from_teacher, teacher_layer_map
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.attention.relative import exclude_from_compile
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.distillation import Distillation, DistillationLoss
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.packing import SpecialIds
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import pretrain as module
from polyseme.train.checkpoint import load_checkpoint
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.weights.folder import load_model, save_model
from tests.support import cases
from tests.support.text import documents

STUDENTS = [("bert", "distilbert"), ("bert", "bert"), ("roberta", "roberta"), ("gpt2", "gpt2")]
SIZE = {"dim": 24, "num_heads": 3, "ffn_dim": 40, "vocab_size": cases.VOCAB, "max_len": 32}


def pair(teacher: str, student: str, dtype=torch.float64):
    """Build a teacher of four layers with perturbed weights, and a student of two."""
    model = FAMILIES[teacher].model_config(**SIZE, num_layers=4, dropout=0.0, attention_dropout=0.0).build(seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.2)
    spec = FAMILIES[student].model_config(**SIZE, num_layers=2, dropout=0.0, attention_dropout=0.0)
    return model.to(dtype).eval(), spec.build(seed=3).to(dtype)


# --- initialization --------------------------------------------------------------------------------------------------


def test_layers_are_evenly_spaced():
    assert teacher_layer_map(6, 12) == [0, 2, 4, 7, 9, 11]  # as in the released code
    assert teacher_layer_map(3, 6) == [0, 2, 5] and teacher_layer_map(1, 2) == [0]
    assert teacher_layer_map(4, 4) == [0, 1, 2, 3]
    with pytest.raises(PolysemeError, match="5 layers cannot start from a teacher of 4"):
        teacher_layer_map(5, 4)


@pytest.mark.parametrize("teacher,student", STUDENTS)
def test_student_is_initialized_from_its_teacher(teacher, student):
    above, below = pair(teacher, student)
    init_from_teacher(below, above)
    teacher_state = above.state_dict()
    for name, tensor in below.state_dict().items():
        if name.startswith("trunk.blocks."):
            depth = {"0": "0", "1": "3"}[name.split(".")[2]]
            name = ".".join(["trunk.blocks", depth, *name.split(".")[3:]])
        if not name.endswith("positions.weight"):
            assert torch.equal(tensor, teacher_state[name]), name
    tokens = torch.arange(5, 17)
    first, second = (
        m.trunk(Inputs(tokens, PackedLayout.from_lengths([12])), layers=[0]).layers[0] for m in (above, below)
    )
    torch.testing.assert_close(first, second, atol=1e-12, rtol=0)


def test_incompatible_sizes_are_errors():
    above, _ = pair("bert", "bert")
    for changes, message in (
        ({"dim": 48}, "tokens.weight is"),
        ({"num_layers": 9}, "9 layers"),
        ({"ffn_dim": 16}, r"ffn\.up"),
    ):
        student = FAMILIES["distilbert"].model_config(**SIZE | {"num_layers": 2} | changes).build(seed=0)
        with pytest.raises(PolysemeError, match=message):
            init_from_teacher(student, above)
    shorter = FAMILIES["distilbert"].model_config(**SIZE | {"num_layers": 2, "max_len": 8}).build(seed=0)
    init_from_teacher(shorter, above.float())
    assert len(shorter.state_dict()["trunk.embeddings.positions.weight"]) == 8


# --- loss terms ------------------------------------------------------------------------------------------------------


def batch_of(model, rows, **weights):
    """Build a batch with the targets of the teacher."""
    base = CausalLM() if "next" in model.heads else MaskedLM()
    return Distillation(base, **weights).add_teacher_targets(cases.training_batch(model, rows))


@pytest.mark.parametrize("soft_tokens", ["all", "masked"])
@pytest.mark.parametrize("teacher,student", STUDENTS)
def test_terms_equal_those_of_the_paper(teacher, student, soft_tokens):
    """Compare with torch's losses, combined as in the released code: batch means, 5, 2 and 1, temperature 2.

    There, soft targets are those of all tokens that are attended to, unless restricted to the masked ones.
    """
    above, below = pair(teacher, student)
    below.eval()
    objective = Distillation(CausalLM() if teacher == "gpt2" else MaskedLM(), soft_tokens=soft_tokens)
    batch = batch_of(below, cases.sequences((5, 9, 3)), soft_tokens=soft_tokens)
    head = objective.token_head
    target = batch.targets[head]
    losses = DistillationLoss(objective, above).compute(below, batch)
    assert tuple(losses) == tuple(batch.targets)
    assert {name: batch.targets[name].weight for name in (head, "soft", "cosine")} == {head: 2, "soft": 5, "cosine": 1}
    last, shown = (m.trunk(batch.inputs).hidden for m in (below, above))
    is_soft = target.rows if soft_tokens == "masked" or head == "next" else slice(None)
    mine, theirs = (m.predict(head, h, batch.inputs.layout)[is_soft] for m, h in ((below, last), (above, shown)))
    soft = torch.nn.KLDivLoss(reduction="batchmean")(F.log_softmax(mine / 2, -1), F.softmax(theirs / 2, -1)) * 4
    cosine = torch.nn.CosineEmbeddingLoss()(last, shown, torch.ones(len(last)))
    hard = F.cross_entropy(below.predict(head, last, batch.inputs.layout, target.rows), target.labels)
    expected = {head: hard, "soft": soft, "cosine": cosine}
    for name, value in expected.items():
        torch.testing.assert_close((losses[name] / batch.targets[name].count).double(), value, atol=1e-6, rtol=1e-6)
    assert soft > 0.01 and 0 < cosine < 2


def gradients(model, terms, batches):
    """Run one step and return its report and the gradients."""
    optim = OptimizerConfig(lr=0.0, max_grad_norm=0.0)
    run = TrainState(
        model, optim.build(model, model.trunk.layer_groups()), optim, ScheduleConfig(), 1, torch.device("cpu")
    )
    run.loss_fn = terms
    (report,) = train(run, [(batches, None)])
    return report, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype,tolerance", cases.DTYPES)
@pytest.mark.parametrize("teacher,student", STUDENTS)
def test_micro_batches_do_not_change_the_gradient(teacher, student, dtype, tolerance):
    above, below = pair(teacher, student, dtype)
    objective = Distillation(
        CausalLM() if teacher == "gpt2" else MaskedLMWithSentencePairs() if student == "bert" else MaskedLM()
    )
    rows = cases.sequences((5, 9, 9, 1, 12, 5))
    terms = DistillationLoss(objective, above).compute
    report, expected = gradients(below, terms, [batch_of(below, rows)])
    assert set(report.loss) == {*objective.terms, "soft", "cosine"}
    assert all(p.grad is None for p in above.parameters())
    for cut in ((1, 2, 3), (4, 2)):
        ends = np.cumsum(cut)
        parts = [batch_of(below, rows[end - n : end]) for n, end in zip(cut, ends)]
        split_report, split_gradients = gradients(below, terms, parts)
        assert split_report.loss == pytest.approx(report.loss, rel=1e-5)
        for name, gradient in split_gradients.items():
            torch.testing.assert_close(gradient, expected[name], atol=tolerance, rtol=tolerance)


def test_weights_scale_the_gradient_and_not_the_report():
    above, below = pair("bert", "distilbert")
    terms, rows = DistillationLoss(Distillation(), above).compute, cases.sequences((5, 9))
    parts, losses = {}, {}
    for name in ("hard", "soft", "cosine"):
        weights = dict.fromkeys(("hard_weight", "soft_weight", "cosine_weight"), 0.0) | {f"{name}_weight": 1.0}
        report, parts[name] = gradients(below, terms, [batch_of(below, rows, **weights)])
        losses |= report.loss
        assert set(report.loss) == {"masked", *{name} - {"hard"}}, "terms with the weight 0 are left out"
    full_report, full_gradients = gradients(below, terms, [batch_of(below, rows)])
    assert full_report.loss == losses
    for name, gradient in full_gradients.items():
        expected = 2 * parts["hard"][name] + 5 * parts["soft"][name] + parts["cosine"][name]
        torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-6)


def test_losses_are_zero_for_equal_models():
    above, _ = pair("bert", "bert")
    loss = DistillationLoss(Distillation(MaskedLMWithSentencePairs()), above)
    losses = loss.compute(above, batch_of(above, cases.sequences((5, 9))))
    assert float(losses["soft"]) == pytest.approx(0, abs=1e-5) and float(losses["cosine"]) == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
def test_compiled_and_eager_agree():
    """Compile student and teacher as one graph, without the C++ backend, which would take most of a minute."""
    above, below = pair("bert", "distilbert", torch.float32)
    terms, batch = DistillationLoss(Distillation(), above).compute, batch_of(below, cases.sequences((5, 9, 9)))
    plain, expected = gradients(below, terms, [batch])
    exclude_from_compile()
    report, compiled_gradients = gradients(below, torch.compile(terms, backend="aot_eager"), [batch])
    assert report.loss == pytest.approx(plain.loss, rel=1e-5)
    for name, gradient in compiled_gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4)


def run_steps(model, terms, batches, steps, **changes):
    """Train on the same batches and return the reports."""
    optim = OptimizerConfig(lr=1e-2, beta2=0.98)
    device = changes.pop("device", torch.device("cpu"))
    run = TrainState(
        model, optim.build(model, model.trunk.layer_groups()), optim, ScheduleConfig(), steps, device, **changes
    )
    run.loss_fn = terms
    return list(train(run, [(batches, None)] * steps))


def test_overfits_one_batch():
    """A student of two layers with fresh weights learns the states and predictions of a teacher of four."""
    above, below = pair("bert", "distilbert", torch.float32)
    batch = batch_of(below, cases.sequences((5, 9, 9)), hard_weight=0.0, soft_weight=1.0, cosine_weight=1.0)
    reports = run_steps(below, DistillationLoss(Distillation(), above).compute, [batch], 150)
    for name in ("soft", "cosine"):
        assert reports[-1].loss[name] < reports[0].loss[name] / 10, (name, reports[0].loss, reports[-1].loss)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_bf16_on_a_gpu_is_near_float32():
    device, losses = torch.device("cuda"), []
    for precision in ("float32", "bf16"):
        above, below = pair("bert", "distilbert", torch.float32)
        batches = [batch_of(below, cases.sequences((5, 9, 9)))]
        teacher = above.to(device, torch.bfloat16 if precision == "bf16" else torch.float32)
        terms = DistillationLoss(Distillation(), teacher).compute
        reports = run_steps(below.to(device), terms, batches, 3, device=device, precision=precision)
        losses.append(reports[-1].loss)
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teacher_run(tmp_path_factory):
    """Prepare a corpus and train a teacher on it; return the folder and the recipe."""
    folder = tmp_path_factory.mktemp("teacher")
    (folder / "text.txt").write_text("\n\n".join(documents(120)))
    tokenizer = Tokenizer.train("wordpiece", iter(documents(120)), 120)
    prepare([folder / "text.txt"], tokenizer, folder / "corpus", PrepareConfig(split="blank", dedup="none"))
    recipe = Recipe(
        name="teacher",
        family="bert",
        model={"num_layers": 4, "dim": 24, "num_heads": 2, "max_len": 32, "dropout": 0.0, "init_std": 0.06},
        objective=MaskedLM(mask_prob=0.3),
        max_len=32,
        batch_tokens=384,
        micro_batch_tokens=192,
        budget=BudgetConfig(steps=120),
        optimizer=OptimizerConfig(lr=5e-3, beta2=0.98),
        valid_fraction=0.1,
        eval_every=1000,
        eval_tokens=2048,
        save_every=1000,
    )
    pretrain(recipe, folder / "corpus", folder / "teacher")
    return folder, recipe


def student_recipe(teacher_run, steps=9, **changes):
    """Return the recipe of a student of half the layers."""
    folder, recipe = teacher_run
    derived = build_student_recipe(load_model(folder / "teacher/model").model.config, recipe)
    changes["model"] = derived.model | changes.get("model", {})
    save_every = 2 if steps < 10 else 1000
    return derived.replace(budget=BudgetConfig(steps=steps), save_every=save_every, log_every=1, **changes)


def run(teacher_run, recipe, out, resume=False):
    """Distill the teacher."""
    folder = teacher_run[0]
    return distill_lm(folder / "teacher/model", folder / "corpus", out, recipe, resume).record["results"]


def test_student_has_half_the_layers(teacher_run, tmp_path):
    folder = teacher_run[0]
    results = run(teacher_run, student_recipe(teacher_run, steps=30), tmp_path / "run")
    student = load_model(tmp_path / "run/model")
    assert student.model.config.family == "distilbert" and student.model.config.trunk.num_layers == 2
    assert set(student.model.heads) == {"masked"} and student.metadata["recipe"]["objective"]["teacher"] == str(
        folder / "teacher/model"
    )
    rows = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 30 and set(losses[0]) == {"masked", "soft", "cosine"}
    for name in losses[0]:
        first, last = (np.mean([loss[name] for loss in part]) for part in (losses[:5], losses[-5:]))
        assert last < first, name
    assert set(results["valid"]) == {"masked", "masked_accuracy", "perplexity"}
    assert json.loads((tmp_path / "run/recipe.json").read_text())["recipe"]["objective"]["kind"] == "Distillation"


def test_distillation_beats_training_alone(teacher_run, tmp_path):
    """Compare with the same student, steps and batches, but fresh weights and masked LM alone."""
    folder, recipe = teacher_run[0], student_recipe(teacher_run, steps=40)
    distilled = run(teacher_run, recipe, tmp_path / "distilled")
    alone = pretrain(recipe, folder / "corpus", tmp_path / "alone")
    assert distilled["valid"]["masked"] < alone["valid"]["masked"] - 0.2


def test_resumed_run_ends_with_the_same_weights(teacher_run, tmp_path, monkeypatch):
    recipe = student_recipe(teacher_run)
    run(teacher_run, recipe, tmp_path / "full")
    real = module.train

    def dying(run, data):
        for report in real(run, data):
            if report.step == 5:
                raise KeyboardInterrupt
            yield report

    monkeypatch.setattr(module, "train", dying)
    with pytest.raises(KeyboardInterrupt):
        run(teacher_run, recipe, tmp_path / "killed")
    monkeypatch.setattr(module, "train", real)
    run(teacher_run, recipe, tmp_path / "killed", resume=True)
    first, second = (load_checkpoint(tmp_path / name / "checkpoints") for name in ("full", "killed"))
    assert first.step == second.step == 9
    for file, tensors in first.tensors.items():
        assert all(torch.equal(t, second.tensors[file][name]) for name, t in tensors.items())


@pytest.mark.parametrize("is_frozen", [False, True])
def test_frozen_positions_stay_those_of_the_teacher(teacher_run, tmp_path, is_frozen):
    objective = Distillation(teacher_run[1].objective, freeze_positions=is_frozen)
    run(teacher_run, student_recipe(teacher_run, steps=2, objective=objective), tmp_path / "run")
    teacher, student = (
        load_model(folder / "model").model.trunk.embeddings for folder in (teacher_run[0] / "teacher", tmp_path / "run")
    )
    initial = teacher.positions.weight + teacher.segments.weight[0]  # the student has no segments
    assert torch.equal(student.positions.weight, initial) == is_frozen
    assert not torch.equal(student.tokens.weight, teacher.tokens.weight)


def test_filler_is_not_counted(teacher_run):
    folder, recipe = teacher_run
    data, valid = module.open_streams(
        with_distillation(recipe, folder / "teacher/model").replace(compile=True),
        module.Corpus.open(folder / "corpus"),
        SpecialIds.from_tokenizer(Tokenizer.load(folder / "corpus/tokenizer")),
    )  # fmt: skip
    (first, *_), _ = next(data.steps(module.DataPosition()))
    assert first.num_tokens < len(first.inputs.tokens) == 192
    cosine = first.targets["cosine"]
    assert cosine.count == first.num_tokens == int((cosine.labels != IGNORE_INDEX).sum())
    assert first.targets["soft"].count == first.num_tokens > first.targets["masked"].count
    assert valid.batch(np.arange(2), 0).targets.keys() == {"masked", "soft", "cosine"}


def test_errors(teacher_run, tmp_path):
    folder, recipe = teacher_run
    other = Tokenizer.train("wordpiece", iter(documents(120)), 160)
    prepare([folder / "text.txt"], other, tmp_path / "corpus", PrepareConfig(split="blank"))
    with pytest.raises(
        PolysemeError, match=r"another vocabulary .*: prepare it with the tokenizer of .*teacher/model$"
    ):
        distill_lm(folder / "teacher/model", tmp_path / "corpus", tmp_path / "run", student_recipe(teacher_run))
    with pytest.raises(PolysemeError, match="cannot be a teacher: it has no head 'next'"):
        run(teacher_run, student_recipe(teacher_run).replace(objective=CausalLM()), tmp_path / "run")
    with pytest.raises(PolysemeError, match=r"objective\.teacher is empty"):
        pretrain(recipe.replace(objective=Distillation()), folder / "corpus", tmp_path / "run")
    with pytest.raises(PolysemeError, match="temperature is 0"):
        Distillation(temperature=0)
    with pytest.raises(PolysemeError, match="so nothing would be learned"):
        Distillation(soft_weight=0, hard_weight=0, cosine_weight=0)
    with pytest.raises(PolysemeError, match="nowhere does not exist"):
        distill_lm(folder / "teacher/model", tmp_path / "nowhere", tmp_path / "run", student_recipe(teacher_run))
    assert not (tmp_path / "run").exists()
    run(teacher_run, student_recipe(teacher_run, steps=2), tmp_path / "run")
    changed = load_model(folder / "teacher/model")
    with torch.no_grad():
        changed.model.trunk.token_embeddings.add_(0.01)
    save_model(tmp_path / "other", changed.model, changed.tokenizer)
    with pytest.raises(PolysemeError, match=r"another recipe: objective\.teacher was"):
        distill_lm(tmp_path / "other", folder / "corpus", tmp_path / "run", student_recipe(teacher_run, steps=2), True)


def test_command(project, run_cli, cli, tmp_path):
    common = ("distill", project / "run-bert/model", "--corpus", project / "corpus-bert", "--out", tmp_path / "run")
    options = ("--budget", "3steps", "--set", "objective.temperature=1.5", "--set", "objective.base.mask_prob=0.2")
    output = run_cli(
        *common, *options, "--set", "max_len=32", "--set", "batch_tokens=256", "--set", "micro_batch_tokens=256"
    )
    assert "valid masked" in output and "parameters" in output and f"{tmp_path}/run/model" in output
    page = (tmp_path / "run/compression.html").read_text()
    assert (
        "distilbert with 1 layer, distilled from" in page and "The student started with layers of the teacher." in page
    )
    assert "5 × the teacher&#x27;s predictions" in page or "5 × the teacher's predictions" in page
    saved = json.loads((tmp_path / "run/recipe.json").read_text())["recipe"]
    assert saved["objective"]["temperature"] == 1.5 and saved["objective"]["base"]["mask_prob"] == 0.2
    assert saved["family"] == "distilbert" and saved["model"]["num_layers"] == 1
    assert "--resume" in cli(*common, *options).err
    run_cli("distill", "--resume", "--out", tmp_path / "run", "--budget", "4steps")
    assert json.loads((tmp_path / "run/results.json").read_text())["steps"] == 4
    assert "is a distillation of" in cli("pretrain", "--resume", "--out", tmp_path / "run").err
    assert "is not a distillation" in cli("distill", "--resume", "--out", project / "run-bert").err
    assert "the teacher is missing" in cli("distill", "--out", tmp_path / "new").err
    gpt2 = ("distill", project / "run-gpt2/model", "--corpus", project / "corpus-gpt2", "--out", tmp_path / "gpt2")
    output = run_cli(*gpt2, "--budget", "2steps", "--set", "batch_tokens=256", "--set", "micro_batch_tokens=256")
    assert "valid next" in output
    answer = cli("distill", project / "run-gpt2/model", "--corpus", project / "corpus-bert", "--out", tmp_path / "no")
    assert answer.status == 2 and "another vocabulary" in answer.err and not (tmp_path / "no").exists()
    answer = cli("distill", tmp_path / "none", "--corpus", project / "corpus-bert", "--out", tmp_path / "no")
    assert answer.status == 2 and "no model folder" in answer.err


def test_derived_recipe_follows_the_teacher(teacher_run, tmp_path):
    folder, _ = teacher_run
    small = derive_recipe(folder / "teacher/model", 1000)
    assert small.family == "distilbert" and small.model["num_layers"] == 2 and small.model["dim"] == 24
    assert small.budget.steps == 60 and small.optimizer.lr == 5e-3 and small.objective == MaskedLM(mask_prob=0.3)
    model = load_model(folder / "teacher/model")
    config = FAMILIES["bert"].model_config(num_layers=4, dim=320, num_heads=5, vocab_size=120, max_len=32)
    saved_recipe = Recipe("teacher", "bert", max_len=32, batch_tokens=640, micro_batch_tokens=320).to_json()
    for name, metadata, batch_tokens in (("with-recipe", {"recipe": saved_recipe}, 640), ("without", {}, 16384)):
        save_model(tmp_path / name, config.build(0), model.tokenizer, metadata)
        derived = derive_recipe(tmp_path / name, 10_000_000)
        assert derived.batch_tokens == batch_tokens and derived.max_len == 32 and derived.model["num_layers"] == 2
        assert derived.budget == (BudgetConfig(steps=500) if metadata else BudgetConfig(tokens=30_000_000))
    with pytest.raises(PolysemeError, match="no model folder"):
        derive_recipe(tmp_path / "nowhere", 1000)
