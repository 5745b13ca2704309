"""Distillation of a model into a smaller one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError, ModelError, UnsupportedError
from polyseme.nn.model import Model, ModelConfig
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.distillation import Distillation
from polyseme.recipes import get_training_recipe
from polyseme.recipes.launch import resolve_arguments
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import InitialModel, pretrain
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import hash_weights, load_model, read_model_config

STUDENT_FAMILIES = {"bert": "distilbert"}  # other students are of the teacher's family
MAX_TINY_DIM = 256  # hidden size up to which a teacher counts as small


def distill(
    recipe: Recipe | str | None,
    teacher_path: Path | None,
    corpus_path: Path | None,
    out: Path,
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a student of a teacher and return the results of the run.

    An objective that is not a distillation becomes one. Without a recipe, one is derived from the teacher
    (`derive_recipe`). The student starts with layers of the teacher. The run folder is that of `pretrain`, and a run is
    resumed in the same way, with the same teacher; what is not passed is that of the run.
    """
    is_saved = resume and (out / "recipe.json").is_file()
    if recipe is not None or not is_saved:
        if teacher_path is None:
            raise ConfigError("the teacher is missing: pass the folder of a model")
        recipe = get_training_recipe(recipe) if isinstance(recipe, str) else recipe
        recipe = with_distillation(derive_recipe(teacher_path) if recipe is None else recipe, teacher_path)
    arguments = resolve_arguments(recipe, corpus_path, out, overrides or {}, resume)
    if not isinstance(arguments.recipe, Recipe) or not isinstance(arguments.recipe.objective, Distillation):
        raise ConfigError(f"{out} is not a distillation: resume it by `pretrain`")
    teacher_path = teacher_path or Path(arguments.recipe.objective.teacher)
    recipe, corpus_path = with_distillation(arguments.recipe, teacher_path), arguments.corpus
    tokenizer = Tokenizer.load(Corpus.open(corpus_path).path / "tokenizer")
    folder = load_model(teacher_path)
    teacher, head = folder.model, recipe.objective.terms[0]
    if folder.tokenizer.hash != tokenizer.hash:
        hint = f"prepare it with the tokenizer of {teacher_path}"
        raise DataError(f"{corpus_path} has another vocabulary than {teacher_path}: {hint}")
    if head not in teacher.heads:
        heads = ", ".join(teacher.heads) or "none"
        raise UnsupportedError(f"{teacher_path} cannot be a teacher: it has no head {head!r} (its heads: {heads})")
    student = recipe.check().model_config(teacher.config.trunk.embeddings.vocab_size).build(recipe.seed)
    init_from_teacher(student, teacher)
    return pretrain(recipe, corpus_path, out, resume, InitialModel(student, {}))


def with_distillation(recipe: Recipe, teacher_path: Path) -> Recipe:
    """Return the recipe with a distillation of this teacher as its objective."""
    objective = recipe.objective
    distillation = objective if isinstance(objective, Distillation) else Distillation(objective)
    distillation = distillation.replace(teacher=str(teacher_path), teacher_hash=hash_weights(teacher_path))
    return recipe.replace(objective=distillation)


def derive_recipe(teacher_path: Path) -> Recipe:
    """Return a recipe for a student of half the teacher's layers.

    Batches, optimizer, schedule and budget are those of `distilbert-tiny` for a small teacher, of the teacher's own
    pre-training if its folder has the recipe, and of `distilbert-base` otherwise.
    """
    config, metadata = read_model_config(teacher_path)
    template = get_training_recipe("distilbert-tiny" if config.trunk.dim <= MAX_TINY_DIM else "distilbert-base")
    if config.trunk.dim > MAX_TINY_DIM and "recipe" in metadata:
        template = Recipe.from_json(metadata["recipe"]).replace(objective=template.objective)
    return build_student_recipe(config, template)


def build_student_recipe(teacher: ModelConfig, recipe: Recipe) -> Recipe:
    """Return the recipe for a student with half of the teacher's layers and otherwise the teacher's sizes."""
    trunk, block = teacher.transformer, teacher.transformer.block
    family = STUDENT_FAMILIES.get(teacher.family, teacher.family)
    model_args = {
        "num_layers": (trunk.num_layers + 1) // 2,
        "dim": trunk.dim,
        "num_heads": block.attention.num_heads,
        "ffn_dim": block.ffn.ffn_dim,
        "max_len": trunk.embeddings.max_len,
        "activation": block.ffn.activation,
    }
    objective = CausalLM() if trunk.causal else recipe.objective
    max_len = min(recipe.max_len, trunk.embeddings.max_len)
    name = f"{family}-student"
    return recipe.replace(name=name, family=family, size="", model=model_args, objective=objective, max_len=max_len)


def teacher_layer_map(num_layers: int, num_teacher_layers: int) -> list[int]:
    """Return the teacher's layer that each layer of the student is initialized from.

    They are evenly spaced and include the first and the last: 0, 2, 4, 7, 9 and 11 for 6 of 12 layers, as in
    DistilBERT's released code.
    """
    if num_layers > num_teacher_layers:
        raise ConfigError(f"a student of {num_layers} layers cannot start from a teacher of {num_teacher_layers}")
    return [round(i * (num_teacher_layers - 1) / max(num_layers - 1, 1)) for i in range(num_layers)]


def init_from_teacher(student: Model, teacher: Model) -> None:
    """Give the student the teacher's embeddings, some of its layers, and the heads that both have.

    Where the student has no segments, the teacher's first one, which every single text has, goes into the positions.
    """
    teacher_state, student_state = teacher.state_dict(), student.state_dict()
    initial_state = {name: tensor for name, tensor in teacher_state.items() if not name.startswith("trunk.blocks.")}
    segments, positions = "trunk.embeddings.segments.weight", "trunk.embeddings.positions.weight"
    if segments in teacher_state and segments not in student_state and positions in teacher_state:
        initial_state[positions] = teacher_state[positions] + teacher_state[segments][0]
    if positions in initial_state and positions in student_state:
        initial_state[positions] = initial_state[positions][: len(student_state[positions])]  # a student may read less
    student_blocks = student.config.transformer.block_index_per_layer
    teacher_blocks = teacher.config.transformer.block_index_per_layer
    for student_layer, teacher_layer in enumerate(teacher_layer_map(len(student_blocks), len(teacher_blocks))):
        prefix = f"trunk.blocks.{teacher_blocks[teacher_layer]}."
        student_prefix = f"trunk.blocks.{student_blocks[student_layer]}."
        for name, tensor in teacher_state.items():
            if name.startswith(prefix):
                initial_state[student_prefix + name.removeprefix(prefix)] = tensor
    for name, tensor in student_state.items():
        if name not in initial_state and not name.startswith("heads."):
            family = teacher.config.family
            raise ModelError(f"the student cannot start from its teacher ({family}), which has no {name}")
        if name in initial_state and initial_state[name].shape != tensor.shape:
            sizes = f"{tuple(tensor.shape)} in the student and {tuple(initial_state[name].shape)} in the teacher"
            raise ModelError(f"the student cannot start from its teacher: {name} is {sizes}")
    student.load_state_dict({name: t for name, t in initial_state.items() if name in student_state}, strict=False)
