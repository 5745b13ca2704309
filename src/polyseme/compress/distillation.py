"""Distillation of a language model into a smaller one."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyseme.compress.result import (
    CompressionResult,
    CompressionRow,
    CurvePoint,
    describe_devices,
    latency_rows,
    size_rows,
)
from polyseme.compress.student import choose_recipe, init_from_teacher, warn_if_larger
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError, ModelError, UnsupportedError
from polyseme.families import FAMILIES
from polyseme.inference.load import load
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model
from polyseme.objectives.distillation import Distillation
from polyseme.objectives.packing import SpecialIds
from polyseme.recipes.launch import resolve_arguments
from polyseme.text.tokenizer import Tokenizer
from polyseme.train import distributed
from polyseme.train.loop import TrainState, setup_device
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.pretrain import InitialModel, evaluate, pretrain
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import ModelFolder, hash_weights, load_model, read_model_config

logger = logging.getLogger(__name__)


def distill(
    teacher: str | Path | None = None,
    corpus: Any = None,
    *,
    out: str | Path,
    student: Recipe | str | Path = "",
    task: Any = None,
    resume: bool = False,
    **options: Any,
) -> CompressionResult:
    """Distill a model into a smaller one, and compare the two.

    A language model is distilled on a `corpus` that was prepared with its tokenizer. `student` is a recipe, or a size
    of the student's family; by default a recipe is derived from the teacher: half of its layers and, if its folder says
    how it was pre-trained, half of its steps. `options` override fields of the recipe, as in `polyseme.pretrain`:
    `budget="20m"`, `objective={"temperature": 1.5}`. `out` is a run folder, and `resume` continues the run in it.

    With a `task`, a fine-tuned model is distilled on labeled examples and on unlabeled texts (`distill_task`), and
    `options` are those of `polyseme.finetune`, `text`, and the fields of `TaskDistillation`.

    >>> from polyseme.compress import distill
    >>> small = distill("run", corpus, out="small", budget="2steps")
    >>> small.row("parameters").after < small.row("parameters").before
    True
    """
    path = None if teacher is None else Path(teacher)
    student = student if isinstance(student, Recipe) else str(student)
    if task is not None:
        if path is None:
            raise ConfigError("the teacher is missing: pass the folder of a fine-tuned model")
        if corpus is not None or resume:
            extra = "`corpus`" if corpus is not None else "`resume`"
            raise ConfigError(f"{extra} is for language models: a task has `data`, and the same call resumes its run")
        from polyseme.compress.task_distillation import distill_task

        return distill_task(path, task, Path(out), student, options)
    corpus_path = None if corpus is None else Path(getattr(corpus, "path", corpus))
    return distill_lm(path, corpus_path, Path(out), student, resume, options)


def distill_lm(
    teacher: Path | None,
    corpus: Path | None,
    out: Path,
    student: Any = "",
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> CompressionResult:
    """Train a student of a language model on a corpus, in a run folder as that of `pretrain`, and compare the two.

    An objective that is not a distillation becomes one. The student starts with layers of the teacher, or with random
    weights if that is impossible. What is not passed to a resumed run is that of the run.
    """
    is_saved, recipe = resume and (out / "recipe.json").is_file(), None
    if student or not is_saved:
        if teacher is None:
            raise ConfigError("the teacher is missing: pass the folder of a model")
        if corpus is None and not is_saved:
            raise ConfigError("`corpus` is missing: pass the folder of a prepared corpus")
        num_tokens = 0 if corpus is None else Corpus.open(corpus).num_tokens
        recipe = student if isinstance(student, Recipe) else choose_recipe(teacher, student, num_tokens)
        recipe = with_distillation(recipe, teacher)
    arguments = resolve_arguments(recipe, corpus, out, overrides or {}, resume)
    if not isinstance(arguments.recipe, Recipe) or not isinstance(arguments.recipe.objective, Distillation):
        raise ConfigError(f"{out} is not a distillation: resume it by `pretrain`")
    teacher, corpus = teacher or Path(arguments.recipe.objective.teacher), arguments.corpus
    folder = load_model(teacher)
    recipe, model = build_student(with_distillation(arguments.recipe, teacher), folder, corpus)
    results = pretrain(recipe, corpus, out, resume, InitialModel(model, {}))
    return compare_models(recipe, folder, corpus, out, results)


def with_distillation(recipe: Recipe, teacher: Path) -> Recipe:
    """Return the recipe with a distillation of this teacher as its objective."""
    objective = recipe.objective
    if not isinstance(objective, Distillation):
        objective = Distillation(objective)
    return recipe.replace(objective=objective.replace(teacher=str(teacher), teacher_hash=hash_weights(teacher)))


def build_student(recipe: Recipe, teacher: ModelFolder, corpus: Path) -> tuple[Recipe, Model]:
    """Return the initial student, and its recipe, without what is impossible: the cosine term, or the teacher's layers.

    Raise if the corpus has another vocabulary than the teacher, or the teacher cannot predict what the student learns.
    """
    objective, trunk = recipe.objective, teacher.model.config.trunk
    assert isinstance(objective, Distillation)
    _check_vocabulary(corpus, teacher)
    base, head, heads = objective.base, objective.token_head, ", ".join(teacher.model.heads) or "none"
    if head not in teacher.model.heads:
        raise UnsupportedError(f"{teacher.path} cannot be a teacher: it has no head {head!r} (its heads: {heads})")
    if (longest := recipe.objective.max_input_len(recipe.max_len)) > trunk.embeddings.max_len:
        limit = trunk.embeddings.max_len
        raise ConfigError(f"max_len is {longest}, longer than the {limit} tokens that the teacher reads: set it lower")
    if (trunk.has_source, trunk.has_query_stream) != (base.needs_source, base.needs_query_stream):
        reads = f"{type(base).__name__}, which {recipe.name} learns"
        raise ConfigError(f"{teacher.path} ({teacher.model.config.family}) does not read the batches of {reads}")
    target_vocab_size = teacher.target_tokenizer.vocab_size if teacher.target_tokenizer else 0
    config = recipe.check().model_config(trunk.embeddings.vocab_size, target_vocab_size)
    if config.trunk.dim != trunk.dim and objective.cosine_weight:
        sizes = f"{config.trunk.dim}, the teacher's {trunk.dim}"
        logger.info("no cosine term: the hidden states of the student have %s dimensions", sizes)
        recipe = recipe.replace(objective=objective.replace(cosine_weight=0.0))
    model = config.build(recipe.seed)
    warn_if_larger(model, teacher.model)
    if objective.init_from_teacher:
        try:
            init_from_teacher(model, teacher.model)
        except ModelError as error:
            logger.info("%s; it starts from random weights", error)
            recipe = recipe.replace(objective=recipe.objective.replace(init_from_teacher=False))
        else:
            if objective.freeze_positions:
                _freeze_positions(model)
    return recipe, model


def _freeze_positions(model: Model) -> None:
    """Exclude the position embeddings from training."""
    weights = [p for name, p in model.trunk.named_parameters() if name.endswith("embeddings.positions.weight")]
    if not weights:
        raise ConfigError(f"freeze_positions is true, but {model.config.family} has no position embeddings")
    for weight in weights:
        weight.requires_grad_(False)


def _check_vocabulary(corpus: Path, teacher: ModelFolder) -> None:
    """Raise if a corpus has another vocabulary than the teacher."""
    cls_position = FAMILIES[teacher.model.config.family].cls_position
    hashes = [Tokenizer.load(Corpus.open(corpus).path / "tokenizer").with_cls_position(cls_position).hash]
    hashes += [Tokenizer.load(corpus / "target").hash] if (corpus / "target").is_dir() else []
    if hashes != [tokenizer.hash for tokenizer in (teacher.tokenizer, teacher.target_tokenizer) if tokenizer]:
        hint = f"prepare it with the tokenizer of {teacher.path}"
        raise DataError(f"{corpus} has another vocabulary than {teacher.path}: {hint}")


def compare_models(
    recipe: Recipe, teacher: ModelFolder, corpus: Path, out: Path, results: dict[str, Any]
) -> CompressionResult:
    """Compare the sizes, the speed and the losses on held-out text of a student in its run folder and its teacher."""
    if distributed.init_process_group()[0]:
        return CompressionResult((), out, {"results": results})  # the first rank compares
    rows, device = compare_folders(teacher.path, out / "model")
    teacher_losses = evaluate_teacher(recipe, teacher, corpus) if results["valid"] else {}
    for name, value in results["valid"].items():
        if name in teacher_losses:
            rows.append(CompressionRow.compare(f"valid {name}", teacher_losses[name], value))
    record = {"teacher": str(teacher.path), "device": device, "results": results}
    done = f"{recipe.family} with {format_layers(out / 'model')}, distilled from {teacher.path} on {corpus}"
    return save_result(rows, out, record, (f"{done} in {results['steps']:,} steps.", *describe_loss(recipe)))


def save_result(
    rows: Sequence[CompressionRow], out: Path, record: dict[str, Any], notes: tuple[str, ...]
) -> CompressionResult:
    """Write the page of a distillation to its run folder, with a chart of the first measure of quality."""
    sizes = next(row for row in rows if row.measure == "megabytes")
    quality = next((row for row in rows if row.measure.startswith(("valid ", "dev "))), None)
    curve: tuple[CurvePoint, ...] = ()
    if quality is not None:
        student = CurvePoint("student", sizes.after, quality.after, chosen=True, std=quality.after_std)
        curve = CurvePoint("teacher", sizes.before, quality.before), student
    metric = quality.measure if quality else "score"
    compressed = CompressionResult(tuple(rows), out, record, curve, notes, curve_metric=metric)
    compressed.save(out)
    return compressed


def format_layers(student: Path) -> str:
    """Return the number of layers of a model."""
    num_layers = read_model_config(student)[0].trunk.num_layers
    return f"{num_layers} layer{'s' * (num_layers > 1)}"


def describe_loss(recipe: Recipe) -> Iterator[str]:
    """Yield sentences about what a student started from and learned."""
    objective = recipe.objective
    assert isinstance(objective, Distillation)
    start = "layers of the teacher" if objective.init_from_teacher else "random weights"
    yield f"The student started with {start}."
    if objective.freeze_positions and objective.init_from_teacher:
        yield "Its position embeddings stayed those of the teacher."
    rows = "all" if objective.soft_tokens == "all" else "the predicted"
    terms = {
        f"the teacher's predictions of {rows} tokens at temperature {objective.temperature:g}": objective.soft_weight,
        f"the true tokens ({type(objective.base).__name__})": objective.hard_weight,
        "the cosine of the hidden states": objective.cosine_weight,
    }
    yield f"Its loss: {', '.join(f'{weight:g} × {name}' for name, weight in terms.items() if weight)}."


def compare_folders(teacher: Path, student: Path) -> tuple[list[CompressionRow], str]:
    """Compare the sizes and the speed of two model folders; also return the device that they were timed on."""
    before, after = load(teacher), load(student)
    assert isinstance(before, NeuralLM) and isinstance(after, NeuralLM)
    return [*size_rows(before, after), *latency_rows(before, after, ())], describe_devices()


def evaluate_teacher(recipe: Recipe, teacher: ModelFolder, corpus: Path) -> dict[str, float]:
    """Return the losses of the teacher on the held-out text of the student's run, masked alike."""
    model, device = teacher.model, setup_device()
    _, valid_corpus = Corpus.open(corpus).split(recipe.valid_fraction)
    assert valid_corpus is not None
    builder = recipe.objective.bind(
        valid_corpus,
        SpecialIds.from_tokenizer(teacher.tokenizer, teacher.target_tokenizer),
        recipe.max_len,
        recipe.seed,
    )
    optimizer = OptimizerConfig().build(model.to(device), model.trunk.layer_groups())
    state = TrainState(model, optimizer, OptimizerConfig(), ScheduleConfig(), 0, device)
    return evaluate(state, builder, recipe)
